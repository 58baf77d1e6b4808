//! Words that no new name has: what is left of them is listed, and the list only shrinks.

use super::source::{Source, below};
use kennel_tests::programs;
use std::{collections::BTreeMap, fmt::Write as _, fs};

/// Each has a plain word in its place: record, report, log; processes, the caller, any reader.
const WORDS: [&str; 5] = ["told", "whom", "whoever", "somebody", "nobody"];
/// The files that still have such names, and how many. `UPDATE=1` rewrites it where it does not grow.
const LIST: &str = "tests/house/names_left.txt";

/// Names in code: no comments, no strings, no characters.
fn identifiers(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        at += match rest {
            [b'/', b'/', ..] => line_length(rest),
            [b'r', b'"' | b'#', ..] if raw_string_length(rest).is_some() => {
                raw_string_length(rest).unwrap_or(1)
            }
            [b'"', ..] => quoted_length(rest, b'"'),
            [b'\'', b'\\', ..] | [b'\'', _, b'\'', ..] => quoted_length(rest, b'\''),
            [first, ..] if is_name(*first) => {
                let length = rest.iter().take_while(|byte| is_name(**byte)).count();
                found.push(&text[at..at + length]);
                length
            }
            _ => 1,
        };
    }
    found
}

fn line_length(rest: &[u8]) -> usize {
    rest.iter().take_while(|byte| **byte != b'\n').count()
}

fn quoted_length(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// `r"..."` and `r#"..."#`; `r#type` is a name.
fn raw_string_length(rest: &[u8]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    let begin = 1 + hashes;
    if rest.get(begin) != Some(&b'"') {
        return None;
    }
    let end = [b"\"".to_vec(), vec![b'#'; hashes]].concat();
    let inner = &rest[begin + 1..];
    let length = inner.windows(end.len()).position(|part| part == end)?;
    Some(begin + 1 + length + end.len())
}

/// Whether one of the words is a part of the name, between `_` or in its own capitals.
fn offends(name: &str) -> bool {
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

/// How many such names each file has, by its path.
fn present() -> BTreeMap<String, usize> {
    let root = programs::repository();
    let sources = below(["crates", "tests"].map(|folder| root.join(folder)));
    assert!(
        sources.len() > 100,
        "only {} files were found",
        sources.len()
    );
    let counted = sources.into_iter().map(|Source { path, text }| {
        let count = identifiers(&text).into_iter().filter(|name| offends(name));
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
    let found: Vec<&str> = identifiers(text)
        .into_iter()
        .filter(|name| offends(name))
        .collect();
    assert_eq!(found, ["is_told", "RequestTold", "TOLD_MAX", "whoever"]);
}
