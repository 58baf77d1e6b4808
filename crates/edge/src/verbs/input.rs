//! Standard input and the size of the terminal.

use super::{Api, Asked, Context, Fault, How, Verb, Waits};
use crate::{
    convert::{input, request, run, terminal},
    pb,
};
use kennel_lifecycle::Violation;
use kennel_supervisor::{CloseCall, ResizeCall, WriteCall};

impl Verb for pb::WriteInputRequest {
    const HOW: How = How::order(Waits::KeeperAndCaller).summed().while_asked();
    type Call = WriteCall;

    fn logged(&self, record: Asked) -> Asked {
        record.of_bytes(self.data.len())
    }

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        input::write(self, context.by(), found)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        // Not run to its end: the next call learns what a caller had written before it left.
        Ok(input::written(at.supervisor.write_input(call).await?))
    }
}

impl Verb for pb::CloseInputRequest {
    const HOW: How = How::order(Waits::KeeperAndCaller).while_asked();
    type Call = CloseCall;

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        request::check_attempt(self.expected_attempt, found);
        Some(CloseCall {
            run: run?,
            offset: self.offset,
            expected_attempt: self.expected_attempt,
        })
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let closed = at.supervisor.close_input(call).await?;
        Ok(pb::CloseInputResponse {
            input: Some(input::status(closed)),
        })
    }
}

impl Verb for pb::ResizeTerminalRequest {
    const HOW: How = How::order(Waits::Keeper).summed();
    type Call = ResizeCall;

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

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.resize(call).await?;
        Ok(pb::ResizeTerminalResponse {
            run: Some(run::run(view)),
        })
    }
}
