//! Attempts of a run, above the machine: whether one follows another, the pause between them, and the next one.

use super::{Room, RunTask, parent::ParentWatch, reports::prepare_failure, silence::Silence};
use crate::{
    base::{
        blocking::blocking,
        calls::{CallError, RestartCall},
        cause,
        clock::{self, ClockSettings},
        view::Live,
    },
    record::persisted_spec,
    registry::{Order, Shared, Turn},
    run::{
        cleanup::Cleanup,
        output::Output,
        task::{Legacy, RunStage},
    },
};
use kennel_keeper::{client::ChildSpec, rundir};
use kennel_lifecycle::{
    Command, EndReason, Entry, Input, Machine, NextAttempt, Outcome, Phase, Refusal, Report,
    RunKind, RunState, StartFailure, StartStage, StopOrder, StopReason, Timestamp,
    restart::{self, Attempted, ClientRequest, Next},
};
use kennel_linux::crash_point;
use kennel_store::{
    Change, Closure, Desired, NewRun, PAST_ATTEMPTS_MAX, PastAttempt, Rest, RunRow, Times,
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// State of attempts beside the one at work.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Ended attempts, the newest last.
    pub(super) past: Vec<PastAttempt>,
    /// Restarts in a row.
    pub(super) restarts: u32,
    pub(super) stage: RunStage,
    /// A caller's request about the run.
    request: ClientRequest,
    /// The order to end the run, if there is one.
    order: Option<StopOrder>,
    /// The row is not known yet, and only it has the number of attempts and the desired state.
    unmet: bool,
    /// An outcome that waits for the row.
    undecided: Option<Outcome>,
    pub(super) desired: Desired,
    pub(super) stop_deadline: Option<Timestamp>,
    /// Held until the keeper has it: argv, environment and input may be large.
    pub(super) child: Option<ChildSpec>,
    /// Reports wait until the answer to PREPARE has been handled: they follow it.
    pub(super) preparing: bool,
    pub(super) room: Room,
    /// Watch of the parent's end.
    pub(super) parent: ParentWatch,
}

impl Attempts {
    pub(super) fn of(row: &RunRow) -> Self {
        let mut attempts = Self {
            past: row.past.clone(),
            restarts: row.restarts,
            stage: row
                .next_restart
                .map_or(RunStage::Present, RunStage::Resting),
            desired: row.desired,
            stop_deadline: row.stop_deadline,
            ..Self::default()
        };
        if let Some(order) = &row.stop {
            attempts.wants_end(order.clone());
        }
        attempts
    }

    /// Postpones decisions until the row is known.
    pub(super) fn await_row(&mut self) {
        self.unmet = true;
    }

    /// Takes over the state of the row. Returns the outcome that has waited for it.
    pub(super) fn meet(&mut self, row: Self) -> Option<Outcome> {
        self.unmet = false;
        self.past = row.past;
        self.restarts = row.restarts;
        self.stage = row.stage;
        if let Some(order) = row.order {
            self.wants_end(order);
        }
        self.undecided.take()
    }

    /// Whether the present attempt has ended and another follows.
    pub(super) fn has_next_attempt(&self) -> bool {
        matches!(
            self.stage,
            RunStage::Resting(_) | RunStage::Waiting(..) | RunStage::Left(_)
        )
    }

    /// Whether nothing is left to do here: another server continues the run.
    pub(super) fn is_anothers(&self) -> bool {
        matches!(self.stage, RunStage::Left(_) | RunStage::Disowned)
    }

    /// Returns when the next attempt begins.
    pub(super) fn next(&self) -> Option<Timestamp> {
        match self.stage {
            RunStage::Resting(at) | RunStage::Waiting(at, _) | RunStage::Left(at) => Some(at),
            RunStage::Present | RunStage::Ending | RunStage::Disowned => None,
        }
    }

    /// Returns when the attempt before the next one has ended.
    pub(super) fn last_end(&self) -> Option<Timestamp> {
        self.past.last()?.times.ended
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match self.stage {
            RunStage::Waiting(_, due) => Some(due),
            _ => None,
        }
    }

    /// Makes the next attempt due at once.
    fn hasten(&mut self) {
        if let RunStage::Waiting(_, due) = &mut self.stage {
            *due = clock::instant();
        }
    }

