//! Memory that has run out: kills of the kernel, and a stop by Kennel before them.

use serde::{Deserialize, Serialize};
/// The kernel has killed processes of the run for want of memory. It reports how many, and not which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryKills {
    /// Number of kills in the run's control group and below it.
    pub kills: u64,
    /// The limit of the group at that time, in bytes; absent: it had none, or it could not be read.
    pub memory_max: Option<u64>,
}

/// The memory above Kennel was nearly used up, and this run was the largest. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryShortage {
    /// Limit of the group that was nearest to its limit: Kennel's own, or one above it.
    pub limit: u64,
    /// Memory in that group that the kernel could not reclaim.
    pub used: u64,
    /// Reserve of the server's configuration, which was not left any more.
    pub reserve: u64,
}
