//! The only module that reads the clock.

use kennel_lifecycle::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Wall-clock time now. A clock set before 1970 reads as 1970.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Now on the clock of the runtime's timers, which only goes forward.
pub(crate) fn instant() -> Instant {
    Instant::now()
}
