//! How the standard input of an attempt stands, and what the keeper says to a write.

use kennel_lifecycle::{InputBook, InputClosed, InputRefusal};
use serde::{Deserialize, Serialize};

/// How far the input of an attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputState {
    /// Of which attempt.
    pub attempt: u32,
    /// Bytes that the pipe has taken.
    pub accepted: u64,
    /// Bytes that it may have taken beyond those.
    pub in_doubt: u64,
    /// Why nothing more is accepted; absent: it is open.
    pub closed: Option<InputClosed>,
    /// Of the accepted bytes, how many no process has read; absent: not known any more.
    pub unread: Option<u64>,
}

impl InputState {
    pub(crate) fn of(attempt: u32, book: &InputBook, unread: Option<u64>) -> Self {
        Self {
            attempt,
            accepted: book.accepted,
            in_doubt: book.in_doubt,
            closed: book.closed,
            unread,
        }
    }
}

/// What the keeper says to a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputSaid {
    /// Nothing was to be written; it stands so.
    Stands,
    /// All of it has been accepted.
    Taken {
        /// Where its first byte went.
        start: u64,
        /// It had been before.
        repeated: bool,
    },
    /// It is not taken, or not taken any further.
    Refused(InputRefusal),
    /// Another write came while it waited.
    Displaced,
}
