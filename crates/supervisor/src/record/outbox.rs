//! Outbox: makes changes that the store does not take durable, and delivers them when it is back.
//!
//! One task logs them; changes that queue while it syncs share the next sync. A change that is delivered twice takes
//! effect once.

use super::{
    NodeRecord,
    log::AT_ONCE_BYTES,
    run_table::{Due, Pending},
};
use crate::{
    base::{blocking::blocking, cause::Chain},
    record::node_store::NodeStore,
};
use kennel_journal::node_log::{LogPosition, OwnedFrame, SyncError};
use kennel_lifecycle::{Backoff, RunId};
use kennel_linux::crash_point;
use kennel_store::{Change, RunRow, StoreError};
use std::{
    io,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::{MutexGuard, mpsc, oneshot},
    task::JoinSet,
};

/// Most changes queued for the log; further ones wait with their callers.
pub(super) const PROMISES_QUEUED_MAX: usize = 1024;
/// Most bytes of pending changes: a change that does not fit waits with its caller.
const PENDING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Delays between two deliveries.
const RETRY: Backoff = Backoff::up_to(Duration::from_millis(100), Duration::from_secs(2));

/// A change that is to be logged.
#[derive(Debug)]
pub(super) struct Job {
    run: RunId,
    change: Arc<Change>,
    bytes: Vec<u8>,
    reply: oneshot::Sender<io::Result<()>>,
}

impl NodeRecord {
    /// Makes a change durable here; it is delivered when the store is available.
    pub(crate) async fn promise(&self, run: RunId, change: Change) -> io::Result<()> {
        let (reply, answer) = oneshot::channel();
        let job = Job {
            run,
            bytes: change.encode(),
            change: Arc::new(change),
            reply,
        };
        let gone = || io::Error::other("the node log is not written any more");
        self.jobs.send(job).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Whether anything is pending.
    pub(crate) fn has_pending(&self) -> bool {
        self.count_pending() > 0
    }

    /// Number of pending changes.
    pub(crate) fn count_pending(&self) -> usize {
        self.state.lock().table.pending_count()
    }

    /// Whether anything of this run is pending.
    pub(crate) fn has_pending_of(&self, run: RunId) -> bool {
        self.state.lock().table.pending_of(run).next().is_some()
    }

    /// Whether a change of this run waits for a later version: this one decides nothing about it.
    pub(crate) fn waits_for_later(&self, run: RunId) -> bool {
        let record = self.state.lock();
        let entry = record.table.runs.get(&run);
        entry.is_some_and(|entry| !entry.later.is_empty())
    }

    /// Whether a fence under this key is pending.
    pub(crate) fn has_pending_fence(&self, run: RunId) -> bool {
        let record = self.state.lock();
        let mut pending = record.table.pending_of(run);
        pending.any(|change| matches!(change, Change::Fenced(..)))
    }

    /// Returns the row of a run whose end is pending, in its final form: the end was reported, and nothing changes it
    /// any more. A fence does not say whether a run of its key has ended.
    pub(crate) fn pending_end(&self, run: RunId) -> Option<RunRow> {
        let record = self.state.lock();
        let pending = record.table.pending_of(run);
        let mut ends = pending.filter_map(|change| match change {
            Change::Closed(new, _) => Some(new),
            _ => None,
        });
        let row = RunRow::open((**ends.next()?).clone());
        drop(ends);
        Some(record.table.with_pending(row))
    }

    /// Applies the pending changes of a run to its row.
    pub(crate) fn with_pending(&self, row: RunRow) -> RunRow {
        self.state.lock().table.with_pending(row)
    }

    /// Returns when nothing of this run is pending.
    pub(crate) async fn delivered(&self, run: RunId) {
        let mut pending = self.pending.subscribe();
        while self.has_pending_of(run) {
            // Receiving cannot fail: `self` owns the sender.
            let _ = pending.changed().await;
        }
    }

    /// Acquires the right to deliver: nothing else delivers meanwhile.
    pub(crate) async fn delivery(&self) -> Delivery<'_> {
        Delivery {
            record: self,
            _turn: self.delivering.lock().await,
        }
    }

