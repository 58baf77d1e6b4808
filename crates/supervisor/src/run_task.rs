//! The one task that owns a run: it feeds the machine and performs its effects.
//!
//! Kernel reports before results of our own work, those before commands, output last. Every effect may be cut off
//! before or after itself by a crash; [`kennel_lifecycle::Effect`] says what recovery does in both cases.

use crate::{
    CallError, LifecycleEvent, RunView, clock, event,
    output::{Output, Ready},
    tracker::{Order, OrderError, Shared},
    view::{Live, StartAnswer},
    writes::{self, Write},
};
use kennel_lifecycle::{
    Announcement, Command, Effect, Exit, Input, Machine, NeverRan, Outcome, Phase, Refusal, Report,
    RowState, RunId, StartFailure, StartStage, Timestamp, TreeVerdict,
};
use kennel_linux::{
    client::{ChildSpec, ClientError, Fact, KeeperReport, Prepared, SignalResult},
    rundir,
};
use kennel_store::{Closure, Desired, NewRun, RunRow, Times};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};

/// How long `running` may wait to be recorded: most short runs end before and save the write.
const RUNNING_RECORD_DELAY: Duration = Duration::from_millis(50);
/// Request ids of interrupts that are remembered, and for how long.
const INTERRUPTS_REMEMBERED_MAX: usize = 1024;
const INTERRUPTS_REMEMBERED_FOR: Duration = Duration::from_mins(10);
/// Results that wait for the task.
const DONE_QUEUED_MAX: usize = 16;
/// Pause between two tries to continue a tree.
const THAW_RETRY_AFTER: Duration = Duration::from_millis(200);

/// A run's task.
#[derive(Debug)]
pub(crate) struct RunTask {
    shared: Arc<Shared>,
    run: RunId,
    machine: Machine,
    new: NewRun,
    child: ChildSpec,
    times: Times,
    stop_deadline: Option<Timestamp>,
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
    writes: VecDeque<Write>,
    writing: bool,
    running_due: Option<Instant>,
    start_error: Option<CallError>,
    taken: Option<Box<RunRow>>,
    interrupt: Option<oneshot::Sender<Result<SignalResult, OrderError>>>,
    interrupts: VecDeque<(String, Instant)>,
    pausing: Vec<oneshot::Sender<Result<SignalResult, OrderError>>>,
    resuming: Vec<oneshot::Sender<Result<SignalResult, OrderError>>>,
    pause_result: Option<SignalResult>,
    /// When the input that is being taken in happened.
    at: Timestamp,
}

/// The result of work that the task has started.
#[derive(Debug)]
pub(crate) enum Done {
    Prepared(Box<Result<Prepared, ClientError>>),
    Report(Report),
    Taken(Box<RunRow>),
    StopDurable(Timestamp),
    Froze(SignalResult),
    Written,
}

enum Wake {
    Kernel(KeeperReport),
    Done(Done),
    Order(Order),
    RunningDue,
    Output(Ready),
}

impl RunTask {
    pub(crate) fn new(
        shared: Arc<Shared>,
        new: NewRun,
        child: ChildSpec,
        live: watch::Sender<Live>,
        orders: mpsc::Receiver<Order>,
        reports: mpsc::Receiver<KeeperReport>,
    ) -> Self {
        let (done_sender, done) = mpsc::channel(DONE_QUEUED_MAX);
        Self {
            run: new.run,
            shared,
            machine: Machine::new(),
            new,
            child,
            times: Times::default(),
            stop_deadline: None,
            desired: Desired::Run,
            output: None,
            live,
            orders,
            reports,
            done,
            done_sender,
            ops: JoinSet::new(),
            preparing: false,
            writes: VecDeque::new(),
            writing: false,
            running_due: None,
            start_error: None,
            taken: None,
            interrupt: None,
            interrupts: VecDeque::new(),
            pausing: Vec::new(),
            resuming: Vec::new(),
            pause_result: None,
            at: clock::now(),
        }
    }

