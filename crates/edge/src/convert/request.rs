//! Requests, parsed with all their violations.

mod annotate;
mod attach;
mod events;
mod extend;
mod many;
mod output;
mod wait_output;

pub(crate) use annotate::annotate;
pub(crate) use attach::{attach, attach_input, attach_resize, not_after_open, resize_to};
pub(crate) use events::events;
pub(crate) use extend::extend;
pub(crate) use many::{ManyAsk, ManyConsumer, events_of_many};
pub(crate) use output::read_output;
pub(crate) use wait_output::wait_output;

use super::{
    labels, run,
    spec::{self, known, run_named, unknown_number},
    terminal, time,
    token::PageToken,
};
use crate::{
    digest::{DigestKey, SPEC_DIGEST_VERSION},
    limits, pb, status,
    trace_context::TraceContext,
};
use kennel_lifecycle::{NodeId, RunId, RunSpec, Signal, Violation, limits as bounds};
use kennel_supervisor::{
    AbortCall, AbortWait, CloseCall, Condition, Form, IfUnknown, Kinds, ListFilter, PageStart,
    Position, ResizeCall, RestartCall, SignalCall, SignalTarget, SpawnCall, WriteCall,
};
use std::time::Duration;
use tonic::Status;

/// Page and filter of a list of runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListCall {
    pub(crate) filter: ListFilter,
    pub(crate) start: Option<PageStart>,
    pub(crate) limit: u32,
}

/// Selection of events, and the heartbeat interval.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EventsCall {
    pub(crate) run: RunId,
    pub(crate) from: Position,
    pub(crate) heartbeat: Duration,
    /// Whether the stream ends where events are missing.
    pub(crate) fails_on_gap: bool,
    /// View of output; absent: as written.
    pub(crate) form: Option<Form>,
    /// Whether lines are parsed as JSON.
    pub(crate) as_json: bool,
    pub(crate) kinds: Kinds,
    /// Whether it ends at the present head.
    pub(crate) until_head: bool,
    pub(crate) consumer: Option<ConsumerAsk>,
}

/// Consumer that reads the events of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConsumerAsk {
    pub(crate) name: String,
    /// Whether the request gives the position itself.
    pub(crate) has_position: bool,
}

/// Parses it. Its patterns are still to be compiled; an error, unless violations are all that was found.
pub(crate) fn spawn(
    request: pb::SpawnRequest,
    owner: String,
    trace: TraceContext,
    key: &DigestKey,
) -> Result<(SpawnCall, Vec<Violation>), Status> {
    let mut found = Vec::new();
    let run = optional_run_id(&request.run_id, &mut found);
    let Some(spec) = request.spec else {
        found.push(Violation::new("spec", "must be given"));
        return Err(status::invalid(&found));
    };
    // Nothing more is parsed of a far too large request.
    if spec::has_too_many(&spec, &mut found) {
        return Err(status::invalid(&found));
    }
    let spec = spec::parse(spec, &mut found);
    let call = SpawnCall {
        run,
        validate_only: request.validate_only,
        ..call_of(spec, owner, trace, key)
    };
    Ok((call, found))
}

/// Makes the call for this spec.
pub(super) fn call_of(
    spec: RunSpec,
    owner: String,
    trace: TraceContext,
    key: &DigestKey,
) -> SpawnCall {
    SpawnCall {
        spec_digest: key.of_spec(&spec),
        spec_digest_version: SPEC_DIGEST_VERSION,
        spec,
        owner,
        traceparent: trace.traceparent,
        tracestate: trace.tracestate,
        baggage: trace.baggage,
        ..SpawnCall::default()
    }
}

pub(crate) fn abort(
    request: &pb::AbortRequest,
    by: String,
    owner: String,
) -> Result<AbortCall, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let request_id = request_id(&request.request_id, &mut found);
    let grace = time::parse_duration("grace", request.grace.as_ref(), &mut found);
    if grace.is_some_and(|g| g > bounds::GRACE_MAX) {
        found.push(Violation::new("grace", "must be at most 24 hours"));
    }
    let wait = match known("wait", request.wait, "AbortWait", &mut found) {
        pb::AbortWait::None => AbortWait::None,
        pb::AbortWait::LeaderExited => AbortWait::LeaderExited,
        pb::AbortWait::Unspecified | pb::AbortWait::TreeEmpty => AbortWait::TreeEmpty,
    };
    let if_unknown = match known("if_unknown", request.if_unknown, "AbortUnknown", &mut found) {
        pb::AbortUnknown::Unspecified | pb::AbortUnknown::Fence => IfUnknown::Fence,
        pb::AbortUnknown::Refuse => IfUnknown::Refuse,
    };
    Ok(AbortCall {
        run: whole(run, &found)?,
        grace,
        wait,
        if_unknown,
        by,
        owner,
        request_id,
    })
}

