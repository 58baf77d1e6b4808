//! The caller's W3C trace context (<https://www.w3.org/TR/trace-context/>). Invalid parts are left out.

use http::HeaderMap;
use kennel_supervisor::telemetry::{CallTrace, context};
use tonic::{Extensions, metadata::MetadataMap};

/// Longest tracestate that is passed on.
const TRACESTATE_BYTES_MAX: usize = 512;
/// Longest baggage that is read: the minimum that the specification requires to be passed on.
const BAGGAGE_BYTES_MAX: usize = 8192;

/// Trace context of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) traceparent: Option<String>,
    pub(crate) tracestate: Option<String>,
    pub(crate) baggage: Option<String>,
}

impl TraceContext {
    /// Returns the parent for this request's work: the span of the call, or where there is none, the caller's.
    pub(crate) fn of(metadata: &MetadataMap, extensions: &Extensions) -> Self {
        let call = extensions.get::<CallTrace>();
        let mut context = Self::of_headers(metadata.as_ref());
        if let Some(call) = call {
            context.traceparent = Some(context::traceparent(&call.context));
        }
        context
    }

    fn of_headers(headers: &HeaderMap) -> Self {
        let baggage = joined(headers, "baggage", BAGGAGE_BYTES_MAX);
        let Some(parent) = traceparent(headers) else {
            return Self {
                baggage,
                ..Self::default()
            };
        };
        Self {
            traceparent: Some(parent.to_owned()),
            tracestate: tracestate(headers),
            baggage,
        }
    }
}

/// Returns the caller's `traceparent`, if it has exactly one and that is valid.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let mut parents = headers.get_all("traceparent").iter();
    let only = parents.next().filter(|_| parents.next().is_none())?;
    let parent = only.to_str().ok()?;
    context::parse(parent).map(|_| parent)
}

/// Returns the caller's `tracestate`, which counts beside its `traceparent` alone.
pub(crate) fn tracestate(headers: &HeaderMap) -> Option<String> {
    joined(headers, "tracestate", TRACESTATE_BYTES_MAX)
}

/// Joins a list that may be spread over several headers. `None`: it is empty, or longer than this.
fn joined(headers: &HeaderMap, name: &str, bytes_max: usize) -> Option<String> {
    let parts = headers.get_all(name).iter();
    let parts = parts.filter_map(|part| part.to_str().ok());
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    let list = parts.join(",");
    (!list.is_empty() && list.len() <= bytes_max).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn trace_context_headers_are_read_and_tracestate_joined() {
        let mut metadata = HeaderMap::new();
        metadata.insert("traceparent", GOOD.parse().expect("ASCII"));
        metadata.append("tracestate", "a=1".parse().expect("ASCII"));
        metadata.append("tracestate", "b=2".parse().expect("ASCII"));
        metadata.append("baggage", "c=3".parse().expect("ASCII"));
        let context = TraceContext::of_headers(&metadata);
        assert_eq!(context.traceparent.as_deref(), Some(GOOD));
        assert_eq!(context.tracestate.as_deref(), Some("a=1,b=2"));
        assert_eq!(context.baggage.as_deref(), Some("c=3"));
    }

    #[test]
    fn invalid_traceparent_is_ignored_with_its_tracestate() {
        let mut metadata = HeaderMap::new();
        metadata.insert("traceparent", "00-x".parse().expect("ASCII"));
        metadata.insert("tracestate", "a=1".parse().expect("ASCII"));
        assert_eq!(TraceContext::of_headers(&metadata), TraceContext::default());
    }

    #[test]
    fn two_traceparents_are_ignored() {
        let mut metadata = HeaderMap::new();
        metadata.append("traceparent", GOOD.parse().expect("ASCII"));
        metadata.append("traceparent", GOOD.parse().expect("ASCII"));
        assert_eq!(TraceContext::of_headers(&metadata), TraceContext::default());
    }
}
