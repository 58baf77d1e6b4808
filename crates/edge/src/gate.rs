//! Lets calls of allowed peers through, and answers all others. Refusals are in the audit trail, summed.

use crate::{
    accept::Connection,
    auth::{Peer, Standing},
    json,
    observe::OTHER,
    status::{self, code_name},
};
use futures_util::future::Either;
use http::{Request, Response};
use kennel_supervisor::{RequestTold, Supervisor, TrailEntry, TrailRecord};
use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};
use tonic::{Status, body::Body};
use tonic_types::StatusExt;
use tower::{Layer, Service};

/// Guards a service.
#[derive(Clone)]
pub(crate) struct Gate {
    /// Where refusals are recorded; absent: nowhere.
    trail: Option<Supervisor>,
}

impl Gate {
    pub(crate) fn new(trail: Option<Supervisor>) -> Self {
        Self { trail }
    }

    /// Refuses what a peer without rights asks, whatever it is.
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status> {
        let Some(connection) = request.extensions().get::<Connection>().cloned() else {
            return Err(status::internal("a request without a connection"));
        };
        let peer = connection.peer.clone();
        if let Some(status) = peer.standing.refusal() {
            self.record(request.uri().path(), &peer, &status);
            return Err(status);
        }
        connection.accept_call();
        request.extensions_mut().insert(peer);
        Ok(())
    }

    fn record(&self, path: &str, peer: &Peer, status: &Status) {
        let Some(trail) = &self.trail else { return };
        let method = json::method(path).unwrap_or(OTHER);
        let info = status.get_details_error_info();
        let denied = RequestTold {
            rpc: method.rsplit('/').next().unwrap_or(method).to_owned(),
            by: peer.principal(),
            pid: peer.pid,
            code: code_name(status.code()).to_owned(),
            reason: info.map(|info| info.reason).unwrap_or_default(),
            calls: 1,
            ..RequestTold::default()
        };
        let denied = match peer.standing {
            Standing::OfARun => denied.with("peer", "a process of a run"),
            _ => denied,
        };
        trail.audit_denied(TrailRecord::now(None, TrailEntry::Request(denied)));
    }
}

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated {
            inner,
            gate: self.clone(),
        }
    }
}

/// A service behind the gate.
#[derive(Clone)]
pub(crate) struct Gated<S> {
    inner: S,
    gate: Gate,
}

impl<S, B> Service<Request<B>> for Gated<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.gate.admit(&mut request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(status) => Either::Right(ready(Ok(status.into_http()))),
        }
    }
}
