//! Exports: the log, spans and metrics. The only place that knows the SDK of OpenTelemetry.
//!
//! Exporters run on a thread of their own, behind queues that lose rather than wait; losses are counted.

mod audit;
mod config;
mod line_queue;
mod log;
mod log_fields;
mod losses;
mod records;
mod scrape;
mod spans;

pub(crate) use audit::AuditExport;
pub(crate) use config::{TelemetryArgs, TelemetryConfig};
pub(crate) use log::{LogFormat, ProcessLog, filter, start_log};

use crate::http::{self, HttpAddress};
use kennel_cli::{Failure, failure::failed};
use kennel_client::Surroundings;
use kennel_lifecycle::NodeId;
use kennel_supervisor::telemetry::{Telemetry, Tracing, names};
use losses::Room;
use opentelemetry::{KeyValue, metrics::MeterProvider};
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider},
    resource::EnvResourceDetector,
};
use prometheus::Registry;
use records::Records;
use spans::Pipeline;
use std::{
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll},
    thread,
    time::Duration,
};
use tokio::runtime::{Handle, Runtime};

/// Longest time of the last export of a server that is being replaced.
const LAST_SPANS_LEAVING: Duration = Duration::from_millis(150);
/// Longest time of the last export of a server that ends.
const LAST_SPANS: Duration = Duration::from_secs(1);

/// All exporters; dropped, they export nothing any more.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    telemetry: Telemetry,
    pipeline: Option<Arc<Pipeline>>,
    records: Option<Arc<Records>>,
    audit: Option<AuditExport>,
    meters: Option<SdkMeterProvider>,
    registry: Option<Registry>,
    runtime: Option<Runtime>,
    scraped_at: Option<HttpAddress>,
}

