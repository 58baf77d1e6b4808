//! Reads a run's events, across lost connections and restarts of the server.

use crate::{Connection, Failure, Repeats, resumes::Resumes};
use kennel_proto::pb::{
    self, RunState, StreamEventsRequest, StreamEventsResponse, event::Payload, lifecycle::Station,
    stream_events_request::Position,
};
use std::collections::HashMap;
use tonic::Streaming;

/// Start of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// From the first event.
    Beginning,
    /// After the event with this seq.
    AfterSeq(u64),
    /// Only events from now on.
    Live,
    /// From the beginning of the last so many lines of output.
    TailLines(u64),
}

/// Returns the time at which an event was recorded, in a batch with this base time.
pub fn time_of(
    base_time: Option<prost_types::Timestamp>,
    event: &pb::Event,
) -> prost_types::Timestamp {
    let mut at = base_time.unwrap_or_default();
    let delta = event.time_delta.unwrap_or_default();
    at.seconds = at.seconds.saturating_add(delta.seconds);
    at.nanos = at.nanos.saturating_add(delta.nanos);
    at.normalize();
    at
}

/// Reads the last so many lines of a run's output, up to its present head.
pub async fn last_lines(
    connection: &Connection,
    run_id: &str,
    most: u64,
) -> Result<Vec<pb::Line>, Failure> {
    use pb::EventKind::{Lifecycle, Stderr, Stdout};
    let mut reader = EventReader::new(connection, run_id, Start::TailLines(most));
    reader.request.kinds = [Lifecycle, Stdout, Stderr].map(Into::into).to_vec();
    reader.request.output_view = pb::OutputView::TextLines.into();
    reader.request.until = pb::StreamUntil::Head.into();
    let mut lines = Vec::new();
    while let Some(message) = reader.next().await? {
        for event in message.run_events.into_iter().flat_map(|e| e.events) {
            if let Some(Payload::Line(line)) = event.payload {
                lines.push(line);
            }
        }
    }
    Ok(lines)
}

/// Reads events of one run, or of many, each run's in order, without a hole and without a repeat.
#[derive(Debug)]
pub struct EventReader {
    connection: Connection,
    /// What it asks for, with the position that it has reached. Set before the first [`EventReader::next`]: of `kinds`,
    /// where some are selected, Lifecycle must be one, for the reader to know the end; the start of one that names a
    /// consumer is for a consumer that does not exist yet.
    pub request: StreamEventsRequest,
    /// Whether to give up as soon as the service has ended, keeper included: for a run that ends with it.
    pub ends_with_service: bool,
    /// In a multi-run stream: what comes again after a lost connection.
    repeats: Repeats,
    /// In a multi-run stream: runs with a Snapshot that the cursor does not cover completely; true: they have ended.
    begun: HashMap<String, bool>,
    stream: Option<Streaming<StreamEventsResponse>>,
    resumes: Resumes,
    snapshot_given: bool,
    complete: bool,
}

impl EventReader {
    /// Reads events of this run from a position on. Makes no call before [`EventReader::next`].
    pub fn new(connection: &Connection, run_id: &str, start: Start) -> Self {
        let position = match start {
            Start::Beginning => Position::Beginning(pb::FromBeginning {}),
            Start::AfterSeq(seq) => Position::AfterSeq(seq),
            Start::Live => Position::Live(pb::FromLive {}),
            Start::TailLines(lines) => Position::Tail(pb::FromTail {
                amount: Some(pb::from_tail::Amount::Lines(lines)),
            }),
        };
        Self {
            connection: connection.clone(),
            request: StreamEventsRequest {
                run_id: run_id.to_owned(),
                position: Some(position),
                output_view: pb::OutputView::Raw.into(),
                until: pb::StreamUntil::Ended.into(),
                ..StreamEventsRequest::default()
            },
            ends_with_service: false,
            repeats: Repeats::default(),
            begun: HashMap::new(),
            stream: None,
            resumes: Resumes::default(),
            snapshot_given: false,
            complete: false,
        }
    }

    /// Reads events of all runs of this filter, present and later. It does not end by itself, and takes no
    /// [`Start::AfterSeq`].
    ///
    /// A journal that cannot be read is returned as a failure, after which [`EventReader::next`] continues without that
    /// run.
    pub fn of_many(connection: &Connection, filter: pb::RunFilter, start: Start) -> Self {
        let mut reader = Self::new(connection, "", start);
        reader.request.filter = Some(filter);
        reader
    }

