//! The store as this node's server uses it: not before the server has taken its node over, and each write by the
//! generation that this has given.

use kennel_lifecycle::{HostIdentity, NodeId, RowState, RunId, StopOrder, Timestamp};
use kennel_store::{
    Closure, Inserted, ListFilter, NewRun, PageStart, Rest, RunRow, Store, StoreError,
};
use std::sync::Arc;
use tokio::sync::watch;

/// The store, and this server's generation in it.
#[derive(Debug)]
pub(crate) struct NodeStore {
    store: Arc<dyn Store>,
    /// Absent: the node is not taken over yet.
    generation: watch::Sender<Option<i64>>,
}

impl NodeStore {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            generation: watch::Sender::new(None),
        }
    }

    /// The store itself, for whoever takes the node over.
    pub(crate) fn raw(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The node is taken over: from here on everybody may read and write.
    pub(crate) fn open(&self, generation: i64) {
        self.generation.send_replace(Some(generation));
    }

    /// This server's generation; absent while the node is not taken over.
    pub(crate) fn generation(&self) -> Option<i64> {
        *self.generation.borrow()
    }

    /// Ends when the node is taken over; never where it is already.
    pub(crate) async fn opened(&self) {
        let mut generation = self.generation.subscribe();
        // The sender is this very value.
        let _ = generation.changed().await;
    }

    /// This server's generation, once the node is taken over.
    pub(crate) async fn taken_over(&self) -> i64 {
        let mut generation = self.generation.subscribe();
        let taken = generation.wait_for(Option::is_some).await;
        match taken.ok().and_then(|generation| *generation) {
            Some(generation) => generation,
            // The sender is this very value.
            None => std::future::pending().await,
        }
    }

    fn present(&self) -> Result<i64, StoreError> {
        let away = || StoreError::Unavailable("this server has not taken its node over yet".into());
        self.generation().ok_or_else(away)
    }

    fn stamped(&self, new: &NewRun) -> Result<Box<NewRun>, StoreError> {
        let generation = self.present()?;
        Ok(Box::new(NewRun {
            generation,
            ..new.clone()
        }))
    }

    pub(crate) async fn insert(&self, new: &NewRun) -> Result<Inserted, StoreError> {
        self.store.insert(&*self.stamped(new)?).await
    }

    pub(crate) async fn fence(
        &self,
        new: &NewRun,
        closure: &Closure,
    ) -> Result<Inserted, StoreError> {
        self.store.fence(&*self.stamped(new)?, closure).await
    }

    pub(crate) async fn rest(&self, new: &NewRun, rest: &Rest) -> Result<(), StoreError> {
        self.store.rest(&*self.stamped(new)?, rest).await
    }

    pub(crate) async fn begin(&self, new: &NewRun) -> Result<(), StoreError> {
        self.store.begin(&*self.stamped(new)?).await
    }

    pub(crate) async fn close(&self, new: &NewRun, closure: &Closure) -> Result<(), StoreError> {
        self.store.close(&*self.stamped(new)?, closure).await
    }

    pub(crate) async fn record_stop(
        &self,
        run: RunId,
        order: &StopOrder,
        deadline: Timestamp,
    ) -> Result<(), StoreError> {
        let generation = self.present()?;
        let store = &self.store;
        store.record_stop(run, generation, order, deadline).await
    }

    pub(crate) async fn record_state(
        &self,
        run: RunId,
        state: RowState,
        started: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let generation = self.present()?;
        let store = &self.store;
        store.record_state(run, generation, state, started).await
    }

    pub(crate) async fn get(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        self.present()?;
        self.store.get(run).await
    }

    pub(crate) async fn get_all(&self, runs: &[RunId]) -> Result<Vec<RunRow>, StoreError> {
        self.present()?;
        self.store.get_all(runs).await
    }

    pub(crate) async fn list(
        &self,
        filter: &ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<Vec<RunRow>, StoreError> {
        self.present()?;
        self.store.list(filter, start, limit).await
    }

    pub(crate) async fn open_runs(&self, node: NodeId) -> Result<Vec<RunRow>, StoreError> {
        self.present()?;
        self.store.open_runs(node).await
    }

    pub(crate) async fn ended_with_pids(
        &self,
        node: NodeId,
        host: &HostIdentity,
        pids: &[i32],
        limit: u32,
    ) -> Result<Vec<RunRow>, StoreError> {
        self.present()?;
        let store = &self.store;
        store.ended_with_pids(node, host, pids, limit).await
    }

    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        self.present()?;
        self.store.ping().await
    }

    pub(crate) fn describe(&self) -> String {
        self.store.describe()
    }
}
