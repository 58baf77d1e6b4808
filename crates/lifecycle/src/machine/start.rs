//! From acceptance to the open gate, and the ways that lead back before it.

use super::{Machine, Turn, failed_at, latch, recorded, stay, with_tree};
use crate::{
    Command, Effect, Input, Leaving, NeverRan, Phase, Refusal, Report, Row, RunIdentity,
    StartStage, StopOrder, Timestamp, TreeVerdict,
};

impl Machine {
    pub(super) fn accepted(&mut self, input: Input) -> Turn {
        match input {
            Input::Command(Command::Admit) => {
                self.effects.push(Effect::Prepare);
                stay(Phase::Preparing { stop: None })
            }
            // Nothing exists, but the stop has to outlive this server: a late retry of the spawn must meet it.
            Input::Command(Command::Stop(order)) => {
                stay(self.close_never_ran(NeverRan::Stopped(order), TreeVerdict::NeverRan))
            }
            Input::Command(Command::Interrupt | Command::Pause | Command::Resume) => {
                (Phase::Accepted, Err(Refusal::NotRunningYet))
            }
            Input::Report(_) => stay(Phase::Accepted),
        }
    }

    pub(super) fn preparing(&mut self, stop: Option<StopOrder>, input: Input) -> Turn {
        match input {
            Input::Command(command) => {
                let (stop, answer) = latch(stop, command);
                (Phase::Preparing { stop }, answer)
            }
            Input::Report(Report::Prepared(proc)) => stay(match stop {
                // INV-2: the stop came before the gate.
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
                None if self.follows => {
                    self.close_never_ran(NeverRan::Failed(failure), TreeVerdict::NeverRan)
                }
                None => {
                    self.effects.push(Effect::Forget);
                    Phase::Forgotten(NeverRan::Failed(failure))
                }
            }),
            // A stop refers to the run under the key, which is not this one.
            Input::Report(Report::KeyTaken) => {
                self.effects.push(Effect::Forget);
                stay(Phase::Forgotten(NeverRan::Superseded))
            }
            Input::Report(_) => stay(Phase::Preparing { stop }),
        }
    }

    pub(super) fn gated(
        &mut self,
        proc: Box<RunIdentity>,
        stop: Option<StopOrder>,
        input: Input,
    ) -> Turn {
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
                    // INV-1: here alone, after the row was committed, and this phase is left with it.
                    self.append(recorded(&proc));
                    // INV-1, INV-2: only here, after the row is written and while no stop was accepted.
                    self.effects.push(Effect::Release);
                    Phase::Released { proc }
                }
            },
            Report::RecordFailed => {
                let row = self.unrecorded_row(stop.is_some());
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
            | Report::LeftBehind(_)
            | Report::Signalled(_)
            | Report::InputStopped(_)
            | Report::CommandStopped(_)
            | Report::KillSent
            | Report::MemoryKills(_)
            | Report::Usage(_)
            | Report::Census(_)
            | Report::TreeStuck(_)
            | Report::Frozen
            | Report::NotFrozen
            | Report::Thawed
            | Report::PauseExpired
            | Report::KeeperStops { .. }
            | Report::OutcomeRecorded
            | Report::Withdrawn
            | Report::NotWithdrawn => Phase::Gated { proc, stop },
        })
    }

    pub(super) fn leaving(&mut self, mut leaving: Leaving, input: Input) -> Turn {
        match input {
            Input::Command(Command::Stop(order)) => match (&leaving.why, leaving.row) {
                // The row under the key is another run's; this run is as good as gone.
                (NeverRan::Superseded, _) => return (Phase::Leaving(leaving), Err(Refusal::Ended)),
                (NeverRan::Stopped(_), _) | (NeverRan::Failed(_), Row::Owed) => {}
                // The stop has to outlive this server: a late retry of the spawn must meet it.
                (NeverRan::Failed(_), Row::Absent | Row::Void) => {
                    leaving.why = NeverRan::Stopped(order);
                    leaving.row = Row::Owed;
                }
                (NeverRan::Failed(_), Row::InFlight | Row::Withdrawing) => {
                    leaving.why = NeverRan::Stopped(order);
                }
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
                    leaving.row = self.unrecorded_row(stopped);
                }
            }
            Input::Report(Report::KeyTaken) => {
                if leaving.row == Row::InFlight {
                    leaving.row = Row::Absent;
                    leaving.why = NeverRan::Superseded;
                }
            }
            Input::Report(Report::Withdrawn) => {
                if leaving.row == Row::Withdrawing {
                    let stopped = matches!(leaving.why, NeverRan::Stopped(_));
                    leaving.row = self.unrecorded_row(stopped);
                }
            }
            Input::Report(Report::NotWithdrawn) => {
                if leaving.row == Row::Withdrawing {
                    leaving.row = Row::Owed;
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
            (Row::Void, Some(tree)) => {
                self.effects.push(Effect::Withdraw);
                leaving.row = Row::Withdrawing;
                with_tree(Phase::Leaving(leaving), tree)
            }
            (_, tree) => Phase::Leaving(Leaving { tree, ..leaving }),
        })
    }

    pub(super) fn released(
        &mut self,
        now: Timestamp,
        proc: Box<RunIdentity>,
        input: Input,
    ) -> Turn {
        match input {
            Input::Command(Command::Stop(order)) => stay(self.begin_stop(now, proc, order)),
            Input::Command(Command::Admit) => {
                (Phase::Released { proc }, Err(Refusal::AlreadyAdmitted))
            }
            Input::Command(Command::Interrupt | Command::Pause | Command::Resume) => {
                (Phase::Released { proc }, Err(Refusal::NotRunningYet))
            }
            Input::Report(report) => stay(self.on_report(now, Phase::Released { proc }, report)),
        }
    }
}