    /// Acknowledges the events that [`EventReader::next`] has returned, for the reader's consumer. Absent: none was
    /// returned yet.
    pub async fn ack(&self) -> Result<Option<pb::Consumer>, Failure> {
        use pb::ack_events_request::Position as Acked;
        let Some(Position::Cursor(cursor)) = &self.request.position else {
            return Ok(None);
        };
        let request = pb::AckEventsRequest {
            run_id: self.request.run_id.clone(),
            consumer: self.request.consumer.clone(),
            position: Some(Acked::Cursor(cursor.clone())),
        };
        Ok(self.connection.call(request).await?.consumer)
    }

    /// Returns the next message; `None` after the run's last event. The first one is the Snapshot; the Snapshots of
    /// resumed streams are left out. Of many runs, a message may have changes of nodes and no events. After a lost connection or a server's shutdown it asks again from the position
    /// reached, at most [`super::RESUMES_MAX`] times in a row.
    pub async fn next(&mut self) -> Result<Option<StreamEventsResponse>, Failure> {
        loop {
            match self.receive().await {
                Ok(Some(mut message)) => {
                    match self.request.filter {
                        Some(_) => self.follow_many(&mut message),
                        None => self.follow(&mut message),
                    }
                    if !message.run_events.is_empty() || !message.nodes.is_empty() {
                        return Ok(Some(message));
                    }
                }
                Ok(None) if self.complete || self.request.until() == pb::StreamUntil::Head => {
                    return Ok(None);
                }
                Ok(None) => {
                    let early = tonic::Status::unavailable("the stream ended before the run did");
                    self.rest(early.into()).await?;
                }
                Err(failure) => self.rest(failure).await?,
            }
        }
    }

    async fn receive(&mut self) -> Result<Option<StreamEventsResponse>, Failure> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                self.repeats.begin_anew();
                // A cancelled call may have left a pause before this attempt.
                self.resumes.wait().await;
                let mut processes = self.connection.processes();
                let response = processes.stream_events(self.request.clone()).await?;
                self.stream.insert(response.into_inner())
            }
        };
        Ok(stream.message().await?)
    }

    /// Records the position after the message, and drops a repeated Snapshot.
    fn follow(&mut self, message: &mut StreamEventsResponse) {
        for events in &mut message.run_events {
            let base = events.base_seq;
            if let Some(last) = events.events.last() {
                self.request.position = Some(Position::AfterSeq(base + last.seq_delta));
            }
            for event in &events.events {
                match &event.payload {
                    Some(Payload::Snapshot(snapshot)) => {
                        let reached = base + event.seq_delta;
                        let ended = snapshot.run.as_ref().is_some_and(has_ended);
                        self.complete = ended && reached >= snapshot.head_seq;
                    }
                    Some(Payload::Lifecycle(station)) => {
                        self.resumes.begin_anew();
                        self.complete |= matches!(station.station, Some(Station::Ended(_)));
                    }
                    Some(Payload::Heartbeat(_)) | None => {}
                    Some(_) => self.resumes.begin_anew(),
                }
            }
            if self.snapshot_given {
                let is_snapshot = |e: &pb::Event| matches!(e.payload, Some(Payload::Snapshot(_)));
                events.events.retain(|e| !is_snapshot(e));
            }
        }
        message.run_events.retain(|e| !e.events.is_empty());
        // A cursor has more than a seq: the length of each stream before its position.
        if !message.cursor.is_empty() {
            self.request.position = Some(Position::Cursor(message.cursor.clone()));
        }
        self.snapshot_given = true;
    }

    /// Does the same for a multi-run stream: drops messages received since the last cursor.
    fn follow_many(&mut self, message: &mut StreamEventsResponse) {
        let begun = &mut self.begun;
        for events in &mut message.run_events {
            let run_id = &events.run_id;
            events.events.retain(|event| match &event.payload {
                Some(Payload::Snapshot(_)) => begun.insert(run_id.clone(), false).is_none(),
                Some(Payload::Lifecycle(station)) => {
                    if let Some(Station::Ended(_)) = station.station {
                        begun.insert(run_id.clone(), true);
                    }
                    true
                }
                _ => true,
            });
        }
        if self.repeats.drop_from(message) {
            self.resumes.begin_anew();
        }
        if !message.cursor.is_empty() {
            self.request.position = Some(Position::Cursor(message.cursor.clone()));
            self.repeats.cover();
            self.begun.retain(|_, has_ended| !*has_ended);
        }
    }

    /// Waits before the next attempt, or gives up.
    async fn rest(&mut self, failure: Failure) -> Result<(), Failure> {
        self.stream = None;
        if !self.ends_with_service {
            return self.resumes.rest(failure).await;
        }
        tokio::select! { biased;
            () = self.connection.gone() => Err(Failure::service_ended()),
            rested = self.resumes.rest(failure) => rested,
        }
    }
}

fn has_ended(run: &pb::Run) -> bool {
    matches!(
        run.state(),
        RunState::Succeeded | RunState::Failed | RunState::Cancelled | RunState::Lost
    )
}
