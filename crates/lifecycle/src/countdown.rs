//! Time that a run may take, counted by the keeper and stopped while the run is paused.
//!
//! Pure, as the ladder is: the counter says what time it is (milliseconds on any clock that does not jump).

use std::time::Duration;

/// A time that runs down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Countdown {
    /// What was left when it last began to run.
    left: u64,
    /// Since when it runs; absent: it stands still.
    since: Option<u64>,
}

impl Countdown {
    /// It stands still until [`Self::run`].
    #[must_use]
    pub fn new(time: Duration) -> Self {
        Self {
            // Nobody gets less than was given.
            left: u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
            since: None,
        }
    }

    /// As it was at another time: what was left when it last began to run, and since when it runs.
    #[must_use]
    pub fn resumed(left: u64, since: Option<u64>) -> Self {
        Self { left, since }
    }

    /// What [`Self::resumed`] takes.
    #[must_use]
    pub fn parts(&self) -> (u64, Option<u64>) {
        (self.left, self.since)
    }

    /// Runs from here on; one that runs already goes on.
    pub fn run(&mut self, now: u64) {
        self.since.get_or_insert(now);
    }

    /// Stands still from here on.
    pub fn stand(&mut self, now: u64) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now.saturating_sub(since));
        }
    }

    /// When it is over, while it runs.
    #[must_use]
    pub fn over_at(&self) -> Option<u64> {
        self.since.map(|since| since.saturating_add(self.left))
    }

    /// What is left, in milliseconds.
    #[must_use]
    pub fn left(&self, now: u64) -> u64 {
        let passed = self.since.map_or(0, |since| now.saturating_sub(since));
        self.left.saturating_sub(passed)
    }

    /// Makes it longer by so many milliseconds.
    pub fn extend(&mut self, millis: u64) {
        self.left = self.left.saturating_add(millis);
    }

    /// Whether it has run down.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        self.over_at().is_some_and(|at| now >= at)
    }
}
