//! Requests for the processes of large trees: the loop serves them in slices, while it has nothing else to do.

use super::Keeper;
use crate::keeper::run::Run;
use kennel_lifecycle::RunId;
use kennel_linux::clock;
use std::collections::VecDeque;

/// Time after which a slice is due however much else there is to do.
const OVERDUE_AFTER_MS: u64 = 10;

/// Runs with requests for their processes, in turn.
#[derive(Default)]
pub(super) struct Slices {
    runs: VecDeque<RunId>,
    /// Time of the last slice.
    last: u64,
}

impl Slices {
    pub(super) fn are_wanted(&self) -> bool {
        !self.runs.is_empty()
    }

    pub(super) fn are_overdue(&self) -> bool {
        self.are_wanted() && clock::boot_ms() >= self.last.saturating_add(OVERDUE_AFTER_MS)
    }
}

impl Keeper {
    /// Lets a run with such requests have its turn.
    pub(super) fn plan_slice(&mut self, id: RunId) {
        let wants = self.runs.get(&id).is_some_and(Run::has_tree_work);
        if wants && !self.slices.runs.contains(&id) {
            self.slices.runs.push_back(id);
        }
    }

    /// Serves the run whose turn it is, for one slice.
    pub(super) fn do_slice(&mut self) {
        let Some(id) = self.slices.runs.pop_front() else {
            return;
        };
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        run.do_tree_work(clock::boot_ms());
        let is_over = !run.outgoing.is_empty() || !run.has_tree_work();
        self.slices.last = clock::boot_ms();
        self.plan_slice(id);
        if is_over {
            self.touch(id, self.slices.last);
        }
    }
}
