//! A process that a reap is to end, and the result.

use kennel_lifecycle::{CgroupIdentity, ProcessIdentity, RunId, Signal};
use serde::{Deserialize, Serialize};

/// A process to be ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Identity of the process: another one with its number is not touched.
    pub process: ProcessIdentity,
    /// Condition beside that, at the moment of each signal.
    pub holding: Holding,
}

/// Condition on a process that is to be ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holding {
    /// None: descent from a run does not change as long as the process lives.
    Descent,
    /// The process is in this very directory.
    Cgroup(CgroupIdentity),
    /// The process carries this run's marker.
    Marker(RunId),
}

/// Result for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The process ended after this signal.
    Ended(Signal),
    /// The process had ended before the first signal.
    Gone,
    /// The process is not the recorded one, or is part of a live run: nothing was sent.
    Changed,
    /// A signal could not be sent: errno(3).
    Failed(i32),
    /// The process was still alive two seconds after SIGKILL.
    Survived,
}

/// Result of a reap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaped {
    /// Result for each process, in the order of the request.
    pub fates: Vec<Fate>,
    /// Number of directories that were removed.
    pub directories_removed: u32,
}
