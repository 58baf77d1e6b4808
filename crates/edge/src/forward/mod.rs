//! Forwards calls to their target node.
//!
//! A handler that answers `RUN_ON_OTHER_NODE` has done nothing: the request is sent unchanged to the run's node, whose
//! answer is returned to the caller. A request with a node goes there at once. A request from another node is never
//! forwarded, so no request goes round in circles.

mod fleet;
mod nodes;
mod passed;
mod replay;

pub(crate) use fleet::{Fleet, Followed, Known};
pub(crate) use nodes::Links;

use crate::{
    access::Caller,
    auth::behalf::{self, NODE},
    layers::{Answer, Around, Middleware},
    reason::Reason,
    status::{self, answer_of},
};
use http::{HeaderValue, Request, Response, request::Parts};
use kennel_supervisor::{CallError, Elsewhere, Supervisor, TrailRecord};
use parking_lot::Mutex;
use passed::passed;
use replay::ReplayBody;
use std::sync::Arc;
use tonic::{Status, body::Body};
use tonic_types::{ErrorInfo, StatusExt};
use tower::{BoxError, Service, ServiceExt as _, util::BoxCloneSyncService};

const NODE_REPLACED: &str = "another node listens there by now";
const FOR_EACH_RUN: &str = "/kennel.v1.ProcessService/ForEachRun";
const NO_CREDENTIALS: &str = "the access file of this server has no section [forward] for it";

/// Marks a request that can be sent to its run's node: a handler that has a part of the answer refuses, so that the
/// node returns all of it; a stream of many runs has those of all nodes. The record of such a refusal is written when the
/// call is over, unless this node answers after all: one call is one record.
#[derive(Clone)]
pub(crate) struct AskItsNode(Arc<RefusedCall>);

struct RefusedCall {
    supervisor: Supervisor,
    /// The record, and whether it is one of many that are summed.
    record: Mutex<Option<(TrailRecord, bool)>>,
}

impl AskItsNode {
    /// Replaces the record of the refusal.
    pub(crate) fn record(&self, record: Option<(TrailRecord, bool)>) {
        *self.0.record.lock() = record;
    }
}

impl Drop for RefusedCall {
    fn drop(&mut self) {
        match self.record.get_mut().take() {
            Some((record, true)) => self.supervisor.audit_log().count(record),
            Some((record, false)) => self.supervisor.audit_log().record(record),
            None => {}
        }
    }
}

/// Forwards calls.
#[derive(Clone)]
pub(crate) struct Forward {
    supervisor: Supervisor,
    links: Arc<Links>,
}

impl Forward {
    pub(crate) fn new(supervisor: Supervisor, links: Arc<Links>) -> Self {
        Self { supervisor, links }
    }
}

/// Makes more calls in the name of an admitted caller, each to the run's node.
pub(crate) type Calls = BoxCloneSyncService<Request<Body>, Response<Body>, Status>;

impl<S> Middleware<S, Request<Body>> for Forward
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
{
    type Future = Answer<S::Error>;

    fn call(&self, inner: &mut S, mut request: Request<Body>) -> Self::Future {
        let again = inner.clone();
        if request.uri().path() == FOR_EACH_RUN {
            let within = Around {
                inner: again.clone(),
                with: self.clone(),
            };
            let failed = |error: S::Error| status::internal(&error.into().to_string());
            let calls = Calls::new(within.map_err(failed));
            request.extensions_mut().insert(calls);
        }
        // Only the replaced service was polled ready.
        let ready = std::mem::replace(inner, again);
        let forward = self.clone();
        Box::pin(async move { forward.answer(ready, request).await })
    }
}

