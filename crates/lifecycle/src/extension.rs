//! Extensions of a run's limits of time: one meaning for the command's own notices and for callers.
//!
//! A limit that is extended by a time is not reached before that time has passed from now on, pauses not counted. It is
//! never shortened, so a repeat does no harm. What each attempt may add to a limit has a bound.

use crate::{Deadline, Entry};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// A limit of time at one moment, as far as an extension depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extendable {
    /// Time left until the limit is reached, pauses not counted.
    pub left: Duration,
    /// Total of the extensions so far.
    pub extended: Duration,
    /// Bound of that total.
    pub most: Duration,
}

impl Extendable {
    /// Returns by how much the limit is extended so that at least `time` is left; less at the bound.
    pub fn cut(&self, time: Duration) -> Duration {
        let room = self.most.saturating_sub(self.extended);
        time.saturating_sub(self.left).min(room)
    }

    /// Returns by how much the limit is extended so that at least `time` is left.
    ///
    /// # Errors
    ///
    /// The bound does not allow it. The error is the longest time that it allows.
    pub fn whole(&self, time: Duration) -> Result<Duration, Duration> {
        let more = self.cut(time);
        let possible = self.left.saturating_add(more);
        if possible < time {
            Err(possible)
        } else {
            Ok(more)
        }
    }
}

/// Extension of one limit in an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// Total of the extensions.
    pub total: Duration,
    /// Run time of the attempt, pauses not counted, before which the limit is not reached.
    pub end: Duration,
}

/// Extensions of the newest attempt that had one. Each attempt begins without any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Extensions {
    attempt: u32,
    limits: BTreeMap<Deadline, Extension>,
}

impl Extensions {
    /// Returns the extension of this limit in this attempt; zero: it was not extended.
    pub fn of(&self, attempt: u32, limit: Deadline) -> Extension {
        let own = self.limits.get(&limit).filter(|_| attempt == self.attempt);
        own.copied().unwrap_or_default()
    }

    /// Returns the entry for this extension; absent: it is no news, since its total is not more than the recorded one.
    pub fn change(&self, attempt: u32, limit: Deadline, to: Extension, by: &str) -> Option<Entry> {
        let is_news = to.total > self.of(attempt, limit).total && attempt >= self.attempt;
        is_news.then(|| Entry::Extended {
            attempt,
            limit,
            total: to.total,
            end: to.end,
            by: by.to_owned(),
        })
    }

    /// Applies an entry. Returns whether it is news.
    pub(crate) fn apply(&mut self, attempt: u32, limit: Deadline, to: Extension) -> bool {
        if attempt < self.attempt || to.total <= self.of(attempt, limit).total {
            return false;
        }
        if attempt > self.attempt {
            *self = Self {
                attempt,
                ..Self::default()
            };
        }
        self.limits.insert(limit, to);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    // promise: RW-117
    #[test]
    fn extension_counts_from_now_and_has_a_bound() {
        let limit = Extendable {
            left: seconds(6),
            extended: seconds(40),
            most: seconds(60),
        };
        assert_eq!(limit.whole(seconds(10)), Ok(seconds(4)));
        assert_eq!(limit.whole(seconds(5)), Ok(Duration::ZERO));
        assert_eq!(limit.whole(seconds(26)), Ok(seconds(20)));
        assert_eq!(limit.whole(seconds(27)), Err(seconds(26)));
        assert_eq!(limit.cut(Duration::MAX), seconds(20));
        let none = Extendable {
            most: Duration::ZERO,
            ..limit
        };
        assert_eq!(none.whole(seconds(7)), Err(seconds(6)));
        assert_eq!(none.cut(Duration::MAX), Duration::ZERO);
    }

    #[test]
    fn each_attempt_begins_without_extensions() {
        let mut extensions = Extensions::default();
        let to = |total, end| Extension {
            total: seconds(total),
            end: seconds(end),
        };
        assert!(extensions.apply(1, Deadline::MaxRuntime, to(5, 15)));
        // Extensions that are repeated or older change nothing.
        assert!(!extensions.apply(1, Deadline::MaxRuntime, to(5, 15)));
        assert!(!extensions.apply(1, Deadline::MaxRuntime, to(4, 14)));
        assert!(extensions.apply(1, Deadline::Inactivity, to(1, 9)));
        assert_eq!(extensions.of(1, Deadline::MaxRuntime), to(5, 15));
        assert_eq!(extensions.of(2, Deadline::MaxRuntime), to(0, 0));
        assert!(extensions.apply(2, Deadline::Inactivity, to(2, 3)));
        assert_eq!(extensions.of(2, Deadline::MaxRuntime), to(0, 0));
        assert_eq!(
            extensions.change(1, Deadline::Inactivity, to(9, 9), "x"),
            None
        );
        assert!(!extensions.apply(1, Deadline::Inactivity, to(9, 9)));
    }
}
