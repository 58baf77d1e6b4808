//! Spans for a collector, and their results.

use super::{
    Counting, Inside, TelemetryConfig,
    losses::{Losses, Room},
    scope,
};
use kennel_lifecycle::Timestamp;
use kennel_supervisor::telemetry::{Span, SpanSink};
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
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;

/// Takes spans and sends them in batches.
#[derive(Debug)]
pub(super) struct Pipeline {
    processor: BatchSpanProcessor,
    room: Room,
}

impl Pipeline {
    pub(super) fn new(
        exporter: SpanExporter,
        runtime: &Handle,
        resource: &Resource,
        config: &TelemetryConfig,
        losses: Losses,
    ) -> Self {
        let room = Room::new("traces", config.spans_waiting_max, losses);
        let exporter = Counting {
            inner: exporter,
            runtime: runtime.clone(),
            room: room.clone(),
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(room.queue())
            .with_scheduled_delay(config.spans_every)
            .build();
        let mut processor = BatchSpanProcessor::builder(exporter)
            .with_batch_config(batches)
            .build();
        processor.set_resource(resource);
        Self { processor, room }
    }

    pub(super) fn shut_down(&self, most: Duration) {
        // Shutdown errors are no longer logged.
        let _ = self.processor.shutdown_with_timeout(most);
    }
}

impl SpanSink for Pipeline {
    fn take(&self, span: Span) {
        if self.room.enter() {
            self.processor.on_end(data(span));
        }
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

pub(super) fn system_time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(at.0).unwrap_or(0))
}

impl Exporter for Counting<SpanExporter> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let sent = Inside::new(&self.runtime, self.inner.export(batch)).await;
        self.room.leave(count, &sent);
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

impl PushMetricExporter for Counting<MetricExporter> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let sent = Inside::new(&self.runtime, self.inner.export(metrics)).await;
        self.room.sent(1, &sent);
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
