//! While the run is being paused, is paused, or is being resumed.

use super::Machine;
use crate::{Effect, Entry, Phase, Report, ResumeReason, RowState, phase::PauseStage};

impl Machine {
    pub(super) fn pausing(&mut self, stage: PauseStage, report: Report) -> Phase {
        match (report, stage) {
            (Report::StateRecorded(RowState::Pausing), PauseStage::Recording) => {
                self.effects.push(Effect::Freeze);
                Phase::Pausing {
                    stage: PauseStage::Freezing,
                }
            }
            (Report::StateNotRecorded(RowState::Pausing), PauseStage::Recording) => Phase::Running,
            (Report::Frozen, PauseStage::Freezing) => {
                self.append(Entry::Paused);
                self.effects.push(Effect::RecordState(RowState::Paused));
                Phase::Paused
            }
            (Report::PauseExpired, PauseStage::Freezing) => Phase::Pausing {
                stage: PauseStage::Expired,
            },
            (Report::Frozen, PauseStage::Expired) => {
                self.append(Entry::Paused);
                self.resumed(ResumeReason::MaxPause)
            }
            (Report::NotFrozen, PauseStage::Freezing | PauseStage::Expired) => {
                self.effects.push(Effect::RecordState(RowState::Running));
                Phase::Running
            }
            (report, _) => self.on_report(Phase::Pausing { stage }, report),
        }
    }

    pub(super) fn resumed(&mut self, why: ResumeReason) -> Phase {
        self.append(Entry::Resumed { reason: why });
        self.effects.push(Effect::RecordState(RowState::Running));
        Phase::Running
    }
}
