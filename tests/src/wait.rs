//! Waiting for conditions that can only be polled: with a deadline, and with the name in the failure.

use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

/// Shortest and longest pause between two looks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// Looks that are repeated until a deadline. What takes longer is looked at less often: many looks at once keep a
/// processor from what they wait for.
pub struct Looks {
    began: Instant,
    limit: Duration,
}

impl Looks {
    /// Begins to look, for this long at most.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self {
            began: Instant::now(),
            limit,
        }
    }

    /// Waits before the next look, for an eighth of the time that has passed; panics with `what` at the deadline.
    pub async fn again(&self, what: impl FnOnce() -> String) {
        let passed = self.began.elapsed();
        let limit = self.limit;
        assert!(passed < limit, "not within {limit:?}: {}", what());
        tokio::time::sleep((passed / 8).clamp(PAUSE.0, PAUSE.1)).await;
    }
}

/// Polls until the probe returns a value; panics with `what` at the deadline.
pub async fn eventually<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    eventually_async(what, limit, || std::future::ready(probe())).await
}

/// Polls likewise with an asynchronous probe.
pub async fn eventually_async<T, F: Future<Output = Option<T>>>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> F,
) -> T {
    let looks = Looks::within(limit);
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        looks.again(|| what.to_owned()).await;
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
