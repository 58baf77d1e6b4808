//! Files of keepers and shims in the directory of a run, for the next ones.

use super::WireHeldProcess;
use kennel_lifecycle::{ProcessIdentity, StopStep, recovery::ExitRecord};
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

/// Actions of a start to end the run of this leader, as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireNote {
    pub(crate) leader: WireLeader,
    pub(crate) steps: Vec<StopStep>,
}

/// The first process of the private pid namespace of this leader, as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireInit {
    pub(crate) leader: WireLeader,
    pub(crate) init: WireHeldProcess,
}
