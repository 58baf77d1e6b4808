//! The store as this node's server uses it: only after the server has acquired its node, and each write under the
//! generation that this gave.

use crate::{
    base::clock,
    record::NodeRecord,
    telemetry::{Telemetry, emit_fence},
};
use kennel_lifecycle::{KeeperEpoch, NodeId, RunId, Timestamp};
use kennel_store::{
    Age, Change, Changed, Closure, ConsumerChange, LeftStop, ListFilter, ListPage, NewRun,
    PageStart, RemovedRow, RowRemoval, RunRow, Store, StoreError, StoredNode,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, RwLock, watch};

/// A copy that replaces the store lacks nothing that the store has had for longer than this.
const YOUNG: Duration = Duration::from_mins(10);

/// Does one read of a [`NodeStore`], by a method of [`Store`], which is its name in metrics.
macro_rules! read {
    ($store:expr, $name:ident($($with:expr),*)) => {
        $store.read(stringify!($name), $store.raw().$name($($with),*)).await
    };
}
pub(crate) use read;

/// The store, and this server's generation in it.
#[derive(Debug)]
pub(crate) struct NodeStore {
    store: Arc<dyn Store>,
    /// Absent: the node is not acquired yet.
    generation: watch::Sender<Option<i64>>,
    /// Age of the newest run of this node, as far as this server knows.
    newest: AtomicI64,
    /// The keeper that acquired the node's lease in the place of this one.
    fenced_by: watch::Sender<Option<KeeperEpoch>>,
    node: NodeId,
    keeper_epoch: KeeperEpoch,
    /// Notes what the store has taken.
    record: Arc<NodeRecord>,
    telemetry: Telemetry,
    /// Held to read by each write, from before it until it is noted.
    at_work: RwLock<()>,
    doubt: Notify,
}

