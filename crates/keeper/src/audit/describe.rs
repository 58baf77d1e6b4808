//! Second check of findings: whether each process still exists, and what only /proc can say about it.

use kennel_lifecycle::{CgroupIdentity, ProcessIdentity, RunId};
use kennel_linux::{cgroup, clock, procfs};
use std::time::Duration;

/// Most bytes of the command's name that are reported.
const ARGV0_BYTES_MAX: usize = 256;

/// A process in words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The kernel's name for it, at most 15 bytes.
    pub name: String,
    /// The first word of its command line as it is now, up to the first blank; the process may have overwritten it.
    /// The rest may hold secrets.
    pub argv0: String,
    /// Its real user.
    pub uid: u32,
    /// Letter of proc(5), such as `S`.
    pub state: char,
    /// For how long it has lived.
    pub age: Duration,
    /// Its control group; absent: none is visible from here.
    pub cgroup: Option<String>,
}

/// Describes each process; absent: it no longer exists, or its pid belongs to another one.
pub fn describe(processes: &[ProcessIdentity]) -> Vec<Option<Described>> {
    let up = clock::since_boot();
    processes.iter().map(|process| one(process, up)).collect()
}

fn one(process: &ProcessIdentity, up: Duration) -> Option<Described> {
    let pid = process.pid;
    let name = procfs::comm(pid);
    let argv0 = argv0(pid);
    let uid = procfs::uid(pid)?;
    let cgroup = cgroup::path_of(pid).map(|path| path.display().to_string());
    // The start time is unchanged after everything was read, so nothing read belongs to another process.
    let stat = procfs::stat(pid).ok()?;
    (stat.start_ticks == process.start_ticks).then(|| Described {
        name,
        argv0,
        uid,
        state: char::from(stat.state),
        age: up.saturating_sub(clock::of_ticks(stat.start_ticks)),
        cgroup,
    })
}

fn argv0(pid: i32) -> String {
    let bytes = procfs::cmdline(pid, ARGV0_BYTES_MAX);
    // A process that overwrites its title may join the whole command line into the first word.
    let ends = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    let first = bytes.split(ends).next().unwrap_or_default();
    String::from_utf8_lossy(first).into_owned()
}

/// Returns the directories that still exist and are still empty.
pub fn still_empty(directories: Vec<(RunId, CgroupIdentity)>) -> Vec<(RunId, CgroupIdentity)> {
    let is_empty = |group: &CgroupIdentity| {
        matches!(cgroup::open(group), Ok(Some(_)))
            && matches!(cgroup::is_populated(group), Ok(false))
    };
    let there = directories.into_iter();
    there.filter(|(_, group)| is_empty(group)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sleeper::Sleeper;
    use std::{os::unix::process::CommandExt, process::Command};

    #[test]
    fn joined_argv_is_described_by_its_first_word() {
        for (own, shown) in [
            ("/opt/browser --type=page --token=secret", "/opt/browser"),
            ("worker:\tpassword", "worker:"),
            ("/bin/sleep", "/bin/sleep"),
        ] {
            let child = Sleeper::of(Command::new("sleep").arg0(own).arg("1000"));
            let process = child.identity();
            let described = loop {
                let described = describe(&[process]).remove(0).expect("it is there");
                // The kernel lets the parent continue before it has put the command line in place.
                if !described.argv0.is_empty() {
                    break described;
                }
                std::thread::yield_now();
            };
            assert_eq!(described.argv0, shown);
        }
    }
}
