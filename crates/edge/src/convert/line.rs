//! A line of output, in the contract's form.

use crate::pb;
use prost_types::{ListValue, Struct, Value, value::Kind};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::{collections::BTreeMap, fmt};

/// Deepest nesting of a line's JSON. A level is up to three messages on the wire, and decoders take 100.
const DEPTH_MAX: usize = 24;
/// Most values of a line's JSON. Each takes some hundred bytes of memory, and two of the line.
const VALUES_MAX: usize = 256 * 1024;

/// Returns the line as text; invalid UTF-8 is replaced.
pub(crate) fn text(line: Vec<u8>) -> String {
    String::from_utf8(line)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns the line as JSON, if it is valid.
pub(crate) fn json(line: &[u8]) -> Option<Value> {
    let mut values = VALUES_MAX;
    let mut input = serde_json::Deserializer::from_slice(line);
    let depth = DEPTH_MAX;
    let kind = Place {
        depth,
        values: &mut values,
    }
    .deserialize(&mut input);
    let kind = kind.ok()?;
    input.end().ok()?;
    Some(Value { kind: Some(kind) })
}

/// Position of one value, and the remaining bounds.
struct Place<'a> {
    depth: usize,
    values: &'a mut usize,
}

impl Place<'_> {
    /// Returns the position of a value within this one.
    fn within(&mut self) -> Place<'_> {
        Place {
            depth: self.depth,
            values: self.values,
        }
    }

    fn deeper<E: Error>(&mut self) -> Result<(), E> {
        let depth = self.depth.checked_sub(1);
        self.depth = depth.ok_or_else(|| E::custom("nested too deep"))?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Kind;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Kind, D::Error> {
        let left = self.values.checked_sub(1);
        *self.values = left.ok_or_else(|| D::Error::custom("too many values"))?;
        input.deserialize_any(self)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers are double precision here"
)]
impl<'de> Visitor<'de> for Place<'_> {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::NullValue(0))
    }

    fn visit_bool<E>(self, is: bool) -> Result<Kind, E> {
        Ok(Kind::BoolValue(is))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Kind, E> {
        Ok(Kind::NumberValue(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Kind, E> {
        Ok(Kind::NumberValue(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Kind, E> {
        Ok(Kind::NumberValue(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Kind, E> {
        Ok(Kind::StringValue(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Kind, A::Error> {
        self.deeper()?;
        let mut values = Vec::new();
        while let Some(kind) = items.next_element_seed(self.within())? {
            values.push(Value { kind: Some(kind) });
        }
        Ok(Kind::ListValue(ListValue { values }))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut items: A) -> Result<Kind, A::Error> {
        self.deeper()?;
        let mut fields = BTreeMap::new();
        while let Some(name) = items.next_key::<String>()? {
            let kind = Some(items.next_value_seed(self.within())?);
            fields.insert(name, Value { kind });
        }
        Ok(Kind::StructValue(Struct { fields }))
    }
}

pub(crate) fn output_stream(number: u8) -> pb::OutputStream {
    match number {
        1 => pb::OutputStream::Stdout,
        2 => pb::OutputStream::Stderr,
        _ => pb::OutputStream::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn valid_json_is_unchanged_and_other_text_none() {
        for bad in ["", "{", "plain", "{} {}", "{\"a\":1e999}"] {
            assert_eq!(json(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(json(b"\xff"), None);
        let line = br#" {"a": [1, -2.5, null, true, "\u00e9"], "b": {}} "#;
        let Some(Kind::StructValue(found)) = json(line).and_then(|v| v.kind) else {
            panic!("no object");
        };
        let Some(Kind::ListValue(list)) = &found.fields["a"].kind else {
            panic!("no list: {found:?}");
        };
        let kinds: Vec<Kind> = list.values.iter().filter_map(|v| v.kind.clone()).collect();
        let expected = [
            Kind::NumberValue(1.0),
            Kind::NumberValue(-2.5),
            Kind::NullValue(0),
            Kind::BoolValue(true),
            Kind::StringValue("\u{e9}".to_owned()),
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn json_nested_too_deep_is_none() {
        let nested = |depth: usize| "{\"a\":".repeat(depth) + "0" + &"}".repeat(depth);
        let deepest = json(nested(DEPTH_MAX).as_bytes()).expect("as deep as it may be");
        let event = crate::pb::StreamEventsResponse {
            run_events: vec![crate::pb::RunEvents {
                events: vec![crate::pb::Event {
                    payload: Some(crate::pb::event::Payload::Line(crate::pb::Line {
                        json: Some(deepest),
                        ..Default::default()
                    })),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let bytes = event.encode_to_vec();
        assert_eq!(
            crate::pb::StreamEventsResponse::decode(&bytes[..]),
            Ok(event)
        );
        assert_eq!(json(nested(DEPTH_MAX + 1).as_bytes()), None);
    }

    #[test]
    fn lines_of_too_many_values_have_no_json() {
        let of = |values: usize| format!("[{}0]", "0,".repeat(values - 2));
        assert!(json(of(VALUES_MAX).as_bytes()).is_some());
        assert_eq!(json(of(VALUES_MAX + 1).as_bytes()), None);
    }
}
