//! Authentication and authorization of peers.
//!
//! On a unix socket a peer is judged by the credentials of the socket: the server's own user, root, and the users of
//! the access file may call. A process of a run may not, unless it sends the token of that run: processes that a run has
//! started have no rights over other runs. Nor may a process for which that cannot be determined: it has exited, or
//! cannot be read. Over TCP a peer has a certificate, or a token with each call.
//!
//! A peer without rights is connected all the same, where there is a slot, and gets an error with the reason for every
//! call.

pub(crate) mod behalf;
pub(crate) mod run_tokens;

use crate::{
    access::{Bearer, Caller, ClientCertificate, Rules},
    convert::api_access,
    json,
    limits::{
        CONNECTIONS_MAX, CONNECTIONS_PER_PROCESS_MAX, CONNECTIONS_PER_RUN_MAX,
        CONNECTIONS_PER_USER_MAX, RUN_ANCESTORS_MAX,
    },
    pb::Role,
    status,
};
use http::HeaderMap;
use kennel_lifecycle::{RunId, is_run_name};
use kennel_proto::access;
use kennel_supervisor::{CallError, Descent, LoggedRequest, RunView, Supervisor};
use std::{net::IpAddr, sync::Arc, time::SystemTime};
use tonic::{Code, Extensions, Status};

/// The bound that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Full {
    /// One process has too many connections.
    Process,
    /// The processes of one user have too many.
    User,
    /// The processes of one run have too many, or those of all runs.
    Run,
    /// There are too many in total.
    All,
    /// There are too many refused ones.
    Refused,
}

/// Services outside of this contract: health and reflection.
const STANDARD_SERVICES: &str = "/grpc.";

/// The peer of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) origin: Origin,
    pub(crate) verdict: PeerVerdict,
    /// Owner of the run that it is a process of; absent: it is of none, or of one without a token.
    pub(crate) owner: Option<Arc<str>>,
}

/// Origin of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A process of this host.
    Process {
        uid: u32,
        /// Process id; absent: it is in a pid namespace that is not seen from here.
        pid: Option<i32>,
    },
    /// A client of the network.
    Network {
        address: IpAddr,
        /// Its certificate; absent: it needs a token.
        certificate: Option<Arc<ClientCertificate>>,
    },
}

/// Whether a peer may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerVerdict {
    Allowed,
    ForeignUser,
    /// The process is, or descends from, a run's own process: of this run, if that has a token.
    OfARun(Option<RunId>),
    /// The process that has connected has ended.
    Ended,
    /// The files that would show the owner of the process cannot be read.
    Unreadable,
    /// The peer could be permitted, and has too many connections.
    TooMany(Full),
}

impl PeerVerdict {
    /// Returns the answer to each call; `None`: it may call.
    pub(crate) fn refusal(self) -> Option<Status> {
        Some(match self {
            Self::Allowed => return None,
            Self::ForeignUser => unknown_user(),
            Self::OfARun(_) => status::permission_denied(
                "a process of a run may not use the server that runs it, unless it sends the run's token",
            ),
            Self::Ended => status::caller_unverified(
                "ended",
                "the connected process has ended: its owner can no longer be determined",
            ),
            Self::Unreadable => status::caller_unverified(
                "unreadable",
                "it cannot be read whose process has connected",
            ),
            Self::TooMany(full) => too_many(full),
        })
    }
}

/// Returns the answer to each call on a connection beyond this bound.
pub(crate) fn too_many(full: Full) -> Status {
    let (what, limit) = match full {
        Full::Process => ("connections of one process", CONNECTIONS_PER_PROCESS_MAX),
        Full::User => ("connections of one user", CONNECTIONS_PER_USER_MAX),
        Full::Run => ("connections of one run", CONNECTIONS_PER_RUN_MAX),
        Full::All | Full::Refused => ("connections", CONNECTIONS_MAX),
    };
    status::too_many(what, limit)
}

fn unknown_user() -> Status {
    status::permission_denied(
        "only the user of this server, root, and users that the access file names may use it",
    )
}

impl Peer {
    /// Judges a process; `descent` determines whether it is a run's.
    pub(crate) fn judge(
        uid: u32,
        pid: Option<i32>,
        rules: &Rules,
        descent: impl FnOnce() -> Descent,
    ) -> Self {
        let verdict = if rules.of_uid(uid, pid).is_none() {
            PeerVerdict::ForeignUser
        } else {
            match descent() {
                Descent::Other => PeerVerdict::Allowed,
                Descent::Member => PeerVerdict::OfARun(None),
                Descent::Ended => PeerVerdict::Ended,
                Descent::Unreadable => PeerVerdict::Unreadable,
            }
        };
        let origin = Origin::Process { uid, pid };
        Self {
            origin,
            verdict,
            owner: None,
        }
    }

