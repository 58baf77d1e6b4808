//! Performs the effects of the machine.

use super::{Room, RunTask, attempts::start_failure, reports::prepare_failure};
use crate::{
    base::{blocking::blocking, cause, devices, secret_sources::with_line_end, view::StartAnswer},
    record::persisted_spec,
    registry::Shared,
    run::{
        cleanup::{Cleanup, carry_out_at_once},
        output::Output,
        task::done::Done,
        token, writes,
    },
};
use kennel_keeper::{
    client::{ChildSpec, ClientError, Prepared, SignalResult},
    rundir,
};
use kennel_lifecycle::{ApiAccess, Effect, Entry, Phase, Report, RunId, StreamsEnd};
use kennel_linux::crash_point;
use kennel_store::{Change, RunRow, StoreError};
use std::{io, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// Pause between two attempts to continue a tree.
const THAW_RETRY_AFTER: Duration = Duration::from_millis(200);

impl RunTask {
    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Prepare => {
                self.reporting.spans.prepares(&self.new, self.at);
                if self.new.attempt > 1 {
                    self.prepare_again();
                } else {
                    self.begin();
                }
            }
            Effect::Record => {
                self.reporting.spans.records(self.at);
                let new = Box::new(self.new.clone());
                self.write(if new.attempt > 1 {
                    Change::Begun(new, self.attempts.restarts)
                } else {
                    Change::Inserted(new)
                });
            }
            Effect::Release => {
                crash_point!("spawn.release");
                self.reporting.spans.releases(self.at);
                self.shared.kernel.release(self.run);
                crash_point!("spawn.released");
            }
            Effect::ShutGate => self.shared.kernel.shut_gate(self.run),
            Effect::RecordStop { order, .. } if self.stays_wanted(&order) => {
                self.report(Report::StopRecorded);
            }
            Effect::RecordStop { order, deadline } => {
                self.projection.await_stop();
                self.write(Change::Stop { order, deadline });
            }
            Effect::StopTree(plan) => {
                let policy = self.new.policy();
                let at_shutdown = self.shared.config.shutdown_signal(policy.kind);
                let plan = policy.adapt(plan, at_shutdown);
                self.shared.kernel.stop(self.run, &plan);
                crash_point!("stop.sent");
            }
            Effect::KeepRest => self.shared.kernel.keep_rest(self.run),
            Effect::Interrupt => self.send_signal(),
            Effect::RecordState(state) => self.record_state(state),
            Effect::RecordRunning => {
                self.projection.run_later();
            }
            Effect::Freeze => self.op(|shared, run, done| async move {
                let result = shared.kernel.pause(run).await.unwrap_or(SignalResult::Gone);
                crash_point!("pause.frozen");
                let _ = done.send(Done::Froze(result)).await;
            }),
            Effect::Thaw => self.op(thaw),
            Effect::FinishOutput => {
                // Without a journal no output was read.
                if self.shared.serving.is_refusing() {
                    self.output.iter_mut().for_each(Output::hurry);
                }
                let end = match &mut self.output {
                    Some(output) => output.finish(),
                    None => Some(StreamsEnd::Lost),
                };
                if let Some(end) = end {
                    self.close_streams(end);
                }
            }
            Effect::RecordOutcome(outcome) => self.record_outcome(outcome),
            Effect::Withdraw => self.write(Change::Withdrawn),
            Effect::Forget => {
                if let Phase::Forgotten(why) = self.machine.phase() {
                    self.reporting.spans.forgets(&self.new, self.at, why);
                }
                // This task may only remove files that it made.
                if self.output.take().is_some() || self.legacy.unrecorded {
                    self.attempts.room = Room::Removing;
                    self.remove(Cleanup::All);
                }
            }
            Effect::Acknowledge => {
                crash_point!("exit.acknowledge");
                self.shared.kernel.acknowledge(self.run);
                crash_point!("exit.acknowledged");
                // The effect that follows removes a forgotten run: with two removals under way, the end of the first
                // would admit the next run of this id.
                if !matches!(self.machine.phase(), Phase::Forgotten(_)) {
                    self.attempt_over();
                }
            }
            Effect::Append(entry) => self.append(entry),
        }
    }

    /// Prepares the run's directory and asks the keeper for its child. An existing directory belongs to a run of this
    /// id that has ended, or was left by a crash before the record: the store knows which.
    pub(super) fn begin(&mut self) {
        if !rundir::path(&self.shared.config.data_dir, self.run).exists() {
            return self.prepare();
        }
        self.op(|shared, run, done| async move {
            let row = shared.store.get(run).await;
            let _ = done.send(Done::LeftOver(Box::new(row))).await;
        });
    }

    pub(super) fn left_over(&mut self, row: Result<Option<RunRow>, StoreError>) {
        match row {
            Ok(None) => match rundir::remove(&self.shared.config.data_dir, self.run) {
                Ok(()) => return self.prepare(),
                Err(error) => {
                    tracing::error!(run_id = %self.run, %error, "cannot remove the remains of an earlier start");
                }
            },
            Ok(Some(row)) => {
                self.waiters.refused = Some(StartAnswer::Taken(Box::new(row)));
                return self.report(Report::KeyTaken);
            }
            Err(error) => {
                // If a row exists, a stop does not belong to this run.
                self.waiters.refuse(error.into());
                return self.report(Report::KeyTaken);
            }
        }
        self.report(Report::PrepareFailed(prepare_failure()));
    }

    fn prepare(&mut self) {
        crash_point!("spawn.begun");
        let data_dir = &self.shared.config.data_dir;
        let made = self.shared.record.intend(&self.new).and_then(|()| {
            crash_point!("log.intended");
            let dir = self.shared.spare_dirs.create_run_dir(self.run)?;
            let open = Arc::clone(&self.shared.pipes_open);
            let boot = self.shared.boot();
            let bound = self.new.policy().output;
            let record = Arc::clone(&self.shared.record);
            let output = Output::create(self.run, &dir, bound, boot, open, record)?;
            let rate = self.shared.output_rates.of(&self.new.owner.as_str().into());
            self.output = Some(output.behind(&self.shared.consumers.floors).at_rate(rate));
            Ok(())
        });
        if let Err(error) = made {
            tracing::error!(run_id = %self.run, error = %cause::Chain(&error), "cannot create the directory of the run");
            // The directory is new: this task removes what a full disk left of it.
            if let Err(error) = Cleanup::All.carry_out(&self.shared, self.run) {
                tracing::warn!(run_id = %self.run, %error, "cannot remove the remains of the run's directory");
            }
            let failure = start_failure(&error, &rundir::path(data_dir, self.run));
            return self.report(Report::PrepareFailed(failure));
        }
        crash_point!("spawn.room_made");
        // A first attempt is prepared once.
        let Some(child) = self.attempts.child.take() else {
            return;
        };
        let kept = self.new.policy().restart.restarts();
        self.ask_for_child(keep(Arc::clone(&self.shared), self.run, kept, child));
    }

    /// Asks the keeper for the child of this attempt, once it is persisted or read, and its token is handed out.
    pub(super) fn ask_for_child(
        &mut self,
        child: impl Future<Output = io::Result<ChildSpec>> + Send + 'static,
    ) {
        self.attempts.preparing = true;
        let (attempt, access) = (self.new.attempt, self.new.spec.api_access);
        self.op(move |shared, run, done| async move {
            let child = child.await;
            let handed = token::hand_out(&shared, run, attempt, access).await;
            let prepared = match handed.and(child) {
                Ok(child) => prepare_child(&shared, run, child, &done).await,
                Err(error) => {
                    let dir = rundir::path(&shared.config.data_dir, run);
                    Err(ClientError::Start(start_failure(&error, &dir)))
                }
            };
            let _ = done.send(Done::Prepared(Box::new(prepared))).await;
        });
    }

    /// Writes an entry and publishes it: before its effect, so that an observer of the effect finds the entry too.
    fn append(&mut self, mut entry: Entry) {
        match &mut entry {
            Entry::Recorded { output_offsets, .. } => {
                *output_offsets = self.output.as_ref().map(Output::lens).unwrap_or_default();
            }
            Entry::Started => self.flow(),
            _ => {}
        }
        let times = &self.machine.record().times;
        self.reporting
            .see(&self.new, (self.at, times), &self.attempts, &entry);
        crash_point!("exit.end", matches!(entry, Entry::Ended(_)));
        self.write_entry(&entry);
        appended(&entry);
        if let Entry::Started = entry {
            self.begin_rules();
        }
        if let Entry::Recorded { .. } = entry {
            self.note_terminal_size();
            // Before the command may run: a server that dies before this entry has not opened the gate.
            if let Some(entry) = self.facets.first_annotations(&self.new) {
                self.note_annotations(&entry);
            }
            for message in std::mem::take(&mut self.reporting.warnings) {
                self.note(&Entry::Warning { message });
            }
        }
    }

    pub(super) fn write(&mut self, write: Change) {
        self.projection.push(write);
        self.next_write();
    }

    pub(super) fn next_write(&mut self) {
        if let Some(change) = self.projection.next() {
            let is_withdrawn = matches!(change, Change::Withdrawn);
            let attempt = is_withdrawn.then(|| Box::new(self.new.clone()));
            self.op(move |shared, run, done| writes::perform(shared, run, change, attempt, done));
        }
    }

    /// Starts work beside the task.
    pub(super) fn op<Fut>(
        &mut self,
        work: impl FnOnce(Arc<Shared>, RunId, mpsc::Sender<Done>) -> Fut,
    ) where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.link.start(&self.shared, self.run, work);
    }

    pub(super) fn remove(&mut self, cleanup: Cleanup) {
        let has_secrets =
            self.new.spec.api_access != ApiAccess::None || self.new.policy().restart.restarts();
        self.op(move |shared, run, done| async move {
            if let Cleanup::Empty { is_silent } = cleanup
                && !has_secrets
                && carry_out_at_once(&shared, run, is_silent)
            {
                let _ = done.send(Done::Removed).await;
                return;
            }
            let removed = blocking(move || cleanup.carry_out(&shared, run)).await;
            if let Err(error) = removed.flatten() {
                tracing::warn!(run_id = %run, %error, "cannot remove all of the run's directory");
            }
            let _ = done.send(Done::Removed).await;
        });
    }
}

