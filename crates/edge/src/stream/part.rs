//! The events of one node in a stream of many runs. They are read here if the node is this one, at the node, or in the
//! records of a node that was forgotten.

use super::many::{ManyReader, MultiRunStage, Pace};
use crate::{
    access::Caller,
    convert::{nodes_cursor::NodesCursor, request::ManyAsk, time},
    forward::{Fleet, Known},
    limits, pb, status,
};
use futures_util::pin_mut;
use kennel_client::Repeats;
use kennel_lifecycle::{Backoff, NodeId};
use kennel_supervisor::{CallError, Elsewhere, Serving, Supervisor};
use pb::stream_events_request::Position;
use std::{
    collections::BTreeSet,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tonic::{Code, Status, Streaming};

/// What all parts of a stream read.
pub(crate) struct Reading {
    pub(crate) supervisor: Supervisor,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) caller: Caller,
    pub(crate) ask: ManyAsk,
    /// The request; each node gets it with a place of its own.
    pub(crate) request: pb::StreamEventsRequest,
    pub(crate) going: Serving,
}

impl Reading {
    /// Returns those of these nodes that have runs for the reader.
    pub(super) async fn nodes_with_runs(
        &self,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<BTreeSet<NodeId>, CallError> {
        let found = self.supervisor.nodes_with_runs(nodes, self.ask.filter());
        found.await
    }
}

/// What a part reports.
pub(super) enum Report {
    /// Events of the node, and its own cursor after them.
    Events(pb::StreamEventsResponse),
    /// The node was lost, or is there again.
    Changed(pb::StreamedNode),
    /// There is nothing to wait for now.
    Idle,
    /// The node has ended, and this part with it.
    Left,
    /// The first nodes have no lease; the second are those among them with runs for the reader.
    HaveRuns(BTreeSet<NodeId>, BTreeSet<NodeId>),
    /// Everything requested was given, or with an error what there is without the node.
    Complete(Option<Box<Status>>),
    /// The whole stream ends.
    Failed(Box<Status>),
}

/// The reader of the stream is gone, or needs no more of this part.
pub(super) struct Gone;

/// A node that does not answer.
struct Away {
    since: prost_types::Timestamp,
    why: Status,
    /// When it is to be reported, if the reader has runs there; absent: it was.
    due: Option<Instant>,
    /// Whether the reader has received that the node is away, or was forgotten.
    is_reported: bool,
    /// Whether it was reported that there is nothing to wait for.
    is_idle: bool,
}

/// The reader of one node's events.
pub(super) struct NodeEventReader {
    pub(super) node: NodeId,
    pub(super) reading: Arc<Reading>,
    pub(super) nodes: watch::Receiver<Known>,
    /// Place in the events of the node.
    pub(super) place: Position,
    /// Becomes true when the stream may send more than its position.
    pub(super) may_send: watch::Receiver<bool>,
    pub(super) to: mpsc::Sender<(NodeId, Report)>,
    repeats: Repeats,
    away: Option<Away>,
    /// Whether the node is known to have runs for this reader.
    pub(super) has_runs: bool,
}

/// How the read of a node's events ended.
enum ReadEnd {
    /// Everything requested was given.
    Whole,
    /// The node is read in another way now.
    Rerouted,
    Lost(Status),
    /// The whole stream ends.
    Failed(Status),
}

/// Delays before the stream of a node is opened again.
const RETRY: Backoff = Backoff::up_to(Duration::from_millis(100), limits::NODE_PAUSE_MAX);

/// What a stream has too much of whose cursor would be too long.
pub(super) const CURSOR_QUOTA: &str = "bytes in one cursor";

/// Reason of a node that has not answered its first request.
const NO_ANSWER: &str = "it does not answer";
/// Reason of a node whose lease has ended.
const NO_LEASE: &str = "its lease has ended";

/// Where the events of a node are.
enum Route {
    Here,
    There(Elsewhere),
    /// The node was forgotten: in the records of its runs.
    Records(Elsewhere),
}

impl NodeEventReader {
    pub(super) fn new(
        node: NodeId,
        reading: Arc<Reading>,
        nodes: watch::Receiver<Known>,
        place: Position,
        may_send: watch::Receiver<bool>,
        to: mpsc::Sender<(NodeId, Report)>,
    ) -> Self {
        Self {
            node,
            reading,
            nodes,
            place,
            may_send,
            to,
            repeats: Repeats::default(),
            away: None,
            has_runs: false,
        }
    }

    /// Notes that an earlier part has reported the node as away: its return is to be reported too.
    pub(super) fn continue_away(&mut self) {
        self.lose(Status::unavailable(NO_ANSWER), false);
        if let Some(away) = &mut self.away {
            (away.due, away.is_reported, away.is_idle) = (None, true, true);
        }
    }

