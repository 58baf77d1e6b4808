//! Positions that all consumers of a run have acknowledged, for runs whose output waits for consumers.
//!
//! The store is asked after each change of a consumer: what is reported here was durable before.

use kennel_lifecycle::RunId;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use tokio::sync::{Notify, watch};

/// Position that all consumers of a run have acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floor {
    /// Not known: the store has not been asked yet.
    Unknown,
    /// The run has no consumers.
    NoConsumer,
    /// Events up to this seq.
    UpTo(u64),
}

/// The floors that tasks wait for.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    pub(crate) wanted: Mutex<Wanted>,
    pub(crate) woken: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) floors: HashMap<RunId, watch::Sender<Floor>>,
    /// Runs for which the store is to be asked.
    pub(crate) changed: BTreeSet<RunId>,
}

impl Floors {
    /// Watches the floor of a run, for as long as the receiver lives.
    pub(crate) fn of(&self, run: RunId) -> watch::Receiver<Floor> {
        let mut wanted = self.wanted.lock();
        wanted.floors.retain(|_, floor| floor.receiver_count() > 0);
        let floor = wanted.floors.entry(run);
        let floor = floor.or_insert_with(|| watch::Sender::new(Floor::Unknown));
        let floor = floor.subscribe();
        drop(wanted);
        self.changed(Some(run));
        floor
    }

    /// Records that a consumer of this run has changed.
    pub(crate) fn changed(&self, run: Option<RunId>) {
        let mut wanted = self.wanted.lock();
        if let Some(run) = run
            && wanted.floors.contains_key(&run)
        {
            wanted.changed.insert(run);
            self.woken.notify_one();
        }
    }
}
