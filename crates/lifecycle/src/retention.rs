//! Retention of the output of a node's ended runs, and its removal.
//!
//! Pure: the list of runs, the time and the limits come in, the runs whose output is removed come out. A run that has
//! not ended is never among them.

use crate::names::named;
use crate::{RunId, Timestamp};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// Limits on the retained output of a node's ended runs. The outcome of a run stays for as long as its row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Number of newest ended runs of one owner that retain their output; absent: all.
    pub runs_per_owner: Option<u32>,
    /// Time after its end during which a run retains its output whatever `runs_per_owner` says.
    pub at_least: Duration,
    /// Longest time after its end during which a run retains its output; absent: no limit.
    pub at_most: Option<Duration>,
    /// Bytes that the output of all runs of the node may take, live ones included; absent: as many as the disk has
    /// space for.
    pub node_bytes: Option<u64>,
}

impl RetentionLimits {
    /// Nothing is ever removed.
    pub const NONE: Self = Self {
        runs_per_owner: None,
        at_least: Duration::ZERO,
        at_most: None,
        node_bytes: None,
    };
}

impl Default for RetentionLimits {
    fn default() -> Self {
        Self {
            runs_per_owner: Some(crate::limits::RETAINED_RUNS_DEFAULT),
            at_least: crate::limits::RETAINED_AT_LEAST_DEFAULT,
            ..Self::NONE
        }
    }
}

/// Limits on the rows of a node's ended runs, and on the ids that clients bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLimits {
    /// Rows of ended runs of one owner; absent: all.
    pub per_owner: Option<u32>,
    /// Time after its end during which a row stays whatever `per_owner` says.
    pub at_least: Duration,
    /// Longest time after its end that a row stays; absent: no limit.
    pub at_most: Option<Duration>,
    /// Age up to which an id makes a run. Ids of removed rows are remembered for as long.
    pub ids: Duration,
}

impl RowLimits {
    /// Nothing is ever removed, and no id is too old.
    pub const NONE: Self = Self {
        per_owner: None,
        at_least: Duration::ZERO,
        at_most: None,
        ids: Duration::MAX,
    };
}

impl Default for RowLimits {
    fn default() -> Self {
        Self {
            per_owner: Some(crate::limits::ROWS_PER_OWNER_DEFAULT),
            at_least: crate::limits::ROWS_AT_LEAST_DEFAULT,
            at_most: Some(crate::limits::ROWS_AT_MOST_DEFAULT),
            ids: crate::limits::IDS_DEFAULT,
        }
    }
}

/// Walks over the rows of a node's ended runs, from the oldest on: each counts those of each owner, and the next removes
/// what is beyond the limit.
#[derive(Debug, Default)]
pub struct RowWalk {
    counts: HashMap<String, u64>,
    beyond: HashMap<String, u64>,
}

impl RowWalk {
    /// Whether the next row of the walk goes. `age`: time since its end; `is_free`: nothing needs it any more.
    pub fn is_due(
        &mut self,
        owner: &str,
        age: Duration,
        is_free: bool,
        limits: &RowLimits,
    ) -> bool {
        let beyond = self.beyond.get_mut(owner).filter(|left| **left > 0);
        let is_beyond = beyond.is_some();
        if let Some(left) = beyond {
            // Counted also for a row that stays: no younger row is removed instead.
            *left -= 1;
        }
        let is_old = limits.at_most.is_some_and(|most| age > most);
        if is_free && (is_old || is_beyond && age >= limits.at_least) {
            return true;
        }
        match self.counts.get_mut(owner) {
            Some(count) => *count += 1,
            None => drop(self.counts.insert(owner.to_owned(), 1)),
        }
        false
    }

    /// Begins the next walk; one that was not ended does not count.
    pub fn begin(&mut self) {
        self.counts.clear();
    }

    /// Ends the walk. Returns the number of rows that stay.
    pub fn end(&mut self, limits: &RowLimits) -> u64 {
        let counts = std::mem::take(&mut self.counts);
        let all = counts.values().sum();
        let most = limits.per_owner.map_or(u64::MAX, u64::from);
        let beyond = counts.into_iter().filter(|(_, count)| *count > most);
        self.beyond = beyond.map(|(owner, count)| (owner, count - most)).collect();
        all
    }
}

