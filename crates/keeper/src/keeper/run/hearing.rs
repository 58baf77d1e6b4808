//! Messages of a run's shim, and the meaning of its silence.

use super::{CommandStage, Run, RunMessage};
use crate::{
    exit_record,
    keeper::SLICE_PROCESSES,
    values::Fact,
    wire::{Answer, FromShim},
};
use kennel_lifecycle::{
    Exit, HostIdentity, RunIdentity, Signal, StartFailure, StartStage, StopReason, Timestamp,
    ladder::Ladder,
};
use kennel_linux::{
    clock, crash_point,
    pidfd::PidFd,
    procfs, reap,
    tree::{Init, Lineage, ListLiving, Root, Session, Tree},
};
use std::os::fd::OwnedFd;

impl Run {
    /// Handles a message of the shim.
    pub(in crate::keeper) fn handle_shim_message(
        &mut self,
        word: FromShim,
        fds: Vec<OwnedFd>,
        host: &HostIdentity,
        shim_pid: i32,
        now: u64,
    ) {
        if self.ended {
            // Nothing follows the final report of the tree.
            return;
        }
        match word {
            FromShim::Prepared {
                command,
                shim,
                init,
            } => {
                let mut fds = fds.into_iter();
                let leader = fds.next();
                let init = init.map(|pid| fds.next().map(|fd| (pid, fd)));
                let identity = RunIdentity {
                    command,
                    shim,
                    cgroup: self.cgroup.clone(),
                    host: host.clone(),
                };
                // A descriptor is missing if this process had no free one.
                let fds = leader.zip(init.map_or(Some(None), |init| init.map(Some)));
                self.prepared(identity, fds, shim_pid);
            }
            FromShim::PrepareFailed(failure) => self.not_prepared(failure),
            FromShim::NotReleased {} => {
                self.stage = CommandStage::NotReleased;
                self.gate = None;
                self.report(Fact::NotReleased {});
            }
            FromShim::Executed {} => {
                crash_point!("keeper.executed");
                self.stage = CommandStage::Ran;
                self.report(Fact::Executed {});
                self.report_ready_again();
                self.report_extended_again();
            }
            FromShim::ExecFailed(failure) => {
                self.stage = CommandStage::NotExecuted;
                self.report(Fact::ExecFailed(failure));
            }
            word @ (FromShim::Exited { .. } | FromShim::Empty { .. } | FromShim::Killed(_)) => {
                self.deferred.push(word);
                self.hear_deferred(now);
            }
            // `Adoptable` was handled at the reconnect socket; the others are not about the run.
            FromShim::Adoptable(_) | FromShim::Free {} | FromShim::Skipped { .. } => {}
            FromShim::Helped { id, end } => self.helped(id, end),
        }
    }

    /// Handles the ends of leader and tree, and signals of the shim, unless signals are being sent that came before them.
    pub(super) fn hear_deferred(&mut self, now: u64) {
        if self.is_signalling() || !self.continue_census() {
            return;
        }
        for word in std::mem::take(&mut self.deferred) {
            match word {
                FromShim::Exited { at_us, exit, rest } => {
                    self.leader_ended(Timestamp(at_us), exit, rest, now);
                }
                FromShim::Empty { elsewhere } => {
                    self.heard.childless = true;
                    self.heard.elsewhere = elsewhere;
                }
                FromShim::Killed(step) => self.report_at(step.at, Fact::StopStep(step)),
                _ => {}
            }
        }
        self.census = None;
    }

    /// Lists some of the processes that an exited leader has left. Returns whether there are no more to list.
    fn continue_census(&mut self) -> bool {
        let leaves = |word: &FromShim| matches!(word, FromShim::Exited { rest: true, .. });
        let is_due = self.deferred.iter().any(leaves) && !self.heard.leader_exited;
        let Some(tree) = self.tree.as_ref().filter(|_| is_due) else {
            return true;
        };
        let census = self.census.get_or_insert_with(|| ListLiving::new(tree));
        (0..SLICE_PROCESSES).any(|_| census.step(tree))
    }

