//! Recovery of an open row whose keeper is gone: its processes are looked for, ended where they are verified, and the
//! row is closed.
//!
//! [`kennel_lifecycle::recovery`] has the order of evidence and the decision; this module observes and carries out.

use crate::{
    base::{
        blocking::blocking,
        calls::RunView,
        cause::Chain,
        clock, log_words,
        view::{Live, StartAnswer},
    },
    node::adopt::{self, answer},
    registry::{Entered, Handle, Order, RunRegistration, Seat, Shared, unreachable::LateShim},
    run::{
        cleanup::Cleanup,
        reopened::{Left, Reopened},
        task::{RunTask, outlives_service, round},
        writes,
    },
    telemetry::log_span,
};
use kennel_keeper::{
    client::{ClientError, HeldRun, KeeperReport, Recorded},
    rundir,
};
use kennel_lifecycle::{
    EndReason, Entry, Exit, Outcome, RunIdentity, RunState, SignalSender, StopCertificate,
    StopOrder, StopReason, StopStep, StreamsEnd, Stuck, Timestamp, TreeVerdict,
    ladder::StopPlan,
    recovery::{self, Before, Decision},
};
use kennel_linux::crash_point;
use kennel_store::{Desired, RunRow, StoredState};
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};
use tracing::Instrument;

/// Interval at which a shim that still works is polled.
const SHIM_POLL: Duration = Duration::from_millis(50);
/// Time beyond the run's grace that a shim may take before we end the run ourselves.
const SHIM_MARGIN: Duration = Duration::from_secs(2);
/// Longest grace that a start waits for: a run without a server has no reader either.
const ORPHAN_GRACE_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed recovery: a caller that asks for the run restarts the recovery, and must not do so without a
/// pause.
const REST: Duration = Duration::from_secs(1);
/// Shortest wait before the next check of processes that SIGKILL does not end.
const WATCH_MIN: Duration = Duration::from_millis(50);
/// Longest such wait.
const WATCH_MAX: Duration = Duration::from_secs(1);
/// A wait is this fraction of the time since the first check.
const WATCH_SLOWER: u32 = 32;

/// Starts a task that ends and closes the run of this row, unless one is running.
pub(crate) fn start_recovery(shared: &Arc<Shared>, row: RunRow) {
    begin(shared, row, true);
}

fn begin(shared: &Arc<Shared>, row: RunRow, asked_for: bool) {
    let run = row.new.run;
    // A pending change of a later version already has the run's end.
    if shared.record.waits_for_later(run) {
        return;
    }
    let marks = log_span(&shared.config.telemetry, &row.new);
    let again = row.clone();
    let make = || {
        let mut view = RunView::from(row.clone());
        if row.state != StoredState::Backoff && !shared.late_shims.is_late(run) {
            view.state = RunState::Stopping;
        }
        // Until the run is observed, the gate of a first attempt may be open or shut.
        let may_have_run = row.state != StoredState::Starting || row.new.attempt > 1;
        let start = may_have_run.then_some(StartAnswer::Started);
        let (handle, seat) = Handle::new(&row.new, view, start);
        let Seat {
            orders,
            live,
            reports,
        } = seat;
        let task = RunRecovery {
            shared: Arc::clone(shared),
            row,
            asked_for,
            live,
            journal: None,
            no_wait: false,
            since: clock::now(),
        };
        shared
            .tasks
            .spawn(task.drive(orders, reports).instrument(marks.clone()));
        handle
    };
    marks.in_scope(|| match shared.enter(run, None, make) {
        Ok(Entered::New(_)) => {
            // If `asked_for`, `work` announces the run if it is still open.
            if !asked_for {
                shared.announce(run);
            }
            tracing::info!(run_id = %run, "run found open, recovering it");
        }
        Ok(Entered::Existing) => begin_later(shared, again),
        Err(error) => tracing::error!(run_id = %run, %error, "cannot recover the run now"),
    });
}

/// Starts recovery of this row when another child under its key is gone: one that was prepared while the store had no
/// such row, which it has again since it went back.
fn begin_later(shared: &Arc<Shared>, row: RunRow) {
    let Some(handle) = shared.find(row.new.run).filter(|task| !is_of(task, &row)) else {
        return;
    };
    let (waiting, mut live) = (Arc::clone(shared), handle.live);
    shared.background.spawn(async move {
        // `wait_for` fails if the task is gone.
        let _ = live.wait_for(|live| live.over).await;
        if !waiting.serving.is_refusing() {
            start_recovery(&waiting, row);
        }
    });
}

/// Whether the run of this row has a task here. A task of its key may be another child's.
pub(crate) fn has_task(shared: &Shared, row: &RunRow) -> bool {
    let handle = shared.find(row.new.run);
    handle.is_some_and(|task| is_of(&task, row))
}

