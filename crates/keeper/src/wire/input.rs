//! A run's standard input.

use kennel_lifecycle::InputWrite;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};
use std::fmt;

/// Request to standard input.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireInputRequest {
    /// A part of a write: the one from `at` on. Answered when all of it is in the pipe.
    Write {
        attempt: u32,
        write: InputWrite,
        at: u64,
        data: WireBytes,
    },
    /// No caller waits any more for the answer to the request of this number.
    #[serde(with = "crate::object::empty")]
    Leave,
    /// Close the input, if its end is at that offset where one is given.
    Close {
        attempt: u32,
        offset: Option<u64>,
    },
    State {
        attempt: u32,
    },
}

/// Bytes that are copied as a whole, and not one by one as those of a vector.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct WireBytes(pub(crate) Vec<u8>);

impl fmt::Debug for WireBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for WireBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for WireBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;

        impl Visitor<'_> for Whole {
            type Value = WireBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<WireBytes, E> {
                Ok(WireBytes(bytes.to_vec()))
            }
        }

        deserializer.deserialize_bytes(Whole)
    }
}
