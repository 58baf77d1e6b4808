//! The rpcs of an operator.

use super::{keeper::with_keeper, to_its_end, unless_leaving};
use crate::{
    auth,
    convert::{audit, drain, info, request, run, trail},
    limits, pb,
    status::{self, answer_of},
};
use futures_util::stream;
use kennel_supervisor::{Serving, Supervisor, TrailReader};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, codegen::BoxStream};

/// The service for operators.
pub(crate) struct Admin {
    supervisor: Supervisor,
    /// Work that continues when its caller goes away.
    tasks: TaskTracker,
    /// Slots for readers of the audit log.
    places: Arc<Semaphore>,
}

impl Admin {
    pub(crate) fn new(supervisor: Supervisor, tasks: TaskTracker) -> Self {
        Self {
            supervisor,
            tasks,
            places: Arc::new(Semaphore::new(limits::AUDIT_STREAMS_MAX)),
        }
    }
}

impl Admin {
    pub(super) async fn get_server_info(
        &self,
    ) -> Result<Response<pb::GetServerInfoResponse>, Status> {
        let info = self.supervisor.info().await;
        Ok(Response::new(pb::GetServerInfoResponse {
            server: Some(info::server(info)),
        }))
    }

    pub(super) async fn list_nodes(&self) -> Result<Response<pb::ListNodesResponse>, Status> {
        let nodes = answer_of(self.supervisor.nodes()).await?;
        Ok(Response::new(pb::ListNodesResponse {
            nodes: nodes.into_iter().map(run::node).collect(),
            own_node_id: self.supervisor.node().to_string(),
        }))
    }

    pub(super) async fn forget_node(
        &self,
        request: Request<pb::ForgetNodeRequest>,
    ) -> Result<Response<pb::ForgetNodeResponse>, Status> {
        let by = auth::principal(&request)?;
        let pb::ForgetNodeRequest { node, remove } = request.into_inner();
        let supervisor = self.supervisor.clone();
        // Work in progress is finished, whether or not the caller waits for it.
        let forgetting = async move { supervisor.forget_node(&node, &by, remove).await };
        let (node, ended_runs) = to_its_end(&self.tasks, forgetting).await?;
        Ok(Response::new(pb::ForgetNodeResponse {
            node: Some(run::node(node)),
            ended_runs,
        }))
    }

    pub(super) async fn drain(
        &self,
        request: Request<pb::DrainRequest>,
    ) -> Result<Response<pb::DrainResponse>, Status> {
        let by = auth::principal(&request)?;
        let call = drain::call(request.get_ref(), by)?;
        let supervisor = self.supervisor.clone();
        // All are stopped, whether or not the caller waits for it.
        let status = to_its_end(&self.tasks, async move { supervisor.drain(call).await }).await?;
        Ok(Response::new(pb::DrainResponse {
            status: Some(drain::status(status)),
        }))
    }

    pub(super) async fn undrain(&self) -> Result<Response<pb::UndrainResponse>, Status> {
        let supervisor = self.supervisor.clone();
        let status = to_its_end(&self.tasks, async move { supervisor.undrain().await }).await?;
        Ok(Response::new(pb::UndrainResponse {
            status: Some(drain::status(status)),
        }))
    }

    pub(super) async fn upgrade(
        &self,
        request: Request<pb::UpgradeRequest>,
    ) -> Result<Response<pb::UpgradeResponse>, Status> {
        let request_id = request::upgrade(request.get_ref())?;
        let upgrade = answer_of(self.supervisor.upgrade(request_id));
        let upgrade = with_keeper(&self.supervisor, upgrade).await?;
        Ok(Response::new(pb::UpgradeResponse {
            upgrade: Some(info::upgrade(upgrade)),
        }))
    }

    pub(super) async fn audit_leaks(&self) -> Result<Response<pb::AuditLeaksResponse>, Status> {
        let audited = answer_of(self.supervisor.audit());
        let audited = with_keeper(&self.supervisor, audited).await?;
        Ok(Response::new(pb::AuditLeaksResponse {
            audit: Some(audit::audit(audited)),
        }))
    }

    pub(super) async fn reap_leaks(
        &self,
        request: Request<pb::ReapLeaksRequest>,
    ) -> Result<Response<pb::ReapLeaksResponse>, Status> {
        let by = auth::principal(&request)?;
        let call = audit::reap(request.get_ref(), by)?;
        let supervisor = self.supervisor.clone();
        let reaping = to_its_end(&self.tasks, async move { supervisor.reap(call).await });
        let serving = self.supervisor.serving();
        let reaping = unless_leaving(&serving, reaping);
        let reaped = with_keeper(&self.supervisor, reaping).await?;
        Ok(Response::new(audit::reaped(reaped)))
    }

    pub(super) async fn stream_audit(
        &self,
        request: Request<pb::StreamAuditRequest>,
    ) -> Result<Response<BoxStream<pb::StreamAuditResponse>>, Status> {
        let ask = trail::ask(request.get_ref())?;
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| {
            status::too_many("open streams of the audit trail", limits::AUDIT_STREAMS_MAX)
        })?;
        let reader = self.supervisor.audit_trail(ask).await;
        let going = self.supervisor.serving();
        let begun = Some((reader, going, place));
        let records = stream::unfold(begun, |open| async move {
            let (mut reader, going, place) = open?;
            match records(&mut reader, &going).await {
                Ok(Some(records)) => Some((Ok(records), Some((reader, going, place)))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(records)))
    }
}

/// Returns the next records of the audit log; `None` at its end.
async fn records(
    reader: &mut TrailReader,
    going: &Serving,
) -> Result<Option<pb::StreamAuditResponse>, Status> {
    let next = tokio::select! {
        biased;
        next = reader.next() => next,
        () = going.until_leaving() => return Err(status::leaving()),
        () = going.until_closing() => return Err(status::draining()),
    };
    let next = next.map_err(|error| status::internal(&error.to_string()))?;
    Ok(next.map(|records| pb::StreamAuditResponse {
        records: records.into_iter().map(trail::record).collect(),
    }))
}
