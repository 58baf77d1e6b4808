//! Source of a run's events: the growing journal, the journal that is left, or the row alone.

use super::{Events, Source, after, is_ahead, unreadable};
use crate::{
    base::{
        blocking::blocking,
        calls::{CallError, Kinds, Payload, Position, Reached, RunView},
        event,
        view::Live,
    },
    registry::Supervisor,
    streams::by_row::{ByRow, RowEvents, ahead},
};
use kennel_journal::{Form, GapReason, Hub, Point, Position as JournalPosition, Reader};
use kennel_keeper::rundir;
use kennel_lifecycle::{Entry, RunId, RunState};
use kennel_store::{EntriesText, RunRow};
use std::{io, sync::Arc};

/// Place of a run's events.
enum EventsPlace {
    /// The journal that its task writes.
    Growing(Box<RunView>, Hub),
    /// The journal that is left of it. With the run as its task knows it, where it still has one: the store may be
    /// unavailable, and know less.
    Whole(Option<Box<RunView>>),
}

impl Supervisor {
    /// Returns the run in its present state, and its events from a position on. The last seq at this moment is
    /// [`Events::head`].
    pub async fn events(&self, run: RunId, from: Position) -> Result<(RunView, Events), CallError> {
        let (view, entries) = match self.events_place(run).await? {
            EventsPlace::Growing(view, hub) => {
                // Events reported by a server that died before it opened the run's gate come again with the run's next
                // Spawn.
                if is_ahead(from, hub.head())
                    && view.state == RunState::Starting
                    && let Some(handle) = self.shared.find(run)
                {
                    let has_begun =
                        |live: &Live| live.over || live.view.state != RunState::Starting;
                    drop(handle.live.clone().wait_for(has_begun).await);
                    return Box::pin(self.events(run, from)).await;
                }
                let reader = hub.read_from(hub.head().into());
                let reader = reader.map_err(|e| unreadable(run, &e))?;
                let mut events = self.reading_from(run, reader, from).await?;
                events.hub = Some(hub);
                return Ok((*view, events));
            }
            EventsPlace::Whole(Some(view)) => {
                let row = self.shared.record.pending_end(run);
                (*view, row.and_then(|row| row.entries))
            }
            EventsPlace::Whole(None) => parts(self.row(run).await?),
        };
        let reason = match view.output_removed {
            Some(_) => GapReason::Retention,
            None if view.node != self.shared.config.node => GapReason::OtherNode,
            None => return self.events_of_journal(view, entries, from).await,
        };
        let row = RowEvents::of(&view, entries.as_ref());
        let row = row.map(|row| ByRow::from(row, reason, from)).transpose()?;
        if let Some(row) = row.flatten() {
            return Ok((view, Events::of(run, self, Source::Row(Box::new(row)))));
        }
        self.refuse_unless_here(&view).await?;
        self.events_of_journal(view, entries, from).await
    }

    /// Returns the lines of these streams as plain text, from the event after this seq on; 0: from the first.
    pub(crate) async fn lines(
        &self,
        run: RunId,
        after: u64,
        streams: [bool; 2],
        line_bytes_max: u32,
    ) -> Result<Events, CallError> {
        let from = match after {
            0 => Position::Beginning,
            seq => Position::After(Reached {
                seq,
                ..Reached::default()
            }),
        };
        let form = Form {
            plain: true,
            lines: true,
            line_bytes_max,
        };
        let kinds = Kinds {
            output: streams,
            ..Kinds::NONE
        };
        let (_, events) = self.events(run, from).await?;
        Ok(events.viewed(form, None).await?.of_kinds(kinds))
    }

    /// Opens the events by the row of a run whose journal cannot be read: it was removed since the row was read, or is
    /// damaged.
    pub(super) async fn without_journal(
        &self,
        run: RunId,
        from: Position,
        error: &io::Error,
    ) -> Result<(RunView, ByRow), CallError> {
        let is_gone = error.kind() == io::ErrorKind::NotFound;
        if !is_gone && !is_damage(error) {
            return Err(unreadable(run, error));
        }
        let (view, entries) = parts(self.row(run).await?);
        let is_removed = view.output_removed.is_some();
        let row = RowEvents::of(&view, entries.as_ref());
        // While work remains for the run, its damaged journal is still to be repaired.
        if !is_removed && self.shared.record.is_unfinished(run) {
            return Err(unreadable(run, error));
        }
        let reason = if is_removed {
            GapReason::Retention
        } else {
            tracing::warn!(run_id = %run, %error, "cannot read the journal of an ended run, using its row");
            GapReason::Damaged
        };
        let row = row.map(|row| ByRow::from(row, reason, from)).transpose()?;
        let row = row.flatten().ok_or_else(|| unreadable(run, error))?;
        Ok((view, row))
    }

