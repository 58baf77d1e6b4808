//! A run's standard input.

use kennel_lifecycle::InputWrite;
use serde::{Deserialize, Serialize};
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
        /// Travels behind the body.
        #[serde(skip)]
        data: WireBytes,
    },
    /// No caller waits any more for the answer to the request of this number.
    Leave {},
    /// Close the input, if its end is at that offset where one is given.
    Close {
        attempt: u32,
        offset: Option<u64>,
    },
    State {
        attempt: u32,
    },
}

/// Bytes of input, which no log shows.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct WireBytes(pub(crate) Vec<u8>);

impl fmt::Debug for WireBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}
