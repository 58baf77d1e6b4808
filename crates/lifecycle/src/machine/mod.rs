//! One attempt to run one command, as a machine: a phase and an input give a phase and effects.
//!
//! Commands are answered: obeyed, or refused without any change. Reports are tolerated: one that comes late or
//! twice changes nothing (INV-15). One function per phase, in `start`, `life` and `end`; what all living phases share is in
//! [`Machine::heard`].

mod adopted;
mod end;
mod life;
mod memory;
mod rest;
mod start;

use crate::{
    AttemptRecord, Command, Effect, EndReason, Ends, Entry, Exit, Input, LeaderExit, Leaving,
    NeverRan, NextAttempt, Outcome, Phase, Refusal, Report, Row, RunIdentity, StartFailure,
    StartStage, StopCertificate, StopOrder, StopReason, StopStage, Stuck, Times, Timestamp,
    TreeVerdict, ladder::StopPlan, phase::Exec,
};
pub use adopted::{HeldPause, RowSays, Standing};
use memory::Memory;

/// One attempt to run one command.
#[derive(Debug)]
pub struct Machine {
    phase: Phase,
    exec: Exec,
    ends: Ends,
    certificate: StopCertificate,
    stuck: Option<Stuck>,
    memory: Memory,
    /// What its entries say.
    record: AttemptRecord,
    /// The time of the present step: entries bear it.
    now: Timestamp,
    /// The rest of the output has been asked for.
    finishing: bool,
    on_leader_exit: LeaderExit,
    /// The attempt that follows this one.
    next: Option<NextAttempt>,
    /// The run has a row before this attempt begins: whatever becomes of the attempt is owed to it.
    follows: bool,
    /// An order and its plan, which wait until it is recorded: no signal before that.
    unrecorded: Option<(StopOrder, StopPlan)>,
    effects: Vec<Effect>,
}

