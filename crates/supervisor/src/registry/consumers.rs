//! The active reader of each consumer, and serialisation of changes of one consumer.

use super::floors::Floors;
use crate::base::calls::CallError;
use kennel_store::{ConsumerKey, ConsumerRow};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::watch;

/// Locks for changes of consumers; changes of different consumers run concurrently.
const TURNS: usize = 64;

/// Position that a reader of many runs reports.
#[derive(Clone, Debug)]
pub struct ConsumerPlace {
    /// Session of the reader.
    pub session: u64,
    /// Number of the message.
    pub number: u64,
    /// Cursor of that message.
    pub cursor: Vec<u8>,
}

/// The right to read in a consumer's name, until a newer reader takes it.
#[derive(Debug)]
pub struct ConsumerSeat {
    consumers: Arc<Consumers>,
    row: ConsumerRow,
    begin: Vec<u8>,
    number: u64,
    given: Arc<AtomicU64>,
    lost: watch::Receiver<Option<Lost>>,
}

impl ConsumerSeat {
    /// The consumer at this reader's start.
    pub fn row(&self) -> &ConsumerRow {
        &self.row
    }

    /// Start of the reader, as a cursor for the client.
    pub fn begin(&self) -> &[u8] {
        &self.begin
    }

    /// Number of the last message of many runs before this reader's start.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Records that events up to this seq were given, or messages of many runs up to this number.
    pub fn given(&self, seq: u64) {
        self.given.store(seq, Ordering::Relaxed);
    }

    /// Returns when this reader has to stop, with the reason. Cancel-safe.
    pub async fn lost(&mut self) -> CallError {
        let key = self.row.key.clone();
        let lost = self.lost.wait_for(Option::is_some).await;
        match lost.map(|lost| *lost) {
            Ok(Some(Lost::Deleted)) => CallError::ConsumerNotFound {
                run: key.run,
                name: key.name,
            },
            // A consumer's sender is dropped only when another reader replaces it.
            Ok(Some(Lost::TakenOver) | None) | Err(_) => CallError::ConsumerTakenOver {
                run: key.run,
                name: key.name,
            },
        }
    }
}

impl Drop for ConsumerSeat {
    fn drop(&mut self) {
        let mut readers = self.consumers.readers.lock();
        if readers
            .get(&self.row.key)
            .is_some_and(|reader| Arc::ptr_eq(&reader.given, &self.given))
        {
            readers.remove(&self.row.key);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    TakenOver,
    Deleted,
}

/// The active reader of a consumer.
#[derive(Debug)]
pub(crate) struct ConsumerReader {
    /// Seq of the last event that it got; for many runs, number of its last message.
    pub(crate) given: Arc<AtomicU64>,
    pub(crate) lost: watch::Sender<Option<Lost>>,
}

/// State of consumers shared by all calls.
#[derive(Debug)]
pub(crate) struct Consumers {
    pub(crate) readers: Mutex<HashMap<ConsumerKey, ConsumerReader>>,
    /// Changes of one consumer are serialised: each is based on what was read before.
    turns: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
    /// Held while consumers are counted and one more is made.
    pub(crate) making: tokio::sync::Mutex<()>,
    /// Acknowledged positions of runs whose output waits for consumers.
    pub(crate) floors: Floors,
}

impl Default for Consumers {
    fn default() -> Self {
        Self {
            readers: Mutex::default(),
            turns: (0..TURNS).map(|_| tokio::sync::Mutex::default()).collect(),
            hasher: RandomState::new(),
            making: tokio::sync::Mutex::default(),
            floors: Floors::default(),
        }
    }
}

impl Consumers {
    pub(crate) async fn turn(&self, key: &ConsumerKey) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = self.hasher.build_hasher();
        std::hash::Hash::hash(key, &mut hasher);
        let turn = hasher.finish() % TURNS as u64;
        self.turns[usize::try_from(turn).unwrap_or(0)].lock().await
    }

    /// Inserts a reader; the one before it loses its seat.
    pub(crate) fn seat(
        self: &Arc<Self>,
        row: ConsumerRow,
        place: Option<ConsumerPlace>,
    ) -> ConsumerSeat {
        let given = Arc::<AtomicU64>::default();
        let (tell, lost) = watch::channel(None);
        let reader = ConsumerReader {
            given: Arc::clone(&given),
            lost: tell,
        };
        let before = self.readers.lock().insert(row.key.clone(), reader);
        let mut named = 0;
        if let Some(before) = before {
            before.lost.send_replace(Some(Lost::TakenOver));
            named = before.given.load(Ordering::Relaxed);
        }
        // Acknowledged events are not sent again.
        let place = place.filter(|place| place.number >= row.acked);
        let (begin, number) = match place {
            // Message numbers are never reused.
            Some(place) => (place.cursor, place.number.max(named)),
            None => (row.cursor.clone(), row.acked),
        };
        ConsumerSeat {
            consumers: Arc::clone(self),
            row,
            begin,
            number,
            given,
            lost,
        }
    }
}
