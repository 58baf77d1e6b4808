//! One reader of the events of many runs: for each a Snapshot, then its events; heartbeats in silence, and a typed end.

use super::lost;
use crate::{
    convert::{event as convert, many_cursor, request::ManyAsk, run},
    digest::DigestKey,
    limits,
    pb::{self, event},
    shares::StreamPlace,
    status,
};
use futures_util::{
    FutureExt,
    stream::{self, Stream},
};
use kennel_supervisor::{CallError, ConsumerSeat, ManyEvents, Serving, Step};
use prost::Message;
use std::{pin::Pin, time::Duration};
use tokio::time::Sleep;
use tonic::Status;

/// A cursor up to this size comes with every message.
const CURSOR_SMALL_BYTES: usize = 8 * 1024;
/// A larger one comes after so many times its size was sent.
const CURSOR_SHARE: usize = 8;
/// Also after so long a silence.
const CURSOR_REST: Duration = Duration::from_millis(200);

/// Owns a position in the events of many runs and, as long as it lives, a slot among the streams.
pub(crate) struct ManyReader {
    events: ManyEvents,
    ask: ManyAsk,
    going: Serving,
    stage: Stage,
    /// Bytes sent since the last cursor.
    uncovered_bytes: usize,
    /// Consumer that reads.
    named: Option<Named>,
    _place: StreamPlace,
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
        many_cursor::of_consumer(cursor, place, &row.key.name, &self.key)
    }
}

enum Stage {
    Following,
    /// The server is shutting down.
    LastWords(Pin<Box<Sleep>>),
    /// Error to report after everything before was delivered.
    Failed(Box<Status>),
    /// The end was reported.
    Reported,
}

/// Reason of a reader's wake-up.
enum Wake {
    Step(Result<Option<Step>, CallError>),
    Draining,
    Leaving,
    Silence,
    Spoken,
    /// The stream may no longer read for its consumer.
    Lost(CallError),
}

impl ManyReader {
    pub(crate) fn new(
        events: ManyEvents,
        ask: ManyAsk,
        going: Serving,
        place: StreamPlace,
    ) -> Self {
        Self {
            events,
            ask,
            going,
            stage: Stage::Following,
            uncovered_bytes: 0,
            named: None,
            _place: place,
        }
    }

    /// Reads for this consumer.
    pub(crate) fn in_name_of(self, named: Option<Named>) -> Self {
        Self { named, ..self }
    }

    pub(crate) fn into_stream(
        self,
    ) -> impl Stream<Item = Result<pb::StreamEventsResponse, Status>> + Send {
        stream::unfold(self, |mut reader| async move {
            let item = reader.next().await?;
            Some((item, reader))
        })
    }

