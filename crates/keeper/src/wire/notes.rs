//! Files of keepers and shims in the directory of a run, for the next ones.

use crate::held::HeldProcess;
use kennel_lifecycle::{InputLedger, ProcessIdentity, StopStep, recovery::ExitRecord};
use serde::{Deserialize, Serialize};

/// A shim's record as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireWill {
    pub(crate) leader: WireLeader,
    pub(crate) record: ExitRecord,
}

/// The first process of the private pid namespace of this leader's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InitNote {
    pub(crate) leader: WireLeader,
    pub(crate) init: HeldProcess,
}

/// Signals with which a start has begun to end the run of this leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrphanNote {
    pub(crate) leader: WireLeader,
    #[serde(deserialize_with = "kennel_lifecycle::known")]
    pub(crate) steps: Vec<StopStep>,
}

/// Progress of the standard input of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputNote {
    pub(crate) attempt: u32,
    pub(crate) ledger: InputLedger,
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
