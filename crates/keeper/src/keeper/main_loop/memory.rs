//! Ends runs for the memory reserve.

use super::Keeper;
use crate::keeper::{
    memory_reserve::{Demand, MemoryReserve},
    run::Run,
};
use kennel_lifecycle::RunId;

impl Keeper {
    /// Returns when to look at the memory limits.
    pub(super) fn memory_wakes_at(&self) -> Option<u64> {
        let reserve = self.memory_reserve.as_ref();
        let reserve = reserve.filter(|_| !self.runs.is_empty());
        reserve.map(MemoryReserve::look_at)
    }

    /// Looks at the memory limits when that is due, and ends the largest run where too little is left.
    pub(super) fn keep_memory_reserve(&mut self, now: u64) {
        let runs = &self.runs;
        let is_ending = |id| runs.get(&id).is_some_and(Run::is_ending);
        let reserve = self.memory_reserve.as_mut();
        let due = reserve.filter(|reserve| !runs.is_empty() && now >= reserve.look_at());
        let Some(demand) = due.and_then(|reserve| reserve.look(now, is_ending)) else {
            return;
        };
        let ended = match demand {
            Demand::AtOnce(id) => {
                if let Some(run) = self.runs.get_mut(&id) {
                    run.kill_for_memory(now);
                }
                id
            }
            Demand::Largest { shortage, at_once } => {
                let Some(id) = self.largest_run() else {
                    return;
                };
                if let Some(run) = self.runs.get_mut(&id) {
                    // A run that is already stopping has its grace: no smaller run is ended in its place.
                    run.stop_for_memory(shortage, now);
                    if at_once {
                        run.kill_for_memory(now);
                    }
                }
                if let Some(reserve) = &mut self.memory_reserve {
                    reserve.ends(id, at_once, now);
                }
                id
            }
        };
        self.touch(ended, now);
    }

    /// Returns the run that uses most memory, of those that were not killed.
    fn largest_run(&self) -> Option<RunId> {
        let sizes = self.runs.values().filter_map(|run: &Run| {
            let size = run.memory_in_use()?;
            Some((size, run.id))
        });
        sizes.max().map(|(_, id)| id)
    }
}
