//! One reader of the events of many runs, over nodes: each has a part, whose messages are passed on as they come.

use super::{
    ResponseReader, lost,
    many::{Pace, heartbeat},
    part::{CURSOR_QUOTA, NodeEventReader, Reading, Report},
};
use crate::{
    convert::{many_cursor, nodes_cursor::NodesCursor, time},
    forward::{Followed, Known},
    keys::digest::DigestKey,
    limits,
    load::shares::StreamPlace,
    pb, status,
};
use kennel_lifecycle::{NodeId, Timestamp};
use kennel_supervisor::{ConsumerSeat, Elsewhere, Serving};
use pb::stream_events_request::Position;
use prost::Message;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tonic::Status;

/// The nodes whose runs are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    All,
    One(NodeId),
}

impl Nodes {
    fn has(self, node: NodeId) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => one == node,
        }
    }
}

/// A reader for a consumer.
pub(crate) struct Named {
    seat: ConsumerSeat,
    /// Key that seals its cursors.
    key: DigestKey,
    /// Number of the last message that had a cursor.
    number: u64,
}

impl Named {
    pub(crate) fn new(seat: ConsumerSeat, key: DigestKey) -> Self {
        let number = seat.number();
        Self { seat, key, number }
    }

    /// Makes the cursor of the next message.
    fn seal(&mut self, cursor: &[u8]) -> bytes::Bytes {
        self.number += 1;
        self.seat.given(self.number);
        let row = self.seat.row();
        let place = (row.session, self.number);
        many_cursor::of_consumer(cursor, place, &row.key, &self.key)
    }
}

/// How far a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It has not reported yet.
    Opening,
    Open,
    /// Everything requested was given.
    Complete,
}

enum NodesStage {
    /// Nothing was delivered yet.
    Opening,
    Following,
    /// Error to report after everything before was delivered; absent: the end.
    Ending(Option<Box<Status>>),
    /// The end was reported.
    Reported,
}

/// Reason of a reader's wake-up.
enum NodesWake {
    Report(NodeId, Report),
    /// The list of nodes has changed.
    Nodes,
    Silence,
    Failed(Status),
}

/// Owns a position in the events of many runs and, as long as it lives, a slot among the streams.
pub(crate) struct NodesReader {
    reading: Arc<Reading>,
    nodes: Nodes,
    at: NodesCursor,
    parts: BTreeMap<NodeId, Progress>,
    /// Nodes that were reported as unreachable, and not as reached since.
    away: BTreeSet<NodeId>,
    /// Nodes without a lease, and since when: their runs were looked for, and only those that have some have a part.
    absent: BTreeMap<NodeId, Option<Timestamp>>,
    /// Number of searches for the runs of such nodes.
    searches: usize,
    tasks: JoinSet<()>,
    reports: mpsc::Receiver<(NodeId, Report)>,
    /// Capacity for one report: a part has at most one more, and waits.
    to: mpsc::Sender<(NodeId, Report)>,
    may_send: watch::Sender<bool>,
    followed: Arc<Followed>,
    known: watch::Receiver<Known>,
    going: Serving,
    stage: NodesStage,
    /// Messages from the time before the stream was open.
    early: VecDeque<pb::StreamEventsResponse>,
    /// A node whose events are missing.
    missed: Option<Box<Status>>,
    /// Whether the nodes are known, and each has a part.
    is_listed: bool,
    /// Whether it was reported that the nodes are not known.
    is_blind: bool,
    pace: Pace,
    /// When the last message was given: much else wakes the reader.
    last_sent: Instant,
    /// Consumer that reads.
    named: Option<Named>,
    _place: Arc<StreamPlace>,
}

