//! The access file, in TOML.

use super::{
    issuer::{IssuerEntry, Issuers},
    rules::{AcceptedToken, Grant, Granted, Quota, Rules},
    tls::{self, Tls, TlsError},
};
use crate::{access::TokenHash, pb::Role};
use kennel_proto::access;
use serde::{Deserialize, Deserializer, de::Error as _};
use sha2::{Digest, Sha256};
use std::{
    collections::{HashMap, hash_map::Entry},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

/// The access file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file does not have the required format.
    #[error("{}: {source}", path.display())]
    Form {
        /// Path of the file.
        path: PathBuf,
        /// The fault and its position.
        source: Box<toml::de::Error>,
    },
    /// A value is invalid.
    #[error("{}: {what}", path.display())]
    Value {
        /// Path of the file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// Certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessFile {
    tls: Option<tls::Files>,
    forward: Option<tls::NodeFiles>,
    #[serde(default, rename = "principal")]
    principals: Vec<Principal>,
    #[serde(default, rename = "token")]
    tokens: Vec<TokenEntry>,
    /// Quotas by owner; `*` stands for each owner without one.
    #[serde(default, rename = "quota")]
    quotas: HashMap<String, Quota>,
    #[serde(default, rename = "issuer")]
    issuers: Vec<IssuerEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Principal {
    name: String,
    #[serde(deserialize_with = "role")]
    role: Role,
    owner: Option<String>,
    /// Users that its commands may run as.
    #[serde(default)]
    run_as: Vec<u32>,
    /// Groups that they may have, beside those with the numbers of these users.
    #[serde(default)]
    run_as_groups: Vec<u32>,
    /// Secrets of the server that they may have.
    #[serde(default)]
    secrets: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    id: String,
    sha256: String,
    expires: Option<String>,
}

fn role<'de, D: Deserializer<'de>>(from: D) -> Result<Role, D::Error> {
    let text = String::deserialize(from)?;
    access::named(&text).ok_or_else(|| {
        D::Error::custom(format!(
            "unknown role {text:?}, expected viewer, spawner, operator or admin"
        ))
    })
}

/// The access file as read, and a hash of it and of all files that it refers to.
pub(super) struct ReadAccess {
    path: PathBuf,
    file: AccessFile,
    pub(super) content: TokenHash,
}

/// Reads the files. Blocks.
pub(super) fn read(path: &Path) -> Result<ReadAccess, AccessError> {
    let bytes = read_file(path)?;
    let mut file: AccessFile = toml::from_slice(&bytes).map_err(|source| AccessError::Form {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    let mut hash = Sha256::new();
    hash.update(&bytes);
    let dir = path.parent().unwrap_or(Path::new(""));
    let served = file.tls.iter_mut().flat_map(tls::Files::paths);
    let shown = file.forward.iter_mut().flat_map(tls::NodeFiles::paths);
    for path in file.issuers.iter_mut().flat_map(IssuerEntry::later_paths) {
        *path = dir.join(&path);
    }
    let signed = file.issuers.iter_mut().flat_map(IssuerEntry::paths);
    for path in served.chain(shown).chain(signed) {
        *path = dir.join(&path);
        let bytes = read_file(path)?;
        hash.update(bytes.len().to_le_bytes());
        hash.update(&bytes);
    }
    Ok(ReadAccess {
        path: path.to_owned(),
        file,
        content: hash.finalize().into(),
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, AccessError> {
    fs::read(path).map_err(|source| AccessError::Read {
        path: path.to_owned(),
        source,
    })
}

impl ReadAccess {
    /// Builds its rules; keys that `before` has fetched stay. Blocks.
    pub(super) fn rules(&self, own_uid: u32, before: &Rules) -> Result<Rules, AccessError> {
        let wrong = |what: String| AccessError::Value {
            path: self.path.clone(),
            what,
        };
        let grants = grants(&self.file.principals).map_err(wrong)?;
        let tokens = tokens(&self.file.tokens, &grants).map_err(wrong)?;
        let issuers = Issuers::read(&self.file.issuers, &before.issuers).map_err(wrong)?;
        let tls = self.file.tls.as_ref().map(Tls::read).transpose()?;
        let forward = self.file.forward.as_ref();
        let forward = forward.map(tls::NodeFiles::read).transpose()?;
        let keys = self.file.tls.iter().map(|files| &files.key);
        let keys = keys.chain(self.file.forward.iter().map(|files| &files.key));
        let own = Rules::own(own_uid);
        let admins = grants.values().filter(|grant| grant.role >= Role::Admin);
        let admins = admins.map(|grant| grant.owner.clone());
        Ok(Rules {
            admins: own.admins.iter().cloned().chain(admins).collect(),
            grants,
            tokens,
            quotas: self.file.quotas.clone(),
            issuers,
            tls,
            forward,
            keys: keys.cloned().collect(),
            content: self.content,
            ..own
        })
    }
}

fn grants(principals: &[Principal]) -> Result<HashMap<String, Grant>, String> {
    let mut grants = HashMap::new();
    for Principal {
        name,
        role,
        owner,
        run_as,
        run_as_groups,
        secrets,
    } in principals
    {
        if name.is_empty() || owner.as_ref().is_some_and(String::is_empty) {
            return Err(format!("a principal or its owner is empty: {name:?}"));
        }
        let grant = Grant {
            role: *role,
            owner: owner.as_ref().unwrap_or(name).clone(),
            granted: Arc::new(Granted {
                users: run_as.clone(),
                groups: run_as_groups.clone(),
                secrets: secrets.clone(),
            }),
        };
        match grants.entry(name.clone()) {
            Entry::Occupied(_) => return Err(format!("principal {name:?} stands there twice")),
            Entry::Vacant(place) => place.insert(grant),
        };
    }
    Ok(grants)
}

fn tokens(
    entries: &[TokenEntry],
    grants: &HashMap<String, Grant>,
) -> Result<HashMap<TokenHash, AcceptedToken>, String> {
    let mut tokens = HashMap::new();
    for TokenEntry {
        id,
        sha256,
        expires,
    } in entries
    {
        let principal = format!("token:{id}");
        if !grants.contains_key(&principal) {
            return Err(format!(
                "token {id:?} has no principal: add one with the name {principal:?}"
            ));
        }
        let mut hash = TokenHash::default();
        let read = hex::decode_to_slice(sha256, &mut hash);
        read.map_err(|_| format!("sha256 of token {id:?} is not 64 hexadecimal digits"))?;
        let expires = expires.as_deref().map(humantime::parse_rfc3339).transpose();
        let expires: Option<SystemTime> =
            expires.map_err(|e| format!("expires of token {id:?}: {e}"))?;
        tokens.insert(hash, AcceptedToken { principal, expires });
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        access::{self, rules},
        auth::Peer,
    };
    use std::{
        num::{NonZeroU32, NonZeroU64},
        time::Duration,
    };

    fn written(text: &str) -> Result<Rules, AccessError> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("access.toml");
        fs::write(&path, text).expect("it is written");
        read(&path)?.rules(1000, &Rules::own(1000))
    }

    #[test]
    fn access_file_gives_principals_role_and_owner() {
        let rules = written(
            "[[principal]]\nname = 'spiffe://a/b'\nrole = 'spawner'\nowner = 'team'\n\
             [[principal]]\nname = 'uid:7'\nrole = 'viewer'\n",
        )
        .expect("it is good");
        let caller = rules.of_principal("spiffe://a/b").expect("known");
        assert_eq!((caller.role, caller.scope()), (Role::Spawner, Some("team")));
        let caller = rules.of_uid(7, Some(1)).expect("known");
        assert_eq!((caller.role, caller.scope()), (Role::Viewer, Some("uid:7")));
        assert_eq!(rules.of_uid(8, None), None);
        let own = rules.of_uid(1000, None).expect("its own user");
        assert_eq!((own.role, own.scope()), (Role::Admin, None));
    }

    // promise: RW-93a
    #[test]
    fn forwarded_caller_of_another_host_has_no_grants() {
        let grants = "role = 'spawner'\nrun_as = [7]\nsecrets = ['file:*']\n";
        let rules = written(&format!(
            "[[principal]]\nname = 'uid:7'\n{grants}[[principal]]\nname = 'spiffe://a/b'\n{grants}"
        ))
        .expect("it is good");
        let user = kennel_lifecycle::RunUser {
            uid: 7,
            gid: 7,
            groups: Vec::new(),
        };
        let may = |principal: &str, via: Option<&str>| {
            let caller = rules.of_principal(principal).expect("known");
            let via = via.map(str::to_owned);
            let caller = rules.with_limits(rules::Caller { via, ..caller });
            (caller.may_run_as(&user), caller.may_have_secret("file:db"))
        };
        let node = Some("spiffe://a/node");
        assert_eq!(may("uid:7", None), (true, true));
        assert_eq!(may("uid:7", node), (false, false));
        assert_eq!(may("spiffe://a/b", node), (true, true));
    }

    // promise: RW-141, AC-7
    #[test]
    fn two_tokens_of_one_id_are_valid_together() {
        let entry = |token: &str, expires: &str| {
            let digits = access::hash(token).map(|byte| format!("{byte:02x}"));
            let sha256 = digits.concat();
            format!("[[token]]\nid = 'ci'\nsha256 = '{sha256}'\nexpires = '{expires}'\n")
        };
        let text = format!(
            "[[principal]]\nname = 'token:ci'\nrole = 'operator'\n{}{}",
            entry("old", "2026-01-01T00:00:00Z"),
            entry("new", "2030-01-01T00:00:00Z")
        );
        let rules = written(&text).expect("it is good");
        let at = |rfc: &str| humantime::parse_rfc3339(rfc).expect("a time");
        let of =
            |token: &str, now| rules.of_bearer(&rules.bearer(token, now).expect("a token"), now);
        let before = at("2025-12-31T23:59:59Z");
        assert!(of("old", before).is_some() && of("new", before).is_some());
        let after = before + Duration::from_secs(1);
        assert!(of("old", after).is_none() && of("new", after).is_some());
        assert!(of("other", before).is_none());

        // The denial of a known token names its credential.
        let denied = |token: &str| {
            let value = format!("Bearer {token}").parse().expect("a header");
            let headers = http::HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]);
            let peer = Peer::of_network([127, 0, 0, 1].into(), None);
            let denied = peer.caller(&headers, &rules, after);
            denied.expect_err("it is denied").credential
        };
        let old = rules::Bearer::Token(access::hash("old"));
        assert_eq!(denied("old"), old.credential());
        assert_eq!(denied("other"), "");
    }

    #[test]
    fn default_output_rate_does_not_apply_to_admins() {
        let rules = written(
            "[[principal]]\nname = 'spiffe://a/b'\nrole = 'admin'\nowner = 'ops'\n\
             [quota.'*']\noutput_bytes_per_second = 5\n[quota.slow]\noutput_bytes_per_second = 1\n\
             [quota.free]\nlive_runs = 2\n",
        )
        .expect("it is good");
        let rate = |owner: &str| {
            let quota = rules.of_owner(owner);
            quota.output_bytes_per_second.map_or(0, NonZeroU64::get)
        };
        for owner in ["ops", "uid:0", "uid:1000", "free"] {
            assert_eq!(rate(owner), 0, "{owner}");
        }
        assert_eq!((rate("team"), rate("slow")), (5, 1));
    }

    // promise: I-131
    #[test]
    fn owners_without_an_entry_have_default_quotas() {
        let entries = "[[principal]]\nname = 'spiffe://a/b'\nrole = 'spawner'\n\
             [[principal]]\nname = 'spiffe://a/c'\nrole = 'admin'\n\
             [[principal]]\nname = 'spiffe://a/d'\nrole = 'viewer'\nowner = 'team'\n\
             [quota.team]\ncalls = 5\n";
        let rules = written(entries).expect("it is good");
        let quota = |principal: &str| {
            let caller = rules.of_principal(principal).expect("it is named");
            rules.with_limits(caller).quota
        };
        let [usual, admin, team] = ["spiffe://a/b", "spiffe://a/c", "spiffe://a/d"].map(quota);
        let bounds = |quota: Quota| {
            let calls = quota.calls.map_or(0, NonZeroU32::get);
            let bytes = [quota.request_bytes, quota.record_bytes];
            (calls, bytes.map(|most| most.map_or(0, NonZeroU64::get)))
        };
        let bytes = [64_000_000, 1 << 30];
        assert_eq!(bounds(usual), (1000, bytes));
        assert_eq!(bounds(team), (5, bytes), "others are as usual");
        for own in ["uid:0", "spiffe://a/c"] {
            assert_eq!(rules.of_owner(own), Quota::default(), "{own}");
        }
        assert_eq!(admin, Quota::default());
    }

    // promise: AC-7
    #[test]
    fn faults_of_the_access_file_are_named() {
        for (text, named) in [
            ("[[principal]]\nname = 'a'\nrole = 'boss'\n", "boss"),
            (
                "[[principal]]\nname = 'a'\nrole = 'admin'\nrights = 1\n",
                "rights",
            ),
            ("[[principal]]\nname = ''\nrole = 'admin'\n", "is empty"),
            (
                "[[principal]]\nname = 'a'\nrole = 'admin'\n[[principal]]\nname = 'a'\nrole = 'admin'\n",
                "twice",
            ),
            ("[[token]]\nid = 'ci'\nsha256 = 'ab'\n", "token:ci"),
            (
                "[[principal]]\nname = 'token:ci'\nrole = 'admin'\n[[token]]\nid = 'ci'\nsha256 = 'ab'\n",
                "64",
            ),
            (
                "[tls]\ncertificate = 'none.pem'\nkey = 'none.key'\n",
                "none.pem",
            ),
        ] {
            let error = written(text).expect_err("it is refused").to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
