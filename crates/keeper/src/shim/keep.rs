//! A run that detaches the rest of its tree: the shim lives on as the reaper of the detached processes.

use super::work::{ChildStage, Work};
use crate::held;
use kennel_lifecycle::{LeaderExit, Leftovers, TreeVerdict};

/// Delay before output is discarded: after the keeper's death its server still reads for about as long as a shutdown
/// may take.
const DISCARD_AFTER_MS: u64 = 10_000;

/// State of the rest of the tree, where it may be detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// The leader lives, or there is no decision yet.
    Undecided,
    /// The keeper has begun to stop the tree.
    Stopping,
    /// The rest was detached.
    Kept,
}

impl Work {
    /// Records that a stop is in progress: processes that exit from here on have not exited by themselves.
    pub(super) fn stopping(&mut self) {
        self.rest = Rest::Stopping;
        // Helpers end first: a stop applies to the command's own processes.
        let helped = self.helpers.end_all();
        self.words.extend(helped);
    }

    /// Records that the keeper has detached these.
    pub(super) fn keep(&mut self, left: Leftovers) {
        self.rest = Rest::Kept;
        // Resume before recording: no later process resumes detached ones.
        held::resume_all(&self.run_dir, self.tree.cgroup.as_ref());
        self.record.tree = Some(TreeVerdict::Kept(left));
        self.write_record();
    }

    /// Discards output from this time on, as no process reads it.
    pub(super) fn discard_from(&mut self, at: u64) {
        self.discard.begin(at);
    }

    /// Whether a stop is in progress, or the run was ended without its rest.
    pub(super) fn is_stopped(&self) -> bool {
        self.rest != Rest::Undecided || self.ladder.is_some() || self.killing_since.is_some()
    }

    /// Whether the rest is detached without a keeper: if the leader exited by itself before that, and no stop was in
    /// progress.
    pub(super) fn keeps_alone(&mut self, now: u64) -> bool {
        if self.rest != Rest::Kept {
            let by_itself =
                self.leader_reaped && self.stage == ChildStage::Ran && !self.is_stopped();
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
