//! The screen of a run's terminal.

use super::{Api, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{
    convert::{request, screen},
    pb,
};
use kennel_lifecycle::{RunId, Violation};

impl Verb for pb::ReadScreenRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Caller;
    const TO_ITS_END: bool = false;
    type Call = RunId;
    type Answer = pb::ReadScreenResponse;

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<RunId> {
        request::parse_run_id(&self.run_id, found)
    }

    fn scope(run: &RunId) -> Scope {
        Scope::Run(*run)
    }

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.screen(run).await?;
        Ok(pb::ReadScreenResponse {
            screen: Some(screen::screen(view)),
        })
    }
}
