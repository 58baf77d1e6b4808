//! The session that a run's leader made, known by its number: whose that number is after the leader.

use crate::{pidfd::PidFd, procfs};
use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
};

/// Processes that were certainly of the session when they were looked at, by number and start.
#[derive(Debug, Default)]
pub struct Session(RefCell<HashMap<i32, u64>>);

impl Session {
    /// Takes those of `members`, who are certainly of the run, that are of the session with this number.
    pub(super) fn learn(&self, number: i32, members: impl IntoIterator<Item = i32>) {
        self.0.borrow_mut().extend(of_session(number, members));
    }

    /// Those of `candidates` that are of the session, as long as its number is certainly its own.
    ///
    /// INVARIANT: the number of a session is not reused while a process of the session is there. One that was known
    /// before the look and is there after it has been there all the time, and so has the leader until it is reaped.
    pub(super) fn among(
        &self,
        number: i32,
        leader: &PidFd,
        candidates: impl IntoIterator<Item = i32>,
    ) -> HashSet<i32> {
        let found = of_session(number, candidates);
        let mut known = self.0.borrow_mut();
        known.retain(|pid, start_ticks| {
            procfs::stat(*pid).is_ok_and(|stat| stat.start_ticks == *start_ticks)
        });
        if known.is_empty() && !leader.is_unreaped() {
            return HashSet::new();
        }
        known.extend(&found);
        found.into_keys().collect()
    }
}

fn of_session(number: i32, pids: impl IntoIterator<Item = i32>) -> HashMap<i32, u64> {
    let stats = pids
        .into_iter()
        .filter_map(|pid| Some((pid, procfs::stat(pid).ok()?)));
    stats
        .filter(|(_, stat)| stat.sid == number)
        .map(|(pid, stat)| (pid, stat.start_ticks))
        .collect()
}
