//! An OTLP receiver made of the protocol's own services: it collects what a collector would have got.

use crate::{PATIENCE, eventually, wait::must};
use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{
            ExportLogsServiceRequest, ExportLogsServiceResponse,
            logs_service_server::{LogsService, LogsServiceServer},
        },
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{AnyValue, KeyValue, any_value::Value},
    logs::v1::LogRecord,
    metrics::v1::{Metric, metric::Data, number_data_point},
    trace::v1::{Span, status::StatusCode},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

/// Event of the records of the audit log.
const AUDIT: &str = "kennel.audit";

/// Behaviour of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// Accepts everything.
    #[default]
    Willing,
    /// Refuses everything, permanently.
    Refusing,
    /// Accepts connections and requests, and answers none.
    Silent,
}

#[derive(Debug, Default)]
struct Got {
    spans: Vec<Span>,
    records: Vec<LogRecord>,
    resource: BTreeMap<String, String>,
    schema_urls: BTreeSet<String>,
    /// Newest value of every metric.
    metrics: BTreeMap<String, Metric>,
}

#[derive(Clone, Debug)]
struct Services {
    got: Arc<Mutex<Got>>,
    manner: watch::Receiver<Manner>,
}

/// One receiver on a port of its own. It ends when it is dropped.
#[derive(Debug)]
pub struct Collector {
    port: u16,
    got: Arc<Mutex<Got>>,
    manner: watch::Sender<Manner>,
    serving: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Collector {
    /// Starts a receiver.
    pub async fn start(manner: Manner) -> Self {
        let listener = must("a port", TcpListener::bind("127.0.0.1:0").await);
        let port = must("its number", listener.local_addr()).port();
        let got = Arc::new(Mutex::new(Got::default()));
        let (sender, receiver) = watch::channel(manner);
        let services = Services {
            got: Arc::clone(&got),
            manner: receiver,
        };
        let serving = tokio::spawn(async move {
            let served = Server::builder()
                .add_service(TraceServiceServer::new(services.clone()))
                .add_service(MetricsServiceServer::new(services.clone()))
                .add_service(LogsServiceServer::new(services))
                .serve_with_incoming(TcpListenerStream::new(listener));
            must("the receiver serves", served.await);
        });
        Self {
            port,
            got,
            manner: sender,
            serving,
        }
    }

    /// Changes its behaviour.
    pub fn behave(&self, manner: Manner) {
        self.manner.send_replace(manner);
    }

    /// Returns variables that make a server send it everything, at once.
    #[must_use]
    pub fn env(&self) -> Vec<(String, String)> {
        let pairs = [
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                format!("http://127.0.0.1:{}", self.port),
            ),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc".to_owned()),
            ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
            ("OTEL_BLRP_SCHEDULE_DELAY", "50".to_owned()),
            ("OTEL_METRIC_EXPORT_INTERVAL", "200".to_owned()),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    fn look<T>(&self, look: impl FnOnce(&Got) -> T) -> T {
        look(&self.got.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns all spans so far.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        self.look(|got| got.spans.clone())
    }

    /// Returns all records of the log so far.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let mut records = self.all_records();
        records.retain(|record| record.event != AUDIT);
        records
    }

    /// Returns the records of the audit log so far, in the order of their arrival.
    #[must_use]
    pub fn audit(&self) -> Vec<Record> {
        let mut records = self.all_records();
        records.retain(|record| record.event == AUDIT);
        records
    }

    fn all_records(&self) -> Vec<Record> {
        self.look(|got| got.records.iter().cloned().map(Record::from).collect())
    }

    /// Waits until the records about a run satisfy the condition.
    pub async fn records_of(&self, run: &str, are: impl Fn(&[Record]) -> bool) -> Vec<Record> {
        let of_run = || {
            let is = |record: &Record| record.attribute("kennel.run.id") == Some(run);
            let records: Vec<Record> = self.records().into_iter().filter(is).collect();
            records
        };
        eventually("the records are there", PATIENCE, || {
            Some(of_run()).filter(|records| are(records))
        })
        .await
    }

    /// Returns the resource of all signals.
    #[must_use]
    pub fn resource(&self) -> BTreeMap<String, String> {
        self.look(|got| got.resource.clone())
    }

    /// Returns the stated conventions of names.
    #[must_use]
    pub fn schema_urls(&self) -> BTreeSet<String> {
        self.look(|got| got.schema_urls.clone())
    }

    /// Returns the names of all metrics so far.
    #[must_use]
    pub fn metric_names(&self) -> BTreeSet<String> {
        self.look(|got| got.metrics.keys().cloned().collect())
    }

    /// Returns the sum of a counter over the series that have all these attributes; for a histogram, the number of
    /// measurements.
    #[must_use]
    pub fn count(&self, metric: &str, attributes: &[(&str, &str)]) -> u64 {
        let has = |of: &[KeyValue]| {
            let of = texts(of);
            attributes
                .iter()
                .all(|(name, value)| of.get(*name).is_some_and(|v| v == value))
        };
        self.look(|got| match got.metrics.get(metric)?.data.as_ref()? {
            Data::Sum(sum) => {
                let points = sum.data_points.iter().filter(|p| has(&p.attributes));
                Some(points.map(|point| number(point.value.as_ref())).sum())
            }
            Data::Gauge(gauge) => {
                let points = gauge.data_points.iter().filter(|p| has(&p.attributes));
                Some(points.map(|point| number(point.value.as_ref())).sum())
            }
            Data::Histogram(histogram) => {
                let points = histogram.data_points.iter();
                let points = points.filter(|point| has(&point.attributes));
                Some(points.map(|point| point.count).sum())
            }
            _ => None,
        })
        .unwrap_or(0)
    }

    /// Returns the series of a counter or a gauge, in no order: their attributes and values.
    #[must_use]
    pub fn series(&self, metric: &str) -> Vec<(BTreeMap<String, String>, u64)> {
        self.look(|got| {
            let data = got.metrics.get(metric)?.data.as_ref()?;
            let points = match data {
                Data::Sum(sum) => &sum.data_points,
                Data::Gauge(gauge) => &gauge.data_points,
                _ => return None,
            };
            let series = points.iter();
            let series =
                series.map(|point| (texts(&point.attributes), number(point.value.as_ref())));
            Some(series.collect())
        })
        .unwrap_or_default()
    }

    /// Waits until the spans of a trace satisfy the condition.
    pub async fn trace(&self, trace: &str, are: impl Fn(&[SpanRow]) -> bool) -> Vec<SpanRow> {
        let of_trace = || {
            let spans = self.spans().into_iter().map(SpanRow::from);
            let spans: Vec<SpanRow> = spans.filter(|span| span.trace == trace).collect();
            spans
        };
        eventually("the spans are there", PATIENCE, || {
            Some(of_trace()).filter(|spans| are(spans))
        })
        .await
    }
}

/// A span in the form that tests read.
#[derive(Clone, Debug)]
pub struct SpanRow {
    /// Trace id in hexadecimal.
    pub trace: String,
    /// Span id in hexadecimal.
    pub id: String,
    /// Parent span id in hexadecimal; empty: the first of its trace.
    pub parent: String,
    /// Vendors' entries of its trace state.
    pub state: String,
    /// Name.
    pub name: String,
    /// Number of its kind in the protocol.
    pub kind: i32,
    /// Start in nanoseconds since 1970.
    pub start: u64,
    /// End in nanoseconds since 1970.
    pub end: u64,
    /// Attributes of any type, as text.
    pub attributes: BTreeMap<String, String>,
    /// Trace and span of each link.
    pub links: Vec<(String, String)>,
    /// Its error; absent: none.
    pub error: Option<String>,
}

impl From<Span> for SpanRow {
    fn from(span: Span) -> Self {
        let links = span.links.iter();
        let links = links.map(|link| (hex(&link.trace_id), hex(&link.span_id)));
        let status = span.status.unwrap_or_default();
        Self {
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            state: span.trace_state,
            name: span.name,
            kind: span.kind,
            start: span.start_time_unix_nano,
            end: span.end_time_unix_nano,
            attributes: texts(&span.attributes),
            links: links.collect(),
            error: (status.code == StatusCode::Error as i32).then_some(status.message),
        }
    }
}

impl SpanRow {
    /// Returns an attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }
}

/// A record of the log in the form that tests read.
#[derive(Clone, Debug)]
pub struct Record {
    /// Trace id in hexadecimal; empty: it belongs to no trace.
    pub trace: String,
    /// Span id in hexadecimal.
    pub span: String,
    /// Kind of event; empty: a line.
    pub event: String,
    /// Time in nanoseconds since 1970.
    pub at: u64,
    /// Severity, such as `INFO`.
    pub severity: String,
    /// Text of the record.
    pub body: String,
    /// Attributes of any type, as text.
    pub attributes: BTreeMap<String, String>,
}

impl From<LogRecord> for Record {
    fn from(record: LogRecord) -> Self {
        Self {
            trace: hex(&record.trace_id),
            span: hex(&record.span_id),
            event: record.event_name,
            at: record.time_unix_nano,
            severity: record.severity_text,
            body: text(record.body.as_ref()),
            attributes: texts(&record.attributes),
        }
    }
}

impl Record {
    /// Returns an attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }
}

/// Returns the only span of this name.
#[must_use]
pub fn only<'a>(spans: &'a [SpanRow], name: &str) -> &'a SpanRow {
    let named: Vec<&SpanRow> = spans.iter().filter(|span| span.name == name).collect();
    let [only] = named[..] else {
        panic!("{} spans are called {name}: {named:#?}", named.len());
    };
    only
}