impl NodesReader {
    /// Opens a stream at the position of its request.
    pub(crate) fn new(reading: Reading, nodes: Nodes, place: Arc<StreamPlace>) -> Self {
        let (to, reports) = mpsc::channel(1);
        let followed = reading.fleet.follow();
        let at = reading.ask.at.clone();
        let is_live = match nodes {
            Nodes::All => matches!(at.others, Position::Live(_)),
            Nodes::One(node) => matches!(at.place(node), Position::Live(_)),
        };
        let mut reader = Self {
            nodes,
            at,
            parts: BTreeMap::new(),
            away: BTreeSet::new(),
            absent: BTreeMap::new(),
            searches: 0,
            tasks: JoinSet::new(),
            reports,
            to,
            may_send: watch::Sender::new(!is_live),
            known: followed.nodes(),
            followed,
            going: reading.going.clone(),
            stage: NodesStage::Opening,
            early: VecDeque::new(),
            missed: None,
            is_listed: false,
            is_blind: false,
            pace: Pace::default(),
            last_sent: now(),
            named: None,
            reading: Arc::new(reading),
            _place: place,
        };
        let own = reader.own();
        if nodes.has(own) {
            reader.add(own, false);
        }
        reader
    }

    /// Reads for this consumer.
    pub(crate) fn in_name_of(mut self, named: Named) -> Self {
        // Cursors made before the registration are not the consumer's.
        self.early.iter_mut().for_each(|early| early.cursor.clear());
        self.named = Some(named);
        self
    }

    /// For new events alone: waits until each node has said where these begin, or has not done so in time.
    pub(crate) async fn begin_if_live(&mut self) {
        if *self.may_send.borrow() {
            return;
        }
        let begun = async {
            let mut has_events = false;
            // Events of a node with a known position are not delayed.
            while !has_events && !self.has_begun() {
                let wake = self.wake().await;
                if let Some(message) = self.message_for(wake) {
                    has_events = message.run_events.iter().any(|of| !of.run_id.is_empty());
                    self.early.push_back(message);
                }
            }
        };
        let _ = timeout(limits::NODES_BEGIN_MAX, begun).await;
        self.may_send.send_replace(true);
    }

    fn has_begun(&self) -> bool {
        let is_listed = self.is_listed || self.is_blind || self.is_of_this_node();
        is_listed
            && self.searches == 0
            && self.parts.values().all(|part| *part != Progress::Opening)
            || !matches!(self.stage, NodesStage::Opening)
    }

    /// Returns the position, as a consumer is registered with it.
    pub(crate) fn position(&self) -> &NodesCursor {
        &self.at
    }

    fn own(&self) -> NodeId {
        self.reading.supervisor.node()
    }

    fn is_of_this_node(&self) -> bool {
        self.nodes == Nodes::One(self.own())
    }

    async fn wake(&mut self) -> NodesWake {
        let due = self.last_sent + self.pace.silence(self.reading.ask.heartbeat);
        let seat = self.named.as_mut().map(|named| &mut named.seat);
        // This node's own part first delivers its last events.
        let has_own = self.parts.contains_key(&self.reading.supervisor.node());
        let going = self.going.clone();
        tokio::select! {
            biased;
            () = going.until_leaving(), if !has_own => NodesWake::Failed(status::leaving()),
            () = going.until_closing(), if !has_own => NodesWake::Failed(status::draining()),
            why = lost(seat) => NodesWake::Failed(status::of(&why)),
            Ok(()) = self.known.changed() => NodesWake::Nodes,
            Some((node, report)) = self.reports.recv() => NodesWake::Report(node, report),
            () = sleep_until(due) => NodesWake::Silence,
        }
    }

    /// Returns the message for this wake-up, if there is one; the stage determines what follows.
    fn message_for(&mut self, wake: NodesWake) -> Option<pb::StreamEventsResponse> {
        match wake {
            NodesWake::Nodes => self.update_nodes(),
            NodesWake::Report(node, report) => self.take(node, report),
            NodesWake::Silence if self.pace.is_uncovered() => Some(self.message(Vec::new(), true)),
            NodesWake::Silence => Some(self.message(vec![heartbeat()], true)),
            NodesWake::Failed(status) => Some(self.end(Some(Box::new(status)))),
        }
    }

    /// Ends the stream after a message with a cursor that covers everything delivered.
    fn end(&mut self, status: Option<Box<Status>>) -> pb::StreamEventsResponse {
        self.stage = NodesStage::Ending(status);
        self.message(Vec::new(), true)
    }

