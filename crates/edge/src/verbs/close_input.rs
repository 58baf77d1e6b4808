//! The end of a run's standard input.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::{input, request},
    pb,
};
use kennel_lifecycle::Violation;
use kennel_supervisor::CloseCall;

impl Verb for pb::CloseInputRequest {
    const HOW: How = How::order(Waits::KeeperAndCaller).while_asked();
    type Call = CloseCall;
    type Answer = pb::CloseInputResponse;

    fn logged(&self, record: Asked) -> Asked {
        record.of_run(&self.run_id)
    }

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        request::check_attempt(self.expected_attempt, found);
        Some(CloseCall {
            run: run?,
            offset: self.offset,
            expected_attempt: self.expected_attempt,
        })
    }

    fn scope(call: &Self::Call) -> Scope {
        Scope::Run(call.run)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let closed = at.supervisor.close_input(call).await?;
        Ok(pb::CloseInputResponse {
            input: Some(input::status(closed)),
        })
    }
}
