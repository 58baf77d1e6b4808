//! The rules of the access file, ready for queries.

use super::{
    issuer::{Issuers, Signed, TokenFault, signed_by},
    tls::Tls,
};
use crate::{
    access::{TokenHash, hash},
    pb::Role,
};
use kennel_lifecycle::{RecordedSpec, RunId, RunUser};
use serde::Deserialize;
use std::{
    collections::{HashMap, HashSet},
    num::{NonZeroU32, NonZeroU64},
    path::PathBuf,
    sync::Arc,
    time::SystemTime,
};

/// Bytes of a token's hash that the audit log has.
const TOKEN_HASH_SHOWN: usize = 8;

/// Rights of a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) role: Role,
    pub(crate) owner: String,
    /// What its commands may have beyond the server's defaults.
    pub(crate) granted: Arc<Granted>,
}

/// What commands of a principal may have: users and groups by number, and secrets of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Granted {
    /// Users that its commands may run as.
    pub(crate) users: Vec<u32>,
    /// Groups beside those with the number of a user.
    pub(crate) groups: Vec<u32>,
    /// Secrets that its commands may have, such as `file:db`; one that ends with `*` stands for all that begin so.
    pub(crate) secrets: Vec<String>,
}

/// Quota of what one owner's principals and runs use together. Absent: limited only by the node, as for admins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default = "Quota::of_owners")]
pub(crate) struct Quota {
    /// Runs that have not ended.
    pub(crate) live_runs: Option<NonZeroU32>,
    /// Calls per second that start a run or an attempt; as many may come at once.
    pub(crate) spawns_per_second: Option<NonZeroU32>,
    /// Streams of events, attached terminals, and waits for output.
    pub(crate) streams: Option<NonZeroU32>,
    /// Calls in progress, streams among them.
    pub(crate) calls: Option<NonZeroU32>,
    /// Bytes of requests that are not answered, whole or not.
    pub(crate) request_bytes: Option<NonZeroU64>,
    /// Bytes of answers that its clients have not taken.
    pub(crate) stream_bytes: Option<NonZeroU64>,
    /// Bytes of its rows in the database, from which on none is added and none grows.
    pub(crate) record_bytes: Option<NonZeroU64>,
    /// Bytes of output on the disk, of live and ended runs, from which on no run is begun.
    pub(crate) output_bytes: Option<NonZeroU64>,
    /// Bytes a second at which the output of its runs together is read.
    pub(crate) output_bytes_per_second: Option<NonZeroU64>,
}

impl Quota {
    /// The quota of an owner for which the access file has no other values.
    pub(super) fn of_owners() -> Self {
        Self {
            calls: NonZeroU32::new(1000),
            request_bytes: NonZeroU64::new(64_000_000),
            record_bytes: NonZeroU64::new(1 << 30),
            ..Self::default()
        }
    }
}

/// An accepted token.
#[derive(Clone, Debug)]
pub(crate) struct AcceptedToken {
    pub(crate) principal: String,
    /// Time of expiry; absent: it does not expire.
    pub(crate) expires: Option<SystemTime>,
}

/// One attempt of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub(crate) run: RunId,
    pub(crate) number: u32,
}

/// Credentials in a call, as they are checked again while its connection is open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bearer {
    /// The token of an attempt.
    Run(Attempt),
    /// A token of the access file.
    Token(TokenHash),
    /// A token signed by an issuer.
    Signed(Signed),
}

impl Bearer {
    /// Returns what the audit log says of it: the beginning of its hash as in the access file, or the key that has
    /// signed it; empty: the principal says it.
    pub(crate) fn credential(&self) -> String {
        match self {
            Self::Run(_) => String::new(),
            Self::Token(hash) => {
                format!("token:sha256:{}", hex::encode(&hash[..TOKEN_HASH_SHOWN]))
            }
            Self::Signed(signed) => signed_by(signed.key()),
        }
    }
}

/// Rules in force.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(super) own_uid: u32,
    pub(super) grants: HashMap<String, Grant>,
    /// Owners of the runs of admins.
    pub(super) admins: HashSet<String>,
    /// Quotas by owner; `*` stands for each owner without one.
    pub(super) quotas: HashMap<String, Quota>,
    pub(super) tokens: HashMap<TokenHash, AcceptedToken>,
    pub(super) issuers: Issuers,
    pub(super) tls: Option<Tls>,
    /// Credentials of this server for other nodes, and the authorities for them; absent: nothing is forwarded over a
    /// network.
    pub(crate) forward: Option<kennel_client::Tls>,
    /// Files with private keys that the access file names.
    pub(super) keys: Vec<PathBuf>,
    /// Hash of all files that they were read from.
    pub(super) content: TokenHash,
}

/// Caller of a call, with its rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) principal: String,
    /// Process id; absent: it is no process of this pid namespace.
    pub(crate) pid: Option<i32>,
    pub(crate) role: Role,
    /// Owner of the runs that it spawns.
    pub(crate) owner: String,
    /// The admin that calls on its behalf; absent: it calls directly.
    pub(crate) via: Option<String>,
    /// What its peer has shown, for the audit log; empty: it is known by its process.
    pub(crate) credential: String,
    /// Quota of its owner.
    pub(crate) quota: Quota,
    /// What its commands may have, beside the server's own user; an admin's may have anything.
    pub(crate) granted: Arc<Granted>,
    /// The run that it is a process of; absent: it is of none.
    pub(crate) run: Option<AsRun>,
}

/// A run whose process calls with its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AsRun {
    pub(crate) id: RunId,
    /// What it grants, and what runs that it spawns are held to.
    pub(crate) spec: Arc<RecordedSpec>,
}

