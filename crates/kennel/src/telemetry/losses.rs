//! Counters of exported and lost items, and the bound of waiting ones.

use kennel_supervisor::telemetry::names;
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};
use opentelemetry_sdk::error::OTelSdkResult;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

/// Counts exported and lost items.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses(Arc<OnceLock<[Counter<u64>; 2]>>);

impl Losses {
    pub(super) fn register(&self, meter: &Meter) {
        let counter = |name: &'static str, what: &'static str| {
            meter.u64_counter(name).with_description(what).build()
        };
        let counters = [
            counter(
                "kennel.telemetry.exported",
                "Spans, log records and batches of metrics delivered to a collector",
            ),
            counter(
                "kennel.telemetry.dropped",
                "Spans, log records, batches of metrics and lines of standard error that were lost",
            ),
        ];
        for signal in ["traces", "metrics", "logs", "audit"] {
            counters[0].add(0, &[KeyValue::new(names::SIGNAL, signal)]);
        }
        for (signal, reason) in [
            ("traces", "queue_full"),
            ("traces", "not_taken"),
            ("logs", "queue_full"),
            ("logs", "not_taken"),
            ("metrics", "not_taken"),
            ("audit", "removed"),
            ("stderr", "queue_full"),
            ("stderr", "not_taken"),
        ] {
            counters[1].add(0, &attributes(signal, reason));
        }
        // The counters are registered once, at the start.
        let _ = self.0.set(counters);
    }

    /// Counts so many items as sent, or as lost.
    pub(super) fn sent(&self, signal: &'static str, count: usize, how: &OTelSdkResult) {
        let Some([exported, dropped]) = self.0.get() else {
            return;
        };
        match how {
            Ok(()) => exported.add(count as u64, &[KeyValue::new(names::SIGNAL, signal)]),
            Err(error) => {
                tracing::debug!(signal, %error, count, "telemetry is lost");
                dropped.add(count as u64, &attributes(signal, "not_taken"));
            }
        }
    }

    /// Counts so many items as lost.
    pub(super) fn lost(&self, signal: &'static str, reason: &'static str, count: u64) {
        if let Some([_, dropped]) = self.0.get() {
            dropped.add(count, &attributes(signal, reason));
        }
    }
}

fn attributes(signal: &'static str, reason: &'static str) -> [KeyValue; 2] {
    [
        KeyValue::new(names::SIGNAL, signal),
        KeyValue::new(names::DROP_REASON, reason),
    ]
}

/// Bound of the items that wait to be sent. Those beyond it are refused here, where they are counted.
#[derive(Clone, Debug)]
pub(super) struct Room {
    signal: &'static str,
    /// Number of accepted items that are neither sent nor lost.
    waiting: Arc<AtomicUsize>,
    max: usize,
    losses: Losses,
}

impl Room {
    pub(super) fn new(signal: &'static str, max: usize, losses: Losses) -> Self {
        Self {
            signal,
            waiting: Arc::default(),
            max,
            losses,
        }
    }

    /// Returns the size of the queue behind it: more than are ever accepted.
    pub(super) fn queue(&self) -> usize {
        self.max.saturating_mul(2)
    }

    /// Whether one more may wait.
    pub(super) fn enter(&self) -> bool {
        let enters = self.waiting.fetch_add(1, Ordering::Relaxed) < self.max;
        if !enters {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.losses.lost(self.signal, "queue_full", 1);
        }
        enters
    }

    /// Records that so many do not wait any more.
    pub(super) fn leave(&self, count: usize, how: &OTelSdkResult) {
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        self.sent(count, how);
    }

    /// Counts so many as sent, or as lost.
    pub(super) fn sent(&self, count: usize, how: &OTelSdkResult) {
        self.losses.sent(self.signal, count, how);
    }
}
