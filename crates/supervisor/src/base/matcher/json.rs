//! Finds a value in a line of JSON as it is written: no other part of the line becomes a value.

use super::{LineMatch, MatchGroup};
use kennel_lifecycle::{JsonPattern, limits};
use serde_json::{Value, value::RawValue};
use std::collections::HashMap;

/// A pattern, ready to test lines.
#[derive(Clone, Debug)]
pub(super) struct Matcher {
    pointer: Vec<String>,
    equals: Option<Value>,
    captures: Vec<(String, Vec<String>)>,
}

impl Matcher {
    pub(super) fn new(pattern: &JsonPattern) -> Result<Self, String> {
        let JsonPattern {
            pointer,
            equals,
            captures,
        } = pattern;
        let equals = equals.as_deref().map(|text| {
            serde_json::from_str(text).map_err(|e| format!("`equals` is not JSON: {e}"))
        });
        let captures = captures
            .iter()
            .map(|(name, pointer)| Ok((name.clone(), tokens(pointer)?)));
        Ok(Self {
            pointer: tokens(pointer)?,
            equals: equals.transpose()?,
            captures: captures.collect::<Result<_, String>>()?,
        })
    }

    pub(super) fn group_names(&self) -> impl Iterator<Item = &str> {
        self.captures.iter().map(|(name, _)| name.as_str())
    }

    pub(super) fn test(&self, line: &[u8]) -> Option<LineMatch> {
        let found = at(line, &self.pointer)?;
        if let Some(wanted) = &self.equals {
            let value: Value = serde_json::from_str(found.get()).ok()?;
            if value != *wanted {
                return None;
            }
        }
        let groups = self.captures.iter().filter_map(|(name, pointer)| {
            let text = shown(at(line, pointer)?);
            Some(MatchGroup {
                name: name.clone(),
                is_cut: text.len() > limits::MATCH_TEXT_BYTES_MAX,
                text: cut(&text),
            })
        });
        Some(LineMatch {
            text: cut(found.get()),
            groups: groups.collect(),
        })
    }
}

/// The tokens of a pointer of RFC 6901.
fn tokens(pointer: &str) -> Result<Vec<String>, String> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let Some(pointer) = pointer.strip_prefix('/') else {
        return Err("a pointer must be empty or begin with '/', as RFC 6901 has it".into());
    };
    let token = |token: &str| token.replace("~1", "/").replace("~0", "~");
    Ok(pointer.split('/').map(token).collect())
}

/// Returns the value at this pointer; `None` where the line as a whole is not JSON.
fn at<'a>(line: &'a [u8], pointer: &[String]) -> Option<&'a RawValue> {
    let mut found: &RawValue = serde_json::from_slice(line).ok()?;
    for token in pointer {
        let text = found.get();
        found = if text.starts_with('{') {
            let fields: HashMap<String, &RawValue> = serde_json::from_str(text).ok()?;
            fields.get(token)?
        } else {
            let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            elements.get(token.parse::<usize>().ok()?)?
        };
    }
    Some(found)
}

/// A string without its quotes, any other value as written.
fn shown(value: &RawValue) -> String {
    let text: Option<String> = serde_json::from_str(value.get()).ok();
    text.unwrap_or_else(|| value.get().to_owned())
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(limits::MATCH_TEXT_BYTES_MAX)].to_owned()
}