    /// Reports until the reader is gone, or everything requested was given.
    pub(super) async fn run(mut self) {
        let _ = self.follow().await;
    }

    async fn follow(&mut self) -> Result<(), Gone> {
        let mut retries = RETRY.retries(RandomState::new().hash_one(()));
        loop {
            let route = self.route().await?;
            self.repeats.begin_anew();
            let ended = match route {
                None => ReadEnd::Whole,
                Some(Route::Here) => self.here(false).await?,
                Some(Route::Records(node)) => self.records(&node).await?,
                Some(Route::There(node)) => self.there(&node).await?,
            };
            match ended {
                ReadEnd::Whole => return self.report(Report::Complete(None)).await,
                ReadEnd::Rerouted => {}
                ReadEnd::Failed(why) => return self.report(Report::Failed(Box::new(why))).await,
                ReadEnd::Lost(why) => {
                    if self.away.is_none() {
                        retries.reset();
                    }
                    self.lose(why, true);
                    let paused = sleep(retries.next_delay());
                    self.unless_given_up(paused).await?;
                }
            }
        }
    }

    fn is_own(&self) -> bool {
        self.node == self.reading.supervisor.node()
    }

    /// Waits until the events can be read somewhere. Absent: there are none, and the stream has present events alone.
    async fn route(&mut self) -> Result<Option<Route>, Gone> {
        if self.is_own() {
            return Ok(Some(Route::Here));
        }
        let mut is_idle = false;
        loop {
            let node = self.nodes.borrow_and_update().find(self.node).cloned();
            if let Some(node) = node {
                if node.is_reachable && node.forgotten.is_none() {
                    return Ok(Some(Route::There(node)));
                }
                // A node without a lease gets no more runs: one search for each change is enough.
                if self.has_runs().await {
                    if node.forgotten.is_some() {
                        return Ok(Some(Route::Records(node)));
                    }
                    // The node is not called: it answers once it has a lease.
                    self.lose(status::node_unreachable(&node, NO_LEASE), false);
                    if !self.away.as_ref().is_some_and(|away| away.is_reported) {
                        self.report_away().await?;
                    }
                }
            }
            if self.reading.ask.until_head() {
                return Ok(None);
            }
            let is_listed = self.nodes.borrow().find(self.node).is_some();
            if !is_listed && matches!(*self.nodes.borrow(), Known::Nodes(_)) {
                self.report(Report::Left).await?;
                return Err(Gone);
            }
            if !std::mem::replace(&mut is_idle, true) {
                self.report(Report::Idle).await?;
            }
            self.nodes.changed().await.map_err(|_| Gone)?;
        }
    }

    /// Whether the node has runs for this reader; while the database does not say it, it may.
    async fn has_runs(&mut self) -> bool {
        if !self.has_runs {
            let node = BTreeSet::from([self.node]);
            let Ok(found) = self.reading.nodes_with_runs(&node).await else {
                return true;
            };
            self.has_runs = found == node;
        }
        self.has_runs
    }

    /// Reads the events here: those of this node, or of a forgotten one until it is there again.
    async fn here(&mut self, is_forgotten: bool) -> Result<ReadEnd, Gone> {
        let mut reader = match self.local() {
            Ok(reader) => reader,
            Err(status) => return Ok(ReadEnd::Failed(status)),
        };
        self.pass_own(reader.position()).await?;
        loop {
            let item = tokio::select! {
                item = reader.next() => item,
                back = self.until_back(), if is_forgotten => {
                    back?;
                    return Ok(ReadEnd::Rerouted);
                }
            };
            match item {
                Some(Ok(message)) => self.pass_own(message).await?,
                Some(Err(status)) => return Ok(ReadEnd::Failed(status)),
                None => return Ok(ReadEnd::Whole),
            }
        }
    }

    /// Reads what the records of a forgotten node's runs have.
    async fn records(&mut self, node: &Elsewhere) -> Result<ReadEnd, Gone> {
        self.lose(status::node_unreachable(node, "it was forgotten"), false);
        if let Some(away) = &mut self.away {
            (away.due, away.is_reported) = (None, true);
        }
        let since = node.forgotten.map(time::timestamp);
        let state = pb::StreamedNodeState::Forgotten;
        self.change(Some(node), state, since, "").await?;
        if let Position::Live(_) = self.place {
            // The node's runs ended with it.
            if self.reading.ask.until_head() {
                return Ok(ReadEnd::Whole);
            }
            self.until_back().await?;
            return Ok(ReadEnd::Rerouted);
        }
        self.here(true).await
    }

