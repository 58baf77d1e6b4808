//! Processes in a run's control group that are not of the run: a process that may write to its `cgroup.procs` can move
//! any process there. They are neither signalled nor frozen, and the group proves nothing while they are in it.
//!
//! A child is born into the control group of its parent, so a process in the group is taken for the run's unless it is
//! verified that it is not.

use super::{Root, Tree};
use crate::{
    cgroup, peer,
    procfs::{self, Stat},
};
use kennel_lifecycle::CgroupIdentity;
use std::collections::{HashMap, HashSet};

/// Processes in a control group.
#[derive(Debug, Default)]
pub(super) struct InGroup {
    pub(super) of_run: Vec<i32>,
    /// What was read of them, as far as that was needed.
    pub(super) stats: HashMap<i32, Stat>,
    /// Verified not to be of the run, by number and start time.
    pub(super) unrelated: Vec<(i32, u64)>,
    /// Whether some cannot be determined at this moment, because the shim is just exiting: the next round can.
    has_unclear: bool,
    /// Whether the keeper, the shim, or the first process of the private pid namespace is among them.
    has_ours: bool,
}

impl InGroup {
    /// Whether the group may be killed or frozen as a whole.
    pub(super) fn is_of_run_alone(&self) -> bool {
        self.unrelated.is_empty() && !self.has_unclear && !self.has_ours
    }
}

/// Owner of a process in the control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Run,
    Unclear,
    /// An unrelated process, with its start time.
    Other(u64),
}

impl Tree {
    /// Whether all in the control group are of the run, so that it can be killed or frozen as a whole.
    pub fn has_group_alone(&self) -> bool {
        self.in_group().is_of_run_alone()
    }

    /// Whether a process of the run is in its control group, or may be.
    pub fn occupies(&self, group: &CgroupIdentity) -> bool {
        cgroup::is_populated(group).unwrap_or(true) && self.unrelated_alone().is_none()
    }

    /// Returns the processes in a control group that is not empty, where all of them are unrelated; `None`: one is of the
    /// run, or may be.
    pub fn unrelated_alone(&self) -> Option<Vec<i32>> {
        let inside = self.in_group();
        // A process without a pid here, or one that is exiting, is not listed.
        let occupied = !inside.of_run.is_empty() || inside.has_unclear || inside.is_of_run_alone();
        (!occupied).then(|| inside.unrelated.iter().map(|(pid, _)| *pid).collect())
    }

    /// Classifies the processes in the control group. Each is read once, with its parent: that is half of what a walk
    /// down from the shim reads.
    pub(super) fn in_group(&self) -> InGroup {
        let Root::Shim(shim) = self.root else {
            return self.in_group_beside(&self.below_root());
        };
        let listed = self.listed();
        let read = |pid: &i32| Some((*pid, procfs::stat(*pid).ok()?));
        let stats: HashMap<_, _> = listed.iter().filter_map(read).collect();
        let below = if self.shim_is_there() {
            below(shim, &stats)
        } else {
            HashSet::new()
        };
        InGroup {
            stats,
            ..self.classify(listed, &below)
        }
    }

    /// Classifies the processes in the control group; `below` are known to be of the run.
    pub(super) fn in_group_beside(&self, below: &HashSet<i32>) -> InGroup {
        self.classify(self.listed(), below)
    }

    pub(super) fn listed(&self) -> Vec<i32> {
        self.cgroup
            .as_ref()
            .map(cgroup::members)
            .unwrap_or_default()
    }

    fn classify(&self, listed: Vec<i32>, below: &HashSet<i32>) -> InGroup {
        let mut inside = InGroup::default();
        for pid in listed {
            if self.is_ours(pid) {
                inside.has_ours = true;
                continue;
            }
            match self.owner_of(pid, below) {
                Owner::Run => inside.of_run.push(pid),
                Owner::Unclear => inside.has_unclear = true,
                Owner::Other(start_ticks) => inside.unrelated.push((pid, start_ticks)),
            }
        }
        inside
    }

    /// Whether a process in the control group is of the run, or taken for it.
    pub(super) fn owns(&self, pid: i32, below: &HashSet<i32>) -> bool {
        self.owner_of(pid, below) == Owner::Run
    }

    fn owner_of(&self, pid: i32, below: &HashSet<i32>) -> Owner {
        if below.contains(&pid) || self.is_below(pid) {
            return Owner::Run;
        }
        let start = || procfs::stat(pid).ok().map(|stat| stat.start_ticks);
        let before = start();
        // Two walks, since the pid of an exiting parent may be reused during one walk.
        if !(self.is_beside(pid) && self.is_beside(pid)) {
            return Owner::Run;
        }
        match start() {
            Some(after) if before == Some(after) && self.root_adopts() => Owner::Other(after),
            _ => Owner::Unclear,
        }
    }

    /// Whether a process is beside the run: in this pid namespace all of a run are below its shim, which adopts its
    /// orphans, and after the shim below this process, which does. A process in another pid namespace may have moved
    /// there and have been orphaned.
    fn is_beside(&self, pid: i32) -> bool {
        let own = std::process::id().cast_signed();
        let here = || procfs::namespace_depth(pid) == procfs::namespace_depth(own);
        match self.root {
            Root::Shim(shim) => peer::is_beside(pid, shim) && here(),
            // Orphans of a shim that was not this process's child have other parents.
            Root::Lost if self.foreign.is_some() => false,
            Root::Lost => peer::is_beside(pid, own) && here(),
            // `Root::Nowhere` means that the shim had no child left.
            Root::Nowhere => here(),
        }
    }

    /// Whether processes that a run leaves behind are below its root now: a shim that exits passes its children on.
    fn root_adopts(&self) -> bool {
        let Root::Shim(shim) = self.root else {
            return true;
        };
        let lives = procfs::stat(shim).is_ok_and(|stat| !stat.is_dead() && !stat.is_exiting);
        lives && self.shim_is_there()
    }
}

/// Returns those of these processes whose parents, all of them among these, lead to the shim.
fn below(shim: i32, stats: &HashMap<i32, Stat>) -> HashSet<i32> {
    let mut below = HashSet::new();
    for pid in stats.keys() {
        let (mut way, mut at) = (Vec::new(), *pid);
        while at != shim && !below.contains(&at) {
            match stats.get(&at) {
                // Pids that are reused during these reads could form a cycle.
                Some(stat) if way.len() < stats.len() => {
                    way.push(at);
                    at = stat.ppid;
                }
                _ => {
                    way.clear();
                    break;
                }
            }
        }
        below.extend(way);
    }
    below
}
