//! How an interrupt goes out.

use serde::{Deserialize, Serialize};

/// How an interrupt went out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterruptWay {
    /// SIGINT to the leader's process group.
    Group,
    /// The key of the terminal was typed, of which that makes SIGINT to its foreground process group.
    Key,
    /// SIGINT to the terminal's foreground process group: the terminal makes no signal of a key.
    Foreground,
    /// Ctrl-C was typed for a command that reads its keys itself. No signal was sent.
    Typed,
}
