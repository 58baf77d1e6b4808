//! End of the server before this one.

use kennel_lifecycle::{Exit, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The server that this one replaces, under the same keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerServer {
    /// Its version.
    pub version: String,
    /// Time at which the keeper reaped it.
    pub at: Timestamp,
    /// Whether it had served.
    pub served: bool,
    /// Exit of its process.
    pub exit: Exit,
    /// Cause of its exit.
    pub cause: EndCause,
}

/// Cause of a server's exit, as far as its keeper knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// The server itself, or a process other than the keeper.
    ByItself,
    /// The server took no messages any more, and the keeper killed it.
    Hung,
    /// The server was to exit, did not do so in time, and the keeper killed it.
    Late,
    /// The server was replaced by one of another binary, on request.
    Upgrade,
}

impl fmt::Display for FormerServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cause, self.exit) {
            (EndCause::Hung, _) => f.write_str("hung and was killed by the keeper")?,
            (EndCause::Late, _) => {
                f.write_str("did not end in time and was killed by the keeper")?;
            }
            (EndCause::Upgrade, _) => return f.write_str("made room for an upgrade"),
            (EndCause::ByItself, Exit::Code(code)) => write!(f, "exited with code {code}")?,
            (EndCause::ByItself, Exit::Signal { signal, .. }) => {
                write!(f, "was killed by {signal}")?;
            }
            (EndCause::ByItself, Exit::Unknown) => f.write_str("ended, how is not known")?,
        }
        if self.served {
            Ok(())
        } else {
            f.write_str(" before it served")
        }
    }
}
