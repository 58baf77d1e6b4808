//! Turns of starts: a node starts a few commands at once, so that other calls do not wait behind hundreds of them, and
//! gives each owner its share.

use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::pin,
    sync::Arc,
    thread::available_parallelism,
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

/// Starts at once for each processor: as many as keep it busy while others wait for the store.
const STARTS_PER_PROCESSOR: usize = 8;
/// Longest turn: a start that waits for longer, as for a mount that does not answer, holds up no other one.
const TURN_MAX: Duration = Duration::from_millis(250);

/// Turns of starts. The next one is that of the owner with the fewest, and among these of the call that waits longest.
#[derive(Debug)]
pub(crate) struct Starts(Mutex<StartQueue>);

#[derive(Debug)]
struct StartQueue {
    free: usize,
    /// Number of the call that waits next.
    next: u64,
    /// Owners that hold turns or wait for one.
    owners: BTreeMap<String, StartShare>,
}

#[derive(Debug, Default)]
struct StartShare {
    held: usize,
    waiting: VecDeque<(u64, oneshot::Sender<Turn>)>,
}

/// The turn of one start. Its drop gives the turn to the next.
#[derive(Debug)]
pub(crate) struct Turn {
    starts: Arc<Starts>,
    owner: String,
}

impl Default for Starts {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::with(STARTS_PER_PROCESSOR * processors)
    }
}

impl Starts {
    fn with(turns: usize) -> Self {
        Self(Mutex::new(StartQueue {
            free: turns,
            next: 0,
            owners: BTreeMap::new(),
        }))
    }

    /// Waits for a turn of this owner.
    pub(crate) async fn turn(self: &Arc<Self>, owner: &str) -> Turn {
        loop {
            let waiting = self.0.lock().enter(owner);
            let Some(waiting) = waiting else {
                return self.given(owner.to_owned());
            };
            if let Ok(turn) = waiting.await {
                return turn;
            }
        }
    }

    fn given(self: &Arc<Self>, owner: String) -> Turn {
        Turn {
            starts: Arc::clone(self),
            owner,
        }
    }
}

impl StartQueue {
    /// Takes a free turn; without one it returns where the next will come.
    fn enter(&mut self, owner: &str) -> Option<oneshot::Receiver<Turn>> {
        let share = self.owners.entry(owner.to_owned()).or_default();
        if let Some(left) = self.free.checked_sub(1) {
            self.free = left;
            share.held += 1;
            return None;
        }
        let (give, waiting) = oneshot::channel();
        share.waiting.push_back((self.next, give));
        self.next += 1;
        Some(waiting)
    }

    /// Takes a turn back, and gives it to the call whose turn is next.
    fn leave(&mut self, owner: &str) -> Option<(String, oneshot::Sender<Turn>)> {
        if let Some(share) = self.owners.get_mut(owner) {
            share.held -= 1;
            if share.held == 0 && share.waiting.is_empty() {
                self.owners.remove(owner);
            }
        }
        let waiting = self.owners.iter_mut().filter_map(|(owner, share)| {
            let (number, _) = share.waiting.front()?;
            Some(((share.held, *number), owner, share))
        });
        let next = waiting.min_by_key(|(order, ..)| *order);
        let Some((_, owner, share)) = next else {
            self.free += 1;
            return None;
        };
        share.held += 1;
        let (_, give) = share.waiting.pop_front()?;
        Some((owner.clone(), give))
    }
}

impl Turn {
    /// Returns what a start gives. The turn ends with the start, or after its longest time.
    pub(crate) async fn of<T>(self, start: impl Future<Output = T>) -> T {
        let mut start = pin!(start);
        match timeout(TURN_MAX, start.as_mut()).await {
            Ok(given) => given,
            Err(_) => {
                drop(self);
                start.await
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.starts.0.lock().leave(&self.owner);
        if let Some((owner, give)) = next {
            // A call that no longer waits drops the turn, which then goes to the next.
            let _ = give.send(self.starts.given(owner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Starts, TURN_MAX, Turn};
    use std::{
        future::pending,
        sync::Arc,
        task::{Context, Poll, Waker},
    };
    use tokio::time::{Instant, timeout};

    type TurnFuture = std::pin::Pin<Box<dyn Future<Output = Turn>>>;

    /// Asks for a turn; the answer has room for one.
    fn ask(starts: &Arc<Starts>, owner: &'static str) -> TurnFuture {
        let starts = Arc::clone(starts);
        let mut waiting: TurnFuture = Box::pin(async move { starts.turn(owner).await });
        assert!(given(&mut waiting).is_none(), "no turn is free");
        waiting
    }

    fn given(waiting: &mut TurnFuture) -> Option<Turn> {
        let mut context = Context::from_waker(Waker::noop());
        match waiting.as_mut().poll(&mut context) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    // promise: I-105
    #[tokio::test]
    async fn starts_of_one_owner_are_fifo() {
        let starts = Arc::new(Starts::with(1));
        let first = starts.turn("a").await;
        let (mut second, mut third) = (ask(&starts, "a"), ask(&starts, "a"));
        drop(first);
        assert!(given(&mut third).is_none());
        let second = given(&mut second).expect("its turn");
        drop(second);
        drop(given(&mut third).expect("its turn"));
        drop(starts.turn("b").await);
        let queue = starts.0.lock();
        assert_eq!((queue.free, queue.owners.len()), (1, 0));
    }

    // promise: I-105
    #[tokio::test]
    async fn start_of_another_owner_overtakes_a_flood() {
        let starts = Arc::new(Starts::with(2));
        let held = (starts.turn("a").await, starts.turn("a").await);
        let mut flood: Vec<TurnFuture> = (0..100).map(|_| ask(&starts, "a")).collect();
        let mut other = ask(&starts, "b");
        drop(held.0);
        let other = given(&mut other).expect("its turn");
        // Now owner `a` has no turn.
        let mut again = ask(&starts, "b");
        drop(held.1);
        assert!(given(&mut again).is_none());
        let first = given(&mut flood[0]).expect("its turn");
        drop(other);
        assert!(given(&mut flood[1]).is_none());
        drop(given(&mut again).expect("its turn"));
        drop(given(&mut flood[1]).expect("its turn"));
        drop(first);
    }

    // promise: I-105
    #[tokio::test]
    async fn cancelled_start_passes_its_turn_on() {
        let starts = Arc::new(Starts::with(1));
        let first = starts.turn("a").await;
        let gone: Vec<TurnFuture> = (0..3).map(|_| ask(&starts, "a")).collect();
        let mut last = ask(&starts, "a");
        drop(gone);
        drop(first);
        drop(given(&mut last).expect("its turn"));
        assert_eq!(starts.0.lock().free, 1);
    }

    // promise: I-105a
    #[tokio::test(start_paused = true)]
    async fn long_start_does_not_block_others() {
        let starts = Arc::new(Starts::with(1));
        let began = Instant::now();
        let turn = starts.turn("a").await;
        let long = tokio::spawn(turn.of(pending::<()>()));
        let next = timeout(10 * TURN_MAX, starts.turn("a")).await;
        drop(next.expect("its turn"));
        assert_eq!(began.elapsed(), TURN_MAX);
        long.abort();
    }
}
