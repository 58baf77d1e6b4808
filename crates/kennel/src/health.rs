//! Health over HTTP, for probes that cannot speak gRPC.
//!
//! `/livez` and `/startupz` are 200 as long as the server serves. `/readyz` is 200 while it accepts runs, else 503 with
//! the reason.

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use kennel_supervisor::Supervisor;
use tokio::runtime::Handle;

/// Returns the routes of a server on this runtime.
pub(crate) fn routes(supervisor: Supervisor, runtime: Handle) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/startupz", get(live))
        .route("/readyz", get(ready))
        .with_state((supervisor, runtime))
}

async fn live(State((_, runtime)): State<(Supervisor, Handle)>) -> Response {
    answer(&runtime, async { None }).await
}

async fn ready(State((supervisor, runtime)): State<(Supervisor, Handle)>) -> Response {
    answer(
        &runtime,
        async move { kennel_edge::unready(&supervisor).await },
    )
    .await
}

/// Answers as a task of the server does: one whose tasks hang is not live.
async fn answer<F>(runtime: &Handle, unready: F) -> Response
where
    F: Future<Output = Option<&'static str>> + Send + 'static,
{
    match runtime.spawn(unready).await {
        Ok(None) => text(StatusCode::OK, "ok"),
        Ok(Some(why)) => text(StatusCode::SERVICE_UNAVAILABLE, why),
        Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the server exits"),
    }
}

/// Answers with one line; no proxy may cache it.
fn text(status: StatusCode, line: &str) -> Response {
    let fresh = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    (status, [fresh], format!("{line}\n")).into_response()
}
