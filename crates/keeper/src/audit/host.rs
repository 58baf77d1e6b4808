//! Resources of the service itself: lock, run directories, descriptors, boot.

use crate::rundir;
use kennel_lifecycle::{HostIdentity, RunId};
use kennel_linux::{identity, limits};
use std::{fs, path::Path};

/// Most run directories that are listed.
const RUN_DIRS_MAX: usize = 10_000;

/// Resources of the service on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belongings {
    /// Whether the lock of the data directory names the keeper.
    pub lock_is_ours: bool,
    /// Run directories, at most 10,000.
    pub run_dirs: Vec<RunId>,
    /// Number of further run directories.
    pub run_dirs_unlisted: u32,
    /// Present boot and pid namespace; absent: they cannot be read.
    pub host: Option<HostIdentity>,
    /// Number of descriptors that the server has open; absent: the kernel does not report it (before Linux 6.2).
    pub server_fds: Option<u64>,
    /// Number of descriptors that the server may have open.
    pub fds_max: Option<u64>,
}

/// Reads them.
pub fn belongings(data_dir: &Path, keeper: i32) -> Belongings {
    let holder = fs::read_to_string(data_dir.join("lock")).unwrap_or_default();
    let mut run_dirs = rundir::all(data_dir);
    let unlisted = run_dirs.len().saturating_sub(RUN_DIRS_MAX);
    run_dirs.truncate(RUN_DIRS_MAX);
    Belongings {
        lock_is_ours: holder.trim().parse() == Ok(keeper),
        run_dirs,
        run_dirs_unlisted: super::count(unlisted),
        host: identity::host().ok(),
        server_fds: limits::open_now(),
        fds_max: limits::open_files().ok(),
    }
}

/// Returns the option of /proc that hides processes of other users, where it is set (proc(5)).
pub(super) fn proc_hidden() -> Option<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.split(' ').nth(4) == Some("/proc"))?;
    let option = line
        .split([' ', ','])
        .find(|word| word.starts_with("hidepid="))?;
    let shows_all = matches!(option, "hidepid=0" | "hidepid=off");
    (!shows_all).then(|| option.to_owned())
}
