//! Publishes the state of a run to the rest of the server.

use super::RunTask;
use crate::{
    base::{
        calls::{CallError, RunView},
        view::StartAnswer,
    },
    run::output::Output,
};
use kennel_lifecycle::{EndReason, NeverRan, Outcome, Phase, RunState, StartFailure, StartStage};
use kennel_store::Times;
use std::sync::Arc;

impl RunTask {
    /// Publishes the state of the run, and answers its Spawn where the start is decided.
    pub(super) fn publish(&self) {
        self.publish_view();
        let start = self.start_answer();
        self.live.send_if_modified(|live| {
            let answers = live.start.is_none() && start.is_some();
            if answers {
                live.start = start;
            }
            answers
        });
    }

    /// Publishes the state of the run. Its Spawn is answered only when the entry of its start exists.
    pub(super) fn publish_view(&self) {
        let view = self.view();
        let stop_owed = self.stops_owed > 0;
        let hub = self.output.as_ref().map(Output::hub);
        self.live.send_modify(|live| {
            live.view = view;
            live.hub = hub;
            live.stop_owed = stop_owed;
        });
    }

    pub(super) fn view(&self) -> RunView {
        let phase = self.machine.phase();
        let closed = match phase {
            Phase::Closed(outcome) => Some(outcome),
            _ => None,
        };
        let waits = closed.is_some() && self.attempts.has_next_attempt();
        let outcome = closed.filter(|_| !waits).cloned();
        let exit = match closed {
            Some(outcome) => outcome.exit,
            None => self.times().leader_exited.and(self.machine.ends().leader),
        };
        RunView {
            run: self.run,
            owner: self.new.owner.clone(),
            node: self.new.node,
            state: if waits {
                RunState::Backoff
            } else {
                phase.public()
            },
            desired: self.desired,
            attempt: self.new.attempt,
            identity: self.new.identity.clone(),
            held: self.new.held.clone(),
            stop_deadline: self.stop_deadline,
            limit_ends: self.limit_ends(),
            pause_expires: match phase {
                Phase::Paused { .. } => {
                    let max_pause = self.new.policy().pause.max_pause;
                    self.machine.record().pause_over_at(max_pause)
                }
                _ => None,
            },
            terminal: self.terminal_now(),
            spec: Arc::clone(&self.new.spec),
            traceparent: self.new.traceparent.clone(),
            restarted_from: self.new.restarted_from,
            created: self.new.created,
            // The end is reported once it is written.
            times: Times {
                ended: self.times().ended.filter(|_| outcome.is_some()),
                ..self.times()
            },
            exit,
            outcome,
            stuck: self.machine.stuck().cloned(),
            past: self.attempts.past.clone(),
            restarts: self.attempts.restarts,
            next_restart: self.attempts.next().filter(|_| waits),
            output_removed: None,
            facets: self.facets.shown().clone(),
            elsewhere: None,
            left_stop: None,
        }
    }

    /// Returns the result of the start, where that is decided. A failure is reported when nothing of the run is left
    /// and that is written; only for a store that does not answer no caller waits, because its return cannot be
    /// predicted.
    pub(super) fn start_answer(&self) -> Option<StartAnswer> {
        if self.times().started.is_some() || self.new.attempt > 1 {
            return Some(StartAnswer::Started);
        }
        let why = match self.machine.phase() {
            Phase::Forgotten(why) => why.clone(),
            Phase::Closing(Outcome {
                reason:
                    EndReason::StartFailed(
                        failure @ StartFailure {
                            stage: StartStage::Record,
                            ..
                        },
                    ),
                ..
            }) => NeverRan::Failed(failure.clone()),
            Phase::Closed(outcome) if outcome.exit.is_none() => match &outcome.reason {
                EndReason::StartFailed(failure) => NeverRan::Failed(failure.clone()),
                _ => return Some(StartAnswer::Failed(CallError::StoppedFirst(self.run))),
            },
            // It may have run: the shim died before it could report.
            Phase::Draining { .. }
            | Phase::Closing(Outcome { exit: Some(_), .. })
            | Phase::Closed(Outcome { exit: Some(_), .. }) => return Some(StartAnswer::Started),
            _ => return None,
        };
        if let Some(refused) = &self.refused {
            return Some(refused.clone());
        }
        Some(match why {
            NeverRan::Superseded
            | NeverRan::Failed(StartFailure {
                stage: StartStage::Record,
                ..
            }) => StartAnswer::Failed(CallError::StoreUnavailable),
            NeverRan::Failed(failure) => StartAnswer::Failed(CallError::SpawnFailed {
                run: self.run,
                failure,
            }),
            NeverRan::Stopped(_) => StartAnswer::Failed(CallError::StoppedFirst(self.run)),
        })
    }
}