    /// Settles the desired state: the outcome of the attempt at work is known. Its reason stays.
    pub(super) fn settle(&mut self, wanted: Desired) {
        self.order = None;
        self.request = match wanted {
            Desired::Run => ClientRequest::None,
            Desired::Stop => ClientRequest::Stop,
        };
    }

    pub(super) fn wants_end(&mut self, order: StopOrder) {
        self.request = ClientRequest::Stop;
        self.order.get_or_insert(order);
    }
}

/// Decides what follows an attempt of this run.
fn next(
    shared: &Shared,
    new: &NewRun,
    outcome: &Outcome,
    times: &Times,
    restarts: u32,
    request: ClientRequest,
) -> Next {
    let boot_over = |boot: &str| boot != shared.hello.host.boot_id;
    let attempted = Attempted {
        outcome,
        number: new.attempt,
        // If a sign shows that an attempt is ready, only that resets the count of consecutive restarts.
        uptime: uptime(&shared.clock, times).filter(|_| !new.policy().has_ready_sign()),
        restarts,
        boot_over: new
            .identity
            .as_ref()
            .is_some_and(|i| boot_over(&i.host.boot_id)),
        outlives_service: outlives_service(new),
        request,
    };
    // The low bits of a new id are random.
    let chance = shared.next_id().as_u128() & u128::from(u32::MAX);
    let chance = u32::try_from(chance).unwrap_or(0);
    restart::next(&new.policy().restart, &attempted, chance)
}

/// Whether the run is resumed by the next service, if this one ends.
pub(crate) fn outlives_service(new: &NewRun) -> bool {
    new.policy().kind == RunKind::Service && new.policy().restart.restarts()
}

/// Adds an ended attempt; of the older ones as many are retained as the row retains.
fn add(past: &mut Vec<PastAttempt>, new: &NewRun, outcome: Outcome, times: Times) {
    past.push(PastAttempt {
        number: new.attempt,
        leader: new.identity.as_ref().map(|identity| identity.command),
        outcome,
        times,
    });
    past.drain(..past.len().saturating_sub(PAST_ATTEMPTS_MAX));
}

fn uptime(clock: &ClockSettings, times: &Times) -> Option<Duration> {
    Some(clock.between(times.started?, times.leader_exited?))
}

impl RunTask {
    /// Records how the attempt has ended: as the run's last, or with the time of the next.
    pub(super) fn record_outcome(&mut self, outcome: Outcome) {
        let mut outcome = self.new.policy().judge(outcome);
        self.machine.conclude(outcome.reason.clone());
        self.projection.running_due = None;
        self.machine.know_times(Times {
            ended: Some(clock::now()),
            ..Times::default()
        });
        // Without a restart policy no decision is needed.
        let may_follow = self.new.policy().restart.restarts() || !self.new.spec.is_described();
        let is_to_end = self.has_unread_row() && self.attempts.request == ClientRequest::Stop;
        if self.attempts.unmet && may_follow && !is_to_end {
            if self.has_unread_row() && self.shared.serving.is_refusing() {
                self.attempts.stage = RunStage::Disowned;
            }
            self.attempts.undecided = Some(outcome);
            return;
        }
        match self.attempts.stage {
            RunStage::Disowned => return,
            RunStage::Ending => return self.close(outcome),
            // The previous server recorded the backoff before it died.
            RunStage::Resting(due) => {
                let restarts = self.attempts.restarts;
                self.machine.is_followed(NextAttempt { restarts, due });
                return self.report(Report::OutcomeRecorded);
            }
            RunStage::Present | RunStage::Waiting(..) | RunStage::Left(_) => {}
        }
        let (restarts, request) = (self.attempts.restarts, self.attempts.request);
        let next = next(
            &self.shared,
            &self.new,
            &outcome,
            &self.times(),
            restarts,
            request,
        );
        match next {
            Next::Again { delay, restarts } if self.may_follow() => {
                return self.rest(outcome, delay, restarts);
            }
            Next::Again { .. } => outcome.reason = EndReason::ServiceLost,
            Next::Exhausted { restarts } => {
                outcome.reason = EndReason::RestartsExhausted { restarts };
            }
            Next::NotProven => {
                let message = "it is not started again: that nothing is left of it is not proved";
                let message = message.to_owned();
                self.note(&Entry::Warning { message });
            }
            Next::End => {
                let ours = is_ours(&outcome.reason, self.new.attempt);
                if let (Some(order), true) = (&self.attempts.order, ours) {
                    outcome.reason = order.reason.clone().into();
                }
            }
        }
        self.attempts.stage = RunStage::Ending;
        self.machine.conclude(outcome.reason.clone());
        self.close(outcome);
    }