    /// Waits until a forgotten node is there again. From then on it is away until it answers.
    async fn until_back(&mut self) -> Result<(), Gone> {
        let node = self.node;
        let back = |known: &Known| known.find(node).cloned().filter(|n| n.forgotten.is_none());
        let known = self.nodes.wait_for(|known| back(known).is_some()).await;
        let node = known.map(|known| back(&known)).map_err(|_| Gone)?;
        self.away = None;
        if let Some(node) = node {
            self.lose(status::node_unreachable(&node, NO_ANSWER), false);
        }
        if let Some(away) = &mut self.away {
            away.is_reported = true;
        }
        Ok(())
    }

    fn local(&self) -> Result<ManyReader, Status> {
        let ask = &self.reading.ask;
        let call = ask.call_at(self.node, &self.place)?;
        Ok(ManyReader {
            seal: ask.at.seal,
            form: call.form,
            as_json: ask.as_json,
            events: self.reading.supervisor.events_of_many(call),
            going: self.reading.going.clone(),
            pace: Pace::default(),
            stage: MultiRunStage::Following,
        })
    }

    /// Reads the events at another node.
    async fn there(&mut self, node: &Elsewhere) -> Result<ReadEnd, Gone> {
        if self.away.is_none() {
            self.lose(status::node_unreachable(node, NO_ANSWER), false);
        }
        let (fleet, caller) = (Arc::clone(&self.reading.fleet), self.reading.caller.clone());
        let (request, node) = (self.request(), node.clone());
        let opening = Box::pin(async move { fleet.stream_events(&node, &caller, request).await });
        match self.unless_given_up(opening).await? {
            Ok(stream) => self.read(stream).await,
            Err(status) => Ok(lost(status)),
        }
    }

    async fn read(
        &mut self,
        mut stream: Streaming<pb::StreamEventsResponse>,
    ) -> Result<ReadEnd, Gone> {
        loop {
            let node = self.node;
            let is_forgotten =
                |known: &Known| known.find(node).is_some_and(|n| n.forgotten.is_some());
            let message = tokio::select! {
                message = timeout(limits::NODE_SILENCE_MAX, stream.message()) => message,
                forgotten = async { self.nodes.wait_for(is_forgotten).await.map(drop) } => {
                    forgotten.map_err(|_| Gone)?;
                    return Ok(ReadEnd::Rerouted);
                }
                () = due(self.away.as_ref()) => {
                    self.report_away().await?;
                    continue;
                }
            };
            let message = match message {
                Ok(Ok(Some(message))) => message,
                Ok(Ok(None)) if self.reading.ask.until_head() => return Ok(ReadEnd::Whole),
                Ok(Ok(None)) => return Ok(lost(Status::unavailable("its stream ended"))),
                Ok(Err(status)) => return Ok(lost(status)),
                Err(_) => return Ok(lost(Status::unavailable("it is silent"))),
            };
            if let Some(away) = self.away.take()
                && away.is_reported
            {
                let known = self.nodes.borrow().find(self.node).cloned();
                let state = pb::StreamedNodeState::Reached;
                self.change(known.as_ref(), state, None, "").await?;
            }
            let place = (!message.cursor.is_empty())
                .then(|| NodesCursor::decode(&message.cursor))
                .flatten();
            let place = place.map(|cursor| cursor.place(self.node).clone());
            self.pass(message, place).await?;
        }
    }

    /// Returns the request for the node.
    fn request(&self) -> pb::StreamEventsRequest {
        let ask = &self.reading.ask;
        let mut filter = self.reading.request.filter.clone();
        if let Some(filter) = &mut filter {
            filter.node.clear();
        }
        let position = match &self.place {
            place @ Position::Cursor(_) => {
                let beginning = Position::Beginning(pb::FromBeginning {});
                let mut at = NodesCursor::starting(ask.at.seal, beginning);
                at.nodes.insert(self.node, place.clone());
                Position::Cursor(at.encode())
            }
            start => start.clone(),
        };
        pb::StreamEventsRequest {
            filter,
            position: Some(position),
            heartbeat_interval: Some(time::duration(limits::NODE_HEARTBEAT)),
            consumer: String::new(),
            ..self.reading.request.clone()
        }
    }

    async fn pass_own(&mut self, message: pb::StreamEventsResponse) -> Result<(), Gone> {
        let cursor = &message.cursor;
        let place = (!cursor.is_empty()).then(|| Position::Cursor(cursor.clone()));
        self.pass(message, place).await
    }

