//! The wait for a station of a run.

use super::{Api, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    access::Caller,
    convert::{request, run},
    enums::known,
    pb,
};
use kennel_lifecycle::{RunId, Violation};
use kennel_supervisor::Condition;

/// A wait, and who waits.
pub(crate) struct Call {
    run: RunId,
    pub(super) condition: Condition,
    caller: Caller,
}

impl Verb for pb::WaitRunRequest {
    const HOW: How = How::read(Waits::Caller);
    type Call = Call;
    type Answer = pb::WaitRunResponse;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let condition = match known("condition", self.condition, "WaitCondition", found) {
            pb::WaitCondition::Started => Condition::Started,
            pb::WaitCondition::Paused => Condition::Paused,
            pb::WaitCondition::LeaderExited => Condition::LeaderExited,
            pb::WaitCondition::StreamsClosed => Condition::StreamsClosed,
            pb::WaitCondition::TreeEmpty => Condition::TreeEmpty,
            pb::WaitCondition::Ready => Condition::Ready,
            pb::WaitCondition::Unspecified | pb::WaitCondition::Ended => Condition::Ended,
        };
        Some(Call {
            run: run?,
            condition,
            caller: context.caller.clone(),
        })
    }

    fn scope(call: &Self::Call) -> Scope {
        Scope::Run(call.run)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let _of_run = at.shares.wait_of_run(&call.caller)?;
        let waited = at.supervisor.wait(call.run, call.condition).await?;
        Ok(pb::WaitRunResponse {
            run: Some(run::run(waited.run)),
            reached: waited.reached,
        })
    }
}
