//! How much of a run's standard input was taken.

use super::{Api, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{
    convert::{input, request},
    pb,
};
use kennel_lifecycle::{RunId, Violation};

impl Verb for pb::GetInputStatusRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Keeper;
    const TO_ITS_END: bool = false;
    type Call = RunId;
    type Answer = pb::GetInputStatusResponse;

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<RunId> {
        request::parse_run_id(&self.run_id, found)
    }

    fn scope(run: &RunId) -> Scope {
        Scope::Run(*run)
    }

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let progress = at.supervisor.input_progress(run).await?;
        Ok(pb::GetInputStatusResponse {
            input: Some(input::status(progress)),
        })
    }
}
