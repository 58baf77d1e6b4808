//! Report of a binary about itself before a keeper starts a server from it: its protocol and its version.
//!
//! One line on standard output. Its form must never change: keepers of other versions read it.

use crate::wire;

/// Hidden command of the command line that requests it.
pub const WORD: &str = "preflight";

/// Longest answer that is read; the rest is ignored.
pub(crate) const ANSWER_BYTES_MAX: usize = 4096;

const BEGINS: &str = "kennel wire ";
const MIDDLE: &str = " version ";

/// Returns the answer of this binary.
#[must_use]
pub fn answer() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("{BEGINS}{}{MIDDLE}{version}\n", wire::VERSION)
}

/// The answer of a binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spoken {
    pub(crate) wire: u32,
    pub(crate) version: String,
}

/// Finds the answer in a binary's output, wherever it is in it.
pub(crate) fn read(written: &str) -> Option<Spoken> {
    written.lines().find_map(|line| {
        let (wire, version) = line.strip_prefix(BEGINS)?.split_once(MIDDLE)?;
        let is_plain = |c: char| c.is_ascii_graphic();
        let plain = !version.is_empty() && version.len() <= 64 && version.chars().all(is_plain);
        let wire = wire.parse().ok().filter(|_| plain)?;
        Some(Spoken {
            wire,
            version: version.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_this_form_for_ever() {
        let version = env!("CARGO_PKG_VERSION");
        let wire = crate::wire::VERSION;
        assert_eq!(answer(), format!("kennel wire {wire} version {version}\n"));
        let spoken = read("warning: old libc\nkennel wire 77 version 2.0.0-rc.1\n");
        let spoken = spoken.expect("an answer");
        assert_eq!((spoken.wire, spoken.version.as_str()), (77, "2.0.0-rc.1"));
    }

    #[test]
    fn malformed_answer_is_none() {
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
