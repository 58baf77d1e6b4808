//! The continuation of a paused run.

use super::{Api, Asked, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{
    convert::{request, run},
    pb,
};
use kennel_lifecycle::{RunId, Violation};

impl Verb for pb::ResumeRequest {
    const LOGS: Logs = Logs::Each;
    const WAITS: Waits = Waits::Keeper;
    const TO_ITS_END: bool = true;
    type Call = RunId;
    type Answer = pb::ResumeResponse;

    fn logged(&self, record: Asked) -> Asked {
        record.of_run(&self.run_id)
    }

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<RunId> {
        request::parse_run_id(&self.run_id, found)
    }

    fn scope(run: &RunId) -> Scope {
        Scope::Run(*run)
    }

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.resume(run).await?;
        Ok(pb::ResumeResponse {
            run: Some(run::run(view)),
        })
    }
}
