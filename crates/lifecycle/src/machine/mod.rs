//! One attempt to run one command, as a machine: a phase and an input give a phase and effects.
//!
//! Commands are answered: obeyed, or refused without any change. Reports are tolerated: one that comes late or twice
//! changes nothing (INV-15). Commands are in `command`, reports of one phase in `start`, `life` and `end`; handling that
//! all living phases share is in [`Machine::on_report`].

mod adopted;
mod command;
mod end;
mod life;
mod memory;
mod rest;
mod start;

use crate::{
    AttemptRecord, Effect, EndReason, Ends, Entry, Exit, Input, LeaderExit, Leaving, NeverRan,
    NextAttempt, Outcome, Phase, Refusal, Report, ResumeReason, Row, RunIdentity, StartFailure,
    StartStage, StopCertificate, StopOrder, StopReason, StopStage, Stuck, Times, Timestamp,
    TreeVerdict, ladder::StopPlan, phase::Exec,
};
pub use adopted::{AdoptedRun, HeldPause, RowContents};
use memory::MemoryEvidence;

/// One attempt to run one command. The default is accepted and not begun, and stops its remaining tree when its leader
/// exits.
#[derive(Debug, Default)]
pub struct Machine {
    phase: Phase,
    /// The child that waits at its gate, until its record is written.
    identity: Option<Box<RunIdentity>>,
    exec: Exec,
    ends: Ends,
    certificate: StopCertificate,
    stuck: Option<Stuck>,
    memory: MemoryEvidence,
    /// Record of its entries.
    record: AttemptRecord,
    /// Time of the present step: entries bear it.
    now: Timestamp,
    /// Whether the remaining output was requested.
    finishing: bool,
    on_leader_exit: LeaderExit,
    /// The attempt that follows this one.
    next: Option<NextAttempt>,
    /// Whether the run has a row before this attempt begins: then every outcome of the attempt is to be written to it.
    follows: bool,
    /// An order and its plan, which wait for the record: no signal before that.
    unrecorded: Option<(StopOrder, StopPlan)>,
    effects: Vec<Effect>,
}

impl Machine {
    /// Creates a run with another policy for the rest of the tree.
    pub fn with(on_leader_exit: LeaderExit) -> Self {
        Self {
            on_leader_exit,
            ..Self::default()
        }
    }

    /// Creates a further attempt of a run that has a row.
    pub fn following(on_leader_exit: LeaderExit) -> Self {
        Self {
            follows: true,
            ..Self::with(on_leader_exit)
        }
    }

    /// Changes the reason of an outcome that is being written: to that of the run, where the attempt has its own.
    pub fn conclude(&mut self, reason: EndReason) {
        if let Phase::Closing(outcome) = &mut self.phase {
            outcome.reason = reason;
        }
    }

    /// Records that another attempt follows the one whose outcome is being written.
    pub fn is_followed(&mut self, next: NextAttempt) {
        self.next = Some(next);
    }

    /// Returns the phase of the run.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Returns the record of the attempt's entries.
    pub fn record(&self) -> &AttemptRecord {
        &self.record
    }

    /// Adds milestones that the row has and no entry has given.
    pub fn know_times(&mut self, row: Times) {
        self.record.times = self.record.times.or(row);
    }

    /// Folds an entry that the machine has not made. The caller writes it.
    pub fn fold(&mut self, at: Timestamp, entry: &Entry) {
        self.record.fold(at, entry);
    }

    /// Returns the ends that are known.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Returns the processes that SIGKILL has not ended, while there are any.
    pub fn stuck(&self) -> Option<&Stuck> {
        self.stuck.as_ref().filter(|_| self.ends.tree.is_none())
    }

