//! A store for a server that cannot wait for it: opened in the background, and unavailable until then.

use crate::{
    Age, Closure, ConsumerFilter, ConsumerKey, ConsumerRow, EpochRow, FoundRows, Inserted,
    LeftStop, ListFilter, ListPage, NewRun, NodeRemoval, NodeRow, OpenError, Opening, PageStart,
    Rest, RunRow, Store, StoreError, StoreUrl, StoredNode, WithOutput, open,
};
use async_trait::async_trait;
use kennel_lifecycle::{
    Backoff, Facets, HostIdentity, KeeperEpoch, NodeId, OutputRemoval, RowState, RunId, StopOrder,
    Timestamp,
};
use std::{
    error::Error,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

/// Delays between two tries.
const RETRY: Backoff = Backoff::up_to(Duration::from_millis(100), Duration::from_secs(2));

/// Opens the store in the background and retries after any error. Calls wait for the first try alone; `failed` is the error of
/// one that the caller has made.
#[must_use]
pub fn open_later(url: &StoreUrl, failed: Option<OpenError>) -> Arc<dyn Store> {
    let (tell, state) = watch::channel(State::Unasked);
    let mut tries = JoinSet::new();
    tries.spawn(open_at_last(url.clone(), failed, tell));
    Arc::new(Later {
        shown: url.to_string(),
        state,
        _tries: tries,
    })
}

#[derive(Debug)]
enum State {
    /// The first try is in progress.
    Unasked,
    /// The last try failed.
    Away(OpenError),
    Open(Arc<dyn Store>),
}

#[derive(Debug)]
struct Later {
    /// The address, without its password.
    shown: String,
    state: watch::Receiver<State>,
    /// The tries, which end with the store.
    _tries: JoinSet<()>,
}

async fn open_at_last(url: StoreUrl, mut failed: Option<OpenError>, tell: watch::Sender<State>) {
    let mut retries = RETRY.retries(RandomState::new().hash_one(()));
    let mut said = String::new();
    loop {
        let opened = match failed.take() {
            Some(error) => Err(error),
            None => open(&url).await,
        };
        let error = match opened {
            Ok(store) => {
                if !said.is_empty() {
                    tracing::info!(store = %url, "the database is open");
                }
                tell.send_replace(State::Open(store));
                return;
            }
            Err(error) => error,
        };
        let why = chain(&error);
        if why != said {
            tracing::error!(store = %url, %why, "cannot open the database, retrying");
            said.clone_from(&why);
        }
        tell.send_replace(State::Away(error));
        tokio::time::sleep(retries.next_delay()).await;
    }
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

impl Later {
    async fn inner(&self) -> Result<Arc<dyn Store>, StoreError> {
        let mut state = self.state.clone();
        let state = state.wait_for(|state| !matches!(state, State::Unasked));
        match state.await.as_deref() {
            Ok(State::Open(store)) => Ok(Arc::clone(store)),
            Ok(&State::Away(OpenError::SchemaTooNew { min_level, level })) => {
                Err(StoreError::SchemaTooNew { min_level, level })
            }
            Ok(State::Away(error)) => Err(StoreError::Unavailable(chain(error))),
            Ok(State::Unasked) | Err(_) => {
                Err(StoreError::Unavailable("no task opens the store".into()))
            }
        }
    }
}

#[async_trait]
impl Store for Later {
    async fn stored_node(&self, node: NodeId) -> Result<StoredNode, StoreError> {
        self.inner().await?.stored_node(node).await
    }

    async fn open_node(&self, opening: &Opening) -> Result<i64, StoreError> {
        self.inner().await?.open_node(opening).await
    }

    async fn renew(
        &self,
        node: NodeId,
        generation: i64,
        draining: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let inner = self.inner().await?;
        inner.renew(node, generation, draining).await
    }

    async fn leave_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        self.inner().await?.leave_stop(node, stop).await
    }

    async fn left_stops(&self, node: NodeId) -> Result<Vec<LeftStop>, StoreError> {
        self.inner().await?.left_stops(node).await
    }

    async fn left_stops_of(&self, runs: &[RunId]) -> Result<Vec<LeftStop>, StoreError> {
        self.inner().await?.left_stops_of(runs).await
    }

    async fn remove_left_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        self.inner().await?.remove_left_stop(node, stop).await
    }

    async fn give_up(&self, node: NodeId, generation: i64) -> Result<(), StoreError> {
        self.inner().await?.give_up(node, generation).await
    }

    async fn forget_node(
        &self,
        node: NodeId,
        keeper_epoch: KeeperEpoch,
    ) -> Result<i64, StoreError> {
        self.inner().await?.forget_node(node, keeper_epoch).await
    }

    async fn remove_nodes(&self, which: NodeRemoval) -> Result<bool, StoreError> {
        self.inner().await?.remove_nodes(which).await
    }

    async fn nodes(&self, these: Option<&[NodeId]>) -> Result<Vec<NodeRow>, StoreError> {
        self.inner().await?.nodes(these).await
    }

    async fn newest_age(&self) -> Result<Age, StoreError> {
        self.inner().await?.newest_age().await
    }

    async fn open_epochs(&self, node: NodeId) -> Result<Vec<EpochRow>, StoreError> {
        self.inner().await?.open_epochs(node).await
    }

    async fn insert(&self, new: &NewRun) -> Result<Inserted, StoreError> {
        self.inner().await?.insert(new).await
    }

    async fn record_stop(
        &self,
        run: RunId,
        generation: i64,
        order: &StopOrder,
        deadline: Timestamp,
    ) -> Result<(), StoreError> {
        let inner = self.inner().await?;
        inner.record_stop(run, generation, order, deadline).await
    }

    async fn fence(&self, new: &NewRun, closure: &Closure) -> Result<Inserted, StoreError> {
        self.inner().await?.fence(new, closure).await
    }

    async fn record_state(
        &self,
        run: RunId,
        generation: i64,
        state: RowState,
        started: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let inner = self.inner().await?;
        inner.record_state(run, generation, state, started).await
    }

    async fn record_facets(
        &self,
        run: RunId,
        generation: i64,
        facets: &Facets,
    ) -> Result<(), StoreError> {
        let inner = self.inner().await?;
        inner.record_facets(run, generation, facets).await
    }

    async fn rest(&self, new: &NewRun, rest: &Rest) -> Result<(), StoreError> {
        self.inner().await?.rest(new, rest).await
    }

    async fn begin(&self, new: &NewRun, restarts: u32) -> Result<(), StoreError> {
        self.inner().await?.begin(new, restarts).await
    }

    async fn close(&self, new: &NewRun, closure: &Closure) -> Result<(), StoreError> {
        self.inner().await?.close(new, closure).await
    }

    async fn withdraw(&self, run: RunId, node: NodeId, generation: i64) -> Result<(), StoreError> {
        self.inner().await?.withdraw(run, node, generation).await
    }

    async fn mend(&self, row: &RunRow) -> Result<(), StoreError> {
        self.inner().await?.mend(row).await
    }

    async fn mark_output_removed(
        &self,
        run: RunId,
        node: NodeId,
        generation: i64,
        removal: &OutputRemoval,
    ) -> Result<(), StoreError> {
        let inner = self.inner().await?;
        inner
            .mark_output_removed(run, node, generation, removal)
            .await
    }

    async fn with_output(
        &self,
        node: NodeId,
        start: Option<Age>,
        limit: u32,
    ) -> Result<Vec<WithOutput>, StoreError> {
        self.inner().await?.with_output(node, start, limit).await
    }

    async fn get(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        self.inner().await?.get(run).await
    }

    async fn list(
        &self,
        filter: &ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        self.inner().await?.list(filter, start, limit).await
    }

    async fn open_runs(&self, node: NodeId) -> Result<FoundRows, StoreError> {
        self.inner().await?.open_runs(node).await
    }

    async fn get_all(&self, runs: &[RunId]) -> Result<FoundRows, StoreError> {
        self.inner().await?.get_all(runs).await
    }

    async fn ended_with_pids(
        &self,
        node: NodeId,
        host: &HostIdentity,
        pids: &[i32],
        limit: u32,
    ) -> Result<Vec<RunRow>, StoreError> {
        let inner = self.inner().await?;
        inner.ended_with_pids(node, host, pids, limit).await
    }

    async fn put_consumer(&self, row: &ConsumerRow, generation: i64) -> Result<(), StoreError> {
        self.inner().await?.put_consumer(row, generation).await
    }

    async fn delete_consumer(
        &self,
        node: NodeId,
        key: &ConsumerKey,
        generation: i64,
    ) -> Result<(), StoreError> {
        let inner = self.inner().await?;
        inner.delete_consumer(node, key, generation).await
    }

    async fn expire_consumers(
        &self,
        node: NodeId,
        before: Timestamp,
        generation: i64,
    ) -> Result<(), StoreError> {
        let inner = self.inner().await?;
        inner.expire_consumers(node, before, generation).await
    }

    async fn consumers(
        &self,
        node: NodeId,
        filter: &ConsumerFilter,
        limit: u32,
    ) -> Result<Vec<ConsumerRow>, StoreError> {
        self.inner().await?.consumers(node, filter, limit).await
    }

    async fn count_consumers(
        &self,
        node: NodeId,
        key: &ConsumerKey,
    ) -> Result<(u64, u64), StoreError> {
        self.inner().await?.count_consumers(node, key).await
    }

    async fn record_bytes(&self, node: NodeId) -> Result<Vec<(String, u64)>, StoreError> {
        self.inner().await?.record_bytes(node).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.inner().await?.ping().await
    }

    fn describe(&self) -> String {
        match &*self.state.borrow() {
            State::Open(store) => store.describe(),
            State::Unasked | State::Away(_) => format!("{}, not reached yet", self.shown),
        }
    }

    async fn finish(&self) {
        let open = match &*self.state.borrow() {
            State::Open(store) => Some(Arc::clone(store)),
            State::Unasked | State::Away(_) => None,
        };
        if let Some(store) = open {
            store.finish().await;
        }
    }
}
