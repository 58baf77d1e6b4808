//! Paces the refusals of owners: an owner that repeats refused calls without a pause gets their answers later, so that
//! its refusals take no processor time from other owners.

use crate::{
    access::Caller,
    layers::{Answer, Middleware, deadline},
    load::shares::Shares,
};
use http::{HeaderMap, HeaderValue, Request, Response};
use std::time::Duration;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, body::Body};
use tower::Service;

/// Answers refused calls of an owner at a bounded rate.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    pub(crate) shares: Shares,
    /// Counts the calls that the service inside has not answered.
    pub(crate) calls: TaskTracker,
    /// Cancelled: the server ends, and every answer is sent at once.
    pub(crate) ending: CancellationToken,
}

impl<S, B> Middleware<S, Request<B>> for Pace
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Future = Answer<S::Error>;

    fn call(&self, inner: &mut S, request: Request<B>) -> Self::Future {
        let caller = request.extensions().get::<Caller>();
        let owner = caller.map(|caller| caller.owner.clone());
        let budget = deadline::of_headers(request.headers());
        let pace = self.clone();
        let answer = pace.calls.track_future(inner.call(request));
        Box::pin(async move {
            let answer = answer.await?;
            if let Some(owner) = owner
                && is_without_room(answer.headers())
            {
                pace.pause(&owner, budget).await;
            }
            Ok(answer)
        })
    }
}

impl Pace {
    #[cfg(test)]
    pub(crate) fn of(shares: Shares) -> Self {
        Self {
            shares,
            calls: TaskTracker::new(),
            ending: CancellationToken::new(),
        }
    }

    /// Waits before a refusal is answered: not beyond the deadline, nor when the server ends.
    pub(crate) async fn pause(&self, owner: &str, budget: Option<Duration>) {
        let pause = self.shares.refusal(owner);
        let pause = budget.map_or(pause, |budget| pause.min(budget / 2));
        let _ = tokio::time::timeout(pause, self.ending.cancelled()).await;
    }
}

/// Whether a call was refused for lack of room.
fn is_without_room(headers: &HeaderMap) -> bool {
    let code = headers.get("grpc-status").map(HeaderValue::as_bytes);
    code.is_some_and(|code| Code::from_bytes(code) == Code::ResourceExhausted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        layers::With,
        limits::{REFUSAL_PAUSE_MAX, REFUSALS_PER_SECOND},
    };
    use std::convert::Infallible;
    use tokio::time::Instant;
    use tonic::Status;
    use tower::{Layer, service_fn};

    /// Calls once more than is answered at once; returns how long the last call took.
    async fn last_call(answer: Status, timeout: Option<&'static str>, pace: &Pace) -> Duration {
        let mut service = With(pace.clone()).layer(service_fn(move |_: Request<()>| {
            let answer = answer.clone();
            async move { Ok::<_, Infallible>(answer.into_http()) }
        }));
        let mut took = Duration::ZERO;
        for _ in 0..=REFUSALS_PER_SECOND {
            let mut request = Request::new(());
            request.extensions_mut().insert(Caller::default());
            if let Some(timeout) = timeout {
                let timeout = HeaderValue::from_static(timeout);
                request.headers_mut().insert("grpc-timeout", timeout);
            }
            let begun = Instant::now();
            service.call(request).await.expect("an answer");
            took = begun.elapsed();
        }
        took
    }

    fn pace() -> Pace {
        Pace::of(Shares::default())
    }

    fn full() -> Status {
        Status::resource_exhausted("no room")
    }

    // promise: I-104
    #[tokio::test(start_paused = true)]
    async fn quota_refusals_in_a_row_are_delayed() {
        let paced = last_call(full(), None, &pace()).await;
        assert!(!paced.is_zero() && paced <= REFUSAL_PAUSE_MAX, "{paced:?}");
        let other = last_call(Status::not_found("no such run"), None, &pace()).await;
        assert!(other.is_zero(), "{other:?}");
    }

    // promise: I-104
    #[tokio::test(start_paused = true)]
    async fn refusal_delay_ends_before_the_deadline() {
        let paced = last_call(full(), Some("8m"), &pace()).await;
        assert!(paced <= Duration::from_millis(5), "{paced:?}");
    }

    // promise: I-104
    #[tokio::test(start_paused = true)]
    async fn ending_server_does_not_delay_refusals() {
        let ends = pace();
        ends.ending.cancel();
        let paced = last_call(full(), None, &ends).await;
        assert!(paced.is_zero(), "{paced:?}");
    }
}
