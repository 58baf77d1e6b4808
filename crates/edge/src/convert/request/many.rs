//! Selection of events of many runs, their start, and their view.

use super::{
    events::{consumer_name, fails_on_gap, heartbeat, kinds, tail_of, until_head},
    filter, no_violations, output,
};
use crate::{
    convert::many_cursor::{self, Seal},
    digest::DigestKey,
    pb::{self, stream_events_request::Position as Asked},
};
use kennel_lifecycle::Violation;
use kennel_supervisor::{ConsumerPlace, Form, Kinds, ListFilter, ManyCall, ManyFrom};
use std::time::Duration;
use tonic::Status;

/// Selection of events and runs, and the heartbeat interval.
#[derive(Clone, Debug)]
pub(crate) struct ManyAsk {
    pub(crate) call: ManyCall,
    /// Seal of the filter, for cursors.
    pub(crate) seal: Seal,
    pub(crate) heartbeat: Duration,
    /// Whether lines are parsed as JSON.
    pub(crate) as_json: bool,
    pub(crate) consumer: Option<ManyConsumer>,
}

/// Consumer that reads the events of many runs.
#[derive(Clone, Debug)]
pub(crate) struct ManyConsumer {
    pub(crate) name: String,
    /// Position that the reader gives.
    pub(crate) place: Option<ConsumerPlace>,
}

/// Parses a request. `scope`: the owner whose runs alone the caller may see.
pub(crate) fn events_of_many(
    request: &pb::StreamEventsRequest,
    scope: Option<String>,
    key: &DigestKey,
) -> Result<ManyAsk, Status> {
    let mut found = Vec::new();
    if !request.run_id.is_empty() {
        let why = "must be empty where a filter is given";
        found.push(Violation::new("run_id", why));
    }
    let filter = ListFilter {
        owner: scope,
        ..filter(request.filter.as_ref(), &mut found)
    };
    if request
        .filter
        .as_ref()
        .is_some_and(|filter| !filter.node.is_empty())
    {
        let why = "applies to lists only: a stream has the runs of the node it is called on";
        found.push(Violation::new("filter.node", why));
    }
    let seal = Seal::of(&filter, key);
    let heartbeat = heartbeat(request, &mut found);
    let (form, as_json) = output::view("output_view", request.output_view, &mut found);
    if request.line_bytes_max != 0 {
        let why = "is for a stream of one run";
        found.push(Violation::new("line_bytes_max", why));
    }
    let kinds = kinds(&request.kinds, &mut found);
    let from = from(request, seal, form, kinds, &mut found);
    let fails_on_gap = fails_on_gap(request, &mut found);
    let until_head = until_head(request, &mut found);
    let consumer = consumer_name(request, &mut found).map(|name| {
        let place = match &request.position {
            Some(Asked::Cursor(bytes)) => {
                let place = many_cursor::place(bytes, &name, key);
                if place.is_none() {
                    let why = "is not one that this consumer was given";
                    found.push(Violation::new("cursor", why));
                }
                place
            }
            _ => None,
        };
        ManyConsumer { name, place }
    });
    no_violations(&found)?;
    Ok(ManyAsk {
        call: ManyCall {
            filter,
            from,
            form,
            kinds,
            until_head,
            fails_on_gap,
        },
        seal,
        heartbeat,
        as_json,
        consumer,
    })
}

/// Returns the start after this position of its own filter, in the requested view.
pub(crate) fn after(cursor: &[u8], seal: Seal, form: Option<Form>) -> Option<ManyFrom> {
    let cursor = many_cursor::decode(cursor).filter(|cursor| cursor.seal == seal)?;
    let mut reached = cursor.reached;
    // Bytes pending in another view are searched anew.
    if cursor.form != form {
        reached.open.values_mut().for_each(|at| at.fed_from = None);
    }
    Some(ManyFrom::After(reached))
}

fn from(
    request: &pb::StreamEventsRequest,
    seal: Seal,
    form: Option<Form>,
    kinds: Kinds,
    found: &mut Vec<Violation>,
) -> ManyFrom {
    match &request.position {
        None | Some(Asked::Beginning(_) | Asked::AfterSeq(0)) => ManyFrom::Beginning,
        Some(Asked::AfterSeq(_)) => {
            let why = "is of one run: a stream of many continues after a cursor";
            found.push(Violation::new("after_seq", why));
            ManyFrom::Beginning
        }
        Some(Asked::Live(_)) => ManyFrom::LiveOnly,
        Some(Asked::Tail(tail)) => ManyFrom::Tail(tail_of(tail, kinds, found)),
        Some(Asked::Cursor(bytes)) => {
            if let Some(after) = after(bytes, seal, form) {
                return after;
            }
            let why = match many_cursor::decode(bytes) {
                Some(_) => "is one of another filter",
                None => "is not one that a server has given for a filter",
            };
            found.push(Violation::new("cursor", why));
            ManyFrom::Beginning
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_supervisor::ManyReached;
    use tonic_types::StatusExt;

    fn key() -> DigestKey {
        DigestKey::new([3; 32])
    }

    fn ask(label: &str, position: Asked) -> pb::StreamEventsRequest {
        pb::StreamEventsRequest {
            filter: Some(pb::RunFilter {
                labels: [("app".to_owned(), label.to_owned())].into(),
                ..pb::RunFilter::default()
            }),
            position: Some(position),
            ..pb::StreamEventsRequest::default()
        }
    }

    fn field(refused: Result<ManyAsk, Status>) -> String {
        let details = refused.expect_err("refused").get_error_details();
        let found = details.bad_request().expect("BadRequest");
        let fields: Vec<_> = found
            .field_violations
            .iter()
            .map(|v| &v.field[..])
            .collect();
        fields.join(" ")
    }

    #[test]
    fn cursor_resumes_only_a_stream_of_its_filter() {
        let own =
            events_of_many(&ask("x", Asked::Live(pb::FromLive {})), None, &key()).expect("valid");
        assert_eq!(own.call.from, ManyFrom::LiveOnly);
        let reached = ManyReached::default();
        let cursor = many_cursor::encode(own.seal, None, &reached);
        let again = events_of_many(&ask("x", Asked::Cursor(cursor.clone())), None, &key());
        let again = again.expect("valid").call.from;
        assert_eq!(again, ManyFrom::After(reached));
        let other = ask("y", Asked::Cursor(cursor.clone()));
        assert_eq!(field(events_of_many(&other, None, &key())), "cursor");
        let one = pb::StreamEventsRequest {
            run_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
            filter: None,
            ..other
        };
        let refused = super::super::events(&one).expect_err("of many");
        assert!(refused.get_error_details().bad_request().is_some());
        let seq = ask("x", Asked::AfterSeq(7));
        assert_eq!(field(events_of_many(&seq, None, &key())), "after_seq");
        let both = pb::StreamEventsRequest {
            run_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
            ..ask("x", Asked::AfterSeq(0))
        };
        assert_eq!(field(events_of_many(&both, None, &key())), "run_id");
    }
}