    /// Delivers changes as they become pending, for this server's lifetime.
    pub(crate) async fn deliver_for_ever(&self, store: &NodeStore) {
        let mut pending = self.pending.subscribe();
        let mut retries = RETRY.retries(("outbox", store.node()));
        let mut logged = String::new();
        loop {
            while !self.has_pending() {
                // Receiving cannot fail: `self` owns the sender.
                let _ = pending.changed().await;
            }
            let _ = store.taken_over().await;
            let delivery = self.delivery().await;
            // The node may have been lost meanwhile.
            let Some(generation) = store.generation() else {
                continue;
            };
            let delivered = delivery.deliver_all(store, generation).await;
            drop(delivery);
            match delivered {
                Ok(_) => {
                    retries.reset();
                    logged.clear();
                }
                Err(error) => {
                    let why = Chain(&error).to_string();
                    if why != logged {
                        tracing::warn!(%why, "the database does not accept the pending writes, retrying: new runs are refused until it does");
                        logged = why;
                    }
                    tokio::time::sleep(retries.next_delay()).await;
                }
            }
        }
    }

    /// Trims the log whenever a segment was closed, for this server's lifetime.
    pub(crate) async fn trim_for_ever(self: Arc<Self>) {
        loop {
            self.trim_due.notified().await;
            let record = Arc::clone(&self);
            if let Err(error) = blocking(move || record.trim()).await {
                tracing::error!(%error, "trimming the node log failed");
            }
        }
    }

    /// Logs changes: all are synced, or none counts. Blocks.
    fn write(&self, jobs: &[Job]) -> io::Result<()> {
        crash_point!("log.append");
        let (frames, end) = {
            let mut record = self.state.lock();
            record.open_late(&self.place)?;
            record.catch_up();
            let room = PENDING_BYTES_MAX.saturating_sub(record.table.pending_bytes);
            if jobs.iter().map(|job| job.bytes.len()).sum::<usize>() > room {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let mut frames = Vec::new();
            for job in jobs {
                let entry = record.table.entry(job.run);
                frames.push(entry.pending(job.run, job.bytes.clone()));
            }
            let appended = record.append(&frames.iter().collect::<Vec<_>>());
            for (job, frame) in jobs.iter().zip(&frames) {
                if appended.is_err() {
                    record.take_back(job.run);
                    record.table.prune(job.run);
                    continue;
                }
                record.table.entry(job.run).in_flight.push_back(Pending {
                    seq: frame.seq,
                    change: Arc::clone(&job.change),
                    bytes: job.bytes.len(),
                });
            }
            (frames, appended?)
        };
        let synced = self.sync(&frames, end);
        let mut record = self.state.lock();
        for (job, frame) in jobs.iter().zip(&frames) {
            if synced.is_ok() {
                record.table.promise(job.run);
                continue;
            }
            let entry = record.table.entry(job.run);
            entry.in_flight.clear();
            let refused = entry.settled(job.run, frame.seq, false);
            record.append_all(&[(job.run, refused)]);
            record.table.prune(job.run);
        }
        synced
    }

    /// Syncs frames, and where that fails writes them once more: an abandoned segment proves nothing.
    fn sync(&self, frames: &[OwnedFrame], end: LogPosition) -> io::Result<()> {
        let log = self.state.lock().log.clone();
        let log = log.ok_or_else(|| io::Error::other("the node log is not open"))?;
        let Err(error) = log.sync(end) else {
            return Ok(());
        };
        tracing::warn!(why = %Chain(&error), "cannot sync the node log, writing to another segment");
        let end = self
            .state
            .lock()
            .append(&frames.iter().collect::<Vec<_>>())?;
        log.sync(end)
            .map(drop)
            .map_err(|SyncError { source, .. }| source)
    }
}

/// Logs promised changes, until the record is gone.
pub(super) async fn write_promises(record: Weak<NodeRecord>, mut queue: mpsc::Receiver<Job>) {
    let mut waiting: Option<Job> = None;
    loop {
        let first = match waiting.take() {
            Some(job) => job,
            None => match queue.recv().await {
                Some(job) => job,
                None => return,
            },
        };
        let mut bytes = first.bytes.len();
        let mut jobs = vec![first];
        while let Ok(job) = queue.try_recv() {
            bytes += job.bytes.len();
            if bytes > AT_ONCE_BYTES {
                waiting = Some(job);
                break;
            }
            jobs.push(job);
        }
        let Some(record) = record.upgrade() else {
            return;
        };
        let written = blocking(move || {
            let written = record.write(&jobs);
            (record, jobs, written)
        });
        let Ok((record, jobs, written)) = written.await else {
            return tracing::error!("cannot write the node log any more");
        };
        record.pending.send_replace(());
        if let Err(error) = &written {
            tracing::error!(why = %Chain(error), "cannot write changes to the outbox, they wait for the database");
        } else {
            crash_point!("log.appended");
        }
        for job in jobs {
            let answer = written.as_ref().copied();
            let answer = answer.map_err(|error| io::Error::new(error.kind(), error.to_string()));
            // A caller that is gone needs no answer.
            let _ = job.reply.send(answer);
        }
    }
}

/// The right to deliver.
pub(crate) struct Delivery<'a> {
    record: &'a NodeRecord,
    _turn: MutexGuard<'a, ()>,
}

