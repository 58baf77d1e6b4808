//! Ends findings of a leak check that belong to ended runs. Each signal goes through a descriptor, and before each the
//! process is verified to be the finding's.

use crate::client::{Fate, Holding, Victim};
use kennel_lifecycle::{
    CgroupIdentity, ProcessIdentity, Signal,
    ladder::{Action, Ladder, StopPlan},
};
use kennel_linux::{cgroup, marker, peer, pidfd::PidFd, procfs, targets::SignalOutcome};
use std::path::PathBuf;

/// Wait after SIGKILL.
const LOOK_ON_MS: u64 = 2_000;
/// Pause between two checks.
const LOOK_AGAIN_MS: u64 = 20;

/// Processes that no reap may signal.
pub(super) struct Untouchable {
    /// Keeper, server, shims.
    pub(super) pids: Vec<i32>,
    /// Shims of live runs: they and all their descendants.
    pub(super) live_shims: Vec<i32>,
    /// Control groups of live runs.
    pub(super) live_groups: Vec<PathBuf>,
}

impl Untouchable {
    /// A process whose shim has died is of no live run by ancestry: only its group is left to show it.
    fn includes(&self, pid: i32) -> bool {
        self.pids.contains(&pid)
            || peer::descends_from(pid, &self.live_shims)
            || cgroup::path_of(pid)
                .is_some_and(|path| self.live_groups.iter().any(|group| path.starts_with(group)))
    }
}

/// One request.
pub(super) struct Reaping {
    /// The request to answer.
    pub(super) seq: u64,
    victims: Vec<Hunted>,
    directories: Vec<CgroupIdentity>,
    ladder: Ladder,
    killed_at: Option<u64>,
}

struct Hunted {
    victim: Victim,
    /// Opened at the first signal.
    fd: Option<PidFd>,
    last: Option<Signal>,
    fate: Option<Fate>,
}

impl Reaping {
    pub(super) fn new(
        seq: u64,
        victims: Vec<Victim>,
        directories: Vec<CgroupIdentity>,
        plan: &StopPlan,
        now: u64,
    ) -> Self {
        let hunted = |victim| Hunted {
            victim,
            fd: None,
            last: None,
            fate: None,
        };
        Self {
            seq,
            victims: victims.into_iter().map(hunted).collect(),
            directories,
            ladder: Ladder::start(plan, now),
            killed_at: None,
        }
    }

    pub(super) fn wake_at(now: u64) -> u64 {
        now + LOOK_AGAIN_MS
    }

    /// Does one round; `true`: the result of each process is known.
    pub(super) fn step(&mut self, untouchable: &Untouchable, now: u64) -> bool {
        while let Some(action) = self.ladder.due(now) {
            let Action::Signal(signal) = action else {
                continue;
            };
            if signal == Signal::KILL {
                self.killed_at = Some(now);
            }
            for hunted in &mut self.victims {
                hunted.send_to_each(signal, untouchable);
            }
        }
        for hunted in &mut self.victims {
            hunted.look();
        }
        let time_is_over = self.killed_at.is_some_and(|at| now >= at + LOOK_ON_MS);
        time_is_over || self.victims.iter().all(|hunted| hunted.fate.is_some())
    }

    /// Returns the result of each process, and how many of the directories were removed.
    pub(super) fn end(self) -> (Vec<Fate>, u32) {
        let fates = self
            .victims
            .iter()
            .map(|h| h.fate.unwrap_or(Fate::Survived));
        let removed = self
            .directories
            .iter()
            .filter(|group| cgroup::remove(group));
        (
            fates.collect(),
            u32::try_from(removed.count()).unwrap_or(u32::MAX),
        )
    }
}

