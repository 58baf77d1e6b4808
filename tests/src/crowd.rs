//! The reader of a stream of many runs.

use crate::{Client, Heard, must, within};
use kennel_proto::pb::{
    self, RunFilter, RunState, event::Payload, stream_events_request::Position,
};
use std::{collections::BTreeMap, time::Duration};
use tonic::{Status, Streaming};

/// Long enough for a whole stream on a busy machine.
pub const LONG: Duration = Duration::from_mins(2);

/// Returns a filter of the runs with this value of the label `app`.
#[must_use]
pub fn labelled(app: &str) -> RunFilter {
    RunFilter {
        labels: [("app".to_owned(), app.to_owned())].into(),
        ..RunFilter::default()
    }
}

/// Returns the position before the first event.
#[must_use]
pub fn beginning() -> Position {
    Position::Beginning(pb::FromBeginning {})
}

/// Events that a reader of many runs has received, each run checked like one that is read alone.
#[derive(Debug, Default)]
pub struct Crowd {
    /// Events of each run.
    pub runs: BTreeMap<String, Heard>,
    /// Position at which a later reader resumes.
    pub cursor: Vec<u8>,
    /// Number of heartbeats received.
    pub heartbeats: u32,
    /// The state of each run in its last Snapshot.
    pub states: BTreeMap<String, RunState>,
    /// Changes of nodes.
    pub nodes: Vec<pb::StreamedNode>,
}

impl Crowd {
    /// Adds a message.
    ///
    /// # Panics
    /// As [`Heard::take`], and on events of a run before its first Snapshot.
    pub fn take(&mut self, message: pb::StreamEventsResponse) {
        self.nodes.extend(message.nodes);
        for events in message.run_events {
            if events.run_id.is_empty() {
                self.heartbeats += 1;
                continue;
            }
            let heard = self.runs.entry(events.run_id.clone()).or_default();
            let snapshot = match &events.events[0].payload {
                Some(Payload::Snapshot(snapshot)) => snapshot.run.as_ref(),
                _ => None,
            };
            let is_snapshot = snapshot.is_some();
            let state = snapshot.map(|run| (run.run_id.clone(), run.state()));
            self.states.extend(state);
            assert!(heard.snapshots > 0 || is_snapshot, "{events:?}");
            let one = pb::StreamEventsResponse {
                run_events: vec![events],
                ..pb::StreamEventsResponse::default()
            };
            heard.take(one);
        }
        if !message.cursor.is_empty() {
            self.cursor = message.cursor.to_vec();
        }
    }

    /// Returns how many runs have their last event.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.runs.values().filter(|heard| heard.has_ended()).count()
    }

    /// Returns the position after the last message.
    #[must_use]
    pub fn position(&self) -> Position {
        if self.cursor.is_empty() {
            beginning()
        } else {
            Position::Cursor(self.cursor.clone().into())
        }
    }

    /// Returns the output of a run so far.
    #[must_use]
    pub fn text(&self, run: &str) -> String {
        self.runs.get(run).map(Heard::text).unwrap_or_default()
    }

    /// Returns the changes of the node of this name.
    #[must_use]
    pub fn changes(&self, name: &str) -> Vec<pb::StreamedNodeState> {
        let of_it = self.nodes.iter().filter(|node| node.node_name == name);
        of_it.map(pb::StreamedNode::state).collect()
    }

    /// Reads until this is so.
    pub async fn until(
        &mut self,
        stream: &mut Streaming<pb::StreamEventsResponse>,
        is_so: impl Fn(&Self) -> bool,
    ) {
        while !is_so(self) {
            self.take(message(stream).await);
        }
    }

    /// Reads until so many runs have ended.
    pub async fn until_ended(
        &mut self,
        stream: &mut Streaming<pb::StreamEventsResponse>,
        runs: usize,
    ) {
        self.until(stream, |crowd| crowd.ended() >= runs).await;
    }
}

/// Returns the next message of a stream that does not end by itself.
///
/// # Panics
/// If none comes.
pub async fn message(stream: &mut Streaming<pb::StreamEventsResponse>) -> pb::StreamEventsResponse {
    let message = within("it continues", LONG, stream.message()).await;
    must("read", message).expect("it does not end by itself")
}

/// Opens a stream with a heartbeat each second.
///
/// # Panics
/// As [`try_open`] fails.
pub async fn open(
    client: &mut Client,
    filter: RunFilter,
    position: Position,
) -> Streaming<pb::StreamEventsResponse> {
    must("stream", try_open(client, filter, position).await)
}

/// Opens a stream likewise, at a node that may not answer.
pub async fn try_open(
    client: &mut Client,
    filter: RunFilter,
    position: Position,
) -> Result<Streaming<pb::StreamEventsResponse>, Status> {
    let request = pb::StreamEventsRequest {
        filter: Some(filter),
        position: Some(position),
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        ..pb::StreamEventsRequest::default()
    };
    let opened = client.process.stream_events(request).await;
    opened.map(tonic::Response::into_inner)
}
