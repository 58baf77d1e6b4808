//! A run whose server has died, and which the next one goes on with: where it stands, by its row, its journal and its
//! keeper.
//!
//! INVARIANT: the keeper tells every fact again that no server has acknowledged, in order. What the journal has told is
//! not told again, what is missing in it is.

use super::{Machine, drained, failed_at, plan};
use crate::{
    Announcement, Effect, Ends, Exit, LeaderExit, Leaving, NeverRan, Outcome, Phase, ResumeReason,
    Row, RowState, RunIdentity, StartStage, StopOrder, StopReason, StopStage, StreamsEnd, Stuck,
    Timestamp, limits,
    phase::{Exec, PauseStage},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

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
    /// What its journal has told.
    pub announced: Announced,
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

/// What the journal has told of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one line of the journal, and any of them may be missing in it"
)]
pub struct Announced {
    /// That it is recorded.
    pub recorded: bool,
    /// That the command runs.
    pub started: bool,
    /// The last word on pauses.
    pub pause: PauseWord,
    /// The first stop, and when SIGKILL was due by it.
    pub stopping: Option<(StopOrder, Timestamp)>,
    /// How many rounds of signals.
    pub steps: u32,
    /// Whom SIGKILL does not end; the last word on that.
    pub stuck: Option<Stuck>,
    /// The first end.
    pub leader: Option<Exit>,
    /// The second end.
    pub streams: Option<StreamsEnd>,
    /// That there was a third end.
    pub tree: bool,
    /// That the kernel has killed processes for want of memory.
    pub memory_kills: bool,
    /// That all is written.
    pub ended: bool,
}

impl Announced {
    /// A stop that was accepted, with the grace to hand over again when its server is gone.
    ///
    /// A plan brings the SIGKILL of one that is on its way forward and never puts it off, so the whole grace may be
    /// named: what is left of it is the keeper's to know, whose clock does not jump. Only of a later and shorter stop
    /// nothing but the time of its SIGKILL is known.
    #[must_use]
    pub fn stop_again(&self, now: Timestamp, order: StopOrder, deadline: Timestamp) -> StopOrder {
        let told = self.stopping.as_ref().map(|(_, told)| *told);
        if told.is_none_or(|told| told <= deadline) {
            return order;
        }
        let left = u64::try_from(deadline.0.saturating_sub(now.0)).unwrap_or(0);
        let grace = order.grace.min(Duration::from_micros(left));
        StopOrder { grace, ..order }
    }
}

/// The last word of a journal on pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseWord {
    /// There was none.
    #[default]
    Never,
    /// Every task is stopped.
    Paused,
    /// The tree runs again.
    Resumed(ResumeReason),
}

