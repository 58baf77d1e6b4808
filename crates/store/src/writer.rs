//! Group commit: one task per store writes everything, and all writes queued during a commit share the next one.
//!
//! No write waits for others: the first queued write is committed at once. A write that has been queued is carried out
//! even if its caller has gone.

use crate::{
    Age, NodeRemoval, Opening, RemovedRow, RowRemoval, StoreError,
    consumer::ConsumerChange,
    node::StopWrite,
    record::{ColumnPart, Record},
};
use async_trait::async_trait;
use kennel_lifecycle::{KeeperEpoch, NodeId, RunId, Timestamp};
use parking_lot::Mutex;
use std::{
    collections::{HashSet, VecDeque},
    fmt,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

/// Writes that may wait in each of the two queues; more have to wait outside.
const WRITES_QUEUED_MAX: usize = 1024;
/// Rows in one transaction.
const BATCH_ROWS_MAX: usize = 256;
/// Rows in one transaction that may be urgent: the rest is reserved for those that are not, so that they advance too.
const BATCH_URGENT_MAX: usize = 192;
/// Bytes in one transaction, beyond which nothing is added.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest wait for a slot in the queue.
const QUEUE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Time without writes after which the connection is checked.
const IDLE_CHECK_EVERY: Duration = Duration::from_secs(5);

/// One write.
#[derive(Debug)]
pub(crate) enum Write {
    /// Insert a row, open or closed, if there is none under its key.
    Insert(Box<Record>),
    /// Insert a row that was lost, if there is none of its run.
    Mend(Box<Record>),
    /// Write the row after a change, over the one that the change was computed from.
    Put {
        record: Box<Record>,
        /// The part that is written.
        part: ColumnPart,
        is_urgent: bool,
    },
    /// Remove the row of a run of this node and generation, whose gate was never opened.
    Withdraw(RunId, NodeId, i64),
    /// Change a named consumer of this node.
    Consumer {
        write: Box<ConsumerChange>,
        generation: i64,
    },
    /// Renew the node's lease, or give it up.
    Lease {
        node: NodeId,
        generation: i64,
        given_up: bool,
        /// Start of the node's drain.
        draining: Option<Timestamp>,
    },
    /// Leave a stop for another node.
    LeaveStop(Box<StopWrite>),
    /// Remove a stop that another node has left here, and that was carried out.
    RemoveLeftStop(Box<StopWrite>),
    /// Write node and keeper; always alone in its transaction.
    Open(Box<Opening>),
    /// Give a node to a keeper that does not exist; always alone in its transaction.
    Forget {
        node: NodeId,
        keeper_epoch: KeeperEpoch,
    },
    /// Remove nodes that have ended; always alone in its transaction.
    RemoveNodes(NodeRemoval),
    /// Remove rows of ended runs; always alone in its transaction.
    RemoveRows(RowRemoval),
}

/// Result of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The row is as the write requires; its age, where the write has inserted it.
    Written(Age),
    /// The row's key, generation or state prevented it.
    NotWritten,
    /// The lease is renewed, and stops are left for the node.
    Left,
    /// The node's new generation.
    Generation(i64),
    /// The rows that are removed.
    Removed(Vec<RemovedRow>),
}

/// Cause of a failed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing was written.
    Unavailable(String),
    /// The state is unknown: perhaps it was written.
    Unknown(String),
    /// The database refused a row, so nothing was written.
    Refused(String),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unavailable(why) => Self::Unavailable(why),
            Failure::Unknown(why) => Self::Unknown(why),
            Failure::Refused(why) => Self::Corrupt(why),
        }
    }
}

/// A database as the writer uses it.
#[async_trait]
pub(crate) trait Committer: Send + 'static {
    /// Writes all in one transaction, in bounded time; one answer for each, in order. No two writes name the same run.
    async fn commit(&mut self, batch: &[Write]) -> Result<Vec<Answer>, Failure>;

    /// Called now and then while there is nothing to write: a broken connection is better found here than by the next
    /// write, whose result would then be unknown.
    async fn idle(&mut self);

    /// Closes the connection in order.
    async fn close(self: Box<Self>);
}

