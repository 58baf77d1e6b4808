//! TLS of the network listeners: version 1.3, HTTP/2, client certificates where a CA for them is given.

use kennel_client::{CredentialsError, pem, private_key, shown};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    version::TLS13,
};
use serde::Deserialize;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use webpki::EndEntityCert;

/// Reason why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file has no readable certificate, key or list.
    #[error("{}", shown(.0))]
    File(#[from] CredentialsError),
    /// Certificate and key do not belong together.
    #[error("cannot use certificate and key: {0}")]
    Key(#[source] rustls::Error),
    /// The CA of clients, or the list of revoked certificates, is unusable.
    #[error("cannot use the CA of clients: {0}")]
    ClientCa(String),
}

/// Files for TLS.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Files {
    certificate: PathBuf,
    pub(super) key: PathBuf,
    client_ca: Option<PathBuf>,
    crl: Option<PathBuf>,
}

impl Files {
    /// Returns all of them.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let others = self.client_ca.iter_mut().chain(&mut self.crl);
        [&mut self.certificate, &mut self.key]
            .into_iter()
            .chain(others)
    }
}

/// Files with which this server calls other nodes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeFiles {
    certificate: PathBuf,
    pub(super) key: PathBuf,
    ca: PathBuf,
}

impl NodeFiles {
    /// Returns all of them.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [&mut self.certificate, &mut self.key, &mut self.ca].into_iter()
    }

    /// Returns them for the connections to other nodes, which read them again.
    pub(super) fn read(&self) -> Result<kennel_client::Tls, TlsError> {
        pem::<CertificateDer<'_>>(&self.ca, "a certificate")?;
        pem::<CertificateDer<'_>>(&self.certificate, "a certificate")?;
        private_key(&self.key)?;
        Ok(kennel_client::Tls {
            ca: Some(self.ca.clone()),
            certificate: Some(self.certificate.clone()),
            key: Some(self.key.clone()),
            server_name: None,
        })
    }
}

/// Configuration of handshakes, and of the verification of client certificates.
#[derive(Debug)]
pub(crate) struct Tls {
    server: Arc<ServerConfig>,
    /// Verifier; absent: clients have no certificates.
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

/// A verified certificate of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    chain: Vec<CertificateDer<'static>>,
    /// The principal: its first URI with an authority, such as `spiffe://kennel/alice`.
    pub(crate) uri: String,
    /// Its serial number in hexadecimal digits.
    pub(crate) serial: String,
}

impl ClientCertificate {
    /// Reads a chain whose first certificate is the client's; absent: it has no URI.
    pub(crate) fn read(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let chain: Vec<_> = chain.iter().map(|one| one.clone().into_owned()).collect();
        let first = EndEntityCert::try_from(chain.first()?).ok()?;
        let uri = principal(first.valid_uri_names())?.to_owned();
        let serial = hex::encode(first.serial());
        Some(Self { chain, uri, serial })
    }
}

impl Tls {
    pub(super) fn read(files: &Files) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let crl = files.crl.as_deref();
        let clients = files.client_ca.as_deref();
        let clients = clients
            .map(|ca| clients_of(ca, crl, &provider))
            .transpose()?;
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(TlsError::Key)?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients)),
            None => builder.with_no_client_auth(),
        };
        let chain = pem(&files.certificate, "a certificate")?;
        let key = private_key(&files.key)?;
        let mut server = builder
            .with_single_cert(chain, key)
            .map_err(TlsError::Key)?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        // A resumed session would accept a certificate that was revoked since.
        server.send_tls13_tickets = 0;
        Ok(Self {
            server: Arc::new(server),
            clients,
        })
    }

    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// Whether a certificate is valid at present, by the CA and the list of revoked ones in force.
    pub(super) fn trusts(&self, certificate: &ClientCertificate) -> bool {
        let Some((first, rest)) = certificate.chain.split_first() else {
            return false;
        };
        let verify = |clients: &Arc<dyn ClientCertVerifier>| {
            clients
                .verify_client_cert(first, rest, UnixTime::now())
                .is_ok()
        };
        self.clients.as_ref().is_some_and(verify)
    }
}

