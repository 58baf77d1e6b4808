//! Selection of events of many runs, their start, and their view.

use super::{
    events::{consumer_name, fails_on_gap, heartbeat, kinds, tail_of, until_head, view},
    filter,
};
use crate::{
    convert::{
        many_cursor::{self, Seal},
        nodes_cursor::NodesCursor,
    },
    keys::digest::DigestKey,
    pb::{self, stream_events_request::Position as Asked},
    status::no_violations,
};
use kennel_lifecycle::{NodeId, Timestamp, Violation};
use kennel_supervisor::{ConsumerKey, ConsumerPlace, Form, Kinds, ListFilter, ManyCall, ManyFrom};
use std::time::Duration;
use tonic::Status;

const NOT_GIVEN: &str = "is not one that a server has given for a filter";

/// Selection of events and runs, and the heartbeat interval.
#[derive(Clone, Debug)]
pub(crate) struct ManyAsk {
    /// The call for the node's own runs, from the beginning.
    call: ManyCall,
    /// Position at which the stream starts.
    pub(crate) at: NodesCursor,
    pub(crate) heartbeat: Duration,
    /// Whether lines are parsed as JSON.
    pub(crate) as_json: bool,
    pub(crate) consumer: Option<ManyConsumer>,
}

impl ManyAsk {
    /// Returns the filter of the runs.
    pub(crate) fn filter(&self) -> &ListFilter {
        &self.call.filter
    }

    /// Whether the stream ends when all present events have been given.
    pub(crate) fn until_head(&self) -> bool {
        self.call.until_head
    }

    /// Returns the position in this cursor. Absent: it is not one of this filter.
    pub(crate) fn position(&self, cursor: &[u8]) -> Option<NodesCursor> {
        NodesCursor::decode(cursor).filter(|cursor| cursor.seal == self.at.seal)
    }

    /// Returns the call for the runs of a node, at a place in its events.
    pub(crate) fn call_at(&self, node: NodeId, place: &Asked) -> Result<ManyCall, Status> {
        let mut found = Vec::new();
        let from = match place {
            Asked::Beginning(_) | Asked::AfterSeq(_) => ManyFrom::Beginning,
            Asked::Live(_) => ManyFrom::LiveOnly,
            Asked::Tail(tail) => ManyFrom::Tail(tail_of(tail, self.call.kinds, &mut found)),
            Asked::Cursor(cursor) => match after(cursor, self.at.seal, self.call.form) {
                Some(after) => after,
                None => {
                    found.push(Violation::new("cursor", NOT_GIVEN));
                    ManyFrom::Beginning
                }
            },
        };
        no_violations(&found)?;
        Ok(ManyCall {
            node,
            from,
            ..self.call.clone()
        })
    }
}

/// Consumer that reads the events of many runs.
#[derive(Clone, Debug)]
pub(crate) struct ManyConsumer {
    pub(crate) key: ConsumerKey,
    /// Position that the reader gives.
    pub(crate) place: Option<ConsumerPlace>,
}

/// Parses a request of this owner. `scope`: the owner whose runs alone the caller may see; `key` seals the cursors of
/// consumers.
pub(crate) fn events_of_many(
    request: &pb::StreamEventsRequest,
    node: NodeId,
    (owner, now): (&str, Timestamp),
    scope: Option<String>,
    key: &DigestKey,
    found: &mut Vec<Violation>,
) -> ManyAsk {
    if !request.run_id.is_empty() {
        let why = "must be empty where a filter is given";
        found.push(Violation::new("run_id", why));
    }
    let filter = ListFilter {
        owner: scope,
        ..filter(request.filter.as_ref(), now, found)
    };
    if filter.below.is_some() {
        found.push(Violation::new(
            "filter.below_run_id",
            "is not for streams of events",
        ));
    }
    let seal = Seal::of(&filter);
    let heartbeat = heartbeat(request, found);
    let (form, as_json) = view("output_view", request.output_view, found);
    if request.line_bytes_max != 0 {
        let why = "is for a stream of one run";
        found.push(Violation::new("line_bytes_max", why));
    }
    let kinds = kinds(&request.kinds, found);
    let at = at(request, seal, kinds, found);
    let fails_on_gap = fails_on_gap(request, found);
    let until_head = until_head(request, found);
    let consumer = consumer_name(request, found).map(|name| {
        let consumer = ConsumerKey {
            run: None,
            owner: owner.to_owned(),
            name,
        };
        let place = match &request.position {
            Some(Asked::Cursor(bytes)) => {
                let place = many_cursor::place(bytes, &consumer, key);
                if place.is_none() {
                    let why = "is not one that this consumer was given";
                    found.push(Violation::new("cursor", why));
                }
                place
            }
            _ => None,
        };
        ManyConsumer {
            key: consumer,
            place,
        }
    });
    ManyAsk {
        call: ManyCall {
            node,
            filter,
            from: ManyFrom::Beginning,
            form,
            kinds,
            until_head,
            fails_on_gap,
        },
        at,
        heartbeat,
        as_json,
        consumer,
    }
}

