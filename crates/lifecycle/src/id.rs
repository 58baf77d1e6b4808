//! The names of runs, nodes and keepers. All are ULIDs: 26 characters of Crockford's base 32.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};
use std::{fmt, str::FromStr};
use ulid::Ulid;

/// The name of a run, and the key of everything that is stored about it.
///
/// The text form is exactly 26 upper-case characters of Crockford's base 32 (no I, L, O, U), the
/// first one 0 to 7, so that it is safe as a file name and equal texts mean equal ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Ulid);

/// The text is not a run id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a run id is a ULID of 26 characters of 0-9 and A-Z without I, L, O, U, the first one 0 to 7"
)]
pub struct InvalidRunId;

impl RunId {
    /// Returns the creation time of the id, in milliseconds since 1970, by its creator's clock.
    pub fn timestamp_ms(self) -> u64 {
        self.0.timestamp_ms()
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The beginning or end of a run id, in upper case: a person types it in place of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunIdPart(String);

/// The text can be part of no run id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("part of a run id is 1 to 26 characters of 0-9 and A-Z without I, L, O, U, in any case")]
pub struct InvalidRunIdPart;

impl RunIdPart {
    /// Whether this run id begins or ends with the part.
    pub fn matches(&self, run: RunId) -> bool {
        let id = run.to_string();
        id.starts_with(&self.0) || id.ends_with(&self.0)
    }

    /// Returns the text: digits and upper-case letters alone.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunIdPart {
    type Err = InvalidRunIdPart;

    fn from_str(text: &str) -> Result<Self, InvalidRunIdPart> {
        let part = text.to_ascii_uppercase();
        let fits = (1..=26).contains(&part.len()) && part.bytes().all(is_digit);
        fits.then_some(Self(part)).ok_or(InvalidRunIdPart)
    }
}

/// The name of a node: made once per data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Ulid);

/// The name of one keeper process: made anew at each start of `kennel serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeeperEpoch(Ulid);

/// Value and text of a name. It serializes as its text.
macro_rules! ulid {
    ($name:ident) => {
        impl $name {
            /// Makes an id of this 128-bit value: 48 bits of milliseconds since 1970, 80 random bits.
            pub fn from_u128(value: u128) -> Self {
                Self(Ulid::from(value))
            }

            /// Returns the 128-bit value.
            pub fn as_u128(self) -> u128 {
                self.0.into()
            }
        }

        impl FromStr for $name {
            type Err = InvalidRunId;

            fn from_str(text: &str) -> Result<Self, InvalidRunId> {
                parse(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut text = [0; ulid::ULID_LEN];
                serializer.serialize_str(self.0.array_to_str(&mut text))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct IdVisitor;

                impl Visitor<'_> for IdVisitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a ULID")
                    }

                    fn visit_str<E: Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }

                deserializer.deserialize_str(IdVisitor)
            }
        }
    };
}

ulid!(RunId);
ulid!(NodeId);
ulid!(KeeperEpoch);

/// Stricter than [`Ulid::from_string`]: no lower case and no look-alikes, so that one id has one text.
fn parse(text: &str) -> Result<Ulid, InvalidRunId> {
    let bytes = text.as_bytes();
    let canonical = bytes.len() == 26 && bytes[0] <= b'7' && bytes.iter().copied().all(is_digit);
    if !canonical {
        return Err(InvalidRunId);
    }
    Ulid::from_string(text).map_err(|_| InvalidRunId)
}

/// Whether the byte is an upper-case digit of Crockford's base 32.
fn is_digit(b: u8) -> bool {
    b.is_ascii_digit() || (b.is_ascii_uppercase() && !matches!(b, b'I' | b'L' | b'O' | b'U'))
}