/// The two queues and the task behind them.
pub(crate) struct Writer {
    urgent: mpsc::Sender<Job>,
    later: mpsc::Sender<Job>,
    finish: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

struct Job {
    write: Write,
    answer: oneshot::Sender<Result<Answer, Failure>>,
}

impl Writer {
    /// Starts the task; it ends with [`Writer::finish`], or when the writer is dropped and the queues are empty.
    pub(crate) fn start(committer: Box<dyn Committer>) -> Self {
        let (urgent, urgent_queue) = mpsc::channel(WRITES_QUEUED_MAX);
        let (later, later_queue) = mpsc::channel(WRITES_QUEUED_MAX);
        let (finish, finished) = oneshot::channel();
        let queues = Queues {
            urgent: urgent_queue,
            later: later_queue,
            held: VecDeque::new(),
        };
        let task = tokio::spawn(write_all(queues, committer, finished));
        Self {
            urgent,
            later,
            finish: Mutex::new(Some((finish, task))),
        }
    }

    /// Queues one write and waits until it is durable.
    pub(crate) async fn write(&self, write: Write) -> Result<Answer, Failure> {
        let is_urgent = match &write {
            Write::Insert(_) | Write::Open(_) | Write::Forget { .. } => true,
            Write::Put { is_urgent, .. } => *is_urgent,
            _ => false,
        };
        let queue = if is_urgent { &self.urgent } else { &self.later };
        let place = match timeout(QUEUE_WAIT_MAX, queue.reserve()).await {
            Ok(Ok(place)) => place,
            Ok(Err(_)) => return Err(Failure::Unavailable("the store is closed".into())),
            Err(_) => {
                let why = "too many writes are waiting for the database";
                return Err(Failure::Unavailable(why.into()));
            }
        };
        let (answer, answered) = oneshot::channel();
        place.send(Job { write, answer });
        answered
            .await
            .unwrap_or_else(|_| Err(Failure::Unknown("the writer is gone".into())))
    }

    /// Whether nothing can be written any more: the task has ended, in order or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.urgent.is_closed()
    }

    /// Accepts no more, writes the queued ones, and ends the task. A second call has nothing to do.
    pub(crate) async fn finish(&self) {
        let taken = self.finish.lock().take();
        if let Some((finish, task)) = taken {
            // The task listens until it ends, so a failed send means that it has ended.
            let _ = finish.send(());
            if let Err(error) = task.await {
                tracing::error!(%error, "the writer of the database failed");
            }
        }
    }
}

struct Queues {
    urgent: mpsc::Receiver<Job>,
    later: mpsc::Receiver<Job>,
    /// Taken from a queue, but waiting for the batch after the present one, in order.
    held: VecDeque<Job>,
}

/// Writes that go into one transaction. No run occurs twice: changes of one row must not be reordered.
#[derive(Default)]
struct WriteBatch {
    writes: Vec<Write>,
    answers: Vec<oneshot::Sender<Result<Answer, Failure>>>,
    runs: HashSet<String>,
    bytes: usize,
    sealed: bool,
}

impl WriteBatch {
    fn is_full(&self, rows_max: usize) -> bool {
        self.sealed || self.writes.len() >= rows_max || self.bytes >= BATCH_BYTES_MAX
    }

    /// Adds the job, or returns it if it may not be in one transaction with the others.
    fn add(&mut self, job: Job) -> Result<(), Job> {
        match job.write.key() {
            None if !self.writes.is_empty() => {
                self.sealed = true;
                return Err(job);
            }
            None => self.sealed = true,
            Some(_) if self.sealed => return Err(job),
            Some(run) => {
                if !self.runs.insert(run) {
                    return Err(job);
                }
            }
        }
        self.bytes += job.write.size();
        self.writes.push(job.write);
        self.answers.push(job.answer);
        Ok(())
    }
}

/// Returns a key that no run has.
fn lease_key(node: NodeId) -> String {
    format!("node {node}")
}

impl Write {
    /// Returns the key of the run that is written.
    pub(crate) fn key(&self) -> Option<String> {
        match self {
            Self::Insert(record) | Self::Mend(record) | Self::Put { record, .. } => {
                Some(record.run_id.clone())
            }
            Self::Withdraw(run, ..) => Some(run.to_string()),
            Self::Consumer { write, .. } => Some(write.key()),
            Self::Lease { node, .. } => Some(lease_key(*node)),
            Self::LeaveStop(stop) | Self::RemoveLeftStop(stop) => {
                Some(format!("stop {}", stop.run))
            }
            Self::Open(_) | Self::Forget { .. } | Self::RemoveNodes(_) | Self::RemoveRows(_) => {
                None
            }
        }
    }

    /// Whether it has several statements, and is always alone in its transaction.
    pub(crate) fn has_own_transaction(&self) -> bool {
        matches!(
            self,
            Self::Open(_) | Self::Forget { .. } | Self::RemoveNodes(_) | Self::RemoveRows(_)
        )
    }

