//! grpc.health.v1 of any server.

use crate::HealthClient;
use std::{error::Error, net::SocketAddr};
use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};

/// Asks the server at this address, without TLS, whether it serves; empty `service`: as a whole. Has no time limit of
/// its own.
///
/// # Errors
///
/// The text gives the reason why it does not report SERVING.
pub async fn check_health(address: SocketAddr, service: &str) -> Result<(), String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|e| cause(&e))?;
    let channel = endpoint.connect().await.map_err(|e| cause(&e))?;
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

/// Returns the innermost cause: the outer ones only say that there is one.
fn cause(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => cause(source),
        None => error.to_string(),
    }
}
