//! Up to where all consumers of a run have acknowledged, for runs whose output waits for that.
//!
//! The store is asked each time that something has changed: what is told here was durable before.

use kennel_lifecycle::RunId;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, watch};

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
    pub(crate) woken: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) floors: HashMap<RunId, watch::Sender<Floor>>,
    /// Of which the store is to be asked.
    pub(crate) changed: BTreeSet<RunId>,
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, Wanted> {
        // Each change of it is whole.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
