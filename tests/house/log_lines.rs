//! Rules of log lines: values in the words of the contract, never in Rust's `Debug` form; texts begin with their subject or
//! a verb.

use super::{
    lexer::{Token, tokens},
    source::{Source, shipped},
};

/// First words of a clause in the place of a noun, and pronouns without one.
const BEGINNINGS: [&str; 11] = [
    "what", "whether", "who", "whose", "it", "its", "they", "of", "nothing", "there", "so",
];
/// Endings of the dialect: `retrying` says the same.
const ENDINGS: [&str; 3] = ["trying again", "until it can", "as it is"];

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
    let debugs = arguments(code).filter(|arguments| is_debug(arguments));
    debugs
        .map(|arguments| format!("{}: {arguments}", source.path))
        .collect()
}

/// Returns the arguments of each macro of a log line.
fn arguments(code: &str) -> impl Iterator<Item = &str> {
    let calls = MACROS.iter().flat_map(|name| code.match_indices(name));
    calls.map(|(at, name)| until_closed(&code[at + name.len()..]))
}

/// Returns `path: text` of each line that does not begin with its subject or a verb, or ends in the dialect.
fn vague_lines(source: &Source) -> Vec<String> {
    let code = source.text.split("\n#[cfg(test)]").next().unwrap_or("");
    let mut found = Vec::new();
    for arguments in arguments(code) {
        let texts = tokens(arguments)
            .into_iter()
            .filter_map(|token| match token {
                Token::Text(text) if text.contains(' ') => Some(text.trim_matches('"')),
                _ => None,
            });
        found.extend(
            texts
                .filter(|text| {
                    let first = text.split(|c: char| !c.is_alphanumeric()).next();
                    first.is_some_and(|word| BEGINNINGS.contains(&word))
                        || ENDINGS.iter().any(|end| text.ends_with(end))
                })
                .map(|text| format!("{}: {text}", source.path)),
        );
    }
    found
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

// promise: M-30
#[test]
fn log_lines_have_no_debug_values() {
    let found: Vec<String> = shipped().iter().flat_map(debug_values).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

// promise: RW-113
#[test]
fn log_lines_begin_with_subject_or_verb() {
    let sources = shipped();
    let lines: usize = sources.iter().map(|s| arguments(&s.text).count()).sum();
    assert!(lines > 150, "only {lines} log lines were found");
    let found: Vec<String> = sources.iter().flat_map(vague_lines).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn planted_vague_log_line_is_detected() {
    let planted = |text: &str| Source {
        path: "crates/journal/src/planted.rs".to_owned(),
        text: format!("fn f() {{\n    tracing::{text};\n}}\n"),
    };
    for text in [
        "info!(%error, \"what the row says is not known\")",
        "warn!(run_id = %run, \"it cannot be adopted\")",
        "error!(\"the journal cannot be written, trying until it can\")",
        "error!(\n        left,\n        \"cannot read the log, trying again\"\n    )",
    ] {
        assert_eq!(vague_lines(&planted(text)).len(), 1, "{text}");
    }
    for text in [
        "info!(state = \"it\", \"cannot read the row, retrying\")",
        "warn!(%error, \"the item was dropped\")",
    ] {
        assert_eq!(vague_lines(&planted(text)), Vec::<String>::new());
    }
}

#[test]
fn planted_debug_value_is_detected() {
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
