//! How the server before this one has ended.

use kennel_lifecycle::{Exit, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The server that this one takes the place of, under the same keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerServer {
    /// Its version.
    pub version: String,
    /// When the keeper reaped it.
    pub at: Timestamp,
    /// Whether it had served.
    pub served: bool,
    /// How its process ended.
    pub exit: Exit,
    /// Whose doing that was.
    pub cause: EndCause,
}

/// Why a server has ended, as far as its keeper knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndCause {
    /// By itself, or by somebody else than the keeper.
    ByItself,
    /// It took no messages any more, and the keeper killed it.
    Hung,
    /// It was to end, did not do so in time, and the keeper killed it.
    Late,
    /// It made room for a server of another binary, as it was asked to.
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
