//! A server on a port of this host with TLS, which has no methods, and an authority for certificates.

use http::{Request, Response, header::AUTHORIZATION};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kennel_client::{Address, Credentials, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SanType, SerialNumber, date_time_ymd,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::TLS13,
};
use std::{
    convert::Infallible,
    fs,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;

/// A name that this host does not have.
pub(crate) const OTHER_NAME: &str = "other.example";

static SERIALS: AtomicU64 = AtomicU64::new(1);

/// Returns a time so many days from the present.
pub(crate) fn days(count: i64) -> OffsetDateTime {
    OffsetDateTime::now_utc() + Duration::days(count)
}

/// A certificate, its key and its number.
pub(crate) struct Pair {
    certificate: String,
    key: String,
    serial: u64,
}

/// Authentication of clients at the server.
pub(crate) enum ClientProof<'a> {
    /// By certificates, which the server requires.
    Certificates,
    /// By certificates, except this one, which is revoked.
    Revoked(&'a Pair),
    /// The server requests no certificate.
    Tokens,
}

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"));
        let authority = Self {
            issuer: issuer.expect("signed"),
            dir: TempDir::new().expect("a directory"),
        };
        fs::write(authority.ca_file(), authority.issuer.pem()).expect("own directory");
        authority
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        self.file("ca.pem")
    }

    pub(crate) fn server(&self, names: &[&str], until: OffsetDateTime) -> Pair {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).expect("names");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth, until)
    }

    pub(crate) fn client(&self, name: &str, until: OffsetDateTime) -> Pair {
        let mut params = CertificateParams::default();
        let uri = format!("spiffe://kennel/{name}").try_into().expect("ASCII");
        params.subject_alt_names = vec![SanType::URI(uri)];
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth, until)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
        until: OffsetDateTime,
    ) -> Pair {
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages = vec![usage];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = until;
        let key = KeyPair::generate().expect("a key");
        Pair {
            certificate: params.signed_by(&key, &self.issuer).expect("signed").pem(),
            key: key.serialize_pem(),
            serial,
        }
    }

    /// Returns the credentials of a client with this certificate.
    pub(crate) fn credentials(&self, pair: &Pair) -> Credentials {
        let path = |kind: &str| self.file(&format!("{}.{kind}", pair.serial));
        fs::write(path("pem"), &pair.certificate).expect("own directory");
        fs::write(path("key"), &pair.key).expect("own directory");
        let mut credentials = self.credentials_alone();
        credentials.tls.certificate = Some(path("pem"));
        credentials.tls.key = Some(path("key"));
        credentials
    }

    /// Returns the credentials of a client without a certificate.
    pub(crate) fn credentials_alone(&self) -> Credentials {
        Credentials {
            tls: Tls {
                ca: Some(self.ca_file()),
                ..Tls::default()
            },
            ..Credentials::default()
        }
    }

    /// Replaces these files by others.
    pub(crate) fn replace_by(these: &Credentials, others: &Credentials) {
        let files = |tls: &Tls| {
            [tls.ca.clone(), tls.certificate.clone(), tls.key.clone()].map(Option::unwrap)
        };
        for (own, other) in files(&these.tls).into_iter().zip(files(&others.tls)) {
            fs::copy(other, own).expect("own directory");
        }
    }

    pub(crate) fn server_config(&self, pair: &Pair, known: &ClientProof<'_>) -> ServerConfig {
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ClientCertVerifier> = match known {
            ClientProof::Tokens => Arc::new(NoClientAuth),
            ClientProof::Certificates => self.verifier(&[]),
            ClientProof::Revoked(pair) => self.verifier(&[pair.serial]),
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("PEM")],
                PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("PEM"),
            )
            .expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }

    fn verifier(&self, revoked: &[u64]) -> Arc<dyn ClientCertVerifier> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("an authority");
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: days(-1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: days(-1),
            next_update: days(1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("signed").into();
        let provider = Arc::new(ring::default_provider());
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .with_crls([list])
            .build()
            .expect("a verifier")
    }
}

/// A call as the server saw it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) certificates: usize,
    pub(crate) scheme: Option<String>,
    pub(crate) authorization: Option<String>,
}

#[derive(Default)]
struct Shared {
    config: Mutex<Option<TlsAcceptor>>,
    demanded: Mutex<Option<String>>,
    seen: Mutex<Vec<Seen>>,
    open: Mutex<JoinSet<()>>,
    connections: AtomicU64,
}

pub(crate) struct FarServer {
    pub(crate) address: Address,
    shared: Arc<Shared>,
    _serving: AbortOnDropHandle<()>,
}

impl FarServer {
    pub(crate) async fn start(config: ServerConfig) -> Self {
        let server = Self::start_plain().await;
        server.use_config(config);
        server
    }

    /// Starts a server without TLS.
    pub(crate) async fn start_plain() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(Shared::default());
        let serving = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self {
            address: Address::Tcp {
                host: "localhost".to_owned(),
                port,
            },
            shared,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Sets the configuration of later connections.
    pub(crate) fn use_config(&self, config: ServerConfig) {
        *self.shared.config.lock().expect("no panic") = Some(Arc::new(config).into());
    }

    /// Requires this header in calls.
    pub(crate) fn demand(&self, authorization: &str) {
        *self.shared.demanded.lock().expect("no panic") = Some(authorization.to_owned());
    }

    /// Breaks all connections.
    pub(crate) fn cut(&self) {
        self.shared.open.lock().expect("no panic").abort_all();
    }

    pub(crate) fn last(&self) -> Seen {
        self.shared
            .seen
            .lock()
            .expect("no panic")
            .last()
            .cloned()
            .expect("a call")
    }

    /// Returns the number of connections that had a call.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let config = shared.config.lock().expect("no panic").clone();
        let serving = serve_one(stream, config, Arc::clone(&shared));
        shared.open.lock().expect("no panic").spawn(serving);
    }
}

async fn serve_one(stream: TcpStream, config: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let Some(config) = config else {
        let answer = service_fn(|request| {
            std::future::ready(Ok::<_, Infallible>(answer(&request, 0, &Shared::default())))
        });
        let _ = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), answer)
            .await;
        return;
    };
    let Ok(stream) = config.accept(stream).await else {
        return;
    };
    let certificates = stream.get_ref().1.peer_certificates().map_or(0, <[_]>::len);
    shared.connections.fetch_add(1, Ordering::Relaxed);
    let answer = service_fn(|request| {
        std::future::ready(Ok::<_, Infallible>(answer(&request, certificates, &shared)))
    });
    // Some tests break connections, so errors are ignored.
    let _ = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

/// Answers UNIMPLEMENTED to a call with the required header, else UNAUTHENTICATED.
fn answer(request: &Request<Incoming>, certificates: usize, shared: &Shared) -> Response<Body> {
    let authorization = request.headers().get(AUTHORIZATION);
    let authorization = authorization.map(|value| value.to_str().expect("ASCII").to_owned());
    let demanded = shared.demanded.lock().expect("no panic").clone();
    let accepted = demanded.is_none() || demanded == authorization;
    shared.seen.lock().expect("no panic").push(Seen {
        certificates,
        scheme: request.uri().scheme_str().map(str::to_owned),
        authorization,
    });
    let (code, message) = if accepted {
        ("12", "no methods")
    } else {
        ("16", "unknown caller")
    };
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code)
        .header("grpc-message", message.replace(' ', "%20"))
        .body(Body::empty())
        .expect("a response")
}
