//! Delivery of an interrupt.

use serde::{Deserialize, Serialize};

/// Way in which an interrupt was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptWay {
    /// SIGINT to the leader's process group.
    Group,
    /// The interrupt key was typed on the terminal, which sends SIGINT to its foreground process group.
    Key,
    /// SIGINT to the terminal's foreground process group: the terminal makes no signal of a key.
    Foreground,
    /// Ctrl-C was typed for a command that reads its keys itself. No signal was sent.
    Typed,
}