    /// Makes the peer for a client of the network, with its verified certificate.
    pub(crate) fn of_network(address: IpAddr, certificate: Option<ClientCertificate>) -> Self {
        let certificate = certificate.map(Arc::new);
        Self {
            origin: Origin::Network {
                address,
                certificate,
            },
            verdict: PeerVerdict::Allowed,
            owner: None,
        }
    }

    /// Returns its name as known before a call.
    pub(crate) fn name(&self) -> String {
        match &self.origin {
            Origin::Process { uid, .. } => format!("uid:{uid}"),
            Origin::Network {
                certificate: Some(certificate),
                ..
            } => certificate.uri.clone(),
            Origin::Network { address, .. } => format!("ip:{address}"),
        }
    }

    /// Returns its certificate for the audit log; empty: it has none.
    pub(crate) fn certificate(&self) -> String {
        match &self.origin {
            Origin::Network {
                certificate: Some(certificate),
                ..
            } => format!("certificate:{}", certificate.serial),
            Origin::Process { .. } | Origin::Network { .. } => String::new(),
        }
    }

    /// Returns its process, where it is seen from here.
    pub(crate) fn pid(&self) -> Option<i32> {
        match self.origin {
            Origin::Process { pid, .. } => pid,
            Origin::Network { .. } => None,
        }
    }

    /// Returns the caller, and its token; or why it may not call.
    pub(crate) fn caller(
        &self,
        headers: &HeaderMap,
        rules: &Rules,
        now: SystemTime,
    ) -> Result<(Caller, Option<Bearer>), Denied> {
        let shown = self.certificate();
        match &self.origin {
            Origin::Process { uid, pid } => {
                let caller = rules.of_uid(*uid, *pid);
                let caller = caller.ok_or_else(|| (shown, unknown_user()))?;
                Ok((caller, None))
            }
            Origin::Network {
                certificate: Some(certificate),
                ..
            } => {
                let caller = rules.of_principal(&certificate.uri);
                let credential = shown.clone();
                let caller = caller.map(|caller| Caller {
                    credential,
                    ..caller
                });
                let unknown = "the access file does not name this certificate's URI";
                let caller = caller.ok_or_else(|| (shown, status::permission_denied(unknown)))?;
                Ok((caller, None))
            }
            Origin::Network { .. } => {
                let needed = "a client certificate or a token is needed";
                let token = bearer(headers);
                let token = token.ok_or_else(|| (shown, status::unauthenticated(needed)))?;
                let bearer = rules.bearer(token, now).map_err(|fault| {
                    let refused = if fault.lacks_keys {
                        status::issuer_unavailable(&fault.why)
                    } else {
                        status::unauthenticated(&fault.why)
                    };
                    Denied {
                        is_forged: fault.is_forged,
                        ..(fault.credential(), refused).into()
                    }
                })?;
                let credential = bearer.credential();
                let Some(caller) = rules.of_bearer(&bearer, now) else {
                    // Unknown tokens count as one credential.
                    let known = rules.knows(&bearer).then_some(credential);
                    let refused = match bearer {
                        Bearer::Token(_) => {
                            status::unauthenticated("the token is not known or has expired")
                        }
                        Bearer::Signed(_) | Bearer::Run(_) => status::permission_denied(
                            "the access file does not name this token's principal",
                        ),
                    };
                    return Err((known.unwrap_or_default(), refused).into());
                };
                Ok((
                    Caller {
                        credential,
                        ..caller
                    },
                    Some(bearer),
                ))
            }
        }
    }
}

/// Refusal of a call by what its peer has shown.
#[derive(Debug)]
pub(crate) struct Denied {
    /// What the audit log says of that.
    pub(crate) credential: String,
    pub(crate) status: Status,
    /// Whether it is a token with the signature of another than its issuer.
    pub(crate) is_forged: bool,
}

impl From<(String, Status)> for Denied {
    fn from((credential, status): (String, Status)) -> Self {
        Self {
            credential,
            status,
            is_forged: false,
        }
    }
}

