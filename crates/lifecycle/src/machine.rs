//! One attempt to run one command, as a machine: a phase and an input give a phase and effects.
//!
//! Commands are answered: obeyed, or refused without any change. Reports are tolerated: one that comes late or
//! twice changes nothing. One function per phase; what all living phases share is in [`Machine::heard`].

use crate::{
    Announcement, Command, Effect, EndReason, Ends, Exit, Input, Leaving, NeverRan, Outcome, Phase,
    Refusal, Report, Row, RowState, RunIdentity, StartFailure, StartStage, StopOrder, StopReason,
    StopStage, Timestamp, TreeVerdict,
    ladder::StopPlan,
    phase::{Exec, PauseStage},
};

/// One attempt to run one command.
#[derive(Debug)]
pub struct Machine {
    phase: Phase,
    exec: Exec,
    ends: Ends,
    told: Told,
    /// A plan that waits until its order is recorded: no signal before that.
    unrecorded: Option<StopPlan>,
    effects: Vec<Effect>,
}

/// Which ends have been announced. `LEADER_EXITED` is always told first.
#[derive(Debug, Default)]
struct Told {
    leader: bool,
    streams: bool,
    tree: bool,
}

type Turn = (Phase, Result<(), Refusal>);

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// A run that has been accepted and not begun.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Phase::Accepted,
            exec: Exec::Awaited,
            ends: Ends::default(),
            told: Told::default(),
            unrecorded: None,
            effects: Vec::new(),
        }
    }

    /// Where the run stands.
    #[must_use]
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Which ends are known.
    #[must_use]
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Effects to perform, in order. Drain them all before the next `step`.
    pub fn effects(&mut self) -> std::vec::Drain<'_, Effect> {
        self.effects.drain(..)
    }

    /// Feeds one input.
    ///
    /// # Errors
    ///
    /// A command that does not apply now is refused with the reason, and nothing has changed.
    pub fn step(&mut self, now: Timestamp, input: Input) -> Result<(), Refusal> {
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

    fn accepted(&mut self, input: Input) -> Turn {
        match input {
            Input::Command(Command::Admit) => {
                self.effects.push(Effect::Prepare);
                stay(Phase::Preparing { stop: None })
            }
            // Nothing exists, but the stop has to outlive us: a late retry of the spawn must meet it.
            Input::Command(Command::Stop(order)) => {
                stay(self.close_never_ran(NeverRan::Stopped(order), TreeVerdict::NeverRan))
            }
            Input::Command(Command::Interrupt | Command::Pause | Command::Resume) => {
                (Phase::Accepted, Err(Refusal::NotRunningYet))
            }
            Input::Report(_) => stay(Phase::Accepted),
        }
    }

    fn preparing(&mut self, stop: Option<StopOrder>, input: Input) -> Turn {
        match input {
            Input::Command(command) => {
                let (stop, answer) = latch(stop, command);
                (Phase::Preparing { stop }, answer)
            }
            Input::Report(Report::Prepared(proc)) => stay(match stop {
                Some(order) => self.shut_gate(NeverRan::Stopped(order), Row::Owed),
                None => {
                    self.effects.push(Effect::Record(proc.clone()));
                    Phase::Gated { proc, stop: None }
                }
            }),
            Input::Report(Report::PrepareFailed(failure)) => stay(match stop {
                Some(order) => {
                    self.close_never_ran(NeverRan::Stopped(order), TreeVerdict::NeverRan)
                }
                None => {
                    self.effects.push(Effect::Forget);
                    Phase::Forgotten(NeverRan::Failed(failure))
                }
            }),
            // A stop means the run under the key, which is not this one.
            Input::Report(Report::KeyTaken) => {
                self.effects.push(Effect::Forget);
                stay(Phase::Forgotten(NeverRan::Superseded))
            }
            Input::Report(_) => stay(Phase::Preparing { stop }),
        }
    }

    fn gated(&mut self, proc: Box<RunIdentity>, stop: Option<StopOrder>, input: Input) -> Turn {
        let report = match input {
            Input::Command(command) => {
                let (stop, answer) = latch(stop, command);
                return (Phase::Gated { proc, stop }, answer);
            }
            Input::Report(report) => report,
        };
        let why = |failed| stop.clone().map_or(failed, NeverRan::Stopped);
        stay(match report {
            Report::Recorded => match stop {
                Some(order) => self.shut_gate(NeverRan::Stopped(order), Row::Owed),
                None => {
                    self.effects
                        .extend([Effect::Announce(Announcement::Recorded), Effect::Release]);
                    Phase::Released { proc }
                }
            },
            Report::RecordFailed => {
                let row = if stop.is_some() {
                    Row::Owed
                } else {
                    Row::Absent
                };
                let why = why(failed_at(StartStage::Record));
                self.shut_gate(why, row)
            }
            Report::RecordUnknown => {
                let why = why(failed_at(StartStage::Record));
                self.shut_gate(why, Row::Owed)
            }
            Report::KeyTaken => self.shut_gate(NeverRan::Superseded, Row::Absent),
            // The child is gone, but the INSERT may still land: its row has to be closed.
            Report::NotReleased | Report::LeaderExited(_) => {
                let why = why(failed_at(StartStage::Gate));
                self.shut_gate(why, Row::InFlight)
            }
            Report::TreeEnded(tree) => {
                let why = why(failed_at(StartStage::Gate));
                let phase = self.shut_gate(why, Row::InFlight);
                with_tree(phase, tree)
            }
            Report::Prepared(_)
            | Report::PrepareFailed(_)
            | Report::StopRecorded
            | Report::StateRecorded(_)
            | Report::StateNotRecorded(_)
            | Report::Executed
            | Report::ExecFailed(_)
            | Report::StreamsClosed(_)
            | Report::Frozen
            | Report::NotFrozen
            | Report::Thawed
            | Report::OutcomeRecorded => Phase::Gated { proc, stop },
        })
    }

    fn leaving(&mut self, mut leaving: Leaving, input: Input) -> Turn {
        match input {
            Input::Command(Command::Stop(order)) => match (&leaving.why, leaving.row) {
                // The row under the key is another's; this run is as good as gone.
                (NeverRan::Superseded, _) => return (Phase::Leaving(leaving), Err(Refusal::Ended)),
                (NeverRan::Stopped(_), _) | (NeverRan::Failed(_), Row::Owed) => {}
                // The stop has to outlive us: a late retry of the spawn must meet it.
                (NeverRan::Failed(_), Row::Absent) => {
                    leaving.why = NeverRan::Stopped(order);
                    leaving.row = Row::Owed;
                }
                (NeverRan::Failed(_), Row::InFlight) => leaving.why = NeverRan::Stopped(order),
            },
            Input::Command(Command::Admit) => {
                return (Phase::Leaving(leaving), Err(Refusal::AlreadyAdmitted));
            }
            Input::Command(_) => return (Phase::Leaving(leaving), Err(Refusal::Stopping)),
            Input::Report(Report::TreeEnded(tree)) => {
                leaving.tree.get_or_insert(tree);
            }
            Input::Report(Report::Recorded | Report::RecordUnknown) => {
                if leaving.row == Row::InFlight {
                    leaving.row = Row::Owed;
                }
            }
            Input::Report(Report::RecordFailed) => {
                if leaving.row == Row::InFlight {
                    let stopped = matches!(leaving.why, NeverRan::Stopped(_));
                    leaving.row = if stopped { Row::Owed } else { Row::Absent };
                }
            }
            Input::Report(Report::KeyTaken) => {
                if leaving.row == Row::InFlight {
                    leaving.row = Row::Absent;
                    leaving.why = NeverRan::Superseded;
                }
            }
            Input::Report(_) => {}
        }
        stay(match (leaving.row, leaving.tree.take()) {
            (Row::Owed, Some(tree)) => self.close_never_ran(leaving.why, tree),
            (Row::Absent, Some(_)) => {
                self.effects.extend([Effect::Acknowledge, Effect::Forget]);
                Phase::Forgotten(leaving.why)
            }
            (_, tree) => Phase::Leaving(Leaving { tree, ..leaving }),
        })
    }

    fn released(&mut self, now: Timestamp, proc: Box<RunIdentity>, input: Input) -> Turn {
        match input {
            Input::Command(Command::Stop(order)) => stay(self.begin_stop(now, proc, order)),
            Input::Command(Command::Admit) => {
                (Phase::Released { proc }, Err(Refusal::AlreadyAdmitted))
            }
            Input::Command(Command::Interrupt | Command::Pause | Command::Resume) => {
                (Phase::Released { proc }, Err(Refusal::NotRunningYet))
            }
            Input::Report(report) => stay(self.heard(Phase::Released { proc }, report)),
        }
    }

    fn running(&mut self, now: Timestamp, proc: Box<RunIdentity>, input: Input) -> Turn {
        match input {
            Input::Command(Command::Stop(order)) => stay(self.begin_stop(now, proc, order)),
            Input::Command(Command::Interrupt) => {
                self.effects.push(Effect::Interrupt);
                stay(Phase::Running { proc })
            }
            Input::Command(Command::Pause) => {
                self.effects.push(Effect::RecordState(RowState::Pausing));
                stay(Phase::Pausing {
                    proc,
                    stage: PauseStage::Recording,
                })
            }
            Input::Command(Command::Resume) => (Phase::Running { proc }, Err(Refusal::NotPaused)),
            Input::Command(Command::Admit) => {
                (Phase::Running { proc }, Err(Refusal::AlreadyAdmitted))
            }
            Input::Report(report) => stay(self.heard(Phase::Running { proc }, report)),
        }
    }

    fn pausing(
        &mut self,
        now: Timestamp,
        proc: Box<RunIdentity>,
        stage: PauseStage,
        input: Input,
    ) -> Turn {
        match (input, stage) {
            (Input::Command(Command::Stop(order)), _) => stay(self.begin_stop(now, proc, order)),
            (Input::Command(Command::Admit), _) => (
                Phase::Pausing { proc, stage },
                Err(Refusal::AlreadyAdmitted),
            ),
            (Input::Command(_), _) => (Phase::Pausing { proc, stage }, Err(Refusal::Paused)),
            (Input::Report(Report::StateRecorded(RowState::Pausing)), PauseStage::Recording) => {
                self.effects.push(Effect::Freeze);
                stay(Phase::Pausing {
                    proc,
                    stage: PauseStage::Freezing,
                })
            }
            (Input::Report(Report::StateNotRecorded(RowState::Pausing)), PauseStage::Recording) => {
                stay(Phase::Running { proc })
            }
            (Input::Report(Report::Frozen), PauseStage::Freezing) => {
                self.effects.extend([
                    Effect::Announce(Announcement::Paused),
                    Effect::RecordState(RowState::Paused),
                ]);
                stay(Phase::Paused { proc })
            }
            (Input::Report(Report::NotFrozen), PauseStage::Freezing) => {
                self.effects.push(Effect::RecordState(RowState::Running));
                stay(Phase::Running { proc })
            }
            (Input::Report(report), _) => stay(self.heard(Phase::Pausing { proc, stage }, report)),
        }
    }

    fn paused(&mut self, now: Timestamp, proc: Box<RunIdentity>, input: Input) -> Turn {
        match input {
            Input::Command(Command::Stop(order)) => stay(self.begin_stop(now, proc, order)),
            Input::Command(Command::Resume) => {
                self.effects.push(Effect::Thaw);
                stay(Phase::Resuming { proc })
            }
            Input::Command(Command::Interrupt | Command::Pause) => {
                (Phase::Paused { proc }, Err(Refusal::Paused))
            }
            Input::Command(Command::Admit) => {
                (Phase::Paused { proc }, Err(Refusal::AlreadyAdmitted))
            }
            Input::Report(report) => stay(self.heard(Phase::Paused { proc }, report)),
        }
    }

    fn resuming(&mut self, now: Timestamp, proc: Box<RunIdentity>, input: Input) -> Turn {
        match input {
            Input::Command(Command::Stop(order)) => stay(self.begin_stop(now, proc, order)),
            // The wish is being fulfilled.
            Input::Command(Command::Resume) => stay(Phase::Resuming { proc }),
            Input::Command(Command::Interrupt | Command::Pause) => {
                (Phase::Resuming { proc }, Err(Refusal::Paused))
            }
            Input::Command(Command::Admit) => {
                (Phase::Resuming { proc }, Err(Refusal::AlreadyAdmitted))
            }
            Input::Report(Report::Thawed) => {
                self.effects.extend([
                    Effect::Announce(Announcement::Resumed),
                    Effect::RecordState(RowState::Running),
                ]);
                stay(Phase::Running { proc })
            }
            Input::Report(report) => stay(self.heard(Phase::Resuming { proc }, report)),
        }
    }

    fn stopping(
        &mut self,
        now: Timestamp,
        proc: Box<RunIdentity>,
        order: StopOrder,
        deadline: Timestamp,
        stage: StopStage,
        input: Input,
    ) -> Turn {
        match input {
            Input::Command(Command::Stop(again)) => {
                let deadline = self
                    .shorten(now, Some(deadline), &again)
                    .unwrap_or(deadline);
                stay(Phase::Stopping {
                    proc,
                    order,
                    deadline,
                    stage,
                })
            }
            Input::Command(Command::Admit) => (
                Phase::Stopping {
                    proc,
                    order,
                    deadline,
                    stage,
                },
                Err(Refusal::AlreadyAdmitted),
            ),
            Input::Command(_) => (
                Phase::Stopping {
                    proc,
                    order,
                    deadline,
                    stage,
                },
                Err(Refusal::Stopping),
            ),
            Input::Report(Report::StopRecorded) => {
                if stage == StopStage::Recording {
                    let order = order.clone();
                    self.announce(Announcement::Stopping { order, deadline });
                }
                self.order_stop();
                let stage = StopStage::Ordered;
                stay(Phase::Stopping {
                    proc,
                    order,
                    deadline,
                    stage,
                })
            }
            Input::Report(report) => stay(self.heard(
                Phase::Stopping {
                    proc,
                    order,
                    deadline,
                    stage,
                },
                report,
            )),
        }
    }

    fn draining(
        &mut self,
        now: Timestamp,
        proc: Box<RunIdentity>,
        stop: Option<StopOrder>,
        deadline: Option<Timestamp>,
        input: Input,
    ) -> Turn {
        match input {
            // The rest of the tree is being stopped already; this can only be made quicker.
            Input::Command(Command::Stop(order)) => {
                let deadline = self.shorten(now, deadline, &order).or(deadline);
                stay(Phase::Draining {
                    proc,
                    stop,
                    deadline,
                })
            }
            Input::Command(Command::Admit) => (
                Phase::Draining {
                    proc,
                    stop,
                    deadline,
                },
                Err(Refusal::AlreadyAdmitted),
            ),
            Input::Command(_) => (
                Phase::Draining {
                    proc,
                    stop,
                    deadline,
                },
                Err(Refusal::Stopping),
            ),
            Input::Report(Report::StopRecorded) => {
                self.order_stop();
                stay(Phase::Draining {
                    proc,
                    stop,
                    deadline,
                })
            }
            Input::Report(report) => stay(self.heard(
                Phase::Draining {
                    proc,
                    stop,
                    deadline,
                },
                report,
            )),
        }
    }

    fn closing(&mut self, outcome: Outcome, input: &Input) -> Turn {
        match input {
            // The run is ending; that is what was asked for.
            Input::Command(Command::Stop(_)) => stay(Phase::Closing(outcome)),
            Input::Command(Command::Admit) => {
                (Phase::Closing(outcome), Err(Refusal::AlreadyAdmitted))
            }
            Input::Command(_) => (Phase::Closing(outcome), Err(Refusal::Stopping)),
            Input::Report(Report::OutcomeRecorded) => {
                self.effects.extend([
                    Effect::Announce(Announcement::Ended(outcome.clone())),
                    Effect::Acknowledge,
                ]);
                stay(Phase::Closed(outcome))
            }
            Input::Report(_) => stay(Phase::Closing(outcome)),
        }
    }

    fn closed(outcome: Outcome, input: &Input) -> Turn {
        match input {
            Input::Command(Command::Stop(_)) | Input::Report(_) => stay(Phase::Closed(outcome)),
            Input::Command(Command::Admit) => {
                (Phase::Closed(outcome), Err(Refusal::AlreadyAdmitted))
            }
            Input::Command(_) => (Phase::Closed(outcome), Err(Refusal::Ended)),
        }
    }

    /// What every phase after the gate makes of a report: exec's verdict and the three ends.
    fn heard(&mut self, phase: Phase, report: Report) -> Phase {
        match report {
            Report::Executed => {
                if self.exec == Exec::Awaited {
                    self.exec = Exec::Confirmed;
                    self.effects.push(Effect::Announce(Announcement::Started));
                    self.effects.push(Effect::RecordRunning);
                    return self.advance(match phase {
                        Phase::Released { proc } => Phase::Running { proc },
                        other => other,
                    });
                }
            }
            Report::ExecFailed(failure) => {
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
            | Report::Frozen
            | Report::NotFrozen
            | Report::Thawed
            | Report::OutcomeRecorded => {}
        }
        self.advance(phase)
    }

    /// Announces the ends that are known, and goes on when they allow it.
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
        if !self.told.leader {
            self.told.leader = true;
            self.announce(Announcement::LeaderExited(exit));
        }
        if let (Some(how), false) = (self.ends.streams, self.told.streams) {
            self.told.streams = true;
            self.announce(Announcement::StreamsClosed(how));
        }
        if let (Some(tree), false) = (self.ends.tree.clone(), self.told.tree) {
            self.told.tree = true;
            self.announce(Announcement::TreeEnded(tree));
            if self.ends.streams.is_none() {
                self.effects.push(Effect::FinishOutput);
            }
        }
        let phase = drained(phase);
        let Phase::Draining { stop, .. } = &phase else {
            return phase;
        };
        let (Some(tree), Some(streams)) = (self.ends.tree.clone(), self.ends.streams) else {
            return phase;
        };
        let reason = stop
            .clone()
            .map_or(EndReason::Exited, |order| order.reason.into());
        self.close(Outcome {
            reason,
            exit: Some(exit),
            tree,
            streams: Some(streams),
        })
    }

    fn begin_stop(&mut self, now: Timestamp, proc: Box<RunIdentity>, order: StopOrder) -> Phase {
        let plan = plan(&order);
        let deadline = now.plus(plan.kill_after);
        self.unrecorded = Some(plan);
        self.effects.push(Effect::RecordStop { deadline });
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
        self.unrecorded = Some(plan);
        self.effects.push(Effect::RecordStop { deadline: sooner });
        Some(sooner)
    }

    fn order_stop(&mut self) {
        if let Some(plan) = self.unrecorded.take()
            && self.ends.tree.is_none()
        {
            self.effects.push(Effect::StopTree(plan));
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
        self.close(Outcome {
            reason,
            exit: None,
            tree,
            streams: None,
        })
    }

    fn close(&mut self, outcome: Outcome) -> Phase {
        self.effects.push(Effect::RecordOutcome(outcome.clone()));
        Phase::Closing(outcome)
    }

    fn announce(&mut self, announcement: Announcement) {
        self.effects.push(Effect::Announce(announcement));
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
        StopReason::Abort { .. } => StopPlan::abort(order.grace),
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
