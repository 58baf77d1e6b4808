//! Bound on the length of files: of their code, without test modules.

use super::source::{Source, shipped, shipped_lines};
use std::collections::BTreeMap;

/// Most lines of one file.
const LINES_MAX: usize = 600;

/// Files that exceed it, each with its present maximum. Only ever fewer, and shorter.
const LONGER: [(&str, usize); 0] = [];

/// Returns files that are too long, and obsolete exceptions.
fn wrong(sources: &[Source]) -> Vec<String> {
    let mut longer: BTreeMap<&str, usize> = LONGER.into_iter().collect();
    let mut wrong = Vec::new();
    for Source { path, text } in sources {
        let lines = shipped_lines(text).count();
        let most = longer.remove(path.as_str());
        if lines > most.unwrap_or(LINES_MAX) {
            wrong.push(format!("{path} has {lines} lines"));
        } else if most.is_some() && lines <= LINES_MAX {
            wrong.push(format!("{path} is no exception any more"));
        }
    }
    wrong.extend(longer.keys().map(|path| format!("{path} is not there")));
    wrong
}

#[test]
fn no_file_has_over_600_lines_of_code() {
    assert_eq!(wrong(&shipped()), Vec::<String>::new());
}

#[test]
fn planted_long_file_is_detected() {
    let long = "// line\n".repeat(LINES_MAX);
    let file = |path: &str, text: String| Source {
        path: path.to_owned(),
        text,
    };
    let mut sources = shipped();
    let tests = "#[cfg(test)]\npub(crate) mod tests {\n    // more\n}\n";
    sources.push(file("crates/a/src/tested.rs", format!("{long}{tests}")));
    sources.push(file("crates/a/src/long.rs", format!("{long}// one more\n")));
    assert_eq!(wrong(&sources), ["crates/a/src/long.rs has 601 lines"]);
}
