//! Results of requests about a run's terminal, and of the interrupt, which may be a key of the terminal.

use super::{InterruptWay, SignalResult};

/// Result of an interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// `Done` also where a signal was sent under this request id before.
    pub result: SignalResult,
    /// How the interrupt was sent; absent: none was sent now.
    pub way: Option<InterruptWay>,
}

/// Result of a change of size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resized {
    /// The terminal has the size now.
    Done,
    /// The run has no terminal.
    NoTerminal,
    /// The keeper holds another attempt.
    OtherAttempt,
    /// The attempt has ended, or the keeper holds no such run.
    Gone,
    /// The call failed with this errno(3).
    Failed(i32),
}
