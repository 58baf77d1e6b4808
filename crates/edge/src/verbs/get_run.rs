//! A run as it is.

use super::{Api, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{
    convert::{request, run, usage},
    pb,
};
use kennel_lifecycle::{RunId, Violation};

impl Verb for pb::GetRunRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Brief;
    const TO_ITS_END: bool = false;
    type Call = RunId;
    type Answer = pb::GetRunResponse;

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<RunId> {
        request::parse_run_id(&self.run_id, found)
    }

    fn scope(run: &RunId) -> Scope {
        Scope::Run(*run)
    }

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.get(run).await?;
        let telemetry = at.supervisor.telemetry();
        let own = telemetry.run_span(run, view.policy().kind, view.traceparent.as_deref());
        let used = at.supervisor.usage(&view).await;
        let mut run = run::run(view);
        usage::add(&mut run, used.as_ref());
        run.run_trace_parent = own.unwrap_or_default();
        Ok(pb::GetRunResponse { run: Some(run) })
    }
}