impl NodeStore {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        node: NodeId,
        keeper_epoch: KeeperEpoch,
        record: Arc<NodeRecord>,
        telemetry: Telemetry,
    ) -> Self {
        Self {
            store,
            telemetry,
            generation: watch::Sender::new(None),
            newest: AtomicI64::new(record.newest_age().0),
            fenced_by: watch::Sender::new(None),
            node,
            keeper_epoch,
            record,
            at_work: RwLock::new(()),
            doubt: Notify::new(),
        }
    }

    /// Returns the store itself, for code that acquires the node.
    pub(crate) fn raw(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the age of the newest run of this node. Each run that this server inserts later has a higher one.
    pub(crate) fn newest(&self) -> Age {
        Age(self.newest.load(Ordering::SeqCst))
    }

    /// As [`Self::newest`], once rows of earlier servers are among them.
    pub(crate) fn newest_if_acquired(&self) -> Option<Age> {
        self.generation().map(|_| self.newest())
    }

    /// Opens the store to all callers: the node is acquired, and no row of it has a higher age than this.
    pub(crate) fn open(&self, generation: i64, newest: Age) {
        self.newest.fetch_max(newest.0, Ordering::SeqCst);
        self.fenced_by.send_replace(None);
        self.generation.send_replace(Some(generation));
    }

    /// Records that another keeper has the lease: until the node is acquired again, nothing is read or written.
    pub(crate) fn lose(&self, by: KeeperEpoch) {
        self.fenced_by.send_replace(Some(by));
    }

    /// Returns the keeper that acquired the node's lease in the place of this one.
    pub(crate) fn fenced_by(&self) -> Option<KeeperEpoch> {
        *self.fenced_by.borrow()
    }

    /// Returns the keeper to which this node's lease was lost. An earlier generation of the same keeper has lost
    /// nothing: its next server has the node.
    pub(crate) fn lost_to(&self, stored_node: &StoredNode) -> Option<KeeperEpoch> {
        let is_later = stored_node.generation > self.generation();
        let other = stored_node.keeper_epoch.filter(|_| is_later);
        other.filter(|epoch| *epoch != self.keeper_epoch)
    }

    /// Requests a check whether the store is the same one.
    pub(crate) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Closes the store to all callers, until the node is acquired again. Returns when no write is on its way any more.
    pub(crate) async fn shut(&self) {
        self.generation.send_replace(None);
        drop(self.at_work.write().await);
    }

    /// Returns when a check of the store is requested.
    pub(crate) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    /// Returns the node whose rows this server writes.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Returns this server's generation; absent while the node is not acquired.
    pub(crate) fn generation(&self) -> Option<i64> {
        *self.generation.borrow()
    }

    /// Returns when the node is acquired; never where it is already.
    pub(crate) async fn opened(&self) {
        let mut generation = self.generation.subscribe();
        // Receiving cannot fail: `self` owns the sender.
        let _ = generation.changed().await;
    }

    /// Returns this server's generation, once the node is acquired.
    pub(crate) async fn taken_over(&self) -> i64 {
        let mut generation = self.generation.subscribe();
        let taken = generation.wait_for(Option::is_some).await;
        match taken.ok().and_then(|generation| *generation) {
            Some(generation) => generation,
            // Receiving cannot fail: `self` owns the sender.
            None => std::future::pending().await,
        }
    }

    /// Whether the node is this server's at this moment, by the store itself.
    pub(crate) async fn is_present(&self) -> bool {
        match self.present() {
            Ok(generation) => (self.known(generation).await).is_ok_and(|known| known == generation),
            Err(_) => false,
        }
    }

    fn present(&self) -> Result<i64, StoreError> {
        self.generation().ok_or_else(|| match self.fenced_by() {
            Some(_) => StoreError::Held,
            None => away(),
        })
    }

    /// Makes a change of a run, under the present generation, and notes it. A recent end that has the key of a new run is
    /// noted too. Another run's closed row may have the key of a run that never ran: a caller that has written such an end,
    /// and has seen that it does not, notes that by [`Self::has`].
    pub(crate) async fn change(&self, run: RunId, change: &Change) -> Result<Changed, StoreError> {
        let _at_work = self.at_work.try_read().map_err(|_| away())?;
        let generation = self.present()?;
        let mut change = change.clone();
        if let Change::Inserted(new) = &mut change {
            // Even if the store went back, no reader's position is above a later run.
            new.age = Age(self.newest().0 + 1).max(new.age);
        }
        let what = match &change {
            // Alerts use this name.
            Change::Inserted(_) => "insert",
            change => change.name(),
        };
        let asked = self.store.change(self.node, generation, run, &change);
        let changed = match self.measured(what, asked).await {
            Err(StoreError::Fenced(_)) => return Err(self.refused(run, generation).await),
            changed => changed?,
        };
        match (&changed, &mut change) {
            (Changed::Taken(row), _) => self.seen(row),
            (_, Change::Closed(_, closure)) if closure.outcome.exit.is_none() => {}
            (Changed::Done(age), change) => {
                match change {
                    Change::Inserted(new) => {
                        self.newest.fetch_max(age.0, Ordering::SeqCst);
                        new.age = *age;
                    }
                    Change::Fenced(new, closure) => emit_fence(&self.telemetry, new, closure),
                    _ => {}
                }
                self.record.took(run, change.clone());
            }
        }
        Ok(changed)
    }

    /// As [`Self::change`], for one that inserts no run.
    pub(crate) async fn write(&self, run: RunId, change: &Change) -> Result<(), StoreError> {
        self.change(run, change).await.map(drop)
    }

    /// Writes the lost row of a live run again, and returns the row of its id: perhaps another's, which came meanwhile. A
    /// name or key that another run has taken meanwhile is the other's: this row is then written without that check.
    pub(crate) async fn rewrite(&self, new: &NewRun) -> Result<RunRow, StoreError> {
        let run = new.run;
        tracing::error!(run_id = %run, "the database lost the row of a run, rewriting it");
        let inserted = Change::Inserted(Box::new(new.clone()));
        match self.change(run, &inserted).await? {
            Changed::Done(age) => Ok(RunRow::open(NewRun { age, ..new.clone() })),
            Changed::Taken(row) if row.new.run == run => Ok(*row),
            Changed::Taken(_) => {
                let mut new = new.clone();
                new.age = Age(self.newest().0 + 1).max(new.age);
                self.newest.fetch_max(new.age.0, Ordering::SeqCst);
                let whole = RunRow::open(new);
                self.write(run, &Change::Snapshot(Box::new(whole.clone())))
                    .await?;
                Ok(whole)
            }
        }
    }

    /// Writes this node's keeper into the row of a run of an earlier one that it holds now. Where that fails the row stays,
    /// and other nodes do not know that the run is looked after: the next start writes it.
    pub(crate) async fn hand_over(&self, row: RunRow) -> RunRow {
        let mut mine = row.clone();
        mine.new.keeper_epoch = self.keeper_epoch;
        let (run, mine) = (row.new.run, Change::Snapshot(Box::new(mine)));
        if let Err(error) = self.write(run, &mine).await {
            tracing::warn!(run_id = %run, %error, "cannot record the keeper of an adopted run");
            return row;
        }
        self.record.open_row(run).unwrap_or(row)
    }

    /// A recent end is noted wherever it is read: the server that wrote it may have died before it noted it.
    fn seen(&self, row: &RunRow) {
        let young = |ended: Timestamp| ended.plus(YOUNG) > clock::now();
        if row.times.ended.is_some_and(young) {
            self.has(row.clone());
        }
    }

    /// Notes that a pending fence is written; this row has its key.
    pub(crate) fn fenced_late(&self, new: &NewRun, closure: &Closure, row: RunRow) {
        let outcome = row.outcome.as_ref();
        if outcome == Some(&closure.outcome) && row.new.created == new.created {
            emit_fence(&self.telemetry, new, closure);
        }
        self.has(row);
    }

    /// Notes this row: it was read, and is reported to a caller.
    pub(crate) fn has(&self, row: RunRow) {
        if row.new.node == self.node {
            self.record.has(row);
        }
    }

    async fn measured<T>(
        &self,
        what: &'static str,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let begun = clock::instant();
        let answer = asked.await;
        let error = answer.as_ref().err().map(|error| match error {
            StoreError::Unavailable(_) => "unavailable",
            StoreError::Unknown(_) => "unknown",
            StoreError::SchemaTooNew { .. } => "schema_too_new",
            StoreError::Fenced(_) => "fenced",
            StoreError::Corrupt(_) | StoreError::Unread(_) => "corrupt",
            StoreError::Held => "held",
        });
        let metrics = &self.telemetry.metrics;
        metrics.store(what, begun.elapsed(), error);
        answer
    }

    pub(crate) async fn change_consumers(&self, change: &ConsumerChange) -> Result<(), StoreError> {
        let _at_work = self.at_work.try_read().map_err(|_| away())?;
        let generation = self.present()?;
        let asked = self.store.change_consumers(change, generation);
        match self.measured("change_consumers", asked).await {
            Err(StoreError::Fenced(run)) => {
                self.known(generation).await?;
                Err(StoreError::Fenced(run))
            }
            done => done,
        }
    }

    /// Removes rows of ended runs, of this node or of one that the database does not have any more; returns those that were
    /// there.
    pub(crate) async fn remove_rows(
        &self,
        mut removal: RowRemoval,
    ) -> Result<Vec<RemovedRow>, StoreError> {
        let _at_work = self.at_work.try_read().map_err(|_| away())?;
        let generation = self.present()?;
        removal.generation = (removal.node == self.node).then_some(generation);
        let asked = self.store.remove_rows(&removal);
        self.measured("remove_rows", asked).await
    }

    /// Checks the generation that the store knows. An older one than ours: the store has gone back, and is unavailable
    /// until the node is acquired again.
    async fn known(&self, generation: i64) -> Result<i64, StoreError> {
        let stored_node = self.store.stored_node(self.node).await;
        let stored_node = stored_node.map_err(|e| unavailable(&e))?;
        if self.lost_to(&stored_node).is_some() {
            self.doubt();
            return Err(StoreError::Held);
        }
        let known = stored_node.generation.unwrap_or(0);
        if known < generation {
            self.doubt();
            return Err(StoreError::Unavailable("the store has gone back".into()));
        }
        Ok(known)
    }

    /// Returns why the store refuses a write: where the store is another one, that is transient.
    pub(crate) async fn refused(&self, run: RunId, generation: i64) -> StoreError {
        let known = match self.known(generation).await {
            Ok(known) => known,
            Err(error) => return error,
        };
        let Some(row) = self.record.open_row(run).filter(|_| known == generation) else {
            return StoreError::Fenced(run);
        };
        match self.store.get(run).await {
            Ok(None) => {}
            Ok(Some(_)) => return StoreError::Fenced(run),
            Err(error) => return unavailable(&error),
        }
        tracing::error!(run_id = %run, "the database lost the row of a run, rewriting it");
        let change = Change::Snapshot(Box::new(row));
        match self.store.change(self.node, generation, run, &change).await {
            Ok(_) => {
                StoreError::Unavailable("the row of the run was lost, and is written again".into())
            }
            Err(error) => error,
        }
    }

    /// Does one read, by [`read!`]. A query sent before the node was acquired again, and answered before lost rows were written
    /// again, does not count.
    pub(crate) async fn read<T>(
        &self,
        what: &'static str,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let generation = self.present()?;
        let read = self.measured(what, asked).await?;
        if self.generation() == Some(generation) {
            Ok(read)
        } else {
            Err(away())
        }
    }

    pub(crate) async fn get(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        let row = self.read("get", self.store.get(run)).await?;
        if let Some(row) = &row {
            self.seen(row);
        }
        Ok(row)
    }

    pub(crate) async fn leave_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        self.present()?;
        self.measured("leave_stop", self.store.leave_stop(node, stop))
            .await
    }

    pub(crate) async fn remove_left_stop(&self, stop: &LeftStop) -> Result<(), StoreError> {
        self.present()?;
        let removed = self.store.remove_left_stop(self.node, stop);
        self.measured("remove_left_stop", removed).await
    }

    pub(crate) async fn list(
        &self,
        filter: &ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        let page = self
            .read("list", self.store.list(filter, start, limit))
            .await?;
        for row in &page.rows {
            self.seen(row);
        }
        Ok(page)
    }

    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        self.present()?;
        self.store.ping().await
    }

    pub(crate) fn describe(&self) -> String {
        self.store.describe()
    }
}

fn away() -> StoreError {
    StoreError::Unavailable("this server has not taken its node over yet".into())
}

/// Maps a query without an answer: its subject stays undecided.
fn unavailable(error: &StoreError) -> StoreError {
    StoreError::Unavailable(error.to_string())
}
