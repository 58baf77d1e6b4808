//! The only module that reads the clock.

/// Wall-clock time now. A clock set before 1970 reads as 1970.
pub(crate) use kennel_linux::clock::wall as now;
use tokio::time::Instant;

/// Now on the clock of the runtime's timers, which only goes forward.
pub(crate) fn instant() -> Instant {
    Instant::now()
}
