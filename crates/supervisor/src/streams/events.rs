//! The events of one run, from a position on, in the form that a reader requests.

mod open;

use crate::{
    base::{
        calls::{CallError, Event, Kinds, Payload, Position, Reached},
        event,
    },
    registry::{Supervisor, subscribers::Subscription},
    streams::{
        by_row::{ByRow, RowEvents, ahead},
        shape::Shape,
    },
};
use bytes::Buf as _;
use kennel_journal::{Form, GapReason, Hub, Item, Point, Position as JournalPosition, Reader};
use kennel_lifecycle::{Entry, RunId};
use std::{io, sync::Arc};

/// Events of one run, from a position on. Ends after `Ended`.
#[derive(Debug)]
pub struct Events {
    run: RunId,
    /// For the row, which shows whether missing output was removed.
    supervisor: Supervisor,
    source: Source,
    /// Absent: everything is given unchanged.
    shape: Option<Shape>,
    kinds: Kinds,
    /// Offsets in the streams before which nothing is given; absent: everything is.
    begins: Option<[u64; 2]>,
    /// Seq behind which nothing is given; absent: new events are given.
    until: Option<u64>,
    /// Whether the run's last event was read.
    has_ended: bool,
    /// Row of the ended run, for events that its journal does not have.
    row: Option<Arc<RowEvents>>,
    /// End that a damaged journal has lost, until it is given.
    lost_end: Option<ByRow>,
    is_end_lost: bool,
    /// The position, once it was reported.
    beyond: Option<Reached>,
    /// The growing journal; absent: it is complete.
    hub: Option<Hub>,
    /// Its place among the measured streams; absent: no client waits for its events.
    subscription: Option<Subscription>,
}

/// Source of the events.
#[derive(Debug)]
enum Source {
    /// The run never got a journal.
    Nothing,
    Journal(Reader),
    /// The row alone: the journal was removed, or is not on this node.
    Row(Box<ByRow>),
}

impl Events {
    fn of(run: RunId, supervisor: &Supervisor, source: Source) -> Self {
        Self {
            run,
            supervisor: supervisor.clone(),
            source,
            shape: None,
            kinds: Kinds::ALL,
            begins: None,
            until: None,
            has_ended: false,
            row: None,
            lost_end: None,
            is_end_lost: false,
            beyond: None,
            hub: None,
            subscription: None,
        }
    }

    /// Gives output in this form, from the position reached in it before.
    pub async fn viewed(mut self, form: Form, at: Option<Reached>) -> Result<Self, CallError> {
        let fed_from = at.and_then(|at| at.fed_from);
        loop {
            self.shape = match &self.source {
                Source::Nothing => None,
                Source::Row(_) => Some(Shape::of_nothing(form)),
                Source::Journal(reader) => {
                    match Shape::at(form, reader, fed_from, self.begins).await {
                        Ok(shape) => Some(shape),
                        Err(error) => {
                            self.continue_without_journal(&error).await?;
                            continue;
                        }
                    }
                }
            };
            return Ok(self);
        }
    }

    /// Gives only these kinds. Positions pass over the others.
    #[must_use]
    pub fn of_kinds(self, kinds: Kinds) -> Self {
        Self { kinds, ..self }
    }

    /// Measures the lag of the client.
    #[must_use]
    pub fn subscribed(mut self) -> Self {
        let subscribers = &self.supervisor.shared.subscribers;
        let hub = self.hub.take().filter(|_| self.until.is_none());
        self.subscription = hub.map(|hub| subscribers.join(hub, self.position().seq));
        self
    }

    /// Gives only events that exist by now.
    #[must_use]
    pub fn until_head(self) -> Self {
        let until = Some(self.head());
        Self { until, ..self }
    }

    /// Returns the present lengths of standard output and of standard error: also of what a damaged journal has lost.
    pub(crate) fn head_lens(&self) -> [u64; 2] {
        let lens = match &self.source {
            Source::Nothing => [0; 2],
            Source::Journal(reader) => reader.end().lens,
            Source::Row(row) => row.lens(),
        };
        let recorded = self.row.as_ref().filter(|_| self.is_end_lost);
        let recorded = recorded.and_then(|row| row.at).map_or(lens, |at| at.lens);
        [lens[0].max(recorded[0]), lens[1].max(recorded[1])]
    }

