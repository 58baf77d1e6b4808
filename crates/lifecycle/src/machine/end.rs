//! From a stop, or the leader's own exit, to the written outcome.

use super::{Machine, Turn, stay};
use crate::{
    Command, Effect, Entry, Input, Outcome, Phase, Refusal, Report, RunIdentity, StopOrder,
    StopReason, StopStage, Timestamp,
};
use std::time::Duration;

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
                    self.append(Entry::Stopping { order, deadline });
                }
                if let Some((_, plan)) = self.recorded_stop() {
                    self.effects.push(Effect::StopTree(plan));
                }
                let stage = StopStage::Ordered;
                stay(Phase::Stopping {
                    proc,
                    order,
                    deadline,
                    stage,
                })
            }
            Input::Report(report) => stay(self.on_report(
                now,
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
            // Where the rest is being stopped already, a stop can only shorten that.
            Input::Command(Command::Stop(order)) => {
                let deadline = self.shorten(now, deadline, &order).or(deadline);
                stay(Phase::Draining {
                    proc,
                    stop,
                    deadline,
                })
            }
            // The rest lives, and gets the signal.
            Input::Command(Command::Interrupt) if self.rest_continues(stop.as_ref()) => {
                self.effects.push(Effect::Interrupt);
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
                let stop = self.stop_rest(stop, deadline);
                stay(Phase::Draining {
                    proc,
                    stop,
                    deadline,
                })
            }
            Input::Report(report) => stay(self.on_report(
                now,
                Phase::Draining {
                    proc,
                    stop,
                    deadline,
                },
                report,
            )),
        }
    }

    /// Handles the keeper's own stop: the run exceeded its time limit, and the keeper has begun the run's own plan. The
    /// reason that began the end stays; a stop in progress can only have become shorter.
    pub(super) fn keeper_stops(
        &mut self,
        now: Timestamp,
        phase: Phase,
        reason: StopReason,
        grace: Duration,
    ) -> Phase {
        let due = now.plus(grace);
        let order = StopOrder { reason, grace };
        match phase {
            Phase::Released { proc }
            | Phase::Running { proc }
            | Phase::Pausing { proc, .. }
            | Phase::Paused { proc }
            | Phase::Resuming { proc } => {
                self.record_stop(&order, due);
                self.append(Entry::Stopping {
                    order: order.clone(),
                    deadline: due,
                });
                Phase::Stopping {
                    proc,
                    order,
                    deadline: due,
                    stage: StopStage::Ordered,
                }
            }
            Phase::Stopping {
                proc,
                order,
                deadline,
                stage,
            } => {
                let due = due.min(deadline);
                if stage == StopStage::Recording {
                    self.append(Entry::Stopping {
                        order: order.clone(),
                        deadline: due,
                    });
                }
                if due < deadline {
                    self.record_stop(&order, due);
                }
                Phase::Stopping {
                    proc,
                    order,
                    deadline: due,
                    // Signals were sent, so an exit that follows has followed the stop.
                    stage: StopStage::Ordered,
                }
            }
            // The leader has exited by itself, and the rest of its tree has taken too long.
            Phase::Draining {
                proc,
                stop: None,
                deadline: None,
            } if self.ends.tree.is_none() => {
                self.record_stop(&order, due);
                Phase::Draining {
                    proc,
                    stop: Some(order),
                    deadline: Some(due),
                }
            }
            other => other,
        }
    }

    pub(super) fn closing(&mut self, outcome: Outcome, input: &Input) -> Turn {
        match input {
            // The run is ending, as requested.
            Input::Command(Command::Stop(_)) => stay(Phase::Closing(outcome)),
            Input::Command(Command::Admit) => {
                (Phase::Closing(outcome), Err(Refusal::AlreadyAdmitted))
            }
            Input::Command(_) => (Phase::Closing(outcome), Err(Refusal::Stopping)),
            Input::Report(Report::OutcomeRecorded) => {
                if !self.record.has_end(self.next) {
                    self.append(Entry::end(&outcome, self.next));
                }
                self.effects.push(Effect::Acknowledge);
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
