//! Looks for processes that an earlier keeper has recorded. Signals no process.

use crate::{
    client::Recorded,
    exit_record, held, init_note, orphan_note,
    wire::{PIDS_MAX, notes::WireLeader},
};
use kennel_lifecycle::{
    HostIdentity, ProcessIdentity, RunId, Stuck,
    recovery::{CgroupSeen, Host, Observation, ProcessPresence},
};
use kennel_linux::{
    cgroup, clock,
    identity::{self, ProcessLookup},
    marker,
    pidfd::PidFd,
    procfs,
};
use std::{collections::HashMap, path::Path};

/// Time for which one scan of /proc serves the observations that follow.
const SCAN_FRESH_MS: u64 = 250;

/// All processes with a marker, scanned at most every [`SCAN_FRESH_MS`].
#[derive(Default)]
pub(super) struct Markers {
    at: Option<u64>,
    by_run: HashMap<RunId, Vec<i32>>,
}

impl Markers {
    pub(super) fn of(&mut self, run: RunId, now: u64) -> &[i32] {
        if self.at.is_none_or(|at| now >= at + SCAN_FRESH_MS) {
            self.by_run = marker::scan();
            self.at = Some(now);
        }
        self.by_run.get(&run).map_or(&[], Vec::as_slice)
    }
}

/// Observes a recorded run.
pub(super) fn observe(
    recorded: &Recorded,
    host: &HostIdentity,
    markers: &mut Markers,
    now: u64,
) -> Observation {
    let leader = WireLeader::from(&recorded.identity.command);
    // The server reports an unreadable exit record.
    let exit_record = exit_record::read(&recorded.run_dir, recorded.run, leader)
        .ok()
        .flatten();
    let there = &recorded.identity;
    if !there.host.is_same_as(host) {
        return Observation {
            host: Host::Other,
            exit_record,
            shim: ProcessPresence::Gone,
            command: ProcessPresence::Gone,
            cgroup: CgroupSeen::None,
            held: Vec::new(),
            hints: Vec::new(),
            namespace: None,
            end_begun: false,
            steps: Vec::new(),
            stuck: Stuck::default(),
            at: clock::wall(),
        };
    }
    let shim = identity::find(&there.shim).seen();
    let command = identity::find(&there.command);
    let cgroup = see_cgroup(recorded);
    if cgroup == CgroupSeen::Empty && shim == ProcessPresence::Gone {
        remove_group(recorded);
    }
    let begun = orphan_note::read(&recorded.run_dir, leader);
    Observation {
        host: Host::Same,
        exit_record,
        shim,
        command: command.seen(),
        cgroup,
        held: held(recorded).into_iter().map(|(pid, _)| pid).collect(),
        hints: hints(recorded, &command, markers.of(recorded.run, now)),
        namespace: init_note::see(&recorded.run_dir, leader)
            .unwrap_or(Some(ProcessPresence::Unknown)),
        // An unreadable note shows that an end has begun.
        end_begun: begun != Ok(None),
        steps: begun.ok().flatten().unwrap_or_default(),
        stuck: Stuck::default(),
        at: clock::wall(),
    }
}

/// Looks up a process that was recorded on a host.
pub(super) fn see(
    process: &ProcessIdentity,
    recorded_on: &HostIdentity,
    host: &HostIdentity,
) -> ProcessPresence {
    if recorded_on.is_same_as(host) {
        identity::find(process).seen()
    } else {
        ProcessPresence::Gone
    }
}

/// Returns the live processes that a recorded pause has stopped. A process older than the leader was not stopped by it.
pub(super) fn held(recorded: &Recorded) -> Vec<(i32, PidFd)> {
    let first = recorded.identity.command.start_ticks;
    let held = held::read(&recorded.run_dir).map(|held| held.processes);
    let held = held.into_iter().flatten();
    let living = held.filter(|one| one.start_ticks >= first);
    let found = living.filter_map(|one| match one.find() {
        ProcessLookup::Same(fd) => Some((one.pid, fd)),
        ProcessLookup::Gone | ProcessLookup::Unknown => None,
    });
    found.take(PIDS_MAX).collect()
}

fn see_cgroup(recorded: &Recorded) -> CgroupSeen {
    match recorded.identity.cgroup.as_ref().map(cgroup::is_populated) {
        None => CgroupSeen::None,
        Some(Err(_)) => CgroupSeen::Unknown,
        Some(Ok(false)) => CgroupSeen::Empty,
        Some(Ok(true)) => CgroupSeen::Populated,
    }
}

/// Removes the recorded directory, and that of its keeper once it is empty.
pub(super) fn remove_group(recorded: &Recorded) {
    if let Some(group) = &recorded.identity.cgroup
        && cgroup::remove(group)
    {
        let base = Path::new(&group.path).parent();
        let _ = base.map(std::fs::remove_dir);
    }
}

/// Finds the descendants of the living leader, and the processes that carry the marker and fit: not older than the
/// leader, and either of its session or orphaned. An unrelated shell with a copied variable does not fit.
fn hints(recorded: &Recorded, command: &ProcessLookup, marked: &[i32]) -> Vec<i32> {
    let leader = &recorded.identity.command;
    let mut found = Vec::new();
    if let ProcessLookup::Same(_) = command {
        found.push(leader.pid);
        found.extend(procfs::descendants(leader.pid));
    }
    let heirs = [
        1,
        std::process::id().cast_signed(),
        recorded.identity.shim.pid,
    ];
    let fits = |pid: &i32| {
        procfs::stat(*pid).is_ok_and(|stat| {
            let top = topmost_marked(*pid, marked);
            stat.start_ticks >= leader.start_ticks
                && (stat.sid == leader.sid || heirs.contains(&top))
        })
    };
    found.extend(marked.iter().filter(|pid| fits(pid)));
    let mut living: Vec<i32> = procfs::living(found).into_keys().collect();
    living.sort_unstable();
    living.truncate(PIDS_MAX);
    living
}

/// The first ancestor without the marker: where the marked ones above have died, the process that has adopted it.
fn topmost_marked(pid: i32, marked: &[i32]) -> i32 {
    let mut at = pid;
    for _ in 0..procfs::ANCESTORS_MAX {
        if !marked.contains(&at) {
            break;
        }
        match procfs::stat(at) {
            Ok(stat) => at = stat.ppid,
            Err(_) => return 0,
        }
    }
    at
}

/// Whether `pid` is verified as a member of the recorded run by marker and session.
pub(super) fn is_marked_member(recorded: &Recorded, pid: i32) -> bool {
    procfs::stat(pid).is_ok_and(|stat| {
        stat.sid == recorded.identity.command.sid
            && stat.start_ticks >= recorded.identity.command.start_ticks
    }) && marker::of(pid) == Some(recorded.run)
}