/// Persists the spec for further attempts, where some may follow.
async fn keep(
    shared: Arc<Shared>,
    run: RunId,
    kept: bool,
    child: ChildSpec,
) -> io::Result<ChildSpec> {
    if !kept {
        return Ok(child);
    }
    let kept = blocking(move || {
        let sealer = &*shared.config.sealer;
        persisted_spec::write(&child.run_dir, run, &child, sealer).map(|()| child)
    });
    kept.await.flatten()
}

/// Asks the keeper for the child of an attempt, with the secrets and the devices as they are now.
async fn prepare_child(
    shared: &Shared,
    run: RunId,
    mut child: ChildSpec,
    done: &mpsc::Sender<Done>,
) -> Result<Prepared, ClientError> {
    let asked = std::mem::take(&mut child.secrets);
    let filled = shared.config.secrets.filled(asked.clone()).await;
    child.secrets = filled.map_err(|fault| ClientError::Start(fault.into()))?;
    for name in with_line_end(&asked, &child.secrets) {
        let message = format!(
            "the secret {name} ends with a line end, which the command gets too: see trim_newline"
        );
        let attempt = child.attempt;
        let _ = done.send(Done::Warning { attempt, message }).await;
    }
    let io = std::mem::take(&mut child.policy.limits.io);
    child.policy.limits.io = devices::named(io).await.map_err(ClientError::Start)?;
    shared.kernel.prepare(run, &child).await
}

