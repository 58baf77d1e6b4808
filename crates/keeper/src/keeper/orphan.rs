//! Ends the verified processes of a run that an earlier keeper has recorded. Each signal goes through a descriptor
//! whose process was verified as the run's after it was opened; hints are never signalled.
//!
//! Processes that SIGKILL does not end are reported as stuck, and remembered: the next request for the same run
//! continues from there.

use super::observe;
use crate::{client::Recorded, held, orphan_note};
use kennel_lifecycle::{
    HostIdentity, Signal, SignalScope, SignalSender, StopStep, Stuck, StuckProcess, Timestamp,
    ladder::{Action, Ladder, StopPlan},
    limits::STEPS_LISTED_MAX,
    recovery::ProcessPresence,
};
use kennel_linux::{
    cgroup, clock,
    identity::{self, ProcessLookup},
    peer,
    pidfd::PidFd,
    procfs, stuck,
    targets::SignalOutcome,
    tasks,
    tree::SignalRound,
};
use std::collections::{HashMap, HashSet};

/// Wait after the plan's SIGKILL before processes that are left count as stuck.
const LOOK_ON_MS: u64 = 2_000;
/// Pause between two checks.
const LOOK_AGAIN_MS: u64 = 20;
/// Checks in which a shim is seen asleep, one after another and after the end of its tree, before it counts as hung: a
/// second. One that waits for a processor or for a disk is about to write its exit record, on which the proof rests.
const ASLEEP_MAX: u32 = 50;

/// Most passes of SIGSTOP in one round: other runs wait meanwhile, and the next round continues.
const PASSES_MAX: usize = 16;

/// All processes by their session, read once for all runs of one round.
pub(super) struct Sessions(HashMap<i32, Vec<i32>>);

impl Sessions {
    pub(super) fn look_up() -> Self {
        let mut by_session: HashMap<i32, Vec<i32>> = HashMap::new();
        for pid in procfs::all_pids().unwrap_or_default() {
            if let Ok(stat) = procfs::stat(pid) {
                by_session.entry(stat.sid).or_default().push(pid);
            }
        }
        Self(by_session)
    }

    fn of(&self, sid: i32) -> &[i32] {
        self.0.get(&sid).map_or(&[], Vec::as_slice)
    }
}

/// One run being ended.
pub(super) struct Orphan {
    /// The request to answer; absent: stuck processes wait for the next request.
    pub(super) seq: Option<u64>,
    pub(super) recorded: Recorded,
    ladder: Ladder,
    give_up_at: u64,
    killed: bool,
    /// Number of such checks.
    asleep: u32,
    members: HashMap<i32, PidFd>,
    /// Signals and their results; later rounds of SIGKILL only where they differ from the one before.
    pub(super) steps: Vec<StopStep>,
    /// Number of steps on record for the next keeper; absent: not even that the run is being ended.
    noted: Option<usize>,
    /// Processes that were left when the time had passed.
    pub(super) stuck: Stuck,
}

impl Orphan {
    pub(super) fn new(seq: u64, recorded: Recorded, plan: &StopPlan, now: u64) -> Self {
        let leader = (&recorded.identity.command).into();
        let before = orphan_note::read(&recorded.run_dir, leader).ok().flatten();
        let kill_after = u64::try_from(plan.kill_after.as_millis()).unwrap_or(u64::MAX);
        Self {
            seq: Some(seq),
            recorded,
            ladder: Ladder::start(plan, now),
            give_up_at: now.saturating_add(kill_after).saturating_add(LOOK_ON_MS),
            killed: false,
            asleep: 0,
            members: HashMap::new(),
            noted: before.as_ref().map(Vec::len),
            steps: before.unwrap_or_default(),
            stuck: Stuck::default(),
        }
    }

    /// Continues after another request for a stuck run: one more round, and one more check after it.
    pub(super) fn resume(&mut self, seq: u64, now: u64) {
        self.seq = Some(seq);
        self.give_up_at = Self::wake_at(now);
    }

    pub(super) fn wake_at(now: u64) -> u64 {
        now + LOOK_AGAIN_MS
    }

