//! The one task that owns a run (INV-14): it feeds the machine and performs its effects.
//!
//! Kernel reports before results of our own work, those before commands, output last. Every effect may be cut off
//! before or after itself by a crash; [`kennel_lifecycle::Effect`] says what recovery does in both cases.

mod adopted;
mod attempts;
mod audit_log;
mod perform;
mod publish;
mod signalling;
mod silence;
mod terminal;

use crate::{
    base::{calls::CallError, clock, view::Live},
    registry::{Order, OrderError, Place, Seat, Shared},
    run::{
        cleanup::Cleanup,
        output::{Output, Ready},
        writes::Write,
    },
    telemetry::RunSpans,
};
use adopted::Legacy;
use attempts::Attempts;
use kennel_lifecycle::{
    Command, Effect, Entry, Input, Machine, Phase, Recovery, Refusal, Report, RowState, RunId,
    Signal, StartFailure, StartStage, StopOrder, StopReason, TerminalSize, Timestamp, limits,
};
use kennel_linux::{
    client::{
        Aim, CapabilityName, ChildSpec, ClientError, Fact, KeeperReport, Prepared, SignalResult,
    },
    crash_point,
};
use kennel_store::{Desired, NewRun, RunRow, StoreError, Times};
use signalling::Signalling;
use silence::Silence;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use terminal::ResizeDone;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};
pub(crate) use {
    adopted::{Standing, Waiting},
    attempts::{add, next, outlives_service, start_failure},
    audit_log::round,
};

/// How long `running` may wait to be recorded: most short runs end before and save the write.
const RUNNING_RECORD_DELAY: Duration = Duration::from_millis(50);
/// How long a stop waits for its record, and for the writes before it, until the tree is signalled all the same: a stop
/// is never refused.
const STOP_RECORD_WAIT: Duration = Duration::from_secs(2);
/// Results that wait for the task.
const DONE_QUEUED_MAX: usize = 16;

type SignalReply = oneshot::Sender<Result<SignalResult, OrderError>>;

/// A run's task.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one thing that the task waits for or is done with, and any two of them may be"
)]
pub(crate) struct RunTask {
    shared: Arc<Shared>,
    run: RunId,
    machine: Machine,
    new: NewRun,
    /// Until the keeper has it: argv, environment and input may be large.
    child: Option<ChildSpec>,
    stop_deadline: Option<Timestamp>,
    attempts: Attempts,
    desired: Desired,
    output: Option<Output>,
    live: watch::Sender<Live>,
    orders: mpsc::Receiver<Order>,
    reports: mpsc::Receiver<KeeperReport>,
    done: mpsc::Receiver<Done>,
    done_sender: mpsc::Sender<Done>,
    ops: JoinSet<()>,
    /// Reports wait until the answer to PREPARE has been taken in: they follow it.
    preparing: bool,
    room: Room,
    writes: VecDeque<Write>,
    writing: bool,
    /// The row is another server's to close: this one tells nothing more of the run.
    disowned: bool,
    running_due: Option<Instant>,
    silence: Silence,
    stop_due: Option<Instant>,
    /// Stops that were asked for and are not on the row yet.
    stops_owed: u32,
    start_error: Option<CallError>,
    /// To be told once the run is recorded.
    warning: Option<String>,
    taken: Option<Box<RunRow>>,
    /// The signal that the machine is being asked for.
    signal: Option<Signalling>,
    pausing: Vec<SignalReply>,
    resuming: Vec<SignalReply>,
    pause_result: Option<SignalResult>,
    /// When the input that is being taken in happened.
    at: Timestamp,
    legacy: Legacy,
    /// Whom the round was for that is told next.
    aimed: Vec<Aim>,
    /// How large Kennel has made the terminal of this attempt last.
    terminal: Option<TerminalSize>,
    /// The keeper tells again of an attempt that has ended: up to its last word nothing is of the present one.
    hears_again: bool,
    /// What is told of it outside.
    spans: RunSpans,
}

/// The run's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// It is there or it is not.
    Kept,
    /// It is being removed; a next run of this id must not meet the removal.
    Removing,
}

