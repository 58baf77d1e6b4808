//! Connections to servers, and their errors.

pub(crate) mod error;

use crate::{
    Address, Connection,
    authorized::{NotDialled, shown},
    connect::error::ConnectError,
    credentials::{Credentials, Tls, TokenReader},
    resumes::Resumes,
    tls,
};
use http::Uri;
use hyper_util::rt::TokioIo;
use kennel_proto::pb;
use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::{sleep, timeout},
};
use tonic::{Code, transport::Endpoint};

/// Connections that break before the first call, after which a client gives up.
const CONNECTS_MAX: u32 = 5;
/// Longest time for room in the full queue of a unix socket, and between two attempts.
const QUEUE_MAX: Duration = Duration::from_secs(5);
const QUEUE_LOOK: Duration = Duration::from_millis(5);
/// Longest time for a TCP connection with its handshake.
const DIAL_MAX: Duration = Duration::from_secs(10);
/// Longest time for that on a connection of several callers: also where it is made anew for a call.
const SHARED_DIAL_MAX: Duration = Duration::from_secs(5);
/// Longest time for one of several addresses of a host.
const ADDRESS_MAX: Duration = Duration::from_secs(3);
/// Longest time for the answer to the first call, which checks whether the token is accepted.
const CHECK_MAX: Duration = Duration::from_secs(10);
/// A peer across a network that does not answer a ping within these times is gone: no packet reports that.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_MAX: Duration = Duration::from_secs(10);
/// Bytes of one stream that wait for its reader, on a connection of several readers.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// Bytes of all its streams: as many as the protocol permits.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

fn or_none(names: &[String]) -> String {
    if names.is_empty() {
        return "no name at all".to_owned();
    }
    names.join(", ")
}

/// Bytes in both directions, over any transport.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Connects to a server whose user is this process's own or root, or to one on the network with a certificate of an
/// authority that this host trusts. Needs a tokio runtime.
pub async fn connect(address: &Address) -> Result<Connection, ConnectError> {
    connect_with(address, &Credentials::default()).await
}

/// Connects like [`connect`], with these credentials. Certificates are not used over a unix socket: its server gets the
/// caller's identity from the kernel. A token is sent there, for the process of a run that has one.
pub async fn connect_with(
    address: &Address,
    credentials: &Credentials,
) -> Result<Connection, ConnectError> {
    if let Address::Tcp { host, port } = address {
        return connect_over_network(address, (host, *port), credentials).await;
    }
    let own_uid = own_uid().map_err(|source| ConnectError::NoServer {
        address: address.clone(),
        source,
    })?;
    let (dialled, other) = (address.clone(), credentials.server_user);
    let dial = move || {
        let address = dialled.clone();
        async move { dial_unix(&address, own_uid, other).await }
    };
    // Over a unix socket there is no host name; without one some servers refuse the request.
    let mut endpoint = Endpoint::from_static("http://localhost");
    if let Some(every) = credentials.local_pings {
        endpoint = endpoint
            .http2_keep_alive_interval(every)
            .keep_alive_timeout(PING_MAX);
    }
    let connection = connect_by(address, windows(endpoint, credentials), dial).await?;
    with_token(connection, credentials)
}