    /// Does one round; `true`: no verified process is left, or the time has passed, and those left are stuck.
    pub(super) fn step(&mut self, host: &HostIdentity, sessions: &Sessions, now: u64) -> bool {
        if !self.recorded.identity.host.is_same_as(host) {
            return true;
        }
        let shim = identity::find(&self.recorded.identity.shim);
        self.look(&shim, sessions);
        let group = self.recorded.identity.cgroup.clone();
        // A group that cannot be read now may be readable in the next round.
        let populated = group
            .as_ref()
            .is_some_and(|g| cgroup::is_populated(g).unwrap_or(true));
        let left = !self.members.is_empty() || populated || shim.seen() == ProcessPresence::Same;
        self.stuck = Stuck::default();
        if !left {
            self.write_down();
            observe::remove_group(&self.recorded);
            let group = self.recorded.identity.cgroup.as_ref();
            held::resume_all(&self.recorded.run_dir, group);
            return true;
        }
        self.write_down();
        self.wake_shim(&shim);
        while let Some(action) = self.ladder.due(now) {
            // The command's input was closed with its keeper.
            let Action::Signal(signal) = action else {
                continue;
            };
            if signal == Signal::KILL {
                self.killed = true;
            } else {
                self.send(signal);
                self.wake();
            }
        }
        if self.killed {
            self.kill(&shim, sessions);
            let shim = procfs::stat(self.recorded.identity.shim.pid);
            let is_asleep = shim.is_ok_and(|shim| !matches!(shim.state, b'R' | b'D'));
            let waits = self.members.is_empty() && is_asleep;
            self.asleep = if waits { self.asleep + 1 } else { 0 };
        }
        // A shim without processes below it exits by itself; a hung shim is killed.
        let hanging = match &shim {
            ProcessLookup::Same(fd) if self.asleep >= ASLEEP_MAX => Some(fd),
            _ => None,
        };
        if let Some(shim) = hanging {
            shim.signal(Signal::KILL);
        }
        self.write_down();
        let over = now >= self.give_up_at;
        if over {
            self.stuck = self.kill_stuck(hanging);
        }
        over
    }

    /// Records that the run is being ended, before any process is signalled, and the steps done.
    fn write_down(&mut self) {
        let leader = (&self.recorded.identity.command).into();
        let (dir, steps) = (&self.recorded.run_dir, &self.steps);
        // A missing or full directory prevents the record, but the run is still ended.
        if self.noted != Some(steps.len()) && orphan_note::write(dir, leader, steps).is_ok() {
            self.noted = Some(steps.len());
        }
    }

    /// Finds members, and forgets those that have exited. A process that was once found stays known by its descriptor
    /// when its parent is gone.
    fn look(&mut self, shim: &ProcessLookup, sessions: &Sessions) {
        self.members.retain(|pid, fd| is_there(*pid, fd));
        let leader = self.recorded.identity.command;
        if let Some(fd) = identity::find_unreaped(&leader)
            && is_there(leader.pid, &fd)
        {
            self.members.insert(leader.pid, fd);
        }
        for (pid, fd) in observe::held(&self.recorded) {
            self.members.insert(pid, fd);
        }
        let mut roots: Vec<i32> = self.members.keys().copied().collect();
        let shim_pid = self.recorded.identity.shim.pid;
        if let ProcessLookup::Same(_) = shim {
            roots.push(shim_pid);
        }
        let mut candidates: Vec<i32> = Vec::new();
        for root in &roots {
            candidates.extend(procfs::descendants(*root));
        }
        if let Some(group) = &self.recorded.identity.cgroup {
            candidates.extend(cgroup::members(group));
        }
        let of_session = self.of_session(leader.sid, sessions);
        candidates.extend(&of_session);
        for pid in candidates {
            // A command of the run may have started this keeper, or moved it into the group.
            if pid != shim_pid
                && pid != std::process::id().cast_signed()
                && !self.members.contains_key(&pid)
                && let Ok(fd) = PidFd::open(pid)
                && self.is_member(pid, &roots, shim, &of_session)
                && is_there(pid, &fd)
            {
                self.members.insert(pid, fd);
            }
        }
    }

    /// Finds the members by session. While a member of the session is known, the session's id is reserved, and all
    /// processes with it are of the run. Without one the marker must agree; and this keeper's own session is no run's
    /// whatever a record says.
    fn of_session(&self, sid: i32, sessions: &Sessions) -> HashSet<i32> {
        let of_session = |pid: &i32| procfs::stat(*pid).is_ok_and(|s| s.sid == sid);
        let own = std::process::id().cast_signed();
        let held = !of_session(&own) && self.members.keys().any(of_session);
        let pids = sessions.of(sid).iter().copied();
        pids.filter(of_session)
            .filter(|pid| held || observe::is_marked_member(&self.recorded, *pid))
            .collect()
    }

    /// Verifies a member. Called after the descriptor was opened.
    fn is_member(
        &self,
        pid: i32,
        roots: &[i32],
        shim: &ProcessLookup,
        of_session: &HashSet<i32>,
    ) -> bool {
        let in_group = self.recorded.identity.cgroup.as_ref().is_some_and(|group| {
            matches!(cgroup::open(group), Ok(Some(_)))
                && cgroup::path_of(pid).is_some_and(|path| path.starts_with(&group.path))
        });
        let sid = self.recorded.identity.command.sid;
        let in_session = of_session.contains(&pid) && procfs::stat(pid).is_ok_and(|s| s.sid == sid);
        in_group || in_session || self.is_below(pid, roots, shim)
    }

