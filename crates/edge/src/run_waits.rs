//! Waiting calls of runs, streams among them: bounded for each run and for all, so that runs take no slots from others.

use crate::{access::Caller, status};
use kennel_lifecycle::RunId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tonic::Status;

/// Waiting calls of one run.
const OF_RUN_MAX: usize = 32;
/// Waiting calls of all runs.
const OF_RUNS_MAX: usize = 1024;

/// Waiting calls by run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunWaits(Arc<Mutex<HashMap<RunId, usize>>>);

/// A slot among the waiting calls of a run, released when it is dropped.
#[derive(Debug)]
pub(crate) struct RunWait {
    waits: RunWaits,
    run: RunId,
}

impl RunWaits {
    /// Takes a slot for a caller in a run; absent: the caller is in none.
    pub(crate) fn begin(&self, caller: &Caller) -> Result<Option<RunWait>, Status> {
        let Some(run) = caller.run.as_ref().map(|run| run.id) else {
            return Ok(None);
        };
        let mut waits = self.lock();
        if waits.get(&run).is_some_and(|own| *own >= OF_RUN_MAX) {
            return Err(status::too_many("waiting calls of one run", OF_RUN_MAX));
        }
        if waits.values().sum::<usize>() >= OF_RUNS_MAX {
            return Err(status::too_many("waiting calls of all runs", OF_RUNS_MAX));
        }
        *waits.entry(run).or_default() += 1;
        let waits = self.clone();
        Ok(Some(RunWait { waits, run }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunWait {
    fn drop(&mut self) {
        let mut waits = self.waits.lock();
        if let Some(own) = waits.get_mut(&self.run) {
            *own -= 1;
            if *own == 0 {
                waits.remove(&self.run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        access::{AsRun, Quota},
        pb::Role,
    };

    fn caller(run: Option<u128>) -> Caller {
        Caller {
            principal: "p".to_owned(),
            pid: None,
            role: Role::Spawner,
            owner: "team".to_owned(),
            via: None,
            quota: Quota::default(),
            granted: Arc::default(),
            run: run.map(|run| AsRun {
                id: RunId::from_u128(run),
                spec: Arc::default(),
            }),
        }
    }

    #[test]
    fn waits_of_runs_are_bounded_until_dropped() {
        let waits = RunWaits::default();
        let begin = |run| waits.begin(&caller(run));
        let mut held: Vec<_> = (0..OF_RUN_MAX)
            .map(|_| begin(Some(1)).expect("room"))
            .collect();
        begin(Some(1)).expect_err("one too many of this run");
        held.pop();
        held.push(begin(Some(1)).expect("one has ended"));
        for run in 2.. {
            if held.len() == OF_RUNS_MAX {
                break;
            }
            held.extend((0..OF_RUN_MAX).map(|_| begin(Some(run)).expect("room")));
        }
        begin(Some(9_999)).expect_err("one too many of all runs");
        assert!(begin(None).expect("no run").is_none());
        held.clear();
        assert!(waits.lock().is_empty());
    }
}