fn is_of(task: &Handle, row: &RunRow) -> bool {
    task.live.borrow().view.identity == row.new.identity
}

/// Decision of recovery on a run whose processes are all gone.
enum Way {
    /// Another attempt is due.
    Due,
    /// The run has ended with this outcome.
    Ended(Box<Outcome>),
}

struct RunRecovery {
    shared: Arc<Shared>,
    row: RunRow,
    /// Started by a call, long after this server's start.
    asked_for: bool,
    live: watch::Sender<Live>,
    /// Opened when there is something to write.
    journal: Option<Reopened>,
    /// The shim does not answer, so recovery does not wait for it to end the run.
    no_wait: bool,
    /// Start of the recovery.
    since: Timestamp,
}

impl RunRecovery {
    async fn drive(
        mut self,
        mut orders: mpsc::Receiver<Box<Order>>,
        reports: mpsc::Receiver<Box<KeeperReport>>,
    ) {
        let run = self.row.new.run;
        let place = self.shared.place(run);
        if self.row.state != StoredState::Backoff && self.shared.late_shims.is_late(run) {
            let held = self.await_shim(&mut orders).await;
            self.shared.late_shims.set(run, LateShim::Done);
            if let Some(held) = held {
                let live = self.live;
                let seat = Seat {
                    orders,
                    reports,
                    live,
                };
                return Box::pin(resume_late(self.shared, held, self.row, seat, place)).await;
            }
            self.live
                .send_modify(|live| live.view.state = RunState::Stopping);
        }
        // If another attempt may follow, that attempt answers the callers.
        let waits = self.row.state == StoredState::Backoff || outlives_service(&self.row.new);
        let live = self.live.subscribe();
        let found = {
            let work = self.work();
            tokio::pin!(work);
            loop {
                tokio::select! {
                    found = &mut work => break found,
                    Some(order) = orders.recv(), if !waits => answer(*order, &live),
                }
            }
        };
        let Some(found) = found else {
            drop(place);
            return self.live.send_modify(|live| live.over = true);
        };
        let journal = match self.journal {
            Some(journal) => Ok(journal),
            None => Reopened::open_or_make(&self.shared, run).await,
        };
        let (shared, mut left) = (self.shared, Left::new(self.row, journal));
        let seat = Seat {
            orders,
            reports,
            live: self.live,
        };
        let task = match found {
            Way::Due => RunTask::waiting(shared, left, seat),
            Way::Ended(outcome) => {
                let run_dir = rundir::path(&shared.config.data_dir, run);
                left.output
                    .iter_mut()
                    .for_each(|output| output.take_saved(&run_dir));
                Some(RunTask::settled(shared, left, (*outcome, self.since), seat))
            }
        };
        if let Some(task) = task {
            Box::new(task).resume_in(place).await;
        }
    }

    /// Waits for a shim that is alive and has not reconnected. `None`: it is gone, or the run is to end.
    async fn await_shim(&mut self, orders: &mut mpsc::Receiver<Box<Order>>) -> Option<HeldRun> {
        let run = self.row.new.run;
        let shim = self.row.new.identity.as_ref().map(|i| i.shim.pid);
        tracing::warn!(run_id = %run, shim, "the shim of the run is alive and has not reconnected: waiting for it, the run is unchanged");
        loop {
            tokio::select! { biased;
                shim = self.shared.late_shims.answer(run) => {
                    return self.shared.kernel.take_held(run).filter(|_| shim == LateShim::Reconnected);
                }
                Some(order) = orders.recv() => match *order {
                    Order::Stop(order, reply) => {
                        self.no_wait = true;
                        if order.reason != StopReason::ServerShutdown {
                            self.record_stop(&order).await;
                        }
                        // A caller that has gone needs no answer.
                        let _ = reply.send(Ok(()));
                        return None;
                    }
                    other => answer(other, &self.live.subscribe()),
                },
            }
        }
    }

    async fn record_stop(&mut self, order: &StopOrder) {
        let deadline = clock::now().plus(order.grace);
        writes::stop(&self.shared, self.row.new.run, order, deadline).await;
        self.row.desired = Desired::Stop;
        self.live.send_modify(|live| {
            live.view.row.desired = Desired::Stop;
            live.view.row.stop_deadline = Some(deadline);
        });
    }

