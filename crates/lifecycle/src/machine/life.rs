//! While the command runs, is paused, or is resumed.

use super::{Machine, Turn, stay};
use crate::{
    Command, Effect, Entry, Input, Phase, Refusal, Report, ResumeReason, RowState, RunIdentity,
    Timestamp, phase::PauseStage,
};

impl Machine {
    pub(super) fn running(&mut self, now: Timestamp, proc: Box<RunIdentity>, input: Input) -> Turn {
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
            Input::Report(report) => stay(self.on_report(now, Phase::Running { proc }, report)),
        }
    }

    pub(super) fn pausing(
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
                self.append(Entry::Paused);
                self.effects.push(Effect::RecordState(RowState::Paused));
                stay(Phase::Paused { proc })
            }
            (Input::Report(Report::PauseExpired), PauseStage::Freezing) => stay(Phase::Pausing {
                proc,
                stage: PauseStage::Expired,
            }),
            (Input::Report(Report::Frozen), PauseStage::Expired) => {
                self.append(Entry::Paused);
                stay(self.resumed(proc, ResumeReason::MaxPause))
            }
            (Input::Report(Report::NotFrozen), PauseStage::Freezing | PauseStage::Expired) => {
                self.effects.push(Effect::RecordState(RowState::Running));
                stay(Phase::Running { proc })
            }
            (Input::Report(report), _) => {
                stay(self.on_report(now, Phase::Pausing { proc, stage }, report))
            }
        }
    }

    pub(super) fn paused(&mut self, now: Timestamp, proc: Box<RunIdentity>, input: Input) -> Turn {
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
            Input::Report(Report::PauseExpired) => stay(self.resumed(proc, ResumeReason::MaxPause)),
            Input::Report(report) => stay(self.on_report(now, Phase::Paused { proc }, report)),
        }
    }

    fn resumed(&mut self, proc: Box<RunIdentity>, why: ResumeReason) -> Phase {
        self.append(Entry::Resumed { reason: why });
        self.effects.push(Effect::RecordState(RowState::Running));
        Phase::Running { proc }
    }

    pub(super) fn resuming(
        &mut self,
        now: Timestamp,
        proc: Box<RunIdentity>,
        input: Input,
    ) -> Turn {
        match input {
            Input::Command(Command::Stop(order)) => stay(self.begin_stop(now, proc, order)),
            // The request is being carried out.
            Input::Command(Command::Resume) => stay(Phase::Resuming { proc }),
            Input::Command(Command::Interrupt | Command::Pause) => {
                (Phase::Resuming { proc }, Err(Refusal::Paused))
            }
            Input::Command(Command::Admit) => {
                (Phase::Resuming { proc }, Err(Refusal::AlreadyAdmitted))
            }
            Input::Report(Report::Thawed) => stay(self.resumed(proc, ResumeReason::Asked)),
            Input::Report(report) => stay(self.on_report(now, Phase::Resuming { proc }, report)),
        }
    }
}
