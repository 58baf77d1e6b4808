//! Reasons for every error: a panic of a handler becomes an answer, and so does the end of the caller's deadline; the
//! transport's own errors, before a handler gets the request, get a reason.

use crate::{
    json,
    layers::{
        Answer, Middleware,
        body::layered,
        deadline::{self, CallDeadline},
        observe::OTHER,
    },
    limits, status,
};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use kennel_supervisor::telemetry::{Telemetry, names};
use opentelemetry::{KeyValue, metrics::Counter};
use std::{
    any::Any,
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Poll, ready},
};
use tonic::{Code, Status, body::Body};
use tower::Service;

/// Gives each error its reason, and counts panics.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    panics: Counter<u64>,
}

impl Answers {
    pub(crate) fn new(telemetry: &Telemetry) -> Self {
        let panics = telemetry
            .meter()
            .u64_counter("kennel.rpc.panics")
            .with_unit("{call}")
            .with_description("Calls whose handler panicked: each is a fault of the server")
            .build();
        // Counting from 0 lets alerts see the first panic.
        panics.add(0, &[]);
        Self { panics }
    }
}

impl<S, B, A> Middleware<S, Request<B>> for Answers
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Error: 'static,
    S::Future: Send + 'static,
    A: HttpBody<Data = Bytes> + Send + 'static,
    A::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Future = Answer<S::Error>;

    fn call(&self, inner: &mut S, mut request: Request<B>) -> Self::Future {
        let (budget, deadline) = (
            deadline::of_headers(request.headers()),
            CallDeadline::default(),
        );
        request.extensions_mut().insert(deadline.clone());
        let path = request.uri().path();
        let method = json::method(path).unwrap_or(OTHER);
        let panics = Panics {
            method,
            counter: self.panics.clone(),
        };
        let begun = panics.catch(|| inner.call(request));
        let answered = async move {
            let answered = AssertUnwindSafe(begun?).catch_unwind().await;
            let answered = answered.map_err(|panic| panics.answer(&*panic))?;
            Ok((answered, panics))
        };
        // The transport's own deadline also begins now.
        let answered = deadline::within(budget, deadline, answered);
        Box::pin(async move {
            let (response, panics) = match answered.await {
                Ok((answer, panics)) => (answer?, panics),
                Err(status) => return Ok(status.into_http()),
            };
            if let Some(status) = reasoned(response.headers()) {
                return Ok(status.into_http());
            }
            Ok(response.map(|body| {
                layered(Body::new(body), move |body, cx| {
                    let polled = panics.catch(|| Pin::new(&mut *body).poll_frame(cx));
                    let frame = match polled {
                        Ok(frame) => ready!(frame),
                        Err(status) => {
                            *body = Body::empty();
                            return Poll::Ready(Some(trailers(&status)));
                        }
                    };
                    let status = match &frame {
                        Some(Ok(frame)) => frame.trailers_ref().and_then(reasoned),
                        _ => None,
                    };
                    Poll::Ready(status.map(|status| trailers(&status)).or(frame))
                })
            }))
        })
    }
}

/// Handling of one call's panics.
#[derive(Debug)]
struct Panics {
    method: &'static str,
    counter: Counter<u64>,
}

impl Panics {
    /// Runs it; a panic is counted and becomes a status.
    fn catch<T>(&self, work: impl FnOnce() -> T) -> Result<T, Status> {
        // A call that panicked is not polled again, so no code sees its half-done state.
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| self.answer(&*panic))
    }

    /// Counts a panic, and returns the status for it.
    fn answer(&self, panic: &(dyn Any + Send)) -> Status {
        tracing::error!(
            method = self.method,
            panic = words(panic),
            "the handler of a call has panicked, answering INTERNAL"
        );
        let method = KeyValue::new(names::RPC_METHOD, self.method);
        self.counter.add(1, &[method]);
        status::panicked(self.method)
    }
}

/// Returns the message of a panic.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

fn trailers(status: &Status) -> Result<Frame<Bytes>, Status> {
    let mut headers = http::HeaderMap::new();
    status.add_header(&mut headers)?;
    Ok(Frame::trailers(headers))
}

/// Returns the replacement for a status of the transport; absent: it is none of these, or has its reason.
fn reasoned(headers: &http::HeaderMap) -> Option<Status> {
    let status = Status::from_header_map(headers)?;
    if !status.details().is_empty() {
        return None;
    }
    let answer_too_large = status.message().starts_with("Error, encoded");
    match status.code() {
        Code::OutOfRange if answer_too_large => Some(status::internal(status.message())),
        Code::OutOfRange => Some(status::too_large(limits::REQUEST_BYTES_MAX)),
        Code::Internal => Some(status::malformed(status.message())),
        Code::Unimplemented => Some(status::unimplemented(status.message())),
        // A service other than Kennel's has sent this status, or the call is gone.
        _ => None,
    }
}

#[cfg(test)]
mod tests;