/// Removal of an ended run's output, with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRemoval {
    /// Time of the decision.
    pub at: Timestamp,
    /// The limit that caused it.
    pub reason: RemovalReason,
    /// Seq of the run's last event.
    pub seq: u64,
    /// Length of standard output and of standard error.
    pub lens: [u64; 2],
    /// Whether the run has written exactly so many bytes: not where the host died, or a server while it dropped output.
    pub counted: bool,
}

named! {
    /// The limit that output was removed for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RemovalReason {
        /// [`RetentionLimits::runs_per_owner`].
        OwnerRuns = "owner_runs",
        /// [`RetentionLimits::at_most`].
        Age = "age",
        /// [`RetentionLimits::node_bytes`].
        NodeBytes = "node_bytes",
    }
}

/// An ended run that still has its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// Run id.
    pub run: RunId,
    /// Owner of the run.
    pub owner: Arc<str>,
    /// End of the run.
    pub ended: Timestamp,
    /// Bytes of its output on the disk; 0 where they were not measured.
    pub bytes: u64,
}

/// Returns the runs whose output is to be removed, and why. `retained` has the newest end first; `others` is the size
/// of all other output.
pub fn due(
    retained: &[Retained],
    others: u64,
    limits: &RetentionLimits,
    now: Timestamp,
) -> Vec<(RunId, RemovalReason)> {
    let mut due = Vec::new();
    let mut counts: HashMap<&str, u32> = HashMap::new();
    let mut kept: Vec<&Retained> = Vec::new();
    for one in retained {
        let age = age(one.ended, now);
        let count = counts.entry(&one.owner).or_default();
        *count = count.saturating_add(1);
        let is_beyond = limits.runs_per_owner.is_some_and(|most| *count > most);
        // After a clock set back the age is unknown: such a run is not its owner's youngest either.
        let is_young = age.is_some_and(|age| age < limits.at_least);
        let is_old = limits
            .at_most
            .zip(age)
            .is_some_and(|(most, age)| age > most);
        if is_beyond && !is_young {
            due.push((one.run, RemovalReason::OwnerRuns));
        } else if is_old {
            due.push((one.run, RemovalReason::Age));
        } else {
            kept.push(one);
        }
    }
    let Some(most) = limits.node_bytes else {
        return due;
    };
    let mut taken = kept
        .iter()
        .fold(others, |sum, one| sum.saturating_add(one.bytes));
    while taken > most
        && let Some(oldest) = kept.pop()
    {
        taken -= oldest.bytes;
        due.push((oldest.run, RemovalReason::NodeBytes));
    }
    due
}