    /// Opens the events by the row of a run whose journal cannot be read, as [`Self::without_journal`].
    async fn events_of_row(
        &self,
        run: RunId,
        from: Position,
        error: &io::Error,
    ) -> Result<(RunView, Events), CallError> {
        let (view, row) = self.without_journal(run, from, error).await?;
        Ok((view, Events::of(run, self, Source::Row(Box::new(row)))))
    }

    /// Opens the events of a run that no task writes any more and that has its journal.
    async fn events_of_journal(
        &self,
        view: RunView,
        entries: Option<EntriesText>,
        from: Position,
    ) -> Result<(RunView, Events), CallError> {
        let run = view.run;
        let dir = rundir::path(&self.shared.config.data_dir, run);
        let row = RowEvents::of(&view, entries.as_ref());
        // Reading the whole index may take long. While work remains for a run, its end may still be unwritten.
        let is_closed = view.outcome.is_some() && !self.shared.record.is_unfinished(run);
        let at = dir.clone();
        let opened = blocking(move || {
            let from = JournalPosition::default();
            if is_closed {
                Reader::open_closed(&at, from)
            } else {
                Reader::open_ended(&at, from)
            }
        })
        .await;
        let is_gone = |opened: &io::Result<_>| matches!(opened, Err(e) if e.kind() == io::ErrorKind::NotFound);
        let opened = opened.flatten();
        // The journal of a run without output was never made: its row has all events.
        let silent = row.as_ref().filter(|_| is_gone(&opened));
        if let Some(silent) = silent.and_then(|row| row.of_silence(&dir)) {
            let reader = silent.map_err(|e| unreadable(run, &e))?;
            return Ok((view, self.reading_from(run, reader, from).await?));
        }
        let reader = match opened {
            Ok(reader) => reader,
            Err(error) if error.kind() == io::ErrorKind::NotFound && view.identity.is_none() => {
                after(run, from, Point::default())?;
                return Ok((view, Events::of(run, self, Source::Nothing)));
            }
            Err(error) => return self.events_of_row(run, from, &error).await,
        };
        let row = row.filter(|_| is_closed);
        let Some(row) = row.map(Arc::new) else {
            return Ok((view, self.reading_from(run, reader, from).await?));
        };
        let last = match last_event(run, &reader).await {
            Ok(last) => last,
            // The opened journal was removed since.
            Err(error) => return self.events_of_row(run, from, &error).await,
        };
        let has_end = matches!(last, Some(Payload::Lifecycle(Entry::Ended(_))));
        // If the end's position is damaged, the reader meets the end there.
        let is_in_place =
            matches!(last, None | Some(Payload::Gap(_))) && row.ends_at(reader.end().seq);
        let events = if has_end || is_in_place {
            self.reading_from(run, reader, from).await?
        } else {
            tracing::warn!(run_id = %run, "the journal lost the end of the run: files in its directory are damaged");
            self.without_end(Arc::clone(&row), reader, from).await?
        };
        let events = Events {
            row: Some(row),
            is_end_lost: !has_end,
            ..events
        };
        Ok((view, events))
    }

    /// Opens the events of a journal that has lost the run's end.
    async fn without_end(
        &self,
        row: Arc<RowEvents>,
        reader: Reader,
        from: Position,
    ) -> Result<Events, CallError> {
        let run = row.run();
        let lost = ByRow::behind(row, reader.end(), reader.seq_bound());
        Ok(match from {
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
        })
    }

    /// Makes the reader at this position.
    async fn reading_from(
        &self,
        run: RunId,
        mut reader: Reader,
        from: Position,
    ) -> Result<Events, CallError> {
        let (position, begins) = match from {
            Position::Tail(tail) => {
                let begin = match reader.tail(tail).await {
                    Ok(begin) => begin,
                    Err(error) => return Ok(self.events_of_row(run, from, &error).await?.1),
                };
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

    /// Waits until the place of a run's events is known.
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

fn parts(mut row: RunRow) -> (RunView, Option<EntriesText>) {
    let entries = row.entries.take();
    (row.into(), entries)
}

/// Whether the error shows files that were cut or changed.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

/// Returns the last event of a journal; absent: it has none, or that cannot be read. The journal of an ended run is
/// closed with the run's end: one with another last event was cut, or parts of it were removed.
async fn last_event(run: RunId, reader: &Reader) -> io::Result<Option<Payload>> {
    let Some(before) = reader.end().seq.checked_sub(1) else {
        return Ok(None);
    };
    let mut last = reader.clone();
    last.move_to(JournalPosition {
        seq: before,
        lens: None,
    });
    let items = last.next(usize::MAX).await?.into_iter().flatten();
    let event = items.last().map(|item| event::decode(run, item));
    Ok(event.and_then(Result::ok).map(|event| event.payload))
}
