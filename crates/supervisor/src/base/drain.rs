//! A drain of this node, as it is asked for and as it stands.

use kennel_lifecycle::{RunId, Timestamp};
use std::time::Duration;

/// What becomes of the runs that are there when a drain begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainAction {
    /// They go on to their own end, or to the drain's deadline.
    Finish,
    /// They are ended, each within its own grace.
    Abort,
}

impl DrainAction {
    /// Its name in the contract, without prefix.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Finish => "FINISH",
            Self::Abort => "ABORT",
        }
    }
}

/// A request to drain this node.
#[derive(Clone, Debug)]
pub struct DrainCall {
    /// What becomes of the runs.
    pub action: DrainAction,
    /// After this time what still runs is ended; absent: never.
    pub deadline: Option<Duration>,
    /// Who asks.
    pub by: String,
    /// The request's own id, where it has one; it is that of the aborts that follow.
    pub request_id: Option<String>,
}

/// A drain in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// What becomes of the runs.
    pub action: DrainAction,
    /// Who asked for it.
    pub by: String,
    /// The request's own id, where it had one.
    pub request_id: Option<String>,
    /// Since when.
    pub since: Timestamp,
    /// When what still runs is ended; absent: never, or it has been.
    pub deadline: Option<Timestamp>,
}

/// How far a node is out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainStatus {
    /// The drain in force; absent: the node takes new runs.
    pub drain: Option<Drain>,
    /// Every live run, oldest first.
    pub remaining: Vec<RunId>,
}