/// Returns the time since the end; absent where it ended after `now`, so that the clock was put back since.
fn age(ended: Timestamp, now: Timestamp) -> Option<Duration> {
    let micros = now.0.checked_sub(ended.0)?;
    u64::try_from(micros).ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    /// Runs that ended one second after each other, the newest first; their number is that of the second.
    fn ended(owner: &str, seconds: impl DoubleEndedIterator<Item = i64>) -> Vec<Retained> {
        let one = |second: i64| Retained {
            run: RunId::from_u128(u128::try_from(second).expect("a positive number")),
            owner: owner.into(),
            ended: Timestamp(second * SECOND),
            bytes: 10,
        };
        seconds.rev().map(one).collect()
    }

    fn gone(due: &[(RunId, RemovalReason)], reason: RemovalReason) -> Vec<u128> {
        let of_reason = due.iter().filter(|(_, why)| *why == reason);
        let mut runs: Vec<u128> = of_reason.map(|(run, _)| run.as_u128()).collect();
        runs.sort_unstable();
        runs
    }

    fn runs(runs: u32) -> RetentionLimits {
        RetentionLimits {
            runs_per_owner: Some(runs),
            ..RetentionLimits::NONE
        }
    }

    // promise: O-30
    #[test]
    fn newest_runs_of_each_owner_keep_their_output() {
        let mut all = ended("a", 1..=150);
        all.extend(ended("b", 200..=260));
        all.sort_by_key(|one| std::cmp::Reverse(one.ended));
        let found = due(&all, 0, &runs(100), Timestamp(1000 * SECOND));
        let oldest: Vec<u128> = (1..=50).collect();
        assert_eq!(gone(&found, RemovalReason::OwnerRuns), oldest);
        assert_eq!(found.len(), 50);
        assert!(due(&all, 0, &RetentionLimits::NONE, Timestamp(i64::MAX)).is_empty());
    }

    // promise: O-30a
    #[test]
    fn run_that_just_ended_keeps_its_output() {
        let limits = RetentionLimits {
            at_least: Duration::from_mins(1),
            ..runs(2)
        };
        let all = ended("a", 1..=100);
        let found = due(&all, 0, &limits, Timestamp(100 * SECOND));
        let old: Vec<u128> = (1..=40).collect();
        assert_eq!(gone(&found, RemovalReason::OwnerRuns), old);
        // The node's byte limit takes precedence.
        let small = RetentionLimits {
            node_bytes: Some(500),
            ..limits
        };
        let found = due(&all, 0, &small, Timestamp(100 * SECOND));
        let oldest: Vec<u128> = (41..=50).collect();
        assert_eq!(gone(&found, RemovalReason::NodeBytes), oldest);
    }

    // promise: O-30
    #[test]
    fn runs_ended_too_long_ago_are_removed() {
        let limits = RetentionLimits {
            at_most: Some(Duration::from_secs(10)),
            ..RetentionLimits::NONE
        };
        let found = due(&ended("a", 1..=20), 0, &limits, Timestamp(20 * SECOND));
        let old: Vec<u128> = (1..=9).collect();
        assert_eq!(gone(&found, RemovalReason::Age), old);
    }

    // promise: O-30b
    #[test]
    fn clock_set_back_expires_no_output() {
        let limits = RetentionLimits {
            at_least: Duration::from_hours(1),
            at_most: Some(Duration::from_hours(1)),
            ..runs(5)
        };
        let found = due(&ended("a", 1_000_000..=1_000_019), 0, &limits, Timestamp(0));
        let oldest: Vec<u128> = (1_000_000..=1_000_014).collect();
        assert_eq!(gone(&found, RemovalReason::OwnerRuns), oldest);
        assert_eq!(found.len(), 15);
        let extreme = due(&ended("a", 1..=2), 0, &limits, Timestamp(i64::MIN));
        assert!(extreme.is_empty());
    }

    // promise: K-12
    #[test]
    fn oldest_rows_beyond_owner_limit_are_removed() {
        const HOUR: Duration = Duration::from_hours(1);
        let limits = RowLimits {
            per_owner: Some(3),
            at_least: 2 * HOUR,
            ..RowLimits::NONE
        };
        let mut walk = RowWalk::default();
        // Owner "a": six rows, the oldest needed, the youngest two just ended. Owner "b": three.
        let mut walked = |rows: &[(u32, &'static str)]| {
            let due = rows
                .iter()
                .filter(|(age, owner)| walk.is_due(owner, *age * HOUR, *age != 9, &limits));
            let due: Vec<_> = due.copied().collect();
            (due, walk.end(&limits))
        };
        let all = [
            (9, "a"),
            (8, "a"),
            (8, "b"),
            (7, "a"),
            (7, "b"),
            (2, "a"),
            (1, "a"),
            (1, "b"),
            (0, "a"),
        ];
        assert_eq!(walked(&all), (vec![], 9), "the first counts");
        assert_eq!(walked(&all), (vec![(8, "a"), (7, "a")], 7));
        let left = [
            (9, "a"),
            (8, "b"),
            (7, "b"),
            (2, "a"),
            (1, "a"),
            (1, "b"),
            (0, "a"),
        ];
        assert_eq!(walked(&left), (vec![], 7));
    }

    // promise: K-12
    #[test]
    fn rows_past_maximum_age_are_removed() {
        const HOUR: Duration = Duration::from_hours(1);
        let limits = RowLimits {
            at_most: Some(5 * HOUR),
            ..RowLimits::NONE
        };
        let mut walk = RowWalk::default();
        let due = [(9, true), (8, false), (6, true), (5, true), (0, true)];
        let due = due.map(|(age, is_free)| walk.is_due("a", age * HOUR, is_free, &limits));
        assert_eq!(due, [true, false, true, false, false]);
        assert_eq!(walk.end(&limits), 3);
    }

    // promise: O-30
    #[test]
    fn node_byte_limit_removes_oldest_ended_runs() {
        let limits = RetentionLimits {
            node_bytes: Some(100),
            ..RetentionLimits::NONE
        };
        let all = ended("a", 1..=10);
        let now = Timestamp(0);
        assert!(due(&all, 0, &limits, now).is_empty(), "just full");
        let found = due(&all, 25, &limits, now);
        assert_eq!(gone(&found, RemovalReason::NodeBytes), [1, 2, 3]);
        // Live runs take more than the limit, and lose nothing.
        let found = due(&all, 1000, &limits, now);
        assert_eq!(found.len(), 10);
    }
}
