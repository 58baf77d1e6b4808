//! Checks of paths that a caller has named. A check may never return if a file system does not answer: it runs on a
//! blocking thread, and the caller waits for a limited time.

use super::blocking::blocking;
use std::{fmt::Display, io, time::Duration};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

/// Longest wait for the path checks of one call or attempt.
pub(crate) const LOOK_MAX: Duration = Duration::from_secs(5);

/// Path checks at a time: one that never returns holds a thread, and the remaining threads serve everything else.
pub(crate) static LOOKS: Semaphore = Semaphore::const_new(16);

/// There was no answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late;

/// Takes a look, as one of these.
pub(crate) async fn look<T: Send + 'static>(
    looks: &'static Semaphore,
    until: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<io::Result<T>, Late> {
    let look = async {
        let one = looks.acquire().await.map_err(io::Error::other)?;
        let found = blocking(move || {
            let _one = one;
            work()
        });
        found.await
    };
    timeout_at(until, look).await.map_err(|_| Late)
}

/// Returns the path with the reason why nothing is known of it.
pub(crate) fn unanswered(path: impl Display, most: Duration) -> String {
    format!("{path} (no answer in {} s)", most.as_secs())
}