    async fn next(&mut self) -> Option<Result<pb::StreamEventsResponse, Status>> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Following) {
                Stage::Following => {
                    let wake = self.wake().await;
                    if let Wake::Draining = wake {
                        let until = Box::pin(tokio::time::sleep(limits::LAST_WORDS_MAX));
                        self.stage = Stage::LastWords(until);
                    } else if let Some(message) = self.message_for(wake) {
                        return Some(Ok(message));
                    }
                }
                Stage::LastWords(mut until) => {
                    let wake = tokio::select! {
                        biased;
                        () = &mut until => Wake::Spoken,
                        step = self.events.next(limits::BATCH_BYTES_MAX) => Wake::Step(step),
                    };
                    self.stage = Stage::LastWords(until);
                    if let Some(message) = self.message_for(wake) {
                        return Some(Ok(message));
                    }
                }
                Stage::Failed(status) => {
                    self.stage = Stage::Reported;
                    return Some(Err(*status));
                }
                Stage::Reported => {
                    self.stage = Stage::Reported;
                    return None;
                }
            }
        }
    }

    async fn wake(&mut self) -> Wake {
        let silence = if self.uncovered_bytes > 0 {
            CURSOR_REST
        } else {
            self.ask.heartbeat
        };
        let seat = self.named.as_mut().map(|named| &mut named.seat);
        tokio::select! {
            biased;
            () = self.going.until_leaving() => Wake::Leaving,
            () = self.going.until_closing() => Wake::Draining,
            why = lost(seat) => Wake::Lost(why),
            step = self.events.next(limits::BATCH_BYTES_MAX) => Wake::Step(step),
            () = tokio::time::sleep(silence) => Wake::Silence,
        }
    }

    /// Returns the message for this wake-up, if there is one; the stage determines what follows.
    fn message_for(&mut self, wake: Wake) -> Option<pb::StreamEventsResponse> {
        match wake {
            Wake::Step(step) => self.give(step),
            Wake::Silence if self.uncovered_bytes > 0 => Some(self.message(Vec::new(), true)),
            Wake::Silence => {
                let heartbeat = pb::Heartbeat { head_seq: 0 };
                let heartbeat = pb::RunEvents {
                    events: vec![pb::Event {
                        payload: Some(event::Payload::Heartbeat(heartbeat)),
                        ..pb::Event::default()
                    }],
                    ..pb::RunEvents::default()
                };
                Some(self.message(vec![heartbeat], true))
            }
            Wake::Lost(why) => self.fail(status::of(&why)),
            Wake::Leaving => self.fail(status::leaving()),
            Wake::Draining | Wake::Spoken => self.fail(status::draining()),
        }
    }

    fn fail<T>(&mut self, status: Status) -> Option<T> {
        self.stage = Stage::Failed(Box::new(status));
        None
    }

    /// Delivers this step, and other present events that fit into the message.
    fn give(&mut self, step: Result<Option<Step>, CallError>) -> Option<pb::StreamEventsResponse> {
        let mut gathered = Vec::new();
        let mut bytes = 0;
        let mut next = Some(step);
        let mut is_last = false;
        while let Some(step) = next.take() {
            match step {
                Ok(Some(Step::Broken(error))) | Err(error) => {
                    self.stage = Stage::Failed(Box::new(status::of(&error)));
                    is_last = true;
                }
                Ok(None) => {
                    self.stage = Stage::Reported;
                    is_last = true;
                }
                Ok(Some(step)) => {
                    let batches = self.batches(step);
                    bytes += batches.iter().map(Message::encoded_len).sum::<usize>();
                    gathered.extend(batches);
                    if bytes < limits::BATCH_BYTES_MAX {
                        next = self.events.next(limits::BATCH_BYTES_MAX).now_or_never();
                    }
                }
            }
        }
        self.uncovered_bytes += bytes;
        // Before an end there is always a cursor that covers everything delivered.
        (is_last || !gathered.is_empty()).then(|| self.message(gathered, is_last))
    }

    fn batches(&self, step: Step) -> Vec<pb::RunEvents> {
        match step {
            Step::Begun {
                view,
                head,
                whole_from,
                at,
            } => {
                let (run, attempt) = (view.run, view.attempt);
                let snapshot = pb::Snapshot {
                    run: Some(run::run(*view)),
                    head_seq: head,
                    first_seq: whole_from,
                };
                let snapshot = event::Payload::Snapshot(Box::new(snapshot));
                vec![convert::aside(run, attempt, at, snapshot)]
            }
            Step::Events { run, events } => convert::batches(run, events, self.ask.as_json),
            Step::Broken(_) => Vec::new(),
        }
    }

    fn message(
        &mut self,
        run_events: Vec<pb::RunEvents>,
        is_due: bool,
    ) -> pb::StreamEventsResponse {
        let size = self.events.reached().size();
        let cursor = if is_due
            || size <= CURSOR_SMALL_BYTES
            || self.uncovered_bytes >= size.saturating_mul(CURSOR_SHARE)
        {
            self.uncovered_bytes = 0;
            let (seal, form) = (self.ask.seal, self.ask.call.form);
            let cursor = many_cursor::encode(seal, form, self.events.reached());
            match &mut self.named {
                Some(named) => named.seal(&cursor),
                None => cursor,
            }
        } else {
            bytes::Bytes::new()
        };
        pb::StreamEventsResponse { run_events, cursor }
    }
}