    /// Returns the size in bytes of the parts that a caller chooses.
    fn size(&self) -> usize {
        match self {
            Self::Insert(record) | Self::Mend(record) | Self::Put { record, .. } => {
                record.spec.len() + record.labels.len() + record.facets.len()
            }
            Self::Consumer { write, .. } => write.size(),
            _ => 0,
        }
    }
}

impl Queues {
    /// Returns the next batch, empty after a while without work; none when the queues are closed and empty.
    async fn next(&mut self, finished: &mut oneshot::Receiver<()>) -> Option<WriteBatch> {
        let mut batch = WriteBatch::default();
        for job in std::mem::take(&mut self.held) {
            self.put(&mut batch, job);
        }
        if batch.writes.is_empty() {
            match timeout(IDLE_CHECK_EVERY, self.first(finished)).await {
                Ok(Some(job)) => self.put(&mut batch, job),
                Ok(None) => return None,
                Err(_) => return Some(batch),
            }
        }
        while !batch.is_full(BATCH_URGENT_MAX)
            && let Ok(job) = self.urgent.try_recv()
        {
            self.put(&mut batch, job);
        }
        while !batch.is_full(BATCH_ROWS_MAX)
            && let Ok(job) = self.later.try_recv()
        {
            self.put(&mut batch, job);
        }
        Some(batch)
    }

    /// Returns the next job; none when the queues are closed and empty.
    async fn first(&mut self, finished: &mut oneshot::Receiver<()>) -> Option<Job> {
        loop {
            tokio::select! { biased;
                Some(job) = self.urgent.recv() => return Some(job),
                Some(job) = self.later.recv() => return Some(job),
                // Both a request to finish and a dropped writer close the queues.
                _ = &mut *finished, if !finished.is_terminated() => {
                    self.urgent.close();
                    self.later.close();
                }
                else => return None,
            }
        }
    }

    fn put(&mut self, batch: &mut WriteBatch, job: Job) {
        if batch.is_full(BATCH_ROWS_MAX) {
            self.held.push_back(job);
        } else if let Err(job) = batch.add(job) {
            self.held.push_back(job);
        }
    }
}

