//! The events of one run, from a position on, as a reader wants them.

use crate::{
    base::{
        blocking::blocking,
        calls::{CallError, Event, Kinds, Payload, Position, Reached, RunView},
        event,
        view::Live,
    },
    registry::{Supervisor, subscribers::Subscription},
    streams::{lost_end::LostEnd, removed::Removed, shape::Shape},
};
use bytes::Buf as _;
use kennel_journal::{Form, Hub, Point, Position as JournalPosition, Reader};
use kennel_keeper::rundir;
use kennel_lifecycle::{Entry, RunId, RunState};
use std::io;

/// Events of one run, from a position on. Ends after `Ended`.
#[derive(Debug)]
pub struct Events {
    run: RunId,
    /// Where the row says whether what is not found was removed.
    supervisor: Supervisor,
    source: Source,
    /// Absent: all is given as it is.
    shape: Option<Shape>,
    kinds: Kinds,
    /// Offsets in the streams before which nothing is given; absent: all is.
    begins: Option<[u64; 2]>,
    /// Seq behind which nothing is given; absent: whatever comes is.
    until: Option<u64>,
    /// Whether the run's last event was read.
    has_ended: bool,
    /// What a damaged journal does not tell, as long as it is not told.
    lost_end: Option<LostEnd>,
    is_end_lost: bool,
    /// The position, once that was told.
    beyond: Option<Reached>,
    /// The journal that grows; absent: it is whole.
    hub: Option<Hub>,
    /// Its place among those who are looked after; absent: nobody waits for what it gives.
    subscription: Option<Subscription>,
}

/// What events are made of.
#[derive(Debug)]
enum Source {
    /// The run never came to have a journal.
    Nothing,
    Journal(Reader),
    /// What is left where the journal was removed.
    Removed(Box<Removed>),
}

