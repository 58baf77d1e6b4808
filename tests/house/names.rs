//! Rules of names in code: no vague word, and at most eight words.

use super::{
    lexer::{Token, tokens},
    source::{Source, below},
};
use kennel_tests::programs;

/// Each has a plain word in its place: record, report, log; processes, the caller, any reader.
const WORDS: [&str; 5] = ["told", "whom", "whoever", "somebody", "nobody"];
/// Most words of a name. A test has to be found by its name, and a long one is a sentence.
const WORDS_MAX: usize = 8;

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
    let breaks = |name: &String| {
        let words = words(name);
        words.len() > WORDS_MAX || words.iter().any(|word| WORDS.contains(&word.as_str()))
    };
    names.filter(breaks).collect()
}

#[test]
fn names_are_short_and_have_no_vague_words() {
    let root = programs::repository();
    let sources = below(["crates", "tests"].map(|folder| root.join(folder)));
    assert!(
        sources.len() > 100,
        "only {} files were found",
        sources.len()
    );
    let mut found = Vec::new();
    for Source { path, text } in sources {
        let names = breaches(&text).into_iter();
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
fn planted_names_alone_are_breaches() {
    let text = "fn is_told() { let x: RequestTold = \"told\"; } // nobody\nconst TOLD_MAX: char = '\"';\n\
        fn f<'a>(x: &'a str) { r#\"whom\"#; toldest(b\"\\\"nobody\"); whoever }\n\
        fn a_b_c_d_e_f_g_h() {} fn a_b_c_d_e_f_g_h_i() { 1_2_3_4_5_6_7_8_9 } // a_b_c_d_e_f_g_h_j\n";
    let names = [
        "is_told",
        "RequestTold",
        "TOLD_MAX",
        "whoever",
        "a_b_c_d_e_f_g_h_i",
    ];
    assert_eq!(breaches(text), names);
}
