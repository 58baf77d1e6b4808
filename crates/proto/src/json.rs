//! Any message of the contract as proto3 JSON, and back.

use crate::pb;
use base64::{Engine, prelude::BASE64_STANDARD};
use prost::{Message, Name};
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, MethodDescriptor,
    ReflectMessage, SerializeOptions, Value,
};
use serde_json::Value as Json;
use std::{
    collections::HashSet,
    sync::LazyLock,
    time::{Duration, SystemTime},
};

/// The text is not the message.
#[derive(Debug, thiserror::Error)]
#[error("not a {message} in JSON")]
pub struct JsonError {
    message: String,
    #[source]
    source: serde_json::Error,
}

/// Formats the message on one line, without unset fields.
///
/// A Duration or a Timestamp out of its range, and a NaN or infinite number, have no form in proto3 JSON: such a time
/// is written as the object of its fields, such a number as a string.
pub fn to_string<M: Message + Name>(message: &M) -> String {
    let message = dynamic(message);
    let mut out = serde_json::Serializer::new(Vec::new());
    match message.serialize_with_options(&mut out, &SerializeOptions::new()) {
        Ok(()) => String::from_utf8(out.into_inner()).expect("JSON is UTF-8"),
        Err(_) => lenient(&message).to_string(),
    }
}

/// Returns the paths of fields in which two messages differ, at most so many: of messages that both have, those of their
/// fields.
pub fn differing<M: Message + Name>(path: &str, one: &M, other: &M, most: usize) -> Vec<String> {
    let mut found = Vec::new();
    compare(path, &dynamic(one), &dynamic(other), &mut found);
    found.truncate(most);
    found
}

fn compare(path: &str, one: &DynamicMessage, other: &DynamicMessage, found: &mut Vec<String>) {
    for field in one.descriptor().fields() {
        let has = [one, other].map(|message| message.has_field(&field));
        let (here, there) = (one.get_field(&field), other.get_field(&field));
        if has[0] == has[1] && here == there {
            continue;
        }
        let path = format!("{path}.{}", field.name());
        match (&*here, &*there) {
            (Value::Message(here), Value::Message(there)) if has == [true; 2] => {
                compare(&path, here, there, found);
            }
            _ => found.push(path),
        }
    }
}

/// A message as proto3 JSON.
pub trait ToJson {
    /// Formats it on one line, as [`to_string`] does.
    fn to_json(&self) -> String;
}

impl<M: Message + Name> ToJson for M {
    fn to_json(&self) -> String {
        to_string(self)
    }
}

/// Formats the message, where part of it has no JSON form by the rules.
fn lenient(message: &DynamicMessage) -> Json {
    if let Ok(json) = by_the_rules(message) {
        return json;
    }
    let name = message.descriptor();
    let is_of_google = name.full_name().starts_with("google.protobuf.");
    let fields = message.fields().map(|(field, value)| {
        let mut alone = DynamicMessage::new(message.descriptor());
        alone.set_field(&field, value.clone());
        let whole = (!is_of_google).then(|| by_the_rules(&alone).ok()).flatten();
        match whole {
            Some(Json::Object(object)) => object.into_iter().next(),
            _ => Some((field.json_name().to_owned(), lenient_value(value))),
        }
    });
    Json::Object(fields.flatten().collect())
}

fn by_the_rules(message: &DynamicMessage) -> Result<Json, serde_json::Error> {
    message.serialize_with_options(serde_json::value::Serializer, &SerializeOptions::new())
}

pub(crate) fn lenient_value(value: &Value) -> Json {
    match value {
        Value::Message(message) => lenient(message),
        Value::List(values) => values.iter().map(lenient_value).collect(),
        Value::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| {
                let key = key
                    .as_str()
                    .map_or_else(|| format!("{key:?}"), str::to_owned);
                (key, lenient_value(value))
            });
            Json::Object(entries.collect())
        }
        Value::Bool(is) => Json::from(*is),
        Value::I32(number) | Value::EnumNumber(number) => Json::from(*number),
        Value::U32(number) => Json::from(*number),
        Value::I64(number) => Json::from(number.to_string()),
        Value::U64(number) => Json::from(number.to_string()),
        Value::F32(number) => lenient_number(f64::from(*number)),
        Value::F64(number) => lenient_number(*number),
        Value::String(text) => Json::from(text.as_str()),
        Value::Bytes(bytes) => Json::from(BASE64_STANDARD.encode(bytes)),
    }
}

/// Formats a number as proto3 JSON writes it outside of a `google.protobuf.Value`.
fn lenient_number(number: f64) -> Json {
    match number {
        f64::INFINITY => Json::from("Infinity"),
        f64::NEG_INFINITY => Json::from("-Infinity"),
        number if number.is_nan() => Json::from("NaN"),
        number => Json::from(number),
    }
}

/// Parses the message of this text. Unknown fields are ignored: another version may have written them.
pub fn from_str<M: Message + Name + Default>(text: &str) -> Result<M, JsonError> {
    parse(text, false)
}

/// Parses the message of a text that a person has written: unknown fields are refused.
pub fn from_typed<M: Message + Name + Default>(text: &str) -> Result<M, JsonError> {
    parse(text, true)
}

fn parse<M: Message + Name + Default>(text: &str, is_exact: bool) -> Result<M, JsonError> {
    let error = |source| JsonError {
        message: M::full_name(),
        source,
    };
    let mut input = serde_json::Deserializer::from_str(text);
    let options = DeserializeOptions::new().deny_unknown_fields(is_exact);
    let message = DynamicMessage::deserialize_with_options(descriptor::<M>(), &mut input, &options)
        .map_err(error)?;
    input.end().map_err(error)?;
    Ok(message
        .transcode_to()
        .expect("the descriptor is the one the type was generated from"))
}

