//! Serves metrics and health over HTTP, within bounds.

use crate::failure::Failure;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    fmt, fs, io,
    net::SocketAddr,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};

/// Pause before another try to listen: the server before this one may still have the address.
const AGAIN: Duration = Duration::from_secs(1);
/// Most connections at a time; more wait unaccepted until one of these has ended.
const CONNECTIONS_MAX: usize = 16;
/// Longest time for the head of a request.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Longest time of a connection, which is for one request.
const CONNECTION_MAX: Duration = Duration::from_secs(15);
/// Most bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 16 * 1024;
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
            // It may never have been created.
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

/// Serves the router for ever. `what` is its name in the log.
pub(crate) async fn serve(address: HttpAddress, what: &'static str, routes: Router) {
    let mut said = false;
    loop {
        let error = match listen(&address, what, routes.clone()).await {
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

async fn listen(address: &HttpAddress, what: &str, routes: Router) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    match address {
        HttpAddress::Tcp(at) => {
            let listener = TcpListener::bind(at).await?;
            tracing::info!(address = %listener.local_addr()?, "serving {what}");
            loop {
                let place = place(&places).await;
                accepted(listener.accept().await.map(|a| a.0), place, &routes).await;
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
                let place = place(&places).await;
                accepted(listener.accept().await.map(|a| a.0), place, &routes).await;
            }
        }
    }
}

async fn place(places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let place = Arc::clone(places).acquire_owned();
    place.await.expect("the semaphore is never closed")
}

/// Serves one request of a client, in a task that ends by itself.
async fn accepted<S>(client: io::Result<S>, place: OwnedSemaphorePermit, routes: &Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ok(client) = client else {
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
    tokio::spawn(async move {
        // A client that is gone, slow or wrong gets no answer.
        let _ = tokio::time::timeout(CONNECTION_MAX, serving).await;
        drop(place);
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
