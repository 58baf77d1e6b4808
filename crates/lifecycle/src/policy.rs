//! What keeper and shim do with a run on their own, whoever else lives.

use crate::names::named;
use crate::{RunLimits, ladder::StopPlan};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The standing orders of one run, given with it at its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Carried out on the rest of the tree when the leader ends, and on all of it when the
    /// service dies, unless `recovery` says otherwise.
    pub stop: StopPlan,
    /// How long the command may run, pauses not counted, until the keeper carries out `stop` on the whole tree.
    pub max_runtime: Option<Duration>,
    /// What the run is held to.
    pub limits: RunLimits,
    /// What becomes of the rest when the leader ends by itself.
    pub on_leader_exit: LeaderExit,
    /// How long a pause may last.
    pub pause: PausePolicy,
    /// In which pid namespace the command runs.
    pub pid_namespace: PidNamespace,
    /// What becomes of it when the keeper dies.
    pub recovery: Recovery,
}

named! {
    /// What becomes of a run when the whole service dies, its keeper included.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Recovery {
        /// It is ended by its own plan.
        #[default]
        Terminate = "terminate",
        /// It goes on, and the next keeper on the same data directory takes it over.
        Adopt = "adopt",
        /// The same where the host can do that; elsewhere it is ended.
        AdoptWherePossible = "adopt_where_possible",
    }
}

impl Recovery {
    /// What that means on a host that can, or cannot, let a run outlive its keeper.
    #[must_use]
    pub fn on_host(self, can_adopt: bool) -> Self {
        match self {
            Self::AdoptWherePossible if can_adopt => Self::Adopt,
            Self::AdoptWherePossible => Self::Terminate,
            Self::Terminate | Self::Adopt => self,
        }
    }
}

named! {
    /// In which pid namespace a command runs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum PidNamespace {
        /// In that of the keeper.
        #[default]
        Shared = "shared",
        /// In one of its own, whose first process is ours: no process in it outlives that one.
        Private = "private",
    }
}

/// How long a pause may last, and what the keeper does then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausePolicy {
    /// From the time when every task was seen stopped; absent: until it is resumed.
    pub max_pause: Option<Duration>,
    /// What then.
    pub on_max_pause: OnMaxPause,
}

named! {
    /// What is done when a pause has lasted for as long as it may.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnMaxPause {
        /// The processes that it has stopped continue.
        #[default]
        Resume = "resume",
        /// The whole tree is stopped.
        Abort = "abort",
    }
}

/// What becomes of the rest of a tree when its leader ends by itself: not while a stop is on its way, which always
/// means the whole tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaderExit {
    /// It is stopped.
    #[default]
    Stop,
    /// It goes on, and the run ends with the last of it.
    Drain {
        /// After this it is stopped; absent: never.
        timeout: Option<Duration>,
    },
    /// It goes on, and the run ends without it.
    Keep,
}
