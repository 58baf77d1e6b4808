//! The end of a run's tree: the verdict of its shim.

use super::{Rest, Work};
use crate::{
    detached,
    wire::{FromShim, PIDS_MAX},
};
use kennel_lifecycle::{
    CgroupIdentity, LeaderExit, Signal, TreeVerdict,
    verdict::{GroupEvidence, ShimEvidence, TreeEvidence},
};
use kennel_linux::{cgroup, clock, crash_point, marker};
use std::path::PathBuf;

/// Time between two checks of a control group that should be empty.
const EMPTY_LOOK_MS: u64 = 20;
/// Without a keeper: time after SIGKILL at which remaining processes count as survivors.
const SURVIVORS_AFTER_MS: u64 = 10_000;
/// Time between two checks of the control group of a run with detached processes.
const KEPT_LOOK_MS: u64 = 1_000;

impl Work {
    /// Handles an empty tree. The keeper checks the control group itself; without it, that is done here too.
    pub(super) fn finish(&mut self, now: u64, keeper_lives: bool) -> bool {
        if self.policy.on_leader_exit == LeaderExit::Keep {
            detached::forget(&self.run_dir, self.shim.as_ref());
        }
        if self.unannounced {
            return true;
        }
        crash_point!("shim.childless");
        if matches!(self.record.tree, None | Some(TreeVerdict::Kept(_))) {
            // A control group or a private pid namespace shows all processes; without either, some are found only by
            // their marker.
            let sees_all = self.tree.cgroup.is_some() || self.init.is_some();
            let elsewhere = if self.record.never_ran || sees_all {
                Vec::new()
            } else {
                marker::elsewhere(self.tree.run)
            };
            self.record.census = Some(clock::wall());
            let shim = ShimEvidence::Childless {
                elsewhere: elsewhere.clone(),
            };
            let evidence = TreeEvidence {
                never_ran: self.record.never_ran,
                // Init was among the children, and is reaped.
                namespace_ended: self.init.is_some(),
                ..TreeEvidence::of(shim, GroupEvidence::Absent)
            };
            self.record.tree = Some(evidence.verdict());
            self.write_record();
            self.remember_empty(&elsewhere);
            self.words.push(FromShim::Empty { elsewhere });
        }
        self.look_at = None;
        if keeper_lives {
            return !self.stays();
        }
        if self.lingers(now) {
            return false;
        }
        let Some(group) = self.tree.cgroup.clone() else {
            return true;
        };
        if let Some(verdict) = self.verdict_with_group(&group) {
            if !self.record.never_ran {
                self.record.census = Some(clock::wall());
                if self.init.is_none() {
                    self.record.tree = Some(verdict);
                }
            }
        } else {
            let survived = self
                .killing_since
                .is_some_and(|since| now >= since + SURVIVORS_AFTER_MS);
            if !survived {
                if self.killing_since.is_some() {
                    self.tree.signal(Signal::KILL);
                }
                let wait = if self.rest == Rest::Kept {
                    KEPT_LOOK_MS
                } else {
                    EMPTY_LOOK_MS
                };
                self.look_at = Some(now + wait);
                return false;
            }
            self.record.census = Some(clock::wall());
            let mut left: Vec<i32> = self.tree.members().into_keys().collect();
            left.truncate(PIDS_MAX);
            self.record.tree = Some(TreeVerdict::Survivors(left));
        }
        self.write_record();
        if cgroup::remove(&group) {
            // The keeper's directory for all its runs is removed with its last run.
            let base = PathBuf::from(&group.path);
            let _ = base.parent().map(std::fs::remove_dir);
        }
        true
    }

    /// The verdict with the control group of a tree that has no process below this one; `None`: a process of the run is in
    /// it.
    fn verdict_with_group(&self, group: &CgroupIdentity) -> Option<TreeVerdict> {
        let seen = cgroup::evidence(group).or_else(|| {
            let unrelated = !self.tree.occupies(group);
            unrelated.then(|| GroupEvidence::Unrelated(Vec::new()))
        })?;
        let elsewhere = match &seen {
            GroupEvidence::Unrelated(_) => marker::elsewhere(self.tree.run),
            _ => Vec::new(),
        };
        Some(TreeEvidence::of(ShimEvidence::Childless { elsewhere }, seen).verdict())
    }
}