    /// Returns the decision, once no process of the run is left; absent: other code has ended it, it has left no trace,
    /// or it cannot be recovered now.
    async fn work(&mut self) -> Option<Way> {
        if self.asked_for && self.has_ended_since().await {
            return None;
        }
        self.shared.announce(self.row.new.run);
        if self.row.state == StoredState::Backoff {
            return Some(Way::Due);
        }
        if self.is_late_record() && writes::withdraw(&self.shared, self.row.new.run).await {
            return None;
        }
        let outcome = match self.row.new.identity.clone() {
            Some(identity) => match self.settle(identity).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    tracing::error!(run_id = %self.row.new.run, %error, "giving up recovery, the row stays open");
                    tokio::time::sleep(REST).await;
                    return None;
                }
            },
            // An open row always has an identity; without one nothing is known of its run.
            None => unknown(),
        };
        if self.never_began(&outcome) && writes::withdraw(&self.shared, self.row.new.run).await {
            self.forget().await;
            return None;
        }
        writes::until_delivered(&self.shared, self.row.new.run).await;
        Some(Way::Ended(Box::new(outcome)))
    }

    /// Whether the gate of a first attempt was not opened when the service ended: no caller got a report that it runs,
    /// and its Spawn may be repeated.
    fn never_began(&self, outcome: &Outcome) -> bool {
        let lost = matches!(outcome.reason, EndReason::ServiceLost | EndReason::Rebooted);
        let never_ran = outcome.exit.is_none() && outcome.tree == TreeVerdict::NeverRan;
        let wanted = self.row.desired == Desired::Run && self.row.new.attempt == 1;
        lost && never_ran && wanted
    }

    /// Whether the database carried out the INSERT of this row after the record of the run was withdrawn: this server
    /// wrote it, and no longer has what belongs to each run that may run.
    fn is_late_record(&self) -> bool {
        let (shared, row) = (&self.shared, &self.row);
        let is_first = row.state == StoredState::Starting && row.new.attempt == 1;
        // Only this server's rows count; other rows are judged by the run's remains.
        let is_own = self.asked_for && shared.store.generation() == Some(row.new.generation);
        is_first && is_own && !rundir::path(&shared.config.data_dir, row.new.run).exists()
    }

    /// Removes what was made for a run that has no row.
    async fn forget(&self) {
        let (shared, run) = (Arc::clone(&self.shared), self.row.new.run);
        let removed = blocking(move || Cleanup::All.carry_out(&shared, run)).await;
        if let Err(error) = removed.flatten() {
            tracing::warn!(run_id = %run, %error, "cannot remove the remains of the run");
        }
    }

    /// Whether the run has ended under its own task, between the read of its row and its entry into the tracker.
    async fn has_ended_since(&mut self) -> bool {
        let run = self.row.new.run;
        match self.shared.store.get(run).await {
            Ok(Some(row)) if row.outcome.is_none() => {
                self.row = row;
                false
            }
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(run_id = %run, %error, "cannot read the row, recovery is left to the next request");
                tokio::time::sleep(REST).await;
                true
            }
        }
    }

    /// Observes and acts until the decision is to close.
    async fn settle(&mut self, identity: RunIdentity) -> Result<Outcome, ClientError> {
        let run = self.row.new.run;
        let kernel = Arc::clone(&self.shared.kernel);
        let run_dir = rundir::path(&self.shared.config.data_dir, run);
        let recorded = Recorded {
            run,
            identity,
            run_dir,
        };
        let grace = self.row.new.policy().grace().min(ORPHAN_GRACE_MAX);
        let wait = if self.no_wait {
            Duration::ZERO
        } else {
            grace + SHIM_MARGIN
        };
        let shim_until = clock::instant() + wait;
        let mut before = Before {
            stop_wanted: self.row.desired == Desired::Stop,
            terminated: false,
        };
        let mut watched_since = None;
        let mut seen = kernel.observe(&recorded).await?;
        crash_point!("recover.observed");
        loop {
            match recovery::decide(&seen, before) {
                Decision::Close(outcome) => {
                    tracing::info!(run_id = %run, seen = log_words::observation(&seen), outcome = log_words::outcome(&outcome), "recovered");
                    self.record_rounds(&outcome);
                    if before.terminated {
                        self.count_orphans(&outcome);
                    }
                    let exited = seen.exit_record.and_then(|record| record.by_itself);
                    let known = self.row.times.leader_exited;
                    self.row.times.leader_exited = known.or(exited);
                    return Ok(outcome);
                }
                Decision::AwaitShim if clock::instant() < shim_until => {
                    tokio::time::sleep(SHIM_POLL).await;
                    seen = kernel.observe(&recorded).await?;
                }
                Decision::AwaitShim | Decision::Terminate => {
                    tracing::warn!(run_id = %run, seen = log_words::observation(&seen), "still alive, ending it");
                    let plan = self.row.new.policy().stop_plan_within(grace);
                    seen = kernel.end_orphan(&recorded, &plan).await?;
                    before.terminated = true;
                    tracing::info!(run_id = %run, seen = log_words::observation(&seen), "orphan terminated, as far as possible");
                }
                Decision::Watch(stuck) => {
                    self.show_stuck(stuck).await;
                    let since = *watched_since.get_or_insert_with(clock::instant);
                    let pause = since.elapsed() / WATCH_SLOWER;
                    tokio::time::sleep(pause.clamp(WATCH_MIN, WATCH_MAX)).await;
                    let at_once = StopPlan::abort(Duration::ZERO);
                    seen = kernel.end_orphan(&recorded, &at_once).await?;
                }
            }
        }
    }

    /// Counts the runs whose processes got this start's first round of signals.
    fn count_orphans(&self, outcome: &Outcome) {
        let steps = outcome.certificate.steps.iter();
        let own = steps.filter(|step| step.sender == SignalSender::Keeper);
        let count = own.map(StopStep::targets).max().unwrap_or(0);
        let have_ended = matches!(outcome.tree, TreeVerdict::Empty(_));
        let metrics = &self.shared.config.telemetry.metrics;
        metrics.orphans.recovered(count.into(), have_ended);
    }

    /// Records the signals sent while no server lived, or by this start. The next server records them again, should
    /// this one not close the row.
    fn record_rounds(&self, outcome: &Outcome) {
        let boot_id = self
            .row
            .new
            .identity
            .as_ref()
            .map(|i| i.host.boot_id.as_str());
        for step in &outcome.certificate.steps {
            let why = match step.sender {
                _ if outcome.reason == EndReason::ServerShutdown => "the service was shutting down",
                SignalSender::Shim => "its service had died, and its shim carried out its own plan",
                SignalSender::Keeper => "its service had died, and a start found it alive",
            };
            let boot_id = boot_id.unwrap_or_default();
            let record = round(&self.row.new, step, &[], why.into(), boot_id);
            self.shared.trail.record(record);
        }
    }

    /// Reports the processes that SIGKILL does not end, and again when they change. From here on readers are served:
    /// the end may be far away.
    async fn show_stuck(&mut self, stuck: Stuck) {
        let run = self.row.new.run;
        let shown = self.live.borrow().view.stuck.clone();
        let again = |shown: &Stuck| stuck.is_empty() || shown.names_the_same(&stuck);
        if shown.as_ref().is_some_and(again) {
            return;
        }
        tracing::warn!(run_id = %run, stuck = log_words::stuck(&stuck), "SIGKILL does not end them; the row stays open");
        if self.journal.is_none() {
            let opened = Reopened::open_or_make(&self.shared, run).await;
            self.journal = opened.ok();
        }
        if let Some(journal) = &mut self.journal {
            let hub = journal.output.hub();
            self.live.send_modify(|live| live.hub = Some(hub));
            if !stuck.is_empty() {
                journal.append(self.row.new.attempt, &[Entry::Stuck(stuck.clone())]);
            }
        }
        self.live.send_modify(|live| {
            live.view.stuck = Some(stuck.clone());
            live.start.get_or_insert(StartAnswer::Started);
        });
    }
}

