//! The two clocks: one for deadlines, one for people.

use kennel_lifecycle::Timestamp;
use nix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds of `CLOCK_BOOTTIME`: it does not jump, and goes on while the host sleeps.
pub(crate) fn boot_ms() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME since 2.6.39");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec()).unwrap_or(0);
    seconds * 1000 + nanos / 1_000_000
}

/// The wall clock.
pub(crate) fn wall() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
