//! One reader of one run's events: Snapshot, then batches, heartbeats in silence, and a typed end.

mod many;
mod nodes;
mod part;

pub(crate) use nodes::{Named, Nodes, NodesReader};
pub(crate) use part::Reading;

use crate::{
    convert::{event as convert, request::EventsCall, run, token::Cursor},
    limits,
    load::shares::StreamPlace,
    pb::{self, event},
    status,
};
use futures_util::stream::{self, Stream};
use kennel_lifecycle::RunId;
use kennel_supervisor::{
    CallError, ConsumerSeat, Event, Events, Form, Payload, Reached, RunView, Serving,
};
use std::{pin::Pin, time::Duration};
use tokio::{sync::OwnedSemaphorePermit, time::Sleep};
use tonic::Status;

/// A reader of events, whose responses come one after another.
pub(crate) trait ResponseReader: Sized + Send {
    /// Returns the next response, or the error that ends the stream; `None` after the last.
    fn next(
        &mut self,
    ) -> impl Future<Output = Option<Result<pb::StreamEventsResponse, Status>>> + Send;

    /// Returns all responses.
    fn into_stream(self) -> impl Stream<Item = Result<pb::StreamEventsResponse, Status>> + Send {
        stream::unfold(self, |mut reader| async move {
            let item = reader.next().await?;
            Some((item, reader))
        })
    }
}

/// Source of events: a run's, at a position.
pub(crate) trait Source: Send {
    /// Returns the present last seq.
    fn head(&self) -> u64;

    /// Returns the seq from which on nothing is missing by now.
    fn whole_from(&self) -> u64;

    /// Returns the position up to which it was delivered.
    fn position(&self) -> Reached;

    /// Returns the next events; `None` after the run's last. Cancel-safe.
    fn next(
        &mut self,
        bytes_max: usize,
    ) -> impl Future<Output = Result<Option<Vec<Event>>, CallError>> + Send;
}

impl Source for Events {
    fn head(&self) -> u64 {
        Events::head(self)
    }

    fn whole_from(&self) -> u64 {
        Events::whole_from(self)
    }

    fn position(&self) -> Reached {
        Events::position(self)
    }

    async fn next(&mut self, bytes_max: usize) -> Result<Option<Vec<Event>>, CallError> {
        Events::next(self, bytes_max).await
    }
}

/// Owns a position in a run's events and, as long as it lives, a slot among the streams.
pub(crate) struct StreamReader<S> {
    run: RunId,
    /// Attempt of the last delivered event.
    attempt: u32,
    events: S,
    /// Position up to which events were delivered.
    at: Reached,
    /// Whether it ends where events are missing.
    fails_on_gap: bool,
    form: Option<Form>,
    as_json: bool,
    heartbeat: Duration,
    going: Serving,
    stage: RunStreamStage,
    /// Session of the consumer that reads.
    seat: Option<ConsumerSeat>,
    _place: StreamPlace,
    /// Memory for long lines; absent: they are not longer than usual.
    _room: Option<OwnedSemaphorePermit>,
}

enum RunStreamStage {
    /// Nothing was delivered yet.
    Opening(Box<pb::Run>),
    /// Past events are delivered, then new ones.
    Following,
    /// The server is shutting down: events up to then are delivered, in bounded time.
    LastWords { head: u64, until: Pin<Box<Sleep>> },
    /// Events are missing after the last delivered one, and the reader wants none beyond them.
    Expired(Box<CallError>),
    /// The end was reported.
    Reported,
}

/// Reason of a reader's wake-up.
enum RunStreamWake {
    Events(Result<Option<Vec<Event>>, CallError>),
    Draining,
    Leaving,
    Silence,
    /// The stream may no longer read for its consumer.
    Lost(CallError),
}

/// Ends when a reader may no longer read for its consumer. Cancel-safe.
async fn lost(seat: Option<&mut ConsumerSeat>) -> CallError {
    match seat {
        Some(seat) => seat.lost().await,
        None => std::future::pending().await,
    }
}

impl<S: Source> StreamReader<S> {
    pub(crate) fn new(
        view: RunView,
        events: S,
        call: &EventsCall,
        going: Serving,
        place: StreamPlace,
    ) -> Self {
        let at = events.position();
        Self {
            run: view.run,
            attempt: view.attempt,
            events,
            at,
            fails_on_gap: call.fails_on_gap,
            form: call.form,
            as_json: call.as_json,
            heartbeat: call.heartbeat,
            going,
            stage: RunStreamStage::Opening(Box::new(run::run(view))),
            seat: None,
            _place: place,
            _room: None,
        }
    }

