//! A run that outlives its keeper: it continues as it is, and its shim waits at its reconnect socket for the next
//! keeper.
//!
//! A stop in progress is carried out meanwhile, and so is the end of processes that a leader leaves. An ended run waits
//! as well, with its unread output, until its end is on record.

use super::{
    callers,
    keep::Rest,
    work::{ChildStage, Work},
};
use crate::wire::{
    FromShim,
    adoption::{WireAdoptable, WireKeepsake, WireMemory},
    versions::Versions,
};
use kennel_lifecycle::{Countdown, LeaderExit, ProcessIdentity, StopStep, Timestamp};
use kennel_linux::{cgroup, clock};
use nix::sys::socket::{Backlog, SockFlag, accept4, listen};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Most keepers that wait at a socket. There is one keeper.
const CALLERS_MAX: i32 = 4;
/// Longest wait for a keeper of a shim whose run has ended; after that its exit record has to suffice.
const LINGER_MS: u64 = 60 * 60 * 1_000;
/// Time between two checks of a control group with a process in it that is not below the shim.
const GROUP_LOOK_MS: u64 = 1_000;

/// State held for the next keeper.
pub(super) struct OrphanShim {
    listener: OwnedFd,
    keepsake: WireKeepsake,
    /// Ends of stdout and stderr: what is in them is not lost, and a writer is not killed by SIGPIPE.
    outputs: Vec<OwnedFd>,
    /// Write end of stdin, until it is closed: the command must not see an end of file that no client requested.
    input: Option<OwnedFd>,
    /// Socket for the reports of its processes: no report is lost.
    notify: Option<OwnedFd>,
    /// Command and shim as they were announced.
    announced: Option<(ProcessIdentity, ProcessIdentity)>,
    memory: Option<WireMemory>,
    /// Time at which the command was seen to run.
    ran_at: Option<u64>,
    leader: Option<Left>,
    /// Processes named in the final report of the tree.
    elsewhere: Vec<i32>,
    /// Since when it is known that the tree is to end.
    stopping_since: Option<u64>,
    /// Since when no process is left, without a keeper.
    over_since: Option<u64>,
    /// Time at which the shim checks the run again without any event.
    wake_at: Option<u64>,
}

/// Exit of the leader.
struct Left {
    at: u64,
    at_us: i64,
    rest: bool,
}

impl OrphanShim {
    /// Returns its descriptors for the next keeper, in the order of the message.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let streams = self.outputs.iter().chain(&self.input).chain(&self.notify);
        streams.map(AsFd::as_fd)
    }

    /// Opens the socket, at which no caller is answered while a keeper is connected.
    pub(super) fn new(
        listener: OwnedFd,
        keepsake: WireKeepsake,
        outputs: Vec<OwnedFd>,
        input: Option<OwnedFd>,
        notify: Option<OwnedFd>,
    ) -> io::Result<Self> {
        listen(&listener, Backlog::new(CALLERS_MAX)?)?;
        Ok(Self {
            listener,
            keepsake,
            outputs,
            input,
            notify,
            announced: None,
            memory: None,
            ran_at: None,
            leader: None,
            elsewhere: Vec::new(),
            stopping_since: None,
            over_since: None,
            wake_at: None,
        })
    }

    /// Closes the input: nothing more comes on standard input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Accepts the next process in the queue.
    fn accept(&self) -> Option<OwnedFd> {
        let caller = accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC).ok()?;
        // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
        Some(unsafe { OwnedFd::from_raw_fd(caller) })
    }
}

impl Work {
    /// Records the identities under which the child was announced.
    pub(super) fn remember_announced(&mut self, command: &ProcessIdentity, shim: &ProcessIdentity) {
        if let Some(waiting) = &mut self.waiting {
            waiting.announced = Some((*command, *shim));
        }
    }