/// Returns the token of a call.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Whether a caller may call the RPC at this path.
pub(crate) fn authorize(caller: &Caller, path: &str) -> Result<(), Status> {
    if let Some(run) = &caller.run
        && json::method(path).is_some()
        && !path.starts_with(STANDARD_SERVICES)
    {
        let own = api_access::shown(run.spec.api_access);
        match access::of_run(path) {
            Some(least) if own >= least => {}
            Some(_) => {
                return Err(status::permission_denied(
                    "the spec of the run does not grant this call",
                ));
            }
            None => return Err(status::permission_denied("no run may make this call")),
        }
    }
    let standard = || path.starts_with(STANDARD_SERVICES).then_some(Role::Viewer);
    match access::role(path).or_else(standard) {
        Some(least) if caller.role < least => Err(status::role_missing(caller.role, least)),
        None if json::method(path).is_some() => {
            Err(status::permission_denied("no role may make this call"))
        }
        // Unknown paths are answered by the services.
        Some(_) | None => Ok(()),
    }
}

/// Whether a caller may read events as a consumer, which holds output back: no viewer may, and no run.
pub(crate) fn may_consume(caller: &Caller) -> Result<(), Status> {
    if caller.run.is_some() {
        return Err(status::permission_denied("no run may be a consumer"));
    }
    if caller.role < Role::Spawner {
        return Err(status::role_missing(caller.role, Role::Spawner));
    }
    Ok(())
}

/// Takes the caller out of an admitted request.
pub(crate) fn caller(extensions: &mut Extensions) -> Result<Caller, Status> {
    let caller = extensions.remove::<Caller>();
    caller.ok_or_else(|| status::internal("a request without a caller"))
}

/// Returns a request of this caller for the audit log, with the node or proxy that has passed it on.
pub(crate) fn logged(caller: &Caller, rpc: &str, code: Code) -> LoggedRequest {
    let request = LoggedRequest {
        rpc: rpc.to_owned(),
        by: caller.principal.clone(),
        pid: caller.pid,
        credential: caller.credential.clone(),
        code: status::code_name(code).to_owned(),
        calls: 1,
        ..LoggedRequest::default()
    };
    match caller.via.clone() {
        Some(via) => request.with("via", via),
        None => request,
    }
}

/// Whose runs a caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// Those of this owner.
    Owner(String),
    /// A run of this owner, and those below it.
    Run {
        owner: String,
        run: RunId,
    },
}

impl Scope {
    pub(crate) fn of(caller: &Caller) -> Self {
        match (&caller.run, caller.scope()) {
            (Some(run), _) => Self::Run {
                owner: caller.owner.clone(),
                run: run.id,
            },
            (None, Some(owner)) => Self::Owner(owner.to_owned()),
            (None, None) => Self::All,
        }
    }

    /// The owner whose runs alone are seen; absent: those of all are.
    pub(crate) fn owner(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Owner(owner) | Self::Run { owner, .. } => Some(owner),
        }
    }
}

/// Whether a run is there and not among those that the caller may see. An absent run is an error.
pub(crate) async fn is_foreign(
    supervisor: &Supervisor,
    scope: &Scope,
    run: RunId,
) -> Result<bool, CallError> {
    let Some(owner) = scope.owner() else {
        return Ok(false);
    };
    let view = match supervisor.get_of(run, owner).await {
        Ok(Some(view)) => view,
        Ok(None) => return Ok(true),
        // A run's own node answers for it; a caller that is a run may not reach other nodes.
        Err(CallError::RunElsewhere { .. }) => return Ok(matches!(scope, Scope::Run { .. })),
        Err(error) => return Err(error),
    };
    let is_live = !view.state.is_terminal();
    let is_seen = view.owner == owner
        && match scope {
            Scope::Run { run, .. } => is_below(supervisor, view, *run).await?,
            Scope::All | Scope::Owner(_) => true,
        };
    if !is_seen && is_live {
        // A live run is found in memory, an absent run needs a database query: the time must not distinguish them.
        let absent = RunId::from_u128(run.as_u128() ^ 1 << 79);
        let _ = supervisor.get(absent).await;
    }
    Ok(!is_seen)
}

