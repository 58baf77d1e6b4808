//! Rules of the forms in which values are stored and exchanged, for serde: what is a default is not written, and what
//! only a later version knows hides nothing else.

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};
use std::{any::type_name, cell::RefCell};

/// Whether a value is its type's default. Such a field is not written, so that one which a later version adds
/// changes no text of a value that does not use it.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

thread_local! {
    /// Types of what was left out, while they are collected.
    static SKIPPED: RefCell<Option<Vec<&'static str>>> = const { RefCell::new(None) };
}

/// Reads something, and returns the types of the elements and values that were left out of it.
pub fn with_skipped<T>(read: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    SKIPPED.set(Some(Vec::new()));
    let value = read();
    (value, SKIPPED.take().unwrap_or_default())
}

/// A value, or one of a later version in its place.
#[derive(Deserialize)]
#[serde(untagged)]
enum Known<T> {
    Value(T),
    Later(IgnoredAny),
}

impl<T> Known<T> {
    fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Later(_) => {
                let name = type_name::<T>();
                SKIPPED.with_borrow_mut(|all| all.iter_mut().for_each(|all| all.push(name)));
                None
            }
        }
    }
}

/// Reads a list without the elements that this version does not know, so that one of a later version does not
/// hide the others.
///
/// # Errors
///
/// The value is no list.
pub fn known<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::<Known<T>>::deserialize(from)?;
    Ok(all.into_iter().filter_map(Known::value).collect())
}

/// Reads such a list, or the reason why there is none.
///
/// # Errors
///
/// The value is neither.
pub fn known_or_why<'de, T, D>(from: D) -> Result<Result<Vec<T>, String>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(bound = "T: Deserialize<'de>")]
    struct List<T>(#[serde(deserialize_with = "known")] Vec<T>);
    let list = Result::<List<T>, String>::deserialize(from)?;
    Ok(list.map(|List(list)| list))
}

/// Reads a field as its default where this version does not know its value.
///
/// # Errors
///
/// None of its own.
pub fn known_or_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    let value = Known::<T>::deserialize(from)?.value();
    Ok(value.unwrap_or_default())
}

/// JSON that only a later version reads as a whole. It is written back as it was read, byte for byte.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaterText(Box<RawValue>);

impl LaterText {
    /// Makes it of a value of this version.
    ///
    /// # Panics
    ///
    /// The value is no JSON, as none of the vocabulary is.
    pub fn of<T: Serialize>(value: &T) -> Self {
        Self(to_raw_value(value).expect("a value of the vocabulary is JSON"))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for LaterText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for LaterText {}

/// Reads an object without the fields whose values this version does not know: they have their defaults. Returns the
/// name of the first of them.
///
/// # Errors
///
/// It is no such object.
pub fn known_fields<T: DeserializeOwned>(object: Value) -> serde_json::Result<(T, Option<String>)> {
    let mut fields: Map<String, Value> = serde_json::from_value(object)?;
    let mut unknown = None;
    fields.retain(|name, value| {
        let alone = Map::from_iter([(name.clone(), value.clone())]);
        let is_known = T::deserialize(Value::Object(alone)).is_ok();
        unknown = unknown.take().or_else(|| (!is_known).then(|| name.clone()));
        is_known
    });
    Ok((T::deserialize(Value::Object(fields))?, unknown))
}
