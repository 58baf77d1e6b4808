//! What belongs to the service itself: lock, directories of runs, descriptors, boot.

use crate::rundir;
use kennel_lifecycle::{HostIdentity, RunId};
use kennel_linux::{identity, limits};
use std::{fs, path::Path};

/// Most directories of runs that are looked at.
const RUN_DIRS_MAX: usize = 10_000;

/// What the service has on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belongings {
    /// Whether the lock of the data directory names the keeper.
    pub lock_is_ours: bool,
    /// Directories of runs, at most so many.
    pub run_dirs: Vec<RunId>,
    /// How many more there are.
    pub run_dirs_unlisted: u32,
    /// Boot and pid namespace as they are now; absent: they cannot be read.
    pub host: Option<HostIdentity>,
    /// Descriptors that the server has open; absent: the kernel does not say (before Linux 6.2).
    pub server_fds: Option<u64>,
    /// Descriptors that it may have open.
    pub fds_max: Option<u64>,
}

/// Looks at them.
#[must_use]
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
        fds_max: limits::open_files().ok().map(|limit| limit.soft),
    }
}

/// The option of /proc that hides processes of others, where it is set (proc(5)).
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
