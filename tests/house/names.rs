//! Rules of names in code: no vague word, and no test whose name is a riddle.

use super::{
    lexer::{Token, tokens},
    source::{Source, below},
};
use kennel_tests::programs;

/// Each has a plain word in its place: record, report, log; processes, the caller, any reader.
const WORDS: [&str; 5] = ["told", "whom", "whoever", "somebody", "nobody"];
/// First words of a test's name that stand in the place of its subject.
const BEGINNINGS: [&str; 3] = ["nothing", "what", "none"];
/// Last words of a test's name that leave its outcome open: "links are none", "it is read whole".
const ENDINGS: [&str; 6] = ["none", "alone", "too", "so", "whole", "there"];

/// Returns the words of a name: between `_`, or in their own capitals.
fn words(name: &str) -> Vec<String> {
    let mut parts = String::new();
    let mut was_small = false;
    for letter in name.chars() {
        if letter.is_uppercase() && was_small {
            parts.push('_');
        }
        was_small = letter.is_lowercase() || letter.is_numeric();
        parts.extend(letter.to_lowercase());
    }
    let words = parts.split('_').filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

/// Returns the names of this text that break a rule.
fn breaches(text: &str) -> Vec<String> {
    let names = tokens(text).into_iter().filter_map(|token| match token {
        Token::Name(name) if !name.starts_with(|c: char| c.is_ascii_digit()) => {
            Some(name.to_owned())
        }
        _ => None,
    });
    let breaks = |name: &String| words(name).iter().any(|word| WORDS.contains(&&**word));
    names.filter(breaks).collect()
}

/// Returns the names of the functions that are marked as tests.
pub(super) fn tests(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        if let Some((_, rest)) = line.split_once("fn ")
            && is_test
        {
            found.extend(rest.split_once('(').map(|(name, _)| name));
            is_test = false;
        }
    }
    found
}

/// Returns the names of tests that do not say what they are about, or what comes out of it.
fn riddles(text: &str) -> Vec<&str> {
    let is_riddle = |name: &&str| {
        let mut words = name.split('_');
        let [first, last] = [words.next(), words.next_back()].map(Option::unwrap_or_default);
        BEGINNINGS.contains(&first) || ENDINGS.contains(&last)
    };
    tests(text).into_iter().filter(is_riddle).collect()
}

/// Asserts that no name in crates and tests is found.
fn assert_no_name(found_in: fn(&str) -> Vec<String>) {
    let root = programs::repository();
    let sources = below(["crates", "tests"].map(|folder| root.join(folder)));
    assert!(
        sources.len() > 100,
        "only {} files were found",
        sources.len()
    );
    let mut found = Vec::new();
    for Source { path, text } in sources {
        let names = found_in(&text).into_iter();
        found.extend(names.map(|name| format!("{path}: {name}")));
    }
    found.sort();
    found.dedup();
    assert!(
        found.is_empty(),
        "name these plainly:\n{}",
        found.join("\n")
    );
}

#[test]
fn names_have_no_vague_words() {
    assert_no_name(breaches);
}

#[test]
fn test_names_are_no_riddles() {
    assert_no_name(|text| riddles(text).into_iter().map(str::to_owned).collect());
}

#[test]
fn planted_vague_names_are_detected() {
    let text = "fn is_told() { let x: RequestTold = \"told\"; } // nobody\nconst TOLD_MAX: char = '\"';\n\
        fn f<'a>(x: &'a str) { r#\"whom\"#; toldest(b\"\\\"nobody\"); whoever }\n";
    let names = ["is_told", "RequestTold", "TOLD_MAX", "whoever"];
    assert_eq!(breaches(text), names);
}

#[test]
fn planted_riddles_are_detected() {
    let text = "#[test]\nfn nothing_is_left() {}\n#[test]\nfn no_process_is_left() {}\nfn whole() {}\
        \n#[tokio::test(start_paused = true)]\n#[ignore = \"long\"]\nasync fn links_in_code_are_none() {}\
        \n#[test]\nfn output_is_read_alone() {\n    fn inner_helper() {}\n}\n";
    let names = [
        "nothing_is_left",
        "links_in_code_are_none",
        "output_is_read_alone",
    ];
    assert_eq!(riddles(text), names);
}
