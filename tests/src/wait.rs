//! Waiting for something that is seen only by looking: with a deadline, and with its name in the failure.

use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

/// How often a condition is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Looks until the probe gives something; panics with `what` when the time is over.
pub async fn eventually<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// As [`eventually`], for a probe that has to ask.
pub async fn eventually_async<T, F: Future<Output = Option<T>>>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Awaits something that must come; panics with `what` when the time is over.
pub async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(limit, future).await else {
        panic!("not within {limit:?}: {what}")
    };
    value
}

/// Unwraps with the failed call's name in front.
pub fn must<T, E: Debug>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error:?}"),
    }
}
