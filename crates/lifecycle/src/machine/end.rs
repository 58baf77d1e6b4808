//! From a stop, or the leader's own exit, to the written outcome.

use super::Machine;
use crate::{Effect, Entry, Outcome, Phase, StopOrder, StopReason, StopStage};
use std::time::Duration;

impl Machine {
    /// Carries out a recorded stop.
    pub(super) fn stop_recorded(&mut self, phase: Phase) -> Phase {
        match phase {
            Phase::Stopping {
                order,
                deadline,
                stage,
            } => {
                if stage == StopStage::Recording {
                    let order = order.clone();
                    self.append(Entry::Stopping { order, deadline });
                }
                if let Some((_, plan)) = self.recorded_stop() {
                    self.effects.push(Effect::StopTree(plan));
                }
                Phase::Stopping {
                    order,
                    deadline,
                    stage: StopStage::Ordered,
                }
            }
            Phase::Draining { stop, deadline } => Phase::Draining {
                stop: self.stop_rest(stop, deadline),
                deadline,
            },
            other => other,
        }
    }

    /// Handles the keeper's own stop: the run exceeded its time limit, and the keeper has begun the run's own plan. The
    /// first reason stays; a stop in progress can only become shorter.
    pub(super) fn keeper_stops(
        &mut self,
        phase: Phase,
        reason: StopReason,
        grace: Duration,
    ) -> Phase {
        let due = self.now.plus(grace);
        let order = StopOrder { reason, grace };
        match phase {
            Phase::Released
            | Phase::Running
            | Phase::Pausing { .. }
            | Phase::Paused
            | Phase::Resuming => {
                self.record_stop(&order, due);
                self.append(Entry::Stopping {
                    order: order.clone(),
                    deadline: due,
                });
                Phase::Stopping {
                    order,
                    deadline: due,
                    stage: StopStage::Ordered,
                }
            }
            Phase::Stopping {
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
                    order,
                    deadline: due,
                    // Signals were sent, so a later exit follows the stop.
                    stage: StopStage::Ordered,
                }
            }
            // The leader exited by itself, and its remaining processes took too long.
            Phase::Draining {
                stop: None,
                deadline: None,
            } if self.ends.tree.is_none() => {
                self.record_stop(&order, due);
                Phase::Draining {
                    stop: Some(order),
                    deadline: Some(due),
                }
            }
            other => other,
        }
    }

    pub(super) fn outcome_recorded(&mut self, outcome: Outcome) -> Phase {
        if !self.record.has_end(self.next) {
            self.append(Entry::end(&outcome, self.next));
        }
        self.effects.push(Effect::Acknowledge);
        Phase::Closed(outcome)
    }
}
