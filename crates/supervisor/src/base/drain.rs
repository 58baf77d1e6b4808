//! Drain of this node: the request and its state.

use kennel_lifecycle::{RunId, Timestamp, named};
use serde::{Deserialize, Serialize};
use std::time::Duration;

named! {
    /// Treatment of the existing runs in a drain.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DrainAction {
        /// Runs continue to their own end, or to the drain's deadline.
        Finish = "finish",
        /// Runs are ended, each within its own grace.
        Abort = "abort",
    }
}

/// A request to drain this node.
#[derive(Clone, Debug)]
pub struct DrainCall {
    /// Treatment of the existing runs.
    pub action: DrainAction,
    /// Time after which runs that remain are ended; absent: never.
    pub deadline: Option<Duration>,
    /// The caller, as a principal.
    pub by: String,
    /// Request id of the drain, if it has one; the aborts that follow have it too.
    pub request_id: Option<String>,
}

/// A drain in force. Its JSON form is on disk: fields may be added, none renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Treatment of the existing runs.
    pub action: DrainAction,
    /// The caller who requested it.
    pub by: String,
    /// Request id of the drain, if it had one.
    pub request_id: Option<String>,
    /// Start of the drain.
    #[serde(rename = "since_us")]
    pub since: Timestamp,
    /// Time at which remaining runs are ended; absent: never, or they have been.
    #[serde(rename = "deadline_us")]
    pub deadline: Option<Timestamp>,
}

/// Drain state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainStatus {
    /// The drain in force; absent: the node takes new runs.
    pub drain: Option<Drain>,
    /// Every live run, oldest first.
    pub remaining: Vec<RunId>,
}
