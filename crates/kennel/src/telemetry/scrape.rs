//! Metrics for Prometheus, over HTTP.

use super::config::ScrapeAddress;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus::{Encoder, Registry, TextEncoder};
use std::{fs, io, os::unix::fs::FileTypeExt, path::Path, time::Duration};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// How long to wait before another try to listen: the server before this one may still have the address.
const AGAIN: Duration = Duration::from_secs(1);

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
    match address {
        ScrapeAddress::Tcp(address) => {
            let listener = TcpListener::bind(address).await?;
            tracing::info!(address = %listener.local_addr()?, "serving metrics");
            axum::serve(listener, routes).await
        }
        ScrapeAddress::Unix(path) => {
            let listener = match UnixListener::bind(path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left(path).await => {
                    fs::remove_file(path)?;
                    UnixListener::bind(path)?
                }
                bound => bound?,
            };
            tracing::info!(address = %path.display(), "serving metrics");
            axum::serve(listener, routes).await
        }
    }
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
