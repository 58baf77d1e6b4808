//! Adoption: a task that resumes a run of an earlier server.

use super::{RunTask, attempts::Attempts};
use crate::{
    base::clock,
    registry::{Seat, Shared},
    run::{output::Output, reopened::Left, task::Legacy, writes},
};
use kennel_keeper::client::HeldRun;
use kennel_lifecycle::{
    AttemptRecord, Command, EndReason, Facets, Input, Machine, Outcome, Report, RowContents,
    RowState, StreamsEnd, Timestamp, TreeVerdict,
};
use kennel_store::{Desired, NewRun, RunRow, StoredState};
use std::sync::Arc;

/// State of a run that the keeper holds.
#[derive(Debug)]
pub(crate) struct KeeperRun {
    pub(crate) held: HeldRun,
    pub(crate) recorded: bool,
    pub(crate) left: Left,
}

impl RunTask {
    /// Adopts a run. [`Self::resume`] performs the actions that are due at once.
    pub(crate) fn adopt(shared: Arc<Shared>, keeper_run: KeeperRun, seat: Seat) -> Self {
        let KeeperRun {
            held,
            recorded,
            left,
        } = keeper_run;
        let now = clock::now();
        let record = left.record.clone();
        let machine = machine(now, &shared, &held, &left.row, recorded, record.clone());
        // The next attempt may begin before all reports of the ended one arrive.
        let hears_again = left.row.state == StoredState::Backoff;
        let ended = left.row.outcome.is_some() || hears_again;
        let mut task = Self::left(shared, machine, left, seat);
        task.at = now;
        task.reporting
            .spans
            .resume_pauses(record.paused_since, record.pauses);
        if let (Some(why), false) = (held.held.cgroup_refused(), record.recorded) {
            task.reporting
                .warnings
                .push(format!("this run has no control group: {why}"));
        }
        task.terminal = held.terminal;
        if let Some(by) = &held.pinned {
            task.pin(by.clone());
        }
        // The previous server may have died before it recorded the size.
        if record.recorded && !ended && record.terminal != held.terminal {
            task.note_terminal_size();
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
        task.resume_spared();
        task.legacy = Legacy {
            steps_again: 0,
            unrecorded: !recorded,
            hears_again,
        };
        if !ended {
            task.resume_rules();
            let since = task.shared.started;
            task.reporting
                .spans
                .recovered(&task.new, since, now, "adopted");
        }
        task.publish();
        task
    }

    /// Makes a task from what an earlier server has left.
    fn left(shared: Arc<Shared>, machine: Machine, left: Left, seat: Seat) -> Self {
        let Left {
            row,
            output,
            record,
            facets,
        } = left;
        let mut task = Self::with(shared, row.new.clone(), machine, seat);
        if let Some(kind) = record.critical {
            task.pin(kind);
        }
        if task.shared.record.waits_for_later(task.run) {
            task.pin("a write pending for the database".to_owned());
        }
        task.attempts = Attempts::of(&row);
        task.resume_facets(&row, facets);
        task.machine.know_times(row.times);
        if output.is_none() {
            task.live.send_modify(|live| live.no_journal = true);
        }
        let rate = task.shared.output_rates.of(&task.new.owner.as_str().into());
        task.output = output.map(|output| output.at_rate(rate));
        // Output written from here on belongs to the current attempt.
        if let Some(output) = &mut task.output {
            output.begin_attempt(task.new.attempt);
        }
        task
    }

    /// Requests the row of a run that is adopted without it.
    pub(crate) fn meeting(mut self, new: Option<Box<NewRun>>) -> Self {
        if let Some(new) = new {
            self.attempts.await_row();
            self.op(|shared, _, done| writes::meet(shared, new, done));
        }
        self
    }

    /// Handles the row of a run that was adopted without it: it may hold what no other source has.
    pub(super) fn met(&mut self, row: RunRow) {
        let undecided = self.attempts.meet(Attempts::of(&row));
        self.resume_facets(&row, Facets::default());
        self.take_over(row);
        if let Some(outcome) = undecided {
            self.record_outcome(outcome);
        }
    }

    pub(super) fn take_over(&mut self, row: RunRow) {
        self.machine.know_times(row.times);
        self.new = NewRun {
            held: row.new.held.clone().or(self.new.held.take()),
            ..row.new
        };
        self.pin_by_spec();
        if row.outcome.is_some() {
            tracing::warn!(run_id = %self.run, "the row of this run was closed already");
        }
        // The previous server accepted this stop, and died before it carried the stop out.
        let (Some(order), Some(deadline)) = (row.stop, row.stop_deadline) else {
            return;
        };
        self.attempts.desired = Desired::Stop;
        self.attempts.stop_deadline = self
            .attempts
            .stop_deadline
            .map_or(Some(deadline), |at| Some(at.min(deadline)));
        let record = self.machine.record();
        let again = record.stop_again(stop_now(&self.shared, record), order, deadline);
        // A stop fails only if nothing remains to stop.
        let _ = self.feed(Input::Command(Command::Stop(again)));
    }

    /// Resumes a run of which only the next attempt is due. [`Self::resume_in`] performs the actions that are due at
    /// once.
    pub(crate) fn waiting(shared: Arc<Shared>, mut left: Left, seat: Seat) -> Option<Self> {
        let last = left.row.past.last()?;
        left.record.times = last.times;
        let outcome = last.outcome.clone();
        let next = left.row.next_attempt();
        let machine = Machine::ended(clock::now(), outcome, left.record.clone(), next);
        let mut task = Self::left(shared, machine, left, seat);
        // A pinned run stays unchanged: its policy is not known.
        if task.pinned.is_none() && !task.may_follow() {
            task.end_between(EndReason::ServiceLost);
        }
        Some(task)
    }

    /// Records the end of a run whose keeper is gone, and begins the next attempt where one follows.
    /// [`Self::resume_in`] performs the actions that are due at once.
    pub(crate) fn settled(
        shared: Arc<Shared>,
        left: Left,
        (outcome, since): (Outcome, Timestamp),
        seat: Seat,
    ) -> Self {
        let now = clock::now();
        let action = match (&outcome.reason, &outcome.tree) {
            (_, TreeVerdict::Unverified(_)) => "unverified",
            (EndReason::OrphanTerminated, _) => "killed",
            _ => "already_gone",
        };
        let machine = Machine::settled(now, outcome, left.record.clone(), left.row.times);
        let desired = left.row.desired;
        let mut task = Self::left(shared, machine, left, seat);
        task.attempts.settle(desired);
        task.reporting
            .spans
            .recovered(&task.new, since, now, action);
        task
    }

    /// Reads the pipes from where the server before has stopped.
    fn attach(&mut self, held: HeldRun) {
        let attached = match (&mut self.output, held.outputs) {
            (Some(output), Some(outputs)) => output.attach(outputs).map_err(|e| e.to_string()),
            (Some(_), None) => Err("this process has no room for its descriptors".into()),
            // The failure to open the journal is logged already.
            (None, _) => return,
        };
        if let Err(why) = attached {
            tracing::error!(run_id = %self.run, %why, "cannot read the output any more");
            // The machine reports this loss after the leader's exit.
            let lost = Input::Report(Report::StreamsClosed(StreamsEnd::Lost));
            let _ = self.machine.step(self.at, lost);
        }
    }
}

/// Returns the present on the clock as it was set when the stop of this record was requested.
fn stop_now(shared: &Shared, record: &AttemptRecord) -> Timestamp {
    let as_of = |asked| shared.clock.now_as_of(asked);
    record.stop_asked_at().map_or_else(clock::now, as_of)
}

fn machine(
    now: Timestamp,
    shared: &Shared,
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
    let says = RowContents {
        state: match row.state {
            StoredState::Running => Some(RowState::Running),
            StoredState::Pausing => Some(RowState::Pausing),
            StoredState::Paused => Some(RowState::Paused),
            StoredState::Starting | StoredState::Backoff | StoredState::Ended(_) => None,
        },
        stop: row.stop.clone().zip(row.stop_deadline),
        is_first: row.new.attempt == 1,
    };
    let adopted = kennel_lifecycle::AdoptedRun {
        identity: Box::new(held.identity.clone()),
        on_leader_exit: held.policy.on_leader_exit,
        released: held.released,
        pause: held.pause,
        row: recorded.then_some(says),
        stop_now: stop_now(shared, &record),
        record,
    };
    Machine::adopted(now, adopted)
}
