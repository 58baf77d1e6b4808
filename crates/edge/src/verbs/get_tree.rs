//! Every process of a run.

use super::{Api, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{
    convert::{request, tree},
    pb,
};
use kennel_lifecycle::{RunId, Violation};

impl Verb for pb::GetTreeRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Keeper;
    const TO_ITS_END: bool = false;
    type Call = RunId;
    type Answer = pb::GetTreeResponse;

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<RunId> {
        request::parse_run_id(&self.run_id, found)
    }

    fn scope(run: &RunId) -> Scope {
        Scope::Run(*run)
    }

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let (view, listing) = at.supervisor.tree(run).await?;
        let used = at.supervisor.usage(&view).await;
        Ok(tree::tree(view, listing, used.as_ref()))
    }
}
