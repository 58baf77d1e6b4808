//! The two clocks: one for deadlines, one for people.

use kennel_lifecycle::Timestamp;
use nix::{
    time::{ClockId, clock_gettime},
    unistd::{SysconfVar, sysconf},
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds of `CLOCK_BOOTTIME`: it does not jump, and continues while the host sleeps.
pub fn boot_ms() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME since 2.6.39");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec()).unwrap_or(0);
    seconds * 1000 + nanos / 1_000_000
}

/// Returns the time since boot, on the clock of process start times.
pub fn since_boot() -> Duration {
    Duration::from_millis(boot_ms())
}

/// Converts a start time of /proc/pid/stat to the time since boot.
pub fn of_ticks(ticks: u64) -> Duration {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let per_second = per_second
        .and_then(|n| u64::try_from(n).ok())
        .filter(|n| *n > 0);
    Duration::from_millis(ticks.saturating_mul(1000) / per_second.unwrap_or(100))
}

/// Returns the start of a process, on the wall clock as it is set at present; `ticks` is field 22 of /proc/pid/stat
/// (`proc_pid_stat(5)`).
pub fn start_time(ticks: u64) -> Timestamp {
    let age = since_boot().saturating_sub(of_ticks(ticks));
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    Timestamp(wall().0.saturating_sub(age))
}

/// Returns the processor time of the calling thread.
pub fn thread_time() -> Duration {
    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    used.map_or(Duration::ZERO, Duration::from)
}

/// Reads the wall clock.
pub fn wall() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    #[cfg(debug_assertions)]
    let now = now + AHEAD.get();
    Timestamp(now)
}

#[cfg(debug_assertions)]
thread_local! {
    /// Microseconds by which tests set the wall clock of their thread ahead; a release build has no such value.
    pub static AHEAD: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
}
