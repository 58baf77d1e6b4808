//! A span and a measurement for each call, from its first byte to its status. Calls for health and reflection have none.
//! Each answer gets the level of the contract here.

use crate::{
    convert::trace_context,
    json,
    layers::{Answer, Middleware, body::layered},
    status::code_name,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body::Body as HttpBody;
use kennel_lifecycle::{RunId, Timestamp};
use kennel_supervisor::telemetry::{CallTrace, Span, Telemetry, context, names};
use opentelemetry::{
    KeyValue,
    metrics::Histogram,
    trace::{SpanContext, SpanId, SpanKind, Status},
};
use std::{
    borrow::Cow,
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
};
use tonic::{Code, body::Body};
use tower::Service;
use tracing::Instrument;

/// Bounds of the histogram of call durations in seconds, as in the conventions.
const CALL_SECONDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
/// Services whose calls are not about runs, and come every few seconds.
const UNSEEN: [&str; 2] = ["/grpc.health.", "/grpc.reflection."];
/// Metadata of each answer: the level of the contract.
const LEVEL: HeaderName = HeaderName::from_static("kennel-level");
/// Name of an unknown method.
pub(crate) const OTHER: &str = "_OTHER";

/// Attached to the answer of a call that has started a run, for its span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun(pub(crate) RunId);

/// Observes every call.
#[derive(Clone, Debug)]
pub(crate) struct Observing(Arc<Observer>);

#[derive(Debug)]
struct Observer {
    telemetry: Telemetry,
    duration: Histogram<f64>,
}

impl Observing {
    pub(crate) fn new(telemetry: Telemetry) -> Self {
        let duration = telemetry
            .meter()
            .f64_histogram(names::RPC_SERVER_CALL_DURATION)
            .with_unit("s")
            .with_description("Duration of calls, from the request to the status")
            .with_boundaries(CALL_SECONDS.to_vec())
            .build();
        Self(Arc::new(Observer {
            telemetry,
            duration,
        }))
    }
}

impl<S, B, A> Middleware<S, Request<B>> for Observing
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Future: Send + 'static,
    A: HttpBody<Data = Bytes> + Send + 'static,
    A::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Future = Answer<S::Error>;

    fn call(&self, inner: &mut S, mut request: Request<B>) -> Self::Future {
        let call = Call::begin(&self.0, &mut request);
        let answer = inner.call(request);
        Box::pin(async move {
            let Some(mut call) = call else {
                return Ok(with_level(answer.await?).map(Body::new));
            };
            let response = with_level(answer.instrument(call.marks.clone()).await?);
            call.run = response.extensions().get::<Begun>().map(|begun| begun.0);
            call.read_status(Some(response.headers()));
            Ok(response.map(|body| {
                layered(Body::new(body), move |body, cx| {
                    let frame = ready!(call.marks.in_scope(|| Pin::new(body).poll_frame(cx)));
                    match &frame {
                        Some(Ok(frame)) => call.read_status(frame.trailers_ref()),
                        Some(Err(status)) => call.code = Some(status.code()),
                        None => {}
                    }
                    Poll::Ready(frame)
                })
            }))
        })
    }
}

/// Names the level of the contract in an answer. One of another node was made by both: it has the lower level.
fn with_level<A>(mut answer: Response<A>) -> Response<A> {
    let own = kennel_proto::CONTRACT_LEVEL;
    let there = answer.headers().get(LEVEL);
    let there = there.and_then(|value| value.to_str().ok()?.parse().ok());
    let level = there.map_or(own, |there: u32| there.min(own));
    answer.headers_mut().insert(LEVEL, level.into());
    answer
}

/// Facts of a call; recorded when it is dropped.
#[derive(Debug)]
struct Call {
    observer: Arc<Observer>,
    method: &'static str,
    trace: Option<CallTrace>,
    /// Span with the fields of its log lines.
    marks: tracing::Span,
    begun: Timestamp,
    run: Option<RunId>,
    /// Status code; absent: its caller has gone before the answer.
    code: Option<Code>,
}

impl Call {
    fn begin<B>(observer: &Arc<Observer>, request: &mut Request<B>) -> Option<Self> {
        let path = request.uri().path();
        if UNSEEN.iter().any(|unseen| path.starts_with(unseen)) {
            return None;
        }
        let method = json::method(path).unwrap_or(OTHER);
        let caller = trace_context::traceparent(request.headers());
        let state = trace_context::tracestate(request.headers());
        let trace = observer.telemetry.call(caller, state.as_deref());
        let context = match &trace {
            Some(trace) => Some(trace.context.clone()),
            None => caller.and_then(context::parse),
        };
        // Error level: the span exists with any log filter.
        let marks = tracing::error_span!(
            "call",
            trace_id = context.as_ref().map(|c| display(c.trace_id())),
            span_id = context.as_ref().map(|c| display(c.span_id())),
        );
        if let Some(trace) = &trace {
            request.extensions_mut().insert(trace.clone());
        }
        Some(Self {
            observer: Arc::clone(observer),
            method,
            trace,
            marks,
            begun: observer.telemetry.now(),
            run: None,
            code: None,
        })
    }

