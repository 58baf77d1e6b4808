//! Authorization: principals with a role and an owner, tokens, and the certificates of the network listeners.
//!
//! The access file defines it. It is read again when it or one of its files has changed, without dropping connections;
//! a connection whose certificate or token is no longer valid is cut.

pub(crate) mod exchange;
mod fetch;
mod file;
mod issuer;
mod key_set;
mod remote_keys;
mod rules;
mod tls;

pub use file::AccessError;
pub(crate) use rules::{AsRun, Attempt, Bearer, Caller, Quota, Rules, now};
pub(crate) use tls::ClientCertificate;

use kennel_supervisor::{OwnerQuotas, telemetry::Telemetry};
use opentelemetry::KeyValue;
use parking_lot::RwLock;
use remote_keys::RemoteKeys;
use rustls::ServerConfig;
use sha2::{Digest, Sha256};
use std::{
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::task::JoinSet;

/// The rules in force.
#[derive(Debug)]
pub struct Access {
    /// The access file; absent: only the server's own user and root may call.
    file: Option<PathBuf>,
    own_uid: u32,
    rules: RwLock<Arc<Rules>>,
}

impl Access {
    /// Reads the access file, if there is one. Blocks.
    pub fn open(file: Option<&Path>, own_uid: u32) -> Result<Self, AccessError> {
        let own = Self::own(file, own_uid);
        own.refresh()?;
        Ok(own)
    }

    /// Permits the server's own user and root, until the file can be read.
    pub fn own(file: Option<&Path>, own_uid: u32) -> Self {
        Self {
            file: file.map(Path::to_owned),
            own_uid,
            rules: RwLock::new(Arc::new(Rules::own(own_uid))),
        }
    }

    /// Whether connections over TCP can be served.
    pub fn has_certificate(&self) -> bool {
        self.tls().is_some()
    }

    /// Returns the access file, and the files with private keys that it names.
    pub fn private_files(&self) -> Vec<PathBuf> {
        let keys = self.rules().keys.clone();
        self.file.iter().cloned().chain(keys).collect()
    }

    /// Returns the rules in force.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read())
    }

    /// Returns the configuration of handshakes; absent: there is no certificate.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.rules().tls.as_ref().map(tls::Tls::server)
    }

    /// Begins the fetches of keys that are due; each ends by itself, in bounded time.
    pub(crate) fn fetch_keys(&self, fetches: &mut JoinSet<()>) {
        for keys in self
            .rules()
            .issuers
            .remote()
            .filter(|keys| keys.begin(now()))
        {
            let keys = Arc::clone(keys);
            fetches.spawn(async move {
                let answer = fetch::fetch(&keys.source).await;
                keys.end(answer, now());
            });
        }
    }

    /// Measures the keys of issuers that come from URLs.
    pub(crate) fn measure(self: &Arc<Self>, telemetry: &Telemetry) {
        let meter = telemetry.meter();
        let access = Arc::downgrade(self);
        meter
            .u64_observable_gauge("kennel.issuer.keys.age")
            .with_unit("s")
            .with_description("Time since the keys of an issuer were fetched from their URL")
            .with_callback(move |observer| {
                let rules = access.upgrade().map(|access| access.rules());
                for keys in rules.iter().flat_map(|rules| rules.issuers.remote()) {
                    if let Some(age) = keys.age(now()) {
                        observer.observe(age.as_secs(), &issuer(keys));
                    }
                }
            })
            .build();
        let access = Arc::downgrade(self);
        meter
            .u64_observable_counter("kennel.issuer.keys.failures")
            .with_unit("{fetch}")
            .with_description("Fetches of an issuer's keys that failed")
            .with_callback(move |observer| {
                let rules = access.upgrade().map(|access| access.rules());
                for keys in rules.iter().flat_map(|rules| rules.issuers.remote()) {
                    observer.observe(keys.failures(), &issuer(keys));
                }
            })
            .build();
    }

    /// Whether there is a file whose rules may change.
    pub(crate) fn may_change(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the files again if they have changed. Blocks.
    pub(crate) fn refresh(&self) -> Result<bool, AccessError> {
        let Some(file) = &self.file else {
            return Ok(false);
        };
        let rules = self.rules();
        let read = file::read(file)?;
        if read.content == rules.content {
            return Ok(false);
        }
        let fresh = Arc::new(read.rules(self.own_uid, &rules)?);
        let mut rules = self.rules.write();
        *rules = fresh;
        Ok(true)
    }
}

impl OwnerQuotas for Access {
    fn output_bytes_per_second(&self, owner: &str) -> Option<NonZeroU64> {
        self.rules().of_owner(owner).output_bytes_per_second
    }

    fn record_bytes(&self, owner: &str) -> Option<NonZeroU64> {
        self.rules().of_owner(owner).record_bytes
    }
}

fn issuer(keys: &RemoteKeys) -> [KeyValue; 1] {
    [KeyValue::new("kennel.issuer", keys.source.issuer.clone())]
}

/// A stored token: its SHA-256.
pub(crate) type TokenHash = [u8; 32];

/// Hashes a token for storage.
pub(crate) fn hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}
