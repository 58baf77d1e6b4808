//! A line of output as the contract shows it.

use prost_types::{ListValue, Struct, Value, value::Kind};

/// How deep a line's JSON may be nested. A level is up to three messages on the wire, and decoders take 100.
const DEPTH_MAX: usize = 24;

/// The line; what is not UTF-8 is replaced.
pub(crate) fn text(line: Vec<u8>) -> String {
    String::from_utf8(line)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The line as JSON, if it is.
pub(crate) fn json(line: &[u8]) -> Option<Value> {
    value(serde_json::from_slice(line).ok()?, DEPTH_MAX)
}

fn value(json: serde_json::Value, depth: usize) -> Option<Value> {
    use serde_json::Value as Json;
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
            let fields = items
                .into_iter()
                .map(|(name, item)| Some((name, value(item, depth)?)));
            let fields = fields.collect::<Option<_>>()?;
            Kind::StructValue(Struct { fields })
        }
    };
    Some(Value { kind: Some(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn what_is_no_json_is_none_and_what_is_comes_as_it_was() {
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
    fn what_is_nested_as_deep_as_it_may_be_can_be_decoded_and_deeper_is_none() {
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
}
