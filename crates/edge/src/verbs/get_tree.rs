//! Every process of a run.

use super::{Api, Fault, How, Verb, Waits};
use crate::{convert::tree, pb};
use kennel_lifecycle::RunId;

impl Verb for pb::GetTreeRequest {
    const HOW: How = How::read(Waits::Keeper);
    type Answer = pb::GetTreeResponse;

    of_run_id!();

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let (view, listing) = at.supervisor.tree(run).await?;
        let used = at.supervisor.usage(&view).await;
        Ok(tree::tree(view, listing, used.as_ref()))
    }
}
