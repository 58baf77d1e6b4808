//! A line of output, in the contract's form.

use crate::pb;
use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::Value as Json;

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
    // Values are counted before any is allocated.
    if values(line) > VALUES_MAX {
        return None;
    }
    value(serde_json::from_slice(line).ok()?, DEPTH_MAX)
}

/// Returns how many values a text has, if it is JSON.
fn values(text: &[u8]) -> usize {
    let (mut values, mut last, mut in_string, mut is_escaped) = (1, b' ', false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b',' | b'[' | b'{' => values += 1,
            // The array or object is empty.
            b']' | b'}' if matches!(last, b'[' | b'{') => values -= 1,
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            last = *byte;
        }
    }
    values
}

fn value(json: Json, depth: usize) -> Option<Value> {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(is) => Kind::BoolValue(is),
        Json::Number(number) => Kind::NumberValue(number.as_f64()?),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => {
            let depth = depth.checked_sub(1)?;
            let values = items.into_iter().map(|item| value(item, depth));
            let values = values.collect::<Option<_>>()?;
            Kind::ListValue(ListValue { values })
        }
        Json::Object(items) => {
            let depth = depth.checked_sub(1)?;
            let items = items.into_iter();
            let fields = items.map(|(name, item)| Some((name, value(item, depth)?)));
            let fields = fields.collect::<Option<_>>()?;
            Kind::StructValue(Struct { fields })
        }
    };
    Some(Value { kind: Some(kind) })
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
    fn only_a_valid_json_line_is_parsed() {
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
    fn json_nested_too_deep_is_not_parsed() {
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

    // promise: O-41
    #[test]
    fn json_with_too_many_values_is_not_parsed() {
        let of = |values: usize| format!("[{}0]", "0,".repeat(values - 2));
        assert!(json(of(VALUES_MAX).as_bytes()).is_some());
        assert_eq!(json(of(VALUES_MAX + 1).as_bytes()), None);
    }
}
