use kennel_lifecycle::labels::{Selector, check_key, check_value};
use std::collections::BTreeMap;

fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let labels: BTreeMap<_, _> = labels.iter().map(owned).collect();
    let parsed: Selector = selector.parse().expect("it is a selector");
    let again: Selector = parsed.to_string().parse().expect("its text is one");
    assert_eq!(again, parsed, "{selector:?} is written as {parsed}");
    parsed.matches(&labels)
}

// promise: C-43
#[test]
fn label_syntax_matches_kubernetes() {
    let long = "a".repeat(63);
    for key in ["a", "app.kubernetes.io/name", "A_b-c.9", "0", &long] {
        assert_eq!(check_key(key), Ok(()), "{key:?}");
    }
    let too_long = "a".repeat(64);
    let long_prefix = format!("{}/a", "a".repeat(254));
    let bad = [
        "",
        "-a",
        "a-",
        "a b",
        "ä",
        "/a",
        "a/",
        "a/b/c",
        "A.b/c",
        "a..b/c",
        "a\0",
        &too_long,
        &long_prefix,
    ];
    for key in bad {
        assert!(check_key(key).is_err(), "{key:?}");
    }
    for value in ["", "a", "1.2.3", "A_b-c", &long] {
        assert_eq!(check_value(value), Ok(()), "{value:?}");
    }
    for value in ["a/b", "a=b", " ", "a ", "_a", "a\n", &too_long] {
        assert!(check_value(value).is_err(), "{value:?}");
    }
}

// promise: C-43
#[test]
fn label_selector_operators_match_kubernetes() {
    let web = &[("app", "web"), ("tier", "front")][..];
    for (selector, holds) in [
        ("", true),
        ("app=web", true),
        ("app==web", true),
        ("app = web", true),
        ("app=db", false),
        ("zone=", false),
        ("app!=db", true),
        ("app!=web", false),
        ("zone!=x", true),
        ("app in (web,db)", true),
        ("app in ( db )", false),
        ("app notin (db)", true),
        ("app notin (db,web)", false),
        ("zone notin (db)", true),
        ("app", true),
        ("zone", false),
        ("!zone", true),
        ("!app", false),
        ("app in (web,db),tier,!zone", true),
        ("app in (web,db), tier = back", false),
    ] {
        assert_eq!(matches(selector, web), holds, "{selector:?}");
    }
    assert!(matches("zone=", &[("zone", "")]));
}

// promise: C-43
#[test]
fn malformed_selectors_are_refused() {
    for text in [
        ",",
        "a,",
        "=b",
        "a in",
        "a in b",
        "a in (b",
        "a on (b)",
        "a(b)",
        "a=b=c",
        "a=b c",
        "a!",
        "!",
        "!a=b",
        "a in (b/c)",
    ] {
        assert!(text.parse::<Selector>().is_err(), "{text:?}");
    }
    let many = vec!["a"; 65].join(",");
    assert!(many.parse::<Selector>().is_err());
    let wide: Vec<String> = (0..65).map(|n| n.to_string()).collect();
    let wide = format!("a in ({})", wide.join(","));
    assert!(wide.parse::<Selector>().is_err());
}
