//! Versions that can meet: the levels of messages that a process speaks, and the kinds that it knows.

use super::{Message, ToKeeper, ToServer, ToShim};
use crate::values::Levels;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error, Visitor, value},
    forward_to_deserialize_any,
};

/// Levels of the messages between server and keeper. The level rises only where a change cannot be a new field, value
/// or kind; two processes use the highest that both have.
pub(crate) const WIRE: Levels = Levels { min: 16, max: 16 };
/// Levels of the messages between keeper and shim. A shim of a former release lives for as long as its run.
pub(crate) const SHIM: Levels = Levels { min: 1, max: 1 };
/// Levels of the files that a keeper leaves to the next one.
pub(crate) const STATE: Levels = Levels { min: 1, max: 1 };

/// What one side can say and take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Versions {
    pub(crate) speaks: Levels,
    /// Kinds that it takes.
    pub(crate) knows: Vec<String>,
}

impl Versions {
    /// Those of this process as a server.
    pub(crate) fn of_server() -> Self {
        Self::of::<ToServer>(WIRE)
    }

    /// Those of this process as a keeper.
    pub(crate) fn of_keeper() -> Self {
        Self::of::<ToKeeper>(WIRE)
    }

    /// Those of this process as a shim.
    pub(crate) fn of_shim() -> Self {
        Self::of::<ToShim>(SHIM)
    }

    fn of<T: Message>(speaks: Levels) -> Self {
        let knows = kinds::<T>().iter().map(|kind| (*kind).to_owned()).collect();
        Self { speaks, knows }
    }

    /// Returns the kinds of this process that the other side does not know.
    pub(crate) fn missing<T: Message>(&self) -> Vec<&'static str> {
        let is_missing = |kind: &&str| !self.knows.iter().any(|known| known == kind);
        kinds::<T>().iter().copied().filter(is_missing).collect()
    }
}

/// Returns the name of a message's kind, if it is one of those that the other side does not know.
pub(crate) fn unknown_kind<T: Message>(missing: &[&str], message: &T) -> Option<String> {
    if missing.is_empty() {
        return None;
    }
    let value = serde_json::to_value(message).ok()?;
    let kind = value.as_object()?.keys().next()?;
    missing.contains(&kind.as_str()).then(|| kind.clone())
}

/// Returns the names of all values of an enum.
pub(super) fn kinds<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut kinds: &[&str] = &[];
    let _ = T::deserialize(Kinds(&mut kinds));
    kinds
}

/// Takes the names that an enum gives to its deserializer.
struct Kinds<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Kinds<'_> {
    type Error = value::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        kinds: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, value::Error> {
        *self.0 = kinds;
        Err(value::Error::custom("only its names are wanted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, value::Error> {
        Err(value::Error::custom("no enum"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
