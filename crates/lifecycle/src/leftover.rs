//! Processes of a run that were alive at a scan.

use serde::{Deserialize, Serialize};
/// One process, identified uniquely within its boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Its name as the kernel has it (comm), at most 15 bytes.
    pub name: String,
}

/// The processes seen, up to the bound of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftovers {
    /// The processes, in the order of their numbers.
    pub processes: Vec<Leftover>,
    /// Number of further processes.
    pub unlisted: u32,
}

impl Leftovers {
    /// Whether no process was seen.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.unlisted == 0
    }
}