    /// Whether the journal of the ended run does not have its end.
    pub(crate) fn has_lost_end(&self) -> bool {
        self.is_end_lost
    }

    /// Returns the reader of the journal; absent: there is nothing to read.
    pub(crate) fn into_reader(self) -> Option<Reader> {
        match self.source {
            Source::Journal(reader) => Some(reader),
            Source::Nothing | Source::Row(_) => None,
        }
    }

    /// Returns the last present seq.
    pub fn head(&self) -> u64 {
        if let Some(lost) = &self.lost_end {
            return lost.seq();
        }
        match &self.source {
            Source::Nothing => 0,
            Source::Journal(reader) => reader.end().seq,
            Source::Row(row) => row.seq(),
        }
    }

    /// Returns the seq from which on nothing is missing by now; 0: there is no event yet.
    pub fn whole_from(&self) -> u64 {
        match &self.source {
            Source::Nothing => 0,
            Source::Journal(reader) => reader.whole_from(),
            Source::Row(row) => row.seq(),
        }
    }

    /// Returns the position up to which events were given, unwanted ones included.
    pub fn position(&self) -> Reached {
        let reached = match &self.source {
            _ if self.beyond.is_some() => self.beyond.unwrap_or_default(),
            Source::Nothing => Reached::default(),
            Source::Journal(reader) => reader.position().into(),
            Source::Row(row) => row.at(),
        };
        let fed_from = self.shape.as_ref().and_then(Shape::fed_from);
        Reached {
            // A view that begins after the position was fed no bytes.
            fed_from: fed_from.map(|fed| match reached.lens {
                Some(lens) => [fed[0].min(lens[0]), fed[1].min(lens[1])],
                None => fed,
            }),
            begins: self.begins,
            ..reached
        }
    }

    /// Returns the next events, at least one, at most `bytes_max` bytes of output (but always one). Waits while there
    /// is none; `None` after the run's last. Cancel-safe.
    pub async fn next(&mut self, bytes_max: usize) -> Result<Option<Vec<Event>>, CallError> {
        loop {
            match self.step(bytes_max).await {
                Ok(Some(events)) if events.is_empty() => {}
                given => return given,
            }
        }
    }

    /// Returns the unfinished line of a stream, in a view by lines: its offset, and its bytes so far.
    pub(crate) fn unfinished(&self, stream: u8) -> Option<(u64, &[u8])> {
        self.shape.as_ref()?.unfinished(stream)
    }

    /// Whether the run's last event was read, wanted or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Waits until [`Events::step`] would not wait. Cancel-safe.
    pub(crate) async fn ready(&mut self) {
        let at = self.position().seq;
        if let Some(subscription) = &self.subscription {
            subscription.given(at);
        }
        if let Source::Journal(reader) = &mut self.source
            && self.until.is_none_or(|until| at < until)
        {
            reader.ready().await;
        }
    }

    /// Reads like [`Events::next`], but the result may hold no wanted event.
    pub(crate) async fn step(&mut self, bytes_max: usize) -> Result<Option<Vec<Event>>, CallError> {
        let run = self.run;
        let at = self.position().seq;
        if let Some(subscription) = &self.subscription {
            subscription.given(at);
        }
        if self.until.is_some_and(|until| at >= until) {
            return Ok(None);
        }
        let events = match &mut self.source {
            Source::Nothing => return Ok(None),
            Source::Row(row) => row.next(),
            Source::Journal(reader) => match reader.next(bytes_max).await {
                Ok(items) => {
                    // INVARIANT: items read are returned, or are in the shape, before the next await.
                    let row = self.row.as_deref();
                    items.map(|items| decode(run, row, items)).transpose()?
                }
                Err(error) => {
                    self.continue_without_journal(&error).await?;
                    return Ok(Some(Vec::new()));
                }
            },
        };
        let events: Vec<Event> = match (events, self.lost_end.take()) {
            (None, None) => return Ok(None),
            (None, Some(lost)) => {
                let mut lost = lost.after(self.position());
                let events = lost.next().unwrap_or_default();
                self.beyond = Some(lost.at());
                events
            }
            (Some(events), lost) => {
                self.lost_end = lost;
                events
            }
        };
        let mut given = Vec::new();
        for event in events {
            self.take(event, &mut given);
        }
        let lens = self.position().lens;
        let is_behind =
            |begins: &[u64; 2]| lens.is_none_or(|lens| lens[0] < begins[0] || lens[1] < begins[1]);
        self.begins = self.begins.filter(is_behind);
        Ok(Some(given))
    }

