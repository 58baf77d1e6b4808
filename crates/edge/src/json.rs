//! Any message of the contract as proto3 JSON, and back.

use crate::pb;
use prost::{Message, Name};
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions,
};
use std::sync::LazyLock;

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

fn descriptor<M: Name>() -> MessageDescriptor {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        DescriptorPool::decode(pb::FILE_DESCRIPTOR_SET).expect("the build has compiled it")
    });
    POOL.get_message_by_name(&M::full_name())
        .expect("every generated type is in the set it was generated from")
}
