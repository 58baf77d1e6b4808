//! Metrics for Prometheus, over HTTP.

use super::config::ScrapeAddress;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use prometheus::{Encoder, Registry, TextEncoder};
use std::{fs, io, os::unix::fs::FileTypeExt, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};

/// How long to wait before another try to listen: the server before this one may still have the address.
const AGAIN: Duration = Duration::from_secs(1);
/// Connections at a time; more wait unaccepted until one of these has ended.
const CONNECTIONS_MAX: usize = 16;
/// How long a client has for the head of its request.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// How long a connection lasts, which is for one request.
const CONNECTION_MAX: Duration = Duration::from_secs(15);
/// Bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long accepting rests after it has failed.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Serves them for ever.
pub(super) async fn serve(address: ScrapeAddress, registry: Registry) {
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .with_state(registry);
    let mut said = false;
    loop {
        let error = match listen(&address, routes.clone()).await {
            Ok(()) => return,
            Err(error) => error,
        };
        if !said {
            tracing::warn!(%address, %error, "cannot serve metrics, trying again");
            said = true;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn listen(address: &ScrapeAddress, routes: Router) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    match address {
        ScrapeAddress::Tcp(at) => {
            let listener = TcpListener::bind(at).await?;
            tracing::info!(address = %listener.local_addr()?, "serving metrics");
            if address.is_public() {
                tracing::warn!(%address, "metrics are served to whoever reaches this address, without authentication");
            }
            loop {
                let place = place(&places).await;
                accepted(listener.accept().await.map(|a| a.0), place, &routes).await;
            }
        }
        ScrapeAddress::Unix(path) => {
            let listener = match kennel_linux::bind_private(path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left(path).await => {
                    fs::remove_file(path)?;
                    kennel_linux::bind_private(path)?
                }
                bound => bound?,
            };
            let listener = UnixListener::from_std(listener)?;
            tracing::info!(address = %path.display(), "serving metrics");
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
        // Descriptors may be used up: it would fail at once again.
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
        // A client that is gone, slow or wrong is told nothing.
        let _ = tokio::time::timeout(CONNECTION_MAX, serving).await;
        drop(place);
    });
}

/// Whether it is a socket at which nobody listens: one that a server which was killed has left.
async fn is_left(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = UnixStream::connect(path)
        .await
        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    is_socket && refused
}

async fn metrics(State(registry): State<Registry>) -> Response {
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    match encoder.encode(&registry.gather(), &mut text) {
        Ok(()) => (
            [(header::CONTENT_TYPE, encoder.format_type().to_owned())],
            text,
        )
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
