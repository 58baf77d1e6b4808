//! A task that goes on with a run of an earlier server.

use super::{Attempts, RunTask};
use crate::{
    clock,
    output::Output,
    past::Past,
    tracker::{Seat, Shared},
    writes,
};
use kennel_lifecycle::{Announced, Command, Input, Machine, Report, RowSays, RowState, StreamsEnd};
use kennel_linux::client::HeldRun;
use kennel_store::{Desired, NewRun, RunRow, StoredState, Times};
use std::sync::Arc;

/// Where the run stands.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) held: HeldRun,
    /// Its row; where it was not recorded, what would have been.
    pub(crate) row: RunRow,
    pub(crate) recorded: bool,
    /// Its journal, where that can be written.
    pub(crate) output: Option<Output>,
    /// What the journal has told of the attempt.
    pub(crate) past: Past,
}

/// A run that waits for its next attempt.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Its row.
    pub(crate) row: RunRow,
    /// Its journal, where that can be written.
    pub(crate) output: Option<Output>,
    /// What that has told of the last attempt.
    pub(crate) told: Announced,
}

/// What an earlier server has left.
#[derive(Debug, Default)]
pub(super) struct Legacy {
    /// What the journal had told.
    pub(super) past: Past,
    /// How many rounds of signals were told again.
    pub(super) steps_again: usize,
    /// There was no row: what is there of the run is this task's to remove.
    pub(super) unrecorded: bool,
}

impl RunTask {
    /// Goes on with a run. What is to be done at once is done by [`Self::go_on`].
    pub(crate) fn adopt(shared: Arc<Shared>, standing: Standing, seat: Seat) -> Self {
        let Standing {
            held,
            row,
            recorded,
            output,
            past,
        } = standing;
        let machine = machine(&held, &row, recorded, &past);
        let mut task = Self::with(shared, row.new.clone(), machine, seat);
        for (at, begins) in &past.pauses {
            task.spans.paused_before(*at, *begins);
            if *begins {
                task.runtime.pause(*at);
            } else {
                task.runtime.resume(*at);
            }
        }
        task.attempts = Attempts::of(&row);
        task.times = known_times(row.times, past.times);
        task.desired = row.desired;
        task.stop_deadline = row.stop_deadline;
        if output.is_none() {
            task.live.send_modify(|live| live.no_journal = true);
        }
        task.output = output;
        task.keep_writing();
        if let (Some(why), false) = (held.held.cgroup_refused(), past.announced.recorded) {
            task.warning = Some(format!("this run has no control group: {why}"));
        }
        // Another attempt may begin before all of that is heard.
        task.hears_again = row.state == StoredState::Backoff;
        let ended = row.outcome.is_some() || task.hears_again;
        task.terminal = held.terminal;
        // Its server may have died before it could tell.
        if past.announced.recorded && !ended && past.terminal != held.terminal {
            task.tell_terminal();
        }
        if past.announced.streams.is_none() && !ended {
            task.attach(held);
        }
        if past.announced.started {
            task.flow();
        }
        task.legacy = Legacy {
            past,
            steps_again: 0,
            unrecorded: !recorded,
        };
        if !ended {
            let (since, now) = (task.shared.started, clock::now());
            task.spans.recovered(&task.new, since, now);
        }
        task.publish();
        task
    }

    /// Asks for the row of a run that is gone on with without it.
    pub(crate) fn meeting(mut self, new: Option<Box<NewRun>>) -> Self {
        if let Some(new) = new {
            self.attempts.await_row();
            self.op(|shared, _, done| writes::meet(shared, new, done));
        }
        self
    }

    /// The row of a run that was gone on with without it: what it says that nobody else has told.
    pub(super) fn met(&mut self, row: RunRow) {
        let undecided = self.attempts.meet(Attempts::of(&row));
        self.take_over(row);
        if let Some(outcome) = undecided {
            self.record_outcome(outcome);
        }
    }

