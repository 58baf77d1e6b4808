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

/// Attribute for the containment of a run.
pub(super) fn containment(by: Containment) -> KeyValue {
    KeyValue::new(names::CONTAINMENT, by.name())
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

/// Declares the instruments: counters with their unit, durations in seconds with the bounds of their buckets.
macro_rules! instruments {
    (
        $(counter $of_counter:vis $counter:ident: $count:literal, $unit:literal, $counts:literal;)+
        $(duration $of_duration:vis $duration:ident: $time:literal, $bounds:ident, $times:literal;)+
    ) => {
        /// The instruments.
        #[derive(Debug)]
        pub(crate) struct Metrics {
            $($of_counter $counter: Counter<u64>,)+
            $($of_duration $duration: Histogram<f64>,)+
            output: [(Counter<u64>, KeyValue); 2],
            pub(crate) orphans: Orphans,
        }

        impl Metrics {
            pub(super) fn new(meter: &Meter) -> Self {
                let metrics = Self {
                    $($counter: meter
                        .u64_counter($count)
                        .with_unit($unit)
                        .with_description($counts)
                        .build(),)+
                    $($duration: meter
                        .f64_histogram($time)
                        .with_unit("s")
                        .with_description($times)
                        .with_boundaries($bounds.to_vec())
                        .build(),)+
                    output: outputs(meter),
                    orphans: Orphans::new(meter),
                };
                metrics.begin_at_zero();
                metrics
            }
        }
    };
}

instruments! {
    counter pub(crate) started: "kennel.run.started", "{run}",
        "Commands whose start was confirmed, each attempt";
    counter pub(crate) ended: "kennel.run.ended", "{run}",
        "Ended runs";
    counter pub(crate) leftovers: "kennel.tree.leftovers", "{process}",
        "Processes alive after their run's command exited by itself";
    counter escapes: "kennel.tree.escapes", "{process}",
        "Processes of live runs that a leak check found outside of group and session of their leader";
    counter pub(crate) unverified: "kennel.tree.unverified", "{run}",
        "Runs that ended without a proof that their tree is empty";
    counter pub(crate) memory_kills: "kennel.oom.kills", "{process}",
        "Processes of runs that the kernel killed for lack of memory";
    counter pub(crate) restarts: "kennel.run.restarts", "{run}",
        "Attempts that were followed by another one";
    counter recovered: "kennel.recovery.runs", "{run}",
        "Recovered runs of an earlier server";
    counter dropped: "kennel.output.dropped", "By",
        "Output reported as missing, to each reader";
    counter gaps: "kennel.output.gaps", "{gap}",
        "Gaps reported to readers";
    counter removed_rows: "kennel.rows.removed", "{row}",
        "Rows of ended runs that were removed";
    duration pub(crate) duration: "kennel.run.duration", LONG,
        "Time from the confirmed start of a run's last attempt to its end";
    duration pub(crate) ready: "kennel.run.ready.duration", PATIENT,
        "Time from the confirmed start of an attempt until it is ready";
    duration spawn: "kennel.spawn.duration", QUICK,
        "Duration of the phases of a start: prepare, commit, exec";
    duration pub(crate) stop: "kennel.stop.duration", PATIENT,
        "Time from the beginning of a stop to the verdict on the tree";
    duration recovery: "kennel.recovery.duration", PATIENT,
        "Time from the start of a server to the recovery of all runs";
    duration store: "kennel.store.operation.duration", QUICK,
        "Duration of database operations, as their callers see them";
}

impl Metrics {
    /// Initialises counters at 0, so that the first event is a rise on which an alert can fire.
    fn begin_at_zero(&self) {
        for counter in [
            &self.leftovers,
            &self.escapes,
            &self.unverified,
            &self.memory_kills,
            &self.restarts,
            &self.removed_rows,
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

    pub(crate) fn spawn_phase(&self, phase: &'static str, took: Duration) {
        let attributes = [KeyValue::new(names::SPAWN_PHASE, phase)];
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

    pub(crate) fn removed_rows(&self, count: usize) {
        self.removed_rows.add(count as u64, &[]);
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
