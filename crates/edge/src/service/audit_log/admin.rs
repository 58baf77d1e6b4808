//! Audit-log decorator of the operator's rpcs.

use super::{super::Admin, Audited, word};
use crate::{
    convert::time,
    pb::{self, admin_service_server::AdminService},
};
use kennel_supervisor::{LoggedProcess, LoggedSignal, TrailEntry, TrailRecord};
use tonic::{Request, Response, Status, codegen::BoxStream};

#[tonic::async_trait]
impl AdminService for Audited<Admin> {
    async fn get_server_info(
        &self,
        _request: Request<pb::GetServerInfoRequest>,
    ) -> Result<Response<pb::GetServerInfoResponse>, Status> {
        self.inner.get_server_info().await
    }

    async fn list_nodes(
        &self,
        _request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<pb::ListNodesResponse>, Status> {
        self.inner.list_nodes().await
    }

    async fn forget_node(
        &self,
        request: Request<pb::ForgetNodeRequest>,
    ) -> Result<Response<pb::ForgetNodeResponse>, Status> {
        let node = request.get_ref().node.clone();
        let asked = self.asked("ForgetNode", &request, "").with("node", node);
        asked.recorded(self.inner.forget_node(request)).await
    }

    async fn drain(
        &self,
        request: Request<pb::DrainRequest>,
    ) -> Result<Response<pb::DrainResponse>, Status> {
        let body = request.get_ref();
        let mut asked = self.asked("Drain", &request, "").id(&body.request_id);
        asked = asked.with("action", word(body.action().as_str_name(), "DRAIN_ACTION_"));
        if let Some(deadline) = &body.deadline {
            asked = asked.with("deadline", time::text(deadline));
        }
        asked.recorded(self.inner.drain(request)).await
    }

    async fn undrain(
        &self,
        request: Request<pb::UndrainRequest>,
    ) -> Result<Response<pb::UndrainResponse>, Status> {
        let asked = self.asked("Undrain", &request, "");
        asked.recorded(self.inner.undrain()).await
    }

    async fn upgrade(
        &self,
        request: Request<pb::UpgradeRequest>,
    ) -> Result<Response<pb::UpgradeResponse>, Status> {
        let asked = self.asked("Upgrade", &request, "");
        let mut asked = asked.id(&request.get_ref().request_id);
        let answer = self.inner.upgrade(request).await;
        let upgrade = answer
            .as_ref()
            .ok()
            .and_then(|a| a.get_ref().upgrade.as_ref());
        if let Some(upgrade) = upgrade {
            asked = asked.with("to_version", &upgrade.to_version);
        }
        asked.record_answer(&answer).await;
        answer
    }

    async fn audit_leaks(
        &self,
        _request: Request<pb::AuditLeaksRequest>,
    ) -> Result<Response<pb::AuditLeaksResponse>, Status> {
        self.inner.audit_leaks().await
    }

    /// A dry run changes nothing.
    async fn reap_leaks(
        &self,
        request: Request<pb::ReapLeaksRequest>,
    ) -> Result<Response<pb::ReapLeaksResponse>, Status> {
        if request.get_ref().mode() != pb::ReapMode::Execute {
            return self.inner.reap_leaks(request).await;
        }
        let mut asked = self.asked("ReapLeaks", &request, "");
        let by = asked
            .reported
            .as_ref()
            .map_or_else(String::new, |t| t.by.clone());
        let answer = self.inner.reap_leaks(request).await;
        if let Ok(done) = &answer {
            let reported = done
                .get_ref()
                .processes
                .iter()
                .filter_map(|p| reaped(p, &by));
            let reported: Vec<_> = reported.collect();
            asked = asked.with("signalled", reported.len().to_string());
            for (run, reported) in reported {
                let record = TrailRecord::now(run, TrailEntry::Signal(reported));
                self.supervisor.audit_noted(record);
            }
        }
        asked.record_answer(&answer).await;
        answer
    }

    type StreamAuditStream = BoxStream<pb::StreamAuditResponse>;

    async fn stream_audit(
        &self,
        request: Request<pb::StreamAuditRequest>,
    ) -> Result<Response<Self::StreamAuditStream>, Status> {
        self.inner.stream_audit(request).await
    }
}

/// Describes a leaked process that was signalled. `None`: none was.
fn reaped(process: &pb::ReapedProcess, by: &str) -> Option<(Option<String>, LoggedSignal)> {
    let (delivered, gone, refused) = match process.outcome() {
        pb::ReapOutcome::Ended | pb::ReapOutcome::Survived => (1, 0, 0),
        pb::ReapOutcome::Gone => (0, 1, 0),
        pb::ReapOutcome::Failed => (0, 0, 1),
        _ => return None,
    };
    let found = process.found.as_ref();
    let named = process.process.as_ref();
    let evidence = found.map(|found| word(found.evidence().as_str_name(), "LEAK_EVIDENCE_"));
    let reported = LoggedSignal {
        owner: by.to_owned(),
        signal: match process.outcome() {
            pb::ReapOutcome::Survived => "SIGKILL".into(),
            _ => process.signal.clone(),
        },
        scope: "reap".into(),
        sender: "keeper".into(),
        why: format!("{by} asked that what was left behind be ended"),
        delivered,
        gone,
        refused,
        errno: process.error_number,
        processes: vec![LoggedProcess {
            pid: named.map_or(0, |process| process.pid),
            start_ticks: named.map_or(0, |process| process.start_ticks),
            evidence: evidence.into_iter().collect(),
            result: word(process.outcome().as_str_name(), "REAP_OUTCOME_"),
        }],
        ..LoggedSignal::default()
    };
    let run = found.map(|found| found.run_id.clone());
    Some((run.filter(|run| !run.is_empty()), reported))
}