    /// Adds memory for long lines.
    pub(crate) fn with_room(self, room: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            _room: room,
            ..self
        }
    }

    /// Reads for this consumer.
    pub(crate) fn in_name_of(self, seat: Option<ConsumerSeat>) -> Self {
        Self { seat, ..self }
    }

    async fn wake(&mut self) -> RunStreamWake {
        tokio::select! {
            biased;
            () = self.going.until_leaving() => RunStreamWake::Leaving,
            () = self.going.until_closing() => RunStreamWake::Draining,
            why = lost(self.seat.as_mut()) => RunStreamWake::Lost(why),
            events = self.events.next(limits::BATCH_BYTES_MAX) => RunStreamWake::Events(events),
            () = tokio::time::sleep(self.heartbeat) => RunStreamWake::Silence,
        }
    }

    fn give(
        &mut self,
        events: Result<Option<Vec<Event>>, CallError>,
    ) -> Option<Result<pb::StreamEventsResponse, Status>> {
        match events {
            Ok(Some(mut events)) => {
                match self.first_gap(&events) {
                    Some((0, expired)) => return Some(self.end(status::of(&expired))),
                    // Events before the gap are delivered first.
                    Some((place, expired)) => {
                        self.stage = RunStreamStage::Expired(Box::new(expired));
                        events.truncate(place);
                        self.at = Reached {
                            seq: events.last().map_or(self.at.seq, |e| e.seq),
                            begins: self.at.begins,
                            ..Reached::default()
                        };
                    }
                    None => self.at = self.events.position(),
                }
                if let Some(seat) = &self.seat {
                    seat.given(self.at.seq);
                }
                self.attempt = events.last().map_or(self.attempt, |e| e.attempt);
                let batches = convert::batches(self.run, events, self.as_json);
                Some(Ok(self.message(batches)))
            }
            Ok(None) => {
                self.stage = RunStreamStage::Reported;
                None
            }
            Err(error) => Some(self.end(status::of(&error))),
        }
    }

    /// Returns the first gap that ends the stream, with its error.
    fn first_gap(&self, events: &[Event]) -> Option<(usize, CallError)> {
        let gap = |event: &Event| match &event.payload {
            Payload::Gap(gap) if self.fails_on_gap => Some(CallError::CursorExpired {
                run: self.run,
                first_seq: gap.first_seq,
                last_seq: gap.last_seq,
            }),
            _ => None,
        };
        let mut found = events.iter().enumerate();
        found.find_map(|(place, event)| Some((place, gap(event)?)))
    }

    /// Ends the stream with this status.
    fn end<T>(&mut self, status: Status) -> Result<T, Status> {
        self.stage = RunStreamStage::Reported;
        Err(status)
    }

    fn snapshot(&self, run: pb::Run) -> pb::StreamEventsResponse {
        let head_seq = self.events.head();
        self.aside(event::Payload::Snapshot(Box::new(pb::Snapshot {
            run: Some(run),
            head_seq,
            first_seq: self.events.whole_from(),
        })))
    }

    fn heartbeat(&mut self) -> pb::StreamEventsResponse {
        // The position includes events that were not selected.
        self.at = self.events.position();
        self.aside(event::Payload::Heartbeat(pb::Heartbeat {
            head_seq: self.events.head(),
        }))
    }

    fn aside(&self, payload: event::Payload) -> pb::StreamEventsResponse {
        self.message(vec![convert::aside(
            self.run,
            self.attempt,
            self.at.seq,
            payload,
        )])
    }

    fn message(&self, run_events: Vec<pb::RunEvents>) -> pb::StreamEventsResponse {
        let cursor = Cursor {
            run: self.run,
            at: self.at,
            form: self.form,
        };
        pb::StreamEventsResponse {
            run_events,
            cursor: cursor.encode(),
            ..pb::StreamEventsResponse::default()
        }
    }
}

impl<S: Source> ResponseReader for StreamReader<S> {
    async fn next(&mut self) -> Option<Result<pb::StreamEventsResponse, Status>> {
        loop {
            match std::mem::replace(&mut self.stage, RunStreamStage::Following) {
                RunStreamStage::Opening(run) => return Some(Ok(self.snapshot(*run))),
                RunStreamStage::Following => match self.wake().await {
                    RunStreamWake::Events(events) => return self.give(events),
                    RunStreamWake::Leaving => return Some(self.end(status::leaving())),
                    RunStreamWake::Lost(why) => return Some(self.end(status::of(&why))),
                    RunStreamWake::Silence => return Some(Ok(self.heartbeat())),
                    RunStreamWake::Draining => {
                        self.stage = RunStreamStage::LastWords {
                            head: self.events.head(),
                            until: Box::pin(tokio::time::sleep(limits::LAST_WORDS_MAX)),
                        };
                    }
                },
                RunStreamStage::LastWords { head, mut until }
                    if self.events.position().seq < head =>
                {
                    let events = tokio::select! {
                        biased;
                        () = &mut until => None,
                        events = self.events.next(limits::BATCH_BYTES_MAX) => Some(events),
                    };
                    match events {
                        Some(events) => {
                            self.stage = RunStreamStage::LastWords { head, until };
                            return self.give(events);
                        }
                        None => return Some(self.end(status::draining())),
                    }
                }
                RunStreamStage::LastWords { .. } => return Some(self.end(status::draining())),
                RunStreamStage::Expired(expired) => return Some(self.end(status::of(&expired))),
                RunStreamStage::Reported => {
                    self.stage = RunStreamStage::Reported;
                    return None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
