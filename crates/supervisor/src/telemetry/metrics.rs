//! Metrics. No attribute names a run, a process or a command: those belong to spans and logs.

use super::{names, orphans::Orphans};
use kennel_journal::{Gap, GapReason};
use kennel_lifecycle::Containment;
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Histogram, Meter},
};
use std::time::Duration;

/// Bucket bounds for durations of milliseconds, in seconds.
const QUICK: [f64; 14] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];
/// Bucket bounds for durations up to a grace period, in seconds.
const PATIENT: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];
/// Bucket bounds for durations up to days, in seconds.
const LONG: [f64; 12] = [
    0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0, 259_200.0, 604_800.0,
];

/// Actions of recovery.
const RECOVERY_ACTIONS: [&str; 4] = ["adopted", "killed", "already_gone", "unverified"];
/// Reasons for missing output.
const DROP_REASONS: [&str; 6] = [
    "bound",
    "full_disk",
    "retention",
    "host_lost",
    "damaged",
    "other_node",
];

/// A part of a start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpawnPhase {
    Prepare,
    Commit,
    Exec,
}

impl SpawnPhase {
    fn word(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Commit => "commit",
            Self::Exec => "exec",
        }
    }
}

/// Attribute for the containment of a run.
pub(super) fn containment(by: Containment) -> KeyValue {
    KeyValue::new(names::CONTAINMENT, by.name())
}

/// The instruments.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) started: Counter<u64>,
    pub(crate) ended: Counter<u64>,
    pub(crate) duration: Histogram<f64>,
    pub(crate) ready: Histogram<f64>,
    spawn: Histogram<f64>,
    pub(crate) stop: Histogram<f64>,
    pub(crate) leftovers: Counter<u64>,
    escapes: Counter<u64>,
    pub(crate) unverified: Counter<u64>,
    pub(crate) memory_kills: Counter<u64>,
    pub(crate) restarts: Counter<u64>,
    recovered: Counter<u64>,
    recovery: Histogram<f64>,
    output: [(Counter<u64>, KeyValue); 2],
    dropped: Counter<u64>,
    gaps: Counter<u64>,
    store: Histogram<f64>,
    pub(crate) orphans: Orphans,
}

/// Counters of the bytes read from standard output and from standard error.
fn outputs(meter: &Meter) -> [(Counter<u64>, KeyValue); 2] {
    let read = meter
        .u64_counter("kennel.output.io")
        .with_unit("By")
        .with_description("Output read from commands into journals")
        .build();
    ["stdout", "stderr"].map(|stream| (read.clone(), KeyValue::new(names::STREAM, stream)))
}

