//! Credentials of a client for a server on the network, and the authorities by which it verifies that server.
//!
//! Files are read anew for each connection, a token for each call: a replaced file is used without a restart.

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{PrivateKeyDer, ServerName, pem::PemObject},
    version::TLS13,
};
use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Protocol of the connections.
const ALPN: &[u8] = b"h2";
/// Longest token.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Files of hosts with the certificates of public authorities: Debian, Fedora, Alpine and others.
const SYSTEM_AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Credentials for a server on the network. Over a unix socket a process of a run sends its token; no other client
/// needs any.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// Certificates, of both ends.
    pub tls: Tls,
    /// A token, sent with each call.
    pub token: Option<Token>,
    /// User that a unix socket's server may run as, beside this process's own and root.
    pub server_user: Option<u32>,
    /// Time between two pings of a server behind a unix socket while a call is open, which ends the call of a halted one;
    /// absent: none. A server on the network is always pinged.
    pub local_pings: Option<Duration>,
    /// Whether streams of several readers share the connection: one that is not read leaves the others, and calls, their
    /// room. Without it the connection adapts to one reader, and a stream left unread holds up all other answers on it.
    pub is_shared: bool,
}

/// PEM files with certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Authorities of the server's certificate; absent: those that the host trusts.
    pub ca: Option<PathBuf>,
    /// Certificate of the client, followed by those between it and its authority.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Name that the server's certificate is for; absent: the host of the address.
    pub server_name: Option<String>,
}

/// A bearer token. Its text is never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    /// In this file, which may be replaced; blanks around it are ignored.
    File(PathBuf),
    /// This text.
    Text(String),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(..)"),
        }
    }
}

/// Certificates or a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("cannot read {what} from {path}")]
    Unreadable {
        /// Its expected contents.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file has other contents.
    #[error("cannot find {what} in {path}")]
    Missing {
        /// Its expected contents.
        what: &'static str,
        /// Its path.
        path: PathBuf,
    },
    /// A certificate without key, or a key without certificate.
    #[error("a certificate of the client and its key must be given together")]
    Incomplete,
    /// A certificate and a key that do not belong together.
    #[error("cannot use the certificate {certificate} with the key {key}")]
    Pair {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the key.
        key: PathBuf,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// There is no authority to verify the server by.
    #[error(
        "cannot verify any server: no CA certificate was given, and this host has none in a usual place"
    )]
    NoAuthority,
    /// The name cannot be in a certificate.
    #[error(
        "cannot look for {name:?} in a certificate: it is neither a host name nor an IP address"
    )]
    ServerName {
        /// The given name.
        name: String,
    },
}

impl Tls {
    /// Reads all files.
    pub(crate) fn read(&self) -> Result<Arc<ClientConfig>, CredentialsError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .expect("ring has suites of TLS 1.3")
            .with_root_certificates(self.authorities()?);
        let mut config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => builder
                .with_client_auth_cert(pem(certificate, "a certificate")?, private_key(key)?)
                .map_err(|source| CredentialsError::Pair {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    source,
                })?,
            (None, None) => builder.with_no_client_auth(),
            _ => return Err(CredentialsError::Incomplete),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Arc::new(config))
    }

    fn authorities(&self) -> Result<RootCertStore, CredentialsError> {
        let mut roots = RootCertStore::empty();
        let system = || {
            SYSTEM_AUTHORITIES
                .iter()
                .map(Path::new)
                .find(|path| path.is_file())
        };
        let path = self.ca.as_deref().or_else(system);
        let path = path.ok_or(CredentialsError::NoAuthority)?;
        let (added, _) = roots.add_parsable_certificates(pem(path, "a CA certificate")?);
        if added == 0 {
            let path = path.to_owned();
            return Err(CredentialsError::Missing {
                what: "a CA certificate",
                path,
            });
        }
        Ok(roots)
    }

    /// Returns the required name of the server's certificate.
    pub(crate) fn name(&self, host: &str) -> Result<ServerName<'static>, CredentialsError> {
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        ServerName::try_from(name.clone()).map_err(|_| CredentialsError::ServerName { name })
    }

    /// Returns the authorities, for a message.
    pub(crate) fn authorities_shown(&self) -> String {
        match &self.ca {
            Some(path) => path.display().to_string(),
            None => "this host's list".to_owned(),
        }
    }
}

fn read(path: &Path, what: &'static str) -> Result<Vec<u8>, CredentialsError> {
    fs::read(path).map_err(|source| CredentialsError::Unreadable {
        what,
        path: path.to_owned(),
        source,
    })
}

/// Reads all items of this kind in a PEM file: at least one.
pub fn pem<T: PemObject>(path: &Path, what: &'static str) -> Result<Vec<T>, CredentialsError> {
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&read(path, what)?).collect();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or_else(|| CredentialsError::Missing {
            what,
            path: path.to_owned(),
        })
}

/// Reads a private key in PEM.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CredentialsError> {
    Ok(pem(path, "a private key")?.swap_remove(0))
}

impl Token {
    /// Returns the value of the header, marked as sensitive, so that it is not logged.
    fn read(&self) -> Result<http::HeaderValue, CredentialsError> {
        let (text, path) = match self {
            Self::File(path) => (String::from_utf8(read(path, "a token")?).ok(), path.clone()),
            Self::Text(text) => (Some(text.clone()), PathBuf::from("the given text")),
        };
        let missing = || CredentialsError::Missing {
            what: "a token",
            path,
        };
        let text = text.unwrap_or_default();
        let text = text.trim();
        if text.is_empty() || text.len() > TOKEN_BYTES_MAX {
            return Err(missing());
        }
        let Ok(mut value) = http::HeaderValue::try_from(format!("Bearer {text}")) else {
            return Err(missing());
        };
        value.set_sensitive(true);
        Ok(value)
    }
}

/// A token, and the value that was sent last.
pub(crate) struct TokenReader {
    token: Token,
    last: Mutex<Option<http::HeaderValue>>,
}

impl fmt::Debug for TokenReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenReader").field(&self.token).finish()
    }
}

impl TokenReader {
    pub(crate) fn new(token: Token) -> Self {
        Self {
            token,
            last: Mutex::new(None),
        }
    }

    /// Returns the value of the header, read anew: a small file on this host. While the file is missing for a moment,
    /// during its replacement, the earlier value stays.
    pub(crate) fn value(&self) -> Result<http::HeaderValue, CredentialsError> {
        let read = self.token.read();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (read, &*last) {
            (Ok(value), _) => Ok(last.insert(value).clone()),
            (Err(_), Some(value)) => Ok(value.clone()),
            (Err(error), None) => Err(error),
        }
    }
}
