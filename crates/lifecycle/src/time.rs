//! A point in time as a value.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Wall-clock time in microseconds since 1970-01-01 UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// A time that never comes.
    pub const NEVER: Self = Self(i64::MAX);

    /// Returns the time so long before this one; saturates.
    #[must_use]
    pub fn minus(self, past: Duration) -> Self {
        let micros = i64::try_from(past.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros))
    }

    /// Returns this time plus `wait`; saturates.
    #[must_use]
    pub fn plus(self, wait: Duration) -> Self {
        let micros = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// Returns the time since `earlier`; zero where this is before it.
    pub fn since(self, earlier: Self) -> Duration {
        let micros = u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0);
        Duration::from_micros(micros)
    }
}