impl Machine {
    /// A run that has ended and is written, and whose server died before it had told all of it or had let the keeper
    /// forget it.
    #[must_use]
    pub fn ended(outcome: Outcome, announced: &Announced) -> Self {
        let mut machine = Self::new();
        if let Some(exit) = outcome.exit {
            if announced.leader.is_none() {
                machine.announce(Announcement::LeaderExited(exit));
            }
            if let (Some(how), None) = (outcome.streams, announced.streams) {
                machine.announce(Announcement::StreamsClosed(how));
            }
            if !announced.tree {
                machine.announce(Announcement::TreeEnded(outcome.tree.clone()));
            }
        }
        if !announced.ended {
            machine.announce(Announcement::Ended(outcome.clone()));
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

    /// Goes on with a run whose server has died. What is to be done at once is among the [`Self::effects`].
    #[must_use]
    pub fn adopted(now: Timestamp, standing: Standing) -> Self {
        let Standing {
            identity: proc,
            on_leader_exit,
            released,
            pause,
            row,
            announced,
        } = standing;
        let mut machine = Self::with(on_leader_exit);
        let stop = earlier(
            row.as_ref().and_then(|row| row.stop.clone()),
            announced.stopping.clone(),
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
            machine.told.ended = announced.ended;
            return machine;
        }
        let row = row.unwrap_or_default();
        machine.recall(&announced, pause, &row);
        machine.phase = match stop {
            Some((order, deadline)) => {
                machine.go_on_with_stop(now, proc, order, deadline, &announced, &row)
            }
            None if announced.leader.is_some() => {
                if on_leader_exit == LeaderExit::Keep && !announced.tree && machine.stuck.is_none()
                {
                    machine.effects.push(Effect::KeepRest);
                }
                drained(Phase::Running { proc })
            }
            None if machine.exec == Exec::Awaited => Phase::Released { proc },
            // SIGKILL has gone out, and with it whoever was stopped has been let go.
            None if machine.stuck.is_some() => drained(Phase::Running { proc }),
            None => machine.go_on_with_pause(proc, pause, announced.pause, row.state),
        };
        machine
    }

    /// What was known, as far as it was told; the rest is told again.
    fn recall(&mut self, announced: &Announced, pause: HeldPause, row: &RowSays) {
        self.ends.leader = announced.leader;
        self.ends.streams = announced.streams;
        self.stuck.clone_from(&announced.stuck);
        self.told.leader = announced.leader.is_some();
        self.told.streams = announced.streams.is_some();
        self.told.tree = announced.tree;
        self.told.memory = announced.memory_kills;
        self.told.ended = announced.ended;
        let listed = u32::try_from(limits::STEPS_TOLD_MAX).unwrap_or(u32::MAX);
        self.certificate.steps_unlisted = announced.steps.saturating_sub(listed);
        if !announced.recorded {
            self.announce(Announcement::Recorded);
        }
        let runs = row.state.is_some() || pause != HeldPause::None;
        self.exec = match announced.leader {
            _ if announced.started => Exec::Confirmed,
            Some(_) => Exec::Assumed,
            None if runs => {
                self.announce(Announcement::Started);
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
        announced: &Announced,
        row: &RowSays,
    ) -> Phase {
        // The keeper began with that one by itself.
        let own = matches!(
            order.reason,
            StopReason::DeadlineExceeded(_) | StopReason::Orphaned | StopReason::ShimLost
        );
        let in_force = own || announced.stopping.is_some();
        if !(announced.tree || own && row.stop.is_some()) {
            self.record_stop(&order, deadline);
        }
        if !announced.tree && !own {
            let again = announced.stop_again(now, order.clone(), deadline);
            self.unrecorded = Some((order.clone(), plan(&again)));
        }
        if announced.leader.is_some() {
            return Phase::Draining {
                proc,
                stop: in_force.then_some(order),
                deadline: Some(deadline),
            };
        }
        if in_force && announced.stopping.is_none() {
            let order = order.clone();
            self.announce(Announcement::Stopping { order, deadline });
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
        told: PauseWord,
        row: Option<RowState>,
    ) -> Phase {
        let ended = match pause {
            HeldPause::Stopped => {
                if told != PauseWord::Paused {
                    self.announce(Announcement::Paused);
                }
                if row != Some(RowState::Paused) {
                    self.effects.push(Effect::RecordState(RowState::Paused));
                }
                return Phase::Paused { proc };
            }
            HeldPause::Stopping => {
                if told == PauseWord::Paused {
                    self.announce(Announcement::Resumed(ResumeReason::Asked));
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
            HeldPause::LettingGo if told == PauseWord::Paused || row == Some(RowState::Paused) => {
                if told != PauseWord::Paused {
                    self.announce(Announcement::Paused);
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
            (Some(RowState::Paused), _) => told == PauseWord::Never,
            (Some(RowState::Pausing), HeldPause::Expired) => {
                told != PauseWord::Resumed(ResumeReason::MaxPause)
            }
            _ => false,
        };
        if unheard && told != PauseWord::Paused {
            self.announce(Announcement::Paused);
        }
        if unheard || told == PauseWord::Paused {
            self.announce(Announcement::Resumed(ended));
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
    told: Option<(StopOrder, Timestamp)>,
) -> Option<(StopOrder, Timestamp)> {
    match (recorded, told) {
        (Some((recorded, at)), Some((first, told))) => {
            let grace = first.grace.min(recorded.grace);
            Some((StopOrder { grace, ..first }, at.min(told)))
        }
        (recorded, told) => recorded.or(told),
    }
}
