//! A message as the values that a text about it may name.

use crate::json::{dynamic, lenient_value};
use prost::{Message, Name};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage as _, Value};
use serde_json::Value as Json;

/// A message of the contract, of which texts are made.
pub trait ToFields {
    /// Returns its fields by their names in JSON. Unlike there, a field without presence always has its value: a number
    /// that is zero is null, and a value of an enum that this version does not know is the unspecified one.
    fn to_fields(&self) -> Json;
}

impl<M: Message + Name> ToFields for M {
    fn to_fields(&self) -> Json {
        of_message(&dynamic(self))
    }
}

fn of_message(message: &DynamicMessage) -> Json {
    let fields = message.descriptor();
    let fields = fields.fields().filter_map(|field| {
        let has = message.has_field(&field);
        let value = match &*message.get_field(&field) {
            _ if !has && field.supports_presence() => return None,
            Value::I32(0) | Value::U32(0) | Value::I64(0) | Value::U64(0) if !has => Json::Null,
            value => of_value(value, &field),
        };
        Some((field.json_name().to_owned(), value))
    });
    Json::Object(fields.collect())
}

fn of_value(value: &Value, field: &FieldDescriptor) -> Json {
    match value {
        Value::Message(message) if !is_of_google(message) => of_message(message),
        Value::List(values) => values.iter().map(|value| of_value(value, field)).collect(),
        Value::EnumNumber(number) => match field.kind() {
            Kind::Enum(of) => {
                let known = of.get_value(*number);
                Json::from(known.unwrap_or_else(|| of.default_value()).name())
            }
            _ => Json::from(*number),
        },
        other => lenient_value(other),
    }
}

fn is_of_google(message: &DynamicMessage) -> bool {
    let of = message.descriptor();
    of.full_name().starts_with("google.protobuf.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb;
    use serde_json::json;

    #[test]
    fn fields_have_their_defaults_unless_absent() {
        let attempt = pb::Attempt {
            pid: 7,
            streams_end: 99,
            start_time: Some(prost_types::Timestamp::default()),
            ..pb::Attempt::default()
        };
        let fields = attempt.to_fields();
        assert_eq!(fields["pid"], 7);
        assert_eq!(fields["number"], json!(null));
        assert!(fields.get("exit").is_none() && fields.get("number").is_some());
        assert_eq!(fields["streamsEnd"], "STREAMS_END_UNSPECIFIED");
        assert_eq!(fields["startTime"], "1970-01-01T00:00:00Z");
    }
}
