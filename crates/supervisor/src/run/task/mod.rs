//! The one task that owns a run (INV-14): it feeds the machine and performs its effects.
//!
//! Kernel reports before results of our own work, those before commands, results of rules after these, output last.
//! Every effect may be cut off before or after itself by a crash; [`kennel_lifecycle::Effect`] says what recovery does in
//! both cases.

mod adopted;
mod attempts;
mod audit_log;
pub(crate) mod done;
mod extend;
mod facets;
mod link;
mod notified;
mod orders;
mod parent;
mod perform;
mod pinned;
mod projection;
mod publish;
mod reporting;
mod reports;
mod rules;
mod signalling;
mod silence;
mod terminal;
mod waiters;

use crate::{
    base::{calls::Pinned, clock, view::Live},
    registry::{Order, RunRegistration, Seat, Shared, Turn},
    run::{
        cleanup::Cleanup,
        finish,
        output::{Output, Ready},
        rules::engine::RuleStep,
        task::done::Done,
    },
    telemetry::RunSpans,
};

use attempts::Attempts;
use facets::RunFacets;
use kennel_keeper::client::{CapabilityName, ChildSpec, KeeperReport};
use kennel_lifecycle::{
    Command, Effect, Entry, Input, Machine, Phase, Recovery, Refusal, Report, RowState, RunId,
    TerminalSize, Timestamp,
};
use kennel_store::{Change, NewRun, Times};
use link::Link;
use projection::Projection;
use reporting::Reporting;
use rules::Conditions;
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use waiters::Waiters;
pub(crate) use {adopted::KeeperRun, attempts::outlives_service, audit_log::round};

/// Longest wait of a stop for its record and for the writes before it. Then the tree is signalled without the record: a
/// stop is never refused.
const STOP_RECORD_WAIT: Duration = Duration::from_secs(2);
/// Pause before recovery may begin with a run again whose row is not this server's to write.
const DISOWNED_PAUSE: Duration = Duration::from_secs(1);

/// A run's task (INV-14: the one owner of the run). Each part has its own state and file; this task moves values
/// between them.
#[derive(Debug)]
pub(crate) struct RunTask {
    shared: Arc<Shared>,
    run: RunId,
    machine: Machine,
    new: NewRun,
    /// Time of the input that is being handled.
    at: Timestamp,
    attempts: Attempts,
    output: Option<Output>,
    live: watch::Sender<Live>,
    link: Link,
    projection: Projection,
    waiters: Waiters,
    conditions: Conditions,
    reporting: Reporting,
    legacy: Legacy,
    /// Size that Kennel last set for the terminal of this attempt.
    terminal: Option<TerminalSize>,
    /// State that clients and output have set.
    facets: RunFacets,
    /// Why this task takes no decision.
    pinned: Option<Pinned>,
}

/// State of the run's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Room {
    /// The directory exists or not; it is not being removed.
    #[default]
    Kept,
    /// It is being removed; the next run of this id must not meet the removal.
    Removing,
}

enum TaskWake {
    Kernel(KeeperReport),
    Done(Done),
    Order(Order),
    /// The rules of the run have tested lines of its output.
    Rule(RuleStep),
    RunningDue,
    StopDue,
    /// The time of the next attempt, and its turn to start, have come.
    AttemptDue(Turn),
    ParentEnded,
    SilenceDue,
    KeeperLost,
    Output(Ready),
    /// The service shuts down, and the end of the output waits for space on the disk.
    Hurry,
    /// The outbox may have delivered everything pending of the run.
    OutboxFlushed,
}

impl RunTask {
    pub(crate) fn new(shared: Arc<Shared>, new: NewRun, child: ChildSpec, seat: Seat) -> Self {
        let machine = Machine::with(new.policy().on_leader_exit);
        let mut task = Self::with(shared, new, machine, seat);
        task.attempts.child = Some(child);
        task
    }