impl Metrics {
    pub(super) fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, unit: &'static str, what: &'static str| {
            meter
                .u64_counter(name)
                .with_unit(unit)
                .with_description(what)
                .build()
        };
        let seconds = |name: &'static str, bounds: &[f64], what: &'static str| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(what)
                .with_boundaries(bounds.to_vec())
                .build()
        };
        let metrics = Self {
            started: counter(
                "kennel.run.started",
                "{run}",
                "Commands whose start was confirmed, each attempt",
            ),
            ended: counter("kennel.run.ended", "{run}", "Ended runs"),
            duration: seconds(
                "kennel.run.duration",
                &LONG,
                "Time from the confirmed start of a run's last attempt to its end",
            ),
            ready: seconds(
                "kennel.run.ready.duration",
                &PATIENT,
                "Time from the confirmed start of an attempt until it is ready",
            ),
            spawn: seconds(
                "kennel.spawn.duration",
                &QUICK,
                "Duration of the phases of a start: prepare, commit, exec",
            ),
            stop: seconds(
                "kennel.stop.duration",
                &PATIENT,
                "Time from the beginning of a stop to the verdict on the tree",
            ),
            leftovers: counter(
                "kennel.tree.leftovers",
                "{process}",
                "Processes alive after their run's command exited by itself",
            ),
            escapes: counter(
                "kennel.tree.escapes",
                "{process}",
                "Processes of live runs that a leak check found outside of group and session of their leader",
            ),
            unverified: counter(
                "kennel.tree.unverified",
                "{run}",
                "Runs that ended without a proof that their tree is empty",
            ),
            memory_kills: counter(
                "kennel.oom.kills",
                "{process}",
                "Processes of runs that the kernel killed for lack of memory",
            ),
            restarts: counter(
                "kennel.run.restarts",
                "{run}",
                "Attempts that were followed by another one",
            ),
            recovered: counter(
                "kennel.recovery.runs",
                "{run}",
                "Recovered runs of an earlier server",
            ),
            recovery: seconds(
                "kennel.recovery.duration",
                &PATIENT,
                "Time from the start of a server to the recovery of all runs",
            ),
            output: outputs(meter),
            dropped: counter(
                "kennel.output.dropped",
                "By",
                "Output reported as missing, to each reader",
            ),
            gaps: counter("kennel.output.gaps", "{gap}", "Gaps reported to readers"),
            store: seconds(
                "kennel.store.operation.duration",
                &QUICK,
                "Duration of database operations, as their callers see them",
            ),
            orphans: Orphans::new(meter),
        };
        metrics.begin_at_zero();
        metrics
    }

    /// Initialises counters at 0, so that the first event is a rise on which an alert can fire.
    fn begin_at_zero(&self) {
        for counter in [
            &self.leftovers,
            &self.escapes,
            &self.unverified,
            &self.memory_kills,
            &self.restarts,
        ] {
            counter.add(0, &[]);
        }
        for action in RECOVERY_ACTIONS {
            self.recovered
                .add(0, &[KeyValue::new(names::RECOVERY_ACTION, action)]);
        }
        for reason in DROP_REASONS {
            let attributes = [KeyValue::new(names::DROP_REASON, reason)];
            self.gaps.add(0, &attributes);
            self.dropped.add(0, &attributes);
        }
    }

    pub(crate) fn spawn_phase(&self, phase: SpawnPhase, took: Duration) {
        let attributes = [KeyValue::new(names::SPAWN_PHASE, phase.word())];
        self.spawn.record(took.as_secs_f64(), &attributes);
    }

    /// `stream` is 0 for standard output, 1 for standard error.
    pub(crate) fn output(&self, stream: usize, bytes: u64) {
        if let Some((counter, attribute)) = self.output.get(stream) {
            counter.add(bytes, std::slice::from_ref(attribute));
        }
    }

    /// Counts a gap that is given to a reader.
    pub(crate) fn gap(&self, gap: &Gap) {
        let reason = match gap.reason {
            GapReason::Bound => DROP_REASONS[0],
            GapReason::FullDisk => DROP_REASONS[1],
            GapReason::Retention => DROP_REASONS[2],
            GapReason::HostLost => DROP_REASONS[3],
            GapReason::Damaged => DROP_REASONS[4],
            GapReason::OtherNode => DROP_REASONS[5],
        };
        let attributes = [KeyValue::new(names::DROP_REASON, reason)];
        self.gaps.add(1, &attributes);
        let bytes = gap.bytes.iter().flatten().sum();
        self.dropped.add(bytes, &attributes);
    }

    /// Counts an escaped process of a run with this containment, which the leak check before had not found.
    pub(crate) fn escaped(&self, by: Option<Containment>) {
        let attribute = by.map(containment);
        self.escapes.add(1, attribute.as_slice());
    }

    pub(crate) fn recovered(&self, action: &'static str) {
        self.recovered
            .add(1, &[KeyValue::new(names::RECOVERY_ACTION, action)]);
    }

    pub(crate) fn recovery(&self, took: Duration) {
        self.recovery.record(took.as_secs_f64(), &[]);
    }

    pub(crate) fn store(
        &self,
        operation: &'static str,
        took: Duration,
        error: Option<&'static str>,
    ) {
        let mut attributes = vec![KeyValue::new(names::STORE_OPERATION, operation)];
        attributes.extend(error.map(|error| KeyValue::new(names::ERROR_TYPE, error)));
        self.store.record(took.as_secs_f64(), &attributes);
    }
}
