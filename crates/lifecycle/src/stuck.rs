//! Processes of a run that SIGKILL does not end.

use serde::{Deserialize, Serialize};
/// Processes that are left after SIGKILL. The run does not end while any of them is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The first by number; at most [`crate::limits::STUCK_LISTED_MAX`].
    pub processes: Vec<StuckProcess>,
    /// Number of further processes.
    pub unlisted: u32,
}

/// One such process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckProcess {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot: with it the number names one process.
    pub start_ticks: u64,
    /// Its state, as in `proc_pid_stat(5)`.
    pub state: char,
    /// Reason why it does not exit, in one plain sentence.
    pub why: String,
}

impl Stuck {
    /// Whether there is no such process.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.unlisted == 0
    }

    /// Whether both list the same processes, whatever their states.
    pub fn names_the_same(&self, other: &Self) -> bool {
        let name = |p: &StuckProcess| (p.pid, p.start_ticks);
        self.unlisted == other.unlisted
            && self
                .processes
                .iter()
                .map(name)
                .eq(other.processes.iter().map(name))
    }
}
