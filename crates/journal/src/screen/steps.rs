//! Cost of what a command writes to its terminal, in steps: the cells and lines that the model may touch for it. A few
//! bytes can stand for much: seven clear a million cells, or repeat a character 65,535 times.

use avt::{
    Terminal,
    parser::{AnsiMode, DecMode, Function},
};

/// Steps of one function on a terminal, of a repetition for one character.
pub(super) fn of(function: &Function, terminal: &Terminal, inserts: bool) -> u64 {
    let (cols, rows) = terminal.size();
    let (cols, rows) = (cols as u64, rows as u64);
    let area = cols * rows;
    match function {
        // A full line scrolls the screen, and an inserted character shifts its line.
        Function::Print(_) | Function::Rep(_) => 1 + rows / cols + if inserts { cols } else { 0 },
        Function::Lf | Function::Nel | Function::Ri => rows + cols,
        Function::Cbt(_)
        | Function::Cht(_)
        | Function::Ctc(_)
        | Function::Dch(_)
        | Function::Ech(_)
        | Function::El(_)
        | Function::Ht
        | Function::Hts
        | Function::Ich(_)
        | Function::Tbc(_) => cols,
        Function::Decset(modes) | Function::Decrst(modes) => {
            let switches = |mode: &&DecMode| {
                let other = [DecMode::AltScreenBuffer, DecMode::SaveCursorAltScreenBuffer];
                other.contains(mode)
            };
            1 + modes.as_slice().iter().filter(switches).count() as u64 * area
        }
        Function::Decaln
        | Function::Dl(_)
        | Function::Ed(_)
        | Function::Il(_)
        | Function::Ris
        | Function::Sd(_)
        | Function::Su(_) => area,
        // Cargo.toml pins the version of avt: functions of a new version must be reviewed here.
        _ => 1,
    }
}

/// Whether characters are inserted after this function (IRM).
pub(super) fn inserts(function: &Function, before: bool) -> bool {
    match function {
        Function::Sm(modes) => before || modes.as_slice().contains(&AnsiMode::Insert),
        Function::Rm(modes) => before && !modes.as_slice().contains(&AnsiMode::Insert),
        Function::Decstr | Function::Ris => false,
        _ => before,
    }
}
