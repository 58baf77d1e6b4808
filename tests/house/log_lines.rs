//! Rules of log lines: values in the words of the contract, never in Rust's `Debug` form.

use super::source::{Source, shipped};

/// Macros whose arguments become a line, or a field of one.
const MACROS: [&str; 11] = [
    "trace!(",
    "debug!(",
    "info!(",
    "warn!(",
    "error!(",
    "event!(",
    "trace_span!(",
    "debug_span!(",
    "info_span!(",
    "warn_span!(",
    "error_span!(",
];

/// Returns `path: field` of each field or text that is printed by `Debug`.
fn debug_values(source: &Source) -> Vec<String> {
    let code = source.text.split("\n#[cfg(test)]").next().unwrap_or("");
    let calls = MACROS.iter().flat_map(|name| code.match_indices(name));
    let arguments = calls.map(|(at, name)| until_closed(&code[at + name.len()..]));
    let debugs = arguments.filter(|arguments| is_debug(arguments));
    debugs
        .map(|arguments| format!("{}: {arguments}", source.path))
        .collect()
}

/// Returns the text up to the bracket that closes the open one.
fn until_closed(text: &str) -> &str {
    let mut open = 1;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => open += 1,
            ')' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return &text[..at];
        }
    }
    text
}

/// Whether there is the sigil `?` before a value, or `{:?}` in a text. A `?` after a value passes an error on.
fn is_debug(arguments: &str) -> bool {
    let before_value = |(at, _): (usize, &str)| {
        let before = arguments[..at].trim_end().chars().next_back();
        before.is_none_or(|before| "(,=".contains(before))
    };
    arguments.contains(":?}") || arguments.match_indices('?').any(before_value)
}

#[test]
fn log_lines_have_no_debug_values() {
    let found: Vec<String> = shipped().iter().flat_map(debug_values).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn planted_debug_value_is_seen() {
    let planted = |text: &str| Source {
        path: "crates/journal/src/planted.rs".to_owned(),
        text: format!("fn f() {{\n    tracing::{text};\n}}\n"),
    };
    for text in [
        "info!(?state, \"x\")",
        "warn!(run_id = %run, exit = ?outcome.exit, \"x\")",
        "error!(\n        ?left,\n        \"x\"\n    )",
        "info_span!(\"x\", state = ?f(a))",
        "debug!(\"x {:?}\", state)",
        "debug!(\"x {state:?}\")",
    ] {
        assert_eq!(debug_values(&planted(text)).len(), 1, "{text}");
    }
    for text in [
        "info!(state = state.name(), \"why?\")",
        "warn!(size = size()?, %error, \"x\")",
    ] {
        assert_eq!(debug_values(&planted(text)), Vec::<String>::new());
    }
}
