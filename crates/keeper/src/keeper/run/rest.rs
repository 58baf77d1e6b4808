//! The rest of a tree whose leader has exited by itself: stopped, drained, or detached, as the run's policy says.
//!
//! A stop in progress, of whatever origin, applies to the whole tree, and then nothing here applies.

use super::{CommandStage, PendingReports, Requests, Run};
use crate::{client::SignalResult, wire::ToShim};
use kennel_lifecycle::{LeaderExit, TreeVerdict, ladder::Ladder};
use kennel_linux::tree::{Root, Tree};

/// State of the rest of the tree.
#[derive(Default)]
pub(super) enum Rest {
    /// The leader is alive, or everything that is left is being stopped.
    #[default]
    Followed,
    /// The rest continues until the last process has exited; at this time it is stopped.
    Drains { until: Option<u64> },
    /// The rest is to be detached, once the server has confirmed that no stop is in progress.
    ToKeep { confirmed: bool },
    /// The rest was detached: the run has ended without it.
    Kept,
}

impl Run {
    /// Handles the exit of the leader while no stop was in progress; `alive` says whether the shim has other children.
    pub(super) fn leader_left(&mut self, alive: bool, now: u64) {
        let policy = if self.stage == CommandStage::Ran {
            self.policy.on_leader_exit
        } else {
            LeaderExit::Stop
        };
        match policy {
            LeaderExit::Stop => {
                if alive {
                    self.ladder = Some(Ladder::start(&self.policy.stop_plan(), now));
                }
            }
            LeaderExit::Drain { timeout } => {
                self.end_pause();
                let millis = |t: std::time::Duration| u64::try_from(t.as_millis());
                let from = self.leader_left_at.unwrap_or(now);
                let until = timeout.map(|t| from.saturating_add(millis(t).unwrap_or(u64::MAX)));
                self.rest = Rest::Drains { until };
            }
            LeaderExit::Keep => {
                self.end_pause();
                self.rest = Rest::ToKeep { confirmed: false };
            }
        }
    }

    /// Ends the pause with the leader: no caller could have a paused rest resumed.
    pub(super) fn end_pause(&mut self) {
        let Some(tree) = &self.tree else { return };
        let (_, waiting) = self.pause.end(tree, &self.private_dir);
        if let Some(waiting) = waiting {
            self.answer_signal(waiting, SignalResult::Partial(Vec::new()));
        }
    }

    /// Confirms that no stop is in progress: the rest may be detached.
    pub(in crate::keeper) fn keep_rest(&mut self) {
        if let Rest::ToKeep { confirmed } = &mut self.rest {
            *confirmed = true;
        }
    }

    /// Whether the leader has exited by itself and the rest is to be detached, unless a server knows of a stop.
    pub(super) fn is_to_keep(&self) -> bool {
        self.ladder.is_none() && matches!(self.rest, Rest::ToKeep { .. } | Rest::Kept)
    }

    /// Whether the rest is or may be alive although no process is below the shim.
    pub(super) fn drains(&self) -> bool {
        matches!(self.rest, Rest::Drains { .. })
    }

    /// Whether processes were detached, and the shim is there to reap them.
    pub(in crate::keeper) fn keeps(&self) -> bool {
        matches!(self.rest, Rest::Kept) && self.shim.is_some()
    }

    /// Returns when to check the remaining processes if no event comes.
    pub(super) fn rest_wakes_at(&self, again: u64) -> Option<u64> {
        match &self.rest {
            Rest::Drains { until } if self.ladder.is_none() => *until,
            Rest::ToKeep { confirmed: true } if self.ladder.is_none() => Some(again),
            _ => None,
        }
    }

    /// Ends a drain whose time has passed, and detaches the processes that are to be detached.
    pub(super) fn look_after_rest(&mut self, now: u64) {
        if self.ladder.is_some() {
            return self.notify_shim_of_stop();
        }
        match self.rest {
            Rest::Drains { until: Some(at) } if now >= at => {
                self.ladder = Some(Ladder::start(&self.policy.stop_plan(), now));
            }
            // A shim without children, or one that has exited, has nothing to detach.
            Rest::ToKeep { confirmed: true } if !self.heard.childless => self.keep(),
            Rest::Followed | Rest::Drains { .. } | Rest::ToKeep { .. } | Rest::Kept => {}
        }
    }

    /// Notifies the shim of the stop: should this process die before the leader does, the shim must not take what
    /// follows for the leader's own exit, nor leave a tree that is to end to the next keeper.
    fn notify_shim_of_stop(&mut self) {
        if !std::mem::replace(&mut self.shim_knows_of_stop, true) {
            self.for_shim.push(ToShim::Stopping {});
        }
    }

    /// Whether the shim is to be notified of the stop now, before the next step sends its first signal: a keeper that
    /// dies between the two leaves a shim that ends the rest.
    pub(in crate::keeper) fn notifies_shim_first(&self) -> bool {
        let stopping = |word: &ToShim| matches!(word, ToShim::Stopping {});
        self.for_shim.iter().any(stopping)
    }

    fn keep(&mut self) {
        // End a pause requested before the leader's exit was known.
        self.end_pause();
        let of_shim = |tree: &&Tree| matches!(tree.root, Root::Shim(_));
        let Some(left) = self.tree.as_ref().filter(of_shim).map(Tree::leftovers) else {
            return;
        };
        if left.is_empty() {
            // The shim is about to report that no process is left.
            return;
        }
        self.for_shim.push(ToShim::Keep(left.clone()));
        self.last_word(TreeVerdict::Kept(left), self.opened_group());
        self.rest = Rest::Kept;
    }

    /// Acknowledges the run: the outcome is durable, or no server is left to make it so.
    pub(in crate::keeper) fn acknowledge(&mut self) {
        let first = !std::mem::replace(&mut self.acknowledged, true);
        self.outputs = None;
        self.kept = PendingReports::default();
        self.requests = Requests::default();
        if first && self.keeps() {
            // The server has read all output.
            self.for_shim.push(ToShim::Discard {});
        } else if first && self.outlives_keeper() {
            self.for_shim.push(ToShim::Leave {});
        }
    }
}
