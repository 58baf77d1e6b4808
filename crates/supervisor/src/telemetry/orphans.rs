//! Metrics of processes of ended runs: how many were found, and how many ended, by evidence.

use super::names;
use kennel_lifecycle::audit::Evidence;
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};

/// Label of processes that a start has found alive, by their record.
const RECOVERY: &str = "recovery";

/// Whether a process with this evidence is an orphan: a detached one was to be left running, a zombie has exited.
fn is_orphan(evidence: Evidence) -> bool {
    !matches!(evidence, Evidence::Kept | Evidence::Zombie)
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
            let orphans = Evidence::ALL
                .iter()
                .filter(|evidence| is_orphan(**evidence));
            for label in orphans.map(|evidence| evidence.name()).chain([RECOVERY]) {
                counter.add(0, &[KeyValue::new(names::EVIDENCE, label)]);
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
        if is_orphan(evidence) {
            let label = KeyValue::new(names::EVIDENCE, evidence.name());
            self.found.add(1, &[label]);
        }
    }

    /// Counts a process that a reap has ended.
    pub(crate) fn reaped(&self, evidence: Evidence) {
        // A detached process that the caller named was not an orphan.
        if is_orphan(evidence) {
            let label = KeyValue::new(names::EVIDENCE, evidence.name());
            self.reaped.add(1, &[label]);
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
