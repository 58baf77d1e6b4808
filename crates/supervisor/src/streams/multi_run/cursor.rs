//! Position of a multi-run stream: the runs that were given, and the positions in those that were not completely given.

use crate::base::calls::Reached;
use kennel_journal::Tail;
use kennel_lifecycle::RunId;
use kennel_store::Age;
use std::collections::BTreeMap;

/// Stretches of given runs that stay separate before they are joined, though further runs might yet be found between
/// them.
const STRETCHES_MAX: usize = 256;

/// Position up to which the events of many runs were given. Its size grows with the runs that have not ended, not with
/// those that have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManyReached {
    /// Ranges of ages, both ends included, of runs that were completely given except for the open ones; rising, and disjoint.
    pub given: Vec<(Age, Age)>,
    /// Runs that were not completely given, and the position in each.
    pub open: BTreeMap<RunId, Reached>,
    /// Runs up to this age that are not open begin with a tail.
    pub tail: Option<(Tail, Age)>,
}

impl ManyReached {
    /// Returns its approximate encoded size in bytes.
    pub fn size(&self) -> usize {
        64 + 16 * self.given.len() + 40 * self.open.len()
    }

    /// Whether the run of this age was given, if it is not open.
    pub(crate) fn covers(&self, age: Age) -> bool {
        let after = self.given.partition_point(|(_, last)| *last < age);
        self.given
            .get(after)
            .is_some_and(|(first, _)| *first <= age)
    }

    /// Returns the age up to which, from the oldest on, all runs are known.
    pub(crate) fn known_until(&self) -> Option<Age> {
        let (first, last) = self.given.first()?;
        (*first == Age::NONE).then_some(*last)
    }

    /// Adds a given run.
    pub(crate) fn add(&mut self, age: Age) {
        if !self.covers(age) {
            let at = self.given.partition_point(|(_, last)| *last < age);
            self.given.insert(at, (age, age));
        }
    }

    /// Records that all runs up to this age are given or open.
    pub(crate) fn settle(&mut self, until: Age) {
        self.merge(Age::NONE, until);
    }

    /// Records that all runs between these ages are given or open, except for those in a separate stretch.
    pub(crate) fn join(&mut self, after: Age, until: Age) {
        let within = |(first, last): &&(Age, Age)| *first > after && *last <= until;
        let mut joined = self.given.iter().filter(within);
        let bounds = joined.next().map(|(first, last)| {
            let last = joined.next_back().map_or(*last, |(_, last)| *last);
            (*first, last)
        });
        if let Some((first, last)) = bounds {
            self.merge(first, last);
        }
        if self.given.len() > STRETCHES_MAX {
            let within = |(first, _): &&(Age, Age)| *first > after;
            let firsts: Vec<_> = self.given.iter().filter(within).copied().collect();
            if let [(first, _), .., (_, last)] = firsts[..firsts.len() / 2] {
                self.merge(first, last);
            }
        }
    }

    fn merge(&mut self, first: Age, last: Age) {
        let (mut first, mut last) = (first, last);
        self.given.retain(|(begin, end)| {
            let is_apart = *end < first || *begin > last;
            if !is_apart {
                first = first.min(*begin);
                last = last.max(*end);
            }
            is_apart
        });
        let at = self.given.partition_point(|(_, end)| *end < first);
        self.given.insert(at, (first, last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn age(number: u8) -> Age {
        Age(i64::from(number))
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8),
        Settle(u8),
        Join(u8, u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            any::<u8>().prop_map(Step::Add),
            any::<u8>().prop_map(Step::Settle),
            (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Step::Join(a, b)),
        ];
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        // promise: O-24
        #[test]
        fn read_ranges_stay_read_and_disjoint(steps in steps()) {
            let mut reached = ManyReached::default();
            let mut given = [false; 256];
            for step in steps {
                match step {
                    Step::Add(at) => {
                        reached.add(age(at));
                        given[usize::from(at)] = true;
                    }
                    Step::Settle(until) => {
                        reached.settle(age(until));
                        given[..=usize::from(until)].fill(true);
                    }
                    Step::Join(after, until) => {
                        let before = reached.clone();
                        reached.join(age(after), age(until));
                        for at in 0..=255u8 {
                            let (was, is) = (before.covers(age(at)), reached.covers(age(at)));
                            prop_assert!(was == is || (is && at > after && at < until));
                            given[usize::from(at)] |= is;
                        }
                    }
                }
                for at in 0..=255u8 {
                    prop_assert_eq!(reached.covers(age(at)), given[usize::from(at)]);
                }
                for pair in reached.given.windows(2) {
                    prop_assert!(pair[0].1 < pair[1].0);
                }
                for (first, last) in &reached.given {
                    prop_assert!(first <= last);
                }
            }
        }
    }
}