    fn with(shared: Arc<Shared>, new: NewRun, machine: Machine, seat: Seat) -> Self {
        let Seat {
            orders,
            reports,
            live,
        } = seat;
        let reporting = Reporting::of(RunSpans::new(&shared.config.telemetry, &new));
        let mut task = Self {
            run: new.run,
            shared,
            machine,
            new,
            at: clock::now(),
            attempts: Attempts::default(),
            output: None,
            live,
            link: Link::of(orders, reports),
            projection: Projection::default(),
            waiters: Waiters::default(),
            conditions: Conditions::default(),
            reporting,
            legacy: Legacy::default(),
            terminal: None,
            facets: RunFacets::default(),
            pinned: None,
        };
        task.pin_by_spec();
        task
    }

    /// Runs the run to its end. In a box, as below: a future stores what it is given by value twice.
    pub(crate) async fn drive(mut self: Box<Self>) {
        let place = self.shared.place(self.run);
        // Only a repeated Admit is refused.
        let _ = self.feed(Input::Command(Command::Admit));
        self.go_to_the_end(place).await;
    }

    /// Resumes a run that an earlier server has begun.
    pub(crate) async fn resume_supervision(mut self: Box<Self>) {
        let place = self.shared.place(self.run);
        self.perform_all();
        self.go_to_the_end(place).await;
    }

    /// Resumes a run whose place in the tracker is held already.
    pub(crate) async fn resume_in(mut self: Box<Self>, place: RunRegistration) {
        self.perform_all();
        self.go_to_the_end(place).await;
    }

    async fn go_to_the_end(&mut self, place: RunRegistration) {
        while !self.is_over() {
            match self.wake().await {
                TaskWake::Kernel(report) => self.kernel(report),
                TaskWake::Done(done) => self.take_in(done),
                TaskWake::Order(order) => self.order(order),
                TaskWake::Rule(step) => self.rule_step(step),
                TaskWake::RunningDue => self.record_running(),
                TaskWake::StopDue => self.proceed_with_stop(),
                TaskWake::AttemptDue(turn) => self.begin_next(turn),
                TaskWake::ParentEnded => self.parent_ended(),
                TaskWake::KeeperLost => self.keeper_lost(),
                TaskWake::Output(ready) => self.pump(ready),
                TaskWake::Hurry => self.hurry(),
                // The calls below handle both wakes.
                TaskWake::SilenceDue | TaskWake::OutboxFlushed => {}
            }
            self.keep_limit();
            self.answer_waiters();
            self.cleanup_after_flush();
            if self.waits_for_store() && !self.waits_for_disk() && self.output.take().is_some() {
                // Readers reach the journal's end.
                self.publish();
            }
        }
        self.answer_waiters();
        self.link
            .acknowledge_last_reports(&*self.shared.kernel, self.run)
            .await;
        // The journal's writer is dropped first, so that a reader which finds no live run finds a complete journal.
        self.output = None;
        if let Some(row) = self.projection.closed_row.take() {
            finish::at_once(&self.shared, *row).await;
        } else if self.attempts.stage == RunStage::Disowned {
            // Each call for a run with an open row starts a recovery: the pause limits how often.
            tokio::time::sleep(DISOWNED_PAUSE).await;
        }
        drop(place);
        self.live.send_modify(|live| {
            live.hub = None;
            live.over = true;
        });
        self.conditions.tested.close();
        self.link.close().await;
    }