/// Where the events of a run are.
enum EventsPlace {
    /// In the journal that its task writes.
    Growing(Box<RunView>, Hub),
    /// In the journal that is left of it. The run as its task knows it, where it still has one: the store may be away, and
    /// know less.
    Whole(Option<Box<RunView>>),
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
            lost_end: None,
            is_end_lost: false,
            beyond: None,
            hub: None,
            subscription: None,
        }
    }

    /// The same with output in this form, from what was reached in it before.
    pub async fn viewed(mut self, form: Form, at: Option<Reached>) -> Result<Self, CallError> {
        let fed_from = at.and_then(|at| at.fed_from);
        loop {
            self.shape = match &self.source {
                Source::Nothing => None,
                Source::Removed(_) => Some(Shape::of_nothing(form)),
                Source::Journal(reader) => {
                    match Shape::at(form, reader, fed_from, self.begins).await {
                        Ok(shape) => Some(shape),
                        Err(error) => {
                            self.go_on_without(&error).await?;
                            continue;
                        }
                    }
                }
            };
            return Ok(self);
        }
    }

    /// The same of these kinds alone. Positions pass over the others.
    #[must_use]
    pub fn of_kinds(self, kinds: Kinds) -> Self {
        Self { kinds, ..self }
    }

    /// The same for a client, of whom it is measured how far it is behind.
    #[must_use]
    pub fn subscribed(mut self) -> Self {
        let subscribers = &self.supervisor.shared.subscribers;
        let hub = self.hub.take().filter(|_| self.until.is_none());
        self.subscription = hub.map(|hub| subscribers.join(hub, self.position().seq));
        self
    }

    /// The same up to what there is by now.
    #[must_use]
    pub fn until_head(self) -> Self {
        let until = Some(self.head());
        Self { until, ..self }
    }

    /// How much of standard output and of standard error there is now.
    pub(crate) fn head_lens(&self) -> [u64; 2] {
        match &self.source {
            Source::Nothing => [0; 2],
            Source::Journal(reader) => reader.end().lens,
            Source::Removed(removed) => removed.lens(),
        }
    }

    /// Whether the journal of the ended run does not tell its end.
    pub(crate) fn has_lost_end(&self) -> bool {
        self.is_end_lost
    }

    /// Where they come from; absent: there is nothing to be read.
    pub(crate) fn into_reader(self) -> Option<Reader> {
        match self.source {
            Source::Journal(reader) => Some(reader),
            Source::Nothing | Source::Removed(_) => None,
        }
    }

    /// Last seq that there is now.
    #[must_use]
    pub fn head(&self) -> u64 {
        if let Some(lost) = &self.lost_end {
            return lost.seq();
        }
        match &self.source {
            Source::Nothing => 0,
            Source::Journal(reader) => reader.end().seq,
            Source::Removed(removed) => removed.seq(),
        }
    }

    /// The seq from which on nothing is missing by now; 0: there is nothing yet.
    #[must_use]
    pub fn whole_from(&self) -> u64 {
        match &self.source {
            Source::Nothing => 0,
            Source::Journal(reader) => reader.whole_from(),
            Source::Removed(removed) => removed.seq(),
        }
    }

    /// Up to where it was given, over what was not wanted.
    #[must_use]
    pub fn position(&self) -> Reached {
        let reached = match &self.source {
            _ if self.beyond.is_some() => self.beyond.unwrap_or_default(),
            Source::Nothing => Reached::default(),
            Source::Journal(reader) => reader.position().into(),
            Source::Removed(removed) => removed.at(),
        };
        let fed_from = self.shape.as_ref().and_then(Shape::fed_from);
        Reached {
            // A view that begins behind the position has been fed with nothing.
            fed_from: fed_from.map(|fed| match reached.lens {
                Some(lens) => [fed[0].min(lens[0]), fed[1].min(lens[1])],
                None => fed,
            }),
            begins: self.begins,
            ..reached
        }
    }

    /// The next events, at least one, at most `bytes_max` bytes of output (but always one). Waits while there is
    /// none; `None` after the run's last. Cancel-safe.
    pub async fn next(&mut self, bytes_max: usize) -> Result<Option<Vec<Event>>, CallError> {
        loop {
            match self.step(bytes_max).await {
                Ok(Some(events)) if events.is_empty() => {}
                given => return given,
            }
        }
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

    /// The same as [`Events::next`], but what is read may have nothing in it that is wanted.
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
            Source::Removed(removed) => removed.next(),
            Source::Journal(reader) => match reader.next(bytes_max).await {
                Ok(items) => {
                    // INVARIANT: what was read is given, or is in the shape, before anything is awaited again.
                    let decode = |item| event::decode(run, item);
                    let events = items.map(|items| items.into_iter().map(decode).collect());
                    events.transpose()?
                }
                Err(error) => {
                    self.go_on_without(&error).await?;
                    return Ok(Some(Vec::new()));
                }
            },
        };
        let events: Vec<Event> = match (events, self.lost_end.take()) {
            (None, None) => return Ok(None),
            (None, Some(lost)) => {
                self.beyond = Some(lost.reached());
                lost.tell(at)
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

    /// The journal cannot be read. Where that is because it was removed, the rest is told without it.
    async fn go_on_without(&mut self, error: &io::Error) -> Result<(), CallError> {
        if error.kind() == io::ErrorKind::NotFound {
            let view = RunView::from(self.supervisor.row(self.run).await?);
            let at = Position::After(self.position());
            if let Some(removed) = Removed::of(&view, at)? {
                self.source = Source::Removed(Box::new(removed));
                // They would keep the files of what is gone.
                (self.hub, self.subscription) = (None, None);
                return Ok(());
            }
        }
        Err(unreadable(self.run, error))
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

    /// What of an event lies behind where the tail begins.
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

impl Supervisor {
    /// The run as it is, and its events from a position on. The last seq at this moment is [`Events::head`].
    pub async fn events(&self, run: RunId, from: Position) -> Result<(RunView, Events), CallError> {
        match self.events_there(run, from).await {
            Err(unreadable @ CallError::JournalUnreadable { .. }) => {
                // It may have been removed since the row was read.
                let view = RunView::from(self.row(run).await?);
                let removed = self.removed(&view, from)?.ok_or(unreadable)?;
                Ok((view, removed))
            }
            found => found,
        }
    }

    fn removed(&self, view: &RunView, from: Position) -> Result<Option<Events>, CallError> {
        let removed = Removed::of(view, from)?;
        let events = |removed| Events::of(view.run, self, Source::Removed(Box::new(removed)));
        Ok(removed.map(events))
    }

    async fn events_there(
        &self,
        run: RunId,
        from: Position,
    ) -> Result<(RunView, Events), CallError> {
        let view = match self.events_place(run).await? {
            EventsPlace::Growing(view, hub) => {
                // What a server told of a run whose gate it did not live to open comes again with its next Spawn.
                if is_ahead(from, hub.head())
                    && view.state == RunState::Starting
                    && let Some(handle) = self.shared.find(run)
                {
                    let has_begun =
                        |live: &Live| live.over || live.view.state != RunState::Starting;
                    drop(handle.live.clone().wait_for(has_begun).await);
                    return Box::pin(self.events_there(run, from)).await;
                }
                let reader = hub.read_from(hub.head().into());
                let reader = reader.map_err(|e| unreadable(run, &e))?;
                let mut events = self.reading_from(run, reader, from).await?;
                events.hub = Some(hub);
                return Ok((*view, events));
            }
            EventsPlace::Whole(Some(view)) => *view,
            EventsPlace::Whole(None) => RunView::from(self.row(run).await?),
        };
        self.refuse_elsewhere(&view).await?;
        if let Some(removed) = self.removed(&view, from)? {
            return Ok((view, removed));
        }
        let dir = rundir::path(&self.shared.config.data_dir, run);
        // The whole index is looked through, which may be long.
        // While something is left to be done of a run, its end may be still to be told.
        let is_closed = view.outcome.is_some() && !self.shared.record.is_unfinished(run);
        let opened = blocking(move || {
            let from = JournalPosition::default();
            if is_closed {
                Reader::open_closed(&dir, from)
            } else {
                Reader::open_ended(&dir, from)
            }
        })
        .await;
        let reader = match opened.flatten() {
            Ok(reader) => reader,
            Err(error) if error.kind() == io::ErrorKind::NotFound && view.identity.is_none() => {
                after(run, from, Point::default())?;
                return Ok((view, Events::of(run, self, Source::Nothing)));
            }
            Err(error) => return Err(unreadable(run, &error)),
        };
        let lost_end = if is_closed {
            let lost = LostEnd::of(&view, &reader).await;
            lost.map_err(|e| unreadable(run, &e))?
        } else {
            None
        };
        let Some(lost) = lost_end else {
            return Ok((view, self.reading_from(run, reader, from).await?));
        };
        tracing::warn!(run_id = %run, "its journal has lost the run's end: files in its directory are damaged");
        let mut events = match from {
            Position::LiveOnly => self.reading_from(run, reader, from).await?,
            Position::After(at) if at.seq > lost.seq() => {
                return Err(ahead(run, at.seq, lost.seq()));
            }
            Position::After(at) if at.seq > reader.end().seq => {
                let live = self.reading_from(run, reader, Position::LiveOnly).await?;
                Events {
                    beyond: Some(at),
                    lost_end: (at.seq < lost.seq()).then_some(lost),
                    ..live
                }
            }
            _ => Events {
                lost_end: Some(lost),
                ..self.reading_from(run, reader, from).await?
            },
        };
        events.is_end_lost = true;
        Ok((view, events))
    }

    /// The reader at this position.
    async fn reading_from(
        &self,
        run: RunId,
        mut reader: Reader,
        from: Position,
    ) -> Result<Events, CallError> {
        let (position, begins) = match from {
            Position::Tail(tail) => {
                let begin = reader.tail(tail).await;
                let begin = begin.map_err(|e| unreadable(run, &e))?;
                (begin.position, Some(begin.begins))
            }
            _ => {
                let at = after(run, from, reader.end())?;
                (at.into(), at.begins)
            }
        };
        reader.move_to(position);
        Ok(Events {
            begins,
            ..Events::of(run, self, Source::Journal(reader))
        })
    }

    /// Where a run's events are, once that is known.
    async fn events_place(&self, run: RunId) -> Result<EventsPlace, CallError> {
        let Some(handle) = self.shared.find(run) else {
            return Ok(EventsPlace::Whole(None));
        };
        let has_ended = |live: &Live| live.hub.is_none() && live.view.outcome.is_some();
        let known =
            |live: &Live| live.hub.is_some() || live.no_journal || live.over || has_ended(live);
        let mut live = handle.live.clone();
        let Ok(live) = live.wait_for(known).await.map(|live| live.clone()) else {
            return Ok(EventsPlace::Whole(None));
        };
        if !live.over && has_ended(&live) {
            return Ok(EventsPlace::Whole(Some(Box::new(live.view))));
        }
        if !live.over && live.no_journal {
            let why = io::Error::other("it could not be opened when this server took the run over");
            return Err(unreadable(run, &why));
        }
        Ok(match live.hub {
            Some(hub) => EventsPlace::Growing(Box::new(live.view), hub),
            None => EventsPlace::Whole(None),
        })
    }
}

/// A position beyond the run's last event.
pub(crate) fn ahead(run: RunId, asked: u64, head: u64) -> CallError {
    CallError::CursorAhead { run, asked, head }
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
