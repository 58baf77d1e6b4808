//! What keeper and shim do with a run on their own, whoever else lives.

use crate::ladder::StopPlan;

/// The standing orders of one run, given with it at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Carried out on the rest of the tree when the leader ends, and on all of it when keeper or server die.
    pub stop: StopPlan,
}
