//! Modes of a terminal that a command may set: the one table from which they are tracked, repeated and put back. See
//! ctlseqs of xterm(1), and for the keyboard <https://sw.kovidgoyal.net/kitty/keyboard-protocol/>.

use std::fmt::Write as _;

/// Private modes (DECSET) that are off at first, but for origin mode (6), which moves the cursor: keys (1, 66), colours
/// reversed (5), mouse (9, 1000 to 1006, 1015, 1016), blinking cursor (12), margins at the sides (69), focus (1004),
/// bracketed paste (2004), synchronised output (2026), reports of colours (2031) and size (2048).
const OFF: [u16; 19] = [
    1, 5, 9, 12, 66, 69, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004, 2026, 2031,
    2048,
];
/// Those that are on at first: line wrap, keys that repeat, the cursor, the wheel as keys.
const ON: [u16; 4] = [7, 8, 25, 1007];
/// Those of the grid, whose model has them or knows nothing of them.
const OF_GRID: [u16; 4] = [1, 7, 25, 69];

/// Sequence that takes all flags of the kitty keyboard protocol from the screen that is shown: a pop of more than there
/// are leaves none.
pub const KEYBOARD_AT_FIRST: &str = "\x1b[<99u";

/// Sequence by which a terminal remembers its titles (XTWINOPS 22) and colours (XTPUSHCOLORS), which have no value at
/// first that a client knows. A terminal without such a memory keeps those of the command.
pub const REMEMBER_TERMINAL: &str = "\x1b[22;0;0t\x1b[#P";

/// Returns whether a private mode is on at first; absent: a repaint does not set it.
pub fn repeated_mode(number: u16) -> Option<bool> {
    let is_on = ON.contains(&number);
    let is_known = is_on || OFF.contains(&number);
    (is_known && !OF_GRID.contains(&number)).then_some(is_on)
}

/// Returns the sequence that sets the modes of a terminal as they are at first: the table, its own keypad, cursor and
/// keys (`modifyOtherKeys`).
pub fn modes_at_first() -> String {
    let mut text = format!("\x1b>\x1b[0 q\x1b[>4m{KEYBOARD_AT_FIRST}");
    // Modes are set one by one: terminals accept 16 parameters per sequence, some fewer.
    for (modes, last) in [(&OFF[..], 'l'), (&ON[..], 'h')] {
        for mode in modes {
            // A write to a string cannot fail.
            let _ = write!(text, "\x1b[?{mode}{last}");
        }
    }
    text
}

/// Returns the sequence that undoes what a command has set in a terminal, on which another program continues: the
/// alternate screen, the modes, margins and letters, and what [`REMEMBER_TERMINAL`] has the terminal remember. The
/// cursor stays where it is. DECRC puts the cursor back and with it origin mode, which DECSTR then ends.
pub fn put_terminal_back() -> String {
    format!(
        "{KEYBOARD_AT_FIRST}\x1b[?1047l\x1b7\x1b[?6l\x1b[r\x1b8\x1b[!p{}\x1b[2;4;20l\x1b[0m\x1b(B\x0f\x1b[23;0;0t\x1b[#Q",
        modes_at_first()
    )
}