/// Returns the start after this place of its own filter, in the requested view.
fn after(cursor: &[u8], seal: Seal, form: Option<Form>) -> Option<ManyFrom> {
    let cursor = many_cursor::decode(cursor).filter(|cursor| cursor.seal == seal)?;
    let mut reached = cursor.reached;
    // Bytes pending in another view are searched again.
    if cursor.form != form {
        reached.open.values_mut().for_each(|at| at.fed_from = None);
    }
    Some(ManyFrom::After(reached))
}

fn at(
    request: &pb::StreamEventsRequest,
    seal: Seal,
    kinds: Kinds,
    found: &mut Vec<Violation>,
) -> NodesCursor {
    let beginning = || NodesCursor::starting(seal, Asked::Beginning(pb::FromBeginning {}));
    match &request.position {
        None | Some(Asked::Beginning(_) | Asked::AfterSeq(0)) => beginning(),
        Some(Asked::AfterSeq(_)) => {
            let why = "is of one run: a stream of many continues after a cursor";
            found.push(Violation::new("after_seq", why));
            beginning()
        }
        Some(live @ Asked::Live(_)) => NodesCursor::starting(seal, live.clone()),
        Some(start @ Asked::Tail(tail)) => {
            tail_of(tail, kinds, found);
            NodesCursor::starting(seal, start.clone())
        }
        Some(Asked::Cursor(bytes)) => {
            let why = match NodesCursor::decode(bytes) {
                Some(cursor) if cursor.seal == seal => return cursor,
                Some(_) => "is one of another filter",
                None => NOT_GIVEN,
            };
            found.push(Violation::new("cursor", why));
            beginning()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::violated;
    use kennel_supervisor::ManyReached;

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
        violated(&refused.expect_err("refused")).join(" ")
    }

    fn parsed(request: &pb::StreamEventsRequest) -> Result<ManyAsk, Status> {
        let mut found = Vec::new();
        let own = NodeId::from_u128(1);
        let ask = events_of_many(
            request,
            own,
            ("uid:0", Timestamp(0)),
            None,
            &key(),
            &mut found,
        );
        no_violations(&found).map(|()| ask)
    }

    // promise: I-82, O-24
    #[test]
    fn cursor_resumes_only_a_stream_of_its_filter() {
        let node = NodeId::from_u128(2);
        let live = Asked::Live(pb::FromLive {});
        let own = parsed(&ask("x", live.clone())).expect("valid");
        assert_eq!(own.at.place(node), &live);
        let call = own.call_at(node, &live).expect("valid");
        assert_eq!((call.node, call.from), (node, ManyFrom::LiveOnly));

        let reached = ManyReached::default();
        let mut at = own.at.clone();
        let place = many_cursor::encode(at.seal, None, &reached);
        at.nodes.insert(node, Asked::Cursor(place));
        let cursor = at.encode();
        let again = parsed(&ask("x", Asked::Cursor(cursor.clone()))).expect("valid");
        assert_eq!(again.at, at);
        let call = again.call_at(node, at.place(node)).expect("valid");
        assert_eq!(call.from, ManyFrom::After(reached));
        let other = ask("y", Asked::Cursor(cursor.clone()));
        assert_eq!(field(parsed(&other)), "cursor");
        // The position as stored for a consumer.
        let (live_of_x, live_of_y) = (ask("x", live.clone()), ask("y", live.clone()));
        let stored = |ask: &pb::StreamEventsRequest| parsed(ask).expect("valid").position(&cursor);
        assert_eq!(
            (stored(&live_of_x), stored(&live_of_y)),
            (Some(at.clone()), None)
        );
        // A position of another filter, put into a cursor of this filter.
        let spliced = parsed(&ask("y", live.clone())).expect("valid");
        let refused = spliced.call_at(node, at.place(node)).expect_err("refused");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);

        let one = pb::StreamEventsRequest {
            run_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
            filter: None,
            ..other
        };
        let mut found = Vec::new();
        super::super::events(&one, &mut found);
        assert!(!found.is_empty(), "it is of many");
        let seq = ask("x", Asked::AfterSeq(7));
        assert_eq!(field(parsed(&seq)), "after_seq");
        let both = pb::StreamEventsRequest {
            run_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
            ..ask("x", Asked::AfterSeq(0))
        };
        assert_eq!(field(parsed(&both)), "run_id");
    }
}