/// Sets how much of each stream may be on its way to a reader that does not read, and of all of them.
fn windows(endpoint: Endpoint, credentials: &Credentials) -> Endpoint {
    if !credentials.is_shared {
        return endpoint;
    }
    endpoint
        .connect_timeout(SHARED_DIAL_MAX)
        .http2_adaptive_window(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

/// The connection, with the token that its calls carry. One that cannot be read is an error.
fn with_token(
    mut connection: Connection,
    credentials: &Credentials,
) -> Result<Connection, ConnectError> {
    let token = credentials.token.clone().map(TokenReader::new);
    if let Some(token) = &token {
        token.value()?;
    }
    connection.token = token.map(Arc::new);
    Ok(connection)
}

async fn connect_over_network(
    address: &Address,
    (host, port): (&str, u16),
    credentials: &Credentials,
) -> Result<Connection, ConnectError> {
    let name = credentials.tls.name(host)?;
    let (dialled, own_host, tls) = (address.clone(), host.to_owned(), credentials.tls.clone());
    let dial = move || {
        let (address, host, tls) = (dialled.clone(), own_host.clone(), tls.clone());
        async move { dial_tcp(&address, (&host, port), &tls).await }
    };
    // The transport gets a scheme that leaves TLS to the dial; its requests say https.
    let origin = format!("https://{}", authority(&name.to_str(), port));
    let mut endpoint = Endpoint::from_static("http://localhost")
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_MAX)
        .keep_alive_while_idle(true)
        .http2_adaptive_window(true);
    if let Ok(origin) = origin.parse::<Uri>() {
        endpoint = endpoint.origin(origin);
    }
    let connection = connect_by(address, windows(endpoint, credentials), dial).await?;
    let connection = with_token(connection, credentials)?;
    if connection.token.is_some() || credentials.tls.certificate.is_none() {
        check_accepted(&connection).await?;
    }
    Ok(connection)
}

fn authority(name: &str, port: u16) -> String {
    if name.contains(':') {
        format!("[{name}]:{port}")
    } else {
        format!("{name}:{port}")
    }
}

/// Checks the token: a refused one is found at connect, like a refused certificate, and not at a later call.
async fn check_accepted(connection: &Connection) -> Result<(), ConnectError> {
    let request = pb::GetServerInfoRequest {};
    let mut admin = connection.admin();
    let answered = timeout(CHECK_MAX, admin.get_server_info(request)).await;
    // Other refusals are left to the call that the caller makes.
    let Ok(Err(status)) = answered else {
        return Ok(());
    };
    if status.code() != Code::Unauthenticated {
        return Ok(());
    }
    let (address, reason) = (connection.address.clone(), status.message().to_owned());
    Err(if connection.token.is_some() {
        ConnectError::Token { address, reason }
    } else {
        ConnectError::NoCredentials { address, reason }
    })
}

/// Connects over the result of `dial`. A server that dies during the first messages of a connection is no error: the
/// socket is its keeper's, and the next server is there soon.
pub(crate) async fn connect_by<F, D, W>(
    address: &Address,
    endpoint: Endpoint,
    dial: F,
) -> Result<Connection, ConnectError>
where
    F: Fn() -> D + Clone + Send + 'static,
    D: Future<Output = Result<W, ConnectError>> + Send + 'static,
    W: Wire + 'static,
{
    let mut resumes = Resumes::default();
    let failed: Arc<Mutex<Option<ConnectError>>> = Arc::default();
    loop {
        let (again, slot) = (dial.clone(), Arc::clone(&failed));
        let connector = tower::service_fn(move |_: Uri| {
            let (dialled, slot) = (again(), Arc::clone(&slot));
            async move {
                dialled.await.map(TokioIo::new).map_err(|error| {
                    let text = NotDialled(shown(&error));
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    text
                })
            }
        });
        let source = match endpoint.connect_with_connector(connector).await {
            Ok(channel) => {
                return Ok(Connection {
                    channel,
                    address: address.clone(),
                    token: None,
                    node: None,
                });
            }
            Err(source) => source,
        };
        // The dial's own error has more detail than the transport's.
        let dialled = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let error = dialled.unwrap_or_else(|| ConnectError::Transport {
            address: address.clone(),
            source,
        });
        if !error.is_broken() || !resumes.pause(CONNECTS_MAX).await {
            return Err(error);
        }
    }
}

pub(crate) async fn dial_unix(
    address: &Address,
    own_uid: u32,
    other: Option<u32>,
) -> Result<UnixStream, ConnectError> {
    let no_server = |source| ConnectError::NoServer {
        address: address.clone(),
        source,
    };
    let Address::Unix(path) = address else {
        return Err(no_server(io::ErrorKind::Unsupported.into()));
    };
    let stream = open_unix(path).await.map_err(no_server)?;
    let uid = stream.peer_cred().map_err(no_server)?.uid();
    if uid != own_uid && uid != 0 && Some(uid) != other {
        return Err(ConnectError::ForeignServer {
            address: address.clone(),
            uid,
        });
    }
    Ok(stream)
}

/// Connects, and waits for room in the queue of the server's socket, which another process may have filled.
async fn open_unix(path: &Path) -> io::Result<UnixStream> {
    let connected = async {
        loop {
            match UnixStream::connect(path).await {
                // The listen queue is full: EAGAIN of connect(2).
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE_LOOK).await,
                connected => return connected,
            }
        }
    };
    let connected = timeout(QUEUE_MAX, connected).await;
    connected.unwrap_or_else(|_| Err(io::ErrorKind::WouldBlock.into()))
}

