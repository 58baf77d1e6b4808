//! Promises and their tests: each promise of SPECIFICATION.md has a test that names it or is listed among those that
//! have none, and each test that the page of invariants and those about security name exists.

use super::{
    names,
    source::{Source, below},
};
use kennel_tests::{
    programs,
    promises::{self, cells, claims, rows},
};
use std::{collections::BTreeSet, fs, path::Path};

/// Most characters of a promise: it is one line.
const PROMISE_CHARS_MAX: usize = 200;
/// Heading of the promises without a test.
const WITHOUT_TEST: &str = "## Promises without a test";

fn page(name: &str) -> String {
    fs::read_to_string(programs::repository().join(name)).expect("the page is there")
}

fn sources() -> Vec<Source> {
    let root = programs::repository();
    below(["crates", "tests"].map(|folder| root.join(folder)))
}

/// Returns the names between backticks of the form `file.rs::test`.
fn named(text: &str) -> Vec<(&str, &str)> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|code| code.split_once("::"))
        .filter(|(file, _)| Path::new(file).extension().is_some_and(|e| e == "rs"))
        .collect()
}

/// Returns the named tests that do not exist.
fn missing(page: &str, sources: &[Source]) -> Vec<String> {
    named(page)
        .into_iter()
        .filter(|(file, test)| {
            let below = format!("/{file}");
            let mut there = sources
                .iter()
                .filter(|s| s.path == *file || s.path.ends_with(&below));
            !there.any(|source| is_test(source, test, sources))
        })
        .map(|(file, test)| format!("{file}::{test}"))
        .collect()
}

/// Whether it is a function marked as a test, or listed in a table of tests.
fn is_test(source: &Source, test: &str, sources: &[Source]) -> bool {
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let function = format!("fn {test}(");
    let at = lines.iter().position(|line| line.contains(&function));
    let marked = names::tests(&source.text).contains(&test);
    // A list entry of a macro that runs tests with and without control groups.
    let entry = format!("{test},");
    let only = format!("!({test});");
    let in_list = at.is_some()
        && lines
            .iter()
            .any(|line| *line == entry || line.ends_with(&only));
    // A table entry of name and function, as in the keeper's tests.
    let in_table = source.text.contains(&format!("\"{test}\""));
    marked || in_list || in_table || (at.is_some() && is_listed_beside(source, test, sources))
}

/// Whether a suite lists it: as `module::case` in the file above.
fn is_listed_beside(source: &Source, test: &str, sources: &[Source]) -> bool {
    let path = Path::new(&source.path);
    let (Some(dir), Some(module)) = (path.parent(), path.file_stem()) else {
        return false;
    };
    let above = dir.join("mod.rs").display().to_string();
    let case = format!("{}::{test},", module.display());
    sources
        .iter()
        .any(|s| s.path == above && s.text.lines().any(|line| line.trim() == case))
}

/// Whether it is a part's letters, a dash and a number; the letter at the end is that of a later clause of the same
/// promise.
fn is_number(text: &str) -> bool {
    let Some((part, number)) = text.split_once('-') else {
        return false;
    };
    let number = number.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    let is_part = !part.is_empty() && part.chars().all(|letter| letter.is_ascii_uppercase());
    is_part && !number.is_empty() && number.chars().all(|letter| letter.is_ascii_digit())
}

