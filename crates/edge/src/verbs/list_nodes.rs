//! All nodes of the database.

use super::{Api, Fault, How, Verb, Waits};
use crate::{convert::run, pb};

impl Verb for pb::ListNodesRequest {
    const HOW: How = How::read(Waits::Brief);
    type Answer = pb::ListNodesResponse;

    without_fields!();

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        let nodes = at.supervisor.nodes().await?;
        Ok(pb::ListNodesResponse {
            nodes: nodes.into_iter().map(run::node).collect(),
            own_node_id: at.supervisor.node().to_string(),
        })
    }
}
