//! Each invariant of docs/internals/invariants.md is cited by its number in the code that the page names for it.

use kennel_tests::programs;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Beginning of an invariant, before its number.
const BEGIN: &str = "- **INV-";
/// Returns the invariants: number and text of the page.
fn invariants(page: &str) -> Vec<(u32, &str)> {
    let texts = page.split(BEGIN).skip(1);
    texts
        .map(|text| {
            let text = text.split("\n## ").next().unwrap_or(text);
            let (number, text) = text.split_once("**").expect("a number");
            (number.parse().expect("a number"), text)
        })
        .collect()
}

/// Returns the paths of product code between backticks, such as `linux/src/keeper/run/{kept,handover}.rs` or
/// `migrations/`.
fn places(text: &str) -> Vec<String> {
    let code = text.split('`').skip(1).step_by(2);
    let places = code.filter(|code| code.contains("/src/") || code.starts_with("migrations"));
    let mut all = Vec::new();
    for place in places {
        match (place.split_once('{'), place.split_once('}')) {
            (Some((before, _)), Some((list, after))) => {
                let names = list[before.len() + 1..].split(',');
                all.extend(names.map(|name| format!("{before}{name}{after}")));
            }
            _ => all.push(place.to_owned()),
        }
    }
    all
}

/// Returns all text of a file, or of the files below a folder.
fn text_of(path: &Path) -> String {
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a folder").flatten();
        entries.map(|entry| text_of(&entry.path())).collect()
    } else {
        fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }
}

fn path_of(place: &str) -> PathBuf {
    let root = programs::repository();
    if place.starts_with("migrations") || place.starts_with("crates/") {
        root.join(place)
    } else {
        root.join("crates").join(place)
    }
}

/// Whether the number occurs, and not as the beginning of a longer one.
fn cites(text: &str, number: u32) -> bool {
    let wanted = format!("INV-{number}");
    text.match_indices(&wanted).any(|(at, _)| {
        let after = text[at + wanted.len()..].chars().next();
        !after.is_some_and(|letter| letter.is_ascii_digit())
    })
}

#[test]
fn each_invariant_is_cited_in_its_code() {
    let page = fs::read_to_string(programs::repository().join("docs/internals/invariants.md"))
        .expect("the page");
    let invariants = invariants(&page);
    assert!(invariants.len() >= 22, "{} invariants", invariants.len());
    let is_cited = |text: &str, number| {
        let mut texts = places(text)
            .into_iter()
            .map(|place| text_of(&path_of(&place)));
        texts.any(|text| cites(&text, number))
    };
    let not_cited: BTreeSet<u32> = invariants
        .iter()
        .filter(|(number, text)| !is_cited(text, *number))
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(not_cited, BTreeSet::new());
}

#[test]
fn longer_invariant_number_is_not_a_citation() {
    assert!(cites("(INV-1)", 1) && cites("INV-12 INV-1", 1));
    assert!(!cites("INV-12", 1));
    let named = places("`linux/src/{identity,tree}.rs`, `tests/chaos/gate.rs`");
    assert_eq!(named, ["linux/src/identity.rs", "linux/src/tree.rs"]);
}
