//! Patterns of output lines, as a caller gives them. The supervisor tests lines by them.

use crate::{Violation, limits, names::tagged};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

tagged! {
    /// Pattern of a line.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum LinePattern {
        /// The line has this text in it.
        Literal(String) = "literal",
        /// A part of the line matches.
        Regex(String) = "regex",
        /// The line is JSON, and has a value.
        Json(JsonPattern) = "json",
    }
}

/// A value in a line of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JsonPattern {
    /// Pointer to the value, as in RFC 6901; empty: the whole line.
    pub pointer: String,
    /// JSON text that the value must equal; absent: any.
    pub equals: Option<String>,
    /// Values that a match gives as its groups: their pointers, by name.
    pub captures: BTreeMap<String, String>,
}

impl LinePattern {
    /// Adds violations of the size bounds of the pattern in this field.
    pub fn check(&self, field: &str, found: &mut Vec<Violation>) {
        let most = limits::PATTERN_BYTES_MAX;
        let mut wrong = |why: String| {
            found.push(Violation::new(format!("{field}.{}", self.name()), why));
        };
        match self {
            Self::Literal(text) | Self::Regex(text) => {
                if text.is_empty() || text.len() > most {
                    wrong(format!("must be 1 to {most} bytes"));
                }
            }
            Self::Json(pattern) => {
                let texts = pattern.captures.iter();
                let texts = texts.flat_map(|(name, pointer)| [name, pointer]);
                let mut texts = texts.chain(&pattern.equals).chain([&pattern.pointer]);
                if texts.any(|text| text.len() > most) {
                    wrong(format!("each text must be at most {most} bytes"));
                }
                if pattern.captures.len() > limits::CAPTURES_MAX {
                    wrong(format!("has more than {} captures", limits::CAPTURES_MAX));
                }
            }
        }
    }
}
