//! Handshakes of a port need nothing of the runtime that serves the calls.

use super::{super::Accepted, *};
use crate::{
    accept::{Ending, Listener, Places, Refusals, ServerCredentials, incoming, tests::OfNoRun},
    access::Access,
};
use futures_util::{FutureExt, StreamExt};
use kennel_supervisor::telemetry::Telemetry;
use rcgen::generate_simple_self_signed;
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream, pki_types::CertificateDer};
use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpStream as StdTcpStream},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{io::AsyncReadExt, time::Instant};

/// Upper bound for every step here.
const TOO_LONG: Duration = Duration::from_mins(1);

/// The client blocks the only thread of the test's runtime until its handshake is finished.
// promise: AC-4
#[tokio::test]
async fn tls_handshake_completes_while_runtime_is_blocked() {
    let port = Port::open();
    let welcome = port.welcome();
    welcome.credentials.follow().now_or_never();
    let incoming = incoming(
        vec![Listener::Tcp(
            port.listener.try_clone().expect("a descriptor"),
        )],
        &welcome.ending,
        &welcome.places,
        &welcome.refusals,
        &welcome.credentials,
        &OfNoRun,
    );
    let mut incoming = incoming.expect("a thread");
    let mut session = port.client();
    let mut socket = StdTcpStream::connect(port.address()).expect("connected");
    let limit = Some(TOO_LONG);
    socket.set_read_timeout(limit).expect("own socket");
    session.complete_io(&mut socket).expect("a handshake");
    let mut client = Stream::new(&mut session, &mut socket);
    client.write_all(b"x").expect("sent");
    let accepted = timeout(TOO_LONG, incoming.next()).await.expect("in time");
    let mut accepted: Accepted = accepted.expect("never ends").expect("accepted");
    assert_eq!(accepted.read_u8().await.expect("received"), b'x');
}

// promise: AC-4a
#[tokio::test(start_paused = true)]
async fn client_without_first_byte_times_out() {
    let port = Port::open();
    let mut handshakes = Handshakes::new(port.welcome());
    let listener = port.listener.try_clone().expect("a descriptor");
    let listener = TcpListener::from_std(listener).expect("own socket");
    let connected = TcpStream::connect(port.address()).await;
    let _client = connected.expect("connected");
    let (socket, from) = listener.accept().await.expect("it is connected");
    let began = Instant::now();
    handshakes.begin(socket, from.ip());
    let ended = handshakes.running.join_next().await.expect("one");
    let (_, _, shaken) = ended.expect("no panic");
    let error = shaken.expect("not displaced").expect_err("no byte");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), FIRST_BYTE_MAX);
}

/// A port, and the certificate of its server.
struct Port {
    listener: StdTcpListener,
    certificate: CertificateDer<'static>,
    access: Arc<Access>,
    _dir: TempDir,
}

impl Port {
    fn open() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let signed = generate_simple_self_signed(["localhost".to_owned()]).expect("signed");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).expect("own directory");
            path
        };
        write("server.pem", &signed.cert.pem());
        write("server.key", &signed.signing_key.serialize_pem());
        let rules = "[tls]\ncertificate = 'server.pem'\nkey = 'server.key'\n";
        let access = Access::open(Some(&write("access.toml", rules)), 0).expect("good rules");
        let listener = StdTcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("own socket");
        Self {
            listener,
            certificate: signed.cert.der().clone(),
            access: Arc::new(access),
            _dir: dir,
        }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("bound")
    }

    fn welcome(&self) -> Welcome {
        let places = Places::default();
        Welcome {
            refusals: Refusals::new(&Telemetry::default(), &places, None),
            places,
            credentials: ServerCredentials::new(Arc::clone(&self.access), None),
            ending: Ending::default(),
        }
    }

    fn client(&self) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a certificate");
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "localhost".try_into().expect("a name");
        ClientConnection::new(Arc::new(config), name).expect("a client")
    }
}
