//! Countdown of the time that a run may take. The keeper counts; the countdown stops while the run is paused.
//!
//! Pure, as the ladder is: the caller passes the time (milliseconds on any clock that does not jump).

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A time that runs down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Countdown {
    /// Time left when it last began to run.
    left: u64,
    /// Start of the present count; absent: the countdown is stopped.
    since: Option<u64>,
}

impl Countdown {
    /// Creates a countdown that is stopped until [`Self::run`].
    pub fn new(time: Duration) -> Self {
        Self {
            // Rounds up: no run gets less than was given.
            left: u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
            since: None,
        }
    }

    /// Starts the countdown; no effect if it runs already.
    pub fn run(&mut self, now: u64) {
        self.since.get_or_insert(now);
    }

    /// Stops the countdown.
    pub fn stand(&mut self, now: u64) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now.saturating_sub(since));
        }
    }

    /// Returns the end of the time, while the countdown runs.
    pub fn over_at(&self) -> Option<u64> {
        self.since.map(|since| since.saturating_add(self.left))
    }

    /// Returns the time left, in milliseconds.
    pub fn left(&self, now: u64) -> u64 {
        let passed = self.since.map_or(0, |since| now.saturating_sub(since));
        self.left.saturating_sub(passed)
    }

    /// Extends the time left now by so many milliseconds.
    pub fn extend(&mut self, millis: u64, now: u64) {
        let passed = self.since.map_or(0, |since| now.saturating_sub(since));
        // If the end was missed, as by a halted process, no time is left: the extension counts from now.
        self.left = self.left.max(passed).saturating_add(millis);
    }

    /// Whether no time is left.
    pub fn is_over(&self, now: u64) -> bool {
        self.over_at().is_some_and(|at| now >= at)
    }
}
