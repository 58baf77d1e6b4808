//! Targets of a signal to a run, the evidence that each process is of the run, and the results.

use serde::{Deserialize, Serialize};

/// Target of a signal to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// Result of a signal to one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalOutcome {
    /// The kernel took it.
    Delivered,
    /// The process had exited, or its number was another's by then; no process was signalled.
    Gone,
    /// The call failed with this errno(3).
    Failed(i32),
}

/// A signal to one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalledProcess {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Result of the signal.
    pub result: SignalOutcome,
}

/// Evidence that a process is in its run. Several may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holds {
    /// Whether it is in the run's control group.
    pub cgroup: bool,
    /// Whether it descends from the run's shim.
    pub shim: bool,
    /// Whether, with the shim gone, it descends from the keeper, and was found by its session or by the run's marker.
    pub keeper: bool,
}

impl Holds {
    /// Whether there is any evidence.
    pub fn any(self) -> bool {
        self.cgroup || self.shim || self.keeper
    }
}

/// Processes of one round of signals that are listed; the rest is counted.
pub const TARGETS_LISTED_MAX: usize = 64;

/// A target of a round of signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTarget {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Evidence that it was the run's.
    pub evidence: MembershipEvidence,
    /// Result of the signal.
    pub result: SignalOutcome,
}

/// Evidence that a process belonged to its run when it was signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MembershipEvidence {
    /// The process was a member in the leader's process group, which was addressed by the leader's own descriptor.
    Group,
    /// The kernel listed the process in the run's control group, and killed that.
    Cgroup,
    /// The process was in the run's private pid namespace, whose first process was killed.
    Namespace,
    /// This evidence was found after a descriptor of the process was opened.
    Held(Holds),
    /// None: the process was in the run's control group, was verified not to be of the run, and was spared. The result
    /// is [`SignalOutcome::Gone`].
    Unrelated,
}
