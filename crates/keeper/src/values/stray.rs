//! Signals without a meaning for the keeper.

use kennel_lifecycle::Signal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A signal that the keeper has received and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StraySignal {
    /// Number of the signal.
    pub number: i32,
    /// Process that sent the last of them; 0: the kernel, or a process that cannot be seen from here.
    pub pid: i32,
    /// User of that process.
    pub uid: u32,
    /// Number of signals since this one was reported before.
    pub count: u32,
}

impl fmt::Display for StraySignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Signal::from_number(self.number) {
            Some(signal) => signal.fmt(f),
            None => write!(f, "signal {}", self.number),
        }
    }
}