async fn dial_tcp(
    address: &Address,
    (host, port): (&str, u16),
    tls: &Tls,
) -> Result<tls::Secured, ConnectError> {
    // Errors of the client's own files are reported before a server is contacted.
    let config = tls.read()?;
    let dialled = async {
        let stream = open_tcp(host, port)
            .await
            .map_err(|source| ConnectError::NoServer {
                address: address.clone(),
                source,
            })?;
        tls::secure(address, host, stream, (tls, config)).await
    };
    let late = |_| ConnectError::NoServer {
        address: address.clone(),
        source: io::Error::new(io::ErrorKind::TimedOut, "no handshake within 10 seconds"),
    };
    timeout(DIAL_MAX, dialled).await.map_err(late)?
}

/// Connects to the first of a host's addresses that takes a connection.
async fn open_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match timeout(ADDRESS_MAX, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // TCP_NODELAY: small writes of a call are not delayed.
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => {
                last = io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("{address} does not answer"),
                );
            }
        }
    }
    Err(last)
}

/// Returns this process's effective user, as the peer of a socket sees it.
pub(crate) fn own_uid() -> io::Result<u32> {
    let (one, _other) = UnixStream::pair()?;
    Ok(one.peer_cred()?.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::net::UnixListener;

    // promise: I-45
    #[tokio::test]
    async fn connection_outlasts_server_that_dies_at_handshake() {
        let address = Address::Unix("/run/x".into());
        let dials = Arc::new(AtomicU32::new(0));
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let alive = Arc::new(Mutex::new(Some(ours)));
        let connected = connect_by(&address, Endpoint::from_static("http://localhost"), {
            let (dials, alive) = (Arc::clone(&dials), Arc::clone(&alive));
            move || {
                let fourth = dials.fetch_add(1, Ordering::Relaxed) == 3;
                let stream = fourth.then(|| alive.lock().expect("no panic").take());
                // All other connections have lost their peer.
                let dead = || UnixStream::pair().expect("a pair").0;
                std::future::ready(Ok(stream.flatten().unwrap_or_else(dead)))
            }
        });
        connected.await.expect("the fourth server lives");
        assert_eq!(dials.load(Ordering::Relaxed), 4);
        drop(theirs);
    }

    // promise: A-19b
    #[tokio::test]
    async fn connect_waits_for_space_in_full_backlog() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let socket = tokio::net::UnixSocket::new_stream().expect("a socket");
        socket.bind(&path).expect("bound");
        let listener = socket.listen(1).expect("it listens");
        let mut queued = Vec::new();
        while let Ok(stream) = UnixStream::connect(&path).await {
            queued.push(stream);
        }
        let make_room = async {
            for _ in &queued {
                listener.accept().await.expect("a connection");
            }
        };
        let (opened, ()) = tokio::join!(open_unix(&path), make_room);
        opened.expect("there was room in the end");
    }

    #[tokio::test]
    async fn absent_server_is_distinguished_from_an_unrelated_one() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let address = Address::Unix(path.clone());
        let error = connect(&address).await.expect_err("no process listens");
        assert!(matches!(error, ConnectError::NoServer { .. }), "{error:?}");

        let _listener = UnixListener::bind(&path).expect("bound");
        let own = own_uid().expect("a user");
        dial_unix(&address, own, None)
            .await
            .expect("this user's server");
        if own != 0 {
            let error = dial_unix(&address, own + 1, None)
                .await
                .expect_err("another user's");
            assert!(
                matches!(error, ConnectError::ForeignServer { .. }),
                "{error:?}"
            );
        }
    }
}
