//! How a process has exited.

use crate::Signal;
use serde::{Deserialize, Serialize};

/// Exit of the leader as the kernel reports it: only ever from a wait status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// The leader called exit with this code, 0 to 255.
    Code(i32),
    /// This signal ended the leader.
    Signal {
        /// The signal.
        signal: Signal,
        /// Whether it left a core dump.
        core_dumped: bool,
    },
    /// No process that knew the exit is left to report it.
    Unknown,
}

impl Exit {
    /// Builds the exit from its stored parts: a code, or a signal by its number, or neither.
    pub fn from_parts(code: Option<i32>, signal: Option<i32>, core_dumped: bool) -> Self {
        match (code, signal.and_then(Signal::from_number)) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal {
                signal,
                core_dumped,
            },
            (None, None) => Self::Unknown,
        }
    }
}
