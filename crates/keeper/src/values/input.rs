//! State of an attempt's standard input, and the keeper's answer to a write.

use kennel_lifecycle::{InputClosed, InputLedger, InputRefusal};
use serde::{Deserialize, Serialize};

/// State of an attempt's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputState {
    /// Number of the attempt.
    pub attempt: u32,
    /// Number of bytes that the pipe has accepted.
    pub accepted: u64,
    /// Number of bytes beyond those that it may have accepted.
    pub in_doubt: u64,
    /// Reason why the input is closed; absent: it is open.
    pub closed: Option<InputClosed>,
    /// Number of accepted bytes that no process has read; absent: not known any more.
    pub unread: Option<u64>,
    /// Whether the terminal does not show what is typed.
    #[serde(default)]
    pub echo_off: bool,
}

impl InputState {
    pub(crate) fn of(attempt: u32, ledger: &InputLedger, unread: Option<u64>) -> Self {
        Self {
            echo_off: false,
            attempt,
            accepted: ledger.accepted,
            in_doubt: ledger.in_doubt,
            closed: ledger.closed,
            unread,
        }
    }
}

/// Answer of the keeper to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputResult {
    /// Nothing was to be written; the state is unchanged.
    Stands,
    /// All of it has been accepted.
    Taken {
        /// Offset of its first byte.
        start: u64,
        /// Whether it had been accepted before.
        repeated: bool,
    },
    /// The write is refused, or its remaining part.
    Refused(InputRefusal),
    /// Another write came while this one waited.
    Displaced,
}
