//! Stops every task of a tree, looks whether all have stopped, and remembers whom to continue.

use crate::{
    cgroup,
    pidfd::Sent,
    procfs::{self, Stat},
    tree::Tree,
    wire::{PIDS_MAX, mirror::WireSignalResult},
};
use kennel_lifecycle::Signal;
use std::collections::HashMap;

/// How long every task has to be seen stopped.
const STOP_WAIT_MS: u64 = 2_000;
/// Between two looks.
const LOOK_AGAIN_MS: u64 = 2;

/// Whether a tree is held by us.
pub(super) enum Pause {
    /// It is not.
    None,
    /// It is being stopped, and somebody waits for the answer.
    Stopping {
        seq: u64,
        give_up_at: u64,
        held: Held,
    },
    /// Every task was seen stopped.
    Stopped(Held),
}

/// Whom we have stopped, and nobody else.
#[derive(Default)]
pub(super) struct Held {
    frozen: bool,
    stopped: HashMap<i32, Stat>,
}

impl Pause {
    /// Asks every task to stop.
    pub(super) fn begin(&mut self, tree: &Tree, seq: u64, now: u64) {
        let mut held = match std::mem::replace(self, Self::None) {
            Self::Stopped(held) => held,
            _ => Held::default(),
        };
        if let Some(group) = &tree.cgroup
            && cgroup::freeze(group, true).is_ok()
        {
            held.frozen = true;
        }
        *self = Self::Stopping {
            seq,
            give_up_at: now + STOP_WAIT_MS,
            held,
        };
    }

    /// When to look again.
    pub(super) fn wake_at(&self, now: u64) -> Option<u64> {
        matches!(self, Self::Stopping { .. }).then_some(now + LOOK_AGAIN_MS)
    }

    /// The request that waits for an answer that will not come.
    pub(super) fn interrupted(&self) -> Option<u64> {
        match self {
            Self::Stopping { seq, .. } => Some(*seq),
            _ => None,
        }
    }

    /// Looks again; gives the answer when there is one. After `Partial` everybody goes on.
    pub(super) fn go_on(&mut self, tree: &Tree, now: u64) -> Option<(u64, WireSignalResult)> {
        let Self::Stopping {
            seq,
            give_up_at,
            held,
        } = self
        else {
            return None;
        };
        let (seq, give_up_at) = (*seq, *give_up_at);
        let moving = held.pass(tree);
        if moving.is_empty() {
            let held = std::mem::take(held);
            *self = Self::Stopped(held);
            return Some((seq, WireSignalResult::Done));
        }
        if now < give_up_at {
            return None;
        }
        self.end(tree);
        Some((seq, WireSignalResult::Partial(moving)))
    }

    /// Continues whom we have stopped.
    pub(super) fn end(&self, tree: &Tree) -> WireSignalResult {
        match self {
            Self::None => WireSignalResult::Done,
            Self::Stopping { held, .. } | Self::Stopped(held) => held.let_go(tree),
        }
    }
}

impl Held {
    /// One pass: who was not seen stopped. Those whom the freeze does not reach get SIGSTOP.
    fn pass(&mut self, tree: &Tree) -> Vec<i32> {
        let group = tree.cgroup.as_ref().filter(|_| self.frozen);
        let members = tree.members();
        let inside = group.map(cgroup::members).unwrap_or_default();
        let frozen = group.is_some_and(|g| cgroup::is_frozen(g).unwrap_or(false));
        let mut moving: Vec<i32> = if group.is_some() && !frozen {
            inside.clone()
        } else {
            Vec::new()
        };
        for (pid, stat) in members {
            if inside.contains(&pid) || procfs::runs_no_more(pid, &stat) {
                continue;
            }
            if tree.signal_member(pid, &stat, Signal::STOP) == Sent::Gone {
                continue;
            }
            self.stopped.insert(pid, stat);
            moving.push(pid);
        }
        moving.truncate(PIDS_MAX);
        moving
    }

    fn let_go(&self, tree: &Tree) -> WireSignalResult {
        let mut failed = None;
        if self.frozen
            && let Some(group) = &tree.cgroup
            && let Err(error) = cgroup::freeze(group, false)
        {
            failed = error.raw_os_error();
        }
        for (pid, stat) in &self.stopped {
            if let Sent::Failed(errno) = tree.signal_member(*pid, stat, Signal::CONT) {
                failed.get_or_insert(errno);
            }
        }
        failed.map_or(WireSignalResult::Done, WireSignalResult::Failed)
    }
}