/// The result of work that the task has started.
#[derive(Debug)]
pub(crate) enum Done {
    Prepared(Box<Result<Prepared, ClientError>>),
    Report(Report),
    Taken(Box<RunRow>),
    /// What the row says of a run that was gone on with without it.
    Met(Box<RunRow>),
    /// Nothing says what this run is, or another one's row stands under its key.
    Strange,
    LeftOver(Box<Result<Option<RunRow>, StoreError>>),
    StopDurable(Timestamp),
    /// The row is another server's: the stop is not on it, and nobody is told that it is.
    StopRefused,
    Froze(SignalResult),
    Resized(Box<ResizeDone>),
    /// What was made for a run that left no trace is removed.
    Removed,
    /// The outcome is not this server's to write.
    Disowned,
    Written,
}

enum Wake {
    Kernel(KeeperReport),
    Done(Done),
    Order(Order),
    RunningDue,
    StopDue,
    AttemptDue,
    SilenceDue,
    KeeperLost,
    Output(Ready),
    /// The service goes, and the end of the output waits for room on the disk.
    Hurry,
    /// The store may have been told all that it was owed of the run.
    Told,
}

impl RunTask {
    pub(crate) fn new(shared: Arc<Shared>, new: NewRun, child: ChildSpec, seat: Seat) -> Self {
        let machine = Machine::with(new.policy().on_leader_exit);
        let mut task = Self::with(shared, new, machine, seat);
        task.child = Some(child);
        task
    }

    fn with(shared: Arc<Shared>, new: NewRun, machine: Machine, seat: Seat) -> Self {
        let Seat {
            orders,
            reports,
            live,
        } = seat;
        let (done_sender, done) = mpsc::channel(DONE_QUEUED_MAX);
        let spans = RunSpans::new(&shared.config.telemetry, &new);
        Self {
            run: new.run,
            shared,
            machine,
            new,
            child: None,
            stop_deadline: None,
            attempts: Attempts::default(),
            desired: Desired::Run,
            output: None,
            live,
            orders,
            reports,
            done,
            done_sender,
            ops: JoinSet::new(),
            preparing: false,
            room: Room::Kept,
            writes: VecDeque::new(),
            writing: false,
            disowned: false,
            running_due: None,
            silence: Silence::default(),
            stop_due: None,
            stops_owed: 0,
            start_error: None,
            warning: None,
            taken: None,
            signal: None,
            pausing: Vec::new(),
            resuming: Vec::new(),
            pause_result: None,
            at: clock::now(),
            legacy: Legacy::default(),
            aimed: Vec::new(),
            terminal: None,
            hears_again: false,
            spans,
        }
    }

    /// Runs the run to its end.
    pub(crate) async fn drive(mut self) {
        let place = self.shared.place(self.run);
        // Admit is refused only where it was given before.
        let _ = self.feed(Input::Command(Command::Admit));
        self.go_to_the_end(place).await;
    }

    /// Goes on with a run that an earlier server has begun.
    pub(crate) async fn go_on(mut self) {
        let place = self.shared.place(self.run);
        self.perform_all();
        self.go_to_the_end(place).await;
    }

    /// The same, for a run whose place is held already.
    pub(crate) async fn go_on_in(mut self, place: Place) {
        self.perform_all();
        self.go_to_the_end(place).await;
    }

    async fn go_to_the_end(mut self, place: Place) {
        while !self.is_over() {
            match self.wake().await {
                Wake::Kernel(report) => self.kernel(report),
                Wake::Done(done) => self.take_in(done),
                Wake::Order(order) => self.order(order),
                Wake::RunningDue => self.record_running(),
                Wake::StopDue => self.go_on_with_stop(),
                Wake::AttemptDue => self.begin_next(),
                Wake::KeeperLost => self.keeper_lost(),
                Wake::Output(ready) => self.pump(ready),
                Wake::Hurry => self.hurry(),
                // The limits below look.
                Wake::SilenceDue | Wake::Told => {}
            }
            self.keep_limit();
            self.answer_waiters();
            self.tidy_late();
            if self.waits_for_store() && !self.waits_for_disk() && self.output.take().is_some() {
                // Readers come to their end.
                self.publish();
            }
        }
        self.answer_waiters();
        self.let_go_of_reports().await;
        // The journal's writer goes first, so that a reader which finds no live run finds a whole journal.
        self.output = None;
        drop(place);
        self.live.send_modify(|live| {
            live.hub = None;
            live.over = true;
        });
        // Nobody takes in any more what is still being done; who would tell must not wait for a place to do so.
        self.done.close();
        while self.ops.join_next().await.is_some() {}
    }

