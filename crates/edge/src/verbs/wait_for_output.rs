//! The wait for a line of output.

use super::{Api, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    access::Caller,
    convert::{
        pattern::{self, matched},
        request, run,
    },
    limits, pb, status,
};
use kennel_lifecycle::{LinePattern, RunId, Violation};
use kennel_supervisor::{Form, LINE_BYTES_MAX, LineMatcher, OutputWait, OutputWaited};

/// A wait, and who waits.
pub(crate) struct Call {
    run: RunId,
    /// Absent: it was refused, or is compiled.
    pattern: Option<LinePattern>,
    matcher: Option<LineMatcher>,
    streams: [bool; 2],
    after_seq: u64,
    line_bytes_max: u32,
    caller: Caller,
}

impl Verb for pb::WaitForOutputRequest {
    const HOW: How = How::read(Waits::Caller);
    type Call = Call;
    type Answer = pb::WaitForOutputResponse;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let pattern = pattern::pattern("pattern", self.pattern, found);
        let streams = pattern::streams("streams", &self.streams, found);
        let line_bytes_max = match self.line_bytes_max {
            0 => LINE_BYTES_MAX,
            bytes => bytes,
        };
        if !limits::LINE_BYTES.contains(&line_bytes_max) {
            let (least, most) = (limits::LINE_BYTES.start(), limits::LINE_BYTES.end());
            let why = format!("must be {least} to {most}, or 0 for {LINE_BYTES_MAX}");
            found.push(Violation::new("line_bytes_max", why));
        }
        Some(Call {
            // One that was refused is never asked for: the call is refused as soon as its pattern is checked, too.
            run: run.unwrap_or(RunId::from_u128(0)),
            pattern,
            matcher: None,
            streams,
            after_seq: self.after_seq,
            line_bytes_max,
            caller: context.caller.clone(),
        })
    }

    /// Compiles the pattern, in a turn of the caller's owner.
    async fn checked(
        at: &Api,
        context: &Context<'_>,
        call: &mut Call,
        found: &mut Vec<Violation>,
    ) -> Result<(), Fault> {
        if let Some(wanted) = call.pattern.take() {
            let owner = context.caller.owner.as_str().into();
            let compiled = pattern::compile(&at.supervisor, &owner, ("pattern", wanted), found);
            call.matcher = compiled.await?;
        }
        Ok(())
    }

    fn scope(call: &Self::Call) -> Scope {
        Scope::RunAtItsNode(call.run)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        let form = Form {
            line_bytes_max: call.line_bytes_max,
            ..Form::default()
        };
        let _place = at.place(&call.caller)?;
        let _room = at.room_for_lines(Some(form))?;
        let unread = || status::internal("a pattern was neither read nor refused");
        let wait = OutputWait {
            run: call.run,
            matcher: call.matcher.ok_or_else(unread)?,
            streams: call.streams,
            after_seq: call.after_seq,
            line_bytes_max: call.line_bytes_max,
        };
        // Runs with a token share the turns of their owner.
        let owner = call.caller.owner.as_str().into();
        Ok(waited(at.supervisor.wait_output(wait, owner).await?))
    }
}

/// Makes the answer to a wait for output.
pub(crate) fn waited(waited: OutputWaited) -> pb::WaitForOutputResponse {
    use pb::wait_for_output_response::{Ended, Result};
    let result = match waited.found {
        Some(found) => Result::Match(matched(found)),
        None => Result::Ended(Ended {}),
    };
    pb::WaitForOutputResponse {
        result: Some(result),
        run: Some(run::run(waited.run)),
        incomplete: waited.is_incomplete,
    }
}
