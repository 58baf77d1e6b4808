//! When a run, and a pause of it, will have taken as long as it may, for who asks. The limits themselves are the keeper's
//! to keep.

use kennel_lifecycle::{Policy, Timestamp};
use std::time::Duration;

/// What of a run's time was spent paused.
#[derive(Debug, Default)]
pub(super) struct Runtime {
    paused_since: Option<Timestamp>,
    paused: Duration,
}

impl Runtime {
    /// For the next attempt.
    pub(super) fn begin_anew(&mut self) {
        *self = Self::default();
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
    pub(super) fn over_at(&self, policy: &Policy, started: Option<Timestamp>) -> Option<Timestamp> {
        match (policy.timeouts.max_runtime, started, self.paused_since) {
            (Some(max), Some(started), None) => Some(started.plus(max).plus(self.paused)),
            _ => None,
        }
    }

    /// Absent: it is not paused, or a pause has no limit.
    pub(super) fn pause_over_at(&self, policy: &Policy) -> Option<Timestamp> {
        Some(self.paused_since?.plus(policy.pause.max_pause?))
    }
}