impl Exports {
    /// Starts the exporters of the configuration.
    pub(crate) fn start(
        config: &TelemetryConfig,
        node: NodeId,
        node_name: &str,
        here: &Surroundings,
        log: &ProcessLog,
    ) -> Result<Self, Failure> {
        if !config.exports() {
            return Ok(Self::default());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("telemetry")
            .enable_all()
            .build()
            .map_err(|cause| failed("cannot start telemetry", &cause))?;
        // The transports start their tasks on the runtime that creates them.
        let inside = runtime.enter();
        let resource = resource(node, node_name, here);
        let losses = log.lines.losses.clone();
        let mut meters = SdkMeterProvider::builder().with_resource(resource.clone());
        if config.pushes_metrics {
            let exporter = opentelemetry_otlp::MetricExporter::builder()
                .build()
                .map_err(|cause| failed("cannot export metrics", &cause))?;
            let exporter = Counting {
                inner: exporter,
                runtime: runtime.handle().clone(),
                // Exports do not queue: each one is the current state.
                room: Room::new("metrics", 0, losses.clone()),
            };
            meters = meters.with_reader(PeriodicReader::builder(exporter).build());
        }
        let mut registry = None;
        if config.scraped_at.is_some() {
            let own = Registry::new();
            let reader = opentelemetry_prometheus::exporter()
                .with_registry(own.clone())
                .scope_info_enabled(false)
                .build()
                .map_err(|cause| failed("cannot keep metrics for Prometheus", &cause))?;
            meters = meters.with_reader(reader);
            registry = Some(own);
        }
        let meters = meters.build();
        let meter = meters.meter_with_scope(scope());
        losses.register(&meter);
        let pipeline = if config.traces {
            let exporter = opentelemetry_otlp::SpanExporter::builder()
                .build()
                .map_err(|cause| failed("cannot export spans", &cause))?;
            let losses = losses.clone();
            let pipeline = Pipeline::new(exporter, runtime.handle(), &resource, config, losses);
            Some(Arc::new(pipeline))
        } else {
            None
        };
        let log_exporter = || {
            let exporter = opentelemetry_otlp::LogExporter::builder().build();
            exporter.map_err(|cause| failed("cannot export the log", &cause))
        };
        let mut audit = None;
        let records = if config.logs {
            let exporter = log_exporter()?;
            let (handle, of_audit) = (runtime.handle(), losses.clone());
            audit = Some(AuditExport::new(
                log_exporter()?,
                handle,
                &resource,
                of_audit,
            ));
            let records = Records::new(exporter, runtime.handle(), &resource, config, losses);
            let records = Arc::new(records);
            log.collected.by(&records);
            Some(records)
        } else {
            None
        };
        let tracing = pipeline.as_ref().map(|pipeline| Tracing {
            sink: Arc::clone(pipeline) as _,
            sampling: config.sampling,
            baggage: config.baggage.clone(),
        });
        let events = records.as_ref().map(|records| Arc::clone(records) as _);
        drop(inside);
        Ok(Self {
            telemetry: Telemetry::new(tracing, events, meter),
            pipeline,
            records,
            audit,
            meters: Some(meters),
            registry,
            runtime: Some(runtime),
            scraped_at: config.scraped_at.clone(),
        })
    }

    /// Returns the handle for each part that exports.
    pub(crate) fn telemetry(&self) -> Telemetry {
        self.telemetry.clone()
    }

    /// Returns the export of the audit log, once; absent: there is no collector for it.
    pub(crate) fn take_audit(&mut self) -> Option<AuditExport> {
        self.audit.take()
    }

    /// Serves metrics to Prometheus for as long as this process lives, if configured.
    pub(crate) fn serve_metrics(&self) {
        if let (Some(runtime), Some(registry), Some(address)) =
            (&self.runtime, &self.registry, &self.scraped_at)
        {
            if address.is_public() {
                tracing::warn!(%address, "metrics are served to any client that reaches this address, without authentication");
            }
            let routes = scrape::routes(registry.clone());
            runtime.spawn(http::serve(address.clone(), "metrics", routes));
        }
    }

    /// Exports remaining items, within a bounded time. Not inside of a runtime.
    pub(crate) fn finish(self, leaving: bool) {
        let most = if leaving {
            LAST_SPANS_LEAVING
        } else {
            LAST_SPANS
        };
        let Self {
            pipeline,
            records,
            meters,
            runtime,
            scraped_at,
            ..
        } = self;
        let Some(runtime) = runtime else {
            return;
        };
        let (done, over) = mpsc::channel();
        // Without a collector shutdown may exceed its timeout, so a separate thread does it.
        thread::spawn(move || {
            if let Some(pipeline) = pipeline {
                pipeline.shut_down(most);
            }
            if let Some(records) = records {
                records.shut_down(most);
            }
            drop(meters.map(|meters| meters.shutdown_with_timeout(most)));
            let _ = done.send(());
        });
        // After a timeout there is no more to do.
        let _ = over.recv_timeout(most);
        runtime.shutdown_background();
        // The next server of this keeper replaces the socket; after the last server none does.
        if let Some(address) = scraped_at.filter(|_| !leaving) {
            address.clear();
        }
    }
}

/// Returns the instrumentation scope: this program, with the version of the conventions.
fn scope() -> opentelemetry::InstrumentationScope {
    opentelemetry::InstrumentationScope::builder("kennel")
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(names::SCHEMA_URL)
        .build()
}

/// Returns the resource of all exports. `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` win.
fn resource(node: NodeId, node_name: &str, here: &Surroundings) -> Resource {
    use opentelemetry_semantic_conventions::resource as keys;
    let mut attributes = vec![
        KeyValue::new(keys::SERVICE_VERSION, env!("CARGO_PKG_VERSION")),
        // A node id survives restarts.
        KeyValue::new(keys::SERVICE_INSTANCE_ID, node.to_string()),
        KeyValue::new(keys::HOST_NAME, node_name.to_owned()),
    ];
    let of_pod = [
        (keys::K8S_POD_NAME, "K8S_POD_NAME"),
        (keys::K8S_POD_UID, "K8S_POD_UID"),
        (keys::K8S_NAMESPACE_NAME, "K8S_NAMESPACE_NAME"),
        (keys::K8S_NODE_NAME, "K8S_NODE_NAME"),
        (keys::K8S_CONTAINER_NAME, "K8S_CONTAINER_NAME"),
    ];
    let of_pod = of_pod.into_iter();
    let of_pod = of_pod.filter_map(|(key, name)| Some((key, here.var(name)?.to_owned())));
    attributes.extend(of_pod.map(|(key, value)| KeyValue::new(key, value)));
    let service = here.var("OTEL_SERVICE_NAME");
    Resource::builder_empty()
        .with_service_name("kennel")
        .with_schema_url(attributes, names::SCHEMA_URL)
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(service.map(|name| KeyValue::new(keys::SERVICE_NAME, name.to_owned())))
        .build()
}

/// An exporter that sends inside of the runtime of the exporters, and counts.
#[derive(Debug)]
struct Counting<E> {
    inner: E,
    runtime: Handle,
    room: Room,
}

/// A future that is always polled inside of this runtime, by any caller.
struct Inside<F> {
    runtime: Handle,
    work: Pin<Box<F>>,
}

impl<F> Inside<F> {
    fn new(runtime: &Handle, work: F) -> Self {
        Self {
            runtime: runtime.clone(),
            work: Box::pin(work),
        }
    }
}

impl<F: Future> Future for Inside<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let runtime = self.runtime.clone();
        let _inside = runtime.enter();
        self.work.as_mut().poll(cx)
    }
}
