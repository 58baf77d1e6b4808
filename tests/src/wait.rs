//! Waiting for conditions that can only be polled: with a deadline, and with the name in the failure.

use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

/// Interval of polling.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Polls until the probe returns a value; panics with `what` at the deadline.
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

/// Polls likewise with an asynchronous probe.
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

/// Awaits an event that must come; panics with `what` at the deadline.
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