fn number(value: Option<&number_data_point::Value>) -> u64 {
    match value {
        Some(number_data_point::Value::AsInt(number)) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let pairs = attributes.iter();
    let pairs = pairs.map(|pair| (pair.key.clone(), text(pair.value.as_ref())));
    pairs.collect()
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(is)) => is.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

impl Services {
    async fn answer<T>(&self, request: T, take: impl FnOnce(&mut Got, T)) -> Result<(), Status> {
        let manner = *self.manner.borrow();
        match manner {
            Manner::Willing => {
                take(
                    &mut self.got.lock().unwrap_or_else(PoisonError::into_inner),
                    request,
                );
                Ok(())
            }
            Manner::Refusing => Err(Status::permission_denied("not here")),
            Manner::Silent => {
                tokio::time::sleep(Duration::from_hours(1)).await;
                Err(Status::unavailable("much too late"))
            }
        }
    }
}

#[tonic::async_trait]
impl TraceService for Services {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let taken = self.answer(request.into_inner(), |got, request| {
            for resource in request.resource_spans {
                let of = resource.resource.unwrap_or_default();
                got.resource = texts(&of.attributes);
                for scope in resource.scope_spans {
                    got.schema_urls.insert(scope.schema_url);
                    got.spans.extend(scope.spans);
                }
            }
        });
        taken.await?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Services {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let taken = self.answer(request.into_inner(), |got, request| {
            for resource in request.resource_logs {
                for scope in resource.scope_logs {
                    got.records.extend(scope.log_records);
                }
            }
        });
        taken.await?;
        Ok(Response::new(ExportLogsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Services {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let taken = self.answer(request.into_inner(), |got, request| {
            for resource in request.resource_metrics {
                for scope in resource.scope_metrics {
                    for metric in scope.metrics {
                        got.metrics.insert(metric.name.clone(), metric);
                    }
                }
            }
        });
        taken.await?;
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}
