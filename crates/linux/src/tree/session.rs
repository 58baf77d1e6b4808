//! The session of a run's leader, identified by its number: the owner of that number after the leader's exit.

use crate::{
    pidfd::PidFd,
    procfs::{self, Stat},
};
use std::{cell::RefCell, collections::HashMap};

/// Processes that were verified to be of the session when they were read, by number and start.
#[derive(Debug, Default)]
pub struct Session(RefCell<HashMap<i32, u64>>);

impl Session {
    /// Records those of `members`, all verified to be of the run, that are of the session with this number.
    pub(super) fn learn(&self, number: i32, members: &HashMap<i32, Stat>) {
        let of_it = members.iter().filter(|(_, stat)| stat.sid == number);
        let of_it = of_it.map(|(pid, stat)| (*pid, stat.start_ticks));
        self.0.borrow_mut().extend(of_it);
    }

    /// Returns those of `candidates` that are of the session, with their start times, as long as its number is verified to be its own.
    ///
    /// INVARIANT: the number of a session is not reused while a process of the session is there. A process that was
    /// known before the scan and is there after it has been there all the time, and so has the leader until it is
    /// reaped.
    pub(super) fn among(
        &self,
        number: i32,
        leader: &PidFd,
        candidates: impl IntoIterator<Item = i32>,
    ) -> HashMap<i32, u64> {
        let found = of_session(number, candidates);
        let mut known = self.0.borrow_mut();
        known.retain(|pid, start_ticks| {
            procfs::stat(*pid).is_ok_and(|stat| stat.start_ticks == *start_ticks)
        });
        if known.is_empty() && !leader.is_unreaped() {
            return HashMap::new();
        }
        known.extend(&found);
        found
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
