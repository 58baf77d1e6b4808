//! Adoption of a run whose server has died: its phase is derived from its row, its journal and its keeper.
//!
//! INVARIANT: the keeper repeats every event that no server has acknowledged, in order. Entries in the journal are not
//! written again, missing ones are.

use super::{Machine, drained, failed_at, plan};
use crate::{
    AttemptRecord, Deadline, Effect, Ends, Entry, LastPause, LeaderExit, Leaving, NeverRan,
    NextAttempt, Outcome, Phase, ResumeReason, Row, RowState, RunIdentity, StartStage, StopOrder,
    StopReason, StopStage, Times, Timestamp, limits,
    phase::{Exec, PauseStage},
};
use serde::{Deserialize, Serialize};

/// All that is known of such a run before its keeper repeats the events.
#[derive(Clone, Debug)]
pub struct AdoptedRun {
    /// Identity of the run.
    pub identity: Box<RunIdentity>,
    /// Policy for the rest of the tree when the leader exits by itself.
    pub on_leader_exit: LeaderExit,
    /// Whether the gate was opened; if not, nothing ran or will run.
    pub released: bool,
    /// Whether the keeper has stopped the tree for a pause.
    pub pause: HeldPause,
    /// Its row; absent: there is none.
    pub row: Option<RowContents>,
    /// Its record, by its entries.
    pub record: AttemptRecord,
    /// The present on the clock by which its stop was requested: see [`AttemptRecord::stop_again`].
    pub stop_now: Timestamp,
}

/// State of such a run's pause, by its keeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldPause {
    /// The run is not paused.
    #[default]
    None,
    /// Its tasks are being stopped. No report follows when they are; a repeated pause request gets one.
    Stopping,
    /// Every task was seen stopped.
    Stopped,
    /// The run is not paused: its last pause reached its maximum, and the keeper has ended it.
    Expired,
    /// The run was requested to resume, and a process could not be continued yet: the keeper retries.
    Resuming,
}

/// Contents of an open row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowContents {
    /// Its state; absent: the run is starting.
    pub state: Option<RowState>,
    /// The accepted stop, with the time at which SIGKILL is due.
    pub stop: Option<(StopOrder, Timestamp)>,
    /// Whether it is of the first attempt: where that has not run, no caller was answered.
    pub is_first: bool,
}

impl Machine {
    /// Returns the machine of a run, or of an attempt that another one follows, that has ended and is written, and
    /// whose server died before all its entries were written or the keeper could forget it.
    pub fn ended(
        now: Timestamp,
        outcome: Outcome,
        record: AttemptRecord,
        next: Option<NextAttempt>,
    ) -> Self {
        let mut machine = Self {
            record,
            now,
            ..Self::default()
        };
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

    /// Returns the machine of a run that has no processes left and whose outcome was found or decided: the outcome is
    /// to be written. `times` are those of its row.
    pub fn settled(now: Timestamp, outcome: Outcome, record: AttemptRecord, times: Times) -> Self {
        let known = times.or(record.times);
        let mut machine = Self {
            record,
            now,
            ..Self::default()
        };
        let missing = machine.record.missing_ends(&outcome, None);
        // The last entry is the end, which follows when the outcome is durable.
        for entry in missing.iter().take(missing.len().saturating_sub(1)) {
            machine.append(entry.clone());
        }
        // The time of finding an end is not the end's time; a verdict has the time at which it is given.
        machine.record.times = Times {
            tree_empty: known.tree_empty.or(machine.record.times.tree_empty),
            ..known
        };
        machine.phase = machine.close(outcome);
        machine
    }

    /// Adopts a run whose server has died. Immediate work is among the [`Self::effects`].
    pub fn adopted(now: Timestamp, run: AdoptedRun) -> Self {
        let AdoptedRun {
            identity,
            on_leader_exit,
            released,
            pause,
            row,
            record,
            stop_now,
        } = run;
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
                // The Spawn may be repeated under the same key, as after a death before the record.
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
        machine.recall(identity, pause, &row);
        machine.phase = match stop {
            Some((order, deadline)) => {
                machine.resume_stop(stop_now, order, deadline, &record, &row)
            }
            None if record.leader.is_some() => {
                if on_leader_exit == LeaderExit::Keep && !record.tree && machine.stuck.is_none() {
                    machine.effects.push(Effect::KeepRest);
                }
                drained(Phase::Running)
            }
            None if machine.exec == Exec::Awaited => Phase::Released,
            // SIGKILL was sent, which also continued every stopped process.
            None if machine.stuck.is_some() => drained(Phase::Running),
            None => machine.resume_pause(pause, record.pause, row.state),
        };
        machine
    }

    /// Restores the known state; the keeper repeats the rest.
    fn recall(&mut self, identity: Box<RunIdentity>, pause: HeldPause, row: &RowContents) {
        let record = &self.record;
        self.ends.leader = record.leader;
        self.ends.streams = record.streams;
        self.stuck.clone_from(&record.stuck);
        let listed = u32::try_from(limits::STEPS_LISTED_MAX).unwrap_or(u32::MAX);
        self.certificate.steps_unlisted = record.steps.saturating_sub(listed);
        if !self.record.recorded {
            self.append(super::recorded(identity));
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

    /// Continues an accepted stop: its plan is sent to the keeper again, which may not have it; and recorded again,
    /// before that.
    fn resume_stop(
        &mut self,
        now: Timestamp,
        order: StopOrder,
        deadline: Timestamp,
        record: &AttemptRecord,
        row: &RowContents,
    ) -> Phase {
        // The keeper began such a stop itself.
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
                stop: in_force.then_some(order),
                deadline: Some(deadline),
            };
        }
        if in_force && record.stopping.is_none() {
            let order = order.clone();
            self.append(Entry::Stopping { order, deadline });
        }
        Phase::Stopping {
            order,
            deadline,
            stage: if in_force {
                StopStage::Ordered
            } else {
                StopStage::Recording
            },
        }
    }

    /// Continues a run without a stop: it runs or is paused.
    fn resume_pause(
        &mut self,
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
                return Phase::Paused;
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
                return Phase::Pausing { stage };
            }
            HeldPause::Resuming
                if reported == LastPause::Paused || row == Some(RowState::Paused) =>
            {
                if reported != LastPause::Paused {
                    self.append(Entry::Paused);
                }
                self.effects.push(Effect::Thaw);
                return Phase::Resuming;
            }
            // A pause that did not reach every process does not count.
            HeldPause::None | HeldPause::Resuming => ResumeReason::Asked,
            HeldPause::Expired => ResumeReason::MaxPause,
        };
        // A complete pause may have no journal entry yet.
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
            Some(RowState::Running) => return Phase::Running,
            Some(RowState::Pausing | RowState::Paused) => Effect::RecordState(RowState::Running),
            None => Effect::RecordRunning,
        });
        Phase::Running
    }
}

/// Returns the stop that was recorded first, with the nearer of both deadlines: a row may have lost that order and have
/// a later one.
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
