//! Output, waits, and the file that a command is.

use super::{
    Api, Context, Fault, How, Scope, Verb, Waits,
    spawn::{self, hold, permit},
};
use crate::{
    access::Caller,
    convert::{
        event,
        pattern::{self, matched},
        request, run,
    },
    enums::{parsed, unknown_number},
    limits, pb, status,
};
use kennel_lifecycle::{LinePattern, RunId, Violation};
use kennel_supervisor::{
    Condition, Form, LINE_BYTES_MAX, LineMatcher, OutputCall, OutputRange, OutputWait,
    OutputWaited, SearchedFile,
};

impl Verb for pb::ReadOutputRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = OutputCall;

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

    async fn serve(at: Api, call: Self::Call) -> Result<Self::Answer, Fault> {
        Ok(event::output(at.supervisor.read_output(call).await?))
    }
}

/// A wait, and who waits.
pub(crate) struct CallerWait {
    run: RunId,
    pub(super) condition: Condition,
    caller: Caller,
}

parsed! {
    fn condition(WaitCondition) -> Condition
    {
        Unspecified | Ended => Ended,
        Started, Paused, LeaderExited, StreamsClosed, TreeEmpty, Ready
    }
}

impl Verb for pb::WaitRunRequest {
    const HOW: How = How::read(Waits::Caller);
    type Call = CallerWait;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<Self::Call> {
        let run = request::parse_run_id(&self.run_id, found);
        let condition = condition("condition", self.condition, found);
        Some(CallerWait {
            run: run?,
            condition,
            caller: context.caller.clone(),
        })
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

/// A wait for a line, and who waits.
pub(crate) struct LineWait {
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
    type Call = LineWait;

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
        Some(LineWait {
            // The placeholder id is never used: the call is refused once its pattern is also checked.
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
        call: &mut LineWait,
        found: &mut Vec<Violation>,
    ) -> Result<(), Fault> {
        if let Some(wanted) = call.pattern.take() {
            let owner = context.caller.owner.as_str().into();
            let compiled = pattern::compile(&at.supervisor, &owner, ("pattern", wanted), found);
            call.matcher = compiled.await?;
        }
        Ok(())
    }

    fn scope(call: &LineWait) -> Option<Scope> {
        Some(Scope::RunAtItsNode(call.run))
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

impl Verb for pb::ResolveCommandRequest {
    const HOW: How = How::read(Waits::Brief);
    type Call = spawn::Call;

    fn parse(self, context: &Context<'_>, found: &mut Vec<Violation>) -> Option<spawn::Call> {
        spawn::parse(self.spec, context, found)
    }

    async fn checked(
        at: &Api,
        context: &Context<'_>,
        call: &mut spawn::Call,
        found: &mut Vec<Violation>,
    ) -> Result<(), Fault> {
        hold(context, call, found)?;
        Ok(permit(at, &mut call.spawn, &call.caller)?)
    }

    async fn serve(at: Api, call: spawn::Call) -> Result<Self::Answer, Fault> {
        let search = at.supervisor.find_command(&call.spawn).await;
        let mut path = None;
        let searched = search.searched.into_iter().map(|(at, found)| {
            let at = at.display().to_string();
            let result = match found {
                SearchedFile::Executable => {
                    path = Some(at.clone());
                    pb::SearchResult::Found
                }
                SearchedFile::Absent => pb::SearchResult::Absent,
                SearchedFile::NotExecutable => pb::SearchResult::NotExecutable,
                SearchedFile::NoAnswer => pb::SearchResult::NoAnswer,
            };
            pb::SearchedPath {
                path: at,
                result: result.into(),
            }
        });
        let searched = searched.collect();
        let source = match path {
            Some(_) => pb::CommandSource::Path,
            None => pb::CommandSource::Unspecified,
        };
        Ok(pb::ResolveCommandResponse {
            source: source.into(),
            path,
            path_variable: search.path_variable,
            searched,
        })
    }
}