    /// A last word that comes after the end of this task is nobody's: the keeper need not keep it.
    async fn let_go_of_reports(&mut self) {
        self.reports.close();
        // To the end of the queue, which is after whatever was being put into it.
        while let Some(report) = self.reports.recv().await {
            if let Fact::TreeEnded(_) = report.fact {
                self.shared.kernel.acknowledge(self.run);
            }
        }
    }

    async fn wake(&mut self) -> Wake {
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
        let inactive_at = self.inactive_at();
        tokio::select! { biased;
            Some(report) = self.reports.recv(), if !self.preparing => Wake::Kernel(report),
            Some(done) = self.done.recv() => Wake::Done(done),
            Some(order) = self.orders.recv() => Wake::Order(order),
            () = due(self.stop_due) => Wake::StopDue,
            () = due(self.running_due) => Wake::RunningDue,
            () = due(self.attempts.due()), if !self.shared.leaving.is_cancelled() => Wake::AttemptDue,
            () = self.shared.keeper_lost.cancelled(), if !flows || holds || self.is_left() => Wake::KeeperLost,
            () = self.shared.refusing.cancelled(), if finishing => Wake::Hurry,
            ready = output => Wake::Output(ready),
            () = due(inactive_at) => Wake::SilenceDue,
            () = self.shared.record.delivered(self.run), if waits_for_store => Wake::Told,
            () = self.shared.refusing.cancelled(), if has_ended => Wake::Told,
        }
    }

    /// Whether the run goes on without this service once its keeper is gone, so that its output is another's to read. Of one
    /// that is being stopped, or whose leader has ended, all is read as of any other.
    fn is_left(&self) -> bool {
        let goes_on = matches!(
            self.machine.phase(),
            Phase::Released { .. }
                | Phase::Running { .. }
                | Phase::Pausing { .. }
                | Phase::Paused { .. }
                | Phase::Resuming { .. }
        );
        let can_adopt = self.shared.hello.lacks(CapabilityName::Adoption).is_none();
        self.new.policy().recovery().on_host(can_adopt) == Recovery::Adopt
            && goes_on
            && self.output.as_ref().is_some_and(Output::is_open)
    }

    fn keeper_lost(&mut self) {
        if self.is_left() {
            self.output.iter_mut().for_each(Output::let_go);
        } else {
            // Its end does not wait for what nobody may come to acknowledge.
            self.output.iter_mut().for_each(Output::go_beyond);
        }
        // No word of its start can come any more.
        self.flow();
    }

    pub(super) fn flow(&mut self) {
        if let Some(output) = &mut self.output {
            output.flow();
        }
    }

    fn is_over(&self) -> bool {
        let ended = matches!(self.machine.phase(), Phase::Closed(_) | Phase::Forgotten(_));
        (ended && !self.attempts.goes_on() || self.disowned || self.has_left())
            && !self.is_busy()
            && !self.waits_for_store()
            && !self.waits_for_disk()
    }

    /// All is told, but to the store: until then whoever asks is answered here.
    fn waits_for_store(&self) -> bool {
        let has_ended = matches!(self.machine.phase(), Phase::Closed(_));
        has_ended
            && !self.disowned
            && !self.attempts.goes_on()
            && !self.is_busy()
            && self.shared.record.has_pending_of(self.run)
            && !self.shared.refusing.is_cancelled()
    }

    /// All is told, but to readers: the disk does not take the last lines.
    fn waits_for_disk(&self) -> bool {
        let has_ended = matches!(self.machine.phase(), Phase::Closed(_));
        has_ended
            && !self.disowned
            && !self.attempts.goes_on()
            && self.output.as_ref().is_some_and(Output::owes)
            && !self.shared.refusing.is_cancelled()
    }

    fn is_busy(&self) -> bool {
        self.writing || !self.writes.is_empty() || self.room != Room::Kept
    }

