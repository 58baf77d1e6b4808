//! A process that a reap is to end.

use kennel_lifecycle::{CgroupIdentity, ProcessIdentity, RunId};
use serde::{Deserialize, Serialize};

/// One that is to be ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Which process: another under its number is not touched.
    pub process: ProcessIdentity,
    /// What has to hold of it beside that, at the moment of each signal.
    pub holding: Holding,
}

/// What has to hold of a process that is to be ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Holding {
    /// That it descends from a run does not change as long as it lives.
    Descent,
    /// It is in this very directory.
    Cgroup(CgroupIdentity),
    /// It carries this run's marker.
    Marker(RunId),
}