pub(crate) fn restart(request: &pb::RestartRequest, by: String) -> Result<RestartCall, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let request_id = request_id(&request.request_id, &mut found);
    let grace = time::parse_duration("grace", request.grace.as_ref(), &mut found);
    if grace.is_some_and(|g| g > bounds::GRACE_MAX) {
        found.push(Violation::new("grace", "must be at most 24 hours"));
    }
    check_attempt(request.expected_attempt, &mut found);
    Ok(RestartCall {
        run: whole(run, &found)?,
        grace,
        expected_attempt: request.expected_attempt,
        by,
        request_id,
    })
}

pub(crate) fn interrupt(request: &pb::InterruptRequest) -> Result<(RunId, Option<String>), Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let request_id = request_id(&request.request_id, &mut found);
    Ok((whole(run, &found)?, request_id))
}

pub(crate) fn resize(request: &pb::ResizeTerminalRequest) -> Result<ResizeCall, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let (rows, cols) = (request.rows, request.cols);
    let size = terminal::given_size("", pb::TerminalSize { rows, cols }, &mut found);
    check_attempt(request.expected_attempt, &mut found);
    Ok(ResizeCall {
        run: whole(run, &found)?,
        size,
        expected_attempt: request.expected_attempt,
    })
}

pub(crate) fn write_input(request: pb::WriteInputRequest) -> Result<WriteCall, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    if request.data.is_empty() || request.data.len() > bounds::INPUT_WRITE_BYTES_MAX {
        let most = bounds::INPUT_WRITE_BYTES_MAX;
        let what = format!("must be 1 to {most} bytes");
        found.push(Violation::new("data", what));
    }
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if request.write_id.len() > bounds::WRITE_ID_BYTES_MAX
        || !request.write_id.bytes().all(is_plain)
    {
        let most = bounds::WRITE_ID_BYTES_MAX;
        let what = format!("must be at most {most} printable ASCII characters without \" and \\");
        found.push(Violation::new("write_id", what));
    }
    check_attempt(request.expected_attempt, &mut found);
    Ok(WriteCall {
        run: whole(run, &found)?,
        data: request.data.into(),
        offset: request.offset,
        write_id: (!request.write_id.is_empty()).then_some(request.write_id),
        expected_attempt: request.expected_attempt,
    })
}

pub(crate) fn close_input(request: &pb::CloseInputRequest) -> Result<CloseCall, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    check_attempt(request.expected_attempt, &mut found);
    Ok(CloseCall {
        run: whole(run, &found)?,
        offset: request.offset,
        expected_attempt: request.expected_attempt,
    })
}

fn check_attempt(expected: Option<u32>, found: &mut Vec<Violation>) {
    if expected == Some(0) {
        found.push(Violation::new("expected_attempt", "must be at least 1"));
    }
}

pub(crate) fn upgrade(request: &pb::UpgradeRequest) -> Result<Option<String>, Status> {
    let mut found = Vec::new();
    let request_id = request_id(&request.request_id, &mut found);
    no_violations(&found)?;
    Ok(request_id)
}

pub(crate) fn signal(request: &pb::SignalRequest) -> Result<SignalCall, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let request_id = request_id(&request.request_id, &mut found);
    let signal = match request.signal.parse::<Signal>() {
        // The processes would stop, and the run would still be reported as running.
        Ok(Signal::STOP) => Err("cannot be SIGSTOP: Pause stops a run and says so"),
        Ok(signal) => Ok(signal),
        Err(()) => Err("must be the name of a signal, such as SIGUSR1 or SIGRTMIN+3"),
    };
    let signal = signal.unwrap_or_else(|why| {
        found.push(Violation::new("signal", why));
        Signal::HUP
    });
    let target = match known("target", request.target, "SignalTarget", &mut found) {
        pb::SignalTarget::Tree => SignalTarget::Tree,
        pb::SignalTarget::Group => SignalTarget::Group,
        pb::SignalTarget::TerminalForeground => SignalTarget::TerminalForeground,
        pb::SignalTarget::Unspecified | pb::SignalTarget::Leader => SignalTarget::Leader,
    };
    Ok(SignalCall {
        run: whole(run, &found)?,
        signal,
        target,
        request_id,
    })
}

/// Parses the run of a request without other fields.
pub(crate) fn run_id(text: &str) -> Result<RunId, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(text, &mut found);
    whole(run, &found)
}

/// Parses the page size of a list.
pub(super) fn page_size(given: i32, found: &mut Vec<Violation>) -> u32 {
    match u32::try_from(given) {
        Ok(0) => limits::PAGE_SIZE_DEFAULT,
        Ok(size) => size.min(limits::PAGE_SIZE_MAX),
        Err(_) => {
            found.push(Violation::new("page_size", "must not be negative"));
            limits::PAGE_SIZE_DEFAULT
        }
    }
}

