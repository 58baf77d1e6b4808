//! What keeper and shim do with a run on their own, whoever else lives.

use crate::{RunLimits, ladder::StopPlan};
use std::time::Duration;

/// The standing orders of one run, given with it at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Carried out on the rest of the tree when the leader ends, and on all of it when keeper or server die.
    pub stop: StopPlan,
    /// How long the command may run, pauses not counted, until the keeper carries out `stop` on the whole tree.
    pub max_runtime: Option<Duration>,
    /// What the run is held to.
    pub limits: RunLimits,
}