/// Where a test may let this process die after an entry is written.
fn appended(entry: &Entry) {
    match entry {
        Entry::Recorded { .. } => crash_point!("spawn.recorded_told"),
        Entry::Started => crash_point!("spawn.started_told"),
        Entry::Stopping { .. } => crash_point!("stop.answered"),
        Entry::LeaderExited(_) => crash_point!("exit.leader_told"),
        Entry::StreamsClosed(_) => crash_point!("exit.streams_told"),
        Entry::TreeEnded(_) => crash_point!("exit.tree_told"),
        Entry::AttemptEnded { .. } => crash_point!("attempt.end_told"),
        Entry::Ended(_) => crash_point!("exit.end_told"),
        Entry::Paused => crash_point!("pause.answered"),
        Entry::Resumed { .. } => crash_point!("resume.answered"),
        _ => {}
    }
}

async fn thaw(shared: Arc<Shared>, run: RunId, done: mpsc::Sender<Done>) {
    crash_point!("resume.thaw");
    loop {
        match shared.kernel.resume(run).await {
            Ok(SignalResult::Failed(errno)) => {
                tracing::warn!(run_id = %run, errno, "cannot resume the process tree, retrying");
                tokio::time::sleep(THAW_RETRY_AFTER).await;
                // A run that has ended meanwhile cannot be resumed.
                if shared.find(run).is_none() {
                    return;
                }
            }
            // Done, or the run is gone and its end report pending.
            Ok(_) => {
                crash_point!("resume.thawed");
                return drop(done.send(Done::Report(Report::Thawed)).await);
            }
            Err(_) => return,
        }
    }
}