    fn kernel(&mut self, report: KeeperReport) {
        if self.hears_again {
            self.hears_again = !matches!(report.fact, Fact::TreeEnded(_));
            return;
        }
        // Reports come in the order in which things happened; shim and keeper each stamp their own, so that the time of
        // a quick command's end may lie before that of its start.
        self.at = self
            .times()
            .started
            .map_or(report.at, |started| started.max(report.at));
        crash_point!("spawn.executed", matches!(report.fact, Fact::Executed));
        crash_point!("exit.leader", matches!(report.fact, Fact::LeaderExited(_)));
        crash_point!("exit.tree", matches!(report.fact, Fact::TreeEnded(_)));
        let report = match report.fact {
            Fact::NotReleased => Report::NotReleased,
            Fact::Executed => Report::Executed,
            Fact::ExecFailed(failure) => Report::ExecFailed(failure),
            Fact::LeaderExited(exit) => Report::LeaderExited(exit),
            Fact::PauseExpired => Report::PauseExpired,
            Fact::DeadlineExceeded(which) => Report::DeadlineExceeded {
                which,
                grace: self.new.policy().grace(),
            },
            Fact::Orphaned => Report::Orphaned {
                grace: self.new.policy().grace(),
            },
            Fact::ShimLost => Report::ShimLost {
                grace: self.new.policy().grace(),
            },
            Fact::TreeEnded(tree) => {
                self.report(Report::Census(report.at));
                Report::TreeEnded(tree)
            }
            Fact::LeftBehind(left) => Report::LeftBehind(left),
            Fact::MemoryKills(kills) => Report::MemoryKills(kills),
            Fact::TreeStuck(stuck) => Report::TreeStuck(stuck),
            Fact::Aimed(aims) => {
                self.note_aims(aims);
                return;
            }
            Fact::StopStep(step) => {
                self.tell_round(&step);
                let again = self.note_signal(&Entry::StopStep(step));
                self.legacy.steps_again += usize::from(again);
                // The certificate has counted those that it does not list.
                if again && self.legacy.steps_again > limits::STEPS_TOLD_MAX {
                    return;
                }
                Report::Signalled(step)
            }
            Fact::SignalSent {
                signal,
                targets,
                errno,
            } => {
                let kills = signal == Signal::KILL && targets != Some(0);
                self.note_signal(&Entry::SignalSent {
                    signal,
                    targets,
                    errno,
                });
                if !kills {
                    return;
                }
                Report::KillSent
            }
        };
        self.report(report);
    }

    fn take_in(&mut self, done: Done) {
        self.at = clock::now();
        match done {
            Done::Prepared(result) => self.prepared(*result),
            Done::LeftOver(row) => self.left_over(*row),
            Done::Report(report) => {
                if let Report::StateRecorded(RowState::Paused) = report {
                    answer(&mut self.pausing, || Ok(SignalResult::Done));
                }
                if let Report::StateNotRecorded(RowState::Pausing | RowState::Paused) = report {
                    let away = || Err(OrderError::Call(CallError::StoreUnavailable));
                    answer(&mut self.pausing, away);
                }
                // What is there of the run is this task's to remove.
                self.legacy.unrecorded |= report == Report::Withdrawn;
                self.report(report);
            }
            Done::Taken(row) => {
                self.taken = Some(row);
                self.report(Report::KeyTaken);
            }
            Done::Met(row) => self.met(*row),
            Done::Strange => {
                self.disowned = true;
                self.writes.clear();
            }
            Done::StopDurable(deadline) => {
                self.desired = Desired::Stop;
                self.stop_deadline = Some(deadline);
                self.stop_due = None;
                self.stops_owed = self.stops_owed.saturating_sub(1);
                self.report(Report::StopRecorded);
            }
            Done::StopRefused => {
                self.stop_due = None;
                self.report(Report::StopRecorded);
            }
            Done::Froze(result) => {
                let frozen = result == SignalResult::Done;
                self.pause_result = Some(result);
                self.report(if frozen {
                    Report::Frozen
                } else {
                    Report::NotFrozen
                });
            }
            Done::Resized(resized) => self.resized(*resized),
            Done::Removed => self.room = Room::Kept,
            Done::Disowned => {
                self.disowned = true;
                self.shared.kernel.acknowledge(self.run);
            }
            Done::Written => {
                self.writing = false;
                self.next_write();
            }
        }
    }

