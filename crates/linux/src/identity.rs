//! Identities: read from the kernel, and compared with recorded ones.

use crate::{pidfd::PidFd, procfs};
use kennel_lifecycle::{HostIdentity, ProcessIdentity, recovery::ProcessPresence};
use nix::errno::Errno;
use std::{fs, io, os::unix::fs::MetadataExt};

/// Reads the identity of a process that cannot be reaped meanwhile: `fd` refers to it, and the caller or its child is
/// its parent.
pub fn of(pid: i32, fd: &PidFd) -> io::Result<ProcessIdentity> {
    let identity = of_held(pid, fd)?;
    if !fd.is_unreaped() {
        return Err(Errno::ESRCH.into());
    }
    Ok(identity)
}

/// Reads the identity of this process, or of a child of it that it has not reaped: such a number cannot become
/// another's meanwhile.
pub fn of_held(pid: i32, fd: &PidFd) -> io::Result<ProcessIdentity> {
    let stat = procfs::stat(pid)?;
    Ok(ProcessIdentity {
        pid,
        pgid: stat.pgid,
        sid: stat.sid,
        start_ticks: stat.start_ticks,
        pidfs_handle: fd.handle(),
    })
}

/// Returns the identity of this process.
pub fn own() -> io::Result<ProcessIdentity> {
    let pid = std::process::id().cast_signed();
    of_held(pid, &PidFd::open(pid)?)
}

/// Returns boot and pid namespace of this process.
pub fn host() -> io::Result<HostIdentity> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(HostIdentity {
        boot_id: boot_id.trim().to_owned(),
        pidns_inode: fs::metadata("/proc/self/ns/pid")?.ino(),
        init_start_ticks: procfs::stat(1).ok().map(|init| init.start_ticks),
    })
}

/// Result of a search for a recorded process.
#[derive(Debug)]
pub enum ProcessLookup {
    /// The process exists and has not exited.
    Same(PidFd),
    /// The process does not exist, or only its exit status does.
    Gone,
    /// The state cannot be determined.
    Unknown,
}

impl ProcessLookup {
    /// Returns the result without the descriptor.
    pub fn seen(&self) -> ProcessPresence {
        match self {
            Self::Same(_) => ProcessPresence::Same,
            Self::Gone => ProcessPresence::Gone,
            Self::Unknown => ProcessPresence::Unknown,
        }
    }
}

/// Searches for a process that was recorded on this host.
pub fn find(recorded: &ProcessIdentity) -> ProcessLookup {
    found_or_not(look_up(recorded))
}

/// As [`find`], for a process that may have left its session since.
pub fn find_started(pid: i32, start_ticks: u64, pidfs_handle: Option<u64>) -> ProcessLookup {
    found_or_not(match pidfs_handle {
        Some(handle) => PidFd::open_handle(handle),
        None => find_by_start(pid, start_ticks, None),
    })
}

fn found_or_not(found: io::Result<Option<PidFd>>) -> ProcessLookup {
    match found {
        Ok(Some(fd)) if fd.has_ended() => ProcessLookup::Gone,
        Ok(Some(fd)) => ProcessLookup::Same(fd),
        Ok(None) => ProcessLookup::Gone,
        Err(_) => ProcessLookup::Unknown,
    }
}

/// As [`find`], for a process that may have exited, until it is reaped.
pub fn find_unreaped(recorded: &ProcessIdentity) -> Option<PidFd> {
    look_up(recorded).ok()?.filter(PidFd::is_unreaped)
}

fn look_up(recorded: &ProcessIdentity) -> io::Result<Option<PidFd>> {
    match recorded.pidfs_handle {
        Some(handle) => PidFd::open_handle(handle),
        None => find_by_start(recorded.pid, recorded.start_ticks, Some(recorded.sid)),
    }
}

/// Searches by number, session and start time: the best identification before pidfs.
fn find_by_start(pid: i32, start_ticks: u64, sid: Option<i32>) -> io::Result<Option<PidFd>> {
    let gone = |error: &io::Error| {
        matches!(
            error.raw_os_error().map(Errno::from_raw),
            Some(Errno::ENOENT | Errno::ESRCH)
        )
    };
    let fd = match PidFd::open(pid) {
        Ok(fd) => fd,
        Err(error) if gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    match procfs::stat(pid) {
        // The pidfd was opened first and is still valid after the read, so the read was of its process.
        Ok(stat) if fd.is_unreaped() => {
            let same = stat.start_ticks == start_ticks && sid.is_none_or(|sid| stat.sid == sid);
            Ok(same.then_some(fd))
        }
        Ok(_) => Ok(None),
        Err(error) if gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_found_with_and_without_handle() {
        let me = own().expect("own identity");
        assert_eq!(find(&me).seen(), ProcessPresence::Same);
        let by_start = ProcessIdentity {
            pidfs_handle: None,
            ..me
        };
        assert_eq!(find(&by_start).seen(), ProcessPresence::Same);
        let stranger = ProcessIdentity {
            start_ticks: me.start_ticks + 1,
            ..by_start
        };
        assert_eq!(find(&stranger).seen(), ProcessPresence::Gone);
    }
}