/// Adopts a run that the keeper found late.
async fn resume_late(
    shared: Arc<Shared>,
    held: HeldRun,
    row: RunRow,
    seat: Seat,
    place: RunRegistration,
) {
    let run = held.run;
    let row = shared.store.hand_over(row).await;
    match adopt::late(&shared, held, Some(row)).await {
        Ok(Some(keeper_run)) => {
            tracing::info!(run_id = %run, "the shim of the run has reconnected, run adopted");
            let task = Box::new(RunTask::adopt(shared, keeper_run, seat));
            task.resume_in(place).await;
        }
        Ok(None) => drop(place),
        Err(error) => {
            tracing::error!(run_id = %run, error = %Chain(&error), "cannot adopt the run; the next server will retry");
            // While this task waits, no other code here ends the run.
            shared.serving.until_refusing().await;
            drop(place);
        }
    }
}

fn unknown() -> Outcome {
    Outcome {
        reason: kennel_lifecycle::EndReason::ServiceLost,
        exit: Some(Exit::Unknown),
        tree: TreeVerdict::Unverified("nothing was recorded to look for".into()),
        streams: Some(StreamsEnd::Lost),
        certificate: StopCertificate::default(),
    }
}

/// Starts recovery of each open row of the node that has no task: at a start, or `asked_for` while this server is at
/// work.
pub(crate) fn take_all(shared: &Arc<Shared>, rows: Vec<RunRow>, asked_for: bool) {
    for row in rows {
        begin(shared, row, asked_for);
    }
}
