//! grpc.health.v1 of any server.

use crate::{HealthClient, authorized::causes};
use std::net::SocketAddr;
use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};

/// Asks the server at this address, without TLS, whether it serves; empty `service`: as a whole. Has no time limit of
/// its own.
///
/// # Errors
///
/// The text gives the reason why it does not report SERVING.
pub async fn check_health(address: SocketAddr, service: &str) -> Result<(), String> {
    // Outer errors only report that a cause exists.
    let cause = |error: tonic::transport::Error| causes(&error).last().map(ToString::to_string);
    let why = |error| cause(error).unwrap_or_default();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(why)?;
    let channel = endpoint.connect().await.map_err(why)?;
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    match HealthClient::new(channel).check(request).await {
        Ok(answer) => match answer.into_inner().status() {
            ServingStatus::Serving => Ok(()),
            other => Err(format!("health is {}", other.as_str_name())),
        },
        Err(status) => Err(format!("health check failed: {}", status.code())),
    }
}
