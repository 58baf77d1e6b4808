//! Admits calls of permitted peers, and refuses all others. Refusals are in the audit log, summed.

use crate::{
    accept::ConnectionState,
    access::{self, Access, Bearer, Caller, Rules},
    auth::{self, Denied, Origin, Peer, PeerVerdict, behalf::on_behalf, run_tokens::RunTokens},
    json,
    layers::{Middleware, observe::OTHER},
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

    /// Who calls, and by which token; or why it may not.
    fn caller(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        rules: &Rules,
    ) -> Result<(Caller, Option<Bearer>), Denied> {
        if let (PeerVerdict::OfARun(run), Some(runs)) = (peer.verdict, &self.runs)
            && let Some(token) = auth::bearer(headers)
            && let Some(called) = runs.caller(token, run, peer.pid())
        {
            return called
                .map(|(caller, token)| (caller, Some(token)))
                .map_err(|refused| (String::new(), refused).into());
        }
        match peer.verdict.refusal() {
            Some(refused) => Err((peer.certificate(), refused).into()),
            None => peer.caller(headers, rules, access::now()),
        }
    }

    /// Refuses every call of a peer without rights.
    #[expect(
        clippy::result_large_err,
        reason = "a refusal has the caller, for the audit log"
    )]
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status> {
        let Some(connection) = request.extensions().get::<Arc<ConnectionState>>().cloned() else {
            return Err(status::internal("a request without a connection"));
        };
        let peer = &connection.peer;
        let uri = request.uri().clone();
        let path = uri.path();
        let rules = self.access.rules();
        let called = self.caller(peer, request.headers(), &rules);
        let called = called.map_err(|denied| {
            if denied.is_forged {
                connection.count_forgery();
            }
            let unknown = Caller {
                principal: peer.name(),
                credential: denied.credential,
                ..Caller::default()
            };
            (unknown, denied.status)
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
        // No handler and no log may see the token.
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
        trail
            .audit_log()
            .deny(TrailRecord::now(run, TrailEntry::Request(denied)), of);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::Places;
    use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
    use ring::{
        rand::SystemRandom,
        signature::{Ed25519KeyPair, KeyPair},
    };
    use serde_json::{Value, json};
    use std::fs;
    use tonic::Code;

    // promise: AC-11a
    #[test]
    fn second_forged_token_closes_the_connection() {
        let dir = tempfile::tempdir().expect("a directory");
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let key = Ed25519KeyPair::from_pkcs8(key.as_ref()).expect("its key");
        let key = BASE64.encode(key.public_key().as_ref());
        let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "e", "x": key}]});
        fs::write(dir.path().join("keys"), keys.to_string()).expect("own directory");
        let file = dir.path().join("access.toml");
        let issuer = "[[issuer]]\nname = 'https://a'\naudience = 'k'\nkeys = 'keys'\n";
        fs::write(&file, issuer).expect("own directory");
        let access = Arc::new(Access::open(Some(&file), 0).expect("good rules"));
        let gate = Gate::new(None, access, None);
        let part = |value: Value| BASE64.encode(value.to_string());
        let header = part(json!({"alg": "EdDSA", "kid": "e"}));
        let claims = json!({"iss": "https://a", "sub": "s", "aud": "k", "exp": 1_u64 << 40});
        let forged = format!("{header}.{}.{}", part(claims), BASE64.encode([0; 64]));
        let peer = Peer::of_network([127, 0, 0, 1].into(), None);
        let (place, _) = Places::default().take(&peer).expect("it is empty");
        let connection = ConnectionState::new(peer, &Arc::new(place));
        let call = || {
            let request = Request::builder()
                .header("authorization", format!("Bearer {forged}"))
                .extension(Arc::clone(&connection));
            gate.admit(&mut request.body(()).expect("a request"))
        };
        assert_eq!(call().expect_err("refused").code(), Code::Unauthenticated);
        assert!(!connection.is_cut(), "it gets its answer");
        call().expect_err("refused");
        assert!(connection.is_cut());
    }
}
