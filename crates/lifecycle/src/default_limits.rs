//! Limits of runs whose spec has none.

use crate::{LimitPowers, RunKind, RunLimits};
use std::collections::BTreeSet;

/// The limits that a node gives: those of each kind that is named, and those of all kinds. Each is one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultLimits(Vec<(Option<RunKind>, RunLimits)>);

/// A limit that no node can give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefaultLimitsError {
    /// Two values of one limit.
    #[error("{0} is given twice")]
    Twice(String),
    /// A value that a spec may not have either.
    #[error("{name} {what}")]
    Unfit {
        /// Name of the limit.
        name: String,
        /// Description of its valid values.
        what: String,
    },
}

impl DefaultLimits {
    /// Adds a limit of runs of this kind; without a kind, of runs of all kinds that have none of their own.
    ///
    /// # Errors
    ///
    /// The value is none that a spec may have, or there is another for the same runs.
    pub fn add(
        &mut self,
        kind: Option<RunKind>,
        limit: &RunLimits,
    ) -> Result<(), DefaultLimitsError> {
        let name = || RunLimits::default().fill(limit).concat();
        if let Some(violation) = limit.violation() {
            return Err(DefaultLimitsError::Unfit {
                name: name(),
                what: violation.description,
            });
        }
        let at = self.0.iter().position(|(other, _)| *other == kind);
        let at = at.unwrap_or_else(|| {
            self.0.push((kind, RunLimits::default()));
            self.0.len() - 1
        });
        if self.0[at].1.fill(limit).is_empty() {
            return Err(DefaultLimitsError::Twice(name()));
        }
        Ok(())
    }

    /// Returns the limits of runs of this kind.
    pub fn of(&self, kind: RunKind) -> RunLimits {
        let mut limits = RunLimits::default();
        for wanted in [Some(kind), None] {
            for (_, node) in self.0.iter().filter(|(kind, _)| *kind == wanted) {
                limits.fill(node);
            }
        }
        limits
    }

    /// Returns what a keeper with these powers lacks to set all of them.
    pub fn missing(&self, powers: &LimitPowers) -> Vec<String> {
        let all = self.0.iter().flat_map(|(_, node)| node.missing(powers));
        let all: BTreeSet<String> = all.map(|missing| missing.capability).collect();
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Knob, Policy, Resource, Rlimit};

    fn pids(most: u64) -> RunLimits {
        RunLimits {
            pids_max: Some(most),
            ..RunLimits::default()
        }
    }

    fn open_files(soft: u64, hard: u64) -> RunLimits {
        let resource = Resource::OpenFiles;
        RunLimits {
            rlimits: vec![Rlimit {
                resource,
                soft,
                hard,
            }],
            ..RunLimits::default()
        }
    }

    fn memory(max: Option<u64>, high: Option<u64>) -> RunLimits {
        RunLimits {
            memory_max: max.map(|mib| mib << 20),
            memory_high: high.map(|mib| mib << 20),
            ..RunLimits::default()
        }
    }

    // promise: L-2b
    #[test]
    fn limit_of_spec_overrides_kind_and_node() {
        let mut node = DefaultLimits::default();
        for (kind, limit) in [
            (None, pids(100)),
            (None, open_files(1024, 4096)),
            (Some(RunKind::Terminal), pids(50)),
        ] {
            assert_eq!(node.add(kind, &limit), Ok(()));
        }
        assert_eq!(node.of(RunKind::Job).pids_max, Some(100));
        assert_eq!(node.of(RunKind::Terminal).pids_max, Some(50));
        let mut policy = Policy {
            limits: pids(7),
            ..Policy::default()
        };
        assert_eq!(policy.fill_limits(&node), ["nofile"]);
        assert_eq!(policy.limits.pids_max, Some(7));
        assert_eq!(policy.limits.rlimits, open_files(1024, 4096).rlimits);
        assert_eq!(policy.fill_limits(&node), Vec::<String>::new(), "again");
    }

    // promise: L-2e
    #[test]
    fn node_limit_conflicting_with_spec_is_skipped() {
        let mut node = DefaultLimits::default();
        node.add(None, &memory(Some(100), None)).expect("a limit");
        node.add(None, &memory(None, Some(80))).expect("a limit");
        for (own, given, filled) in [
            (
                memory(None, None),
                vec!["memory-max", "memory-high"],
                (100, 80),
            ),
            (memory(Some(200), None), vec!["memory-high"], (200, 80)),
            (memory(Some(50), None), vec![], (50, 0)),
            (memory(None, Some(300)), vec![], (0, 300)),
        ] {
            let mut policy = Policy {
                limits: own,
                ..Policy::default()
            };
            assert_eq!(policy.fill_limits(&node), given);
            let (max, high) = filled;
            let some = |mib| Some(mib).filter(|mib| *mib > 0);
            assert_eq!(policy.limits, memory(some(max), some(high)));
        }
    }

    #[test]
    fn duplicate_and_invalid_limits_are_refused() {
        let mut node = DefaultLimits::default();
        node.add(None, &pids(100)).expect("a limit");
        let job = Some(RunKind::Job);
        node.add(job, &pids(200)).expect("a limit");
        let twice = |limit| DefaultLimits::add(&mut node.clone(), job, &limit);
        let named = "pids-max".to_owned();
        assert_eq!(twice(pids(200)), Err(DefaultLimitsError::Twice(named)));
        for (limit, text) in [
            (pids(0), "pids-max must be 1 to 4194304"),
            (
                open_files(2, 1),
                "nofile the soft limit of RLIMIT_NOFILE must be at most the hard one",
            ),
        ] {
            let error = node.add(None, &limit).expect_err("no such limit");
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn missing_limit_capability_is_reported_once() {
        let mut node = DefaultLimits::default();
        node.add(None, &open_files(1024, 4096)).expect("a limit");
        node.add(None, &pids(100)).expect("a limit");
        node.add(Some(RunKind::Job), &pids(50)).expect("a limit");
        let mut powers = LimitPowers {
            hard_max: vec![(Resource::OpenFiles, 4096)],
            nice_min: 0,
            oom_score_adj_min: None,
            knobs: Ok(vec![Knob::PidsMax]),
        };
        assert_eq!(node.missing(&powers), Vec::<String>::new());
        powers.hard_max[0].1 = 4095;
        powers.knobs = Err("none".to_owned());
        let missing = [
            "a control group for each run: none",
            "a hard limit of RLIMIT_NOFILE above 4095",
        ];
        assert_eq!(node.missing(&powers), missing);
    }
}
