//! Words that no new name may contain: the remaining names are listed, and the list only shrinks.

use super::{
    lexer::{Token, tokens},
    source::{Source, below},
};
use kennel_tests::programs;
use std::{collections::BTreeMap, fmt::Write as _, fs};

/// Each has a plain word in its place: record, report, log; processes, the caller, any reader.
const WORDS: [&str; 5] = ["told", "whom", "whoever", "somebody", "nobody"];
/// File with the files that still have such names, and their number. `UPDATE=1` rewrites it where it does not grow.
const LIST: &str = "tests/house/names_left.txt";

/// Whether one of the words is a part of the name, between `_` or in its own capitals.
fn offends(token: &Token) -> bool {
    let Token::Name(name) = token else {
        return false;
    };
    let mut parts = String::new();
    let mut was_small = false;
    for letter in name.chars() {
        if letter.is_uppercase() && was_small {
            parts.push('_');
        }
        was_small = letter.is_lowercase() || letter.is_numeric();
        parts.extend(letter.to_lowercase());
    }
    parts.split('_').any(|part| WORDS.contains(&part))
}

/// Returns the number of such names in each file, by its path.
fn present() -> BTreeMap<String, usize> {
    let root = programs::repository();
    let sources = below(["crates", "tests"].map(|folder| root.join(folder)));
    assert!(
        sources.len() > 100,
        "only {} files were found",
        sources.len()
    );
    let counted = sources.into_iter().map(|Source { path, text }| {
        let count = tokens(&text).into_iter().filter(offends);
        (path, count.count())
    });
    counted.filter(|(_, count)| *count > 0).collect()
}

fn listed() -> BTreeMap<String, usize> {
    let text = fs::read_to_string(programs::repository().join(LIST)).expect("the list is there");
    let line = |line: &str| {
        let (count, path) = line.split_once(' ')?;
        Some((path.to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Rewrites the list, also where files were moved.
fn update(present: &BTreeMap<String, usize>) {
    let total = |counts: &BTreeMap<String, usize>| counts.values().sum::<usize>();
    assert!(total(present) <= total(&listed()), "the list would grow");
    let mut text = String::new();
    for (path, count) in present {
        writeln!(text, "{count} {path}").expect("a string takes all");
    }
    fs::write(programs::repository().join(LIST), text).expect("the list can be written");
}

#[test]
fn names_with_vague_words_only_become_fewer() {
    let present = present();
    if std::env::var_os("UPDATE").is_some() {
        update(&present);
    }
    let listed = listed();
    let mut found = Vec::new();
    for path in present.keys().chain(listed.keys()) {
        let (has, may) = (
            present.get(path).unwrap_or(&0),
            listed.get(path).unwrap_or(&0),
        );
        match has.cmp(may) {
            std::cmp::Ordering::Greater => found.push(format!(
                "{path}: {has} names, {may} listed: name them plainly"
            )),
            std::cmp::Ordering::Less => found.push(format!(
                "{path}: {has} names, {may} listed: UPDATE=1 rewrites {LIST}"
            )),
            std::cmp::Ordering::Equal => {}
        }
    }
    found.sort();
    found.dedup();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn vague_words_are_found_in_names_alone() {
    let text = "fn is_told() { let x: RequestTold = \"told\"; } // nobody\nconst TOLD_MAX: char = '\"';\n\
        fn f<'a>(x: &'a str) { r#\"whom\"#; toldest(b\"\\\"nobody\"); whoever }\n";
    let mut found = tokens(text);
    found.retain(offends);
    let names = ["is_told", "RequestTold", "TOLD_MAX", "whoever"];
    assert_eq!(found, names.map(Token::Name));
}
