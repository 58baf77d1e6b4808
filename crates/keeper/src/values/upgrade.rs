//! The start of a server from another binary, to replace the present one.

use kennel_lifecycle::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An upgrade for which a server has left, or is leaving.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgrade {
    /// Id of the request, where it had one.
    pub request_id: Option<String>,
    /// Time at which the new binary passed the check.
    pub at: Timestamp,
    /// Version of the leaving server.
    pub from_version: String,
    /// Version that the new binary reports.
    pub to_version: String,
    /// Progress of the upgrade.
    pub state: UpgradeState,
}

/// Progress of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpgradeState {
    /// The former server finishes its work.
    Leaving,
    /// A server of the new binary serves.
    Done,
    /// The new server did not get to serve, for this reason, and one of the former binary was started.
    FellBack(String),
}

/// Reason why no server leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpgradeRefusal {
    /// Another upgrade is in progress.
    UnderWay,
    /// The service is shutting down.
    ShuttingDown,
    /// The binary failed the check. The server is untouched.
    Unfit {
        /// Path of the binary.
        binary: String,
        /// One plain sentence.
        why: String,
        /// Its protocol version, where it has reported one.
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
