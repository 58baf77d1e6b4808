//! Admits calls of permitted peers, and refuses all others. Refusals are in the audit log, summed.

use crate::{
    accept::Connection,
    access::{self, Access, Bearer, Caller, Rules},
    auth::{self, Origin, Peer, PeerVerdict},
    forward::on_behalf,
    json,
    layer::Middleware,
    observe::OTHER,
    run_tokens::RunTokens,
    status::{self, code_name},
};
use futures_util::future::Either;
use http::{HeaderMap, Request, Response};
use kennel_supervisor::{DeniedCaller, LoggedRequest, Supervisor, TrailEntry, TrailRecord};
use std::{
    future::{Ready, ready},
    sync::Arc,
};
use tonic::{Status, body::Body};
use tonic_types::StatusExt;
use tower::Service;

/// Guards a service.
#[derive(Clone)]
pub(crate) struct Gate {
    /// Audit log of refusals; absent: none.
    trail: Option<Supervisor>,
    access: Arc<Access>,
    /// Absent: no run may call.
    runs: Option<Arc<RunTokens>>,
}

impl Gate {
    pub(crate) fn new(
        trail: Option<Supervisor>,
        access: Arc<Access>,
        runs: Option<Arc<RunTokens>>,
    ) -> Self {
        Self {
            trail,
            access,
            runs,
        }
    }

    /// Who calls, and by which token; or why it may not, with what the audit log says of what it has shown.
    fn caller(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        rules: &Rules,
    ) -> Result<(Caller, Option<Bearer>), (String, Status)> {
        if let (PeerVerdict::OfARun(run), Some(runs)) = (peer.verdict, &self.runs)
            && let Some(token) = auth::bearer(headers)
            && let Some(called) = runs.caller(token, run, peer.pid())
        {
            return called
                .map(|(caller, token)| (caller, Some(token)))
                .map_err(|refused| (String::new(), refused));
        }
        match peer.verdict.refusal() {
            Some(refused) => Err((peer.certificate(), refused)),
            None => peer.caller(headers, rules, access::now()),
        }
    }

    /// Refuses every call of a peer without rights.
    #[expect(
        clippy::result_large_err,
        reason = "a refusal has the caller, for the audit log"
    )]
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status> {
        let Some(connection) = request.extensions().get::<Arc<Connection>>().cloned() else {
            return Err(status::internal("a request without a connection"));
        };
        let peer = &connection.peer;
        let uri = request.uri().clone();
        let path = uri.path();
        let rules = self.access.rules();
        let called = self.caller(peer, request.headers(), &rules);
        let called = called.map_err(|(credential, status)| {
            let unknown = Caller {
                principal: peer.name(),
                credential,
                ..Caller::default()
            };
            (unknown, status)
        });
        let admitted = called.and_then(|(own, token)| {
            if let Err(full) = connection.identify(&own.principal) {
                return Err((own, auth::too_many(full)));
            }
            let named = on_behalf(own.clone(), request.headers_mut()).map_err(|e| (own, e))?;
            let named = rules.with_limits(named);
            match auth::authorize(&named, path) {
                Ok(()) => Ok((named, token)),
                Err(status) => Err((named, status)),
            }
        });
        let (admitted, token) = admitted.map_err(|(caller, status)| {
            self.record(path, peer, caller, &status);
            status
        })?;
        connection.accept_call(token);
        // No handler and no log may see it.
        request.headers_mut().remove(http::header::AUTHORIZATION);
        request.extensions_mut().insert(admitted);
        Ok(())
    }

    fn record(&self, path: &str, peer: &Peer, caller: Caller, status: &Status) {
        let Some(trail) = &self.trail else { return };
        let is_named = !caller.owner.is_empty();
        let method = json::method(path).unwrap_or(OTHER);
        let info = status.get_details_error_info();
        let denied = LoggedRequest {
            rpc: method.rsplit('/').next().unwrap_or(method).to_owned(),
            by: caller.principal,
            credential: caller.credential,
            pid: peer.pid(),
            code: code_name(status.code()).to_owned(),
            reason: info.map(|info| info.reason).unwrap_or_default(),
            calls: 1,
            ..LoggedRequest::default()
        };
        let denied = match (peer.verdict, &peer.origin) {
            (PeerVerdict::OfARun(_), _) => denied.with("peer", "a process of a run"),
            (_, Origin::Network { address, .. }) => denied.with("address", address.to_string()),
            _ => denied,
        };
        let (run, of) = match peer.verdict {
            PeerVerdict::OfARun(Some(run)) => (Some(run.to_string()), DeniedCaller::Run),
            _ if is_named => (None, DeniedCaller::Named),
            _ => (None, DeniedCaller::Stranger),
        };
        trail.audit_denied(TrailRecord::now(run, TrailEntry::Request(denied)), of);
    }
}

impl<S, B> Middleware<S, Request<B>> for Gate
where
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Future = Either<S::Future, Ready<Result<Response<Body>, S::Error>>>;

    fn call(&self, inner: &mut S, mut request: Request<B>) -> Self::Future {
        match self.admit(&mut request) {
            Ok(()) => Either::Left(inner.call(request)),
            Err(status) => Either::Right(ready(Ok(status.into_http()))),
        }
    }
}
