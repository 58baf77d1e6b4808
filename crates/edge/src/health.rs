//! Health by grpc.health.v1: `liveness` and `startup` as long as this server serves, `readiness` and the whole (`""`) while
//! the store answers. At a shutdown these two go
//! first, before the runs are ended.

use crate::limits;
use kennel_supervisor::Supervisor;
use tonic_health::{ServingStatus, server::HealthReporter};

const WHOLE: &str = "";
const LIVENESS: &str = "liveness";
const READINESS: &str = "readiness";
const STARTUP: &str = "startup";

/// Says that this server serves. Called before the first connection is accepted.
pub(crate) async fn begin(health: &HealthReporter, supervisor: &Supervisor) {
    for name in [LIVENESS, STARTUP] {
        health
            .set_service_status(name, ServingStatus::Serving)
            .await;
    }
    tell_readiness(health, supervisor.info().await.store_reachable).await;
}

/// Follows the store until new work is refused, and says so before it returns.
pub(crate) async fn follow(health: &HealthReporter, supervisor: &Supervisor) {
    let refusing = supervisor.refusing();
    let mut ready = supervisor.info().await.store_reachable;
    loop {
        tokio::select! {
            biased;
            () = refusing.cancelled() => break,
            () = tokio::time::sleep(limits::HEALTH_INTERVAL) => {}
        }
        let reachable = supervisor.info().await.store_reachable;
        if reachable != ready {
            ready = reachable;
            tell_readiness(health, ready).await;
        }
    }
    tell_readiness(health, false).await;
}

/// Ends all watches: they would hold the shutdown up.
pub(crate) async fn end(mut health: HealthReporter) {
    for name in [WHOLE, LIVENESS, READINESS, STARTUP] {
        health.clear_service_status(name).await;
    }
}

async fn tell_readiness(health: &HealthReporter, ready: bool) {
    let status = if ready {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    for name in [READINESS, WHOLE] {
        health.set_service_status(name, status).await;
    }
}
