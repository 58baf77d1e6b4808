//! From a stop, or the leader's own end, to the written outcome.

use super::{Machine, Turn, stay};
use crate::{
    Announcement, Command, Effect, Input, Outcome, Phase, Refusal, Report, RunIdentity, StopOrder,
    StopStage, Timestamp,
};

impl Machine {
    pub(super) fn stopping(
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

    pub(super) fn draining(
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

    pub(super) fn closing(&mut self, outcome: Outcome, input: &Input) -> Turn {
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

    pub(super) fn closed(outcome: Outcome, input: &Input) -> Turn {
        match input {
            Input::Command(Command::Stop(_)) | Input::Report(_) => stay(Phase::Closed(outcome)),
            Input::Command(Command::Admit) => {
                (Phase::Closed(outcome), Err(Refusal::AlreadyAdmitted))
            }
            Input::Command(_) => (Phase::Closed(outcome), Err(Refusal::Ended)),
        }
    }
}