    /// Reads headers or trailers, either of which may have the status.
    fn read_status(&mut self, headers: Option<&HeaderMap>) {
        if let Some(status) = headers.and_then(|headers| headers.get("grpc-status")) {
            self.code = Some(Code::from_bytes(status.as_bytes()));
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let code = self.code.unwrap_or(Code::Cancelled);
        let telemetry = &self.observer.telemetry;
        let end = telemetry.now().max(self.begun);
        let mut attributes = vec![
            KeyValue::new(names::RPC_SYSTEM_NAME, "grpc"),
            KeyValue::new(names::RPC_METHOD, self.method),
            KeyValue::new(names::RPC_RESPONSE_STATUS_CODE, code_name(code)),
        ];
        if is_error(code) {
            attributes.push(KeyValue::new(names::ERROR_TYPE, code_name(code)));
        }
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a duration")]
        let seconds = (end.0 - self.begun.0) as f64 / 1e6;
        self.observer.duration.record(seconds, &attributes);
        let Some(trace) = self.trace.take() else {
            return;
        };
        let run = self.run.map(|run| run.to_string());
        attributes.extend(run.map(|run| KeyValue::new(names::RUN_ID, run)));
        let caller = trace.caller.as_ref().map(SpanContext::span_id);
        telemetry.emit(Span {
            context: trace.context,
            parent: caller.unwrap_or(SpanId::INVALID),
            parent_is_remote: caller.is_some(),
            name: Cow::Borrowed(self.method),
            kind: SpanKind::Server,
            start: self.begun,
            end,
            attributes,
            links: Vec::new(),
            status: if is_error(code) {
                Status::error(code_name(code))
            } else {
                Status::Unset
            },
        });
    }
}

/// Whether it is the server's error, by the conventions. A caller's error does not count.
fn is_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::With;
    use futures_util::FutureExt;
    use kennel_supervisor::telemetry::{Sampling, SpanSink, Tracing};
    use std::{collections::BTreeSet, convert::Infallible, future::pending, sync::Mutex};
    use tower::{Layer, service_fn};

    #[derive(Debug, Default)]
    struct Sink(Mutex<Vec<Span>>);

    impl SpanSink for Sink {
        fn take(&self, span: Span) {
            self.0.lock().expect("not poisoned").push(span);
        }
    }

    // promise: O-47b
    #[test]
    fn answer_of_another_node_has_the_lower_level() {
        let level = |there: Option<&'static str>| {
            let mut answer = Response::new(());
            if let Some(there) = there {
                let there = http::HeaderValue::from_static(there);
                answer.headers_mut().insert(LEVEL, there);
            }
            let headers = with_level(answer).into_parts().0.headers;
            headers.get_all(LEVEL).iter().cloned().collect::<Vec<_>>()
        };
        let own = kennel_proto::CONTRACT_LEVEL.to_string();
        for there in [None, Some("99"), Some("not a number")] {
            assert_eq!(level(there), [own.as_str()], "{there:?}");
        }
        assert_eq!(level(Some("0")), ["0"]);
    }

    #[test]
    fn dropped_call_is_recorded_as_cancelled() {
        let sink = Arc::new(Sink::default());
        let tracing = Tracing {
            sink: sink.clone(),
            sampling: Sampling::default(),
            baggage: BTreeSet::new(),
        };
        let telemetry = Telemetry::new(Some(tracing), None, opentelemetry::global::meter("test"));
        let mut service = With(Observing::new(telemetry)).layer(service_fn(|_: Request<()>| {
            pending::<Result<Response<Body>, Infallible>>()
        }));
        let mut call = || {
            let request = Request::builder().uri("/kennel.v1.ProcessService/Spawn");
            service.call(request.body(()).expect("a request"))
        };
        assert!(call().now_or_never().is_none(), "it has no answer");
        drop(call());

        let spans = sink.0.lock().expect("not poisoned");
        let cancelled = KeyValue::new(names::RPC_RESPONSE_STATUS_CODE, "CANCELLED");
        let are_cancelled = spans
            .iter()
            .map(|span| span.attributes.contains(&cancelled));
        assert_eq!(are_cancelled.collect::<Vec<_>>(), [true, true]);
    }
}
