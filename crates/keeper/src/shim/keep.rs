//! A run that keeps the rest of its tree: the shim lives on as the reaper of those who were left alone.

use super::work::{Stage, Work};
use crate::held;
use kennel_lifecycle::{LeaderExit, Leftovers, TreeVerdict};

/// After the keeper's death its server still reads what there is for about as long as a shutdown may take.
const DISCARD_AFTER_MS: u64 = 10_000;

/// What has become of the rest of the tree, where it may be left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// The leader lives, or nobody has decided yet.
    Undecided,
    /// The keeper has begun to stop the tree.
    Stopping,
    /// It was left alone.
    Kept,
}

impl Work {
    /// A stop is on its way: whatever ends from here on has not ended by itself.
    pub(super) fn stopping(&mut self) {
        self.rest = Rest::Stopping;
        // A stop is of the run's command and what it has made.
        self.helpers.end_all();
    }

    /// The keeper has left these alone.
    pub(super) fn keep(&mut self, left: Leftovers) {
        self.rest = Rest::Kept;
        // Before this is written down: nobody comes to continue those who are left alone.
        held::let_go(&self.run_dir, self.tree.cgroup.as_ref());
        self.record.tree = Some(TreeVerdict::Kept(left));
        self.write_record();
    }

    /// Nobody reads the outputs from this time on.
    pub(super) fn discard_from(&mut self, at: u64) {
        self.discard.begin(at);
    }

    /// Whether a stop is on its way, or the run was ended without its rest.
    pub(super) fn is_stopped(&self) -> bool {
        self.rest != Rest::Undecided || self.ladder.is_some() || self.killing_since.is_some()
    }

    /// Without a keeper: whether the rest is left alone. It is where the leader ended by itself before that, and no stop
    /// was on its way.
    pub(super) fn keeps_alone(&mut self, now: u64) -> bool {
        if self.rest != Rest::Kept {
            let by_itself = self.leader_reaped && self.stage == Stage::Ran && !self.is_stopped();
            if self.policy.on_leader_exit != LeaderExit::Keep || !by_itself {
                return false;
            }
            let left = self.tree.leftovers();
            if left.is_empty() {
                return false;
            }
            self.keep(left);
        }
        self.discard_from(now + DISCARD_AFTER_MS);
        true
    }
}
