//! When a run, and a pause of it, will have taken as long as it may, for who asks. The limits themselves are the keeper's
//! to keep.

use kennel_lifecycle::{AttemptRecord, Policy, Timestamp};
use std::time::Duration;

/// The time that a run, and a pause of it, may take.
#[derive(Debug)]
pub(super) struct Runtime {
    max: Option<Duration>,
    max_pause: Option<Duration>,
}

impl Runtime {
    pub(super) fn new(policy: &Policy) -> Self {
        Self {
            max: policy.max_runtime,
            max_pause: policy.pause.max_pause,
        }
    }

    /// Absent: there is no limit, or it does not count.
    pub(super) fn over_at(&self, record: &AttemptRecord) -> Option<Timestamp> {
        match (self.max, record.times.started, record.paused_since) {
            (Some(max), Some(started), None) => Some(started.plus(max).plus(record.paused)),
            _ => None,
        }
    }

    /// Absent: it is not paused, or a pause has no limit.
    pub(super) fn pause_over_at(&self, record: &AttemptRecord) -> Option<Timestamp> {
        Some(record.paused_since?.plus(self.max_pause?))
    }
}
