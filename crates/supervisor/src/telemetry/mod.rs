//! Telemetry: spans that have ended, events, and measurements.
//!
//! Nothing in here waits, and nothing depends on whether a receiver exists. A span is emitted once it has ended, with
//! its times and with ids that follow from the run ([`context`]): none is lost with the server that saw its beginning.

pub mod context;
mod metrics;
pub mod names;
mod orphans;
mod run_attributes;
mod run_events;
mod run_spans;

pub(crate) use metrics::Metrics;
pub(crate) use run_events::log_span;
pub(crate) use run_spans::{RunSpans, emit_fence};

use crate::base::clock;
use context::RunTrace;
use kennel_lifecycle::{RunId, RunKind, Timestamp};
use opentelemetry::{
    KeyValue,
    metrics::Meter,
    trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use std::{borrow::Cow, collections::BTreeSet, fmt::Debug, str::FromStr, sync::Arc};

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its context in its trace.
    pub context: SpanContext,
    /// Id of the parent span; invalid: it is the first of its trace.
    pub parent: SpanId,
    /// Whether the parent is another process's.
    pub parent_is_remote: bool,
    /// Name.
    pub name: Cow<'static, str>,
    /// Server for a call, internal for everything else.
    pub kind: SpanKind,
    /// Time at which it began.
    pub start: Timestamp,
    /// Time at which it ended; not before it began.
    pub end: Timestamp,
    /// Attributes.
    pub attributes: Vec<KeyValue>,
    /// Spans of other traces that it belongs to.
    pub links: Vec<Link>,
    /// Whether it failed.
    pub status: Status,
}

/// An event, as a named record of OpenTelemetry's log.
#[derive(Clone, Debug, PartialEq)]
pub struct TelemetryEvent {
    /// Kind of event.
    pub name: &'static str,
    /// Time at which it happened.
    pub at: Timestamp,
    /// The span that it belongs to.
    pub context: Option<SpanContext>,
    /// Whether an operator should look at it.
    pub warns: bool,
    /// Attributes.
    pub attributes: Vec<KeyValue>,
}

/// Receiver of events.
pub trait EventSink: Debug + Send + Sync {
    /// Takes an event, or counts it as lost. Does not wait.
    fn take(&self, event: TelemetryEvent);
}

/// Receiver of spans.
pub trait SpanSink: Debug + Send + Sync {
    /// Takes a span, or counts it as lost. Does not wait.
    fn take(&self, span: Span);
}

/// Decides which traces without an earlier decision are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Whether the caller's decision counts.
    pub obeys_caller: bool,
    /// The fraction of all traces that is recorded, from 0 to 1, chosen by their ids.
    pub ratio: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            obeys_caller: true,
            ratio: 1.0,
        }
    }
}

impl Sampling {
    /// As the SDKs do it: by the last 63 bits of the id.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the part of 2^63 that a ratio between 0 and 1 is"
    )]
    fn samples(self, trace: TraceId) -> bool {
        let bytes = trace.to_bytes();
        let low = u64::from_be_bytes([
            bytes[8], bytes[9], bytes[10], bytes[11], bytes[12], bytes[13], bytes[14], bytes[15],
        ]);
        let bound = (self.ratio.clamp(0.0, 1.0) * (1u64 << 63) as f64) as u64;
        low >> 1 < bound
    }
}

/// Receivers of telemetry and their sampling. By default none.
#[derive(Clone, Debug)]
pub struct Telemetry {
    tracing: Option<Arc<Tracing>>,
    events: Option<Arc<dyn EventSink>>,
    meter: Meter,
    pub(crate) metrics: Arc<Metrics>,
}

/// Spans, where they are recorded.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// Receiver of the spans.
    pub sink: Arc<dyn SpanSink>,
    /// Sampling of the spans.
    pub sampling: Sampling,
    /// Entries of a caller's baggage that commands get.
    pub baggage: BTreeSet<String>,
}

impl Default for Telemetry {
    fn default() -> Self {
        // Without a provider the global meter does nothing.
        Self::new(None, None, opentelemetry::global::meter("kennel"))
    }
}

/// Trace context of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallTrace {
    /// Context of the call's span.
    pub context: SpanContext,
    /// Context of the caller's; absent: it has none.
    pub caller: Option<SpanContext>,
}

impl Telemetry {
    /// Makes telemetry: spans go to `tracing` and events to `events`, where these exist; measurements to the
    /// instruments of `meter`.
    pub fn new(tracing: Option<Tracing>, events: Option<Arc<dyn EventSink>>, meter: Meter) -> Self {
        let metrics = Arc::new(Metrics::new(&meter));
        Self {
            tracing: tracing.map(Arc::new),
            events,
            meter,
            metrics,
        }
    }

    /// Returns the time of the clock of all telemetry.
    pub fn now(&self) -> Timestamp {
        clock::now()
    }