    /// Returns the effects to perform, in order. Drain them all before the next `step`.
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
        match input {
            Input::Command(command) => {
                if let Some(refusal) = self.refusal(&command) {
                    return Err(refusal);
                }
                let phase = std::mem::replace(&mut self.phase, Phase::Accepted);
                self.phase = self.obey(phase, command);
            }
            Input::Report(report) => {
                self.note(&report);
                let phase = std::mem::replace(&mut self.phase, Phase::Accepted);
                self.phase = self.handle_report(phase, report);
            }
        }
        Ok(())
    }

    /// Handles a report: by its phase, or as [`Self::on_report`].
    fn handle_report(&mut self, phase: Phase, report: Report) -> Phase {
        match (phase, report) {
            (Phase::Preparing { stop }, report) => self.preparing(stop, report),
            (Phase::Gated { stop }, report) => self.gated(stop, report),
            (Phase::Leaving(leaving), report) => self.leaving(leaving, report),
            (Phase::Pausing { stage }, report) => self.pausing(stage, report),
            (Phase::Paused, Report::PauseExpired) => self.resumed(ResumeReason::MaxPause),
            (Phase::Resuming, Report::Thawed) => self.resumed(ResumeReason::Asked),
            (phase @ (Phase::Stopping { .. } | Phase::Draining { .. }), Report::StopRecorded) => {
                self.stop_recorded(phase)
            }
            (Phase::Closing(outcome), Report::OutcomeRecorded) => self.outcome_recorded(outcome),
            (
                phase @ (Phase::Accepted
                | Phase::Closing(_)
                | Phase::Closed(_)
                | Phase::Forgotten(_)),
                _,
            ) => phase,
            (
                phase @ (Phase::Released
                | Phase::Running
                | Phase::Paused
                | Phase::Resuming
                | Phase::Stopping { .. }
                | Phase::Draining { .. }),
                report,
            ) => self.on_report(phase, report),
        }
    }

    /// Notes contents of the certificate, and evidence of a kill for want of memory. Nothing follows the verdict on the
    /// tree.
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
            Report::Usage(usage) => self.certificate.usage = Some(usage.clone()),
            _ => {}
        }
    }

    /// Handles a report as every phase after the gate does: exec's result and the three ends.
    fn on_report(&mut self, phase: Phase, report: Report) -> Phase {
        match report {
            Report::Executed if self.exec == Exec::Awaited => {
                self.exec = Exec::Confirmed;
                self.append(Entry::Started);
                self.effects.push(Effect::RecordRunning);
                return self.advance(match phase {
                    Phase::Released => Phase::Running,
                    other => other,
                });
            }
            Report::ExecFailed(failure) if self.exec == Exec::Awaited => {
                // INV-6: the command never ran, so there is no exit.
                return self.leave(NeverRan::Failed(failure));
            }
            Report::NotReleased if self.exec == Exec::Awaited => {
                return self.leave(match phase {
                    Phase::Stopping { order, .. } => NeverRan::Stopped(order),
                    _ => failed_at(StartStage::Gate),
                });
            }
            Report::LeaderExited(exit) => {
                self.ends.leader.get_or_insert(exit);
            }
            Report::TreeStuck(stuck)
                if self.ends.tree.is_none() && self.stuck.as_ref() != Some(&stuck) =>
            {
                self.append(Entry::Stuck(stuck.clone()));
                self.stuck = Some(stuck);
                // SIGKILL was sent on some request: the run is ending.
                return self.advance(match phase {
                    Phase::Stopping { .. } | Phase::Released => phase,
                    other => drained(other),
                });
            }
            Report::TreeEnded(tree) => {
                self.ends.tree.get_or_insert(tree);
            }
            Report::StreamsClosed(how) => {
                self.ends.streams.get_or_insert(how);
            }
            Report::KeeperStops { reason, grace } => {
                return self.keeper_stops(phase, reason, grace);
            }
            // Ignored: reports of another phase, or noted in the certificate.
            Report::Executed
            | Report::ExecFailed(_)
            | Report::NotReleased
            | Report::TreeStuck(_)
            | Report::Prepared(_)
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
            | Report::Usage(_)
            | Report::Census(_)
            | Report::Frozen
            | Report::NotFrozen
            | Report::Thawed
            | Report::PauseExpired
            | Report::OutcomeRecorded
            | Report::Withdrawn
            | Report::NotWithdrawn => {}
        }
        self.advance(phase)
    }

    /// Appends the ends that are known, and proceeds when they allow it.
    fn advance(&mut self, phase: Phase) -> Phase {
        if self.exec == Exec::Awaited {
            // An exit code counts only once it is certain that the command, and not the child before exec, returned it.
            // The keeper's verdict on the tree ends that wait: no result of exec can follow it.
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
            // Detached processes were not stopped, whatever was requested since.
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

    // INV-3: no signal is sent before this order is recorded.
    fn record_stop(&mut self, order: &StopOrder, deadline: Timestamp) {
        let order = order.clone();
        self.effects.push(Effect::RecordStop { order, deadline });
    }

    /// Takes the waiting plan and its order; none where nothing is left to stop.
    fn recorded_stop(&mut self) -> Option<(StopOrder, StopPlan)> {
        let recorded = self.unrecorded.take();
        recorded.filter(|_| self.ends.tree.is_none())
    }

    /// Outcome to write when this attempt was never recorded.
    fn unrecorded_row(&self, stopped: bool) -> Row {
        if stopped || self.follows {
            Row::Owed
        } else {
            Row::Absent
        }
    }

    /// Outcome to write when it is not known whether this attempt was recorded. What was not stopped has no row in the
    /// end, as where the record is known to have failed.
    fn perhaps_recorded_row(&self, stopped: bool) -> Row {
        match self.unrecorded_row(stopped) {
            Row::Absent => Row::Void,
            row => row,
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

    /// Leaves the released phase without a start: the gate was opened and yet nothing ran. The row exists, so its
    /// outcome must be written.
    ///
    /// INVARIANT: the tree's end is not known yet; it would have ended the wait for the result of exec.
    fn leave(&mut self, why: NeverRan) -> Phase {
        // The exit of the child before exec is not that of the command.
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

    // INV-8: only this effect writes an outcome; `closing` announces the durable outcome.
    fn close(&mut self, outcome: Outcome) -> Phase {
        self.effects.push(Effect::RecordOutcome(outcome.clone()));
        Phase::Closing(outcome)
    }

    /// Changes the state by an entry: it is folded here, and written by the driver.
    fn append(&mut self, entry: Entry) {
        self.record.fold(self.now, &entry);
        self.effects.push(Effect::Append(entry));
    }
}

/// Returns the entry of a written row. The driver adds the offsets of its output.
fn recorded(identity: Box<RunIdentity>) -> Entry {
    Entry::Recorded {
        identity,
        output_offsets: [0; 2],
    }
}

/// Returns the phase of a run whose leader is gone.
fn drained(phase: Phase) -> Phase {
    match phase {
        Phase::Released
        | Phase::Running
        | Phase::Pausing { .. }
        | Phase::Paused
        | Phase::Resuming => Phase::Draining {
            stop: None,
            deadline: None,
        },
        Phase::Stopping {
            order,
            deadline,
            stage,
        } => Phase::Draining {
            // No signal had been sent yet: the leader exited on its own.
            stop: (stage == StopStage::Ordered).then_some(order),
            deadline: Some(deadline),
        },
        other => other,
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
        | StopReason::Watchdog { .. }
        | StopReason::Result { .. }
        | StopReason::MemoryReserve(_)
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
