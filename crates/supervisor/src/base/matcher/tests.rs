//! Patterns of output lines.

use super::LineMatcher;
use kennel_lifecycle::{JsonPattern, LinePattern};

fn json(pointer: &str, equals: Option<&str>, captures: &[(&str, &str)]) -> LineMatcher {
    let captures = captures.iter();
    let captures = captures.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let pattern = LinePattern::Json(JsonPattern {
        pointer: pointer.to_owned(),
        equals: equals.map(str::to_owned),
        captures: captures.collect(),
    });
    LineMatcher::new(&pattern).expect("well formed")
}

fn groups(matcher: &LineMatcher, line: &str) -> Option<Vec<(String, String)>> {
    let found = matcher.test(line.as_bytes())?;
    let groups = found.groups.into_iter();
    Some(groups.map(|group| (group.name, group.text)).collect())
}

#[test]
fn literal_is_text_and_no_expression() {
    let matcher = LineMatcher::new(&LinePattern::Literal("a.b".into())).expect("text");
    assert!(matcher.test(b"xa.by").is_some());
    assert!(matcher.test(b"xacby").is_none());
}

#[test]
fn expression_gives_groups_that_took_part() {
    let pattern = LinePattern::Regex(r"(?P<host>\w+)(:(\d+))?".into());
    let matcher = LineMatcher::new(&pattern).expect("well formed");
    let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    assert_eq!(groups(&matcher, "db"), Some(vec![pair("host", "db")]));
    let all = vec![pair("host", "db"), pair("", ":80"), pair("", "80")];
    assert_eq!(groups(&matcher, "db:80"), Some(all));
    assert_eq!(matcher.test(b"\xff"), None);
}

#[test]
fn json_value_is_found_at_its_place_alone() {
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
        assert_eq!(matcher.test(other.as_bytes()), None, "{other}");
    }
}

#[test]
fn deep_json_is_skipped_without_harm() {
    let deep = format!(
        r#"{{"pad":{}{},"type":"result"}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let matcher = json("/type", Some("\"result\""), &[]);
    // Deeper than serde_json reads: no match, and no overflow.
    let _ = matcher.test(deep.as_bytes());
    let wide = format!(r#"{{"pad":[{}0],"type":"result"}}"#, "0,".repeat(1 << 20));
    assert!(matcher.test(wide.as_bytes()).is_some());
}

#[test]
fn exploding_expression_takes_linear_time() {
    let pattern = LinePattern::Regex("(a*)*$".into());
    let matcher = LineMatcher::new(&pattern).expect("no look-around");
    let line = [b"a".repeat(1 << 20), b"b".to_vec()].concat();
    assert!(matcher.test(&line).is_some());
    assert!(LineMatcher::new(&LinePattern::Regex(r"(a)\1".into())).is_err());
    assert!(LineMatcher::new(&LinePattern::Regex("(?:x{1000}){1000}".into())).is_err());
}