    fn prepared(&mut self, result: Result<Prepared, ClientError>) {
        crash_point!("spawn.prepared");
        self.preparing = false;
        let prepared = match result {
            Ok(prepared) => prepared,
            Err(error) => {
                let failure = match error {
                    ClientError::Start(failure) => failure,
                    ClientError::KeeperGone => {
                        // Should it only have been slow, its child must not wait at the gate for ever.
                        self.shared.kernel.shut_gate(self.run);
                        self.start_error = Some(CallError::Draining);
                        prepare_failure()
                    }
                    ClientError::Exhausted(what) => {
                        self.start_error = Some(self.no_room(what));
                        prepare_failure()
                    }
                    ClientError::NoPty(none) => {
                        self.start_error = Some(CallError::NoPty(none));
                        prepare_failure()
                    }
                    ClientError::TooWeak { wanted, held } => {
                        self.start_error = Some(CallError::ContainmentUnavailable {
                            run: self.run,
                            wanted,
                            reached: held.by,
                            why: held.cgroup_refused().map(str::to_owned),
                        });
                        prepare_failure()
                    }
                };
                let why = failure.stage.api_name().to_owned();
                self.spans.prepared(&self.new, self.at, Some(why));
                return self.report(Report::PrepareFailed(failure));
            }
        };
        self.new.identity = Some(prepared.identity.clone());
        self.terminal = prepared.terminal;
        let attached = match &mut self.output {
            Some(output) => output.attach(prepared.outputs),
            None => Ok(()),
        };
        if let Some(why) = prepared.held.cgroup_refused() {
            self.warning = Some(format!("this run has no control group: {why}"));
        }
        self.new.held = Some(prepared.held);
        self.spans.prepared(&self.new, self.at, None);
        self.report(Report::Prepared(Box::new(prepared.identity)));
        if let Err(error) = attached {
            tracing::error!(run_id = %self.run, %error, "the output cannot be read, the command is not let go");
            self.start_error = Some(self.no_room("descriptors of the server".into()));
            // The gate is shut, and the row that is on its way is closed.
            self.report(Report::NotReleased);
        }
    }

    fn no_room(&self, what: String) -> CallError {
        let limit = u64::from(self.shared.config.runs_max);
        CallError::QuotaExceeded { what, limit }
    }

    fn order(&mut self, order: Order) {
        self.at = clock::now();
        if self.attempts.due().is_some() {
            return self.order_between(order);
        }
        match order {
            Order::Stop(order, reply) => {
                let _ = reply.send(self.stop(order));
            }
            Order::Restart(call, reply) => {
                let answer = self.restart(call).map_err(OrderError::Refused);
                drop(reply.send(answer));
            }
            Order::Interrupt(request_id, reply) => {
                self.signal(Signalling::Interrupt(request_id, reply));
            }
            Order::Signal(call, reply) => self.signal(Signalling::Named(call, reply)),
            Order::Resize(call, reply) => self.resize(call, reply),
            Order::InputAccepted => self.silence.break_off(),
            Order::Pause(reply) => match self.machine.phase() {
                // Where somebody still waits for the row, so does this one.
                Phase::Paused { .. } if self.pausing.is_empty() => {
                    drop(reply.send(Ok(SignalResult::Done)));
                }
                Phase::Paused { .. } | Phase::Pausing { .. } => self.pausing.push(reply),
                _ => match self.feed(Input::Command(Command::Pause)) {
                    Ok(()) => self.pausing.push(reply),
                    Err(refusal) => drop(reply.send(Err(OrderError::Refused(refusal)))),
                },
            },
            Order::Resume(reply) => match self.machine.phase() {
                Phase::Running { .. } => drop(reply.send(Ok(SignalResult::Done))),
                _ => match self.feed(Input::Command(Command::Resume)) {
                    Ok(()) => self.resuming.push(reply),
                    Err(refusal) => drop(reply.send(Err(OrderError::Refused(refusal)))),
                },
            },
        }
    }

