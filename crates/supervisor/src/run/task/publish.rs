//! Publishes the state of a run to the rest of the server.

use super::RunTask;
use crate::{
    base::{
        calls::{CallError, RunView},
        view::StartAnswer,
    },
    run::output::Output,
};
use kennel_lifecycle::{
    EndReason, Leaving, NeverRan, Outcome, Phase, Refusal, Row, RunState, StartFailure, StartStage,
    Timestamp,
};
use kennel_store::Times;

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

    /// Publishes the state of the run, and wakes its readers where that has changed. Its Spawn is answered only when the
    /// entry of its start exists. Before its first entry, which follows its record, it is no run for readers: its key may
    /// be that of a run that has ended (INV-8).
    pub(super) fn publish_view(&self) {
        let hub = self.output.as_ref().map(Output::hub);
        let hub = hub.filter(|hub| hub.head().seq > 0);
        let mut is_known = hub.is_some();
        self.live.send_if_modified(|live| {
            let changes = [
                self.show(&mut live.view),
                set(&mut live.hub, hub),
                set(&mut live.stop_pending, self.projection.pending_stops > 0),
            ];
            is_known |= live.view.outcome.is_some();
            changes.contains(&true)
        });
        if is_known {
            self.shared.announce(self.run);
        }
    }

    /// Makes the view that of the run as it is. Returns whether that changes it.
    fn show(&self, view: &mut RunView) -> bool {
        let phase = self.machine.phase();
        let closed = match phase {
            Phase::Closed(outcome) => Some(outcome),
            _ => None,
        };
        let waits = self.waits();
        let outcome = closed.filter(|_| !waits);
        let exit = match closed {
            Some(outcome) => outcome.exit,
            None => self.times().leader_exited.and(self.machine.ends().leader),
        };
        let clock = &self.shared.clock;
        let record = self.machine.record();
        let stop_deadline = self
            .attempts
            .stop_deadline
            .map(|due| match record.stop_asked_at() {
                Some(asked) => clock.reckoned(asked, due),
                None => due,
            });
        let next_restart = match (
            self.attempts.next().filter(|_| waits),
            self.attempts.last_end(),
        ) {
            (Some(due), Some(ended)) if due != Timestamp::NEVER => Some(clock.reckoned(ended, due)),
            (due, _) => due,
        };
        let pause_expires = match (phase, record.paused_since) {
            (Phase::Paused, Some(since)) => {
                let max_pause = self.new.policy().pause.max_pause;
                max_pause.map(|max| clock.reckoned(since, since.plus(max)))
            }
            _ => None,
        };
        // The end time appears once the outcome is written.
        let times = Times {
            ended: self.times().ended.filter(|_| outcome.is_some()),
            ..self.times()
        };
        let row = &mut view.row;
        let changes = [
            set_copy(&mut row.new, &self.new),
            set(&mut row.desired, self.attempts.desired),
            set(&mut row.stop_deadline, stop_deadline),
            set(&mut row.times, times),
            set_found(&mut row.outcome, outcome),
            set_copy(&mut row.past, &self.attempts.past),
            set(&mut row.restarts, self.attempts.restarts),
            set(&mut row.next_restart, next_restart),
            set(&mut row.output_removed, None),
            set_copy(&mut row.facets, self.facets.shown()),
            set(&mut view.state, self.state()),
            set(&mut view.limit_ends, self.limit_ends()),
            set(&mut view.pause_expires, pause_expires),
            set(&mut view.terminal, self.terminal_now()),
            set(&mut view.exit, exit),
            set_found(&mut view.stuck, self.machine.stuck()),
            set(&mut view.elsewhere, None),
            set(&mut view.left_stop, None),
            set_copy(&mut view.pinned, &self.pinned),
        ];
        changes.contains(&true)
    }

    /// Whether the present attempt has ended, and another one follows.
    fn waits(&self) -> bool {
        matches!(self.machine.phase(), Phase::Closed(_)) && self.attempts.has_next_attempt()
    }

    pub(super) fn state(&self) -> RunState {
        if self.waits() {
            RunState::Backoff
        } else {
            self.machine.phase().public()
        }
    }

    /// Makes the refusal of a call, with the state for which it is refused: a caller that read the state later could
    /// find one in which the call is allowed.
    pub(super) fn refuse_call(&self, refusal: Refusal) -> CallError {
        CallError::Refused {
            run: self.run,
            refusal,
            state: self.state(),
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
            Phase::Leaving(Leaving {
                row: Row::Withdrawing,
                why:
                    NeverRan::Failed(
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
            // The command may have run: the shim died before it could report.
            Phase::Draining { .. }
            | Phase::Closing(Outcome { exit: Some(_), .. })
            | Phase::Closed(Outcome { exit: Some(_), .. }) => return Some(StartAnswer::Started),
            _ => return None,
        };
        if let Some(refused) = &self.waiters.refused {
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

/// Sets a value that is shown. Returns whether that changes it.
fn set<T: PartialEq>(shown: &mut T, value: T) -> bool {
    let changes = *shown != value;
    if changes {
        *shown = value;
    }
    changes
}

/// As [`set`], copied where it differs.
fn set_copy<T: PartialEq + Clone>(shown: &mut T, value: &T) -> bool {
    let changes = shown != value;
    if changes {
        shown.clone_from(value);
    }
    changes
}

/// As [`set_copy`], of a value that may be absent.
fn set_found<T: PartialEq + Clone>(shown: &mut Option<T>, value: Option<&T>) -> bool {
    let changes = shown.as_ref() != value;
    if changes {
        *shown = value.cloned();
    }
    changes
}
