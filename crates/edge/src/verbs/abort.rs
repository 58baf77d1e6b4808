//! The end of a run: also of one that is not known yet, and of one whose node is away.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::{request, run, time},
    enums::known,
    pb,
};
use kennel_lifecycle::Violation;
use kennel_supervisor::{AbortCall, AbortWait, IfUnknown};

/// The call, and whether the run's node can be asked.
pub(crate) struct Call(pub(super) AbortCall, bool);

impl Verb for pb::AbortRequest {
    const HOW: How = How::order(Waits::KeeperAndCaller);
    type Call = Call;
    type Answer = pb::AbortResponse;

    fn logged(&self, record: Asked) -> Asked {
        let record = record.of_run(&self.run_id).id(&self.request_id);
        match &self.grace {
            Some(grace) => record.with("grace", time::text(grace)),
            None => record,
        }
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let request_id = request::request_id(&self.request_id, found);
        let grace = request::grace(self.grace.as_ref(), found);
        let wait = match known("wait", self.wait, "AbortWait", found) {
            pb::AbortWait::None => AbortWait::None,
            pb::AbortWait::LeaderExited => AbortWait::LeaderExited,
            pb::AbortWait::Unspecified | pb::AbortWait::TreeEmpty => AbortWait::TreeEmpty,
        };
        let if_unknown = match known("if_unknown", self.if_unknown, "AbortUnknown", found) {
            pb::AbortUnknown::Unspecified | pb::AbortUnknown::Fence => IfUnknown::Fence,
            pb::AbortUnknown::Refuse => IfUnknown::Refuse,
        };
        let call = AbortCall {
            run: run?,
            grace,
            wait,
            if_unknown,
            by: context.by(),
            owner: context.caller.owner.clone(),
            request_id,
        };
        Some(Call(call, context.asks_node))
    }

    fn waits(Call(call, _): &Call) -> Waits {
        match call.wait {
            AbortWait::None => Waits::Keeper,
            AbortWait::LeaderExited | AbortWait::TreeEmpty => Self::HOW.waits,
        }
    }

    fn scope(Call(call, _): &Self::Call) -> Scope {
        Scope::RunOrAbsent(call.run)
    }

    async fn serve(at: Api, Call(call, asks_node): Self::Call) -> Result<Self::Answer, Fault> {
        let view = if asks_node {
            at.supervisor.abort(call).await
        } else {
            at.supervisor.abort_or_leave(call).await
        };
        Ok(pb::AbortResponse {
            run: Some(run::run(view?)),
        })
    }
}