    /// Has the run stopped where it has come to a limit at which its spec wants that.
    fn keep_limit(&mut self) {
        let Some(reason) = self.limit_reached() else {
            return;
        };
        self.at = clock::now();
        tracing::warn!(run_id = %self.run, limit = reason.name(), "the run is stopped, as its spec says");
        let order = StopOrder {
            reason,
            grace: self.new.policy().grace(),
        };
        if self.attempts.due().is_some() {
            return self.end_waiting(&order);
        }
        // Refused where it has ended, or is being ended, already.
        let _ = self.stop(order);
    }

    fn limit_reached(&mut self) -> Option<StopReason> {
        let limit = self.output.as_mut().and_then(Output::limit_reached);
        let limit = limit.map(StopReason::LimitExceeded);
        limit.or_else(|| self.keep_silence())
    }

    fn stop(&mut self, order: StopOrder) -> Result<(), Refusal> {
        let wanted = self.stays_wanted(&order);
        let owed = self.stops_owed;
        self.feed(Input::Command(Command::Stop(order.clone())))?;
        if !wanted {
            if self.stops_owed == owed {
                self.record_wish(&order);
            }
            self.attempts.wants_end(order);
        }
        Ok(())
    }

    /// Nobody waits for the disk any longer.
    fn hurry(&mut self) {
        self.at = clock::now();
        self.output.iter_mut().for_each(Output::hurry);
        self.pump(Ready::Retry);
    }

    /// The disk has taken the end after all: nothing is left for the next start to do.
    fn tidy_late(&mut self) {
        if self.output.as_mut().is_some_and(Output::has_told_late) {
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
            self.silence.break_off();
        }
        self.spans.read(before, output.lens());
        if let Some(end) = end {
            self.report(Report::StreamsClosed(end));
        }
    }

    /// Appends an entry about a signal, unless an earlier server has. Gives whether it has.
    fn note_signal(&mut self, entry: &Entry) -> bool {
        let again = self.machine.record().has_signal(self.at, entry);
        if !again {
            self.note(entry);
        }
        again
    }

    fn report(&mut self, report: Report) {
        // Reports are never refused. What the keeper tells is as old as it says: told again, it comes out the same.
        let _ = self.feed(Input::Report(report));
    }

    fn feed(&mut self, input: Input) -> Result<(), Refusal> {
        let answer = self.machine.step(self.at, input);
        // Who reads the entries that follow finds their state here.
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
        self.running_due = None;
        if matches!(self.machine.phase(), Phase::Running { .. }) {
            self.write(Write::State(RowState::Running, self.times().started));
        }
    }

    fn go_on_with_stop(&mut self) {
        self.stop_due = None;
        self.at = clock::now();
        tracing::warn!(run_id = %self.run, "the stop is not recorded yet, going on with it");
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
        if let Some(output) = &mut self.output {
            output.line(entry, self.at);
        }
    }

    fn answer_waiters(&mut self) {
        let phase = self.machine.phase();
        let refusal = match phase {
            Phase::Closed(_) | Phase::Forgotten(_) => Refusal::Ended,
            _ => Refusal::Stopping,
        };
        match phase {
            Phase::Pausing { .. } | Phase::Paused { .. } => {}
            Phase::Running { .. } => {
                let result = &self.pause_result;
                let partial = || Ok(result.clone().unwrap_or(SignalResult::Partial(Vec::new())));
                answer(&mut self.pausing, partial);
            }
            _ => answer(&mut self.pausing, || Err(OrderError::Refused(refusal))),
        }
        match phase {
            Phase::Resuming { .. } => {}
            Phase::Running { .. } => answer(&mut self.resuming, || Ok(SignalResult::Done)),
            _ => answer(&mut self.resuming, || Err(OrderError::Refused(refusal))),
        }
    }
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn prepare_failure() -> StartFailure {
    StartFailure {
        stage: StartStage::Prepare,
        errno: None,
        path: None,
    }
}

fn answer(waiters: &mut Vec<SignalReply>, with: impl Fn() -> Result<SignalResult, OrderError>) {
    for waiter in waiters.drain(..) {
        // A caller that has gone needs no answer.
        let _ = waiter.send(with());
    }
}
