//! The end of the open runs of a node that will not come back.

use super::{Api, Asked, Context, Fault, How, Verb, Waits};
use crate::{convert::run, pb};
use kennel_lifecycle::Violation;

/// The node, by its id or name.
pub(crate) struct Call {
    node: String,
    remove: bool,
    by: String,
}

impl Verb for pb::ForgetNodeRequest {
    const HOW: How = How::order(Waits::Brief);
    type Call = Call;
    type Answer = pb::ForgetNodeResponse;

    fn logged(&self, record: Asked) -> Asked {
        record.with("node", &self.node)
    }

    fn parse(self, context: &Context<'_>, _: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(Call {
            node: self.node,
            remove: self.remove,
            by: context.by(),
        })
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let forgetting = at.supervisor.forget_node(&call.node, &call.by, call.remove);
        let (node, ended_runs) = forgetting.await?;
        Ok(pb::ForgetNodeResponse {
            node: Some(run::node(node)),
            ended_runs,
        })
    }
}