/// Whether a run is `ancestor`, or one below it.
async fn is_below(
    supervisor: &Supervisor,
    mut view: RunView,
    ancestor: RunId,
) -> Result<bool, CallError> {
    for _ in 0..RUN_ANCESTORS_MAX {
        if view.run == ancestor {
            return Ok(true);
        }
        let Some(parent) = view.spec.parent else {
            return Ok(false);
        };
        view = match supervisor.get(parent.run).await {
            Ok(parent) => parent,
            Err(CallError::RunNotFound(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
    }
    Ok(false)
}

/// Checks that the caller may see this run: one of another owner is answered like an absent one.
pub(crate) async fn in_scope(
    supervisor: &Supervisor,
    scope: &Scope,
    run: RunId,
) -> Result<(), Status> {
    match is_foreign(supervisor, scope, run).await {
        Ok(false) => Ok(()),
        Ok(true) => Err(status::of(&CallError::RunNotFound(run))),
        Err(error) => Err(status::of(&error)),
    }
}

/// Puts the id in the place of a run's name: the open run of the caller's owner, else its newest. A process of a run is
/// not shown a run that it may not see.
pub(crate) async fn resolve_name(
    supervisor: &Supervisor,
    caller: &Caller,
    text: &mut String,
) -> Result<(), Status> {
    if text.parse::<RunId>().is_ok() || !is_run_name(text) {
        return Ok(());
    }
    // Boxed: most calls need no lookup.
    let look = Box::pin(async {
        let run = supervisor.run_named(&caller.owner, text).await?;
        if caller.run.is_some() {
            let own = Scope::of(caller);
            let seen = in_scope(supervisor, &own, run).await;
            seen.map_err(|_| CallError::NoRunNamed(text.clone()))?;
        }
        Ok(run)
    });
    *text = look.await.map_err(|error| status::of(&error))?.to_string();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    // promise: A-10
    #[test]
    fn other_users_may_not_call() {
        let rules = Rules::own(1000);
        let verdict = |uid| Peer::judge(uid, Some(9), &rules, || Descent::Other).verdict;
        assert_eq!(verdict(1000), PeerVerdict::Allowed);
        assert_eq!(verdict(0), PeerVerdict::Allowed);
        assert_eq!(verdict(1001), PeerVerdict::ForeignUser);
    }

    // promise: A-11a
    #[test]
    fn processes_of_runs_may_not_call() {
        for uid in [0, 1000] {
            for (descent, verdict) in [
                (Descent::Member, PeerVerdict::OfARun(None)),
                (Descent::Ended, PeerVerdict::Ended),
                (Descent::Unreadable, PeerVerdict::Unreadable),
            ] {
                let peer = Peer::judge(uid, Some(9), &Rules::own(1000), || descent);
                assert_eq!(peer.verdict, verdict);
                let status = verdict.refusal().expect("refused");
                assert_eq!(status.code(), Code::PermissionDenied);
            }
        }
        assert!(PeerVerdict::Allowed.refusal().is_none());
    }

    #[test]
    fn peers_with_too_many_connections_are_refused() {
        for full in [Full::Process, Full::User, Full::Run, Full::All] {
            let status = PeerVerdict::TooMany(full).refusal().expect("refused");
            assert_eq!(status.code(), Code::ResourceExhausted);
        }
    }

    // promise: AC-1
    #[test]
    fn each_role_includes_the_lesser_roles() {
        let caller = |role| Caller {
            principal: "a".to_owned(),
            role,
            owner: "a".to_owned(),
            ..Caller::default()
        };
        let may = |role, rpc: &str| authorize(&caller(role), &format!("/kennel.v1.{rpc}")).is_ok();
        assert!(may(Role::Viewer, "ProcessService/GetRun"));
        assert!(!may(Role::Viewer, "ProcessService/Spawn"));
        assert!(may(Role::Spawner, "ProcessService/Spawn"));
        assert!(!may(Role::Operator, "AdminService/Drain"));
        assert!(may(Role::Admin, "AdminService/Drain"));
        assert!(authorize(&caller(Role::Viewer), "/grpc.health.v1.Health/Check").is_ok());
    }

    #[test]
    fn viewers_and_runs_may_not_register_consumers() {
        let caller = |role| Caller {
            role,
            ..Caller::default()
        };
        assert!(may_consume(&caller(Role::Viewer)).is_err());
        assert!(may_consume(&caller(Role::Spawner)).is_ok());
        let run = Some(crate::access::AsRun {
            id: RunId::from_u128(1),
            spec: Arc::default(),
        });
        let of_run = Caller {
            run,
            ..caller(Role::Admin)
        };
        assert!(may_consume(&of_run).is_err());
    }

    #[test]
    fn bearer_tokens_are_read_from_their_header() {
        let with = |value: &str| {
            let value = value.parse().expect("a header");
            HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])
        };
        assert_eq!(bearer(&with("Bearer abc")), Some("abc"));
        assert_eq!(bearer(&with("bearer abc")), Some("abc"));
        assert_eq!(bearer(&with("Basic abc")), None);
        assert_eq!(bearer(&with("Bearer ")), None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
