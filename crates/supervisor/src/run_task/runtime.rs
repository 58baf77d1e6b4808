//! When a run, and a pause of it, will have taken as long as it may, for who asks. The limits themselves are the keeper's
//! to keep.

use kennel_lifecycle::{Policy, Timestamp};
use std::time::Duration;

/// The time that a run may take, and what of it was spent paused.
#[derive(Debug)]
pub(super) struct Runtime {
    max: Option<Duration>,
    max_pause: Option<Duration>,
    paused_since: Option<Timestamp>,
    paused: Duration,
}

impl Runtime {
    pub(super) fn new(policy: &Policy) -> Self {
        Self {
            max: policy.max_runtime,
            max_pause: policy.pause.max_pause,
            paused_since: None,
            paused: Duration::ZERO,
        }
    }

    /// For the next attempt.
    pub(super) fn begin_anew(&mut self) {
        self.paused_since = None;
        self.paused = Duration::ZERO;
    }

    pub(super) fn pause(&mut self, now: Timestamp) {
        self.paused_since = Some(now);
    }

    pub(super) fn resume(&mut self, now: Timestamp) {
        if let Some(since) = self.paused_since.take() {
            let micros = u64::try_from(now.0.saturating_sub(since.0)).unwrap_or(0);
            self.paused += Duration::from_micros(micros);
        }
    }

    /// Absent: there is no limit, or it does not count.
    pub(super) fn over_at(&self, started: Option<Timestamp>) -> Option<Timestamp> {
        match (self.max, started, self.paused_since) {
            (Some(max), Some(started), None) => Some(started.plus(max).plus(self.paused)),
            _ => None,
        }
    }

    /// Absent: it is not paused, or a pause has no limit.
    pub(super) fn pause_over_at(&self) -> Option<Timestamp> {
        Some(self.paused_since?.plus(self.max_pause?))
    }
}
