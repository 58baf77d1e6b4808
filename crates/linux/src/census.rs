//! Census of a run's processes over /proc by five ways that share no assumption: by marker, process group, session,
//! control group and descent. It verifies the service's reports, so nothing here asks the service.

use crate::{
    cgroup, marker,
    pidfd::PidFd,
    procfs::{self, Stat},
};
use kennel_lifecycle::{RunId, Signal};
use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
};

/// One process, identified uniquely during one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    start_ticks: u64,
}

impl Process {
    /// Returns the process that has this number at present.
    pub fn now(pid: i32) -> Option<Self> {
        procfs::stat(pid).ok().map(|stat| Self::of(pid, &stat))
    }

    fn of(pid: i32, stat: &Stat) -> Self {
        Self {
            pid,
            start_ticks: stat.start_ticks,
        }
    }

    /// Sends a signal to this very process; one that is gone gets none.
    pub fn signal(&self, signal: Signal) {
        // The pidfd is opened first: if a later read shows the process, the pidfd refers to it.
        if let Ok(fd) = PidFd::open(self.pid)
            && Self::now(self.pid) == Some(*self)
        {
            fd.signal(signal);
        }
    }

    /// Whether it is alive, be it in another thread than its first.
    pub fn is_alive(&self) -> bool {
        PidFd::open(self.pid).is_ok_and(|fd| Self::now(self.pid) == Some(*self) && !fd.has_ended())
    }
}

/// Facts of a run that a count searches by.
#[derive(Clone, Debug)]
pub struct Footprint {
    run: RunId,
    leader: Process,
    group: i32,
    session: i32,
    seen: HashSet<Process>,
}

impl Footprint {
    /// Reads the footprint of a run while its leader lives, with all processes below leader and shim.
    pub fn of(run: RunId, leader: i32, shim: i32) -> Option<Self> {
        let stat = procfs::stat(leader).ok()?;
        let below = [leader, shim].into_iter().flat_map(procfs::descendants);
        let leader = Process::of(leader, &stat);
        let mut seen: HashSet<Process> = below.filter_map(Process::now).collect();
        seen.insert(leader);
        Some(Self {
            run,
            leader,
            group: stat.pgid,
            session: stat.sid,
            seen,
        })
    }

    /// Returns the run's command.
    pub fn leader(&self) -> Process {
        self.leader
    }

    /// Returns all living processes, by any of the ways.
    pub fn alive(&self) -> Vec<Process> {
        let directory = format!("run-{}", self.run);
        let all: BTreeMap<i32, Stat> = everybody();
        // The id of a group or session is not reused while a member lives: another process with the leader's pid proves
        // that both are empty.
        let taken = all
            .get(&self.leader.pid)
            .is_some_and(|stat| stat.start_ticks != self.leader.start_ticks);
        let found = all.into_iter().filter(|(pid, stat)| {
            let of_group = !taken && (stat.pgid == self.group || stat.sid == self.session);
            let in_cgroup = || {
                cgroup::path_of(*pid)
                    .is_some_and(|path| path.to_string_lossy().contains(&directory))
            };
            of_group
                || self.seen.contains(&Process::of(*pid, stat))
                || marker::of(*pid) == Some(self.run)
                || in_cgroup()
        });
        found
            .map(|(pid, stat)| Process::of(pid, &stat))
            .filter(Process::is_alive)
            .collect()
    }
}

/// Returns the processes whose arguments or environment name this directory: a service on it, its shims, and the
/// commands of its runs.
pub fn of_directory(directory: &Path) -> Vec<Process> {
    let own = std::process::id().cast_signed();
    let name = directory.as_os_str().as_encoded_bytes();
    let names = |pid: i32, file: &str| {
        fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|text| text.windows(name.len()).any(|part| part == name))
    };
    everybody()
        .into_iter()
        .filter(|(pid, _)| *pid != own && (names(*pid, "cmdline") || names(*pid, "environ")))
        .map(|(pid, stat)| Process::of(pid, &stat))
        .filter(Process::is_alive)
        .collect()
}

/// Returns the living children of a process.
pub fn children(parent: i32) -> Vec<Process> {
    let children = procfs::children(parent).into_iter();
    children
        .filter_map(Process::now)
        .filter(Process::is_alive)
        .collect()
}

fn everybody() -> BTreeMap<i32, Stat> {
    let pids = procfs::all_pids().unwrap_or_default();
    pids.into_iter()
        .filter_map(|pid| Some((pid, procfs::stat(pid).ok()?)))
        .collect()
}

/// Lets the program that a command starts get SIGTERM when the thread that started it ends: a service that a test
/// started then does not outlive it.
pub fn end_with_this_thread(command: &mut Command) {
    let request = || {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM).map_err(io::Error::from)
    };
    // SAFETY: between fork and exec this makes one system call (prctl(2)) and touches no memory.
    unsafe { command.pre_exec(request) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Child;

    fn in_own_session(marker: Option<RunId>) -> Child {
        let mut command = Command::new("setsid");
        command.args(["sleep", "600"]).env_clear();
        if let Some(run) = marker {
            command.env(marker::RUN_ID_VAR, run.to_string());
        }
        command.spawn().expect("setsid starts")
    }

    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..10_000 {
            if holds() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("{what}");
    }

    #[test]
    fn footprint_counts_and_ends_live_processes() {
        // Unique to this test process: another run of the test may be in progress.
        let run = RunId::from_u128(0xbead << 32 | u128::from(std::process::id()));
        let mut leader = in_own_session(None);
        let mut marked = in_own_session(Some(run));
        let pids = [&leader, &marked].map(|child| child.id().cast_signed());
        let count = || {
            let print = Footprint::of(run, pids[0], pids[0]).expect("it lives");
            let mut found: Vec<i32> = print.alive().iter().map(|process| process.pid).collect();
            found.sort_unstable();
            found
        };
        let mut both = pids.to_vec();
        both.sort_unstable();
        wait_until("both are found", || count() == both);
        let print = Footprint::of(run, pids[0], pids[0]).expect("it lives");
        for process in print.alive() {
            process.signal(Signal::KILL);
        }
        wait_until("none is alive", || print.alive().is_empty());
        leader.wait().expect("own child");
        marked.wait().expect("own child");
    }

    #[test]
    fn processes_are_found_by_data_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut child = Command::new("sleep")
            .arg("600")
            .env("KENNEL_RUN_DIR", directory.path().join("runs/1"))
            .spawn()
            .expect("sleep starts");
        let pid = child.id().cast_signed();
        wait_until("it is found", || {
            let found = of_directory(directory.path());
            found.iter().map(|process| process.pid).eq([pid])
        });
        child.kill().expect("own child");
        child.wait().expect("own child");
    }
}