    /// Whether the process is below one of the roots, which still has its pid after the check: so the check saw that
    /// root, and not an unrelated process that got the pid during it. A process that was found once stays a member by
    /// its descriptor when its root dies.
    fn is_below(&self, pid: i32, roots: &[i32], shim: &ProcessLookup) -> bool {
        let Some(root) = peer::nearest_of(pid, roots) else {
            return false;
        };
        let fd = match (self.members.get(&root), shim) {
            (Some(fd), _) => Some(fd),
            (None, ProcessLookup::Same(fd)) if root == self.recorded.identity.shim.pid => Some(fd),
            (None, _) => None,
        };
        fd.is_some_and(PidFd::is_unreaped)
    }

    fn send(&mut self, signal: Signal) {
        let at = clock::wall();
        let mut round = SignalRound::new(SignalScope::Tree);
        for fd in self.members.values() {
            round.count(fd.signal(signal));
        }
        self.note(at, signal, &round);
    }

    fn note(&mut self, at: Timestamp, signal: Signal, round: &SignalRound) {
        let step = round.step(at, signal, SignalSender::Keeper);
        let before = self.steps.iter().rev();
        let mut before = before.filter(|s| (s.signal, s.scope) == (signal, step.scope));
        let again = before.next().is_some_and(|before| {
            let at = step.at;
            StopStep { at, ..*before } == step
        });
        if !round.is_empty() && !again && self.steps.len() < STEPS_LISTED_MAX {
            self.steps.push(step);
        }
    }

    /// Continues a frozen or stopped tree: only then a catchable signal can end it.
    fn wake(&mut self) {
        if let Some(group) = &self.recorded.identity.cgroup {
            let _ = cgroup::freeze(group, false);
        }
        let at = clock::wall();
        let mut round = SignalRound::new(SignalScope::Tree);
        for (pid, fd) in &self.members {
            if tasks::are_held(*pid) {
                round.count(fd.signal(Signal::CONT));
            }
        }
        self.note(at, Signal::CONT, &round);
    }

    /// Continues a shim that a command has stopped: it cannot reap, and reports nothing.
    fn wake_shim(&self, shim: &ProcessLookup) {
        if let ProcessLookup::Same(fd) = shim
            && procfs::stat(self.recorded.identity.shim.pid).is_ok_and(|s| s.is_stopped())
        {
            fd.signal(Signal::CONT);
        }
    }

    /// Sends SIGKILL once more to each process that is left; returns those that it does not end, and the shim where it
    /// hangs.
    fn kill_stuck(&self, hanging_shim: Option<&PidFd>) -> Stuck {
        let shim_pid = self.recorded.identity.shim.pid;
        let members = self.members.iter().map(|(pid, fd)| (*pid, fd));
        let mut left: Vec<(i32, &PidFd)> = members
            .chain(hanging_shim.map(|fd| (shim_pid, fd)))
            .collect();
        left.sort_unstable_by_key(|(pid, _)| *pid);
        stuck::list(left.into_iter().filter_map(|(pid, fd)| kill_one(pid, fd)))
    }

    /// Sends SIGSTOP first, until a check finds no new process: a stopped process cannot hide a child from the next
    /// check.
    fn kill(&mut self, shim: &ProcessLookup, sessions: &Sessions) {
        if let Some(group) = self.recorded.identity.cgroup.clone() {
            let inside = cgroup::members(&group).len();
            let at = clock::wall();
            if cgroup::kill(&group).is_ok() {
                let mut round = SignalRound::new(SignalScope::ControlGroup);
                round.count_all(SignalOutcome::Delivered, inside);
                self.note(at, Signal::KILL, &round);
            }
        }
        for _ in 0..PASSES_MAX {
            let known = self.members.len();
            self.send(Signal::STOP);
            self.look(shim, sessions);
            if self.members.len() <= known {
                break;
            }
        }
        self.send(Signal::KILL);
    }
}

/// Whether the process is alive, or has exited and cannot be reaped. The descriptor refers to the process that has the
/// pid at that moment.
fn is_there(pid: i32, fd: &PidFd) -> bool {
    (!fd.has_ended() || stuck::held_when_dead(pid).is_some()) && fd.is_unreaped()
}

fn kill_one(pid: i32, fd: &PidFd) -> Option<StuckProcess> {
    let before = procfs::stat(pid).ok()?;
    // The descriptor is valid after the check, so the check saw its process.
    if !fd.is_unreaped() {
        return None;
    }
    stuck::judge(pid, &before, fd.signal(Signal::KILL))
}

#[cfg(test)]
mod tests;
