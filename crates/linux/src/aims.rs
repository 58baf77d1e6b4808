//! Which processes of a run a signal is for, what ties each to the run, and what came of it.

use serde::{Deserialize, Serialize};

/// Whom of a run a signal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalTarget {
    /// Every process of the run.
    Tree,
    /// The leader's process group.
    Group,
    /// The leader alone.
    Leader,
    /// The foreground process group of the leader's controlling terminal.
    TerminalForeground,
}

/// What came of a signal to one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShotResult {
    /// The kernel took it.
    Delivered,
    /// The process had ended, or its number was another's by then; no process was signalled.
    Gone,
    /// The call failed with this errno(3).
    Failed(i32),
}

/// A signal to one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shot {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// What came of it.
    pub result: ShotResult,
}

/// What holds a process to its run. More than one may be true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holds {
    /// It is in the run's control group.
    pub cgroup: bool,
    /// It descends from the run's shim.
    pub shim: bool,
    /// The shim is gone: it descends from the keeper, and was found by its session or by the run's marker.
    pub keeper: bool,
}

impl Holds {
    /// Whether anything does.
    pub fn any(self) -> bool {
        self.cgroup || self.shim || self.keeper
    }
}

/// Processes of one round of signals that are listed one by one; the rest is counted.
pub const AIMS_LISTED_MAX: usize = 64;

/// A process that a round of signals was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aim {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// What made sure that it was the run's.
    pub tie: Tie,
    /// What came of it.
    pub result: ShotResult,
}

/// What made sure that a process belonged to its run when it was signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tie {
    /// It was a member that stood in the leader's process group, which was addressed by the leader's own descriptor.
    Group,
    /// The kernel listed it in the run's control group, and killed that.
    Cgroup,
    /// It was in the run's private pid namespace, whose first process was killed.
    Namespace,
    /// This held it when it was looked at, behind a descriptor of its own.
    Held(Holds),
    /// None: it was in the run's control group, was certainly not of the run, and was spared. The result is
    /// [`ShotResult::Gone`].
    Unrelated,
}
