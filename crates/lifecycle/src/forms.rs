//! Rules of the forms in which values are stored and exchanged, for serde: what is a default is not written, and what only
//! a later version knows hides nothing else.

use serde::{Deserialize, Deserializer, de::IgnoredAny};

/// Whether a value is its type's default. Such a field is not written, so that one which a later version adds
/// changes no text of a value that does not use it.
#[must_use]
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads a list without the elements that this version does not know, so that one of a later version does not
/// hide the others.
///
/// # Errors
///
/// The value is no list.
pub fn known<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Element<T> {
        Known(T),
        Later(IgnoredAny),
    }
    let all = Vec::<Element<T>>::deserialize(from)?;
    let known = all.into_iter().filter_map(|element| match element {
        Element::Known(known) => Some(known),
        Element::Later(_) => None,
    });
    Ok(known.collect())
}
