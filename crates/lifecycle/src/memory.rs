//! The kernel's memory statistics at the end of a run.

use serde::{Deserialize, Serialize};
/// The kernel has killed processes of the run for want of memory. It reports how many, and not which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryKills {
    /// Number of kills in the run's control group and below it.
    pub kills: u64,
    /// The limit of the group at that time, in bytes; absent: it had none, or it could not be read.
    pub memory_max: Option<u64>,
}
