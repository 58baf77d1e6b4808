//! Patterns of output lines.

use super::{GaveUp, LineMatch, LineMatcher, Scratch};
use kennel_lifecycle::{JsonPattern, LinePattern};

fn json(pointer: &str, equals: Option<&str>, captures: &[(&str, &str)]) -> LineMatcher {
    let captures = captures.iter();
    let captures = captures.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let pattern = LinePattern::Json(JsonPattern {
        pointer: pointer.to_owned(),
        equals: equals.map(str::to_owned),
        captures: captures.collect(),
    });
    compiled(&pattern).expect("well formed")
}

fn regex(text: &str) -> LineMatcher {
    compiled(&LinePattern::Regex(text.into())).expect("well formed")
}

fn compiled(pattern: &LinePattern) -> Result<LineMatcher, String> {
    LineMatcher::new(pattern, &mut Scratch::new())
}

fn try_test(matcher: &LineMatcher, line: &[u8]) -> Result<Option<LineMatch>, GaveUp> {
    matcher.begin(&mut Scratch::new()).test(line)
}

fn test(matcher: &LineMatcher, line: &[u8]) -> Option<LineMatch> {
    try_test(matcher, line).expect("few steps")
}

fn groups(matcher: &LineMatcher, line: &str) -> Option<Vec<(String, String)>> {
    let found = test(matcher, line.as_bytes())?;
    let groups = found.groups.into_iter();
    Some(groups.map(|group| (group.name, group.text)).collect())
}

#[test]
fn literal_pattern_is_not_a_regex() {
    let matcher = compiled(&LinePattern::Literal("a.b".into())).expect("text");
    assert!(test(&matcher, b"xa.by").is_some());
    assert!(test(&matcher, b"xacby").is_none());
}

#[test]
fn regex_returns_matched_groups() {
    let matcher = regex(r"(?P<host>\w+)(:(\d+))?");
    let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    assert_eq!(groups(&matcher, "db"), Some(vec![pair("host", "db")]));
    let all = vec![pair("host", "db"), pair("", ":80"), pair("", "80")];
    assert_eq!(groups(&matcher, "db:80"), Some(all));
    assert_eq!(test(&matcher, b"\xff"), None);
}

// promise: RW-4
#[test]
fn json_pointer_matches_only_its_value() {
    let matcher = json(
        "/a/1/b~1c",
        Some("{\"x\":1}"),
        &[("s", "/s"), ("n", "/a/0")],
    );
    let line = r#" {"s":"t\"u","a":[1.50,{"b/c":{"x":1}}],"z":[[]]} "#;
    let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let found = groups(&matcher, line);
    assert_eq!(found, Some(vec![pair("n", "1.50"), pair("s", "t\"u")]));
    for other in [
        r#"{"a":[0,{"b/c":{"x":2}}]}"#,
        r#"{"a":{"1":{"b/c":{"x":1}}}"#,
        r#"{"a":[0,{"b/c":{"x":1}}]} trailing"#,
        r#"{"a":[0,{"b/c":{"x":1}}"#,
        "[]",
        "true",
        "",
    ] {
        assert_eq!(test(&matcher, other.as_bytes()), None, "{other}");
    }
}

// promise: RW-5
#[test]
fn deeply_nested_json_is_skipped() {
    let deep = format!(
        r#"{{"pad":{}{},"type":"result"}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let matcher = json("/type", Some("\"result\""), &[]);
    // Nesting beyond serde_json's limit must not overflow the stack.
    let _ = test(&matcher, deep.as_bytes());
    let wide = format!(r#"{{"pad":[{}0],"type":"result"}}"#, "0,".repeat(1 << 20));
    assert!(test(&matcher, wide.as_bytes()).is_some());
}

// promise: RW-5
#[test]
fn exploding_regex_takes_linear_time() {
    let matcher = regex("(a*)*$");
    let line = [b"a".repeat(1 << 20), b"b".to_vec()].concat();
    assert!(test(&matcher, &line).is_some());
    assert!(compiled(&LinePattern::Regex(r"(a)\1".into())).is_err());
    assert!(compiled(&LinePattern::Regex("(?:x{1000}){1000}".into())).is_err());
}

/// Letters that differ from place to place, without a digit.
fn letters(bytes: usize) -> Vec<u8> {
    let mut seed = 1_u32;
    let letter = |_| {
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
        b'a' + u8::try_from(seed >> 16 & 15).expect("small")
    };
    (0..bytes).map(letter).collect()
}

#[test]
fn large_counted_repetition_matches_or_gives_up() {
    // Giving up is allowed, a wrong match is not; a slow engine needs two seconds.
    let line = letters(64 * 1024);
    let found = try_test(&regex("(?:[a-z]?){800}[0-9]"), &line);
    assert!(matches!(found, Ok(None) | Err(GaveUp)), "{found:?}");
}

// promise: RW-5c
#[test]
fn regex_with_too_many_states_gives_up() {
    let line = letters(64 * 1024);
    let matcher = regex("[a-h][a-p]{500}[0-9]");
    assert_eq!(try_test(&matcher, &line), Err(GaveUp));
    // The next pattern reuses the thread's scratch memory without these states.
    let mut scratch = Scratch::new();
    assert_eq!(matcher.begin(&mut scratch).test(&line), Err(GaveUp));
    let found = regex("a(b|c)").begin(&mut scratch).test(b"xacb");
    assert_eq!(found.expect("few steps").expect("a match").text, "ac");
}

// promise: RW-5c
#[test]
fn unicode_word_boundaries_match() {
    let matcher = regex(r"\b(\w+)!\B");
    for (line, wanted) in [("go: zwölf! ", "zwölf"), ("go: twelve! ", "twelve")] {
        let pair = (String::new(), wanted.to_owned());
        assert_eq!(groups(&matcher, line), Some(vec![pair]), "{line}");
    }
    assert_eq!(test(&matcher, "zwölf".as_bytes()), None);
    // Without the automaton's `\b`, non-ASCII lines need too many steps.
    let long = ["é".as_bytes(), &letters(64 * 1024)].concat();
    let attack = regex(r"(?:[a-z]?){800}[0-9]\b");
    assert_eq!(try_test(&attack, &long), Err(GaveUp));
}

#[test]
fn regex_groups_of_long_lines_are_captured() {
    let line = [b"tool bash ".as_slice(), &letters(64 * 1024)].concat();
    let line = String::from_utf8(line).expect("letters");
    let pair = ("name".to_owned(), "bash".to_owned());
    let found = groups(&regex("^tool (?P<name>[a-z]+) .*$"), &line);
    assert_eq!(found, Some(vec![pair]));
    let found = groups(&regex("^tool (?:[a-z]?){800}(.*)$"), &line);
    assert_eq!(found, Some(Vec::new()), "a match without groups");
}

#[test]
fn regex_semantics_are_stable() {
    let is_match = |pattern: &str, line: &[u8]| test(&regex(pattern), line).is_some();
    assert!(is_match("^a$", b"a") && !is_match("^a$", b"a\nb"));
    assert!(is_match("(?m)^a$", b"a\nb") && !is_match("a.b", b"a\nb"));
    assert!(is_match(r"^\w$", "ß".as_bytes()) && is_match("(?i)^É$", "é".as_bytes()));
    assert!(is_match(r"(?-u)^\xff$", b"\xff") && !is_match("^.$", b"\xff"));
    let first = test(&regex("a|ab"), b"ab").expect("a match").text;
    assert_eq!(first, "a", "the leftmost alternative");
    assert_eq!(test(&regex("x*"), b"ab").expect("empty").text, "");
}