    fn take(&mut self, node: NodeId, report: Report) -> Option<pb::StreamEventsResponse> {
        if let Report::HaveRuns(searched, nodes) = report {
            self.searches -= 1;
            let parts = &self.parts;
            self.at.nodes.retain(|node, place| {
                let is_unused = searched.contains(node) && !nodes.contains(node);
                // All later events of an unused node are new.
                !is_unused || parts.contains_key(node) || matches!(place, Position::Cursor(_))
            });
            for node in nodes {
                self.add(node, true);
            }
            return self.end_if_complete();
        }
        let progress = self.parts.entry(node).or_insert(Progress::Opening);
        *progress = Progress::Open;
        match report {
            Report::Events(message) => {
                let is_moved = self.move_to(node, message.cursor);
                if message.run_events.is_empty() {
                    if is_moved {
                        self.pace.note(1);
                    }
                    return None;
                }
                let bytes = message.run_events.iter().map(Message::encoded_len).sum();
                self.pace.note(bytes);
                Some(self.message(message.run_events, false))
            }
            Report::Changed(change) => {
                if change.state() == pb::StreamedNodeState::Unreachable {
                    self.away.insert(node);
                } else {
                    self.away.remove(&node);
                }
                Some(self.changed(change))
            }
            Report::Idle | Report::HaveRuns(..) => None,
            Report::Left => {
                self.parts.remove(&node);
                let is_back = self.known.borrow().find(node).is_some();
                if is_back {
                    self.add(node, false);
                }
                None
            }
            Report::Complete(missed) => {
                *progress = Progress::Complete;
                self.missed = missed.or_else(|| self.missed.take());
                self.end_if_complete()
            }
            Report::Failed(status) => Some(self.end(Some(status))),
        }
    }

    /// Moves to this place in the events of a node; empty: none is known.
    fn move_to(&mut self, node: NodeId, cursor: bytes::Bytes) -> bool {
        if cursor.is_empty() {
            return false;
        }
        let place = Position::Cursor(cursor);
        let is_moved = *self.at.place(node) != place;
        self.at.nodes.insert(node, place);
        is_moved
    }

    fn end_if_complete(&mut self) -> Option<pb::StreamEventsResponse> {
        let is_listed = self.is_listed || self.is_of_this_node();
        let is_complete = self.parts.values().all(|part| *part == Progress::Complete);
        if !is_listed || !is_complete || self.searches > 0 || !self.reading.ask.until_head() {
            return None;
        }
        let missed = self.missed.take();
        Some(self.end(missed))
    }

    /// Adds parts for the nodes that there are.
    fn update_nodes(&mut self) -> Option<pb::StreamEventsResponse> {
        let known = self.known.borrow_and_update().clone();
        let nodes = match known {
            Known::NotYet => return None,
            Known::Unavailable if self.is_blind || self.is_of_this_node() => return None,
            Known::Unavailable => {
                self.is_blind = true;
                return Some(self.changed(pb::StreamedNode {
                    state: pb::StreamedNodeState::Unreachable.into(),
                    since_time: Some(time::timestamp(self.reading.supervisor.now())),
                    message: "the database is unavailable: other nodes are not known".to_owned(),
                    ..pb::StreamedNode::default()
                }));
            }
            Known::Nodes(nodes) => nodes,
        };
        self.is_listed = true;
        let wanted = self.nodes;
        let start = self.at.others.clone();
        if wanted == Nodes::All {
            // Nodes that appear later are read from their beginning.
            self.at.others = Position::Beginning(pb::FromBeginning {});
        }
        let is_read = |node: &&Elsewhere| wanted.has(node.node) && node.is_reachable;
        if nodes.iter().filter(is_read).count() > limits::STREAM_NODES_MAX {
            let many = status::too_many("nodes in one stream", limits::STREAM_NODES_MAX);
            return Some(self.end(Some(Box::new(many))));
        }
        let mut unsearched = BTreeSet::new();
        for node in nodes.iter().filter(|node| wanted.has(node.node)) {
            let (id, since) = (node.node, node.unreachable_since);
            let is_read = node.is_reachable || self.parts.contains_key(&id);
            if is_read {
                self.absent.remove(&id);
            } else if self.absent.insert(id, since) == Some(since) {
                continue;
            }
            // A position exists even while the node's runs are searched: a cursor of that time resumes there.
            let place = self.at.nodes.entry(id);
            place.or_insert_with(|| start.clone());
            if is_read {
                self.add(id, false);
            } else {
                unsearched.insert(id);
            }
        }
        self.search(unsearched);
        let sees_again = std::mem::take(&mut self.is_blind).then(|| {
            self.changed(pb::StreamedNode {
                state: pb::StreamedNodeState::Reached.into(),
                ..pb::StreamedNode::default()
            })
        });
        self.end_if_complete().or(sees_again)
    }

