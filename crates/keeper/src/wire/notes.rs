//! Files of keepers and shims in the directory of a run, for the next ones.

use kennel_lifecycle::{ProcessIdentity, recovery::ExitRecord};
use serde::{Deserialize, Serialize};

/// A shim's record as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireWill {
    pub(crate) leader: WireLeader,
    pub(crate) record: ExitRecord,
}

/// Identity of a leader, within one boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireLeader {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
}

impl From<&ProcessIdentity> for WireLeader {
    fn from(real: &ProcessIdentity) -> Self {
        Self {
            pid: real.pid,
            start_ticks: real.start_ticks,
        }
    }
}
