//! Names of the kinds of messages, by which a message of a later version is told from a broken one.

use super::Body;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, IgnoredAny, Visitor, value},
    forward_to_deserialize_any,
};
use std::collections::BTreeMap;

/// Whether a body is a message whose kind `T` does not have.
pub(super) fn is_unknown<T: DeserializeOwned>(body: &[u8]) -> bool {
    let read = serde_json::from_slice::<Body<BTreeMap<String, IgnoredAny>>>(body);
    read.is_ok_and(|body| {
        let known = of::<T>();
        body.kind.len() == 1 && body.kind.keys().all(|name| !known.contains(&name.as_str()))
    })
}

/// Returns the names of all kinds.
pub(super) fn of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // It gives the names to its deserializer, and fails.
    let _ = T::deserialize(Names(&mut names));
    names
}

struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = value::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, value::Error> {
        *self.0 = variants;
        Err(value::Error::custom("only its names are wanted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, value::Error> {
        Err(value::Error::custom("no kind"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