/// Parses a list request. `scope`: the owner whose runs alone the caller may see. `node`: the node of the filter.
pub(crate) fn list(
    request: &pb::ListRunsRequest,
    scope: Option<String>,
    node: Option<NodeId>,
) -> Result<ListCall, Status> {
    let mut found = Vec::new();
    let filter = ListFilter {
        owner: scope,
        node,
        ..filter(request.filter.as_ref(), &mut found)
    };
    let limit = page_size(request.page_size, &mut found);
    let start = if request.page_token.is_empty() {
        None
    } else {
        let token = PageToken::decode(&request.page_token, &filter);
        if token.is_none() {
            found.push(Violation::new(
                "page_token",
                "is not one that a server has given for this filter",
            ));
        }
        token.map(|t| t.0)
    };
    no_violations(&found)?;
    Ok(ListCall {
        filter,
        start,
        limit,
    })
}

pub(crate) fn wait(request: &pb::WaitRunRequest) -> Result<(RunId, Condition), Status> {
    let mut found = Vec::new();
    let run = parse_run_id(&request.run_id, &mut found);
    let condition = match known("condition", request.condition, "WaitCondition", &mut found) {
        pb::WaitCondition::Started => Condition::Started,
        pb::WaitCondition::Paused => Condition::Paused,
        pb::WaitCondition::LeaderExited => Condition::LeaderExited,
        pb::WaitCondition::StreamsClosed => Condition::StreamsClosed,
        pb::WaitCondition::TreeEmpty => Condition::TreeEmpty,
        pb::WaitCondition::Ready => Condition::Ready,
        pb::WaitCondition::Unspecified | pb::WaitCondition::Ended => Condition::Ended,
    };
    Ok((whole(run, &found)?, condition))
}

fn filter(asked: Option<&pb::RunFilter>, found: &mut Vec<Violation>) -> ListFilter {
    let Some(asked) = asked else {
        return ListFilter::default();
    };
    let mut filter = ListFilter::default();
    for (i, number) in asked.states.iter().enumerate() {
        let state = pb::RunState::try_from(*number).ok();
        match state.and_then(run::state_of) {
            Some(state) if filter.states.contains(&state) => {}
            Some(state) => filter.states.push(state),
            None => found.push(unknown_number(
                &format!("filter.states[{i}]"),
                *number,
                "RunState",
            )),
        }
    }
    for (i, number) in asked.kinds.iter().enumerate() {
        let field = format!("filter.kinds[{i}]");
        if *number == i32::from(pb::RunKind::Unspecified) {
            found.push(unknown_number(&field, *number, "RunKind"));
            continue;
        }
        let kind = spec::kind(&field, *number, found);
        if !filter.kinds.contains(&kind) {
            filter.kinds.push(kind);
        }
    }
    filter.labels = labels::selector("filter.", &asked.labels, &asked.label_selector, found);
    if !asked.run_id_part.is_empty() {
        match asked.run_id_part.parse() {
            Ok(part) => filter.id_part = Some(part),
            Err(wrong) => found.push(Violation::new("filter.run_id_part", wrong.to_string())),
        }
    }
    if !asked.parent_run_id.is_empty() {
        filter.parent = run_named("filter.parent_run_id", &asked.parent_run_id, found);
    }
    filter
}

pub(super) fn request_id(text: &str, found: &mut Vec<Violation>) -> Option<String> {
    if text.len() > bounds::REQUEST_ID_BYTES_MAX {
        found.push(Violation::new(
            "request_id",
            format!("must be at most {} bytes", bounds::REQUEST_ID_BYTES_MAX),
        ));
    }
    if text.contains('\0') {
        found.push(Violation::new("request_id", "must not contain a NUL byte"));
    }
    (!text.is_empty()).then(|| text.to_owned())
}

/// Parses the id of a run that a request may leave out.
pub(super) fn optional_run_id(text: &str, found: &mut Vec<Violation>) -> Option<RunId> {
    (!text.is_empty())
        .then(|| parse_run_id(text, found))
        .flatten()
}

fn parse_run_id(text: &str, found: &mut Vec<Violation>) -> Option<RunId> {
    run_named("run_id", text, found)
}

pub(crate) fn no_violations(found: &[Violation]) -> Result<(), Status> {
    if found.is_empty() {
        return Ok(());
    }
    Err(status::invalid(found))
}

fn whole(run: Option<RunId>, found: &[Violation]) -> Result<RunId, Status> {
    no_violations(found)?;
    run.ok_or_else(|| status::internal("a run id was neither read nor refused"))
}

#[cfg(test)]
mod tests;
