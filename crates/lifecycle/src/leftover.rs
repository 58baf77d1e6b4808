//! Processes of a run that were alive when somebody looked.

use serde::{Deserialize, Serialize};
/// One process, named beyond doubt within its boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Its name as the kernel has it (comm), at most 15 bytes.
    pub name: String,
}

/// Those that were seen, as far as a list goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftovers {
    /// In the order of their numbers.
    pub processes: Vec<Leftover>,
    /// How many more there were.
    pub unlisted: u32,
}

impl Leftovers {
    /// Whether nobody was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.unlisted == 0
    }
}
