//! The promises of SPECIFICATION.md and the tests that hold them: a comment above a test names its promises, such as
//! `promise: D-1, D-4` behind two slashes.

use crate::{pages, repository};
use std::{collections::BTreeMap, fmt::Write as _, fs};

/// The page of the promises.
pub const PAGE: &str = "SPECIFICATION.md";
/// Beginning of the comment above a test.
const COMMENT: &str = "// promise: ";
/// Rows of a table that are no promises.
const HEADS: [&str; 2] = ["| | promise |", "|---|---|"];

/// The comment above a test.
pub struct Claim<'a> {
    /// Numbers of the promises that it names.
    pub promises: Vec<&'a str>,
    /// Name of the test: of a function, or the first text of a line in a table of tests.
    pub test: Option<&'a str>,
}

/// Returns the claims of a source file.
#[must_use]
pub fn claims(source: &str) -> Vec<Claim<'_>> {
    let mut found = Vec::new();
    for (at, line) in source.lines().enumerate() {
        let Some(promises) = line.trim().strip_prefix(COMMENT) else {
            continue;
        };
        let mut below = source.lines().skip(at + 1).map(str::trim);
        let test = below.find(|line| !line.starts_with('#') && !line.starts_with("//"));
        found.push(Claim {
            promises: promises.split(", ").collect(),
            test: test.and_then(name),
        });
    }
    found
}

/// Returns the name of a function, or the first text of a line.
fn name(line: &str) -> Option<&str> {
    match line.split_once("fn ") {
        Some((_, function)) => function.split(['(', '<']).next(),
        None => line
            .trim_start_matches('(')
            .strip_prefix('"')?
            .split('"')
            .next(),
    }
}

/// Returns the rows of a page part's tables, one for each promise.
#[must_use]
pub fn rows(part: &str) -> Vec<&str> {
    let rows = part.lines().filter(|line| line.starts_with('|'));
    rows.filter(|line| !HEADS.contains(line)).collect()
}

/// Returns the cells of a row.
#[must_use]
pub fn cells(row: &str) -> Vec<&str> {
    let row = row.trim_start_matches('|').trim_end_matches('|');
    row.split(" | ").map(str::trim).collect()
}

/// Returns the page of the site with the tests of each promise.
///
/// # Panics
/// If a file cannot be read.
#[must_use]
pub fn table_of_tests() -> String {
    let root = repository();
    let mut files = Vec::new();
    for folder in ["crates", "tests"] {
        pages::collect("rs", &root.join(folder), &mut files);
    }
    files.sort();
    let mut tests: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let source = fs::read_to_string(&file).expect("a source file is UTF-8");
        let path = file.strip_prefix(&root).expect("it is below").display();
        for Claim { promises, test } in claims(&source) {
            let test = format!("`{path}::{}`", test.unwrap_or_default());
            for promise in promises {
                tests
                    .entry(promise.to_owned())
                    .or_default()
                    .push(test.clone());
            }
        }
    }
    let page = fs::read_to_string(root.join(PAGE)).expect("the page");
    let mut out =
        String::from("# Which tests hold a promise?\n\nThese, of the [specification](../");
    let _ = writeln!(out, "{PAGE}).");
    for part in page.split("\n## ").skip(1) {
        let heading = part.lines().next().unwrap_or_default();
        let _ = write!(out, "\n## {heading}\n\n| | | tests |\n|---|---|---|\n");
        for row in rows(part) {
            let number = cells(row)[0];
            let tests = tests.get(number).map_or(&[][..], Vec::as_slice);
            let _ = writeln!(out, "| {number} | {} | {} |", tests.len(), tests.join(" "));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promise_comments_belong_to_the_next_test() {
        let source = "    // promise: A-1, B-2a\n    /// Doc.\n    #[test]\n    async fn first() {}\n\n// promise: A-2\n\
                      (\"second\", f),\n// promise: A-3\nconst X: u8 = 1;\n";
        let found: Vec<_> = claims(source)
            .into_iter()
            .map(|claim| (claim.promises, claim.test))
            .collect();
        let expected = [
            (vec!["A-1", "B-2a"], Some("first")),
            (vec!["A-2"], Some("second")),
            (vec!["A-3"], None),
        ];
        assert_eq!(found, expected);
    }
}
