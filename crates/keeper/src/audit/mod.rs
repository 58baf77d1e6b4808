//! One scan of all processes of this host, and of what Kennel has left on it. It signals no process and changes
//! nothing.
//!
//! The server does this scan, not the keeper, which has runs to serve meanwhile.

mod describe;
mod groups;
mod host;

pub use describe::{Described, describe, still_empty};
pub use host::{Belongings, belongings};

use groups::ScannedGroups;
use kennel_lifecycle::{
    CgroupIdentity, NodeId, ProcessIdentity, RunId,
    audit::{GroupSeen, ScannedProcess},
};
use kennel_linux::{
    cgroup, marker,
    pidfd::PidFd,
    procfs::{self, Stat},
};
use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

/// Most processes that are scanned.
const PROCESSES_MAX: usize = 262_144;
/// Most bytes of one environment that are searched for a marker.
const ENVIRON_BYTES_MAX: u64 = 256 * 1024;

/// The installation whose traces are searched.
#[derive(Clone, Debug)]
pub struct Installation {
    /// This node, whose name is in its directories.
    pub node: NodeId,
    /// The keeper.
    pub keeper: i32,
    /// Parent of the keeper's control groups, if it makes any.
    pub cgroup_base: Option<PathBuf>,
}

/// State of a process that was found before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Still {
    /// The process is alive.
    Living,
    /// The process has ended, and waits to be reaped.
    Ended,
    /// The process no longer exists.
    Gone,
}

/// Looks a process up by its pid and start time.
pub fn still(process: &ProcessIdentity) -> Still {
    match procfs::stat(process.pid) {
        Ok(stat) if stat.start_ticks != process.start_ticks => Still::Gone,
        Ok(stat) if stat.is_dead() => Still::Ended,
        Ok(_) => Still::Living,
        Err(_) => Still::Gone,
    }
}

/// Result of a scan.
#[derive(Clone, Debug, Default)]
pub struct HostScan {
    /// All processes but threads of the kernel.
    pub processes: Vec<ScannedProcess>,
    /// Directories that were made for runs and hold no process.
    pub empty_directories: Vec<(RunId, CgroupIdentity)>,
    /// The unscanned part.
    pub unseen: Unseen,
}

/// The unscanned part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Processes whose environment could not be read, usually because this user has no right to. The keeper, the server
    /// and their shims are not counted.
    pub environs: u32,
    /// Environments that are longer than the searched part.
    pub long_environs: u32,
    /// Processes beyond [`PROCESSES_MAX`], and those that could not be read at all.
    pub processes: u32,
    /// Reason why processes of other users are hidden.
    pub proc_hidden: Option<String>,
    /// Directories of control groups that could not be read.
    pub groups: u32,
}

/// Scans everything.
pub fn scan(installation: &Installation) -> io::Result<HostScan> {
    let groups = ScannedGroups::look(installation);
    let mut pids = procfs::all_pids()?;
    pids.sort_unstable();
    let mut scan = HostScan {
        empty_directories: groups.empty.clone(),
        unseen: Unseen {
            processes: count(pids.len().saturating_sub(PROCESSES_MAX)),
            proc_hidden: host::proc_hidden(),
            groups: groups.unreadable,
            ..Unseen::default()
        },
        ..HostScan::default()
    };
    pids.truncate(PROCESSES_MAX);
    for pid in pids {
        let (seen, environ) = match look_at(pid, &groups) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(_) => {
                scan.unseen.processes = scan.unseen.processes.saturating_add(1);
                continue;
            }
        };
        match environ {
            Environ::Read(_) => {}
            Environ::Long => scan.unseen.long_environs += 1,
            Environ::Refused => scan.unseen.environs += 1,
        }
        scan.processes.push(seen);
    }
    Ok(scan)
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// A process that carries a marker.
#[derive(Clone, Debug)]
pub struct Marked {
    /// Run that the marker names.
    pub run: RunId,
    /// The process.
    pub process: ProcessIdentity,
    /// Description of the process.
    pub described: Described,
}

/// Lists all processes whose marker is readable from here: hints, for use where no server can be asked.
pub fn marked() -> Vec<Marked> {
    let groups = ScannedGroups::default();
    let pids = procfs::all_pids().unwrap_or_default().into_iter();
    let looked = pids
        .take(PROCESSES_MAX)
        .filter_map(|pid| look_at(pid, &groups).ok().flatten());
    let marked = looked.filter_map(|(seen, _)| {
        let described = describe(&[seen.identity]).pop().flatten()?;
        Some(Marked {
            run: seen.marker?,
            process: seen.identity,
            described,
        })
    });
    marked.collect()
}

