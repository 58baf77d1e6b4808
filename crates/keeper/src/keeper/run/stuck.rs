//! Processes that SIGKILL does not end: checked at growing intervals, until they have ended.

use super::{LOOK_AGAIN_MS, Run};
use crate::{keeper::SLICE_PROCESSES, values::Fact};
use kennel_lifecycle::{
    Signal, Stuck,
    verdict::{GroupEvidence, ShimEvidence, TreeEvidence},
};
use kennel_linux::{pidfd::PidFd, stuck::KillAgain, tree::Root};

/// Time after SIGKILL at which remaining processes count as stuck.
const STUCK_AFTER_MS: u64 = 1_000;
/// Longest wait between two checks of stuck processes.
const WATCH_MS_MAX: u64 = 1_000;
/// A wait is this fraction of the time since SIGKILL.
const WATCH_SLOWER: u64 = 32;
/// Time after SIGKILL at which a shim without a member to wait for counts as hung.
const SHIM_HUNG_AFTER_MS: u64 = 5_000;
/// Longest time in which a changed list of stuck processes is reported no more than once.
const TELL_AGAIN_MS_MAX: u64 = 60_000;

/// Last report of a tree that does not end.
pub(super) struct StuckReport {
    stuck: Stuck,
    at: u64,
}

impl Run {
    /// Whether it was reported that SIGKILL does not end the tree.
    pub(in crate::keeper) fn is_stuck(&self) -> bool {
        self.stuck.is_some() && !self.ended
    }

    /// Returns the wait between two checks.
    pub(super) fn look_every(&self, now: u64) -> u64 {
        let killed_for = self.killed_at.map_or(0, |at| now.saturating_sub(at));
        (killed_for / WATCH_SLOWER).clamp(LOOK_AGAIN_MS, WATCH_MS_MAX)
    }

    /// Begins to send SIGKILL again to the processes that it has not ended.
    pub(super) fn kill_again(&mut self, now: u64) {
        let (Some(killed_at), Some(tree)) = (self.killed_at, &self.tree) else {
            return;
        };
        // The shim kills its children; the keeper repeats this only if the shim is lost, childless or slow.
        let slow = now >= killed_at + LOOK_AGAIN_MS;
        let is_due = tree.root == Root::Lost || self.heard.childless || slow;
        if is_due && self.killing.is_none() {
            self.killing = Some(KillAgain::new(tree));
            self.continue_killing(now);
        }
    }

    /// Sends SIGKILL to some of them.
    pub(super) fn continue_killing(&mut self, now: u64) {
        for _ in 0..SLICE_PROCESSES {
            let (Some(killing), Some(tree)) = (&mut self.killing, &self.tree) else {
                return;
            };
            if killing.step(tree)
                && let Some(killed) = self.killing.take()
            {
                return self.judge_survivors(killed.stuck, now);
            }
        }
    }

    fn judge_survivors(&mut self, stuck: Stuck, now: u64) {
        let killed_at = self.killed_at.unwrap_or(now);
        if now < killed_at + STUCK_AFTER_MS {
            return;
        }
        if stuck.processes.is_empty() {
            if now >= killed_at + SHIM_HUNG_AFTER_MS {
                self.none_seen();
            }
        } else {
            self.report_stuck(stuck, now, killed_at);
        }
    }

    fn report_stuck(&mut self, stuck: Stuck, now: u64, killed_at: u64) {
        if let Some(reported) = &self.stuck {
            let patience = ((now - killed_at) / WATCH_SLOWER).min(TELL_AGAIN_MS_MAX);
            if reported.stuck.names_the_same(&stuck) || now < reported.at.saturating_add(patience) {
                return;
            }
        }
        self.report(Fact::TreeStuck(stuck.clone()));
        self.stuck = Some(StuckReport { stuck, at: now });
    }

    /// Returns the shim, where it is no child of this process.
    fn foreign_shim(&self) -> Option<&PidFd> {
        self.tree.as_ref()?.foreign.as_ref()
    }

    /// Handles a tree of which no member is seen and whose end is not proven.
    fn none_seen(&mut self) {
        match self.tree.as_ref().map(|tree| tree.root) {
            // When a stopped or hung shim is killed, this process becomes the parent of its children.
            Some(Root::Shim(_)) if self.foreign_shim().is_some() && !self.heard.childless => {
                // A foreign shim is also killed: its pidfd shows the exit.
                let _ = self.foreign_shim().map(|shim| shim.signal(Signal::KILL));
            }
            Some(Root::Shim(shim)) if !self.heard.childless => {
                // SAFETY: kill takes integers; while this root stands the shim is not reaped, so the pid is the shim's.
                unsafe { libc::kill(shim, libc::SIGKILL) };
            }
            _ => {
                let evidence = TreeEvidence::of(ShimEvidence::Lost, GroupEvidence::NotEmptied);
                self.last_word(evidence.verdict(), self.opened_group());
            }
        }
    }
}
