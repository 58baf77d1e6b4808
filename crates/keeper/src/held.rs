//! Processes that a pause has stopped, recorded in the run's private directory before they are stopped.
//!
//! So no process stays stopped when the process that stopped it dies: a keeper, a shim or the next start continues
//! them, and none that had stopped itself.

use crate::{
    private_file,
    unreadable::{self, Unreadable},
};
use kennel_lifecycle::{CgroupIdentity, Signal};
use kennel_linux::{
    cgroup,
    identity::{self, ProcessLookup},
    pidfd::PidFd,
    targets::SignalOutcome,
};
use serde::{Deserialize, Serialize};
use std::{ffi::CStr, io, path::Path};

const NAME: &CStr = c"held";

/// Most processes that are stopped one by one. Beyond them a pause is incomplete.
pub(crate) const HELD_MAX: usize = 16_384;

/// Processes that Kennel has stopped, and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The control group was frozen.
    pub(crate) frozen: bool,
    /// Processes that got SIGSTOP.
    pub(crate) processes: Vec<HeldProcess>,
}

/// State where the record exists and cannot be read: no process is named, and a group that was not frozen is not harmed
/// by being thawed.
pub(crate) const UNKNOWN: Held = Held {
    frozen: true,
    processes: Vec::new(),
};

/// One process, identified unambiguously within one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldProcess {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) pidfs_handle: Option<u64>,
}

impl HeldProcess {
    /// Identifies the process: `None` where `pid` no longer means the process that began at `start_ticks`.
    pub(crate) fn of(pid: i32, start_ticks: u64) -> Option<Self> {
        let fd = PidFd::open(pid).ok()?;
        let found = identity::of(pid, &fd).ok()?;
        (found.start_ticks == start_ticks).then_some(Self {
            pid,
            start_ticks,
            pidfs_handle: found.pidfs_handle,
        })
    }

    /// Looks the process up.
    pub(crate) fn find(&self) -> ProcessLookup {
        identity::find_started(self.pid, self.start_ticks, self.pidfs_handle)
    }

    /// Continues the process, wherever it has moved meanwhile.
    pub(crate) fn resume(&self) -> SignalOutcome {
        match self.find() {
            ProcessLookup::Same(fd) => fd.signal(Signal::CONT),
            ProcessLookup::Gone => SignalOutcome::Gone,
            ProcessLookup::Unknown => SignalOutcome::Failed(libc::EIO),
        }
    }
}

/// Records the processes before any of them is stopped. INV-16: called before the first of them is stopped.
pub(crate) fn write(run_dir: &Path, held: &Held) -> io::Result<()> {
    let bytes = serde_json::to_vec(held)?;
    private_file::replace(run_dir, NAME, &bytes).map(|_| ())
}

/// Reads the processes that an earlier keeper has stopped; empty where it has recorded nothing.
pub(crate) fn read(run_dir: &Path) -> Result<Held, Unreadable> {
    Ok(unreadable::read(run_dir, NAME)?.unwrap_or_default())
}

/// Removes the record: the processes run again.
pub(crate) fn remove(run_dir: &Path) {
    // A record that stays names running processes, which SIGCONT does not harm.
    let _ = private_file::remove(run_dir, NAME);
}

/// Continues all processes that were recorded by a process that has died since, and no others.
pub(crate) fn resume_all(run_dir: &Path, group: Option<&CgroupIdentity>) {
    let held = read(run_dir).unwrap_or(UNKNOWN);
    if let Some(group) = group.filter(|_| held.frozen) {
        // A group that is gone contains no process.
        let _ = cgroup::freeze(group, false);
    }
    for one in held.processes {
        one.resume();
    }
    remove(run_dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_list_of_paused_processes_round_trips() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()), Ok(Held::default()));
        let longest = HeldProcess {
            pid: i32::MIN,
            start_ticks: u64::MAX,
            pidfs_handle: Some(u64::MAX),
        };
        let held = Held {
            frozen: true,
            processes: vec![longest; HELD_MAX],
        };
        write(dir.path(), &held).expect("it is written");
        assert_eq!(read(dir.path()), Ok(held));
        remove(dir.path());
        assert_eq!(read(dir.path()), Ok(Held::default()));
    }

    // promise: T-52
    #[test]
    fn resume_checks_process_identity() {
        let child = crate::sleeper::Sleeper::new();
        let (pid, start_ticks) = (child.pid(), child.identity().start_ticks);
        let held = HeldProcess::of(pid, start_ticks).expect("it is there");
        assert_eq!(held.resume(), SignalOutcome::Delivered);
        assert_eq!(HeldProcess::of(pid, start_ticks + 1), None);
        let by_start = HeldProcess {
            pidfs_handle: None,
            ..held
        };
        assert_eq!(by_start.resume(), SignalOutcome::Delivered);
        let another = HeldProcess {
            start_ticks: start_ticks + 1,
            ..by_start
        };
        assert_eq!(another.resume(), SignalOutcome::Gone);
        drop(child);
        assert_eq!(held.resume(), SignalOutcome::Gone);
    }
}