    /// `fds`: the leader's, and pid and descriptor of the first process of the private pid namespace.
    fn prepared(
        &mut self,
        identity: RunIdentity,
        fds: Option<(OwnedFd, Option<(i32, OwnedFd)>)>,
        shim_pid: i32,
    ) {
        let CommandStage::Preparing { seq } = self.stage else {
            return;
        };
        crash_point!("keeper.prepared");
        self.stage = CommandStage::AtGate;
        let Some(seq) = seq else {
            // The requesting server is gone, and the gate is shut.
            return;
        };
        let (Some((leader, init)), Some(outputs)) = (fds, &self.outputs) else {
            // This process has no free descriptor: the gate shuts, and the shim reports the outcome.
            self.gate = None;
            self.answer(seq, Answer::Exhausted("descriptors of the keeper".into()));
            return;
        };
        let fds = outputs.for_server();
        self.tree = Some(Tree {
            run: self.id,
            leader: PidFd::from_fd(leader),
            leader_pid: identity.command.pid,
            session: Session::default(),
            lineage: Lineage::default(),
            root: Root::Shim(shim_pid),
            foreign: None,
            cgroup: self.cgroup.clone(),
            init: init.map(|(pid, fd)| Init {
                pid,
                fd: PidFd::from_fd(fd),
            }),
        });
        let answer = Answer::Prepared {
            command: identity.command,
            shim: identity.shim,
            cgroup: identity.cgroup.clone(),
            held: self.held.clone(),
        };
        self.identity = Some(identity);
        self.outgoing.push(RunMessage::Answer(seq, answer, fds));
    }

    /// Whether no child was ever made: a request that waits for one is answered that there will be none.
    pub(super) fn fails_unprepared(&mut self) -> bool {
        let waits = matches!(self.stage, CommandStage::Preparing { .. });
        if waits {
            self.not_prepared(StartFailure {
                stage: StartStage::Prepare,
                errno: None,
                path: None,
            });
        }
        waits
    }

    fn not_prepared(&mut self, failure: StartFailure) {
        let CommandStage::Preparing { seq } = self.stage else {
            return;
        };
        self.stage = CommandStage::NotReleased;
        let ours = [
            StartStage::Prepare,
            StartStage::Cgroup,
            StartStage::Fork,
            StartStage::Namespace,
        ];
        let full = ours.contains(&failure.stage) && failure.errno.is_some_and(is_exhaustion);
        let answer = if full {
            Answer::Exhausted(failure.to_string())
        } else {
            Answer::PrepareFailed(failure)
        };
        if let Some(seq) = seq {
            self.answer(seq, answer);
        }
        self.over();
        self.acknowledge();
    }

    /// Handles the exit of the leader. The run's policy decides about the rest of its tree.
    fn leader_ended(&mut self, at: Timestamp, exit: Exit, rest: bool, now: u64) {
        if std::mem::replace(&mut self.heard.leader_exited, true) {
            return;
        }
        self.finish_signals(now);
        if let Some(terminal) = self.terminal() {
            terminal.leader_is_gone();
        }
        if self.stage == CommandStage::NotReleased {
            return;
        }
        crash_point!("keeper.leader_exited");
        self.report_news(None);
        self.report_at(at, Fact::LeaderExited(exit));
        if rest || self.shim.is_none() {
            self.report_leftovers();
        }
        if self.ladder.is_none() {
            self.leader_left(rest, now);
        }
    }

    /// Learns the session of a leader that has exited, and reports the processes that are alive. After SIGKILL they are
    /// about to exit.
    fn report_leftovers(&mut self) {
        let census = self.census.take();
        let Some(tree) = &self.tree else { return };
        let living = census.map_or_else(|| tree.members(), |census| census.living);
        tree.learn_session(&living);
        let left = tree.leftovers_among(living);
        if self.killed_at.is_none() && !left.is_empty() {
            self.report(Fact::LeftBehind(left));
        }
    }