type Turn = (Phase, Result<(), Refusal>);

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// A run that has been accepted and not begun, and whose rest is stopped when its leader ends.
    #[must_use]
    pub fn new() -> Self {
        Self::with(LeaderExit::default())
    }

    /// The same with another policy for the rest.
    #[must_use]
    pub fn with(on_leader_exit: LeaderExit) -> Self {
        Self {
            on_leader_exit,
            next: None,
            follows: false,
            phase: Phase::Accepted,
            exec: Exec::Awaited,
            ends: Ends::default(),
            certificate: StopCertificate::default(),
            stuck: None,
            memory: Memory::default(),
            record: AttemptRecord::default(),
            now: Timestamp::default(),
            finishing: false,
            unrecorded: None,
            effects: Vec::new(),
        }
    }

    /// A further attempt of a run that has a row.
    #[must_use]
    pub fn following(on_leader_exit: LeaderExit) -> Self {
        Self {
            follows: true,
            ..Self::with(on_leader_exit)
        }
    }

    /// Gives an outcome that is being written another reason: that of the run, where the attempt has its own.
    pub fn conclude(&mut self, reason: EndReason) {
        if let Phase::Closing(outcome) = &mut self.phase {
            outcome.reason = reason;
        }
    }

    /// Another attempt follows the one whose outcome is being written.
    pub fn is_followed(&mut self, next: NextAttempt) {
        self.next = Some(next);
    }

    /// Where the run stands.
    #[must_use]
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// What the entries of the attempt say.
    #[must_use]
    pub fn record(&self) -> &AttemptRecord {
        &self.record
    }

    /// Milestones that no entry has said, and the row has.
    pub fn know_times(&mut self, row: Times) {
        self.record.times = self.record.times.or(row);
    }

    /// Takes in an entry that the machine has not made. The caller writes it down.
    pub fn fold(&mut self, at: Timestamp, entry: &Entry) {
        self.record.fold(at, entry);
    }

    /// Which ends are known.
    #[must_use]
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Whom SIGKILL has not ended, while that is so.
    #[must_use]
    pub fn stuck(&self) -> Option<&Stuck> {
        self.stuck.as_ref().filter(|_| self.ends.tree.is_none())
    }

    /// Effects to perform, in order. Drain them all before the next `step`.
    pub fn effects(&mut self) -> std::vec::Drain<'_, Effect> {
        self.effects.drain(..)
    }

    /// Feeds one input.
    ///
    /// # Errors
    ///
    /// A command that does not apply now is refused with the reason, and nothing has changed (INV-15).
    pub fn step(&mut self, now: Timestamp, input: Input) -> Result<(), Refusal> {
        self.now = now;
        if let Input::Report(report) = &input {
            self.note(report);
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Accepted);
        let (phase, answer) = match phase {
            Phase::Accepted => self.accepted(input),
            Phase::Preparing { stop } => self.preparing(stop, input),
            Phase::Gated { proc, stop } => self.gated(proc, stop, input),
            Phase::Leaving(leaving) => self.leaving(leaving, input),
            Phase::Released { proc } => self.released(now, proc, input),
            Phase::Running { proc } => self.running(now, proc, input),
            Phase::Pausing { proc, stage } => self.pausing(now, proc, stage, input),
            Phase::Paused { proc } => self.paused(now, proc, input),
            Phase::Resuming { proc } => self.resuming(now, proc, input),
            Phase::Stopping {
                proc,
                order,
                deadline,
                stage,
            } => self.stopping(now, proc, order, deadline, stage, input),
            Phase::Draining {
                proc,
                stop,
                deadline,
            } => self.draining(now, proc, stop, deadline, input),
            Phase::Closing(outcome) => self.closing(outcome, &input),
            Phase::Closed(outcome) => Self::closed(outcome, &input),
            Phase::Forgotten(why) => match input {
                Input::Command(_) => (Phase::Forgotten(why), Err(Refusal::Ended)),
                Input::Report(_) => stay(Phase::Forgotten(why)),
            },
        };
        self.phase = phase;
        answer
    }

    /// Keeps what the certificate will say, and what tells a kill for want of memory. Nothing follows the last word on
    /// the tree.
    fn note(&mut self, report: &Report) {
        let closed = matches!(
            self.phase,
            Phase::Closing(_) | Phase::Closed(_) | Phase::Forgotten(_)
        );
        if closed || self.ends.tree.is_some() {
            return;
        }
        self.memory.note(report);
        match report {
            Report::Signalled(step) if !self.certificate.steps.contains(step) => {
                self.certificate.add(*step);
            }
            Report::InputStopped(input) if !self.certificate.inputs.contains(input) => {
                self.certificate.inputs.push(*input);
            }
            Report::CommandStopped(command) => self.certificate.add_command(command),
            Report::LeftBehind(left) => self.certificate.leftovers = left.clone(),
            Report::Census(at) => self.certificate.census = Some(*at),
            _ => {}
        }
    }

    /// What every phase after the gate makes of a report: exec's verdict and the three ends.
    fn heard(&mut self, now: Timestamp, phase: Phase, report: Report) -> Phase {
        match report {
            Report::Executed => {
                if self.exec == Exec::Awaited {
                    self.exec = Exec::Confirmed;
                    self.append(Entry::Started);
                    self.effects.push(Effect::RecordRunning);
                    return self.advance(match phase {
                        Phase::Released { proc } => Phase::Running { proc },
                        other => other,
                    });
                }
            }
            Report::ExecFailed(failure) => {
                // INV-6: the command never ran, so there is no exit.
                if self.exec == Exec::Awaited {
                    return self.leave(NeverRan::Failed(failure));
                }
            }
            Report::NotReleased => {
                if self.exec == Exec::Awaited {
                    return self.leave(match phase {
                        Phase::Stopping { order, .. } => NeverRan::Stopped(order),
                        _ => failed_at(StartStage::Gate),
                    });
                }
            }
            Report::LeaderExited(exit) => {
                self.ends.leader.get_or_insert(exit);
            }
            Report::TreeStuck(stuck) => {
                if self.ends.tree.is_none() && self.stuck.as_ref() != Some(&stuck) {
                    self.append(Entry::Stuck(stuck.clone()));
                    self.stuck = Some(stuck);
                    // SIGKILL has gone out, whoever asked for it: the run is on its way to its end.
                    return self.advance(match phase {
                        Phase::Stopping { .. } | Phase::Released { .. } => phase,
                        other => drained(other),
                    });
                }
            }
            Report::TreeEnded(tree) => {
                self.ends.tree.get_or_insert(tree);
            }
            Report::StreamsClosed(how) => {
                self.ends.streams.get_or_insert(how);
            }
            Report::Prepared(_)
            | Report::PrepareFailed(_)
            | Report::Recorded
            | Report::RecordFailed
            | Report::RecordUnknown
            | Report::KeyTaken
            | Report::StopRecorded
            | Report::StateRecorded(_)
            | Report::StateNotRecorded(_)
            | Report::LeftBehind(_)
            | Report::Signalled(_)
            | Report::InputStopped(_)
            | Report::CommandStopped(_)
            | Report::KillSent
            | Report::MemoryKills(_)
            | Report::Census(_)
            | Report::Frozen
            | Report::NotFrozen
            | Report::Thawed
            | Report::PauseExpired
            | Report::OutcomeRecorded
            | Report::Withdrawn
            | Report::NotWithdrawn => {}
            Report::KeeperStops { reason, grace } => {
                return self.keeper_stops(now, phase, reason, grace);
            }
        }
        self.advance(phase)
    }

    /// Appends the ends that are known, and proceeds when they allow it.
    fn advance(&mut self, phase: Phase) -> Phase {
        if self.exec == Exec::Awaited {
            // An exit code counts only once it is certain that the command, and not the child before exec,
            // returned it. The keeper's last word on the tree ends that wait: no verdict can follow it.
            if self.ends.tree.is_none() {
                return phase;
            }
            self.exec = Exec::Assumed;
            if let Some(Exit::Code(_)) = self.ends.leader {
                self.ends.leader = Some(Exit::Unknown);
            }
        }
        if self.ends.tree.is_some() {
            self.ends.leader.get_or_insert(Exit::Unknown);
        }
        let Some(exit) = self.ends.leader else {
            return phase;
        };
        if self.record.leader.is_none() {
            self.append(Entry::LeaderExited(exit));
            self.decide_on_rest(&phase);
        }
        if let (Some(how), None) = (self.ends.streams, self.record.streams) {
            self.append(Entry::StreamsClosed(how));
        }
        if let (Some(tree), false) = (self.ends.tree.clone(), self.record.tree) {
            self.append(Entry::TreeEnded(tree));
        }
        let gone = self.ends.tree.is_some() && self.ends.streams.is_none();
        if gone && !std::mem::replace(&mut self.finishing, true) {
            self.effects.push(Effect::FinishOutput);
        }
        let phase = drained(phase);
        let Phase::Draining { stop, .. } = &phase else {
            return phase;
        };
        let (Some(tree), Some(streams)) = (self.ends.tree.clone(), self.ends.streams) else {
            return phase;
        };
        let reason = match (stop, &tree) {
            // Who was kept was not stopped, whatever was asked for since.
            (None, _) | (_, TreeVerdict::Kept(_)) => self.memory.reason_without_stop(),
            (Some(order), _) => order.reason.clone().into(),
        };
        if let (Some(kills), false) = (self.memory.beside(&reason), self.record.memory_kills) {
            self.append(Entry::MemoryKills(kills));
        }
        let certificate = std::mem::take(&mut self.certificate);
        self.close(Outcome {
            reason,
            exit: Some(exit),
            tree,
            streams: Some(streams),
            certificate,
        })
    }

    fn begin_stop(&mut self, now: Timestamp, proc: Box<RunIdentity>, order: StopOrder) -> Phase {
        let plan = plan(&order);
        let deadline = now.plus(plan.kill_after);
        self.unrecorded = Some((order.clone(), plan));
        self.record_stop(&order, deadline);
        Phase::Stopping {
            proc,
            order,
            deadline,
            stage: StopStage::Recording,
        }
    }

    /// A further order: counts only if there is a tree and it brings SIGKILL forward. Gives the new deadline.
    fn shorten(
        &mut self,
        now: Timestamp,
        deadline: Option<Timestamp>,
        order: &StopOrder,
    ) -> Option<Timestamp> {
        let plan = plan(order);
        let sooner = now.plus(plan.kill_after);
        if self.ends.tree.is_some() || deadline.is_some_and(|deadline| deadline <= sooner) {
            return None;
        }
        self.unrecorded = Some((order.clone(), plan));
        self.record_stop(order, sooner);
        Some(sooner)
    }

    // INV-3: no signal is an effect before this order was recorded.
    fn record_stop(&mut self, order: &StopOrder, deadline: Timestamp) {
        let order = order.clone();
        self.effects.push(Effect::RecordStop { order, deadline });
    }

    /// Takes the plan that has waited, and its order; not where there is nothing to stop any more.
    fn recorded_stop(&mut self) -> Option<(StopOrder, StopPlan)> {
        let recorded = self.unrecorded.take();
        recorded.filter(|_| self.ends.tree.is_none())
    }

    /// What is owed where nothing was recorded of this attempt.
    fn unrecorded_row(&self, stopped: bool) -> Row {
        if stopped || self.follows {
            Row::Owed
        } else {
            Row::Absent
        }
    }

    fn shut_gate(&mut self, why: NeverRan, row: Row) -> Phase {
        self.effects.push(Effect::ShutGate);
        Phase::Leaving(Leaving {
            why,
            row,
            tree: None,
        })
    }

    /// The gate was opened and yet nothing ran. The row is there, so its end is owed.
    ///
    /// INVARIANT: the tree's end is not known yet; it would have ended the wait for the verdict.
    fn leave(&mut self, why: NeverRan) -> Phase {
        // What the child before exec returned is nobody's exit.
        self.ends = Ends::default();
        Phase::Leaving(Leaving {
            why,
            row: Row::Owed,
            tree: None,
        })
    }

    fn close_never_ran(&mut self, why: NeverRan, tree: TreeVerdict) -> Phase {
        let reason = match why {
            NeverRan::Failed(failure) => EndReason::StartFailed(failure),
            NeverRan::Stopped(order) => order.reason.into(),
            NeverRan::Superseded => EndReason::StartFailed(failure_at(StartStage::Record)),
        };
        let tree = match tree {
            TreeVerdict::Empty(_) => TreeVerdict::NeverRan,
            other => other,
        };
        let certificate = std::mem::take(&mut self.certificate);
        self.close(Outcome {
            reason,
            exit: None,
            tree,
            streams: None,
            certificate,
        })
    }

    // INV-8: the one effect that writes an outcome; `closing` announces it when it is durable.
    fn close(&mut self, outcome: Outcome) -> Phase {
        self.effects.push(Effect::RecordOutcome(outcome.clone()));
        Phase::Closing(outcome)
    }

    /// Changes what is known by an entry: it is folded here, and written down by the driver.
    fn append(&mut self, entry: Entry) {
        self.record.fold(self.now, &entry);
        self.effects.push(Effect::Append(entry));
    }
}

