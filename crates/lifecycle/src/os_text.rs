//! Arguments and paths for serde: text where they are UTF-8, bytes where they are not, so that any value survives and
//! people can read the usual ones.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

/// Text, or a list of numbers.
struct OsText<'a>(Cow<'a, OsStr>);

impl Serialize for OsText<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => to.serialize_str(text),
            None => self.0.as_bytes().serialize(to),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ReadableText {
    Text(String),
    Bytes(Vec<u8>),
}

impl<'de> Deserialize<'de> for OsText<'_> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = match ReadableText::deserialize(from)? {
            ReadableText::Text(text) => text.into_bytes(),
            ReadableText::Bytes(bytes) => bytes,
        };
        Ok(Self(OsString::from_vec(bytes).into()))
    }
}

/// One path.
pub mod path {
    use super::{Cow, Deserialize, Deserializer, OsText, Serialize, Serializer};
    use std::path::{Path, PathBuf};

    /// Serializes the path.
    ///
    /// # Errors
    ///
    /// The format cannot be written.
    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        OsText(Cow::Borrowed(path.as_os_str())).serialize(to)
    }

    /// Deserializes the path.
    ///
    /// # Errors
    ///
    /// The value is neither text nor bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(OsText::deserialize(from)?.0.into_owned().into())
    }
}

/// A path that may be absent.
pub(crate) mod option {
    use super::{Cow, Deserialize, Deserializer, OsText, Serialize, Serializer};
    use std::path::PathBuf;

    #[expect(clippy::ref_option, reason = "serde gives the field as it is")]
    pub(crate) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let path = path.as_deref();
        path.map(|path| OsText(Cow::Borrowed(path.as_os_str())))
            .serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        let path = Option::<OsText<'_>>::deserialize(from)?;
        Ok(path.map(|path| path.0.into_owned().into()))
    }
}

/// Bytes of input.
pub(crate) mod bytes {
    use super::{
        Cow, Deserialize, Deserializer, OsStr, OsStrExt, OsStringExt, OsText, Serialize, Serializer,
    };

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        OsText(Cow::Borrowed(OsStr::from_bytes(bytes))).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        Ok(OsText::deserialize(from)?.0.into_owned().into_vec())
    }
}

/// Arguments, or paths.
pub mod list {
    use super::{Cow, Deserialize, Deserializer, OsString, OsText, Serializer};

    /// Serializes them.
    ///
    /// # Errors
    ///
    /// The format cannot be written.
    pub fn serialize<S: Serializer>(words: &[OsString], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(words.iter().map(|word| OsText(Cow::Borrowed(word))))
    }

    /// Deserializes them.
    ///
    /// # Errors
    ///
    /// A value is neither text nor bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<OsString>, D::Error> {
        let words = Vec::<OsText<'_>>::deserialize(from)?;
        Ok(words.into_iter().map(|word| word.0.into_owned()).collect())
    }
}
