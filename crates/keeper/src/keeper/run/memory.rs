//! The stop of one run for want of memory.

use super::{CommandStage, Run};
use crate::values::Fact;
use kennel_lifecycle::{
    MemoryShortage, StopReason,
    ladder::{Ladder, StopPlan},
};
use kennel_linux::{memory_room, procfs, tree::Tree};
use std::time::Duration;

impl Run {
    /// Returns the memory of the run that the kernel cannot reclaim, in bytes: by its control group, or else by the
    /// resident memory of its processes; `None`: it does not run, or was killed.
    pub(in crate::keeper) fn memory_in_use(&self) -> Option<u64> {
        let is_live = self.stage == CommandStage::Ran && !self.ended && self.killed_at.is_none();
        let tree = self.tree.as_ref().filter(|_| is_live)?;
        let group = self.cgroup_path();
        let counted = group.and_then(|group| memory_room::in_use(&group));
        Some(counted.unwrap_or_else(|| resident(tree)))
    }

    /// Begins the run's own plan, unless a stop is in progress.
    pub(in crate::keeper) fn stop_for_memory(&mut self, shortage: MemoryShortage, now: u64) {
        if self.can_be_stopped() {
            self.report(Fact::Stops(StopReason::MemoryReserve(shortage)));
            self.ladder = Some(Ladder::start(&self.policy.stop_plan(), now));
        }
    }

    /// Ends the grace of the stop in progress.
    pub(in crate::keeper) fn kill_for_memory(&mut self, now: u64) {
        if let Some(ladder) = &mut self.ladder {
            ladder.shorten(&StopPlan::abort(Duration::ZERO), now);
        }
    }

    /// Whether a stop is in progress.
    pub(in crate::keeper) fn is_ending(&self) -> bool {
        !self.ended && self.ladder.is_some()
    }

    fn can_be_stopped(&self) -> bool {
        self.stage == CommandStage::Ran && !self.ended && self.ladder.is_none()
    }
}

fn resident(tree: &Tree) -> u64 {
    let sizes = tree.pids().into_iter().map(procfs::rss_bytes);
    sizes.fold(0, u64::saturating_add)
}
