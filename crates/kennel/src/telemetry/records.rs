//! Log lines and lifecycle events as records of OpenTelemetry's log for a collector.

use super::{
    Counting, Inside, TelemetryConfig,
    losses::{Losses, Room},
    scope,
    spans::system_time,
};
use crate::telemetry::log_fields::{LineFields, LineMarks};
use kennel_supervisor::telemetry::{EventSink, TelemetryEvent, names};
use opentelemetry::{
    SpanId, TraceId, Value,
    logs::{AnyValue, LogRecord as _, Logger, LoggerProvider, Severity},
};
use opentelemetry_otlp::LogExporter;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    logs::{
        BatchConfigBuilder, BatchLogProcessor, LogBatch, LogExporter as Exporter, SdkLogRecord,
        SdkLogger, SdkLoggerProvider,
    },
};
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tracing::Level;

/// Takes records and sends them in batches.
#[derive(Debug)]
pub(super) struct Records {
    provider: SdkLoggerProvider,
    logger: SdkLogger,
    room: Room,
}

impl Records {
    pub(super) fn new(
        exporter: LogExporter,
        runtime: &Handle,
        resource: &Resource,
        config: &TelemetryConfig,
        losses: Losses,
    ) -> Self {
        let room = Room::new("logs", config.records_waiting_max, losses);
        let exporter = Counting {
            inner: exporter,
            runtime: runtime.clone(),
            room: room.clone(),
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(room.queue())
            .with_scheduled_delay(config.records_every)
            .build();
        let processor = BatchLogProcessor::builder(exporter)
            .with_batch_config(batches)
            .build();
        let provider = SdkLoggerProvider::builder()
            .with_resource(resource.clone())
            .with_log_processor(processor)
            .build();
        let logger = provider.logger_with_scope(scope());
        Self {
            provider,
            logger,
            room,
        }
    }

    /// Records a line of the log.
    pub(super) fn line(
        &self,
        level: Level,
        target: &'static str,
        fields: LineFields,
        marks: &LineMarks,
    ) {
        self.send(|record| {
            record.set_timestamp(SystemTime::now());
            record.set_severity_number(severity(level));
            record.set_severity_text(level.as_str());
            record.set_target(target);
            record.set_body(fields.message.into());
            let ids = marks.trace.as_deref().zip(marks.span.as_deref());
            let ids = ids.and_then(|(trace, span)| {
                Some((TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?))
            });
            if let Some((trace, span)) = ids {
                record.set_trace_context(trace, span, None);
            }
            let run = marks.run.clone().map(serde_json::Value::String);
            let run = run.map(|run| ("run_id", run));
            let has_run = fields.others.iter().any(|(name, _)| *name == "run_id");
            let others = fields.others.into_iter();
            for (name, value) in others.chain(run.filter(|_| !has_run)) {
                let name = if name == "run_id" {
                    names::RUN_ID
                } else {
                    name
                };
                record.add_attribute(name, of_json(value));
            }
        });
    }

    fn send(&self, fill: impl FnOnce(&mut SdkLogRecord)) {
        if self.room.enter() {
            let mut record = self.logger.create_log_record();
            fill(&mut record);
            self.logger.emit(record);
        }
    }

    pub(super) fn shut_down(&self, most: Duration) {
        // Shutdown errors are no longer logged.
        let _ = self.provider.shutdown_with_timeout(most);
    }
}

impl EventSink for Records {
    fn take(&self, event: TelemetryEvent) {
        let level = if event.warns {
            Level::WARN
        } else {
            Level::INFO
        };
        self.send(|record| {
            record.set_event_name(event.name);
            record.set_timestamp(system_time(event.at));
            record.set_severity_number(severity(level));
            record.set_severity_text(level.as_str());
            // Some viewers show only the body of a record.
            record.set_body(event.name.into());
            if let Some(context) = event.context {
                let flags = Some(context.trace_flags());
                record.set_trace_context(context.trace_id(), context.span_id(), flags);
            }
            for attribute in event.attributes {
                record.add_attribute(attribute.key, of_attribute(attribute.value));
            }
        });
    }
}

fn severity(level: Level) -> Severity {
    match level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        Level::DEBUG => Severity::Debug,
        Level::TRACE => Severity::Trace,
    }
}

fn of_json(value: serde_json::Value) -> AnyValue {
    match value {
        serde_json::Value::Bool(flag) => flag.into(),
        serde_json::Value::String(text) => text.into(),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(real)) => real.into(),
            (None, None) => number.to_string().into(),
        },
        other => other.to_string().into(),
    }
}

fn of_attribute(value: Value) -> AnyValue {
    match value {
        Value::Bool(flag) => flag.into(),
        Value::I64(number) => number.into(),
        Value::F64(number) => number.into(),
        Value::String(text) => AnyValue::String(text),
        other => other.to_string().into(),
    }
}

impl Exporter for Counting<LogExporter> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let count = batch.iter().count();
        let sent = Inside::new(&self.runtime, self.inner.export(batch)).await;
        self.room.leave(count, &sent);
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