impl Caller {
    /// Whether it is a user of the host of the admin that calls on its behalf. The user of that number here is another.
    pub(crate) fn is_user_elsewhere(&self) -> bool {
        self.via.is_some() && self.principal.starts_with("uid:")
    }

    /// Whether it calls over the network, here or at the node that calls on its behalf.
    pub(crate) fn is_remote(&self) -> bool {
        self.via.is_some() || !self.credential.is_empty()
    }

    /// Whether it has the rights of the server's own user, so that it gains none by a process of that user.
    pub(crate) fn has_all_rights(&self) -> bool {
        self.role >= Role::Admin && self.run.is_none()
    }

    /// Whether its commands may run as this user with these groups.
    pub(crate) fn may_run_as(&self, user: &RunUser) -> bool {
        let Granted { users, groups, .. } = &*self.granted;
        let may_have = |group: &u32| users.contains(group) || groups.contains(group);
        self.role >= Role::Admin
            || users.contains(&user.uid) && may_have(&user.gid) && user.groups.iter().all(may_have)
    }

    /// Whether its commands may have this secret of the server. What a run may have was decided when it was spawned, and
    /// its children have no more.
    pub(crate) fn may_have_secret(&self, secret: &str) -> bool {
        let names = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => secret.starts_with(start),
            None => secret == pattern,
        };
        self.role >= Role::Admin || self.run.is_some() || self.granted.secrets.iter().any(names)
    }

    /// Returns the owner whose runs alone it may see; absent: it may see all.
    pub(crate) fn scope(&self) -> Option<&str> {
        (self.role < Role::Operator).then_some(self.owner.as_str())
    }
}

impl Rules {
    /// Permits the server's own user and root alone.
    pub(crate) fn own(own_uid: u32) -> Self {
        Self {
            own_uid,
            grants: HashMap::new(),
            admins: [0, own_uid].map(|uid| format!("uid:{uid}")).into(),
            quotas: HashMap::new(),
            tokens: HashMap::new(),
            issuers: Issuers::default(),
            tls: None,
            forward: None,
            keys: Vec::new(),
            content: TokenHash::default(),
        }
    }

    /// Returns the caller with the quota of its owner and what its principal is granted; an admin has no limits.
    pub(crate) fn with_limits(&self, caller: Caller) -> Caller {
        if caller.role >= Role::Admin {
            return caller;
        }
        let grant = self.grants.get(&caller.principal);
        let grant = grant.filter(|_| !caller.is_user_elsewhere());
        let quota = self.quotas.get(&caller.owner);
        let quota = quota.or_else(|| self.quotas.get("*"));
        Caller {
            quota: quota.copied().unwrap_or_else(Quota::of_owners),
            granted: grant.map(|grant| grant.granted.clone()).unwrap_or_default(),
            ..caller
        }
    }

    /// Returns the quota of an owner's runs and records, whichever principal has made them. `*` and what is usual do not
    /// hold for the owner of an admin. It is called for each read of output.
    pub(crate) fn of_owner(&self, owner: &str) -> Quota {
        let others = || match self.quotas.get("*") {
            _ if self.admins.contains(owner) => Quota::default(),
            quota => quota.copied().unwrap_or_else(Quota::of_owners),
        };
        let own = self.quotas.get(owner).copied();
        own.unwrap_or_else(others)
    }

    /// Returns the caller for a process of this user; absent: it has no rights.
    pub(crate) fn of_uid(&self, uid: u32, pid: Option<i32>) -> Option<Caller> {
        let principal = format!("uid:{uid}");
        if uid == 0 || uid == self.own_uid {
            return Some(Caller {
                owner: principal.clone(),
                principal,
                pid,
                role: Role::Admin,
                ..Caller::default()
            });
        }
        let caller = self.of_principal(&principal)?;
        Some(Caller { pid, ..caller })
    }

    /// Returns the caller for a principal; absent: it has no rights.
    pub(crate) fn of_principal(&self, principal: &str) -> Option<Caller> {
        let grant = self.grants.get(principal)?;
        Some(Caller {
            principal: principal.to_owned(),
            role: grant.role,
            owner: grant.owner.clone(),
            ..Caller::default()
        })
    }

    /// Verifies a token.
    pub(crate) fn bearer(&self, token: &str, now: SystemTime) -> Result<Bearer, TokenFault> {
        let hash = hash(token);
        if self.tokens.contains_key(&hash) || self.issuers.is_empty() {
            return Ok(Bearer::Token(hash));
        }
        self.issuers.check(token, hash, now).map(Bearer::Signed)
    }

    /// Returns the caller for the bearer of a token; absent: the token is not known, or has expired.
    pub(crate) fn of_bearer(&self, bearer: &Bearer, now: SystemTime) -> Option<Caller> {
        match bearer {
            // These rules do not cover run tokens.
            Bearer::Run(_) => None,
            Bearer::Token(hash) => {
                let token = self.tokens.get(hash)?;
                if token.expires.is_some_and(|expires| expires <= now) {
                    return None;
                }
                self.of_principal(&token.principal)
            }
            Bearer::Signed(signed) => {
                let holds = self.issuers.holds(signed, now);
                holds.then(|| self.of_principal(&signed.principal()))?
            }
        }
    }

    /// Whether this is a token of the access file, or one that an issuer has signed, and no guess.
    pub(crate) fn knows(&self, bearer: &Bearer) -> bool {
        match bearer {
            Bearer::Run(_) => false,
            Bearer::Token(hash) => self.tokens.contains_key(hash),
            Bearer::Signed(_) => true,
        }
    }

    /// Whether a certificate is still trusted.
    pub(crate) fn trusts(&self, certificate: &super::ClientCertificate) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.trusts(certificate))
    }
}

/// Returns the time by which credentials expire.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
