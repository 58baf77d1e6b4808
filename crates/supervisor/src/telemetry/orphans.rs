//! Metrics of processes of ended runs: how many were found, and how many ended, by evidence.

use super::names;
use kennel_lifecycle::audit::Evidence;
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};

/// Label of processes that a start has found alive, by their record.
const RECOVERY: &str = "recovery";
/// All labels.
const EVIDENCES: [&str; 7] = [
    "leaked_cgroup",
    "shim",
    "shim_child",
    "recorded_group",
    "marker",
    "stray",
    RECOVERY,
];

/// Returns the label of an evidence. `None`: the process is no orphan.
fn word(evidence: Evidence) -> Option<&'static str> {
    Some(match evidence {
        Evidence::LeakedCgroup => EVIDENCES[0],
        Evidence::Shim => EVIDENCES[1],
        Evidence::ShimChild => EVIDENCES[2],
        Evidence::RecordedGroup => EVIDENCES[3],
        Evidence::Marker => EVIDENCES[4],
        Evidence::Stray => EVIDENCES[5],
        // One was to be left running; the other has exited.
        Evidence::Kept | Evidence::Zombie => return None,
    })
}

/// The instruments.
#[derive(Debug)]
pub(crate) struct Orphans {
    found: Counter<u64>,
    reaped: Counter<u64>,
}

impl Orphans {
    pub(super) fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, what: &'static str| {
            let counter = meter.u64_counter(name).with_unit("{process}");
            let counter = counter.with_description(what).build();
            for evidence in EVIDENCES {
                counter.add(0, &[KeyValue::new(names::EVIDENCE, evidence)]);
            }
            counter
        };
        Self {
            found: counter(
                "kennel.orphan.found",
                "Processes of runs that are over which an audit or a start has found",
            ),
            reaped: counter(
                "kennel.orphan.reaped",
                "Processes of runs that are over which a reap or a start has ended",
            ),
        }
    }

    /// Counts a process that a leak check has found, and the one before had not.
    pub(crate) fn found(&self, evidence: Evidence) {
        if let Some(word) = word(evidence) {
            self.found.add(1, &[KeyValue::new(names::EVIDENCE, word)]);
        }
    }

    /// Counts a process that a reap has ended.
    pub(crate) fn reaped(&self, evidence: Evidence) {
        // Also a detached one that the caller named; that was no orphan.
        if let Some(word) = word(evidence) {
            self.reaped.add(1, &[KeyValue::new(names::EVIDENCE, word)]);
        }
    }

    /// Counts so many processes of a run that a start has found alive, and whether they have ended.
    pub(crate) fn recovered(&self, count: u64, have_ended: bool) {
        let attributes = [KeyValue::new(names::EVIDENCE, RECOVERY)];
        self.found.add(count, &attributes);
        if have_ended {
            self.reaped.add(count, &attributes);
        }
    }
}
