//! Finds a value in a line of JSON without parsing it into values: all other parts are skipped.

use super::{LineMatch, MatchGroup};
use kennel_lifecycle::{JsonPattern, limits};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, value::RawValue};
use std::fmt;

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
            let text = shown(&at(line, pointer)?);
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
fn at(line: &[u8], pointer: &[String]) -> Option<Box<RawValue>> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let found = Place(pointer).deserialize(&mut json).ok()?;
    json.end().ok()?;
    found
}

/// A string without its quotes, any other value as written.
fn shown(value: &RawValue) -> String {
    let text: Option<String> = serde_json::from_str(value.get()).ok();
    text.unwrap_or_else(|| value.get().to_owned())
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(limits::MATCH_TEXT_BYTES_MAX)].to_owned()
}

/// Descends to the value at a pointer and skips the values beside it.
struct Place<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Option<Box<RawValue>>;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return serde::Deserialize::deserialize(from).map(Some);
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = Option<Box<RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.0[0] {
                found = map.next_value_seed(Place(&self.0[1..]))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let wanted: Option<usize> = self.0[0].parse().ok();
        let mut found = None;
        for at in 0.. {
            if Some(at) == wanted {
                let Some(value) = seq.next_element_seed(Place(&self.0[1..]))? else {
                    break;
                };
                found = value;
            } else if seq.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}
