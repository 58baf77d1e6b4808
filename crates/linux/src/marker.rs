//! The marker in the environment: a hint at the run of a process, never a proof.

use crate::procfs;
use kennel_lifecycle::RunId;
use std::{collections::HashMap, fs, os::unix::fs::MetadataExt};

/// The variable whose value is the run's id.
pub const RUN_ID_VAR: &str = "KENNEL_RUN_ID";

/// Most processes that are listed; one is enough to doubt.
const ELSEWHERE_MAX: usize = 16;

/// Returns the run that a process's marker names.
pub fn of(pid: i32) -> Option<RunId> {
    in_environ(&fs::read(format!("/proc/{pid}/environ")).ok()?)
}

/// Returns the run that an environment names.
pub fn in_environ(environ: &[u8]) -> Option<RunId> {
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = std::str::from_utf8(entry).ok()?.strip_prefix(RUN_ID_VAR)?;
        value.strip_prefix('=')?.parse().ok()
    })
}

/// Returns all living processes that carry a marker, by run.
pub fn scan() -> HashMap<RunId, Vec<i32>> {
    let mut found: HashMap<RunId, Vec<i32>> = HashMap::new();
    for pid in procfs::all_pids().unwrap_or_default() {
        if let Some(run) = of(pid) {
            found.entry(run).or_default().push(pid);
        }
    }
    found
}

/// Returns living processes that carry this run's marker in a pid namespace below this one. A process that enters such
/// a namespace and is orphaned there is adopted by that namespace's first process: no subreaper of Kennel's gets its
/// exit.
pub fn elsewhere(run: RunId) -> Vec<i32> {
    let own = procfs::namespace_depth(std::process::id().cast_signed());
    let namespace = |pid: &dyn std::fmt::Display| {
        fs::metadata(format!("/proc/{pid}/ns/pid")).map(|meta| meta.ino())
    };
    let here = namespace(&"self").ok();
    // Every run calls `elsewhere` at its end, so the cheap check comes first: reading an environment accesses the
    // memory of its process, and waits while that process changes its mappings.
    let may_be_below = |pid: &i32| namespace(pid).ok().is_none_or(|there| Some(there) != here);
    let pids = procfs::all_pids().unwrap_or_default();
    pids.into_iter()
        .filter(may_be_below)
        .filter(|pid| of(*pid) == Some(run) && procfs::namespace_depth(*pid) > own)
        .take(ELSEWHERE_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    // promise: T-42
    #[test]
    fn marked_process_in_other_pid_namespace_is_found() {
        // Unique to this test process: another run of the test may be in progress.
        let run = RunId::from_u128(0x00c0_ffee << 32 | u128::from(std::process::id()));
        let marked = |program: &str| {
            let mut command = Command::new(program);
            command
                .env(RUN_ID_VAR, run.to_string())
                .stdout(Stdio::null());
            command
        };
        let mut here = marked("sleep").arg("60").spawn().expect("sleep starts");
        let mut there = marked("unshare")
            .args(["--user", "--pid", "--fork", "--kill-child", "sleep", "60"])
            .spawn()
            .expect("unshare starts");
        let mut found = Vec::new();
        for _ in 0..10_000 {
            found = elsewhere(run);
            if !found.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let parents: Vec<i32> = found
            .iter()
            .filter_map(|pid| Some(procfs::stat(*pid).ok()?.ppid))
            .collect();
        // A grandchild that has not set PDEATHSIG yet survives its parent.
        for pid in found {
            let pid = nix::unistd::Pid::from_raw(pid);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("own grandchild");
        }
        for child in [&mut here, &mut there] {
            child.kill().expect("own child");
            child.wait().expect("own child");
        }
        assert_eq!(parents, [there.id().cast_signed()], "the other is here");
    }
}