    /// Looks for runs of nodes without a lease, which are not called.
    fn search(&mut self, nodes: BTreeSet<NodeId>) {
        if nodes.is_empty() {
            return;
        }
        self.searches += 1;
        let (reading, to, own) = (Arc::clone(&self.reading), self.to.clone(), self.own());
        self.tasks.spawn(async move {
            let found = loop {
                match reading.nodes_with_runs(&nodes).await {
                    Ok(found) => break found,
                    Err(_) => sleep(limits::NODES_INTERVAL).await,
                }
            };
            let _ = to.send((own, Report::HaveRuns(nodes, found))).await;
        });
    }

    /// Begins to read the events of a node. `has_runs`: it is known to have some for the reader.
    fn add(&mut self, node: NodeId, has_runs: bool) {
        if self.parts.contains_key(&node) {
            return;
        }
        self.parts.insert(node, Progress::Opening);
        let mut part = NodeEventReader::new(
            node,
            Arc::clone(&self.reading),
            self.followed.nodes(),
            self.at.place(node).clone(),
            self.may_send.subscribe(),
            self.to.clone(),
        );
        part.has_runs = has_runs;
        if self.away.contains(&node) {
            part.continue_away();
        }
        self.tasks.spawn(part.run());
    }

    fn changed(&mut self, change: pb::StreamedNode) -> pb::StreamEventsResponse {
        let mut message = self.message(Vec::new(), false);
        message.nodes.push(change);
        message
    }

    fn message(
        &mut self,
        run_events: Vec<pb::RunEvents>,
        is_due: bool,
    ) -> pb::StreamEventsResponse {
        self.last_sent = now();
        let mut message = pb::StreamEventsResponse {
            run_events,
            ..pb::StreamEventsResponse::default()
        };
        if self.at.size() > limits::CURSOR_BYTES_MAX {
            // Positions of ended nodes stay for as long as there is room: a node that returns continues at its
            // position.
            let parts = &self.parts;
            self.at.nodes.retain(|node, _| parts.contains_key(node));
        }
        let size = self.at.size();
        if size > limits::CURSOR_BYTES_MAX {
            let many = status::too_many(CURSOR_QUOTA, limits::CURSOR_BYTES_MAX);
            self.stage = NodesStage::Ending(Some(Box::new(many)));
        } else if self.pace.covers(size, is_due) {
            let cursor = self.at.encode();
            message.cursor = match &mut self.named {
                Some(named) => named.seal(&cursor),
                None => cursor,
            };
        }
        message
    }
}

impl ResponseReader for NodesReader {
    async fn next(&mut self) -> Option<Result<pb::StreamEventsResponse, Status>> {
        if let Some(message) = self.early.pop_front() {
            return Some(Ok(message));
        }
        loop {
            match std::mem::replace(&mut self.stage, NodesStage::Following) {
                NodesStage::Opening => return Some(Ok(self.message(Vec::new(), true))),
                NodesStage::Following => {
                    let wake = self.wake().await;
                    if let Some(message) = self.message_for(wake) {
                        return Some(Ok(message));
                    }
                }
                NodesStage::Ending(status) => {
                    self.stage = NodesStage::Reported;
                    return status.map(|status| Err(*status));
                }
                NodesStage::Reported => {
                    self.stage = NodesStage::Reported;
                    return None;
                }
            }
        }
    }
}

fn now() -> Instant {
    sleep(Duration::ZERO).deadline()
}