/// Parses a point in time as in JSON, such as `2026-01-31T08:00:00+01:00`; a date alone is its first moment in UTC.
pub fn time(text: &str) -> Option<SystemTime> {
    let at: prost_types::Timestamp = text.parse().ok()?;
    SystemTime::try_from(at).ok()
}

/// Parses a duration as in JSON, such as `1.500s`.
pub fn duration(text: &str) -> Option<Duration> {
    let span: prost_types::Duration = text.parse().ok()?;
    Duration::try_from(span).ok()
}

pub(crate) fn dynamic<M: Message + Name>(message: &M) -> DynamicMessage {
    let mut dynamic = DynamicMessage::new(descriptor::<M>());
    dynamic
        .transcode_from(message)
        .expect("the descriptor is the one the type was generated from");
    dynamic
}

pub(crate) static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(pb::FILE_DESCRIPTOR_SET).expect("the build has compiled it")
});

static METHODS: LazyLock<HashSet<String>> =
    LazyLock::new(|| methods().map(|(path, _)| path[1..].to_owned()).collect());

/// Returns all RPCs, each with its path.
pub(crate) fn methods() -> impl Iterator<Item = (String, MethodDescriptor)> {
    let services = POOL.services();
    let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
    methods.map(|method| {
        let of = method.parent_service().full_name();
        (format!("/{of}/{}", method.name()), method)
    })
}

/// Returns the method in a path, such as `/kennel.v1.ProcessService/Spawn`, if the contract has it; without the slash.
pub fn method(path: &str) -> Option<&'static str> {
    let name = path.strip_prefix('/').unwrap_or(path);
    METHODS.get(name).map(String::as_str)
}

/// Whether a message has a field of this name.
pub fn has_field<M: Name>(name: &str) -> bool {
    descriptor::<M>().get_field_by_name(name).is_some()
}

fn descriptor<M: Name>() -> MessageDescriptor {
    POOL.get_message_by_name(&M::full_name())
        .expect("every generated type is in the set it was generated from")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_round_trips_through_json() {
        let run = pb::Run {
            run_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
            state: pb::RunState::Running.into(),
            create_time: Some(prost_types::Timestamp {
                seconds: 1_700_000_000,
                nanos: 500_000_000,
            }),
            grace: Some(prost_types::Duration {
                seconds: 1,
                nanos: 500_000_000,
            }),
            ..pb::Run::default()
        };
        let text = to_string(&run);
        assert_eq!(
            text,
            r#"{"runId":"01ARZ3NDEKTSV4RRFFQ69G5FAV","state":"RUN_STATE_RUNNING","grace":"1.500s","createTime":"2023-11-14T22:13:20.500Z"}"#
        );
        assert_eq!(from_str::<pb::Run>(&text).expect("our own"), run);
    }

    #[test]
    fn bytes_are_base64_and_64_bit_integers_strings() {
        let output = pb::Output {
            stream: pb::OutputStream::Stdout.into(),
            data: bytes::Bytes::from_static(b"\xff\x00"),
            offset: u64::MAX,
        };
        let text = to_string(&output);
        assert_eq!(
            text,
            r#"{"stream":"OUTPUT_STREAM_STDOUT","data":"/wA=","offset":"18446744073709551615"}"#
        );
        assert_eq!(from_str::<pb::Output>(&text).expect("our own"), output);
    }

    #[test]
    fn json_of_another_message_is_refused() {
        for bad in ["", "[]", "{", "{} {}", r#"{"offset":"x"}"#] {
            let error = from_str::<pb::Output>(bad).expect_err(bad);
            assert_eq!(error.to_string(), "not a kennel.v1.Output in JSON");
        }
    }

    // promise: A-16
    #[test]
    fn extreme_durations_and_timestamps_have_json() {
        let spans = [i64::MIN, -1, 0, 315_576_000_001, i64::MAX];
        for seconds in spans {
            for nanos in [i32::MIN, 0, 1, i32::MAX] {
                let run = pb::Run {
                    run_id: "r".to_owned(),
                    grace: Some(prost_types::Duration { seconds, nanos }),
                    create_time: Some(prost_types::Timestamp { seconds, nanos }),
                    ..pb::Run::default()
                };
                let found: Json = serde_json::from_str(&to_string(&run)).expect("JSON");
                assert_eq!(found["runId"], "r");
                assert!(!found["grace"].is_null() && !found["createTime"].is_null());
            }
        }
        let run = pb::Run {
            grace: Some(prost_types::Duration {
                seconds: i64::MAX,
                nanos: 7,
            }),
            ..pb::Run::default()
        };
        let wanted = r#"{"grace":{"nanos":7,"seconds":"9223372036854775807"}}"#;
        assert_eq!(to_string(&run), wanted);
    }

    #[test]
    fn non_finite_numbers_are_json_strings() {
        use prost_types::{Struct, Value, value::Kind};
        let number = |number| Value {
            kind: Some(Kind::NumberValue(number)),
        };
        let fields = [("a", f64::NAN), ("b", f64::INFINITY), ("c", 1.5)];
        let fields = fields.map(|(name, value)| (name.to_owned(), number(value)));
        let line = pb::Line {
            json: Some(Value {
                kind: Some(Kind::StructValue(Struct {
                    fields: fields.into(),
                })),
            }),
            ..pb::Line::default()
        };
        let found: Json = serde_json::from_str(&to_string(&line)).expect("JSON");
        assert!(found.to_string().contains("NaN") && found.to_string().contains("Infinity"));
    }
}
