//! Bytes for a run's standard input.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{convert::input, pb};
use kennel_lifecycle::Violation;
use kennel_supervisor::WriteCall;

impl Verb for pb::WriteInputRequest {
    const HOW: How = How::order(Waits::KeeperAndCaller).summed().while_asked();
    type Call = WriteCall;
    type Answer = pb::WriteInputResponse;

    fn logged(&self, record: Asked) -> Asked {
        record.of_run(&self.run_id).of_bytes(self.data.len())
    }

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        input::write(self, found)
    }

    fn scope(call: &Self::Call) -> Scope {
        Scope::Run(call.run)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        // Not to its end: the part that a caller has written before it goes away is reported to the next one.
        Ok(input::written(at.supervisor.write_input(call).await?))
    }
}
