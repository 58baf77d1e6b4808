//! Any message of the contract as proto3 JSON, and back.

use crate::pb;
use prost::{Message, Name};
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions,
};
use std::{collections::HashSet, sync::LazyLock};

/// The text is not the message.
#[derive(Debug, thiserror::Error)]
#[error("not a {message} in JSON")]
pub struct JsonError {
    message: String,
    #[source]
    source: serde_json::Error,
}

/// The message on one line, fields that are not set left out.
#[must_use]
pub fn to_string<M: Message + Name>(message: &M) -> String {
    let mut out = serde_json::Serializer::new(Vec::new());
    dynamic(message)
        .serialize_with_options(&mut out, &SerializeOptions::new())
        .expect("a message of the contract has a JSON form");
    String::from_utf8(out.into_inner()).expect("JSON is UTF-8")
}

/// The message indented for people.
#[must_use]
pub fn to_string_pretty<M: Message + Name>(message: &M) -> String {
    let mut out = serde_json::Serializer::pretty(Vec::new());
    dynamic(message)
        .serialize_with_options(&mut out, &SerializeOptions::new())
        .expect("a message of the contract has a JSON form");
    String::from_utf8(out.into_inner()).expect("JSON is UTF-8")
}

/// The message that this text stands for. Fields that are not known are passed over: another version may have
/// written them.
pub fn from_str<M: Message + Name + Default>(text: &str) -> Result<M, JsonError> {
    let error = |source| JsonError {
        message: M::full_name(),
        source,
    };
    let mut input = serde_json::Deserializer::from_str(text);
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message = DynamicMessage::deserialize_with_options(descriptor::<M>(), &mut input, &options)
        .map_err(error)?;
    input.end().map_err(error)?;
    Ok(message
        .transcode_to()
        .expect("the descriptor is the one the type was generated from"))
}

fn dynamic<M: Message + Name>(message: &M) -> DynamicMessage {
    let mut dynamic = DynamicMessage::new(descriptor::<M>());
    dynamic
        .transcode_from(message)
        .expect("the descriptor is the one the type was generated from");
    dynamic
}

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(pb::FILE_DESCRIPTOR_SET).expect("the build has compiled it")
});

static METHODS: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let methods = POOL.services().flat_map(|service| {
        let of = service.full_name().to_owned();
        let names = service
            .methods()
            .map(move |method| format!("{of}/{}", method.name()));
        names.collect::<Vec<_>>()
    });
    methods.collect()
});

/// The name of a method, such as `kennel.v1.ProcessService/Spawn`, if the contract has it.
pub(crate) fn method(name: &str) -> Option<&'static str> {
    METHODS.get(name).map(String::as_str)
}

fn descriptor<M: Name>() -> MessageDescriptor {
    POOL.get_message_by_name(&M::full_name())
        .expect("every generated type is in the set it was generated from")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_from_its_json() {
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
        assert_eq!(
            from_str::<pb::Run>(&to_string_pretty(&run)).expect("our own"),
            run
        );
    }

    #[test]
    fn bytes_are_base64_and_wide_numbers_are_strings() {
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
    fn what_is_not_the_message_is_refused() {
        for bad in ["", "[]", "{", "{} {}", r#"{"offset":"x"}"#] {
            let error = from_str::<pb::Output>(bad).expect_err(bad);
            assert_eq!(error.to_string(), "not a kennel.v1.Output in JSON");
        }
    }
}