async fn write_all(
    mut queues: Queues,
    mut committer: Box<dyn Committer>,
    mut finished: oneshot::Receiver<()>,
) {
    while let Some(batch) = queues.next(&mut finished).await {
        let WriteBatch {
            writes, answers, ..
        } = batch;
        if writes.is_empty() {
            committer.idle().await;
            continue;
        }
        match committer.commit(&writes).await {
            Ok(results) => {
                for (answer, result) in answers.into_iter().zip(results) {
                    // A caller that is gone needs no answer.
                    let _ = answer.send(Ok(result));
                }
            }
            // One bad row must not fail the others.
            Err(Failure::Refused(_)) => {
                for (answer, write) in answers.into_iter().zip(writes) {
                    let result = committer.commit(std::slice::from_ref(&write)).await;
                    let _ = answer.send(result.map(|mut answers| answers.swap_remove(0)));
                }
            }
            Err(failure) => {
                for answer in answers {
                    let _ = answer.send(Err(failure.clone()));
                }
            }
        }
    }
    committer.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    /// Commits when it is permitted, and reports the contents of each commit.
    struct Gated {
        permits: Arc<Semaphore>,
        commits: mpsc::Sender<Vec<i64>>,
        refused: Option<i64>,
    }

    #[async_trait]
    impl Committer for Gated {
        async fn commit(&mut self, batch: &[Write]) -> Result<Vec<Answer>, Failure> {
            self.permits.acquire().await.unwrap().forget();
            let marks: Vec<i64> = batch.iter().map(mark).collect();
            let refuse = self.refused.is_some_and(|bad| marks.contains(&bad));
            self.commits.try_send(marks).unwrap();
            if refuse {
                return Err(Failure::Refused("a CHECK".into()));
            }
            Ok(batch.iter().map(|_| Answer::Written(Age::NONE)).collect())
        }

        async fn idle(&mut self) {}

        async fn close(self: Box<Self>) {}
    }

    /// Returns the number that the test has put into the write.
    fn mark(write: &Write) -> i64 {
        match write {
            Write::Put { record, .. } => record.generation,
            _ => -1,
        }
    }

    fn stop(run: u128, mark: i64) -> Write {
        put(run, mark, true)
    }

    fn state(run: u128, mark: i64) -> Write {
        put(run, mark, false)
    }

    fn put(run: u128, mark: i64, is_urgent: bool) -> Write {
        let record = Record {
            run_id: RunId::from_u128(run).to_string(),
            generation: mark,
            ..Record::default()
        };
        Write::Put {
            record: Box::new(record),
            part: ColumnPart::Hot,
            is_urgent,
        }
    }

    struct Bench {
        writer: Writer,
        permits: Arc<Semaphore>,
        commits: mpsc::Receiver<Vec<i64>>,
    }

    impl Bench {
        /// Returns a writer that is busy with the write marked 0, so that later ones have to queue.
        async fn busy(refused: Option<i64>) -> Self {
            let permits = Arc::new(Semaphore::new(0));
            // Each write may arrive as its own commit.
            let (sender, commits) = mpsc::channel(2 * WRITES_QUEUED_MAX);
            let writer = Writer::start(Box::new(Gated {
                permits: permits.clone(),
                commits: sender,
                refused,
            }));
            let mut bench = Self {
                writer,
                permits,
                commits,
            };
            bench.queue(stop(0, 0)).await;
            while bench.writer.urgent.capacity() < WRITES_QUEUED_MAX {
                tokio::task::yield_now().await;
            }
            bench
        }

        /// Queues a write and drops the wait for its answer.
        async fn queue(&mut self, write: Write) {
            // Tokio makes a task that does not yield wait after some steps: this poll would not queue.
            tokio::task::yield_now().await;
            let mut abandoned = std::pin::pin!(self.writer.write(write));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(abandoned.as_mut().poll(&mut context).is_pending());
        }

        async fn finish(mut self) -> Vec<Vec<i64>> {
            self.permits.add_permits(Semaphore::MAX_PERMITS / 2);
            self.writer.finish().await;
            let mut all = Vec::new();
            while let Some(commit) = self.commits.recv().await {
                all.push(commit);
            }
            all
        }
    }

    #[tokio::test]
    async fn queued_changes_share_next_commit_urgent_first() {
        let mut bench = Bench::busy(None).await;
        bench.queue(state(1, 1)).await;
        bench.queue(state(2, 2)).await;
        bench.queue(stop(3, 3)).await;

        assert_eq!(bench.finish().await, [vec![0], vec![3, 1, 2]]);
    }

    #[tokio::test]
    async fn changes_of_one_run_never_share_a_transaction() {
        let mut bench = Bench::busy(None).await;
        for (run, mark) in [(1, 1), (2, 2), (1, 3), (1, 4), (2, 5)] {
            bench.queue(state(run, mark)).await;
        }

        assert_eq!(
            bench.finish().await,
            [vec![0], vec![1, 2], vec![3, 5], vec![4]]
        );
    }

    #[tokio::test]
    async fn urgent_writes_do_not_starve_others() {
        let mut bench = Bench::busy(None).await;
        bench.queue(state(1, -7)).await;
        for run in 0..WRITES_QUEUED_MAX {
            bench
                .queue(stop(100 + u128::try_from(run).unwrap(), 1))
                .await;
        }

        let commits = bench.finish().await;

        assert_eq!(commits[1].len(), BATCH_URGENT_MAX + 1);
        assert_eq!(commits[1].last(), Some(&-7));
        assert!(commits.iter().all(|c| c.len() <= BATCH_ROWS_MAX));
        assert_eq!(commits.concat().len(), WRITES_QUEUED_MAX + 2);
    }

    #[tokio::test]
    async fn failed_batch_is_retried_row_by_row() {
        let mut bench = Bench::busy(Some(2)).await;
        for mark in [1, 2, 3] {
            bench.queue(stop(u128::try_from(mark).unwrap(), mark)).await;
        }

        let commits = bench.finish().await;

        assert_eq!(commits, [vec![0], vec![1, 2, 3], vec![1], vec![2], vec![3]]);
    }

    #[tokio::test]
    async fn full_write_queue_refuses_further_writes() {
        let mut bench = Bench::busy(None).await;
        for run in 0..WRITES_QUEUED_MAX {
            bench
                .queue(stop(100 + u128::try_from(run).unwrap(), 1))
                .await;
        }

        let refused = bench.writer.write(stop(1, 9)).await;

        assert!(
            matches!(refused, Err(Failure::Unavailable(_))),
            "{refused:?}"
        );
        assert!(!bench.finish().await.concat().contains(&9));
    }
}