fn clients_of(
    ca: &Path,
    crl: Option<&Path>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in pem(ca, "a certificate")? {
        roots
            .add(certificate)
            .map_err(|e| TlsError::ClientCa(e.to_string()))?;
    }
    let mut builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            // A client without a certificate needs a token.
            .allow_unauthenticated();
    if let Some(crl) = crl {
        let lists: Vec<CertificateRevocationListDer<'_>> =
            pem(crl, "a list of revoked certificates")?;
        // An expired list lacks certificates revoked since.
        builder = builder.with_crls(lists).enforce_revocation_expiration();
    }
    builder
        .build()
        .map_err(|e| TlsError::ClientCa(e.to_string()))
}

/// Returns the principal of a certificate. `uid:7`, `token:ci` and `oidc:https://issuer#name` are URIs too, and name
/// principals of other kinds.
fn principal<'a>(mut uris: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    uris.find(|uri| {
        let scheme = uri.split_once("://").map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| !scheme.contains(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
        KeyIdMethod, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
    };
    use time::{Duration, OffsetDateTime};

    // promise: AC-8
    #[test]
    fn certificate_cannot_claim_a_user_or_token() {
        let of = |uris: &[&'static str]| principal(uris.iter().copied());
        assert_eq!(of(&["spiffe://a/b", "spiffe://c"]), Some("spiffe://a/b"));
        assert_eq!(of(&["uid:0", "spiffe://a/b"]), Some("spiffe://a/b"));
        assert_eq!(of(&["uid:0", "token:ci"]), None);
        let claimed = "oidc:https://issuer.example#ci";
        assert_eq!(of(&[claimed, "token:a://b"]), None);
        assert_eq!(of(&[claimed, "spiffe://a/b"]), Some("spiffe://a/b"));
    }

    #[test]
    fn file_without_revocation_list_is_refused() {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).expect("signed");
        let dir = tempfile::tempdir().expect("a directory");
        let (ca, crl) = (dir.path().join("ca.pem"), dir.path().join("crl.pem"));
        std::fs::write(&ca, root.pem()).expect("own directory");
        std::fs::write(&crl, "").expect("own directory");
        let provider = Arc::new(ring::default_provider());
        let error = clients_of(&ca, Some(&crl), &provider).expect_err("it has no list");
        let file = crl.display();
        let expected = format!("cannot find a list of revoked certificates in {file}");
        assert_eq!(error.to_string(), expected);
    }

    // promise: AC-8
    #[test]
    fn expired_revocation_list_refuses_all_certificates() {
        let days = |days| OffsetDateTime::now_utc() + Duration::days(days);
        let params = || CertificateParams::new(Vec::new()).expect("no names");
        let mut authority = params();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = || KeyPair::generate().expect("a key");
        let (authority_key, key) = (key(), key());
        let root = authority.self_signed(&authority_key).expect("signed");
        let issuer = Issuer::new(authority, authority_key);
        let uri = "spiffe://a/b".try_into().expect("a URI");
        let mut client = params();
        client.subject_alt_names = vec![SanType::URI(uri)];
        let client = client.signed_by(&key, &issuer).expect("signed");
        let shown = ClientCertificate::read(&[client.der().clone()]).expect("it has a URI");
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: String| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("own directory");
            path
        };
        for (next, trusted) in [(1, true), (-1, false)] {
            let list = CertificateRevocationListParams {
                this_update: days(-2),
                next_update: days(next),
                crl_number: SerialNumber::from(1),
                issuing_distribution_point: None,
                revoked_certs: Vec::new(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            let list = list.signed_by(&issuer).expect("signed");
            let files = Files {
                certificate: file("client.pem", client.pem()),
                key: file("client.key", key.serialize_pem()),
                client_ca: Some(file("ca.pem", root.pem())),
                crl: Some(file("crl.pem", list.pem().expect("PEM"))),
            };
            let tls = Tls::read(&files).expect("usable");
            assert_eq!(tls.trusts(&shown), trusted, "next update in {next} days");
        }
    }
}