    fn take_over(&mut self, row: RunRow) {
        self.times = known_times(row.times, self.times);
        self.new = NewRun {
            held: row.new.held.clone().or(self.new.held.take()),
            ..row.new
        };
        if row.outcome.is_some() {
            tracing::warn!(run_id = %self.run, "the row of this run was closed before");
        }
        // A stop that was accepted, and that its server did not live to carry out.
        let (Some(order), Some(deadline)) = (row.stop, row.stop_deadline) else {
            return;
        };
        self.desired = Desired::Stop;
        self.stop_deadline = self
            .stop_deadline
            .map_or(Some(deadline), |at| Some(at.min(deadline)));
        let announced = &self.legacy.past.announced;
        let again = announced.stop_again(self.at, order, deadline);
        // Refused only where there is nothing to stop any more.
        let _ = self.feed(Input::Command(Command::Stop(again)));
    }

    /// Goes on with a run of which nothing is there but that another attempt is due. What is to be done at once is done
    /// by [`Self::go_on_in`].
    pub(crate) fn waiting(shared: Arc<Shared>, waiting: Waiting, seat: Seat) -> Option<Self> {
        let Waiting { row, output, told } = waiting;
        let last = row.past.last()?;
        let machine = Machine::ended(last.outcome.clone(), &told);
        let mut task = Self::with(shared, row.new.clone(), machine, seat);
        task.attempts = Attempts::of(&row);
        task.times = last.times;
        task.desired = row.desired;
        task.stop_deadline = row.stop_deadline;
        task.output = output;
        task.keep_writing();
        Some(task)
    }

    /// What is written from here on is of the present attempt.
    fn keep_writing(&mut self) {
        if let Some(output) = &mut self.output {
            output.begin_attempt(self.new.attempt);
        }
    }

    /// The pipes are read where the server before has stopped reading them.
    fn attach(&mut self, held: HeldRun) {
        let attached = match (&mut self.output, held.outputs) {
            (Some(output), Some(outputs)) => output.attach(outputs).map_err(|e| e.to_string()),
            (Some(_), None) => Err("this process has no room for its descriptors".into()),
            // That was said when the journal was opened.
            (None, _) => return,
        };
        if let Err(why) = attached {
            tracing::error!(run_id = %self.run, %why, "the output cannot be read any more");
            // It is told after the leader's end.
            let lost = Input::Report(Report::StreamsClosed(StreamsEnd::Lost));
            let _ = self.machine.step(self.at, lost);
        }
    }
}

fn machine(held: &HeldRun, row: &RunRow, recorded: bool, past: &Past) -> Machine {
    let mut announced = past.announced.clone();
    if let Some(outcome) = &row.outcome {
        return Machine::ended(outcome.clone(), &announced);
    }
    if let (StoredState::Backoff, Some(last)) = (row.state, row.past.last()) {
        return Machine::ended(last.outcome.clone(), &past.of_attempt());
    }
    // Where the database has lost the row of an attempt that had ended, its end is written again and not told again.
    announced.ended |= past.of_attempt().ended;
    let says = RowSays {
        state: match row.state {
            StoredState::Running => Some(RowState::Running),
            StoredState::Pausing => Some(RowState::Pausing),
            StoredState::Paused => Some(RowState::Paused),
            StoredState::Starting | StoredState::Backoff | StoredState::Ended(_) => None,
        },
        stop: row.stop.clone().zip(row.stop_deadline),
        is_first: row.new.attempt == 1,
    };
    let standing = kennel_lifecycle::Standing {
        identity: Box::new(held.identity.clone()),
        on_leader_exit: held.policy.on_leader_exit,
        released: held.released,
        pause: held.pause,
        row: recorded.then_some(says),
        announced,
    };
    Machine::adopted(crate::clock::now(), standing)
}

/// The journal tells of more, and first.
fn known_times(row: Times, told: Times) -> Times {
    Times {
        started: told.started.or(row.started),
        leader_exited: told.leader_exited.or(row.leader_exited),
        streams_closed: told.streams_closed.or(row.streams_closed),
        tree_empty: told.tree_empty.or(row.tree_empty),
        ended: row.ended,
    }
}
