//! Report of a binary about itself before a keeper starts a server from it: its version, and the levels that it speaks
//! and reads.
//!
//! Lines on standard output. Their forms must never change, and a later version may add others: keepers of other
//! versions read them.

use crate::{
    values::Levels,
    wire::versions::{SHIM, STATE, WIRE},
};

/// Hidden command of the command line that requests it.
pub const WORD: &str = "preflight";

/// Longest answer that is read; the rest is ignored.
pub(crate) const ANSWER_BYTES_MAX: usize = 4096;

const BEGINS: &str = "kennel wire ";
const MIDDLE: &str = " version ";
const LEVELS: &str = "kennel levels wire ";

/// Returns the answer of this binary, whose databases have this level.
pub fn answer(schema: i64) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let wire = WIRE.max;
    format!(
        "{BEGINS}{wire}{MIDDLE}{version}\n{LEVELS}{WIRE} shim {SHIM} state {STATE} schema {schema}\n"
    )
}

/// The answer of a binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spoken {
    /// Levels of messages between server and keeper.
    pub(crate) wire: Levels,
    pub(crate) version: String,
}

/// Finds the answer in a binary's output, wherever it is in it.
pub(crate) fn read(written: &str) -> Option<Spoken> {
    let mut spoken = written.lines().find_map(first_line)?;
    // A binary without the second line speaks only the first line's level.
    let levels = |line: &str| line.strip_prefix(LEVELS)?.split(' ').next()?.parse().ok();
    if let Some(wire) = written.lines().find_map(levels) {
        spoken.wire = wire;
    }
    Some(spoken)
}

fn first_line(line: &str) -> Option<Spoken> {
    let (wire, version) = line.strip_prefix(BEGINS)?.split_once(MIDDLE)?;
    let is_plain = |c: char| c.is_ascii_graphic();
    let plain = !version.is_empty() && version.len() <= 64 && version.chars().all(is_plain);
    let wire = wire.parse().ok().filter(|_| plain)?;
    Some(Spoken {
        wire: Levels {
            min: wire,
            max: wire,
        },
        version: version.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: R-25
    #[test]
    fn preflight_answer_format_is_stable() {
        let version = env!("CARGO_PKG_VERSION");
        let wire = WIRE.max;
        let first = format!("kennel wire {wire} version {version}\n");
        let second = format!("kennel levels wire {WIRE} shim {SHIM} state {STATE} schema 3\n");
        assert_eq!(answer(3), first + &second);
        let spoken = |text: &str| {
            let spoken = read(text).expect("an answer");
            (spoken.wire.to_string(), spoken.version)
        };
        let old = "warning: old libc\nkennel wire 77 version 2.0.0-rc.1\n";
        assert_eq!(spoken(old), ("77-77".into(), "2.0.0-rc.1".into()));
        let later = format!("{old}kennel levels wire 70-77 shim 1-9 of_tomorrow\nmore\n");
        assert_eq!(spoken(&later), ("70-77".into(), "2.0.0-rc.1".into()));
    }

    #[test]
    fn malformed_preflight_answer_is_refused() {
        for bad in [
            "",
            "kennel 0.1.0",
            "kennel wire x version 1",
            "kennel wire 1 version ",
            "kennel wire 1 version a b",
            "kennel wire -1 version 1",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
