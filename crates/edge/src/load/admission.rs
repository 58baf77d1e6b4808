//! Admission: counters of refused spawns, by reason, and of open streams of events.

use crate::{limits::STREAMS_MAX, reason::Reason};
use kennel_supervisor::telemetry::{Telemetry, names};
use opentelemetry::{KeyValue, metrics::Counter};
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic_types::StatusExt;

/// Refusals with a cause in this node and not in the request alone.
const NOT_ADMITTED: [Reason; 7] = [
    Reason::QuotaExceeded,
    Reason::NodeDraining,
    Reason::StoreUnavailable,
    Reason::PtyExhausted,
    Reason::PtyUnavailable,
    Reason::CapabilityMissing,
    Reason::ContainmentUnavailable,
];

/// Counts refused spawns.
#[derive(Debug)]
pub(crate) struct Admission {
    rejected: Counter<u64>,
}

impl Admission {
    pub(crate) fn new(telemetry: &Telemetry) -> Self {
        let rejected = telemetry
            .meter()
            .u64_counter("kennel.admission.rejected")
            .with_unit("{run}")
            .with_description("Spawns refused because of limits or the state of this node")
            .build();
        // A counter begins at 0: the first event is a rise on which an alert can fire.
        for reason in NOT_ADMITTED {
            rejected.add(0, &[attribute(reason)]);
        }
        Self { rejected }
    }

    /// Counts the refusal of a spawn.
    pub(crate) fn refused(&self, status: &Status) {
        let info = status.get_details_error_info();
        let given = |reason: &Reason| info.as_ref().is_some_and(|i| i.reason == reason.as_str());
        if let Some(reason) = NOT_ADMITTED.into_iter().find(given) {
            self.rejected.add(1, &[attribute(reason)]);
        }
    }
}

fn attribute(reason: Reason) -> KeyValue {
    KeyValue::new(names::REASON, reason.as_str())
}

/// Measures how many of these slots are taken.
pub(crate) fn measure_streams(telemetry: &Telemetry, places: &Arc<Semaphore>) {
    let places: Weak<Semaphore> = Arc::downgrade(places);
    telemetry
        .meter()
        .u64_observable_gauge("kennel.subscriber.active")
        .with_unit("{subscriber}")
        .with_description("Open streams of events")
        .with_callback(move |observer| {
            if let Some(places) = places.upgrade() {
                let taken = STREAMS_MAX.saturating_sub(places.available_permits());
                observer.observe(taken as u64, &[]);
            }
        })
        .build();
}
