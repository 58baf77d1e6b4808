//! Every process of a run.

use super::{Api, Fault, Logs, Verb, Waits};
use crate::{convert::tree, pb};
use kennel_lifecycle::RunId;

impl Verb for pb::GetTreeRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Keeper;
    const TO_ITS_END: bool = false;
    type Answer = pb::GetTreeResponse;

    of_run_id!();

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let (view, listing) = at.supervisor.tree(run).await?;
        let used = at.supervisor.usage(&view).await;
        Ok(tree::tree(view, listing, used.as_ref()))
    }
}
