//! Health by grpc.health.v1: `liveness` and `startup` as long as this server serves, `readiness` and the whole (`""`)
//! while store and keeper answer and the node is not being drained. At a shutdown these two become unhealthy first,
//! before the runs are ended.

use crate::{access::exchange, limits};
use kennel_supervisor::Supervisor;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tonic_health::{ServingStatus, server::HealthReporter};

const WHOLE: &str = "";
const LIVENESS: &str = "liveness";
const READINESS: &str = "readiness";
const STARTUP: &str = "startup";

/// Reports that this server serves. Called before the first connection is accepted.
pub(crate) async fn begin(health: &HealthReporter, supervisor: &Supervisor) {
    for name in [LIVENESS, STARTUP] {
        health
            .set_service_status(name, ServingStatus::Serving)
            .await;
    }
    set_readiness(health, is_ready(supervisor).await).await;
}

/// Follows the store until new work is refused, and reports that before it returns.
pub(crate) async fn follow(health: &HealthReporter, supervisor: &Supervisor) {
    let serving = supervisor.serving();
    let mut drains = supervisor.drains();
    let mut keeper = supervisor.keeper_unresponsive();
    let mut ready = is_ready(supervisor).await;
    loop {
        tokio::select! {
            biased;
            () = serving.until_refusing() => break,
            _ = drains.changed() => {}
            Ok(()) = keeper.changed() => {}
            () = tokio::time::sleep(limits::HEALTH_INTERVAL) => {}
        }
        let now = is_ready(supervisor).await;
        if now != ready {
            ready = now;
            set_readiness(health, ready).await;
        }
    }
    set_readiness(health, false).await;
}

/// Ends all watches: they would delay the shutdown.
pub(crate) async fn end(mut health: HealthReporter) {
    for name in [WHOLE, LIVENESS, READINESS, STARTUP] {
        health.clear_service_status(name).await;
    }
}

/// Returns why new runs are not accepted; `None`: they are.
pub async fn unready(supervisor: &Supervisor) -> Option<&'static str> {
    if supervisor.serving().is_refusing() {
        return Some("the server is shutting down");
    }
    let info = supervisor.info().await;
    if info.fenced_by.is_some() {
        return Some("another server has the lease of this node");
    }
    if !info.store_reachable {
        return Some("the database does not answer");
    }
    if info.keeper_unresponsive.is_some() {
        return Some("the keeper does not answer");
    }
    info.drain.drain.map(|_| "the node is being drained")
}

async fn is_ready(supervisor: &Supervisor) -> bool {
    unready(supervisor).await.is_none()
}

async fn set_readiness(health: &HealthReporter, ready: bool) {
    let status = if ready {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    for name in [READINESS, WHOLE] {
        health.set_service_status(name, status).await;
    }
}

/// Checks the health of runs' servers, by HTTP and grpc.health.v1.
#[derive(Clone, Copy, Debug)]
pub struct ProbeClient;

#[tonic::async_trait]
impl kennel_supervisor::HealthCheck for ProbeClient {
    async fn check(&self, address: SocketAddr, service: &str) -> Result<(), String> {
        kennel_client::check_health(address, service).await
    }

    async fn get(&self, stream: TcpStream, path: &str) -> Result<(), String> {
        exchange::probe(stream, path).await
    }
}