/// Content of an environment.
enum Environ {
    Read(Option<RunId>),
    /// The environment is longer than the part that was read, and that part has no marker.
    Long,
    Refused,
}

/// Whether an error means that the process no longer exists. Any other error means nothing of the kind.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Reads /proc's stat of a process; `None` where it is gone.
fn stat(pid: i32) -> io::Result<Option<Stat>> {
    match procfs::stat(pid) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads everything about one process; `None` where it has exited meanwhile or is a thread of the kernel.
fn look_at(pid: i32, groups: &ScannedGroups) -> io::Result<Option<(ScannedProcess, Environ)>> {
    let Some(before) = stat(pid)?.filter(|stat| !stat.is_kernel_thread) else {
        return Ok(None);
    };
    let cgroup = groups.of(pid).and_then(|group| in_group(pid, group));
    let environ = if before.is_dead() {
        Environ::Read(None)
    } else {
        environ(pid)
    };
    let handle = PidFd::open(pid).ok().and_then(|fd| fd.handle());
    // The start time is unchanged after everything was read, so nothing read belongs to another process.
    let Some(after) = stat(pid)?.filter(|after| after.start_ticks == before.start_ticks) else {
        return Ok(None);
    };
    let marker = match environ {
        Environ::Read(marker) => marker,
        Environ::Long | Environ::Refused => None,
    };
    let seen = ScannedProcess {
        identity: ProcessIdentity {
            pid,
            pgid: after.pgid,
            sid: after.sid,
            start_ticks: after.start_ticks,
            pidfs_handle: handle,
        },
        ppid: after.ppid,
        has_ended: after.is_dead(),
        cgroup,
        marker,
    };
    Ok(Some((seen, environ)))
}

/// A process that was read as a member may have exited since, and its pid may belong to another one.
fn in_group(pid: i32, group: &GroupSeen) -> Option<GroupSeen> {
    let there = cgroup::path_of(pid)?.starts_with(&group.identity.path);
    there.then(|| group.clone())
}

fn environ(pid: i32) -> Environ {
    let mut bytes = Vec::new();
    let read = File::open(format!("/proc/{pid}/environ"))
        .and_then(|file| file.take(ENVIRON_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => match marker::in_environ(&bytes) {
            None if bytes.len() as u64 == ENVIRON_BYTES_MAX => Environ::Long,
            found => Environ::Read(found),
        },
        // An exited process counts as unmarked.
        Err(error) if is_gone(&error) => Environ::Read(None),
        Err(_) => Environ::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: F-6
    #[test]
    fn only_enoent_and_esrch_mean_process_gone() {
        let error = io::Error::from_raw_os_error;
        assert!([libc::ENOENT, libc::ESRCH].map(error).iter().all(is_gone));
        let unread = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EACCES];
        assert!(!unread.map(error).iter().any(is_gone));
        // No process has pid `i32::MAX`.
        assert!(matches!(
            look_at(i32::MAX, &ScannedGroups::default()),
            Ok(None)
        ));
    }

    #[test]
    fn scan_finds_marked_child_with_its_marker() {
        let run = RunId::from_u128(0x0123_4567_89AB);
        let mut command = std::process::Command::new("sleep");
        command.arg("60").env(marker::RUN_ID_VAR, run.to_string());
        let child = crate::sleeper::Sleeper::of(&mut command);
        let pid = child.pid();
        let installation = Installation {
            node: NodeId::from_u128(1),
            keeper: std::process::id().cast_signed(),
            cgroup_base: None,
        };
        // Between fork and exec a child has the environment of its parent.
        let seen = loop {
            let scan = scan(&installation).expect("a look");
            let seen = scan.processes.into_iter().find(|p| p.identity.pid == pid);
            let seen = seen.expect("it is there");
            if seen.marker.is_some() {
                break seen;
            }
        };
        assert_eq!(seen.marker, Some(run));
        assert_eq!(seen.ppid, std::process::id().cast_signed());
        assert!(seen.cgroup.is_none() && !seen.has_ended);
    }
}