    fn close(&mut self, outcome: Outcome) {
        let entries = self.output.as_mut().map(Output::entries_at_end);
        // A journal that cannot be opened may still exist.
        let ran = self.new.identity.is_some() || self.new.attempt > 1;
        let has_files = self.output.as_ref().map_or(ran, Output::has_files);
        let bytes = entries.as_ref().map_or(0, |text| text.as_str().len());
        self.shared.record_bytes.add(&self.new.owner, bytes as u64);
        let closure = Box::new(Closure {
            outcome,
            times: self.times(),
            entries,
            has_files,
        });
        self.write(Change::Closed(Box::new(self.new.clone()), closure));
    }

    fn rest(&mut self, outcome: Outcome, delay: Duration, restarts: u32) {
        let next = clock::now().plus(delay);
        let times = self.times();
        add(&mut self.attempts.past, &self.new, outcome, times);
        self.attempts.restarts = restarts;
        self.attempts.stage = RunStage::Resting(next);
        self.machine.is_followed(NextAttempt {
            restarts,
            due: next,
        });
        let rest = Rest {
            past: self.attempts.past.clone(),
            restarts,
            next,
        };
        self.write(Change::Rested(Box::new(self.new.clone()), Box::new(rest)));
    }

    /// Decides about an attempt that has ended, after another request to end the run.
    pub(super) fn decide_about_ended_attempt(&mut self) {
        if let Some(outcome) = self.attempts.undecided.take() {
            self.record_outcome(outcome);
        }
    }

    /// Whether a later version has written the row: what only that says stays unknown.
    pub(super) fn has_unread_row(&self) -> bool {
        self.attempts.unmet && self.pinned.is_some()
    }

    /// Handles an attempt that has ended and is fully reported: cleans up after the run, or waits for the next attempt.
    pub(super) fn attempt_over(&mut self) {
        let RunStage::Resting(next) = self.attempts.stage else {
            let is_whole = self.output.as_mut().is_some_and(Output::has_written_all);
            let is_silent = self.output.as_ref().is_some_and(Output::has_no_file);
            return self.remove(match self.machine.phase() {
                Phase::Closed(outcome) if is_whole => Cleanup::of_ended(outcome, is_silent),
                _ if is_whole => Cleanup::Ended,
                _ => Cleanup::Needless,
            });
        };
        crash_point!("attempt.over");
        self.attempts.stage = RunStage::Waiting(next, clock::instant() + self.rest_left(next));
        if let (ClientRequest::Stop, Some(order)) =
            (self.attempts.request, self.attempts.order.clone())
        {
            self.end_waiting(&order);
        } else if self.shared.serving.is_refusing() {
            self.leave_or_end();
        } else if self.attempts.request == ClientRequest::Restart {
            self.attempts.hasten();
        }
    }

    /// Returns the time left until the next attempt: the clock may have been set, also where no server saw it, but no
    /// wait is longer than its policy's.
    fn rest_left(&self, next: Timestamp) -> Duration {
        let ended = self.attempts.last_end();
        let now = ended.map_or_else(clock::now, |ended| self.shared.clock.now_as_of(ended));
        let before = self.attempts.restarts.saturating_sub(1);
        let most = self.new.policy().restart.pause(before, u32::MAX);
        let is_held = next == Timestamp::NEVER;
        next.since(now)
            .min(if is_held { Duration::MAX } else { most })
    }

    /// Puts an order to end the run on its row where the machine does not: an attempt is being ended already, or has
    /// not begun. So the next server knows the order, and it is answered when that is durable.
    pub(super) fn record_request(&mut self, order: &StopOrder) {
        // A first attempt that has not run may have no row; its end is written before any caller is answered.
        let has_row = self.new.attempt > 1 || self.times().started.is_some();
        if has_row && self.attempts.desired == Desired::Run && self.projection.pending_stops == 0 {
            self.projection.pending_stops += 1;
            let (order, deadline) = (order.clone(), clock::now().plus(order.grace));
            self.write(Change::Stop { order, deadline });
        }
    }