    /// Handles the close of the shim's end of the socket: after its final report, or because it was killed.
    pub(in crate::keeper) fn shim_gone(&mut self, now: u64) {
        self.finish_signals(now);
        while !self.deferred.is_empty() {
            self.hear_deferred(now);
        }
        self.shim = None;
        self.refuse_helpers();
        if self.ended || self.fails_unprepared() {
            return;
        }
        if self.heard.childless {
            // From here on the shim's pid can be reused, while a process in the control group is still being ended.
            if let Some(tree) = &mut self.tree {
                tree.root = Root::Nowhere;
            }
            return;
        }
        self.gate = None;
        self.report_shim_lost();
        if let Some(tree) = &mut self.tree {
            if let Root::Shim(pid) = tree.root {
                let stat = procfs::stat(pid).ok().filter(|stat| !stat.is_dead());
                self.leaving_shim = stat.map(|stat| (pid, stat.start_ticks));
            }
            tree.root = Root::Lost;
        }
        if self.kill_namespace(now) {
            return;
        }
        // Whether a released child executed its command is unknown now, so nothing is reported: the command may have
        // run.
        if matches!(self.stage, CommandStage::Released | CommandStage::Ran) && self.ladder.is_none()
        {
            self.ladder = Some(Ladder::start(&self.policy.stop_plan(), now));
        }
    }

    /// Reports that the run ends because its shim is lost, unless its end had begun before that: a stop is in progress,
    /// or the leader has exited.
    fn report_shim_lost(&mut self) {
        let may_run = matches!(self.stage, CommandStage::Released | CommandStage::Ran);
        if may_run && self.ladder.is_none() && !self.leader_exited_first() {
            self.report(Fact::Stops(StopReason::ShimLost));
        }
    }

    /// Whether the leader had exited before the shim was lost. In a private pid namespace the loss itself kills it: its
    /// first process notices the exit of the shim sooner than this process.
    fn leader_exited_first(&self) -> bool {
        if self.heard.leader_exited {
            return true;
        }
        let Some(tree) = self.tree.as_ref().filter(|t| t.leader.has_ended()) else {
            return false;
        };
        let killed = |exit: Exit| {
            matches!(
                exit,
                Exit::Signal {
                    signal: Signal::KILL,
                    ..
                }
            )
        };
        tree.init.is_none()
            || self
                .exit_without_shim(tree)
                .is_some_and(|exit| !killed(exit))
    }

    /// Returns the leader's exit, by the shim's record, else by the kernel: a full disk prevents the record.
    fn exit_without_shim(&self, tree: &Tree) -> Option<Exit> {
        let record = self.identity.as_ref().and_then(|identity| {
            let leader = (&identity.command).into();
            exit_record::read(&self.private_dir, self.id, leader).ok()?
        });
        let written = record.and_then(|record| record.exit);
        let by_kernel = || tree.leader.exit().or_else(|| reap::peek(tree.leader_pid));
        written.or_else(by_kernel)
    }

    /// Kills a private pid namespace whose shim is lost: its first process notices the shim's exit, and is not awaited.
    /// `true`: there is one.
    fn kill_namespace(&mut self, now: u64) -> bool {
        let Some(tree) = self.tree.as_ref().filter(|tree| tree.init.is_some()) else {
            return false;
        };
        let at = clock::wall();
        let rounds = tree.signal(Signal::KILL);
        self.killed_at.get_or_insert(now);
        if matches!(self.stage, CommandStage::Released | CommandStage::Ran) {
            self.report_rounds(at, Signal::KILL, &rounds);
        }
        true
    }

    /// Reads the exit from the exit record of a shim that reaped the leader and died before it reported it.
    pub(super) fn take_recorded_exit(&mut self, now: u64) {
        let lost = self.tree.as_ref().filter(|t| t.root == Root::Lost);
        let reaped = lost.filter(|tree| !tree.leader.is_unreaped());
        let Some(tree) = reaped.filter(|_| !self.heard.leader_exited) else {
            return;
        };
        let exit = self.exit_without_shim(tree).unwrap_or(Exit::Unknown);
        self.leader_reaped(exit, now);
    }

    /// Handles a leader that was reaped, by this process or by a lost shim.
    pub(in crate::keeper) fn leader_reaped(&mut self, exit: Exit, now: u64) {
        if self.stage == CommandStage::AtGate {
            // The leader's gate was never opened.
            self.stage = CommandStage::NotReleased;
            self.report(Fact::NotReleased {});
        }
        self.leader_ended(clock::wall(), exit, false, now);
    }
}

/// Whether a child cannot be made because this host has no room for it.
pub(in crate::keeper) fn is_exhaustion(errno: i32) -> bool {
    matches!(
        errno,
        libc::EMFILE
            | libc::ENFILE
            | libc::EAGAIN
            | libc::ENOMEM
            | libc::ENOBUFS
            | libc::ETOOMANYREFS
    )
}
