//! All nodes of the database.

use super::{Api, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{convert::run, pb};
use kennel_lifecycle::Violation;

impl Verb for pb::ListNodesRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Brief;
    const TO_ITS_END: bool = false;
    type Call = ();
    type Answer = pb::ListNodesResponse;

    fn parse(self, _: &Context<'_>, _: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(())
    }

    fn scope((): &()) -> Scope {
        Scope::Nothing
    }

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        let nodes = at.supervisor.nodes().await?;
        Ok(pb::ListNodesResponse {
            nodes: nodes.into_iter().map(run::node).collect(),
            own_node_id: at.supervisor.node().to_string(),
        })
    }
}