impl Hunted {
    fn send_to_each(&mut self, signal: Signal, untouchable: &Untouchable) {
        if self.fate.is_some() {
            return;
        }
        let fd = match self.fd.take() {
            Some(fd) => fd,
            None => match PidFd::open(self.victim.process.pid) {
                Ok(fd) => fd,
                Err(error) => return self.fate = Some(not_opened(&error)),
            },
        };
        // The descriptor was opened before these checks and is valid after them, so they saw its process.
        let still = self.victim.is_as_it_was(&fd) && !untouchable.includes(self.victim.process.pid);
        if !fd.is_unreaped() || fd.has_ended() {
            self.fate = Some(self.last.map_or(Fate::Gone, Fate::Ended));
            return;
        }
        if !still {
            self.fate = Some(Fate::Changed);
            return;
        }
        match fd.signal(signal) {
            SignalOutcome::Delivered => {
                self.last = Some(signal);
                // A stopped or frozen process can only receive a catchable signal when it runs.
                if signal != Signal::KILL {
                    self.victim.wake(&fd);
                }
                self.fd = Some(fd);
            }
            SignalOutcome::Gone => self.fate = Some(self.last.map_or(Fate::Gone, Fate::Ended)),
            SignalOutcome::Failed(errno) => self.fate = Some(Fate::Failed(errno)),
        }
    }

    fn look(&mut self) {
        if let (Some(fd), Some(last), None) = (&self.fd, self.last, self.fate)
            && fd.has_ended()
        {
            self.fate = Some(Fate::Ended(last));
        }
    }
}

impl Victim {
    fn is_as_it_was(&self, fd: &PidFd) -> bool {
        let ProcessIdentity {
            pid,
            start_ticks,
            pidfs_handle,
            ..
        } = self.process;
        let same = procfs::stat(pid).is_ok_and(|stat| stat.start_ticks == start_ticks)
            && pidfs_handle.is_none_or(|handle| fd.handle() == Some(handle));
        same && match &self.holding {
            Holding::Descent => true,
            Holding::Cgroup(group) => {
                matches!(cgroup::open(group), Ok(Some(_)))
                    && cgroup::path_of(pid).is_some_and(|path| path.starts_with(&group.path))
            }
            Holding::Marker(run) => marker::of(pid) == Some(*run),
        }
    }

    fn wake(&self, fd: &PidFd) {
        if let Holding::Cgroup(group) = &self.holding
            && cgroup::read_freeze(group)
        {
            let _ = cgroup::freeze(group, false);
        }
        if procfs::stat(self.process.pid).is_ok_and(|stat| stat.is_stopped()) {
            fd.signal(Signal::CONT);
        }
    }
}