    /// Passes a message on, without what came before.
    async fn pass(
        &mut self,
        mut message: pb::StreamEventsResponse,
        place: Option<Position>,
    ) -> Result<(), Gone> {
        message.nodes.clear();
        message
            .run_events
            .retain(|events| !events.run_id.is_empty());
        self.repeats.drop_from(&mut message);
        message.cursor.clear();
        let mut is_begin = false;
        if let Some(Position::Cursor(cursor)) = place {
            message.cursor = cursor.clone();
            let before = std::mem::replace(&mut self.place, Position::Cursor(cursor));
            is_begin = !matches!(before, Position::Cursor(_));
            self.repeats.cover();
        }
        self.report(Report::Events(message)).await?;
        if is_begin {
            let may_send = self.may_send.wait_for(|may_send| *may_send).await;
            may_send.map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Records that the node does not answer: it was lost, or has not answered its first request.
    fn lose(&mut self, why: Status, is_lost: bool) {
        let within = if is_lost && !self.reading.ask.until_head() {
            limits::NODE_AWAY_AFTER
        } else {
            limits::NODE_ANSWER_MAX
        };
        let due = sleep(within).deadline();
        if let Some(away) = &mut self.away {
            if !away.is_idle {
                away.due = away.due.map(|before| before.min(due));
            }
            away.why = why;
            return;
        }
        let known = self.nodes.borrow().find(self.node).cloned();
        let since = known.and_then(|node| node.unreachable_since);
        let since = since.unwrap_or_else(|| self.reading.supervisor.now());
        self.away = Some(Away {
            since: time::timestamp(since),
            why,
            due: Some(due),
            is_reported: false,
            is_idle: false,
        });
    }

    /// Waits for this, and reports meanwhile that the node does not answer.
    async fn unless_given_up<T>(&mut self, answer: impl Future<Output = T>) -> Result<T, Gone> {
        pin_mut!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return Ok(answer),
                () = due(self.away.as_ref()) => self.report_away().await?,
            }
        }
    }

    /// Reports that the node does not answer, where the reader has runs there, else looks again later. Without more to
    /// wait for, that is all.
    async fn report_away(&mut self) -> Result<(), Gone> {
        let has_runs = self.has_runs().await;
        let known = self.nodes.borrow().find(self.node).cloned();
        let Some(away) = &mut self.away else {
            return Ok(());
        };
        away.due = (!has_runs).then(|| sleep(limits::NODE_ANSWER_MAX).deadline());
        away.is_reported |= has_runs;
        let was_idle = std::mem::replace(&mut away.is_idle, true);
        let (since, why) = (away.since, away.why.clone());
        if has_runs {
            let state = pb::StreamedNodeState::Unreachable;
            self.change(known.as_ref(), state, Some(since), why.message())
                .await?;
        }
        if !self.reading.ask.until_head() {
            if was_idle {
                return Ok(());
            }
            return self.report(Report::Idle).await;
        }
        let missed = known.filter(|_| has_runs);
        let missed = missed.map(|node| Box::new(status::node_unreachable(&node, why.message())));
        self.report(Report::Complete(missed)).await?;
        Err(Gone)
    }

    async fn change(
        &self,
        node: Option<&Elsewhere>,
        state: pb::StreamedNodeState,
        since_time: Option<prost_types::Timestamp>,
        message: &str,
    ) -> Result<(), Gone> {
        self.report(Report::Changed(pb::StreamedNode {
            node_id: self.node.to_string(),
            node_name: node.map(|node| node.name.clone()).unwrap_or_default(),
            state: state.into(),
            since_time,
            message: message.to_owned(),
        }))
        .await
    }

    async fn report(&self, report: Report) -> Result<(), Gone> {
        let sent = self.to.send((self.node, report)).await;
        sent.map_err(|_| Gone)
    }
}

/// Returns how this error of a node ends its part.
fn lost(why: Status) -> ReadEnd {
    match why.code() {
        // A retry would end the same way.
        Code::DataLoss | Code::OutOfRange | Code::InvalidArgument => ReadEnd::Failed(why),
        Code::ResourceExhausted if status::is_quota(&why, CURSOR_QUOTA) => ReadEnd::Failed(why),
        _ => ReadEnd::Lost(why),
    }
}

/// Returns when a node that does not answer is to be reported.
async fn due(away: Option<&Away>) {
    match away.and_then(|away| away.due) {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_long_cursor_ends_stream() {
        let refused = status::too_many(CURSOR_QUOTA, limits::CURSOR_BYTES_MAX);
        assert!(matches!(lost(refused), ReadEnd::Failed(_)));
        // A stream slot may become free.
        let refused = status::too_many("open event streams", limits::STREAMS_MAX);
        assert!(matches!(lost(refused), ReadEnd::Lost(_)));
    }
}
