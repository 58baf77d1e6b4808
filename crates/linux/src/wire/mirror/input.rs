//! A run's standard input.

use super::{IntoReal, IntoWire};
use crate::client::{InputSaid, InputState};
use kennel_lifecycle::{InputBook, InputClosed, InputRefusal, InputWrite, KnownWrite};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};
use std::fmt;

mirror_enum!(
    /// [`InputClosed`].
    WireInputClosed = InputClosed { Client, Command, AttemptEnded }
);
mirror_struct!(
    /// [`InputWrite`].
    WireInputWrite = InputWrite { id: String, offset: Option<u64>, len: u64 }
);
mirror_struct!(
    /// [`KnownWrite`].
    WireKnownWrite = KnownWrite { id: String, start: u64, len: u64 }
);

/// What is wanted of standard input.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireInputWish {
    /// A part of a write: that from `at` on. Answered when all of it is in the pipe.
    Write {
        attempt: u32,
        write: WireInputWrite,
        at: u64,
        data: WireBytes,
    },
    /// Nobody waits any more for the answer to the question of this number.
    Leave,
    /// Where it stands at that offset, if there is one.
    Close {
        attempt: u32,
        offset: Option<u64>,
    },
    State {
        attempt: u32,
    },
}

/// [`InputBook`], with the attempt that it is of; kept as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireInputNote {
    pub(crate) attempt: u32,
    pub(crate) accepted: u64,
    pub(crate) in_doubt: u64,
    pub(crate) closed: Option<WireInputClosed>,
    pub(crate) writes: Vec<WireKnownWrite>,
}

impl WireInputNote {
    pub(crate) fn of(attempt: u32, book: &InputBook) -> Self {
        Self {
            attempt,
            accepted: book.accepted,
            in_doubt: book.in_doubt,
            closed: book.closed.map(Into::into),
            writes: book.writes.iter().cloned().map(Into::into).collect(),
        }
    }
}

impl From<WireInputNote> for InputBook {
    fn from(wire: WireInputNote) -> Self {
        Self {
            accepted: wire.accepted,
            in_doubt: wire.in_doubt,
            closed: wire.closed.map(Into::into),
            writes: wire.writes.into_iter().map(Into::into).collect(),
        }
    }
}

/// [`InputRefusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireInputRefusal {
    Offset,
    Unfinished,
    Closed(WireInputClosed),
    Unknown(u64),
}

impl From<InputRefusal> for WireInputRefusal {
    fn from(real: InputRefusal) -> Self {
        match real {
            InputRefusal::Offset => Self::Offset,
            InputRefusal::Unfinished => Self::Unfinished,
            InputRefusal::Closed(why) => Self::Closed(why.into()),
            InputRefusal::Unknown(most) => Self::Unknown(most),
        }
    }
}

impl From<WireInputRefusal> for InputRefusal {
    fn from(wire: WireInputRefusal) -> Self {
        match wire {
            WireInputRefusal::Offset => Self::Offset,
            WireInputRefusal::Unfinished => Self::Unfinished,
            WireInputRefusal::Closed(why) => Self::Closed(why.into()),
            WireInputRefusal::Unknown(most) => Self::Unknown(most),
        }
    }
}

/// [`InputState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireInputState {
    pub(crate) attempt: u32,
    pub(crate) accepted: u64,
    pub(crate) in_doubt: u64,
    pub(crate) closed: Option<WireInputClosed>,
    pub(crate) unread: Option<u64>,
}

impl From<InputState> for WireInputState {
    fn from(real: InputState) -> Self {
        Self {
            attempt: real.attempt,
            accepted: real.accepted,
            in_doubt: real.in_doubt,
            closed: real.closed.map(Into::into),
            unread: real.unread,
        }
    }
}

impl From<WireInputState> for InputState {
    fn from(wire: WireInputState) -> Self {
        Self {
            attempt: wire.attempt,
            accepted: wire.accepted,
            in_doubt: wire.in_doubt,
            closed: wire.closed.map(Into::into),
            unread: wire.unread,
        }
    }
}

/// [`InputSaid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireInputSaid {
    Stands,
    Taken { start: u64, repeated: bool },
    Refused(WireInputRefusal),
    Displaced,
}

impl From<InputSaid> for WireInputSaid {
    fn from(real: InputSaid) -> Self {
        match real {
            InputSaid::Stands => Self::Stands,
            InputSaid::Taken { start, repeated } => Self::Taken { start, repeated },
            InputSaid::Refused(why) => Self::Refused(why.into()),
            InputSaid::Displaced => Self::Displaced,
        }
    }
}

impl From<WireInputSaid> for InputSaid {
    fn from(wire: WireInputSaid) -> Self {
        match wire {
            WireInputSaid::Stands => Self::Stands,
            WireInputSaid::Taken { start, repeated } => Self::Taken { start, repeated },
            WireInputSaid::Refused(why) => Self::Refused(why.into()),
            WireInputSaid::Displaced => Self::Displaced,
        }
    }
}

/// Bytes that are copied as a whole, and not one by one as those of a vector are.
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
