//! What the kernel says of a run's memory when the run is over.

use serde::{Deserialize, Serialize};
/// The kernel has killed processes of a run for want of memory. It says how many, and not which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryKills {
    /// How many, in the run's control group and below it.
    pub kills: u64,
    /// The limit of the group at that look, in bytes; absent: it had none, or it could not be read.
    pub memory_max: Option<u64>,
}
