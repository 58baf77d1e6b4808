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

pub(crate) fn routes(supervisor: Supervisor) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/startupz", get(live))
        .route("/readyz", get(ready))
        .with_state(supervisor)
}

async fn live() -> Response {
    text(StatusCode::OK, "ok")
}

async fn ready(State(supervisor): State<Supervisor>) -> Response {
    match kennel_edge::unready(&supervisor).await {
        None => text(StatusCode::OK, "ok"),
        Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

/// Answers with one line; no proxy may cache it.
fn text(status: StatusCode, line: &str) -> Response {
    let fresh = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    (status, [fresh], format!("{line}\n")).into_response()
}
