//! Another size of a run's terminal.

use super::{Api, Asked, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::{request, run, terminal},
    pb,
};
use kennel_lifecycle::Violation;
use kennel_supervisor::ResizeCall;

impl Verb for pb::ResizeTerminalRequest {
    const HOW: How = How::order(Waits::Keeper).summed();
    type Call = ResizeCall;
    type Answer = pb::ResizeTerminalResponse;

    fn logged(&self, record: Asked) -> Asked {
        record.of_run(&self.run_id)
    }

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let (rows, cols) = (self.rows, self.cols);
        let size = terminal::given_size("", pb::TerminalSize { rows, cols }, found);
        request::check_attempt(self.expected_attempt, found);
        Some(ResizeCall {
            run: run?,
            size,
            expected_attempt: self.expected_attempt,
        })
    }

    fn scope(call: &Self::Call) -> Scope {
        Scope::Run(call.run)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.resize(call).await?;
        Ok(pb::ResizeTerminalResponse {
            run: Some(run::run(view)),
        })
    }
}
