//! Selection of events, their start, and their view.

use super::{ConsumerAsk, EventsCall, parse_run_id};
use crate::{
    convert::{consumer, many_cursor, time, token::Cursor},
    enums::{known, named},
    limits,
    pb::{self, stream_events_request::Position as Asked},
};
use kennel_lifecycle::{RunId, Violation};
use kennel_supervisor::{Amount, Form, Kinds, Position, Reached, Tail};
use std::time::Duration;

pub(crate) fn events(
    request: &pb::StreamEventsRequest,
    found: &mut Vec<Violation>,
) -> Option<EventsCall> {
    let run = parse_run_id(&request.run_id, found);
    let heartbeat = heartbeat(request, found);
    let (form, as_json) = view("output_view", request.output_view, found);
    let form = line_limit(request.line_bytes_max, form, found);
    let kinds = kinds(&request.kinds, found);
    let from = position(request, run, form, kinds, found);
    let fails_on_gap = fails_on_gap(request, found);
    let until_head = until_head(request, found);
    let consumer = consumer_name(request, found).map(|name| ConsumerAsk {
        name,
        has_position: has_position(request),
    });
    Some(EventsCall {
        run: run?,
        from,
        heartbeat,
        fails_on_gap,
        form,
        as_json,
        kinds,
        until_head,
        consumer,
    })
}

/// Parses the consumer that reads, if it has a name.
pub(super) fn consumer_name(
    request: &pb::StreamEventsRequest,
    found: &mut Vec<Violation>,
) -> Option<String> {
    let name = &request.consumer;
    (!name.is_empty()).then(|| consumer::name("consumer", name, found))
}

/// Whether the request gives the position.
fn has_position(request: &pb::StreamEventsRequest) -> bool {
    matches!(
        request.position,
        Some(Asked::Cursor(_) | Asked::AfterSeq(_))
    )
}

pub(super) fn fails_on_gap(request: &pb::StreamEventsRequest, found: &mut Vec<Violation>) -> bool {
    let on_gap: pb::OnGap = known("on_gap", request.on_gap, "OnGap", found);
    on_gap == pb::OnGap::Fail
}

/// Returns the form with the requested longest line.
fn line_limit(asked: u32, form: Option<Form>, found: &mut Vec<Violation>) -> Option<Form> {
    const FIELD: &str = "line_bytes_max";
    if asked == 0 {
        return form;
    }
    if !form.is_some_and(|form| form.lines) {
        found.push(Violation::new(FIELD, "is for a view by lines only"));
    }
    if !limits::LINE_BYTES.contains(&asked) {
        let (least, most) = limits::LINE_BYTES.into_inner();
        found.push(Violation::new(FIELD, format!("must be {least} to {most}")));
    }
    form.map(|form| Form {
        line_bytes_max: asked,
        ..form
    })
}

pub(super) fn until_head(request: &pb::StreamEventsRequest, found: &mut Vec<Violation>) -> bool {
    let until: pb::StreamUntil = known("until", request.until, "StreamUntil", found);
    until == pb::StreamUntil::Head
}

pub(super) fn heartbeat(request: &pb::StreamEventsRequest, found: &mut Vec<Violation>) -> Duration {
    let asked = request.heartbeat_interval.as_ref();
    let heartbeat = time::parse_duration("heartbeat_interval", asked, found);
    let heartbeat = heartbeat.unwrap_or(limits::HEARTBEAT_DEFAULT);
    if !(limits::HEARTBEAT_MIN..=limits::HEARTBEAT_MAX).contains(&heartbeat) {
        let why = "must be 1 to 300 seconds";
        found.push(Violation::new("heartbeat_interval", why));
    }
    heartbeat
}

pub(super) fn kinds(asked: &[i32], found: &mut Vec<Violation>) -> Kinds {
    use pb::EventKind;
    if asked.is_empty() {
        return Kinds::ALL;
    }
    let mut kinds = Kinds::NONE;
    for (i, number) in asked.iter().enumerate() {
        let kind_of = |kind| (kind != EventKind::Unspecified).then_some(kind);
        let field = format!("kinds[{i}]");
        match named(&field, *number, "EventKind", kind_of, found) {
            Some(EventKind::Lifecycle) => kinds.lifecycle = true,
            Some(EventKind::Stdout) => kinds.output[0] = true,
            Some(EventKind::Stderr) => kinds.output[1] = true,
            Some(EventKind::SignalSent) => kinds.signals = true,
            Some(EventKind::Warning) => kinds.warnings = true,
            Some(EventKind::Unspecified) | None => {}
        }
    }
    kinds
}

fn position(
    request: &pb::StreamEventsRequest,
    run: Option<RunId>,
    form: Option<Form>,
    kinds: Kinds,
    found: &mut Vec<Violation>,
) -> Position {
    match &request.position {
        None | Some(Asked::Beginning(_) | Asked::AfterSeq(0)) => Position::Beginning,
        Some(Asked::AfterSeq(seq)) => Position::After(Reached {
            seq: *seq,
            ..Reached::default()
        }),
        Some(Asked::Live(_)) => Position::LiveOnly,
        Some(Asked::Tail(tail)) => Position::Tail(tail_of(tail, kinds, found)),
        Some(Asked::Cursor(bytes)) => {
            let why = match Cursor::decode(bytes) {
                Some(cursor) if run.is_none_or(|r| r == cursor.run) => {
                    return cursor.position(form);
                }
                Some(_) => "is one of another run",
                None if many_cursor::is_of_many(bytes) => "is one of a filter",
                None => "is not one that a server has given",
            };
            found.push(Violation::new("cursor", why));
            Position::Beginning
        }
    }
}

pub(super) fn tail_of(tail: &pb::FromTail, kinds: Kinds, found: &mut Vec<Violation>) -> Tail {
    use pb::from_tail::Amount as Asked;
    if kinds.output == [false; 2] {
        let why = "is one of output, and kinds has none";
        found.push(Violation::new("tail", why));
    }
    let amount = match tail.amount {
        Some(Asked::Lines(lines)) => Amount::Lines(lines),
        Some(Asked::Bytes(bytes)) => Amount::Bytes(bytes),
        None => {
            found.push(Violation::new("tail", "must say how much"));
            Amount::Lines(0)
        }
    };
    Tail {
        amount,
        streams: kinds.output,
    }
}

/// Parses the form of a view, and whether its lines are parsed.
pub(crate) fn view(field: &str, number: i32, found: &mut Vec<Violation>) -> (Option<Form>, bool) {
    use pb::OutputView as View;
    let form = |plain, lines| {
        Some(Form {
            plain,
            lines,
            ..Form::default()
        })
    };
    match known(field, number, "OutputView", found) {
        View::Unspecified | View::Raw => (None, false),
        View::Text => (form(true, false), false),
        View::Lines => (form(false, true), false),
        View::TextLines => (form(true, true), false),
        View::JsonLines => (form(true, true), true),
    }
}
