//! The rest of a tree whose leader has ended by itself: stopped, drained, or left alone, as the run's policy says.
//!
//! A stop that is on its way, from whomever, means the whole tree, and then nothing here applies.

use super::{Kept, Requests, Run, Stage};
use crate::{client::SignalResult, wire::ToShim};
use kennel_lifecycle::{LeaderExit, TreeVerdict, ladder::Ladder};
use kennel_linux::tree::{Root, Tree};

/// How the rest of the tree stands.
#[derive(Default)]
pub(super) enum Rest {
    /// The leader lives, or whatever is left is being stopped.
    #[default]
    Followed,
    /// It goes on until the last of it has ended; at this time it is stopped.
    Drains { until: Option<u64> },
    /// It is to be left alone, once the server has said that no stop is on its way.
    ToKeep { confirmed: bool },
    /// It was left alone: the run has ended without it.
    Kept,
}

impl Run {
    /// The leader has ended while no stop was on its way; `alive` says whether the shim has other children.
    pub(super) fn leader_left(&mut self, alive: bool, now: u64) {
        let policy = if self.stage == Stage::Ran {
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
                self.let_go();
                let millis = |t: std::time::Duration| u64::try_from(t.as_millis());
                let from = self.leader_left_at.unwrap_or(now);
                let until = timeout.map(|t| from.saturating_add(millis(t).unwrap_or(u64::MAX)));
                self.rest = Rest::Drains { until };
            }
            LeaderExit::Keep => {
                self.let_go();
                self.rest = Rest::ToKeep { confirmed: false };
            }
        }
    }

    /// Nobody could ask for a paused rest to be resumed: the pause ends with the leader.
    pub(super) fn let_go(&mut self) {
        let Some(tree) = &self.tree else { return };
        let (_, waiting) = self.pause.end(tree, &self.private_dir);
        if let Some(waiting) = waiting {
            self.answer_signal(waiting, SignalResult::Partial(Vec::new()));
        }
    }

    /// No stop is on its way: the rest may be left alone.
    pub(in crate::keeper) fn keep_rest(&mut self) {
        if let Rest::ToKeep { confirmed } = &mut self.rest {
            *confirmed = true;
        }
    }

    /// Whether the leader has ended by itself and the rest is to be left alone, unless a server knows of a stop.
    pub(super) fn is_to_keep(&self) -> bool {
        self.ladder.is_none() && matches!(self.rest, Rest::ToKeep { .. } | Rest::Kept)
    }

    /// Whether the rest lives on although nobody is below the shim, or may.
    pub(super) fn drains(&self) -> bool {
        matches!(self.rest, Rest::Drains { .. })
    }

    /// Whether somebody was left alone, and the shim is there to reap them.
    pub(in crate::keeper) fn keeps(&self) -> bool {
        matches!(self.rest, Rest::Kept) && self.shim.is_some()
    }

    /// When to look after the rest without any event.
    pub(super) fn rest_wakes_at(&self, again: u64) -> Option<u64> {
        match &self.rest {
            Rest::Drains { until } if self.ladder.is_none() => *until,
            Rest::ToKeep { confirmed: true } if self.ladder.is_none() => Some(again),
            _ => None,
        }
    }

    /// Ends a drain whose time is over, and keeps whom it was said to keep.
    pub(super) fn look_after_rest(&mut self, now: u64) {
        if self.ladder.is_some() {
            return self.tell_shim_of_stop();
        }
        match self.rest {
            Rest::Drains { until: Some(at) } if now >= at => {
                self.ladder = Some(Ladder::start(&self.policy.stop_plan(), now));
            }
            // A shim that has no child left, or is gone itself, keeps nobody.
            Rest::ToKeep { confirmed: true } if !self.heard.childless => self.keep(),
            Rest::Followed | Rest::Drains { .. } | Rest::ToKeep { .. } | Rest::Kept => {}
        }
    }

    /// Should this process die before the leader does, the shim must not take what follows for the leader's own end, nor
    /// leave a tree that is to end to the next keeper.
    fn tell_shim_of_stop(&mut self) {
        if !std::mem::replace(&mut self.shim_knows_of_stop, true) {
            self.for_shim.push(ToShim::Stopping);
        }
    }

    /// Whether the shim is to be told of the stop now, before the next step sends its first signal: a keeper that dies
    /// between the two leaves a shim that ends the rest.
    pub(in crate::keeper) fn tells_shim_first(&self) -> bool {
        let stopping = |word: &ToShim| matches!(word, ToShim::Stopping);
        self.for_shim.iter().any(stopping)
    }

    fn keep(&mut self) {
        // A pause that was asked for before the leader's end was known.
        self.let_go();
        let of_shim = |tree: &&Tree| matches!(tree.root, Root::Shim(_));
        let Some(left) = self.tree.as_ref().filter(of_shim).map(Tree::leftovers) else {
            return;
        };
        if left.is_empty() {
            // The shim is about to say that nobody is left.
            return;
        }
        self.for_shim.push(ToShim::Keep(left.clone()));
        self.last_word(TreeVerdict::Kept(left));
        self.rest = Rest::Kept;
    }

    /// The outcome is durable, or nobody is there any more to make it so.
    pub(in crate::keeper) fn acknowledge(&mut self) {
        let first = !std::mem::replace(&mut self.acknowledged, true);
        self.outputs = None;
        self.kept = Kept::default();
        self.requests = Requests::default();
        if first && self.keeps() {
            // The server has read what there was to read.
            self.for_shim.push(ToShim::Discard);
        } else if first && self.outlives_keeper() {
            self.for_shim.push(ToShim::Leave);
        }
    }
}
