//! A task that goes on with a run of an earlier server.

use super::{Attempts, RunTask};
use crate::{
    base::clock,
    registry::{Seat, Shared},
    run::{output::Output, writes},
};
use kennel_keeper::client::HeldRun;
use kennel_lifecycle::{
    AttemptRecord, Command, Facets, Input, Machine, Report, RowSays, RowState, StreamsEnd,
    Timestamp,
};
use kennel_store::{Desired, NewRun, RunRow, StoredState};
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
    /// What the entries of the attempt say.
    pub(crate) record: AttemptRecord,
    /// What the entries of the run say of its facets.
    pub(crate) facets: Facets,
}

/// A run that waits for its next attempt.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Its row.
    pub(crate) row: RunRow,
    /// Its journal, where that can be written.
    pub(crate) output: Option<Output>,
    /// What the entries of the last attempt say.
    pub(crate) record: AttemptRecord,
}

/// What an earlier server has left.
#[derive(Debug, Default)]
pub(super) struct Legacy {
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
            record,
            facets,
        } = standing;
        let now = clock::now();
        let machine = machine(now, &held, &row, recorded, record.clone());
        let mut task = Self::with(shared, row.new.clone(), machine, seat);
        task.at = now;
        task.spans.resume_pauses(record.paused_since, record.pauses);
        task.attempts = Attempts::of(&row);
        task.resume_facets(&row, facets);
        task.machine.know_times(row.times);
        task.desired = row.desired;
        task.stop_deadline = row.stop_deadline;
        if output.is_none() {
            task.live.send_modify(|live| live.no_journal = true);
        }
        task.output = output;
        task.keep_writing();
        if let (Some(why), false) = (held.held.cgroup_refused(), record.recorded) {
            task.warning = Some(format!("this run has no control group: {why}"));
        }
        // Another attempt may begin before all of that is heard.
        task.hears_again = row.state == StoredState::Backoff;
        let ended = row.outcome.is_some() || task.hears_again;
        task.terminal = held.terminal;
        // Its server may have died before it could tell.
        if record.recorded && !ended && record.terminal != held.terminal {
            task.tell_terminal();
        }
        if record.streams.is_none() && !ended {
            task.attach(held);
        }
        if record.started {
            task.flow();
        }
        if let Some(found_at) = task.output.as_ref().map(Output::found_at) {
            task.resume_silence(found_at);
        }
        task.legacy = Legacy {
            steps_again: 0,
            unrecorded: !recorded,
        };
        if !ended {
            task.resume_rules();
            let since = task.shared.started;
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
        self.resume_facets(&row, Facets::default());
        self.take_over(row);
        if let Some(outcome) = undecided {
            self.record_outcome(outcome);
        }
    }

    fn take_over(&mut self, row: RunRow) {
        self.machine.know_times(row.times);
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
        let again = self.machine.record().stop_again(self.at, order, deadline);
        // Refused only where there is nothing to stop any more.
        let _ = self.feed(Input::Command(Command::Stop(again)));
    }

    /// Goes on with a run of which nothing is there but that another attempt is due. What is to be done at once is done
    /// by [`Self::go_on_in`].
    pub(crate) fn waiting(shared: Arc<Shared>, waiting: Waiting, seat: Seat) -> Option<Self> {
        let Waiting {
            row,
            output,
            mut record,
        } = waiting;
        let last = row.past.last()?;
        record.times = last.times;
        let now = clock::now();
        let machine = Machine::ended(now, last.outcome.clone(), record, row.next_attempt());
        let mut task = Self::with(shared, row.new.clone(), machine, seat);
        task.attempts = Attempts::of(&row);
        task.resume_facets(&row, Facets::default());
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

fn machine(
    now: Timestamp,
    held: &HeldRun,
    row: &RunRow,
    recorded: bool,
    record: AttemptRecord,
) -> Machine {
    if let Some(outcome) = &row.outcome {
        return Machine::ended(now, outcome.clone(), record, None);
    }
    if let (StoredState::Backoff, Some(last)) = (row.state, row.past.last()) {
        return Machine::ended(now, last.outcome.clone(), record, row.next_attempt());
    }
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
        record,
    };
    Machine::adopted(now, standing)
}