    /// Ends the run between two attempts: the last one keeps its outcome, and no process is there to be signalled.
    pub(super) fn end_waiting(&mut self, order: &StopOrder) {
        self.record_request(order);
        self.end_between(order.reason.clone().into());
    }

    /// Ends the run between two attempts, for any reason.
    pub(super) fn end_between(&mut self, reason: EndReason) {
        let Some(last) = self.attempts.past.pop() else {
            return;
        };
        self.attempts.stage = RunStage::Ending;
        let outcome = Outcome {
            reason,
            ..last.outcome
        };
        let times = Times {
            ended: None,
            ..last.times
        };
        let record = self.machine.record().clone();
        self.machine = Machine::settled(clock::now(), outcome, record, times);
        self.perform_all();
    }

    /// Whether another attempt may begin here: its service has not ended meanwhile.
    pub(super) fn may_follow(&self) -> bool {
        self.new.keeper_epoch == self.shared.hello.epoch || outlives_service(&self.new)
    }

    /// Leaves the run to the next service, or ends it: this service ends.
    fn leave_or_end(&mut self) {
        // A pinned run may outlive this service.
        if self.pinned.is_some() || outlives_service(&self.new) {
            let next = self.attempts.next().unwrap_or(self.at);
            self.attempts.stage = RunStage::Left(next);
            return self.publish();
        }
        self.end_waiting(&StopOrder {
            reason: StopReason::ServerShutdown,
            grace: Duration::ZERO,
        });
    }

    /// Handles an order while nothing runs.
    pub(super) fn order_between(&mut self, order: Order) {
        // A caller that is gone needs no answer.
        match order {
            Order::Stop(order, reply) => {
                let _ = reply.send(Ok(()));
                if order.reason == StopReason::ServerShutdown {
                    self.leave_or_end();
                } else {
                    self.end_waiting(&order);
                }
            }
            Order::Restart(_, reply) if self.shared.serving.is_leaving() => {
                drop(reply.send(Err(CallError::Draining)));
            }
            Order::Restart(call, reply) => {
                let before = self.new.attempt;
                if call.expected_attempt.is_none_or(|meant| meant >= before) {
                    drop(reply.send(Ok(before)));
                    self.attempts.restarts = 0;
                    self.attempts.hasten();
                } else {
                    drop(reply.send(Ok(before.saturating_sub(1))));
                }
            }
            Order::InputAccepted(..) | Order::Warn(_) => {}
            Order::Pin(by) => {
                self.pin(by);
                self.publish_view();
            }
            Order::Annotate(call, reply) => self.annotate(*call, reply),
            order => order.refuse(self.refuse_call(Refusal::NotRunningYet)),
        }
    }

    /// Handles an order for another attempt while one is at work. Returns the number of the attempt that precedes it.
    pub(super) fn restart(&mut self, call: RestartCall) -> Result<u32, Refusal> {
        let present = self.new.attempt;
        if call.expected_attempt.is_some_and(|meant| meant < present) {
            return Ok(present - 1);
        }
        if !self.new.policy().restart.restarts() {
            return Err(Refusal::NotRestartable);
        }
        let order = StopOrder {
            grace: call.grace.unwrap_or(self.new.policy().grace()),
            reason: StopReason::Restart {
                by: call.by,
                request_id: call.request_id,
            },
        };
        match self.machine.phase() {
            Phase::Closed(_) | Phase::Forgotten(_) if !self.attempts.has_next_attempt() => {
                return Err(Refusal::Ended);
            }
            _ if self.attempts.request == ClientRequest::Stop
                || self.attempts.stage == RunStage::Ending
                || self.attempts.desired == Desired::Stop =>
            {
                return Err(Refusal::Stopping);
            }
            // One of the run's own limits ended the run, and the row is about to record that.
            Phase::Stopping { order, .. }
            | Phase::Draining {
                stop: Some(order), ..
            } if !self.stays_wanted(order) => return Err(Refusal::Stopping),
            _ if self.times().started.is_none() && !self.attempts.has_next_attempt() => {
                return Err(Refusal::NotRunningYet);
            }
            _ => self.feed(Input::Command(Command::Stop(order)))?,
        }
        self.attempts.request = ClientRequest::Restart;
        Ok(present)
    }