/// The entry of a row that is written. Where its output begins is the driver's to add.
fn recorded(proc: &RunIdentity) -> Entry {
    Entry::Recorded {
        identity: Box::new(proc.clone()),
        output_offsets: [0; 2],
    }
}

fn stay(phase: Phase) -> Turn {
    (phase, Ok(()))
}

/// A stop before the command runs is kept and wins at the next safe point; the earlier order stands.
fn latch(stop: Option<StopOrder>, command: Command) -> (Option<StopOrder>, Result<(), Refusal>) {
    match command {
        Command::Stop(order) => (stop.or(Some(order)), Ok(())),
        Command::Admit => (stop, Err(Refusal::AlreadyAdmitted)),
        Command::Interrupt | Command::Pause | Command::Resume => {
            (stop, Err(Refusal::NotRunningYet))
        }
    }
}

/// The phase of a run whose leader is gone.
fn drained(phase: Phase) -> Phase {
    match phase {
        Phase::Released { proc }
        | Phase::Running { proc }
        | Phase::Pausing { proc, .. }
        | Phase::Paused { proc }
        | Phase::Resuming { proc } => Phase::Draining {
            proc,
            stop: None,
            deadline: None,
        },
        Phase::Stopping {
            proc,
            order,
            deadline,
            stage,
        } => Phase::Draining {
            proc,
            // Nothing had been sent yet: the leader ended on its own.
            stop: (stage == StopStage::Ordered).then_some(order),
            deadline: Some(deadline),
        },
        other @ (Phase::Accepted
        | Phase::Preparing { .. }
        | Phase::Gated { .. }
        | Phase::Leaving(_)
        | Phase::Draining { .. }
        | Phase::Closing(_)
        | Phase::Closed(_)
        | Phase::Forgotten(_)) => other,
    }
}

fn with_tree(phase: Phase, tree: TreeVerdict) -> Phase {
    match phase {
        Phase::Leaving(leaving) => Phase::Leaving(Leaving {
            tree: Some(tree),
            ..leaving
        }),
        other => other,
    }
}

fn plan(order: &StopOrder) -> StopPlan {
    match order.reason {
        StopReason::Abort { .. }
        | StopReason::Restart { .. }
        | StopReason::DeadlineExceeded(_)
        | StopReason::LimitExceeded(_)
        | StopReason::ParentEnded
        | StopReason::NotReady
        | StopReason::NotLive { .. }
        | StopReason::Result { .. }
        | StopReason::Orphaned
        | StopReason::ShimLost => StopPlan::abort(order.grace),
        StopReason::ServerShutdown => StopPlan::shutdown(order.grace),
    }
}

fn failed_at(stage: StartStage) -> NeverRan {
    NeverRan::Failed(failure_at(stage))
}

fn failure_at(stage: StartStage) -> StartFailure {
    StartFailure {
        stage,
        errno: None,
        path: None,
    }
}
