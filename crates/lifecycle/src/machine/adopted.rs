//! A run whose server has died, and which the next one goes on with: where it stands, by its row, its journal and its
//! keeper.
//!
//! INVARIANT: the keeper tells every fact again that no server has acknowledged, in order. What the journal has told is
//! not told again, what is missing in it is.

use super::{Machine, drained, failed_at, plan};
use crate::{
    AttemptRecord, Deadline, Effect, Ends, Entry, LastPause, LeaderExit, Leaving, NeverRan,
    NextAttempt, Outcome, Phase, ResumeReason, Row, RowState, RunIdentity, StartStage, StopOrder,
    StopReason, StopStage, Times, Timestamp, limits,
    phase::{Exec, PauseStage},
};
use serde::{Deserialize, Serialize};

/// All that is known of such a run before its keeper has told the facts again.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Who runs.
    pub identity: Box<RunIdentity>,
    /// What becomes of the rest when the leader ends by itself.
    pub on_leader_exit: LeaderExit,
    /// Whether the gate was opened; if not, nothing ran and nothing will.
    pub released: bool,
    /// Whether the keeper has stopped the tree for a pause.
    pub pause: HeldPause,
    /// Its row; absent: there is none.
    pub row: Option<RowSays>,
    /// What its entries say.
    pub record: AttemptRecord,
}

/// How the pause of such a run stands, by its keeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldPause {
    /// It is not paused.
    #[default]
    None,
    /// Its tasks are being stopped. Nobody is told when they are; a pause that is asked for again says it.
    Stopping,
    /// Every task was seen stopped.
    Stopped,
    /// It is not paused: its last pause lasted for as long as it may, and the keeper has ended it.
    Expired,
    /// It was asked to go on, and somebody could not be continued yet: the keeper goes on trying.
    LettingGo,
}

/// What an open row says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowSays {
    /// Its state; absent: the run is starting.
    pub state: Option<RowState>,
    /// The stop that was accepted, with the time at which SIGKILL is due.
    pub stop: Option<(StopOrder, Timestamp)>,
    /// It is of the first attempt: where that has not run, no caller was answered.
    pub is_first: bool,
}

impl Machine {
    /// A run, or an attempt that another one follows, that has ended and is written, and whose server died before all its
    /// entries were there or the keeper could forget it.
    #[must_use]
    pub fn ended(
        now: Timestamp,
        outcome: Outcome,
        record: AttemptRecord,
        next: Option<NextAttempt>,
    ) -> Self {
        let mut machine = Self::new();
        machine.now = now;
        machine.record = record;
        for missing in machine.record.missing_ends(&outcome, next) {
            machine.append(missing);
        }
        machine.effects.push(Effect::Acknowledge);
        machine.ends = Ends {
            leader: outcome.exit,
            tree: Some(outcome.tree.clone()),
            streams: outcome.streams,
        };
        machine.phase = Phase::Closed(outcome);
        machine
    }

    /// A run of which nothing is there any more, and of which it was found out, or decided, how it has ended: that is to be
    /// written. `times` are those of its row.
    #[must_use]
    pub fn settled(now: Timestamp, outcome: Outcome, record: AttemptRecord, times: Times) -> Self {
        let mut machine = Self::new();
        machine.now = now;
        let known = times.or(record.times);
        machine.record = record;
        let missing = machine.record.missing_ends(&outcome, None);
        // The last one is the end, which follows when the outcome counts.
        for entry in missing.iter().take(missing.len().saturating_sub(1)) {
            machine.append(entry.clone());
        }
        // When an end was found is not when it happened; a verdict is of when it is given.
        machine.record.times = Times {
            tree_empty: known.tree_empty.or(machine.record.times.tree_empty),
            ..known
        };
        machine.phase = machine.close(outcome);
        machine
    }

    /// Goes on with a run whose server has died. What is to be done at once is among the [`Self::effects`].
    #[must_use]
    pub fn adopted(now: Timestamp, standing: Standing) -> Self {
        let Standing {
            identity: proc,
            on_leader_exit,
            released,
            pause,
            row,
            record,
        } = standing;
        let mut machine = Self::with(on_leader_exit);
        machine.now = now;
        machine.record = record.clone();
        let stop = earlier(
            row.as_ref().and_then(|row| row.stop.clone()),
            record.stopping.clone(),
        );
        if !released {
            let row = match (row, &stop) {
                (None, _) => Row::Absent,
                // Its Spawn may be made again under the same key, as after a death before the record.
                (Some(row), None) if row.is_first => Row::Void,
                (Some(_), _) => Row::Owed,
            };
            machine.phase = Phase::Leaving(Leaving {
                why: stop.map_or(failed_at(StartStage::Gate), |(order, _)| {
                    NeverRan::Stopped(order)
                }),
                row,
                tree: None,
            });
            return machine;
        }
        let row = row.unwrap_or_default();
        machine.recall(&proc, pause, &row);
        machine.phase = match stop {
            Some((order, deadline)) => {
                machine.go_on_with_stop(now, proc, order, deadline, &record, &row)
            }
            None if record.leader.is_some() => {
                if on_leader_exit == LeaderExit::Keep && !record.tree && machine.stuck.is_none() {
                    machine.effects.push(Effect::KeepRest);
                }
                drained(Phase::Running { proc })
            }
            None if machine.exec == Exec::Awaited => Phase::Released { proc },
            // SIGKILL has gone out, and with it whoever was stopped has been let go.
            None if machine.stuck.is_some() => drained(Phase::Running { proc }),
            None => machine.go_on_with_pause(proc, pause, record.pause, row.state),
        };
        machine
    }

