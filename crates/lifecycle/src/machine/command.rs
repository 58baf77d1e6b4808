//! Commands: one table of refusals, one of the phases that follow.

use super::{Machine, plan};
use crate::{
    Command, Effect, NeverRan, Phase, Refusal, RowState, StopOrder, StopStage, Timestamp,
    TreeVerdict, phase::PauseStage,
};

impl Machine {
    /// Returns why this command does not apply now.
    pub(super) fn refusal(&self, command: &Command) -> Option<Refusal> {
        let refusal = match (&self.phase, command) {
            (Phase::Forgotten(_), _) => Refusal::Ended,
            (Phase::Accepted, Command::Admit)
            | (Phase::Running, Command::Interrupt | Command::Pause)
            | (Phase::Paused | Phase::Resuming, Command::Resume) => return None,
            (_, Command::Admit) => Refusal::AlreadyAdmitted,
            // The row under the key belongs to another run; this run counts as ended.
            (Phase::Leaving(leaving), Command::Stop(_)) if leaving.why == NeverRan::Superseded => {
                Refusal::Ended
            }
            (_, Command::Stop(_)) => return None,
            (
                Phase::Accepted | Phase::Preparing { .. } | Phase::Gated { .. } | Phase::Released,
                _,
            ) => Refusal::NotRunningYet,
            (Phase::Running, Command::Resume) => Refusal::NotPaused,
            (Phase::Pausing { .. } | Phase::Paused | Phase::Resuming, _) => Refusal::Paused,
            // Remaining processes get the signal.
            (Phase::Draining { stop, .. }, Command::Interrupt)
                if self.rest_continues(stop.as_ref()) =>
            {
                return None;
            }
            (
                Phase::Leaving(_)
                | Phase::Stopping { .. }
                | Phase::Draining { .. }
                | Phase::Closing(_),
                _,
            ) => Refusal::Stopping,
            (Phase::Closed(_), _) => Refusal::Ended,
        };
        Some(refusal)
    }

    /// Obeys a command that is not refused.
    pub(super) fn obey(&mut self, phase: Phase, command: Command) -> Phase {
        match (phase, command) {
            (Phase::Accepted, Command::Admit) => {
                self.effects.push(Effect::Prepare);
                Phase::Preparing { stop: None }
            }
            // No child exists, but the stop must outlive this server: a late retry of the spawn must find it.
            (Phase::Accepted, Command::Stop(order)) => {
                self.close_never_ran(NeverRan::Stopped(order), TreeVerdict::NeverRan)
            }
            // A stop wins at the next safe point, and the earlier order stands.
            (Phase::Preparing { stop }, Command::Stop(order)) => Phase::Preparing {
                stop: stop.or(Some(order)),
            },
            (Phase::Gated { stop }, Command::Stop(order)) => Phase::Gated {
                stop: stop.or(Some(order)),
            },
            (Phase::Leaving(leaving), Command::Stop(order)) => self.stop_leaving(leaving, order),
            (
                Phase::Released
                | Phase::Running
                | Phase::Pausing { .. }
                | Phase::Paused
                | Phase::Resuming,
                Command::Stop(order),
            ) => {
                let plan = plan(&order);
                let deadline = self.now.plus(plan.kill_after);
                self.unrecorded = Some((order.clone(), plan));
                self.record_stop(&order, deadline);
                Phase::Stopping {
                    order,
                    deadline,
                    stage: StopStage::Recording,
                }
            }
            (phase @ (Phase::Running | Phase::Draining { .. }), Command::Interrupt) => {
                self.effects.push(Effect::Interrupt);
                phase
            }
            (Phase::Running, Command::Pause) => {
                self.effects.push(Effect::RecordState(RowState::Pausing));
                let stage = PauseStage::Recording;
                Phase::Pausing { stage }
            }
            (Phase::Paused, Command::Resume) => {
                self.effects.push(Effect::Thaw);
                Phase::Resuming
            }
            (
                Phase::Stopping {
                    order,
                    deadline,
                    stage,
                },
                Command::Stop(again),
            ) => Phase::Stopping {
                order,
                deadline: self.shorten(Some(deadline), &again).unwrap_or(deadline),
                stage,
            },
            // If remaining processes are being stopped already, a stop can only shorten the deadline.
            (Phase::Draining { stop, deadline }, Command::Stop(order)) => Phase::Draining {
                stop,
                deadline: self.shorten(deadline, &order).or(deadline),
            },
            // The command is being carried out, or was; any other is refused.
            (other, _) => other,
        }
    }

    /// Applies a further order: it counts only if there is a tree and it brings SIGKILL forward. Returns the new
    /// deadline.
    fn shorten(&mut self, deadline: Option<Timestamp>, order: &StopOrder) -> Option<Timestamp> {
        let plan = plan(order);
        let sooner = self.now.plus(plan.kill_after);
        if self.ends.tree.is_some() || deadline.is_some_and(|deadline| deadline <= sooner) {
            return None;
        }
        self.unrecorded = Some((order.clone(), plan));
        self.record_stop(order, sooner);
        Some(sooner)
    }
}
