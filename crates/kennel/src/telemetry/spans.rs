//! Spans on their way to a collector, and what becomes of them.

use super::{Inside, TelemetryConfig, scope};
use kennel_lifecycle::Timestamp;
use kennel_supervisor::telemetry::{Span, SpanSink, names};
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanExporter as Exporter,
        SpanLinks, SpanProcessor,
    },
};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::runtime::Handle;

/// Counts what was told and what was not.
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
                "Spans and batches of metrics that a collector has taken",
            ),
            counter(
                "kennel.telemetry.dropped",
                "Spans and batches of metrics that no collector has got",
            ),
        ];
        for signal in ["traces", "metrics"] {
            counters[0].add(0, &[KeyValue::new(names::SIGNAL, signal)]);
        }
        for (signal, reason) in [
            ("traces", "queue_full"),
            ("traces", "not_taken"),
            ("metrics", "not_taken"),
        ] {
            let attributes = [
                KeyValue::new(names::SIGNAL, signal),
                KeyValue::new(names::DROP_REASON, reason),
            ];
            counters[1].add(0, &attributes);
        }
        // Registered once, at the start.
        let _ = self.0.set(counters);
    }

    fn exported(&self, signal: &'static str, count: usize) {
        if let Some([exported, _]) = self.0.get() {
            exported.add(count as u64, &[KeyValue::new(names::SIGNAL, signal)]);
        }
    }

    fn dropped(&self, signal: &'static str, reason: &'static str, count: usize) {
        if let Some([_, dropped]) = self.0.get() {
            let attributes = [
                KeyValue::new(names::SIGNAL, signal),
                KeyValue::new(names::DROP_REASON, reason),
            ];
            dropped.add(count as u64, &attributes);
        }
    }
}

/// Takes spans and sends them in batches.
#[derive(Debug)]
pub(super) struct Pipeline {
    processor: BatchSpanProcessor,
    /// Spans that were taken and are neither sent nor lost.
    waiting: Arc<AtomicUsize>,
    waiting_max: usize,
    losses: Losses,
}

impl Pipeline {
    pub(super) fn new(
        exporter: SpanExporter,
        runtime: &Handle,
        resource: &Resource,
        config: &TelemetryConfig,
        losses: Losses,
    ) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        let exporter = Counting {
            inner: exporter,
            runtime: runtime.clone(),
            waiting: Arc::clone(&waiting),
            losses: losses.clone(),
        };
        // What is too much is refused here, where it is counted: the processor's own queue is never full.
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(config.spans_waiting_max.saturating_mul(2))
            .with_scheduled_delay(config.spans_every)
            .build();
        let mut processor = BatchSpanProcessor::builder(exporter)
            .with_batch_config(batches)
            .build();
        processor.set_resource(resource);
        Self {
            processor,
            waiting,
            waiting_max: config.spans_waiting_max,
            losses,
        }
    }

    pub(super) fn shut_down(&self, most: Duration) {
        // What it says is logged by nobody any more.
        let _ = self.processor.shutdown_with_timeout(most);
    }
}

impl SpanSink for Pipeline {
    fn take(&self, span: Span) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.waiting_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.losses.dropped("traces", "queue_full", 1);
            return;
        }
        self.processor.on_end(data(span));
    }
}

fn data(span: Span) -> SpanData {
    let mut links = SpanLinks::default();
    links.links = span.links;
    SpanData {
        span_context: span.context,
        parent_span_id: span.parent,
        parent_span_is_remote: span.parent_is_remote,
        span_kind: span.kind,
        name: span.name,
        start_time: system_time(span.start),
        end_time: system_time(span.end),
        attributes: span.attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links,
        status: span.status,
        instrumentation_scope: scope(),
    }
}

fn system_time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(at.0).unwrap_or(0))
}

/// Sends inside of the runtime of the exporters, and counts.
#[derive(Debug)]
struct Counting {
    inner: SpanExporter,
    runtime: Handle,
    waiting: Arc<AtomicUsize>,
    losses: Losses,
}

impl Exporter for Counting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let sent = Inside::new(&self.runtime, self.inner.export(batch)).await;
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        match &sent {
            Ok(()) => self.losses.exported("traces", count),
            Err(error) => {
                tracing::debug!(%error, count, "spans are lost");
                self.losses.dropped("traces", "not_taken", count);
            }
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// The same for metrics.
#[derive(Debug)]
pub(super) struct MetricExport {
    inner: MetricExporter,
    runtime: Handle,
    losses: Losses,
}

impl MetricExport {
    pub(super) fn new(inner: MetricExporter, runtime: &Handle, losses: Losses) -> Self {
        Self {
            inner,
            runtime: runtime.clone(),
            losses,
        }
    }
}

impl PushMetricExporter for MetricExport {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let sent = Inside::new(&self.runtime, self.inner.export(metrics)).await;
        match &sent {
            Ok(()) => self.losses.exported("metrics", 1),
            Err(error) => {
                tracing::debug!(%error, "metrics are lost");
                self.losses.dropped("metrics", "not_taken", 1);
            }
        }
        sent
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.inner.temporality()
    }
}