impl Delivery<'_> {
    /// Delivers the changes that are pending now to the store, in order. Returns the number of those that are delivered.
    /// Changes that become pending meanwhile may be left to the next delivery: callers may promise some without a pause.
    pub(crate) async fn deliver_all(
        &self,
        store: &NodeStore,
        generation: i64,
    ) -> Result<usize, StoreError> {
        let record = self.record;
        let pending = record.count_pending();
        let mut count = 0;
        while count < pending {
            let due = record.state.lock().table.first_due();
            if due.is_empty() {
                break;
            }
            count += due.len();
            crash_point!("outbox.deliver");
            let answers = deliver(store, generation, due).await?;
            crash_point!("outbox.delivered");
            record.settle(&answers);
            crash_point!("outbox.noted");
        }
        if count > 0 {
            tracing::info!(count, "the database accepted the pending writes");
        }
        Ok(count)
    }
}

impl NodeRecord {
    /// Removes these from the pending changes; the flag says whether the store has taken the change.
    pub(super) fn settle(&self, answers: &[(Due, bool)]) {
        let mut record = self.state.lock();
        let mut frames = Vec::new();
        for (due, is_taken) in answers {
            let entry = record.table.runs.get(&due.run);
            let front = entry.and_then(|entry| entry.pending.front());
            // The pending change may have a new seq.
            let Some(front) = front.filter(|p| Arc::ptr_eq(&p.change, &due.change)) else {
                continue;
            };
            let seq = front.seq;
            let taken = record.table.take_pending(due.run, seq);
            if *is_taken {
                record.table.fold_delivered(due.run, &taken);
            }
            let settled = record.table.entry(due.run).settled(due.run, seq, *is_taken);
            frames.push((due.run, settled));
        }
        record.append_all(&frames);
        for (run, _) in frames {
            record.table.prune(run);
        }
        drop(record);
        self.pending.send_replace(());
    }
}

/// Writes changes, at most one per run. Returns only when all are done.
async fn deliver(
    store: &NodeStore,
    generation: i64,
    due: Vec<Due>,
) -> Result<Vec<(Due, bool)>, StoreError> {
    let mut writing = JoinSet::new();
    for due in due {
        let (raw, node) = (Arc::clone(store.raw()), store.node());
        writing.spawn(async move {
            let written = due
                .change
                .write_late(&*raw, node, generation, due.run)
                .await;
            (due, written)
        });
    }
    let mut answers = Vec::new();
    let mut all = Ok(());
    while let Some(written) = writing.join_next().await {
        let one = match written {
            Ok((due, written)) => {
                let taken = answered(store, generation, &due, written).await;
                taken.map(|taken| answers.push((due, taken)))
            }
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        };
        all = all.and(one);
    }
    all.map(|()| answers)
}

/// Interprets the store's answer: whether it has taken the change, or never will.
async fn answered(
    store: &NodeStore,
    generation: i64,
    due: &Due,
    written: Result<(), StoreError>,
) -> Result<bool, StoreError> {
    let run = due.run;
    let written = match written {
        Err(StoreError::Fenced(run)) => Err(store.refused(run, generation).await),
        written => written,
    };
    if let (Ok(()), Change::Fenced(new, closure)) = (&written, &*due.change) {
        // Callers get the row with the key; its own node answers for a row of a later version.
        match store.raw().get(run).await {
            Ok(Some(row)) => store.fenced_late(new, closure, row),
            Ok(None) | Err(StoreError::Unread(_)) => {}
            Err(error) => return Err(error),
        }
    }
    match written {
        Ok(()) => Ok(true),
        Err(error @ (StoreError::Fenced(_) | StoreError::Corrupt(_) | StoreError::Unread(_))) => {
            log_refusal(due, &error);
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Logs a refusal: the row is closed, or another server's; only its end matters then.
fn log_refusal(due: &Due, error: &StoreError) {
    let (run, change) = (due.run, due.change.name());
    match *due.change {
        Change::State { .. } | Change::Stop { .. } => {
            tracing::debug!(run_id = %run, %error, change, "the database no longer accepts this change");
        }
        _ => {
            tracing::error!(run_id = %run, %error, change, "this server cannot record this change");
        }
    }
}