    /// Continues without the journal, which cannot be read. Where it was removed or damaged, the rest is given without
    /// it.
    async fn continue_without_journal(&mut self, error: &io::Error) -> Result<(), CallError> {
        let at = Position::After(self.position());
        let (_, row) = self.supervisor.without_journal(self.run, at, error).await?;
        self.source = Source::Row(Box::new(row));
        // Hub and subscription would keep a removed journal's files.
        (self.hub, self.subscription) = (None, None);
        Ok(())
    }

    fn take(&mut self, event: Event, given: &mut Vec<Event>) {
        self.has_ended |= matches!(event.payload, Payload::Lifecycle(Entry::Ended(_)));
        let is_output = matches!(event.payload, Payload::Output { .. });
        if is_output && !self.kinds.has(&event.payload) {
            return;
        }
        let Some(event) = self.cut(event) else {
            return;
        };
        if let Payload::Gap(gap) = &event.payload {
            self.supervisor.shared.config.telemetry.metrics.gap(gap);
        }
        let Some(shape) = &mut self.shape else {
            given.extend(self.kinds.has(&event.payload).then_some(event));
            return;
        };
        let mut shaped = Vec::new();
        shape.shape(event, &mut shaped);
        shaped.retain(|event| self.kinds.has(&event.payload));
        given.append(&mut shaped);
    }

    /// Returns the part of an event behind the beginning of the tail.
    fn cut(&self, mut event: Event) -> Option<Event> {
        let Some(begins) = self.begins else {
            return Some(event);
        };
        match &mut event.payload {
            Payload::Output {
                stream,
                offset,
                data,
            } => {
                let begin = begins[usize::from(*stream) - 1];
                let before = begin.saturating_sub(*offset);
                let before = usize::try_from(before).unwrap_or(usize::MAX);
                if before > 0 && before >= data.len() {
                    return None;
                }
                data.advance(before);
                *offset += before as u64;
            }
            Payload::Gap(gap) => {
                for (stream, begin) in begins.into_iter().enumerate() {
                    let end = gap.ends[stream];
                    let begun = gap.bytes[stream].map(|bytes| end - bytes);
                    gap.ends[stream] = end.max(begin);
                    gap.bytes[stream] = match begun {
                        Some(begun) => Some(end.max(begin) - begun.max(begin)),
                        None => (begin >= end).then_some(0),
                    };
                }
            }
            Payload::Lifecycle(_) | Payload::Line { .. } => {}
        }
        Some(event)
    }
}

/// Makes events of items of a journal; a damaged entry is replaced by the row's, where that lists it.
fn decode(run: RunId, row: Option<&RowEvents>, items: Vec<Item>) -> Result<Vec<Event>, CallError> {
    let mut events = Vec::with_capacity(items.len());
    for item in items {
        match (item, row) {
            (Item::Gap(gap), Some(row)) if gap.reason == GapReason::Damaged => {
                events.extend(row.fill(gap));
            }
            (item, row) => {
                let seq = item.last_seq();
                let listed = |error| row.and_then(|row| row.find(seq)).cloned().ok_or(error);
                events.push(event::decode(run, item).or_else(listed)?);
            }
        }
    }
    Ok(events)
}

fn is_ahead(from: Position, head: Point) -> bool {
    matches!(from, Position::After(at) if at.seq > head.seq)
}

fn after(run: RunId, from: Position, head: Point) -> Result<Reached, CallError> {
    match from {
        Position::Beginning => Ok(Reached::default()),
        Position::LiveOnly | Position::Tail(_) => Ok(JournalPosition::from(head).into()),
        Position::After(at) if at.seq > head.seq => Err(ahead(run, at.seq, head.seq)),
        Position::After(at) => Ok(at),
    }
}

pub(crate) fn unreadable(run: RunId, error: &io::Error) -> CallError {
    CallError::JournalUnreadable {
        run,
        why: error.to_string(),
    }
}