fn not_opened(error: &std::io::Error) -> Fate {
    match error.raw_os_error() {
        // EINVAL before Linux 6.14: the pid is only a thread's.
        Some(libc::ESRCH | libc::EINVAL) => Fate::Gone,
        Some(errno) => Fate::Failed(errno),
        None => Fate::Failed(libc::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::RunId;
    use kennel_linux::{clock, identity};
    use std::{
        process::{Child, Command},
        time::Duration,
    };

    fn no_untouchables() -> Untouchable {
        Untouchable {
            pids: Vec::new(),
            live_shims: Vec::new(),
            live_groups: Vec::new(),
        }
    }

    fn child(run: RunId) -> (Child, ProcessIdentity) {
        let mut command = Command::new("sleep");
        command.arg("1000").env(marker::RUN_ID_VAR, run.to_string());
        let child = command.spawn().expect("sleep starts");
        let pid = child.id().cast_signed();
        let fd = PidFd::open(pid).expect("a pidfd");
        let identity = identity::of(pid, &fd).expect("it is there");
        while marker::of(pid) != Some(run) {
            std::thread::yield_now();
        }
        (child, identity)
    }

    fn reap(victim: Victim, untouchable: &Untouchable, grace: Duration) -> Fate {
        let plan = StopPlan::abort(grace);
        let now = clock::boot_ms();
        let mut reaping = Reaping::new(1, vec![victim], Vec::new(), &plan, now);
        while !reaping.step(untouchable, clock::boot_ms()) {
            std::thread::yield_now();
        }
        reaping.end().0[0]
    }

    // promise: F-4
    #[test]
    fn only_same_process_with_same_evidence_is_ended() {
        let (run, other) = (RunId::from_u128(7), RunId::from_u128(8));
        let (mut sleeper, process) = child(run);
        let grace = Duration::from_mins(1);
        let victim = |process, run| Victim {
            process,
            holding: Holding::Marker(run),
        };
        // A different start time, inode or evidence means another process.
        let other_start = ProcessIdentity {
            start_ticks: process.start_ticks + 1,
            ..process
        };
        assert_eq!(
            reap(victim(other_start, run), &no_untouchables(), grace),
            Fate::Changed
        );
        if let Some(handle) = process.pidfs_handle {
            let other_inode = ProcessIdentity {
                pidfs_handle: Some(handle + 1_000_000),
                ..process
            };
            assert_eq!(
                reap(victim(other_inode, run), &no_untouchables(), grace),
                Fate::Changed
            );
        }
        assert_eq!(
            reap(victim(process, other), &no_untouchables(), grace),
            Fate::Changed
        );
        // The process descends from a live run's shim.
        let held = Untouchable {
            live_shims: vec![std::process::id().cast_signed()],
            ..no_untouchables()
        };
        assert_eq!(reap(victim(process, run), &held, grace), Fate::Changed);
        assert!(
            sleeper.try_wait().expect("own child").is_none(),
            "it was signalled"
        );

        assert_eq!(
            reap(victim(process, run), &no_untouchables(), grace),
            Fate::Ended(Signal::TERM)
        );
        sleeper.wait().expect("own child");
        assert_eq!(
            reap(victim(process, run), &no_untouchables(), grace),
            Fate::Gone
        );
    }

    // promise: F-4
    #[test]
    fn process_in_another_control_group_is_spared() {
        let (mut sleeper, process) = child(RunId::from_u128(7));
        let reap_in = |path: &std::path::Path, inode| {
            let path = path.display().to_string();
            let holding = Holding::Cgroup(CgroupIdentity { path, inode });
            let victim = Victim { process, holding };
            reap(victim, &no_untouchables(), Duration::from_mins(1))
        };
        assert_eq!(reap_in("/nonexistent/group".as_ref(), 1), Fate::Changed);
        // An existing directory, but not the process's group.
        let other = std::env::temp_dir();
        let inode = std::os::unix::fs::MetadataExt::ino(&other.metadata().expect("it is there"));
        assert_eq!(reap_in(&other, inode), Fate::Changed);
        // The process's own group, with a different inode and with the right one.
        if let Some(own) = cgroup::path_of(process.pid) {
            let inode = cgroup::identify(&own).expect("it is there").inode;
            assert_eq!(reap_in(&own, inode + 1), Fate::Changed);
            assert!(sleeper.try_wait().expect("own child").is_none());
            assert_eq!(reap_in(&own, inode), Fate::Ended(Signal::TERM));
        }
        let _ = sleeper.kill();
        sleeper.wait().expect("own child");
    }

    // promise: F-4
    #[test]
    fn reap_terminates_stopped_process_and_kills_ignoring_one() {
        let run = RunId::from_u128(7);
        let (mut stopped, process) = child(run);
        let fd = PidFd::open(process.pid).expect("a pidfd");
        fd.signal(Signal::STOP);
        while !procfs::stat(process.pid).expect("it is there").is_stopped() {
            std::thread::yield_now();
        }
        let victim = |process| Victim {
            process,
            holding: Holding::Descent,
        };
        let fate = reap(victim(process), &no_untouchables(), Duration::from_mins(1));
        assert_eq!(fate, Fate::Ended(Signal::TERM));
        stopped.wait().expect("own child");

        let (mut sleeper, process) = child(run);
        let fate = reap(victim(process), &no_untouchables(), Duration::ZERO);
        assert_eq!(fate, Fate::Ended(Signal::KILL));
        sleeper.wait().expect("own child");
    }
}