    async fn wake(&mut self) -> TaskWake {
        let flows = self.output.as_ref().is_none_or(Output::flows);
        let output = async {
            match &self.output {
                Some(output) => output.ready().await,
                None => std::future::pending().await,
            }
        };
        let waits_for_store = self.waits_for_store();
        let has_ended = waits_for_store || self.waits_for_disk();
        let finishing = self.output.as_ref().is_some_and(Output::is_finishing);
        let holds = self.output.as_ref().is_some_and(Output::holds);
        let decides = self.pinned.is_none();
        let limits = self.inactive_at().into_iter().chain(self.rules_due());
        let limit_at = limits.filter(|_| decides).min();
        let reads_on = flows && !holds && !self.is_left();
        let parent = self.stop_with_parent().filter(|_| decides);
        let parent = parent.map(|(parent, _)| parent);
        let next_attempt = self.attempts.due();
        let (shared, watch) = (&self.shared, &mut self.attempts.parent);
        let attempt_due = async {
            due(next_attempt).await;
            shared.starts.turn(&self.new.owner).await
        };
        let parent_ended = async {
            match parent {
                Some(parent) => watch.ended(shared, parent).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! { biased;
            Some(report) = self.link.reports.recv(), if !self.attempts.preparing => TaskWake::Kernel(*report),
            Some(done) = self.link.done.recv() => TaskWake::Done(done),
            Some(order) = self.link.orders.recv() => TaskWake::Order(*order),
            () = due(self.projection.stop_due) => TaskWake::StopDue,
            () = parent_ended => TaskWake::ParentEnded,
            () = due(self.projection.running_due) => TaskWake::RunningDue,
            turn = attempt_due, if decides && !self.shared.serving.is_leaving() => TaskWake::AttemptDue(turn),
            () = self.shared.serving.until_keeper_lost(), if !reads_on => TaskWake::KeeperLost,
            () = self.shared.serving.until_refusing(), if finishing => TaskWake::Hurry,
            // Polled after orders: many results of rules must not delay an abort.
            Some(step) = self.conditions.tested.recv() => TaskWake::Rule(step),
            ready = output => TaskWake::Output(ready),
            () = due(limit_at) => TaskWake::SilenceDue,
            () = self.shared.record.delivered(self.run), if waits_for_store => TaskWake::OutboxFlushed,
            () = self.shared.serving.until_refusing(), if has_ended => TaskWake::OutboxFlushed,
        }
    }

    /// Whether the run continues without this service once its keeper is gone, so that another server reads its output.
    /// For a run that is being stopped, or whose leader has exited, everything is read as for any other.
    fn is_left(&self) -> bool {
        let has_next_attempt = matches!(
            self.machine.phase(),
            Phase::Released
                | Phase::Running
                | Phase::Pausing { .. }
                | Phase::Paused
                | Phase::Resuming
        );
        let can_adopt = self.shared.hello.lacks(CapabilityName::Adoption).is_none();
        self.new.policy().recovery().on_host(can_adopt) == Recovery::Adopt
            && has_next_attempt
            && self.output.as_ref().is_some_and(Output::is_open)
    }

    fn keeper_lost(&mut self) {
        if self.is_left() {
            self.output.iter_mut().for_each(Output::detach);
        } else {
            // The end of the output must not wait for consumers that may never acknowledge.
            self.output.iter_mut().for_each(Output::go_beyond);
        }
        // No report of the run's start can come any more.
        self.flow();
    }

    pub(super) fn flow(&mut self) {
        if let Some(output) = &mut self.output {
            output.flow();
        }
    }

    fn is_over(&self) -> bool {
        let ended = matches!(self.machine.phase(), Phase::Closed(_) | Phase::Forgotten(_));
        (ended && !self.attempts.has_next_attempt() || self.attempts.is_anothers())
            && !self.is_busy()
            && !self.waits_for_store()
            && !self.waits_for_disk()
    }

    /// Whether the run has ended under this server, so that its remaining work may be awaited.
    fn may_wait(&self) -> bool {
        matches!(self.machine.phase(), Phase::Closed(_))
            && !self.attempts.has_next_attempt()
            && !self.attempts.is_anothers()
            && !self.shared.serving.is_refusing()
    }

    /// Whether only writes to the store are pending: until they are done callers are answered here.
    fn waits_for_store(&self) -> bool {
        self.may_wait() && !self.is_busy() && self.shared.record.has_pending_of(self.run)
    }

    /// Whether only the last entries for readers are pending: the disk does not take them.
    fn waits_for_disk(&self) -> bool {
        self.may_wait() && self.output.as_ref().is_some_and(Output::has_pending)
    }

    fn is_busy(&self) -> bool {
        self.projection.is_busy() || self.attempts.room != Room::Kept
    }

    /// Stops to wait for the disk.
    fn hurry(&mut self) {
        self.at = clock::now();
        self.output.iter_mut().for_each(Output::hurry);
        self.pump(Ready::Retry);
    }

    /// Cleans up after the disk has taken the end after all: no work is left for the next start.
    fn cleanup_after_flush(&mut self) {
        if self.output.as_mut().is_some_and(Output::has_flushed_late) {
            self.remove(Cleanup::Ended);
        }
    }

    fn pump(&mut self, ready: Ready) {
        self.at = clock::now();
        let Some(output) = &mut self.output else {
            return;
        };
        let (before, read_before) = (output.lens(), output.read_bytes());
        let end = output.pump(ready);
        if output.read_bytes() > read_before {
            self.conditions.silence.break_off();
        }
        self.reporting.spans.read(before, output.lens());
        if let Some(end) = end {
            self.close_streams(end);
        }
    }

    fn report(&mut self, report: Report) {
        // Reports are never refused. A report of the keeper has the time of its event: when it is repeated, the result
        // is the same.
        let _ = self.feed(Input::Report(report));
    }

    fn feed(&mut self, input: Input) -> Result<(), Refusal> {
        let answer = self.machine.step(self.at, input);
        // Published first: readers of the next entries find the matching state.
        self.publish_view();
        self.perform_all();
        answer
    }

    fn perform_all(&mut self) {
        let effects: Vec<Effect> = self.machine.effects().collect();
        for effect in effects {
            self.perform(effect);
        }
        self.publish();
    }

    fn record_running(&mut self) {
        self.projection.running_due = None;
        if matches!(self.machine.phase(), Phase::Running) {
            self.record_state(RowState::Running);
        }
    }

    /// Records a state, which does not replace one that this version cannot read.
    fn record_state(&mut self, state: RowState) {
        self.projection.running_due = None;
        if self.has_unread_row() {
            return self.report(Report::StateRecorded(state));
        }
        self.write(Change::State {
            state,
            started: self.times().started,
        });
    }

    fn proceed_with_stop(&mut self) {
        self.projection.stop_due = None;
        self.at = clock::now();
        tracing::warn!(run_id = %self.run, "the stop is not recorded yet, continuing");
        self.report(Report::StopRecorded);
    }

    /// Milestones of the attempt.
    pub(super) fn times(&self) -> Times {
        self.machine.record().times
    }

    /// Appends an entry that the machine has not made.
    fn note(&mut self, entry: &Entry) {
        self.machine.fold(self.at, entry);
        self.write_entry(entry);
    }

    fn write_entry(&mut self, entry: &Entry) {
        self.facets.fold(self.at, entry);
        if let Some(output) = &mut self.output {
            output.line(entry, self.at);
        }
    }
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Expected repeats of the keeper, and remains to be removed.
#[derive(Debug, Default)]
pub(super) struct Legacy {
    /// Number of rounds of signals that were reported again.
    pub(super) steps_again: usize,
    /// No row existed: this task removes what exists of the run.
    pub(super) unrecorded: bool,
    /// The keeper repeats reports of an earlier attempt; they are ignored until its final report.
    pub(super) hears_again: bool,
}

/// State of the run between attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RunStage {
    /// An attempt is at work.
    #[default]
    Present,
    /// The end of one attempt and the time of the next are being written.
    Resting(Timestamp),
    /// They are written: the next attempt waits for its time.
    Waiting(Timestamp, Instant),
    /// The end of the run is being written.
    Ending,
    /// The next attempt is another server's to begin.
    Left(Timestamp),
    /// The row is another server's to close: this one reports nothing more of the run.
    Disowned,
}
