//! All processes of one scan, found by number, by group and by descent.

use crate::{CgroupIdentity, ProcessIdentity, RunId};
use std::collections::{BTreeMap, HashMap};

/// Longest chain of parents that is followed.
const ANCESTORS_MAX: usize = 4096;

/// One process as the scan saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedProcess {
    /// Identity of the process.
    pub identity: ProcessIdentity,
    /// Process id of its parent.
    pub ppid: i32,
    /// Whether it has exited and waits to be reaped.
    pub has_ended: bool,
    /// Kennel's control group that it is in.
    pub cgroup: Option<GroupSeen>,
    /// The run whose marker its environment carries.
    pub marker: Option<RunId>,
}

/// A directory that was made for a run, known by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSeen {
    /// The run that the name gives.
    pub run: RunId,
    /// The directory as it is at present.
    pub identity: CgroupIdentity,
    /// Whether it is below the directory of the present keeper, which gives no name twice.
    pub of_this_keeper: bool,
}

/// All processes.
pub(super) struct Census<'a> {
    pub(super) by_pid: BTreeMap<i32, &'a ScannedProcess>,
    /// Living processes by the number of their group and of their session.
    by_number: HashMap<i32, Vec<&'a ScannedProcess>>,
}

impl<'a> Census<'a> {
    pub(super) fn new(seen: &'a [ScannedProcess]) -> Self {
        let mut by_number: HashMap<i32, Vec<&ScannedProcess>> = HashMap::new();
        for process in seen.iter().filter(|process| !process.has_ended) {
            let ProcessIdentity { pgid, sid, .. } = process.identity;
            by_number.entry(sid).or_default().push(process);
            if pgid != sid {
                by_number.entry(pgid).or_default().push(process);
            }
        }
        // Zero stands for numbers of another pid namespace.
        by_number.remove(&0);
        Self {
            by_pid: seen.iter().map(|p| (p.identity.pid, p)).collect(),
            by_number,
        }
    }

    pub(super) fn living(&self) -> impl Iterator<Item = &'a ScannedProcess> + '_ {
        self.by_pid.values().copied().filter(|p| !p.has_ended)
    }

    /// Living processes whose group or session has this number.
    pub(super) fn of_number(&self, number: i32) -> Vec<&'a ScannedProcess> {
        self.by_number.get(&number).cloned().unwrap_or_default()
    }

    /// Whether this very process is there, exited or not: then its number is not another's.
    pub(super) fn same(&self, recorded: &ProcessIdentity) -> bool {
        let there = self.by_pid.get(&recorded.pid);
        there.is_some_and(|there| is_same(&there.identity, recorded))
    }

    pub(super) fn living_same(&self, recorded: &ProcessIdentity) -> bool {
        let there = self.by_pid.get(&recorded.pid);
        there.is_some_and(|there| !there.has_ended && is_same(&there.identity, recorded))
    }

    /// Whether another process has the number of this one.
    pub(super) fn is_taken_by_another(&self, recorded: &ProcessIdentity) -> bool {
        let there = self.by_pid.get(&recorded.pid);
        there.is_some_and(|there| !is_same(&there.identity, recorded))
    }

    /// Returns parent, grandparent and so on.
    pub(super) fn ancestors(&self, process: &ScannedProcess) -> impl Iterator<Item = i32> + '_ {
        let next = |pid: &i32| self.by_pid.get(pid).map(|process| process.ppid);
        let all = std::iter::successors(Some(process.ppid), next);
        all.take(ANCESTORS_MAX).take_while(|pid| *pid > 0)
    }
}

/// Whether two identities are of one process: by the pidfs inode where both have one, else by number and start.
pub fn is_same(one: &ProcessIdentity, other: &ProcessIdentity) -> bool {
    let handles = one.pidfs_handle.zip(other.pidfs_handle);
    one.pid == other.pid
        && one.start_ticks == other.start_ticks
        && handles.is_none_or(|(one, other)| one == other)
}
