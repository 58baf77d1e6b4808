//! Waiting calls of runs, streams among them: bounded for each run, for those of an owner and for all, so that runs take
//! no slots from others, nor the runs of one owner those of another's.

use crate::{accept::tally::Tally, access::Caller, status};
use kennel_lifecycle::RunId;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use tonic::Status;

/// Waiting calls of one run.
const OF_RUN_MAX: usize = 32;
/// Waiting calls of all runs of one owner.
const OF_OWNER_MAX: usize = 512;
/// Waiting calls of all runs.
const OF_RUNS_MAX: usize = 1024;
/// The last of these, which are for owners without any.
const RESERVED: usize = 64;

/// Waiting calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunWaits(Arc<Mutex<WaitsInUse>>);

/// By the runs, and by their owners.
type WaitsInUse = Tally<RunId, String>;

/// A slot among the waiting calls of a run, released when it is dropped.
#[derive(Debug)]
pub(crate) struct RunWait {
    waits: RunWaits,
    run: RunId,
    owner: String,
}

impl RunWaits {
    /// Takes a slot for a caller in a run; absent: the caller is in none.
    pub(crate) fn begin(&self, caller: &Caller) -> Result<Option<RunWait>, Status> {
        let Some(run) = caller.run.as_ref().map(|run| run.id) else {
            return Ok(None);
        };
        let mut waits = self.lock();
        let [of_run, of_owner, all] = waits.counts(&run, &caller.owner);
        let reserved = if of_owner > 0 { RESERVED } else { 0 };
        if of_run >= OF_RUN_MAX {
            return Err(status::too_many("waiting calls of one run", OF_RUN_MAX));
        }
        if of_owner >= OF_OWNER_MAX {
            return Err(status::too_many(
                "waiting calls of all runs of one owner",
                OF_OWNER_MAX,
            ));
        }
        if all + reserved >= OF_RUNS_MAX {
            return Err(status::too_many("waiting calls of all runs", OF_RUNS_MAX));
        }
        waits.add(&run, &caller.owner);
        Ok(Some(RunWait {
            waits: self.clone(),
            run,
            owner: caller.owner.clone(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, WaitsInUse> {
        self.0.lock()
    }
}

impl Drop for RunWait {
    fn drop(&mut self) {
        self.waits.lock().remove(&self.run, &self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AsRun;

    fn caller(run: Option<u128>, owner: &str) -> Caller {
        Caller {
            owner: owner.to_owned(),
            run: run.map(|run| AsRun {
                id: RunId::from_u128(run),
                spec: Arc::default(),
            }),
            ..Caller::default()
        }
    }

    // promise: RW-139, RW-88
    #[test]
    fn concurrent_waits_are_limited_per_run_and_owner() {
        let waits = RunWaits::default();
        let begin = |run, owner: &str| waits.begin(&caller(Some(run), owner));
        let mut held: Vec<_> = (0..OF_RUN_MAX)
            .map(|_| begin(1, "a").expect("room"))
            .collect();
        begin(1, "a").expect_err("one too many of this run");
        held.pop();
        held.push(begin(1, "a").expect("one has ended"));
        let mut take_all = |owner: &str, first: u128| {
            let before = held.len();
            for run in first..first + 100 {
                held.extend((0..OF_RUN_MAX).map_while(|_| begin(run, owner).ok()));
            }
            held.len() - before
        };
        assert_eq!(take_all("a", 2), OF_OWNER_MAX - OF_RUN_MAX);
        // The runs of two owners leave waits for those of a third.
        assert_eq!(take_all("b", 1000), OF_RUNS_MAX - OF_OWNER_MAX - RESERVED);
        assert_eq!(take_all("c", 2000), 1);
        assert!(waits.begin(&caller(None, "a")).expect("no run").is_none());
        held.clear();
        assert!(waits.lock().is_empty());
    }
}
