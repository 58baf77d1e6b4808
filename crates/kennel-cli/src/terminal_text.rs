//! Foreign text on the operator's terminal: characters on which a terminal would act, or that change the order of
//! display, are escaped.

use std::fmt::Write as _;

/// Whether a terminal does something else with this than to show it: control characters, and those that change the
/// direction of later text (Unicode, UAX 9) or end a line.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// Escapes a text on one line.
pub(crate) fn one_line(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    push(&mut safe, text, &[]);
    safe
}

/// Escapes a text, except its lines and tabs.
pub(crate) fn lines(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    push(&mut safe, text, &['\n', '\t']);
    safe
}

/// Escapes bytes that may not be text, on one line.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    let mut safe = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        push(&mut safe, chunk.valid(), &[]);
        push_bytes(&mut safe, chunk.invalid());
    }
    safe
}

/// Escapes JSON, or YAML whose texts are quoted as in JSON: its value stays the same.
pub(crate) fn json(document: &str) -> String {
    let mut safe = String::with_capacity(document.len());
    for c in document.chars() {
        if is_unsafe(c) && !c.is_ascii_whitespace() {
            // Writing to a String cannot fail. No unsafe character is above U+FFFF.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

fn push(safe: &mut String, text: &str, kept: &[char]) {
    for c in text.chars() {
        if is_unsafe(c) && !kept.contains(&c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
}

/// Escapes output in pieces, which may end anywhere. Line feeds, tabs and carriage returns pass.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// The beginning of an incomplete character.
    begun: Vec<u8>,
}

impl Pieces {
    /// Returns the text of this, and of the rest of the last piece, that can be shown.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut safe = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            push(&mut safe, chunk.valid(), &['\n', '\t', '\r']);
            let invalid = chunk.invalid();
            let is_begun =
                std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_begun && chunks.peek().is_none() {
                self.begun = invalid.to_vec();
            } else {
                push_bytes(&mut safe, invalid);
            }
        }
        safe
    }
}

pub(crate) fn push_bytes(safe: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(safe, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: C-36
    #[test]
    fn control_and_bidi_characters_are_escaped() {
        let text = "a\u{1b}[2Jb\u{9b}c\u{202e}d\u{2066}e\u{200f}\r\n\tä二";
        assert_eq!(
            lines(text),
            "a\\u{1b}[2Jb\\u{9b}c\\u{202e}d\\u{2066}e\\u{200f}\\r\n\tä二"
        );
        assert!(one_line(text).ends_with(r"\r\n\tä二"));
    }

    // promise: C-36
    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let text = "a\u{1b}[2Jb\u{7f}\u{9b}c\u{202e}d\u{2066}e\u{2028}\r\n\tä二";
        let document = serde_json::json!({ "k": text, "\u{9b}": [text] });
        let pretty = serde_json::to_string_pretty(&document).expect("JSON");
        for plain in [document.to_string(), pretty] {
            let safe = json(&plain);
            assert!(!safe.chars().any(|c| is_unsafe(c) && c != '\n'), "{safe:?}");
            let read: serde_json::Value = serde_json::from_str(&safe).expect("JSON");
            assert_eq!(read, document);
        }
    }

    // promise: C-36
    #[test]
    fn character_split_over_chunks_is_printed() {
        let mut pieces = Pieces::default();
        let shown = ["ä".as_bytes(), b"\x1b[m\x9b\r\n", "二".as_bytes()].concat();
        let shown: String = shown.iter().map(|byte| pieces.next(&[*byte])).collect();
        assert_eq!(shown, "ä\\u{1b}[m\\x9b\r\n二");
        assert_eq!(pieces.next(b"\xe4"), "");
        assert_eq!(pieces.next(b"A"), "\\xe4A");
    }
}