    /// Runs the run to its end.
    pub(crate) async fn drive(mut self) {
        // Admit is refused only where it was given before.
        let _ = self.feed(Input::Command(Command::Admit));
        while !self.is_over() {
            match self.wake().await {
                Wake::Kernel(report) => self.kernel(report),
                Wake::Done(done) => self.take_in(done),
                Wake::Order(order) => self.order(order),
                Wake::RunningDue => self.record_running(),
                Wake::Output(ready) => self.pump(ready),
            }
            self.answer_waiters();
        }
        self.answer_waiters();
        // The journal's writer goes first, so that a reader which finds no live run finds a whole journal.
        self.output = None;
        self.shared.leave(self.run);
        self.live.send_modify(|live| {
            live.hub = None;
            live.over = true;
        });
        while self.ops.join_next().await.is_some() {}
    }

    async fn wake(&mut self) -> Wake {
        let output = async {
            match &self.output {
                Some(output) => output.ready().await,
                None => std::future::pending().await,
            }
        };
        let running_due = async {
            match self.running_due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! { biased;
            Some(report) = self.reports.recv(), if !self.preparing => Wake::Kernel(report),
            Some(done) = self.done.recv() => Wake::Done(done),
            Some(order) = self.orders.recv() => Wake::Order(order),
            () = running_due => Wake::RunningDue,
            ready = output => Wake::Output(ready),
        }
    }

    fn is_over(&self) -> bool {
        let ended = matches!(self.machine.phase(), Phase::Closed(_) | Phase::Forgotten(_));
        ended && !self.writing && self.writes.is_empty()
    }

    fn kernel(&mut self, report: KeeperReport) {
        self.at = report.at;
        let report = match report.fact {
            Fact::NotReleased => Report::NotReleased,
            Fact::Executed => Report::Executed,
            Fact::ExecFailed(failure) => Report::ExecFailed(failure),
            Fact::LeaderExited(exit) => Report::LeaderExited(exit),
            Fact::TreeEnded(tree) => Report::TreeEnded(tree),
            Fact::SignalSent {
                signal,
                targets,
                errno,
            } => {
                let signal = signal.to_string();
                self.line(&LifecycleEvent::SignalSent {
                    signal,
                    targets,
                    errno,
                });
                return;
            }
        };
        self.report(report);
    }

    fn take_in(&mut self, done: Done) {
        self.at = clock::now();
        match done {
            Done::Prepared(result) => self.prepared(*result),
            Done::Report(Report::StopRecorded) => self.report(Report::StopRecorded),
            Done::Report(report) => {
                if let Report::StateRecorded(RowState::Paused) = report {
                    answer(&mut self.pausing, || Ok(SignalResult::Done));
                }
                if let Report::StateNotRecorded(RowState::Pausing | RowState::Paused) = report {
                    let away = || Err(OrderError::Call(CallError::StoreUnavailable));
                    answer(&mut self.pausing, away);
                }
                self.report(report);
            }
            Done::Taken(row) => {
                self.taken = Some(row);
                self.report(Report::KeyTaken);
            }
            Done::StopDurable(deadline) => {
                self.desired = Desired::Stop;
                self.stop_deadline = Some(deadline);
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
            Done::Written => {
                self.writing = false;
                self.next_write();
            }
        }
    }

    fn prepared(&mut self, result: Result<Prepared, ClientError>) {
        self.preparing = false;
        let prepared = match result {
            Ok(prepared) => prepared,
            Err(error) => {
                let failure = match error {
                    ClientError::Start(failure) => failure,
                    ClientError::KeeperGone => {
                        self.start_error = Some(CallError::Draining);
                        prepare_failure()
                    }
                    ClientError::Exhausted(what) => {
                        let limit = u64::from(self.shared.config.runs_max);
                        self.start_error = Some(CallError::QuotaExceeded { what, limit });
                        prepare_failure()
                    }
                };
                return self.report(Report::PrepareFailed(failure));
            }
        };
        self.new.identity = Some(prepared.identity.clone());
        if let Some(output) = &mut self.output
            && let Err(error) = output.attach(prepared.stdout, prepared.stderr)
        {
            tracing::error!(run = %self.run, %error, "the output cannot be read, the command is not let go");
            self.report(Report::Prepared(Box::new(prepared.identity)));
            return self.report(Report::RecordFailed);
        }
        if let Some(why) = prepared.cgroup_refused {
            let message = format!("this run has no control group: {why}");
            self.line(&LifecycleEvent::Warning { message });
        }
        self.report(Report::Prepared(Box::new(prepared.identity)));
    }

    fn order(&mut self, order: Order) {
        self.at = clock::now();
        match order {
            Order::Stop(order, reply) => {
                let answer = self.feed(Input::Command(Command::Stop(order)));
                let _ = reply.send(answer);
            }
            Order::Interrupt(request_id, reply) => {
                if request_id.is_some_and(|id| !self.first_time(id)) {
                    let _ = reply.send(Ok(SignalResult::Done));
                    return;
                }
                self.interrupt = Some(reply);
                if let Err(refusal) = self.feed(Input::Command(Command::Interrupt))
                    && let Some(reply) = self.interrupt.take()
                {
                    let _ = reply.send(Err(OrderError::Refused(refusal)));
                }
            }
            Order::Pause(reply) => match self.machine.phase() {
                Phase::Paused { .. } => drop(reply.send(Ok(SignalResult::Done))),
                Phase::Pausing { .. } => self.pausing.push(reply),
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

    /// Whether this request id has not been seen in the last ten minutes; remembers it.
    fn first_time(&mut self, id: String) -> bool {
        let now = Instant::now();
        while self
            .interrupts
            .front()
            .is_some_and(|(_, at)| now - *at > INTERRUPTS_REMEMBERED_FOR)
            || self.interrupts.len() >= INTERRUPTS_REMEMBERED_MAX
        {
            self.interrupts.pop_front();
        }
        if self.interrupts.iter().any(|(seen, _)| *seen == id) {
            return false;
        }
        self.interrupts.push_back((id, now));
        true
    }

    fn pump(&mut self, ready: Ready) {
        self.at = clock::now();
        if let Some(end) = self.output.as_mut().and_then(|output| output.pump(ready)) {
            self.report(Report::StreamsClosed(end));
        }
    }

    fn report(&mut self, report: Report) {
        // Reports are never refused.
        let _ = self.feed(Input::Report(report));
    }

    fn feed(&mut self, input: Input) -> Result<(), Refusal> {
        let answer = self.machine.step(clock::now(), input);
        // What is told next must be found by whoever reads after having been told.
        self.publish();
        let effects: Vec<Effect> = self.machine.effects().collect();
        for effect in effects {
            self.perform(effect);
        }
        self.publish();
        answer
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Prepare => self.prepare(),
            Effect::Record(_) => self.write(Write::Insert(Box::new(self.new.clone()))),
            Effect::Release => self.shared.kernel.release(self.run),
            Effect::ShutGate => self.shared.kernel.shut_gate(self.run),
            Effect::RecordStop { deadline } => self.write(Write::Stop(deadline)),
            Effect::StopTree(plan) => self.shared.kernel.stop(self.run, &plan),
            Effect::Interrupt => self.send_interrupt(),
            Effect::RecordState(state) => {
                self.running_due = None;
                self.write(Write::State(state, self.times.started));
            }
            Effect::RecordRunning => {
                self.running_due = Some(Instant::now() + RUNNING_RECORD_DELAY);
            }
            Effect::Freeze => self.op(|shared, run, done| async move {
                let result = shared.kernel.pause(run).await.unwrap_or(SignalResult::Gone);
                let _ = done.send(Done::Froze(result)).await;
            }),
            Effect::Thaw => self.op(thaw),
            Effect::FinishOutput => {
                let end = self.output.as_mut().map(Output::finish);
                if let Some(end) = end {
                    self.report(Report::StreamsClosed(end));
                }
            }
            Effect::RecordOutcome(outcome) => {
                self.running_due = None;
                self.times.ended = Some(clock::now());
                let closure = Closure {
                    outcome,
                    times: self.times,
                };
                self.write(Write::Close(Box::new(self.new.clone()), Box::new(closure)));
            }
            Effect::Forget => {
                self.output = None;
                self.remove(rundir::remove);
            }
            Effect::Acknowledge => {
                self.shared.kernel.acknowledge(self.run);
                self.remove(rundir::remove_tmp);
            }
            Effect::Announce(announcement) => self.announce(&announcement),
        }
    }

    fn prepare(&mut self) {
        let data_dir = &self.shared.config.data_dir;
        let made = rundir::create(data_dir, self.run).and_then(|dir| {
            let open = Arc::clone(&self.shared.pipes_open);
            self.output = Some(Output::create(self.run, &dir, open)?);
            Ok(dir)
        });
        match made {
            Ok(dir) => self.child.run_dir = dir,
            Err(error) => {
                tracing::error!(run = %self.run, %error, "the run's directory cannot be made");
                return self.report(Report::PrepareFailed(StartFailure {
                    stage: StartStage::Prepare,
                    errno: error.raw_os_error(),
                    path: Some(rundir::path(data_dir, self.run).display().to_string()),
                }));
            }
        }
        self.preparing = true;
        let child = self.child.clone();
        self.op(move |shared, run, done| async move {
            let prepared = shared.kernel.prepare(run, &child).await;
            let _ = done.send(Done::Prepared(Box::new(prepared))).await;
        });
    }

    fn send_interrupt(&mut self) {
        let Some(reply) = self.interrupt.take() else {
            return;
        };
        self.op(move |shared, run, _| async move {
            let result = shared.kernel.interrupt(run).await;
            let _ = reply.send(result.map_err(|_| OrderError::Call(CallError::Draining)));
        });
    }

    fn record_running(&mut self) {
        self.running_due = None;
        if matches!(self.machine.phase(), Phase::Running { .. }) {
            self.write(Write::State(RowState::Running, self.times.started));
        }
    }

    fn announce(&mut self, announcement: &Announcement) {
        match announcement {
            Announcement::Started => {
                self.times.started = Some(self.at);
                self.live
                    .send_modify(|live| live.start = Some(StartAnswer::Started));
            }
            Announcement::LeaderExited(_) => self.times.leader_exited = Some(self.at),
            Announcement::StreamsClosed(_) => self.times.streams_closed = Some(self.at),
            Announcement::TreeEnded(TreeVerdict::Empty(_)) => self.times.tree_empty = Some(self.at),
            Announcement::TreeEnded(_)
            | Announcement::Recorded
            | Announcement::Paused
            | Announcement::Resumed
            | Announcement::Stopping { .. } => {}
            Announcement::Ended(outcome) => self.say_ended(outcome),
        }
        let line = event::line(announcement, self.new.identity.as_ref());
        self.line(&line);
    }

    fn say_ended(&self, outcome: &Outcome) {
        let state = outcome.state();
        tracing::info!(run = %self.run, ?state, reason = ?outcome.reason, exit = ?outcome.exit, tree = ?outcome.tree, "run ended");
    }

    fn line(&mut self, line: &LifecycleEvent) {
        if let Some(output) = &mut self.output {
            output.line(line, self.at);
        }
    }

    fn write(&mut self, write: Write) {
        self.writes.push_back(write);
        self.next_write();
    }

    fn next_write(&mut self) {
        if self.writing {
            return;
        }
        let Some(write) = self.writes.pop_front() else {
            return;
        };
        self.writing = true;
        let generation = self.shared.generation;
        self.op(move |shared, run, done| async move {
            writes::perform(Arc::clone(&shared.store), run, generation, write, done).await;
        });
    }

    /// Work beside the task; its end is awaited in [`Self::drive`].
    fn op<Fut>(&mut self, work: impl FnOnce(Arc<Shared>, RunId, mpsc::Sender<Done>) -> Fut)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        // What has ended is let go here, so that a long run does not collect it.
        while self.ops.try_join_next().is_some() {}
        let work = work(Arc::clone(&self.shared), self.run, self.done_sender.clone());
        self.ops.spawn(work);
    }

    fn remove(&mut self, remove: fn(&std::path::Path, RunId) -> std::io::Result<()>) {
        let (shared, run) = (Arc::clone(&self.shared), self.run);
        self.ops.spawn_blocking(move || {
            if let Err(error) = remove(&shared.config.data_dir, run) {
                tracing::warn!(%run, %error, "the run's directory is not wholly removed");
            }
        });
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

    fn publish(&self) {
        let start = self.start_answer();
        let view = self.view();
        let hub = self.output.as_ref().map(Output::hub);
        self.live.send_modify(|live| {
            live.view = view;
            live.hub = hub;
            if live.start.is_none() {
                live.start = start;
            }
        });
    }

    fn view(&self) -> RunView {
        let phase = self.machine.phase();
        let outcome = match phase {
            Phase::Closed(outcome) => Some(outcome.clone()),
            _ => None,
        };
        let exit = match &outcome {
            Some(outcome) => outcome.exit,
            None => self.times.leader_exited.and(self.machine.ends().leader),
        };
        RunView {
            run: self.run,
            owner: self.new.owner.clone(),
            kind: self.new.kind,
            node: self.new.node,
            state: phase.public(),
            desired: self.desired,
            attempt: self.new.attempt,
            identity: self.new.identity.clone(),
            grace: self.new.grace,
            stop_deadline: self.stop_deadline,
            spec_document: self.new.spec.clone(),
            labels: self.new.labels.clone(),
            traceparent: self.new.traceparent.clone(),
            created: self.new.created,
            times: self.times,
            exit,
            outcome,
        }
    }

    /// How the start went, where that is decided. A failure is told when nothing of it is left; only a store that
    /// does not answer is told at once, because nobody knows when it will.
    fn start_answer(&self) -> Option<StartAnswer> {
        let why = match self.machine.phase() {
            Phase::Forgotten(why) => why.clone(),
            Phase::Leaving(leaving) => match &leaving.why {
                why @ NeverRan::Failed(StartFailure {
                    stage: StartStage::Record,
                    ..
                }) => why.clone(),
                _ => return None,
            },
            Phase::Closed(outcome) if outcome.exit.is_none() => match &outcome.reason {
                kennel_lifecycle::EndReason::StartFailed(failure) => {
                    NeverRan::Failed(failure.clone())
                }
                _ => return Some(StartAnswer::Failed(CallError::StoppedFirst(self.run))),
            },
            // It may have run: the shim died before it could tell.
            Phase::Draining { .. }
            | Phase::Closing(Outcome {
                exit: Some(Exit::Unknown),
                ..
            }) => {
                return Some(StartAnswer::Started);
            }
            _ => return None,
        };
        if let Some(error) = &self.start_error {
            return Some(StartAnswer::Failed(error.clone()));
        }
        Some(match why {
            NeverRan::Failed(StartFailure {
                stage: StartStage::Record,
                ..
            }) => StartAnswer::Failed(CallError::StoreUnavailable),
            NeverRan::Failed(failure) => StartAnswer::Failed(CallError::SpawnFailed {
                run: self.run,
                failure,
            }),
            NeverRan::Stopped(_) => StartAnswer::Failed(CallError::StoppedFirst(self.run)),
            NeverRan::Superseded => match &self.taken {
                Some(row) => StartAnswer::Taken(row.clone()),
                None => StartAnswer::Failed(CallError::StoreUnavailable),
            },
        })
    }
}

async fn thaw(shared: Arc<Shared>, run: RunId, done: mpsc::Sender<Done>) {
    loop {
        match shared.kernel.resume(run).await {
            Ok(SignalResult::Failed(errno)) => {
                tracing::warn!(%run, errno, "the tree cannot be continued, trying again");
                tokio::time::sleep(THAW_RETRY_AFTER).await;
                // A run that has left meanwhile is nobody to continue.
                if shared.find(run).is_none() {
                    return;
                }
            }
            // Gone: its end is on its way.
            Ok(_) => return drop(done.send(Done::Report(Report::Thawed)).await),
            Err(_) => return,
        }
    }
}

fn prepare_failure() -> StartFailure {
    StartFailure {
        stage: StartStage::Prepare,
        errno: None,
        path: None,
    }
}

fn answer(
    waiters: &mut Vec<oneshot::Sender<Result<SignalResult, OrderError>>>,
    with: impl Fn() -> Result<SignalResult, OrderError>,
) {
    for waiter in waiters.drain(..) {
        // A caller that has gone needs no answer.
        let _ = waiter.send(with());
    }
}
