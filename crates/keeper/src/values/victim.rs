//! A process that a reap is to end.

use kennel_lifecycle::{CgroupIdentity, ProcessIdentity, RunId};
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
    #[serde(with = "crate::object::empty")]
    Descent,
    /// The process is in this very directory.
    Cgroup(CgroupIdentity),
    /// The process carries this run's marker.
    #[serde(with = "crate::object::run")]
    Marker(RunId),
}