    /// What was known, as far as it was told; the rest is told again.
    fn recall(&mut self, proc: &RunIdentity, pause: HeldPause, row: &RowSays) {
        let record = &self.record;
        self.ends.leader = record.leader;
        self.ends.streams = record.streams;
        self.stuck.clone_from(&record.stuck);
        let listed = u32::try_from(limits::STEPS_LISTED_MAX).unwrap_or(u32::MAX);
        self.certificate.steps_unlisted = record.steps.saturating_sub(listed);
        if !self.record.recorded {
            self.append(super::recorded(proc));
        }
        let runs = row.state.is_some() || pause != HeldPause::None;
        self.exec = match self.record.leader {
            _ if self.record.started => Exec::Confirmed,
            Some(_) => Exec::Assumed,
            None if runs => {
                self.append(Entry::Started);
                Exec::Confirmed
            }
            None => Exec::Awaited,
        };
    }

    /// A stop was accepted: its plan is handed over again, for nobody knows whether the keeper had it; and recorded
    /// again, before that.
    fn go_on_with_stop(
        &mut self,
        now: Timestamp,
        proc: Box<RunIdentity>,
        order: StopOrder,
        deadline: Timestamp,
        record: &AttemptRecord,
        row: &RowSays,
    ) -> Phase {
        // The keeper began with that one by itself.
        let own = matches!(
            order.reason,
            StopReason::DeadlineExceeded(Deadline::MaxRuntime | Deadline::MaxPause)
                | StopReason::Orphaned
                | StopReason::ShimLost
        );
        let in_force = own || record.stopping.is_some();
        if !(record.tree || own && row.stop.is_some()) {
            self.record_stop(&order, deadline);
        }
        if !record.tree && !own {
            let again = record.stop_again(now, order.clone(), deadline);
            self.unrecorded = Some((order.clone(), plan(&again)));
        }
        if record.leader.is_some() {
            return Phase::Draining {
                proc,
                stop: in_force.then_some(order),
                deadline: Some(deadline),
            };
        }
        if in_force && record.stopping.is_none() {
            let order = order.clone();
            self.append(Entry::Stopping { order, deadline });
        }
        Phase::Stopping {
            proc,
            order,
            deadline,
            stage: if in_force {
                StopStage::Ordered
            } else {
                StopStage::Recording
            },
        }
    }

    /// Nobody has stopped it: it runs or is paused.
    fn go_on_with_pause(
        &mut self,
        proc: Box<RunIdentity>,
        pause: HeldPause,
        reported: LastPause,
        row: Option<RowState>,
    ) -> Phase {
        let ended = match pause {
            HeldPause::Stopped => {
                if reported != LastPause::Paused {
                    self.append(Entry::Paused);
                }
                if row != Some(RowState::Paused) {
                    self.effects.push(Effect::RecordState(RowState::Paused));
                }
                return Phase::Paused { proc };
            }
            HeldPause::Stopping => {
                if reported == LastPause::Paused {
                    self.append(Entry::Resumed {
                        reason: ResumeReason::Asked,
                    });
                }
                let (effect, stage) = if row == Some(RowState::Pausing) {
                    (Effect::Freeze, PauseStage::Freezing)
                } else {
                    let pausing = Effect::RecordState(RowState::Pausing);
                    (pausing, PauseStage::Recording)
                };
                self.effects.push(effect);
                return Phase::Pausing { proc, stage };
            }
            HeldPause::LettingGo
                if reported == LastPause::Paused || row == Some(RowState::Paused) =>
            {
                if reported != LastPause::Paused {
                    self.append(Entry::Paused);
                }
                self.effects.push(Effect::Thaw);
                return Phase::Resuming { proc };
            }
            // A pause that did not reach everybody was none.
            HeldPause::None | HeldPause::LettingGo => ResumeReason::Asked,
            HeldPause::Expired => ResumeReason::MaxPause,
        };
        // A pause that was seen, and of which the journal has not heard.
        let unheard = match (row, pause) {
            (Some(RowState::Paused), _) => reported == LastPause::Never,
            (Some(RowState::Pausing), HeldPause::Expired) => {
                reported != LastPause::Resumed(ResumeReason::MaxPause)
            }
            _ => false,
        };
        if unheard && reported != LastPause::Paused {
            self.append(Entry::Paused);
        }
        if unheard || reported == LastPause::Paused {
            self.append(Entry::Resumed { reason: ended });
        }
        self.effects.push(match row {
            Some(RowState::Running) => return Phase::Running { proc },
            Some(RowState::Pausing | RowState::Paused) => Effect::RecordState(RowState::Running),
            None => Effect::RecordRunning,
        });
        Phase::Running { proc }
    }
}

/// The order that was told first stands, with the nearer of both deadlines: a row may have lost that order and have a later one.
fn earlier(
    recorded: Option<(StopOrder, Timestamp)>,
    reported: Option<(StopOrder, Timestamp)>,
) -> Option<(StopOrder, Timestamp)> {
    match (recorded, reported) {
        (Some((recorded, at)), Some((first, reported))) => {
            let grace = first.grace.min(recorded.grace);
            Some((StopOrder { grace, ..first }, at.min(reported)))
        }
        (recorded, reported) => recorded.or(reported),
    }
}
