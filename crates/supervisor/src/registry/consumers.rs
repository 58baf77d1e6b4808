//! Which reader of each consumer is active, and the turns that changes of one consumer take.

use super::floors::Floors;
use crate::base::calls::CallError;
use kennel_store::{ConsumerKey, ConsumerRow};
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::watch;

/// Changes of different consumers that may be on their way at a time.
const TURNS: usize = 64;

/// Where a reader of many runs says that it was.
#[derive(Clone, Debug)]
pub struct ConsumerPlace {
    /// As whose reader.
    pub session: u64,
    /// The number of the message.
    pub number: u64,
    /// What that message led to.
    pub cursor: Vec<u8>,
}

/// The right to read in a consumer's name, until somebody else takes it.
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
    /// The consumer when this reader came.
    #[must_use]
    pub fn row(&self) -> &ConsumerRow {
        &self.row
    }

    /// Where it goes on, as a client is given it.
    #[must_use]
    pub fn begin(&self) -> &[u8] {
        &self.begin
    }

    /// The number of the last message of many runs that this reader's beginning stands for.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Events up to this seq were given, or messages of many runs up to this number.
    pub fn given(&self, seq: u64) {
        self.given.store(seq, Ordering::Relaxed);
    }

    /// Ends when this reader has to, with the reason. Cancel-safe.
    pub async fn lost(&mut self) -> CallError {
        let key = self.row.key.clone();
        let lost = self.lost.wait_for(Option::is_some).await;
        match lost.map(|lost| *lost) {
            Ok(Some(Lost::Deleted)) => CallError::ConsumerNotFound {
                run: key.run,
                name: key.name,
            },
            // Its sender is dropped only where another one stands in its place.
            Ok(Some(Lost::TakenOver) | None) | Err(_) => CallError::ConsumerTakenOver {
                run: key.run,
                name: key.name,
            },
        }
    }
}

impl Drop for ConsumerSeat {
    fn drop(&mut self) {
        let mut readers = self.consumers.readers();
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

/// Who reads in a consumer's name.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Last seq that it was given; of many runs, number of its last message.
    pub(crate) given: Arc<AtomicU64>,
    pub(crate) lost: watch::Sender<Option<Lost>>,
}

/// What all calls about consumers share.
#[derive(Debug)]
pub(crate) struct Consumers {
    readers: Mutex<HashMap<ConsumerKey, Reader>>,
    /// Changes of one consumer take turns: each is made of what was read before.
    turns: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
    /// Held while it is counted how many there are, and one more is made.
    pub(crate) making: tokio::sync::Mutex<()>,
    /// Up to where runs are acknowledged whose output waits for that.
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

    pub(crate) fn readers(&self) -> MutexGuard<'_, HashMap<ConsumerKey, Reader>> {
        // Each change of it is one call.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a reader in; the one before it loses its seat.
    pub(crate) fn seat(
        self: &Arc<Self>,
        row: ConsumerRow,
        place: Option<ConsumerPlace>,
    ) -> ConsumerSeat {
        let given = Arc::<AtomicU64>::default();
        let (tell, lost) = watch::channel(None);
        let reader = Reader {
            given: Arc::clone(&given),
            lost: tell,
        };
        let before = self.readers().insert(row.key.clone(), reader);
        let mut named = 0;
        if let Some(before) = before {
            before.lost.send_replace(Some(Lost::TakenOver));
            named = before.given.load(Ordering::Relaxed);
        }
        // What was acknowledged is not given again.
        let place = place.filter(|place| place.number >= row.acked);
        let (begin, number) = match place {
            // No number names two messages.
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
