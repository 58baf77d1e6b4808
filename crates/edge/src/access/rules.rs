//! What the access file says, ready to be asked.

use super::tls::Tls;
use crate::pb::Role;
use sha2::{Digest, Sha256};
use std::{collections::HashMap, time::SystemTime};

/// A token as it is kept: its SHA-256.
pub(crate) type TokenHash = [u8; 32];

/// What a principal may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) role: Role,
    pub(crate) owner: String,
}

/// A token that is accepted.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) principal: String,
    /// Absent: it does not expire.
    pub(crate) expires: Option<SystemTime>,
}

/// Rules in force.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(super) own_uid: u32,
    pub(super) grants: HashMap<String, Grant>,
    pub(super) tokens: HashMap<TokenHash, Token>,
    pub(super) tls: Option<Tls>,
    /// What this server shows to other nodes, and by what it knows them; absent: nothing is forwarded over a network.
    pub(crate) forward: Option<kennel_client::Tls>,
    /// Hash of all files that they were read from.
    pub(super) content: TokenHash,
}

/// Who makes a call, and what it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) principal: String,
    /// Absent: it is no process of this pid namespace.
    pub(crate) pid: Option<i32>,
    pub(crate) role: Role,
    /// Owner of what it spawns.
    pub(crate) owner: String,
    /// The admin that calls on its behalf; absent: it calls itself.
    pub(crate) via: Option<String>,
}

impl Caller {
    /// The owner whose runs alone it may see; absent: it may see all.
    pub(crate) fn scope(&self) -> Option<&str> {
        (self.role < Role::Operator).then_some(self.owner.as_str())
    }
}

impl Rules {
    /// The server's own user and root alone.
    pub(crate) fn own(own_uid: u32) -> Self {
        Self {
            own_uid,
            grants: HashMap::new(),
            tokens: HashMap::new(),
            tls: None,
            forward: None,
            content: TokenHash::default(),
        }
    }

    /// What a process of this user may; absent: nothing.
    pub(crate) fn of_uid(&self, uid: u32, pid: Option<i32>) -> Option<Caller> {
        let principal = format!("uid:{uid}");
        if uid == 0 || uid == self.own_uid {
            return Some(Caller {
                owner: principal.clone(),
                principal,
                pid,
                role: Role::Admin,
                via: None,
            });
        }
        let caller = self.of_principal(&principal)?;
        Some(Caller { pid, ..caller })
    }

    /// What a principal may; absent: nothing.
    pub(crate) fn of_principal(&self, principal: &str) -> Option<Caller> {
        let grant = self.grants.get(principal)?;
        Some(Caller {
            principal: principal.to_owned(),
            pid: None,
            role: grant.role,
            owner: grant.owner.clone(),
            via: None,
        })
    }

    /// What the bearer of a token may; absent: it is not known, or has expired.
    pub(crate) fn of_token(&self, token: &TokenHash, now: SystemTime) -> Option<Caller> {
        let token = self.tokens.get(token)?;
        if token.expires.is_some_and(|expires| expires <= now) {
            return None;
        }
        self.of_principal(&token.principal)
    }

    /// Whether a certificate is still trusted.
    pub(crate) fn trusts(&self, certificate: &super::ClientCertificate) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.trusts(certificate))
    }
}

/// The time by which credentials expire.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// How a token is kept.
pub(crate) fn hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}
