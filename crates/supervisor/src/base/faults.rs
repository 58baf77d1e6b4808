//! Causes of failed server starts, and reports of failures of keeper and store to callers.

use crate::base::calls::CallError;
use kennel_keeper::client::ClientError;
use kennel_lifecycle::{KeeperEpoch, Missing};
use kennel_store::StoreError;
use std::{io, time::Duration};

/// Cause of a failed server start.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The store fails at what a start needs.
    #[error("the store cannot be used")]
    Store(#[source] StoreError),
    /// The keeper cannot be asked.
    #[error("the keeper cannot be asked")]
    Keeper(#[source] ClientError),
    /// The node log cannot be opened.
    #[error("cannot open the record of the node")]
    Record(#[source] io::Error),
    /// The runs of an earlier server cannot be supervised.
    #[error("the runs of an earlier server cannot be supervised")]
    Adoption(#[source] io::Error),
    /// Another keeper holds runs of this node.
    #[error("keeper {epoch} of this node is still alive as process {pid}")]
    KeeperAlive {
        /// Epoch of that keeper.
        epoch: KeeperEpoch,
        /// Process id of that keeper.
        pid: i32,
    },
    /// Another keeper has the node's lease.
    #[error(
        "keeper {epoch} has the lease of this node and renews it: stop that server, or give this data directory an own node"
    )]
    LeaseHeld {
        /// Epoch of that keeper.
        epoch: KeeperEpoch,
        /// Time left until the lease expires, if it is not renewed.
        left: Duration,
    },
    /// Kennel cannot determine whether another keeper of this node is alive.
    #[error("it is unknown whether keeper {epoch} of this node (process {pid}) is still alive")]
    KeeperUnknown {
        /// Epoch of that keeper.
        epoch: KeeperEpoch,
        /// Process id of that keeper.
        pid: i32,
    },
}

/// Error reported to a caller where the keeper failed.
impl From<ClientError> for CallError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::KeeperGone => Self::Draining,
            ClientError::Exhausted(what) => Self::HostFull(what),
            ClientError::NoPty(none) => Self::NoPty(none),
            ClientError::KeeperOlder => Self::CapabilityMissing(vec![Missing {
                field: String::new(),
                capability: "a keeper of this version, which a restart of the service starts"
                    .into(),
            }]),
            ClientError::Start(_) | ClientError::TooWeak { .. } | ClientError::OtherLevels(_) => {
                Self::Internal(error.to_string())
            }
        }
    }
}

/// Error reported to a caller where the store did not answer.
impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_)
            | StoreError::Unknown(_)
            | StoreError::SchemaTooNew { .. } => Self::StoreUnavailable,
            StoreError::Held => Self::NodeFenced,
            StoreError::Fenced(_) | StoreError::Corrupt(_) | StoreError::Unread(_) => {
                Self::Internal(error.to_string())
            }
        }
    }
}
