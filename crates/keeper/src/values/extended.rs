//! Extensions of the limits of time that the keeper counts.

use kennel_lifecycle::Deadline;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Totals of the extensions in one attempt, of the limits that the keeper counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extended {
    /// Total of [`Deadline::StartTimeout`].
    pub start: Duration,
    /// Total of [`Deadline::MaxRuntime`].
    pub max_runtime: Duration,
}

impl Extended {
    /// Limits that can be extended here.
    pub const LIMITS: [Deadline; 2] = [Deadline::StartTimeout, Deadline::MaxRuntime];

    /// Returns the total of this limit; zero for one that the keeper does not extend.
    pub fn of(&self, limit: Deadline) -> Duration {
        match limit {
            Deadline::StartTimeout => self.start,
            Deadline::MaxRuntime => self.max_runtime,
            Deadline::MaxPause | Deadline::Inactivity => Duration::ZERO,
        }
    }

    /// Adds an extension of this limit.
    pub(crate) fn add(&mut self, limit: Deadline, more: Duration) {
        match limit {
            Deadline::StartTimeout => self.start += more,
            Deadline::MaxRuntime => self.max_runtime += more,
            Deadline::MaxPause | Deadline::Inactivity => {}
        }
    }
}

/// Result of a request to extend limits: all of them, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtendResult {
    /// Each limit leaves the requested time at least. These are the totals.
    Done(Extended),
    /// The bound of the total does not allow it.
    TooLong {
        /// The limit.
        limit: Deadline,
        /// Longest time that it allows, from now on.
        possible: Duration,
    },
    /// The attempt has no such limit, or does not count it any more.
    NoLimit(Deadline),
    /// The attempt is being stopped or is over, or the keeper holds no such run.
    Gone,
}
