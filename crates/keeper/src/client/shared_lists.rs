//! Lists of trees that several callers ask for at once: one for all who had asked when it began. Each costs the keeper
//! and a thread here as much as its tree is large.

use super::{
    ClientError,
    listing::{self, Listing},
};
use crate::wire::WireListing;
use kennel_lifecycle::RunId;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::Semaphore;

/// Most threads that describe processes at once.
const THREADS_MAX: usize = 2;

/// The newest list of a run, with the number of calls that had asked when it began.
type Newest = Arc<tokio::sync::Mutex<Option<(u64, Listing)>>>;

/// Lists in progress.
#[derive(Debug)]
pub(super) struct SharedLists {
    runs: Mutex<HashMap<RunId, Newest>>,
    calls: AtomicU64,
    threads: Arc<Semaphore>,
}

impl Default for SharedLists {
    fn default() -> Self {
        Self {
            runs: Mutex::default(),
            calls: AtomicU64::new(0),
            threads: Arc::new(Semaphore::new(THREADS_MAX)),
        }
    }
}

impl SharedLists {
    /// Returns the list of a run, as `list` reads it and with what only /proc has, begun after this call.
    pub(super) async fn read<F>(
        &self,
        run: RunId,
        list: impl FnOnce() -> F,
    ) -> Result<Listing, ClientError>
    where
        F: Future<Output = Result<WireListing, ClientError>>,
    {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let newest = self.newest(run);
        let mut newest = newest.lock().await;
        if let Some((began, listing)) = &*newest
            && *began > number
        {
            return Ok(listing.clone());
        }
        let began = self.calls.load(Ordering::Relaxed);
        let listed = list().await?;
        let thread = Arc::clone(&self.threads).acquire_owned().await;
        // The keeper has other runs to serve, so the server does the slow reads.
        let described = tokio::task::spawn_blocking(move || {
            // The permit is kept until the work ends, even if its caller has left.
            let _thread = thread;
            listing::describe(&listed)
        });
        let described = described.await.map_err(|_| ClientError::KeeperGone)?;
        *newest = Some((began, described.clone()));
        Ok(described)
    }

    fn newest(&self, run: RunId) -> Newest {
        let mut runs = self.runs.lock();
        // Drop lists that no call uses.
        runs.retain(|_, newest| Arc::strong_count(newest) > 1);
        Arc::clone(runs.entry(run).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    // promise: T-18c
    #[tokio::test]
    async fn process_list_is_shared_by_waiting_callers() {
        let lists = Arc::new(SharedLists::default());
        let run = RunId::from_u128(7);
        let (begin, is_begun) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let spawn = |unlisted: u32| {
            let lists = Arc::clone(&lists);
            tokio::spawn(async move {
                let listing = WireListing {
                    unlisted,
                    ..WireListing::default()
                };
                let listing = lists.read(run, || async { Ok(listing) }).await;
                listing.expect("a list").unlisted
            })
        };
        let first = tokio::spawn({
            let lists = Arc::clone(&lists);
            async move {
                let list = || async {
                    begin.send(()).expect("the test waits");
                    ended.await.expect("the test goes on");
                    Ok(WireListing::default())
                };
                lists.read(run, list).await.expect("a list").unlisted
            }
        });
        is_begun.await.expect("the first has begun");
        let later = [spawn(1), spawn(2), spawn(3)];
        while lists.calls.load(Ordering::Relaxed) < 4 {
            tokio::task::yield_now().await;
        }
        end.send(()).expect("the first waits");
        assert_eq!(first.await.expect("no panic"), 0);
        let mut shown = Vec::new();
        for call in later {
            shown.push(call.await.expect("no panic"));
        }
        assert!(shown[0] > 0, "it began after the first");
        assert_eq!(shown, [shown[0]; 3]);
        assert_eq!(spawn(9).await.expect("no panic"), 9, "nothing is kept");
    }
}