    /// Records that the command runs.
    pub(super) fn remember_start(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.ran_at = Some(clock::boot_ms());
        }
    }

    /// Records the exit of the leader.
    pub(super) fn remember_exit(&mut self, at_us: i64, rest: bool) {
        if let Some(waiting) = &mut self.waiting {
            let at = clock::boot_ms();
            waiting.leader = Some(Left { at, at_us, rest });
        }
    }

    /// Records that no process is left below the shim.
    pub(super) fn remember_empty(&mut self, elsewhere: &[i32]) {
        if let Some(waiting) = &mut self.waiting {
            waiting.elsewhere = elsewhere.to_vec();
        }
    }

    /// Records the counts of the keeper.
    pub(super) fn remember(&mut self, memory: WireMemory) {
        if let Some(waiting) = &mut self.waiting {
            waiting.memory = Some(memory);
        }
    }

    /// Closes the input: nothing more comes on standard input.
    pub(super) fn close_input(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.close_input();
        }
    }

    /// Removes the state: no keeper will come for the run.
    pub(super) fn leave(&mut self) {
        self.waiting = None;
    }

    /// Whether an ended run is retained until its end is on record, with a keeper connected. Until then both the keeper
    /// and the server that reads its output may die.
    pub(super) fn stays(&self) -> bool {
        self.waiting.is_some() && self.stage == ChildStage::Ran
    }

    /// Whether the run continues as it is without a keeper, and is not ended here.
    pub(super) fn waits(&mut self, now: u64) -> bool {
        if self.stage == ChildStage::NeverRan || self.rest == Rest::Kept {
            self.waiting = None;
        }
        let stopped = self.is_stopped();
        let Some(waiting) = &mut self.waiting else {
            return false;
        };
        waiting.wake_at = None;
        if stopped {
            waiting.stopping_since.get_or_insert(now);
        }
        match self.stage {
            ChildStage::SettingUp | ChildStage::AtGate | ChildStage::Going => true,
            ChildStage::NeverRan => false,
            ChildStage::Ran => !stopped && self.rest_waits(now),
        }
    }

    /// Whether the processes that the leader has left are neither to be ended nor to be detached.
    fn rest_waits(&mut self, now: u64) -> bool {
        let Some(waiting) = &mut self.waiting else {
            return false;
        };
        let left = waiting.leader.as_ref().filter(|left| left.rest);
        let Some(left) = left.filter(|_| !self.childless) else {
            return true;
        };
        match self.policy.on_leader_exit {
            LeaderExit::Stop => false,
            LeaderExit::Drain { timeout: None } => true,
            LeaderExit::Drain {
                timeout: Some(timeout),
            } => {
                let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                let until = left.at.saturating_add(millis);
                waiting.wake_at = Some(until);
                now < until
            }
            LeaderExit::Keep => self.tree.leftovers().is_empty(),
        }
    }

    /// Whether an ended run waits for a keeper all the same, without one.
    pub(super) fn lingers(&mut self, now: u64) -> bool {
        let stopped = self.is_stopped();
        let Some(waiting) = &mut self.waiting else {
            return false;
        };
        let group = self.tree.cgroup.as_ref().map(cgroup::evidence);
        if group == Some(None) {
            if stopped {
                return false;
            }
            // The next keeper ends processes that are not below the shim.
            waiting.wake_at = Some(now + GROUP_LOOK_MS);
            return true;
        }
        let since = *waiting.over_since.get_or_insert(now);
        waiting.wake_at = Some(since.saturating_add(LINGER_MS));
        if now.saturating_sub(since) < LINGER_MS {
            return true;
        }
        self.waiting = None;
        false
    }

    /// Returns when to take the next step without any event, for a run without a keeper.
    pub(super) fn waiting_wakes_at(&self) -> Option<u64> {
        self.waiting.as_ref()?.wake_at
    }

    /// Returns the reconnect socket, when no keeper is connected.
    pub(super) fn listener(&self) -> Option<BorrowedFd<'_>> {
        let waiting = self.waiting.as_ref()?;
        let is_known = self.stage == ChildStage::Ran && waiting.announced.is_some();
        is_known.then(|| waiting.listener.as_fd())
    }

    /// Closes all connections that wait at the socket.
    pub(super) fn turn_away(&self) {
        if let Some(waiting) = &self.waiting {
            while waiting.accept().is_some() {}
        }
    }

    /// Accepts the next keeper, if it is the caller.
    pub(super) fn meet(&mut self) -> Option<OwnedFd> {
        let waiting = self.waiting.as_mut()?;
        let keeper = waiting.accept()?;
        if !callers::is_next_keeper(&keeper, &self.run_dir) {
            return None;
        }
        waiting.wake_at = None;
        // From here on the keeper performs the ladder.
        self.ladder = None;
        Some(keeper)
    }

    /// Returns the messages for the next keeper, in order: the description of the run, and its reports; `None`: no
    /// keeper has heard of it.
    pub(super) fn introduction(&self) -> Option<Vec<FromShim>> {
        let waiting = self.waiting.as_ref()?;
        let (command, shim) = waiting.announced?;
        let counted = WireMemory {
            max_runtime: self.policy.timeouts.max_runtime.map(|time| {
                let mut left = Countdown::new(time);
                if let Some(ran_at) = waiting.ran_at {
                    left.run(ran_at);
                }
                left
            }),
            ..WireMemory::default()
        };
        let adoptable = WireAdoptable {
            versions: Versions::of_shim(),
            command,
            shim,
            init: self.tree.init.as_ref().map(|init| init.pid),
            cgroup: self.tree.cgroup.clone(),
            policy: self.policy.clone(),
            keepsake: waiting.keepsake.clone(),
            memory: waiting.memory.unwrap_or(counted),
            leader_left_at: waiting.leader.as_ref().map(|left| left.at),
            stopping_since: waiting.stopping_since,
            input: waiting.input.is_some(),
            notify: waiting.notify.is_some(),
        };
        let mut words = vec![
            FromShim::Adoptable(Box::new(adoptable)),
            FromShim::Executed {},
        ];
        let left_at = waiting.leader.as_ref().map(|left| Timestamp(left.at_us));
        let steps = self.record.steps.iter();
        let (before, after): (Vec<&StopStep>, Vec<&StopStep>) =
            steps.partition(|step| left_at.is_none_or(|at| step.at < at));
        let killed = |step: &&StopStep| FromShim::Killed(**step);
        words.extend(before.iter().map(killed));
        if let (Some(left), Some(exit)) = (&waiting.leader, self.record.exit) {
            let (at_us, exit, rest) = (left.at_us, exit, left.rest);
            words.push(FromShim::Exited { at_us, exit, rest });
        }
        words.extend(after.iter().map(killed));
        if self.childless && self.record.tree.is_some() {
            let elsewhere = waiting.elsewhere.clone();
            words.push(FromShim::Empty { elsewhere });
        }
        Some(words)
    }
}
