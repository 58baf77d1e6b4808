//! Authentication of callers at a run's reconnect socket: only the next keeper of this data directory gets the run, and
//! no member of any run.
//!
//! All processes of one user can connect there and could end the keeper. So the caller is identified by the descriptor
//! that the kernel provides, judged by what it cannot easily change (its ancestors, its control group, its first
//! environment), and must hold the lock of the data directory. Where something cannot be read, the caller is refused.

use crate::rundir;
use kennel_linux::{cgroup, marker, own_file, peer, procfs};
use std::{
    collections::HashSet,
    fs::TryLockError,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Name of every shim, which no other process can change.
const SHIM: &str = "kennel-shim";
/// Attempts to read a chain of ancestors of which one exits meanwhile.
const TRIES_MAX: u32 = 3;

/// Whether the process at the other end of this socket is a keeper that may adopt the run of `run_dir`.
pub(super) fn is_next_keeper(socket: &OwnedFd, run_dir: &Path) -> bool {
    let Ok((caller, process)) = peer::process(socket) else {
        return false;
    };
    let data_dir = rundir::data_dir(run_dir);
    caller.pid > 0
        && caller.uid == nix::unistd::geteuid().as_raw()
        && data_dir.is_ok_and(|dir| !is_of_a_run(caller.pid, dir) && holds_lock(caller.pid, dir))
        // Earlier reads belong to this very process only if it is still alive.
        && !process.has_ended()
}

/// Whether a process is, or may be, a member of any run: an ancestor is a shim other than this process's own, it is in
/// a run's control group, or it has the marker of a run of this data directory. A service inside of a run has the outer
/// shim as its own ancestor. A member whose shim has died, and that has neither group nor marker, is refused for want
/// of the lock.
fn is_of_a_run(pid: i32, data_dir: &Path) -> bool {
    let own = std::process::id().cast_signed();
    let Some(ours) = ancestors(own) else {
        return true;
    };
    let Some(theirs) = ancestors(pid) else {
        return true;
    };
    let ours: HashSet<i32> = ours.into_iter().filter(|pid| *pid != own).collect();
    let below_a_shim = theirs
        .iter()
        .any(|pid| !ours.contains(pid) && procfs::comm(*pid) == SHIM);
    let marked = marker::of(pid).is_some_and(|run| rundir::path(data_dir, run).exists());
    below_a_shim || marked || is_in_group_of_a_run(pid, own)
}

/// Returns a process and its ancestors; absent: they cannot be read.
fn ancestors(pid: i32) -> Option<Vec<i32>> {
    (0..TRIES_MAX).find_map(|_| {
        let mut chain = Vec::new();
        let mut at = pid;
        while at > 0 && chain.len() < procfs::ANCESTORS_MAX {
            chain.push(at);
            at = procfs::stat(at).ok()?.ppid;
        }
        Some(chain)
    })
}

/// Whether a control group of a run contains `pid` but not `own`.
fn is_in_group_of_a_run(pid: i32, own: i32) -> bool {
    let Some(theirs) = cgroup::path_of(pid) else {
        return false;
    };
    let ours = cgroup::path_of(own).unwrap_or_default();
    groups_of_runs(&theirs).any(|group| !ours.starts_with(group))
}

/// Returns the groups in this path that keepers make for runs: `kennel-NODE-EPOCH/run-ID-NUMBER`.
fn groups_of_runs(path: &Path) -> impl Iterator<Item = PathBuf> {
    let is_of_run = |group: &&Path| {
        let begins = |path: Option<&Path>, with: &str| {
            let name = path.and_then(Path::file_name).unwrap_or_default();
            name.to_string_lossy().starts_with(with)
        };
        begins(Some(group), "run-") && begins(group.parent(), cgroup::BASE)
    };
    let groups = path.ancestors().filter(is_of_run).map(Path::to_path_buf);
    groups.collect::<Vec<_>>().into_iter()
}

/// Whether the data directory is locked, and the lock names this process.
fn holds_lock(pid: i32, data_dir: &Path) -> bool {
    let path = data_dir.join("lock");
    let opened = own_file::options().read(true).open(&path);
    let Ok(file) = opened.and_then(own_file::regular) else {
        return false;
    };
    // The shared lock is released with the file; a keeper that starts at this moment retries.
    let locked = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    let named = own_file::read_to_string(&path).is_ok_and(|text| text.trim() == pid.to_string());
    locked && named
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: R-62
    #[test]
    fn cgroups_of_runs_are_recognized_by_path() {
        let groups = |path: &str| {
            let groups = groups_of_runs(Path::new(path));
            groups.map(|g| g.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(groups("/c/kennel-N-E/run-R-1"), ["/c/kennel-N-E/run-R-1"]);
        assert_eq!(
            groups("/c/kennel-N-E/run-R-1/x/kennel-M-F/run-S-2/y"),
            [
                "/c/kennel-N-E/run-R-1/x/kennel-M-F/run-S-2",
                "/c/kennel-N-E/run-R-1"
            ]
        );
        assert!(groups("/c/kennel-N-E").is_empty());
        assert!(groups("/c/run-1/kennel.service").is_empty());
    }

    // promise: R-62
    #[test]
    fn keeper_lock_must_be_held_by_the_caller() {
        let data = tempfile::tempdir().expect("a directory");
        let own = std::process::id().cast_signed();
        assert!(!holds_lock(own, data.path()), "no lock");
        let path = data.path().join("lock");
        std::fs::write(&path, format!("{own}\n")).expect("own file");
        assert!(!holds_lock(own, data.path()), "not held");
        let held = std::fs::File::open(&path).expect("own file");
        held.lock().expect("it is free");
        assert!(holds_lock(own, data.path()));
        assert!(!holds_lock(own + 1, data.path()), "of another process");
    }
}
