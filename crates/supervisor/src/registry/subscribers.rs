//! Lag of the streams of live runs: events that were not given yet wait in the journal, and block no other reader.

use kennel_journal::Hub;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// All streams of live runs.
#[derive(Debug, Default)]
pub(crate) struct Subscribers(Mutex<SubscriberSlots>);

#[derive(Debug, Default)]
struct SubscriberSlots {
    next: u64,
    taken: BTreeMap<u64, (Hub, Arc<AtomicU64>)>,
}

/// One stream, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Subscription {
    subscribers: Arc<Subscribers>,
    number: u64,
    given: Arc<AtomicU64>,
}

impl Subscribers {
    /// Adds a stream of this journal's events that got those up to `seq`.
    pub(crate) fn join(self: &Arc<Self>, hub: Hub, seq: u64) -> Subscription {
        let given = Arc::new(AtomicU64::new(seq));
        let mut seats = self.0.lock();
        let number = seats.next;
        seats.next += 1;
        seats.taken.insert(number, (hub, Arc::clone(&given)));
        Subscription {
            subscribers: Arc::clone(self),
            number,
            given,
        }
    }

    /// Lag, in events, of the stream that is farthest behind.
    pub(crate) fn lag(&self) -> u64 {
        let seats = self.0.lock();
        let behind = |(hub, given): &(Hub, Arc<AtomicU64>)| {
            hub.head().seq.saturating_sub(given.load(Ordering::Relaxed))
        };
        seats.taken.values().map(behind).max().unwrap_or(0)
    }
}

impl Subscription {
    /// Records that the stream got everything up to here.
    pub(crate) fn given(&self, seq: u64) {
        self.given.store(seq, Ordering::Relaxed);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.subscribers.0.lock().taken.remove(&self.number);
    }
}
