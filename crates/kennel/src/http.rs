//! Serves metrics and health over HTTP, within bounds.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use kennel_cli::Failure;
use kennel_edge::Crowd;
use parking_lot::Mutex;
use std::{
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener, UnixStream},
    runtime,
};

/// Pause before another try to listen: the server before this one may still have the address.
const AGAIN: Duration = Duration::from_secs(1);
/// Most connections at a time; beyond it the address with the most loses its oldest.
const CONNECTIONS_MAX: usize = 64;
/// Longest time for the head of a request.
const HEAD_MAX: Duration = Duration::from_secs(1);
/// Longest time of a connection, which is for one request.
const CONNECTION_MAX: Duration = Duration::from_secs(15);
/// Most bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Time between two checks of the file of a unix socket.
const FILE_CHECK: Duration = Duration::from_secs(2);
/// Pause after a failed accept.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Address of an HTTP service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HttpAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl HttpAddress {
    /// Returns the path of its socket.
    pub(crate) fn socket(&self) -> Option<&PathBuf> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
    }

    /// Whether other hosts may reach it.
    pub(crate) fn is_public(&self) -> bool {
        match self {
            Self::Tcp(address) => !address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => false,
        }
    }

    /// Removes the socket of a server that has no successor.
    pub(crate) fn clear(&self) {
        if let Self::Unix(path) = self {
            // The socket may never have been created.
            let _ = fs::remove_file(path);
        }
    }

    /// Reads `ADDRESS:PORT` or `unix:PATH`.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path.strip_prefix("//").unwrap_or(path));
            return if path.is_absolute() {
                Ok(Self::Unix(path.to_owned()))
            } else {
                Err(Failure::new(format!(
                    "the path of the socket is not absolute: {text}"
                )))
            };
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            Failure::new(format!("{text:?} is not an address to serve HTTP at"))
                .hint("write 127.0.0.1:9464 or unix:/run/kennel/http.sock")
        })
    }
}

/// Clients by address; those of a unix socket count as one.
type Clients = Arc<Mutex<Crowd<CONNECTIONS_MAX>>>;

/// Serves the router for ever, on a thread of its own: a flood of clients delays no call of the server.
pub(crate) fn serve_apart(
    address: HttpAddress,
    what: &'static str,
    routes: Router,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let thread = thread::Builder::new().name(what.into());
    thread.spawn(move || runtime.block_on(serve(address, what, routes)))?;
    Ok(())
}

/// Serves the router for ever. `what` is its name in the log.
pub(crate) async fn serve(address: HttpAddress, what: &'static str, routes: Router) {
    let mut said = false;
    loop {
        let served = tokio::select! {
            served = listen(&address, what, routes.clone()) => served,
            () = removed(&address) => {
                tracing::warn!(%address, "the file of the socket was removed, it is bound again");
                continue;
            }
        };
        let error = match served {
            Ok(()) => return,
            Err(error) => error,
        };
        if !said {
            tracing::warn!(%address, %error, "cannot serve {what}, retrying");
            said = true;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Waits until the file of a unix socket is gone.
async fn removed(address: &HttpAddress) {
    let HttpAddress::Unix(path) = address else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(FILE_CHECK).await;
        if fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return;
        }
    }
}

async fn listen(address: &HttpAddress, what: &str, routes: Router) -> io::Result<()> {
    let clients = Clients::default();
    match address {
        HttpAddress::Tcp(at) => {
            let listener = TcpListener::bind(at).await?;
            tracing::info!(address = %listener.local_addr()?, "serving {what}");
            loop {
                let client = listener.accept().await;
                let client = client.map(|(client, from)| (client, from.ip()));
                accepted(client, &clients, &routes).await;
            }
        }
        HttpAddress::Unix(path) => {
            let listener = match kennel_linux::bind_private(path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left(path).await => {
                    fs::remove_file(path)?;
                    kennel_linux::bind_private(path)?
                }
                bound => bound?,
            };
            let listener = UnixListener::from_std(listener)?;
            tracing::info!(address = %path.display(), "serving {what}");
            loop {
                let client = listener.accept().await;
                let client = client.map(|(client, _)| (client, Ipv4Addr::LOCALHOST.into()));
                accepted(client, &clients, &routes).await;
            }
        }
    }
}

/// Serves one request of a client, in a task that ends by itself.
async fn accepted<S>(client: io::Result<(S, IpAddr)>, clients: &Clients, routes: &Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ok((client, address)) = client else {
        // Descriptors may be used up: the next accept would fail at once.
        tokio::time::sleep(ACCEPT_REST).await;
        return;
    };
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(client),
            TowerToHyperService::new(routes.clone()),
        );
    let clients = Arc::clone(clients);
    let mut crowd = clients.lock();
    let (client, _) = crowd.add(address);
    drop(crowd);
    tokio::spawn(async move {
        let served = tokio::time::timeout(CONNECTION_MAX, serving);
        // Displaced, lost, slow and malformed clients get no answer.
        let _ = client.displaced.run_until_cancelled(served).await;
        let mut clients = clients.lock();
        clients.remove(&client);
    });
}

/// Whether it is a socket at which no process listens, left by a killed server.
async fn is_left(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = UnixStream::connect(path)
        .await
        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    is_socket && refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream as StdUnixStream,
        time::Instant,
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    // promise: S-20a
    #[tokio::test]
    async fn idle_http_clients_do_not_block_probes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let routes = Router::new().route("/livez", get(async || "ok"));
        let address = HttpAddress::Unix(path.clone());
        let serving = tokio::spawn(async move { listen(&address, "health", routes).await });
        let connect = async || loop {
            match UnixStream::connect(&path).await {
                Ok(client) => return client,
                // The server does not listen yet.
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            idle.push(connect().await);
        }
        let mut probe = connect().await;
        let request = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";
        probe.write_all(request).await.expect("sent");
        let mut answer = String::new();
        let read = probe.read_to_string(&mut answer);
        let read = tokio::time::timeout(CONNECTION_MAX, read).await;
        read.expect("in time").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        // Each idle connection is closed, including the displaced one.
        for mut idle in idle {
            let closed = tokio::time::timeout(HEAD_MAX * 3, idle.read_u8()).await;
            closed.expect("closed in time").expect_err("no byte");
        }
        serving.abort();
    }

    /// The client blocks the only thread of the test's runtime until it has its answer.
    // promise: S-20a
    #[tokio::test]
    async fn http_probe_is_answered_while_runtime_is_blocked() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let routes = Router::new().route("/livez", get(async || "ok"));
        serve_apart(HttpAddress::Unix(path.clone()), "health", routes).expect("a thread");
        let began = Instant::now();
        let mut probe = loop {
            match StdUnixStream::connect(&path) {
                Ok(probe) => break probe,
                Err(error) => assert!(began.elapsed() < CONNECTION_MAX, "{error}"),
            }
            thread::yield_now();
        };
        let limit = Some(CONNECTION_MAX);
        probe.set_read_timeout(limit).expect("own socket");
        let request = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";
        probe.write_all(request).expect("sent");
        let mut answer = String::new();
        probe.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn removed_http_socket_is_rebound() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let address = HttpAddress::Unix(path.clone());
        let serving = tokio::spawn(serve(address, "nothing", Router::new()));
        for _ in 0..2 {
            while !path.exists() {
                tokio::time::sleep(FILE_CHECK).await;
            }
            UnixStream::connect(&path).await.expect("it listens");
            fs::remove_file(&path).expect("own file");
        }
        serving.abort();
    }
}