    /// Returns the meter for instruments of other modules.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Begins the span of a call with the caller's `traceparent` and `tracestate`. `None`: spans are not recorded.
    pub fn call(&self, traceparent: Option<&str>, tracestate: Option<&str>) -> Option<CallTrace> {
        let tracing = self.tracing.as_ref()?;
        let caller = traceparent.and_then(context::parse);
        let trace = caller
            .as_ref()
            .map_or_else(context::fresh_trace, SpanContext::trace_id);
        let decided = caller.as_ref().filter(|_| tracing.sampling.obeys_caller);
        let sampled =
            decided.map_or_else(|| tracing.sampling.samples(trace), SpanContext::is_sampled);
        let flags = TraceFlags::NOT_SAMPLED.with_sampled(sampled);
        let span = context::fresh_span();
        // The trace state belongs to the caller's trace. By the specification an invalid one is ignored.
        let state = tracestate.filter(|_| caller.is_some());
        let state = state.and_then(|state| TraceState::from_str(state).ok());
        Some(CallTrace {
            context: SpanContext::new(trace, span, flags, false, state.unwrap_or_default()),
            caller,
        })
    }

    /// Emits a span, if it is recorded.
    pub fn emit(&self, span: Span) {
        if let Some(tracing) = self.tracing.as_ref().filter(|_| span.context.is_sampled()) {
            tracing.sink.take(span);
        }
    }

    /// Whether events have a receiver.
    pub(crate) fn has_event_sink(&self) -> bool {
        self.events.is_some()
    }

    pub(crate) fn emit_event(&self, event: TelemetryEvent) {
        if let Some(events) = &self.events {
            events.take(event);
        }
    }

    /// The `traceparent` of a run's own span. `None`: it is not recorded.
    pub fn run_span(&self, run: RunId, kind: RunKind, spawned_by: Option<&str>) -> Option<String> {
        let own = self
            .run(run, kind, spawned_by)?
            .context(context::SpanPart::Run);
        own.is_sampled().then(|| context::traceparent(&own))
    }

    /// The contexts of a run's spans. `None`: spans are not recorded.
    pub(crate) fn run(
        &self,
        run: RunId,
        kind: RunKind,
        spawned_by: Option<&str>,
    ) -> Option<RunTrace> {
        let tracing = self.tracing.as_ref()?;
        let samples = |trace| tracing.sampling.samples(trace);
        Some(RunTrace::of(run, kind, spawned_by, samples))
    }

    /// Returns the part of a caller's `baggage` (<https://www.w3.org/TR/baggage/>) that is passed on.
    pub(crate) fn baggage(&self, baggage: &str) -> Option<String> {
        let tracing = self.tracing.as_ref()?;
        let passed = baggage.split(',').map(str::trim).filter(|member| {
            let name = member.split(['=', ';']).next().unwrap_or_default().trim();
            tracing.baggage.contains(name)
        });
        let passed: Vec<&str> = passed.collect();
        (!passed.is_empty()).then(|| passed.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nowhere;

    impl SpanSink for Nowhere {
        fn take(&self, _: Span) {}
    }

    fn telemetry(sampling: Sampling, baggage: &[&str]) -> Telemetry {
        let tracing = Tracing {
            sink: Arc::new(Nowhere),
            sampling,
            baggage: baggage.iter().map(|&name| name.to_owned()).collect(),
        };
        Telemetry::new(Some(tracing), None, opentelemetry::global::meter("test"))
    }

    // promise: M-9
    #[test]
    fn only_configured_baggage_entries_are_passed_on() {
        let some = telemetry(Sampling::default(), &["tenant", "turn"]);
        assert_eq!(
            some.baggage("secret=x, tenant=a;prop=1 ,turn = 7,tenants=b")
                .as_deref(),
            Some("tenant=a;prop=1,turn = 7")
        );
        assert_eq!(some.baggage("secret=x"), None);
        assert_eq!(
            telemetry(Sampling::default(), &[]).baggage("tenant=a"),
            None
        );
    }

    #[test]
    fn callers_sampling_decision_is_obeyed_if_configured() {
        let never = Sampling {
            obeys_caller: true,
            ratio: 0.0,
        };
        let sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let call = |sampling, caller| {
            let call = telemetry(sampling, &[])
                .call(caller, None)
                .expect("recorded");
            call.context.is_sampled()
        };
        assert!(call(never, Some(sampled)));
        assert!(!call(never, None));
        let alone = Sampling {
            obeys_caller: false,
            ..never
        };
        assert!(!call(alone, Some(sampled)));
        assert!(call(Sampling::default(), None));
        assert_eq!(Telemetry::default().call(Some(sampled), None), None);
    }

    #[test]
    fn sampling_ratio_selects_that_share_of_traces() {
        let half = Sampling {
            obeys_caller: true,
            ratio: 0.5,
        };
        let sampled = (0..2000)
            .filter(|_| half.samples(context::fresh_trace()))
            .count();
        assert!((800..1200).contains(&sampled), "{sampled}");
    }
}
