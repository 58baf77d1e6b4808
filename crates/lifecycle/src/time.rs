//! A point in time as a value.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Wall-clock time in microseconds since 1970-01-01 UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// So long before this time; saturates.
    #[must_use]
    pub fn minus(self, past: Duration) -> Self {
        let micros = i64::try_from(past.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros))
    }

    /// This time and `wait` more; saturates.
    #[must_use]
    pub fn plus(self, wait: Duration) -> Self {
        let micros = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// How long after `earlier` this is; zero where it is before.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let micros = u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0);
        Duration::from_micros(micros)
    }
}
