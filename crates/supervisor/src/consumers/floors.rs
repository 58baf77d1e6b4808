//! Up to where all consumers of a run have acknowledged, for runs whose output waits for that.
//!
//! The store is asked each time that something has changed: what is told here was durable before.

use crate::tracker::Shared;
use kennel_lifecycle::RunId;
use kennel_store::{ConsumerFilter, StoreError};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// When the store is asked again after it did not answer.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// What all consumers of a run have acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floor {
    /// Not known: the store has not been asked yet.
    Unknown,
    /// There are none.
    NoConsumer,
    /// Events up to this seq.
    UpTo(u64),
}

/// The floors that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    wanted: Mutex<Wanted>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct Wanted {
    floors: HashMap<RunId, watch::Sender<Floor>>,
    /// Of which the store is to be asked.
    changed: BTreeSet<RunId>,
}

impl Floors {
    /// The floor of a run from here on, for as long as somebody holds it.
    pub(crate) fn of(&self, run: RunId) -> watch::Receiver<Floor> {
        let mut wanted = self.lock();
        wanted.floors.retain(|_, floor| floor.receiver_count() > 0);
        let floor = wanted.floors.entry(run);
        let floor = floor.or_insert_with(|| watch::Sender::new(Floor::Unknown));
        let floor = floor.subscribe();
        drop(wanted);
        self.changed(Some(run));
        floor
    }

    /// A consumer of this run has changed.
    pub(crate) fn changed(&self, run: Option<RunId>) {
        let mut wanted = self.lock();
        if let Some(run) = run
            && wanted.floors.contains_key(&run)
        {
            wanted.changed.insert(run);
            self.woken.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        // Each change of it is whole.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the floors as the store has them, for as long as this server has the node.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let floors = &shared.consumers.floors;
    loop {
        let _ = shared.store.taken_over().await;
        let changed = std::mem::take(&mut floors.lock().changed);
        let mut has_failed = false;
        for run in changed {
            match ask(&shared, run).await {
                Ok(floor) => {
                    if let Some(told) = floors.lock().floors.get(&run) {
                        told.send_replace(floor);
                    }
                }
                Err(error) => {
                    tracing::debug!(run_id = %run, %error, "it is not known what was acknowledged of a run, asking again");
                    floors.lock().changed.insert(run);
                    has_failed = true;
                }
            }
        }
        let again = async {
            if has_failed {
                tokio::time::sleep(RETRY_AFTER).await;
            } else {
                floors.woken.notified().await;
            }
        };
        tokio::select! {
            () = again => {}
            () = shared.leaving.cancelled() => return,
            () = shared.keeper_lost.cancelled() => return,
        }
    }
}

async fn ask(shared: &Shared, run: RunId) -> Result<Floor, StoreError> {
    let filter = ConsumerFilter {
        run: Some(Some(run)),
        ..ConsumerFilter::default()
    };
    let most = u32::try_from(super::CONSUMERS_PER_RUN_MAX).unwrap_or(u32::MAX);
    let rows = shared.store.consumers(&filter, most).await?;
    let least = rows.iter().map(|row| row.acked).min();
    Ok(least.map_or(Floor::NoConsumer, Floor::UpTo))
}
