//! Threads for work whose processor time is a caller's choice, so that none is taken from the threads of the runtime:
//! patterns are compiled and lines tested by them, and screens are drawn. They have the lowest priority, and work for
//! each owner in turn.

#[cfg(test)]
mod tests;

use super::Supervisor;
use crate::base::{calls::CallError, matcher::Scratch};
use kennel_linux::{clock::thread_time, own_process};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// Threads at most. An owner has one of them at a time, so another one is free while the work of an owner is slow.
const THREADS_MAX: usize = 2;
/// Time after which a thread without work ends.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Processor time of a turn, after which those of other owners come; a step that has begun is completed.
const TURN_TIME: Duration = Duration::from_millis(10);

/// The threads. They end with this value.
#[derive(Debug, Default)]
pub(crate) struct OwnerThreads(Arc<Pool>);

#[derive(Debug, Default)]
struct Pool {
    queue: Mutex<TurnQueue>,
    arrived: Condvar,
}

type Work = Box<dyn FnOnce(&mut Scratch) + Send>;

/// Waiting work: one turn at most for each live run and each call in progress, which bound it.
#[derive(Default)]
struct TurnQueue {
    threads: usize,
    idle: usize,
    /// Owners whose turn comes, in order.
    turns: VecDeque<Arc<str>>,
    /// Work of the owners that wait or have a turn now.
    owners: BTreeMap<Arc<str>, VecDeque<Work>>,
    is_closed: bool,
}

/// End of the current turn on one of these threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnEnd(Duration);

impl TurnEnd {
    /// Begins a turn on the calling thread.
    pub(crate) fn begin() -> Self {
        Self(thread_time() + TURN_TIME)
    }

    pub(crate) fn is_over(self) -> bool {
        self.is_before(thread_time())
    }

    /// Whether the turn is over at this processor time of the thread.
    pub(crate) fn is_before(self, used: Duration) -> bool {
        self.0 <= used
    }
}

impl OwnerThreads {
    /// Does a turn of work for this owner. An error: it was not completed.
    pub(crate) async fn turn<T: Send + 'static>(
        &self,
        owner: &Arc<str>,
        work: impl FnOnce(&mut Scratch) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let (reply, done) = oneshot::channel();
        let work = Box::new(move |scratch: &mut Scratch| {
            // A caller that is gone needs no result.
            if !reply.is_closed() {
                let _ = reply.send(work(scratch));
            }
        });
        if let Err(error) = self.push(owner, work) {
            tracing::error!(%error, "cannot start a thread for the work of owners, it waits for the next one");
        }
        done.await.map_err(|_| Self::failed())
    }

    pub(crate) fn failed() -> CallError {
        CallError::Internal("a thread that works for an owner has failed".into())
    }

    fn push(&self, owner: &Arc<str>, work: Work) -> io::Result<()> {
        let mut queue = self.0.queue.lock();
        queue.push(owner, work);
        if queue.idle > 0 || queue.threads == THREADS_MAX {
            self.0.arrived.notify_one();
            return Ok(());
        }
        let pool = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("owners".into());
        thread.spawn(move || pool.work())?;
        queue.threads += 1;
        Ok(())
    }
}

impl Supervisor {
    /// Does work whose time is a caller's choice, such as compiling a pattern, in a turn of this owner.
    pub async fn owner_turn<T: Send + 'static>(
        &self,
        owner: &Arc<str>,
        work: impl FnOnce(&mut Scratch) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        self.shared.owner_threads.turn(owner, work).await
    }
}

impl Drop for OwnerThreads {
    fn drop(&mut self) {
        self.0.queue.lock().is_closed = true;
        self.0.arrived.notify_all();
    }
}

impl Pool {
    /// Works until the queue is closed, or was empty for some time.
    fn work(&self) {
        own_process::lower_thread();
        let mut scratch = Scratch::new();
        while let Some((owner, work)) = self.next() {
            // A panic leaves its caller without an answer, and perhaps half-written scratch memory.
            if catch_unwind(AssertUnwindSafe(|| work(&mut scratch))).is_err() {
                scratch = Scratch::new();
            }
            self.queue.lock().leave(owner);
        }
    }

    fn next(&self) -> Option<(Arc<str>, Work)> {
        let mut queue = self.queue.lock();
        loop {
            let next = if queue.is_closed { None } else { queue.pop() };
            if next.is_some() {
                return next;
            }
            queue.idle += 1;
            let is_idle = |queue: &mut TurnQueue| !queue.is_closed && queue.turns.is_empty();
            let waited = self.arrived.wait_while_for(&mut queue, is_idle, IDLE_MAX);
            queue.idle -= 1;
            if queue.is_closed || waited.timed_out() {
                queue.threads -= 1;
                return None;
            }
        }
    }
}

impl TurnQueue {
    fn push(&mut self, owner: &Arc<str>, work: Work) {
        let waiting = self.owners.entry(Arc::clone(owner)).or_insert_with(|| {
            self.turns.push_back(Arc::clone(owner));
            VecDeque::new()
        });
        waiting.push_back(work);
    }

    /// Takes the next work, of the owner that waits longest. Its next turn comes after [`Self::leave`].
    fn pop(&mut self) -> Option<(Arc<str>, Work)> {
        let owner = self.turns.pop_front()?;
        let work = self.owners.get_mut(&owner)?.pop_front()?;
        Some((owner, work))
    }

    fn leave(&mut self, owner: Arc<str>) {
        if self.owners.get(&owner).is_some_and(VecDeque::is_empty) {
            self.owners.remove(&owner);
        } else {
            self.turns.push_back(owner);
        }
    }
}

impl fmt::Debug for TurnQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnQueue")
            .field("threads", &self.threads)
            .field("owners", &self.owners.keys())
            .finish_non_exhaustive()
    }
}
