//! A part of what a run has written.

use super::{Api, Context, Fault, How, Scope, Verb, Waits};
use crate::{
    convert::{event, request},
    enums::unknown_number,
    limits, pb,
};
use kennel_lifecycle::Violation;
use kennel_supervisor::{OutputCall, OutputRange};

impl Verb for pb::ReadOutputRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = OutputCall;
    type Answer = pb::ReadOutputResponse;

    fn parse(self, _: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        use pb::{OutputStream as Stream, read_output_request::Range as Asked};
        let run = request::parse_run_id(&self.run_id, found);
        let stream = match Stream::try_from(self.stream) {
            Ok(Stream::Stdout) => 1,
            Ok(Stream::Stderr) => 2,
            Ok(Stream::Unspecified) => {
                found.push(Violation::new("stream", "must be given"));
                1
            }
            Err(_) => {
                found.push(unknown_number("stream", self.stream, "OutputStream"));
                1
            }
        };
        let max = limits::OUTPUT_READ_BYTES_MAX;
        let from = |offset| OutputRange::From {
            offset,
            bytes_max: match self.bytes_max {
                0 => max,
                bytes => u64::from(bytes),
            },
        };
        if u64::from(self.bytes_max) > max {
            let why = format!("must be at most {max}");
            found.push(Violation::new("bytes_max", why));
        }
        let range = match &self.range {
            None => from(0),
            Some(Asked::Offset(offset)) => from(*offset),
            Some(Asked::HeadTail(ends)) => {
                let (head, tail) = (u64::from(ends.head_bytes), u64::from(ends.tail_bytes));
                if !(1..=max).contains(&(head + tail)) {
                    let why = format!("must be 1 to {max} bytes together");
                    found.push(Violation::new("head_tail", why));
                }
                OutputRange::Ends { head, tail }
            }
        };
        let (form, _) = request::view("view", self.view, found);
        if form.is_some_and(|form| form.lines) {
            let why = "must be OUTPUT_VIEW_RAW or OUTPUT_VIEW_TEXT";
            found.push(Violation::new("view", why));
        }
        Some(OutputCall {
            run: run?,
            stream,
            range,
            plain: form.is_some_and(|form| form.plain),
        })
    }

    fn scope(call: &Self::Call) -> Scope {
        Scope::Run(call.run)
    }

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        Ok(event::output(at.supervisor.read_output(call).await?))
    }
}
