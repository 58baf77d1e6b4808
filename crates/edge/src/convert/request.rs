//! Requests, parsed with all their violations.

mod attach;
mod events;
mod filter;
mod many;

pub(crate) use attach::{attach, attach_input, attach_resize, not_after_open, resize_to};
pub(crate) use events::{events, view};
pub(crate) use filter::filter;
pub(crate) use many::{ManyAsk, ManyConsumer, events_of_many};

use super::{spec::run_named, terminal, time};
use crate::{convert::trace_context::TraceContext, keys::digest::DigestKey, limits, status};
use kennel_lifecycle::{RunId, RunSpec, Violation, limits as bounds};
use kennel_supervisor::{Form, Kinds, Position, SpawnCall};
use std::time::Duration;
use tonic::Status;

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

/// Makes the call for this spec.
pub(crate) fn call_of(
    spec: RunSpec,
    owner: String,
    trace: TraceContext,
    key: &DigestKey,
) -> SpawnCall {
    SpawnCall {
        digest: key.of_spec(&spec).into(),
        spec,
        owner,
        traceparent: trace.traceparent,
        tracestate: trace.tracestate,
        baggage: trace.baggage,
        ..SpawnCall::default()
    }
}

pub(crate) fn check_attempt(expected: Option<u32>, found: &mut Vec<Violation>) {
    if expected == Some(0) {
        found.push(Violation::new("expected_attempt", "must be at least 1"));
    }
}

/// Parses the time between a stop's first signal and SIGKILL.
pub(crate) fn grace(
    asked: Option<&prost_types::Duration>,
    found: &mut Vec<Violation>,
) -> Option<Duration> {
    let grace = time::parse_duration("grace", asked, found);
    if grace.is_some_and(|grace| grace > bounds::GRACE_MAX) {
        found.push(Violation::new("grace", "must be at most 24 hours"));
    }
    grace
}

/// Parses the run of a request without other fields.
pub(crate) fn run_id(text: &str) -> Result<RunId, Status> {
    let mut found = Vec::new();
    let run = parse_run_id(text, &mut found);
    whole(run, &found)
}

/// Parses the page size of a list.
pub(crate) fn page_size(given: i32, found: &mut Vec<Violation>) -> u32 {
    match u32::try_from(given) {
        Ok(0) => limits::PAGE_SIZE_DEFAULT,
        Ok(size) => size.min(limits::PAGE_SIZE_MAX),
        Err(_) => {
            found.push(Violation::new("page_size", "must not be negative"));
            limits::PAGE_SIZE_DEFAULT
        }
    }
}

pub(crate) fn request_id(text: &str, found: &mut Vec<Violation>) -> Option<String> {
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
pub(crate) fn optional_run_id(text: &str, found: &mut Vec<Violation>) -> Option<RunId> {
    (!text.is_empty())
        .then(|| parse_run_id(text, found))
        .flatten()
}

/// Parses a client's own key of a run.
pub(crate) fn key(text: String, has_id: bool, found: &mut Vec<Violation>) -> Option<String> {
    let is_short = text.len() <= bounds::REQUEST_KEY_MAX;
    if !is_short || text.chars().any(char::is_control) {
        let most = bounds::REQUEST_KEY_MAX;
        let why = format!("must be at most {most} bytes of printable text");
        found.push(Violation::new("request_key", why));
    }
    if has_id && !text.is_empty() {
        let why = "stands in the place of `run_id`: only one of them can be given";
        found.push(Violation::new("request_key", why));
    }
    Some(text).filter(|text| !text.is_empty())
}

pub(crate) fn parse_run_id(text: &str, found: &mut Vec<Violation>) -> Option<RunId> {
    run_named("run_id", text, found)
}

fn whole(run: Option<RunId>, found: &[Violation]) -> Result<RunId, Status> {
    status::no_violations(found)?;
    run.ok_or_else(|| status::internal("a run id was neither read nor refused"))
}
