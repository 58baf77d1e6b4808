//! The start of a server from another binary, in the place of the one that serves.

use kennel_lifecycle::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An upgrade for which a server has left, or is leaving.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgrade {
    /// Of the request, where it had one.
    pub request_id: Option<String>,
    /// When the new binary was found fit.
    pub at: Timestamp,
    /// Version of the server that leaves.
    pub from_version: String,
    /// Version that the new binary says it is.
    pub to_version: String,
    /// How far it has come.
    pub state: UpgradeState,
}

/// How far an upgrade has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpgradeState {
    /// The former server finishes what it has.
    Leaving,
    /// A server of the new binary serves.
    Done,
    /// It did not come to serve, for this reason, and one of the former binary was started.
    FellBack(String),
}

/// Why no server leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpgradeRefusal {
    /// Another one is on its way.
    UnderWay,
    /// The service ends.
    ShuttingDown,
    /// The binary will not do. The server is untouched.
    Unfit {
        /// Where it is.
        binary: String,
        /// One plain sentence.
        why: String,
        /// The protocol that it speaks, where it has said so.
        speaks: Option<u32>,
    },
}

impl fmt::Display for UpgradeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnderWay => f.write_str("another upgrade is under way"),
            Self::ShuttingDown => f.write_str("the service is shutting down"),
            Self::Unfit { binary, why, .. } => {
                write!(f, "no server can be started from {binary}: {why}")
            }
        }
    }
}