/// Returns the faults of the promises and of the comments that name them.
fn faults(page: &str, sources: &[Source]) -> Vec<String> {
    let mut named = BTreeSet::new();
    let mut faults = Vec::new();
    for source in sources {
        for claim in claims(&source.text) {
            let is_named = |test| is_test(source, test, sources);
            if !claim.test.is_some_and(is_named) {
                let promises = claim.promises.join(", ");
                faults.push(format!("{}: {promises} is above no test", source.path));
            }
            named.extend(claim.promises);
        }
    }
    let (held, bare) = page.split_once(WITHOUT_TEST).unwrap_or((page, ""));
    let start = |row: &str| cells(row).into_iter().take(2).collect::<Vec<_>>().join(" ");
    let has_test = |row: &&str| named.contains(cells(row)[0]);
    let mut numbers = BTreeSet::new();
    for row in rows(page) {
        let cells = cells(row);
        let text = cells.get(1).copied().unwrap_or_default();
        if !is_number(cells[0]) || text.is_empty() || cells.len() > 2 {
            faults.push(format!("is no number and text: {}", start(row)));
        }
        if text.chars().count() > PROMISE_CHARS_MAX {
            faults.push(format!("is longer than {PROMISE_CHARS_MAX}: {}", cells[0]));
        }
        if !numbers.insert(cells[0]) {
            faults.push(format!("has a number twice: {}", start(row)));
        }
    }
    let unknown = named.difference(&numbers);
    faults.extend(unknown.map(|number| format!("a test names {number}, which is no promise")));
    let untested = rows(held).into_iter().filter(|row| !has_test(row));
    faults.extend(untested.map(|row| format!("has no test: {}", start(row))));
    let tested = rows(bare).into_iter().filter(has_test);
    faults.extend(tested.map(|row| format!("has a test after all: {}", start(row))));
    // Promises outside a table would escape this check.
    let elsewhere = page.lines().filter(|line| line.starts_with("- **"));
    faults.extend(elsewhere.map(|line| format!("is no row of a table: {line}")));
    faults
}

#[test]
fn each_test_named_by_a_page_exists() {
    let sources = sources();
    for name in [
        "SECURITY.md",
        "docs/internals/invariants.md",
        "docs/guide/explanation/security.md",
    ] {
        let page = page(name);
        assert!(!named(&page).is_empty(), "{name} names no test at all");
        assert_eq!(missing(&page, &sources), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn each_promise_has_own_number_and_test() {
    let page = page(promises::PAGE);
    assert!(rows(&page).len() > 300, "promises are not recognised");
    assert_eq!(faults(&page, &sources()), Vec::<String>::new());
}

#[test]
fn missing_test_names_are_detected() {
    let planted = [
        Source {
            path: "crates/x/tests/suite/held.rs".to_owned(),
            text: "#[tokio::test(flavor = \"multi_thread\")]\nasync fn marked() {}\n\
                   listed!(\n    in_list,\n);\nasync fn in_list(o: O) {}\n\
                   listed!(alone);\nasync fn alone(o: O) {}\n\
                   const T: T = &[(\"in_table\", f)];\nfn case() {}\nfn helper() {}\n"
                .to_owned(),
        },
        Source {
            path: "crates/x/tests/suite/mod.rs".to_owned(),
            text: "cases![\n    held::case,\n]\n".to_owned(),
        },
    ];
    let page = "`held.rs::marked` `suite/held.rs::in_list` `held.rs::alone` `held.rs::in_table` `held.rs::case` \
                `held.rs::helper` `held.rs::nowhere` `other.rs::marked` `held.rs`";
    assert_eq!(
        missing(page, &planted),
        ["held.rs::helper", "held.rs::nowhere", "other.rs::marked"]
    );
}

#[test]
fn untested_promise_and_reused_number_are_detected() {
    let planted = [Source {
        path: "a.rs".to_owned(),
        text: "// promise: A-1, A-1a, A-1b, A3, A-5\n#[test]\nfn b() {}\n// promise: A-7\n#[test]\nfn c() {}\n// promise: A-1\n\
               fn helper() {}\n"
            .to_owned(),
    }];
    let page = format!(
        "## A\n\n| | promise |\n|---|---|\n| A-1 | Held. |\n| A-2 | Bare. |\n| A-1 | Again. |\n| A-1a | Held too. |\n\
         | A3 | Held. |\n| A-1b | {} |\n- **A-9** Held.\n{WITHOUT_TEST}\n\n| | promise |\n|---|---|\n| A-4 | Bare. |\n| A-5 | Held. |\n",
        "x".repeat(PROMISE_CHARS_MAX + 1)
    );
    assert_eq!(
        faults(&page, &planted),
        [
            "a.rs: A-1 is above no test",
            "has a number twice: A-1 Again.",
            "is no number and text: A3 Held.",
            "is longer than 200: A-1b",
            "a test names A-7, which is no promise",
            "has no test: A-2 Bare.",
            "has a test after all: A-5 Held.",
            "is no row of a table: - **A-9** Held.",
        ]
    );
}
