//! Note of the first process of a run's private pid namespace, written to the run's private directory before the
//! command may run.
//!
//! The kernel lets this process exit as the last one of its namespace (`pid_namespaces(7)`). So its absence proves that
//! the namespace is empty, also for a start that finds neither keeper nor shim.

use crate::{
    held::HeldProcess,
    private_file,
    unreadable::{self, Unreadable},
    wire::notes::{InitNote, WireLeader},
};
use kennel_lifecycle::recovery::ProcessPresence;
use kennel_linux::{identity::ProcessLookup, procfs};
use nix::errno::Errno;
use std::{ffi::CStr, io, path::Path};

const NAME: &CStr = c"init";

/// Writes the note. The caller is the parent of the process, and has not reaped it.
pub(crate) fn write(run_dir: &Path, leader: WireLeader, init: i32) -> io::Result<()> {
    let start_ticks = procfs::stat(init)?.start_ticks;
    let init = HeldProcess::of(init, start_ticks).ok_or(Errno::ESRCH)?;
    let bytes = serde_json::to_vec(&InitNote { leader, init })?;
    private_file::replace(run_dir, NAME, &bytes).map(|_| ())
}

/// Whether the first process of this leader's run is alive; `None` where none is recorded.
pub(crate) fn see(
    run_dir: &Path,
    leader: WireLeader,
) -> Result<Option<ProcessPresence>, Unreadable> {
    let Some(note) = unreadable::read::<InitNote>(run_dir, NAME)? else {
        return Ok(None);
    };
    // Init exits after all others in its namespace: an unreaped init counts as gone.
    let seen = || match note.init.find() {
        ProcessLookup::Same(fd) if fd.has_ended() => ProcessPresence::Gone,
        found => found.seen(),
    };
    Ok((note.leader == leader).then(seen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::WaitPidFlag;

    // promise: N-10a
    #[test]
    fn recorded_init_process_is_seen_until_its_exit() {
        let dir = tempfile::tempdir().expect("a directory");
        let leader = |start_ticks| WireLeader {
            pid: 7,
            start_ticks,
        };
        let child = crate::sleeper::Sleeper::new();
        let pid = child.pid();
        assert_eq!(see(dir.path(), leader(1)), Ok(None));
        write(dir.path(), leader(1), pid).expect("it is written");
        assert_eq!(see(dir.path(), leader(1)), Ok(Some(ProcessPresence::Same)));
        assert_eq!(see(dir.path(), leader(2)), Ok(None), "another attempt's");
        child.pidfd().signal(kennel_lifecycle::Signal::KILL);
        let id = nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(pid));
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(id, ended).expect("it ends");
        assert_eq!(
            see(dir.path(), leader(1)),
            Ok(Some(ProcessPresence::Gone)),
            "not reaped"
        );
        drop(child);
        assert_eq!(see(dir.path(), leader(1)), Ok(Some(ProcessPresence::Gone)));
    }
}
