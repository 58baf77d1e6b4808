//! Shims whose runs may detach processes: an empty file `detached/PID.START` for each in the data directory.
//!
//! A detached process outlives its run, its keeper, and the row of the run. What remains of its descent is the shim,
//! which adopts all processes below it and exits after the last. A later server recognizes such a process by its shim,
//! so the shim is on file from before its command executes until its tree is empty. Where the shim is killed, only a
//! control group or a keeper that is process 1 shows where the process belongs (`detached_identity`).

use crate::rundir;
use kennel_lifecycle::{LeaderExit, Policy, ProcessIdentity};
use kennel_linux::{own_file, procfs};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

fn dir(data_dir: &Path) -> PathBuf {
    data_dir.join("detached")
}

fn name(pid: i32, start_ticks: u64) -> String {
    format!("{pid}.{start_ticks}")
}

/// Whether this process is on file as such a shim, or the files cannot be read.
pub fn has_shim(data_dir: &Path, pid: i32, start_ticks: u64) -> bool {
    match fs::symlink_metadata(dir(data_dir).join(name(pid, start_ticks))) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Puts the shim of this run on file, where its policy may detach processes.
pub(crate) fn record(
    run_dir: &Path,
    policy: &Policy,
    shim: Option<&ProcessIdentity>,
) -> io::Result<()> {
    if policy.on_leader_exit != LeaderExit::Keep {
        return Ok(());
    }
    let unread = "this process cannot read its own identity";
    let shim = shim.ok_or_else(|| io::Error::other(unread))?;
    let dir = dir(rundir::data_dir(run_dir)?);
    own_file::make_dir(&dir)?;
    let name = name(shim.pid, shim.start_ticks);
    let mut how = own_file::options();
    how.write(true).create(true).open(dir.join(name)).map(drop)
}

/// Takes the shim of this run off file. A missing file is no error.
pub(crate) fn forget(run_dir: &Path, shim: Option<&ProcessIdentity>) {
    if let (Ok(data_dir), Some(shim)) = (rundir::data_dir(run_dir), shim) {
        let _ = fs::remove_file(dir(data_dir).join(name(shim.pid, shim.start_ticks)));
    }
}

/// Takes all shims off file that are gone: those that were killed.
pub(crate) fn sweep(data_dir: &Path) {
    for entry in fs::read_dir(dir(data_dir)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.split_once('.'));
        let shim = parts.and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?)));
        let lives = shim.is_some_and(|(pid, start_ticks): (i32, u64)| {
            procfs::stat(pid).is_ok_and(|stat| stat.start_ticks == start_ticks && !stat.is_dead())
        });
        if !lives {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::RunId;
    use kennel_linux::identity;

    #[test]
    fn detached_shim_stays_recorded_until_forgotten() {
        let data = tempfile::tempdir().expect("a directory");
        let run_dir = rundir::path(data.path(), RunId::from_u128(7));
        let keeps = Policy {
            on_leader_exit: LeaderExit::Keep,
            ..Policy::default()
        };
        let shim = identity::own().expect("own identity");
        let later = ProcessIdentity {
            start_ticks: shim.start_ticks + 1,
            ..shim
        };
        sweep(data.path());
        let is_on_file = |of: &ProcessIdentity| has_shim(data.path(), of.pid, of.start_ticks);
        record(&run_dir, &Policy::default(), Some(&shim)).expect("nothing to do");
        assert!(!is_on_file(&shim));
        for shim in [&shim, &later] {
            record(&run_dir, &keeps, Some(shim)).expect("recorded");
        }
        sweep(data.path());
        assert!(is_on_file(&shim));
        assert!(!is_on_file(&later), "no process has both numbers");
        forget(&run_dir, Some(&shim));
        assert!(!is_on_file(&shim));
        record(&run_dir, &keeps, None).expect_err("no identity to record");
    }
}