impl Forward {
    async fn answer<S>(
        &self,
        mut inner: S,
        request: Request<Body>,
    ) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<Body>, Response = Response<Body>> + Clone + Send,
        S::Future: Send,
    {
        let Some(caller) = request.extensions().get::<Caller>().cloned() else {
            return inner.call(request).await;
        };
        if caller.run.is_some() {
            // A run and its descendants are on one node.
            if request.headers().contains_key(NODE) {
                let refused = status::permission_denied("no run may name a node");
                return Ok(refused.into_http());
            }
            return inner.call(request).await;
        }
        let (mut head, body) = request.into_parts();
        let is_forwarded = caller.via.is_some();
        let name = head.headers.remove(NODE);
        // A node that the call names answers itself, or not at all, whichever node received the call first.
        let is_own = is_forwarded || name.is_some();
        let named = match name {
            Some(named) => self.named(&named, is_forwarded).await,
            None => Ok(None),
        };
        match named {
            Ok(Some(node)) => {
                let sent = self.send(&node, &head, &caller, body).await;
                return Ok(sent.unwrap_or_else(Status::into_http));
            }
            Err(status) => return Ok(status.into_http()),
            Ok(None) if is_own => {
                return inner.call(Request::from_parts(head, body)).await;
            }
            Ok(None) => {}
        }
        let replay = ReplayBody::of(body);
        let again = inner.clone();
        let mut first = Request::from_parts(head.clone(), Body::new(replay.rewound()));
        let mark = AskItsNode(Arc::new(RefusedCall {
            supervisor: self.supervisor.clone(),
            record: Mutex::default(),
        }));
        first.extensions_mut().insert(mark.clone());
        let answer = inner.call(first).await?;
        let Some(node) = refused_for(&answer) else {
            replay.forget();
            return Ok(answer);
        };
        if !replay.is_whole() || !self.links.may_reach(&node) {
            return Ok(answer);
        }
        match self
            .send(&node, &head, &caller, Body::new(replay.rewound()))
            .await
        {
            Ok(answer) => Ok(answer),
            Err(status) => {
                mark.record(None);
                // This node's own answer is better than none.
                let request = Request::from_parts(head, Body::new(replay.rewound()));
                let (mut inner, own) = (again, status.into_http());
                std::future::poll_fn(|cx| inner.poll_ready(cx)).await?;
                let answer = inner.call(request).await?;
                Ok(if refused_for(&answer).is_some() {
                    own
                } else {
                    answer
                })
            }
        }
    }

    /// Returns the other node in a request; `None`: it names this one. `is_forwarded`: it comes from a node.
    async fn named(
        &self,
        named: &HeaderValue,
        is_forwarded: bool,
    ) -> Result<Option<Elsewhere>, Status> {
        let name = String::from_utf8_lossy(named.as_bytes());
        let own = self.supervisor.node();
        if *name == own.to_string() {
            return Ok(None);
        }
        if is_forwarded {
            return Err(status::of(&CallError::NodeNotFound {
                name: name.into_owned(),
                why: NODE_REPLACED,
            }));
        }
        let node = answer_of(self.supervisor.node_named(&name)).await?;
        if node.node == own {
            return Ok(None);
        }
        if self.links.may_reach(&node) {
            return Ok(Some(node));
        }
        Err(status::node_unreachable(&node, NO_CREDENTIALS))
    }

    /// Makes a call at another node, for its caller; the error is the answer where it could not be sent.
    async fn send(
        &self,
        node: &Elsewhere,
        head: &Parts,
        caller: &Caller,
        body: Body,
    ) -> Result<Response<Body>, Status> {
        let unreachable = |why: String| status::node_unreachable(node, &why);
        let mut channel = self.links.to(node).await.map_err(unreachable)?;
        let mut request = Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = head.uri.path().parse().unwrap_or_default();
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = head.headers.clone();
        behalf::name(request.headers_mut(), caller, node)
            .map_err(|error| unreachable(error.to_string()))?;
        let sent = async {
            std::future::poll_fn(|cx| channel.poll_ready(cx)).await?;
            channel.call(request).await
        };
        let answer = sent.await.map_err(|error| {
            self.links.forget(node);
            let why = kennel_client::shown(&*error);
            if kennel_client::has_broken(&*error) {
                status::node_lost(node, &why)
            } else {
                unreachable(why)
            }
        })?;
        if refused(&answer).is_some_and(|info| is_for_former(&info, node)) {
            return Err(unreachable(NODE_REPLACED.to_owned()));
        }
        let serving = self.supervisor.serving();
        let mut answer = answer.map(|body| passed(body, serving));
        if let Ok(name) = HeaderValue::from_str(&node.name) {
            answer.headers_mut().insert(NODE, name);
        }
        Ok(answer)
    }
}

/// Returns the reason for which a call was refused.
fn refused(answer: &Response<Body>) -> Option<ErrorInfo> {
    // A streaming answer has no status in its headers.
    answer.headers().get(Status::GRPC_STATUS)?;
    Status::from_header_map(answer.headers())?.get_details_error_info()
}

/// Whether a call was refused by a node that has replaced this one at its address.
fn is_for_former(info: &ErrorInfo, node: &Elsewhere) -> bool {
    let named = info.metadata.get("node");
    info.reason == Reason::NodeNotFound.as_str() && named == Some(&node.node.to_string())
}

/// Returns the node of the run for which a call was refused.
fn refused_for(answer: &Response<Body>) -> Option<Elsewhere> {
    let info = refused(answer)?;
    if info.reason != Reason::RunOnOtherNode.as_str() {
        return None;
    }
    let fact = |name: &str| info.metadata.get(name).cloned().unwrap_or_default();
    Some(Elsewhere {
        name: fact("node_name"),
        address: fact("address"),
        is_reachable: fact("reachable") == "true",
        ..Elsewhere::unknown(fact("node_id").parse().ok()?)
    })
}
