//! The events of many runs of one node: first the position where they begin, then for each run a Snapshot and its
//! events, and a typed end.

use crate::{
    convert::{
        event as convert,
        many_cursor::{self, Seal},
        run,
    },
    limits,
    pb::{self, event},
    status,
};
use futures_util::FutureExt;
use kennel_supervisor::{CallError, Form, ManyEvents, Serving, Step};
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

/// Decides which messages have a cursor.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Bytes sent since the last cursor.
    uncovered_bytes: usize,
}

impl Pace {
    /// Records so many bytes that a cursor has to cover.
    pub(super) fn note(&mut self, bytes: usize) {
        self.uncovered_bytes += bytes;
    }

    pub(super) fn is_uncovered(&self) -> bool {
        self.uncovered_bytes > 0
    }

    /// Returns the silence after which a message is due.
    pub(super) fn silence(&self, heartbeat: Duration) -> Duration {
        if self.is_uncovered() {
            CURSOR_REST
        } else {
            heartbeat
        }
    }

    /// Whether the next message has a cursor of this size.
    pub(super) fn covers(&mut self, size: usize, is_due: bool) -> bool {
        let covers = is_due
            || size <= CURSOR_SMALL_BYTES
            || self.uncovered_bytes >= size.saturating_mul(CURSOR_SHARE);
        if covers {
            self.uncovered_bytes = 0;
        }
        covers
    }
}

/// Returns the heartbeat of a stream of many runs.
pub(super) fn heartbeat() -> pb::RunEvents {
    let heartbeat = pb::Heartbeat { head_seq: 0 };
    pb::RunEvents {
        events: vec![pb::Event {
            payload: Some(event::Payload::Heartbeat(heartbeat)),
            ..pb::Event::default()
        }],
        ..pb::RunEvents::default()
    }
}

/// Owns a position in the events of many runs of one node.
pub(super) struct ManyReader {
    pub(super) events: ManyEvents,
    pub(super) seal: Seal,
    pub(super) form: Option<Form>,
    pub(super) as_json: bool,
    pub(super) going: Serving,
    pub(super) pace: Pace,
    pub(super) stage: MultiRunStage,
}

pub(super) enum MultiRunStage {
    Following,
    /// The server is shutting down.
    LastWords(Pin<Box<Sleep>>),
    /// End to report after everything before was delivered, with its error.
    Ended(Option<Status>),
}

/// Reason of a reader's wake-up.
enum MultiRunWake {
    Step(Result<Option<Step>, CallError>),
    Closing,
    Failed(Status),
    Silence,
}

impl ManyReader {
    /// Returns the next message, or the error that ends the events; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Result<pb::StreamEventsResponse, Status>> {
        loop {
            match self.wake().await? {
                MultiRunWake::Step(step) => {
                    if let Some(message) = self.give(step) {
                        return Some(Ok(message));
                    }
                }
                MultiRunWake::Silence => return Some(Ok(self.position())),
                MultiRunWake::Closing => {
                    let until = Box::pin(tokio::time::sleep(limits::LAST_WORDS_MAX));
                    self.stage = MultiRunStage::LastWords(until);
                }
                MultiRunWake::Failed(status) => return Some(Err(status)),
            }
        }
    }

    async fn wake(&mut self) -> Option<MultiRunWake> {
        let silence = self.pace.silence(limits::NODE_HEARTBEAT);
        let wake = match &mut self.stage {
            MultiRunStage::Following => tokio::select! {
                biased;
                () = self.going.until_leaving() => MultiRunWake::Failed(status::leaving()),
                () = self.going.until_closing() => MultiRunWake::Closing,
                step = self.events.next(limits::BATCH_BYTES_MAX) => MultiRunWake::Step(step),
                () = tokio::time::sleep(silence) => MultiRunWake::Silence,
            },
            MultiRunStage::LastWords(until) => tokio::select! {
                biased;
                () = until => MultiRunWake::Failed(status::draining()),
                step = self.events.next(limits::BATCH_BYTES_MAX) => MultiRunWake::Step(step),
            },
            MultiRunStage::Ended(why) => MultiRunWake::Failed(why.take()?),
        };
        Some(wake)
    }

    /// Returns a message without events: the position.
    pub(super) fn position(&mut self) -> pb::StreamEventsResponse {
        self.message(Vec::new(), true)
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
                    self.stage = MultiRunStage::Ended(Some(status::of(&error)));
                    is_last = true;
                }
                Ok(None) => {
                    self.stage = MultiRunStage::Ended(None);
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
        self.pace.note(bytes);
        // The last message always has a cursor that covers everything delivered.
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
            Step::Events { run, events } => convert::batches(run, events, self.as_json),
            Step::Broken(_) => Vec::new(),
        }
    }

    fn message(
        &mut self,
        run_events: Vec<pb::RunEvents>,
        is_due: bool,
    ) -> pb::StreamEventsResponse {
        let reached = self.events.reached();
        let cursor = if self.pace.covers(reached.size(), is_due) {
            many_cursor::encode(self.seal, self.form, reached)
        } else {
            bytes::Bytes::new()
        };
        pb::StreamEventsResponse {
            run_events,
            cursor,
            ..pb::StreamEventsResponse::default()
        }
    }
}
