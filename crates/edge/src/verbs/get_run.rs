//! A run as it is.

use super::{Api, Fault, How, Verb, Waits};
use crate::{
    convert::{run, usage},
    pb,
};
use kennel_lifecycle::RunId;

impl Verb for pb::GetRunRequest {
    const HOW: How = How::read(Waits::Brief);
    type Answer = pb::GetRunResponse;

    of_run_id!();

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