    /// Whether the run stays wanted: a stop that is meant for the service or for another attempt is no request to end
    /// the run, and is not put on its row.
    pub(super) fn stays_wanted(&self, order: &StopOrder) -> bool {
        match order.reason {
            // Only the row says whether a run outlives the service.
            StopReason::ServerShutdown | StopReason::Orphaned => {
                outlives_service(&self.new) || self.has_unread_row()
            }
            StopReason::Restart { .. } => true,
            StopReason::ShimLost
            | StopReason::NotReady
            | StopReason::NotLive { .. }
            | StopReason::Watchdog { .. }
            | StopReason::MemoryReserve(_)
            | StopReason::Result { .. } => self.new.policy().restart.restarts(),
            StopReason::Abort { .. }
            | StopReason::DeadlineExceeded(_)
            | StopReason::LimitExceeded(_)
            | StopReason::ParentEnded => false,
        }
    }

    /// Begins the next attempt, whose time has come; it has this turn until it runs.
    pub(super) fn begin_next(&mut self, turn: Turn) {
        let lost = self.shared.serving.has_lost_keeper();
        if lost || self.shared.serving.is_refusing() {
            return self.leave_or_end();
        }
        if self.shared.serving.is_leaving() {
            // The next server begins this attempt.
            return;
        }
        self.at = clock::now();
        let dir = rundir::path(&self.shared.config.data_dir, self.run);
        if let Err(error) = persisted_spec::look(&dir) {
            tracing::error!(run_id = %self.run, %error, "the files of the next attempt are gone");
            let failure = start_failure(&error, &dir);
            return self.end_between(EndReason::StartFailed(failure));
        }
        self.attempts.stage = RunStage::Present;
        self.attempts.request = ClientRequest::None;
        self.new.attempt += 1;
        self.new.keeper_epoch = self.shared.hello.epoch;
        self.new.identity = None;
        self.new.held = None;
        self.attempts.stop_deadline = None;
        self.legacy = Legacy {
            hears_again: self.legacy.hears_again,
            ..Legacy::default()
        };
        self.reporting.warnings.clear();
        self.waiters.pause_result = None;
        self.conditions.silence = Silence::default();
        self.conditions.end_probe();
        self.machine = Machine::following(self.new.policy().on_leader_exit);
        if let Some(output) = &mut self.output {
            output.begin_attempt(self.new.attempt);
        }
        crash_point!("attempt.begin");
        // Only a repeated Admit is refused.
        let _ = self.feed(Input::Command(Command::Admit));
        let mut live = self.live.subscribe();
        let begun = async move {
            let begun = |live: &Live| live.over || live.view.state != RunState::Starting;
            let _ = live.wait_for(begun).await;
        };
        self.op(|_, _, _| turn.of(begun));
    }

    /// Prepares the run's directory for the next attempt, and asks the keeper for its child.
    pub(super) fn prepare_again(&mut self) {
        let data_dir = &self.shared.config.data_dir;
        let dir = rundir::path(data_dir, self.run);
        let made = rundir::create(data_dir, self.run)
            .and_then(|_| rundir::forget_attempt(data_dir, self.run))
            .and_then(|()| self.shared.record.intend(&self.new));
        let failed = match made {
            Err(error) => Some(start_failure(&error, &dir)),
            Ok(()) if self.output.is_none() => Some(prepare_failure()),
            Ok(()) => None,
        };
        if let Some(failure) = failed {
            tracing::error!(run_id = %self.run, %failure, "cannot prepare the next attempt");
            return self.report(Report::PrepareFailed(failure));
        }
        let (shared, run, attempt) = (Arc::clone(&self.shared), self.run, self.new.attempt);
        let kept = move || persisted_spec::read(&dir, run, attempt, &*shared.config.sealer);
        self.ask_for_child(async move { blocking(kept).await.flatten() });
    }
}

/// Whether an end was caused by the service, or was to lead to another attempt, so that an order to end the run is the
/// better reason. The caller that spawned the run gets the failure of its first start.
fn is_ours(reason: &EndReason, attempt: u32) -> bool {
    match reason {
        EndReason::ServerShutdown | EndReason::OrphanTerminated | EndReason::Restarted { .. } => {
            true
        }
        EndReason::StartFailed(_) => attempt > 1,
        _ => false,
    }
}

pub(crate) fn start_failure(error: &std::io::Error, dir: &std::path::Path) -> StartFailure {
    StartFailure {
        stage: StartStage::Prepare,
        errno: cause::errno(error),
        path: Some(dir.display().to_string()),
    }
}
