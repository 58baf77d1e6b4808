//! Events of an ended run by its row, where its journal does not have them: its entries, exact gaps in the place of its
//! output, and its end.

use crate::base::{
    calls::{CallError, Event, Payload, Position, Reached, RunView},
    event,
};
use kennel_journal::{Gap, GapReason, LateFact, Point, Reader};
use kennel_lifecycle::{Entry, RunId, Timestamp};
use kennel_store::{EntriesText, RunEntries};
use std::{io, path::Path, sync::Arc};

/// Events of an ended run that its row has.
#[derive(Debug)]
pub(crate) struct RowEvents {
    run: RunId,
    /// Entries in their order, each with the lengths of the streams before it; the last is the run's end, if the row
    /// has its position.
    listed: Vec<(Event, [u64; 2])>,
    /// The run's last event.
    end: Event,
    /// Position of the end; absent: the row does not have it.
    pub(super) at: Option<Point>,
    /// Whether lengths give the exact number of output bytes.
    counted: bool,
}

/// The events after a position, by the row alone.
#[derive(Clone, Debug)]
pub(crate) struct ByRow {
    events: Arc<RowEvents>,
    /// Reason why output is missing.
    reason: GapReason,
    end: Point,
    /// Whether the end is where the row has it, so that lengths up to it give the number of output bytes.
    counted: bool,
    at: Reached,
}

impl RowEvents {
    /// Reads the row of this run; absent: it has not ended.
    pub(crate) fn of(view: &RunView, entries: Option<&EntriesText>) -> Option<Self> {
        let outcome = view.outcome.as_ref()?;
        let read = entries.map(EntriesText::read).transpose();
        let read = read.unwrap_or_else(|why| {
            tracing::error!(run_id = %view.run, %why, "cannot read the entries in the row of a run");
            None
        });
        let removal = view.output_removed;
        let of_removal = removal.map(|removal| Point {
            seq: removal.seq,
            lens: removal.lens,
        });
        let of_entries = read.as_ref().and_then(|read| read.end);
        let of_entries = of_entries.map(|end| Point {
            seq: end.seq,
            lens: end.lens,
        });
        let at = of_removal.or(of_entries);
        let is_counted = read.as_ref().is_none_or(|read| read.counted);
        let counted = at.is_some() && is_counted && removal.is_none_or(|removal| removal.counted);
        let end = Event {
            seq: at.map_or(0, |at| at.seq),
            attempt: view.attempt,
            at: view.times.ended.unwrap_or(Timestamp(0)),
            payload: Payload::Lifecycle(Entry::Ended(Box::new(outcome.clone()))),
        };
        let mut listed = read.map_or_else(Vec::new, listed);
        listed.extend(at.map(|at| (end.clone(), at.lens)));
        Some(Self {
            run: view.run,
            listed,
            end,
            at,
            counted,
        })
    }

    /// Makes a reader of all events, where the row has them: the run wrote nothing.
    pub(crate) fn of_silence(&self, dir: &Path) -> Option<io::Result<Reader>> {
        let is_whole = self.at.is_some_and(|at| {
            at.lens == [0; 2] && at.seq == self.listed.len() as u64 && at.seq > 0
        });
        let texts: Vec<String> = (self.listed.iter().filter(|_| is_whole))
            .filter_map(|(event, _)| match &event.payload {
                Payload::Lifecycle(entry) => Some(event::encode(entry)),
                _ => None,
            })
            .collect();
        let facts = self
            .listed
            .iter()
            .zip(&texts)
            .map(|((event, _), text)| LateFact {
                at: event.at,
                attempt: event.attempt,
                payload: text.as_bytes(),
            });
        let facts: Vec<_> = facts.collect();
        is_whole.then(|| Reader::of_facts(dir, &facts))
    }

    /// Whether this is the seq of the run's end.
    pub(crate) fn ends_at(&self, seq: u64) -> bool {
        self.at.is_some_and(|at| at.seq == seq)
    }

    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    /// Returns the event with this seq, where the row lists it.
    pub(crate) fn find(&self, seq: u64) -> Option<&Event> {
        let at = self
            .listed
            .binary_search_by_key(&seq, |(event, _)| event.seq);
        Some(&self.listed[at.ok()?].0)
    }

    /// Fills a gap: its entries in their places and smaller gaps between them.
    pub(crate) fn fill(&self, gap: Gap) -> Vec<Event> {
        let begin = self
            .listed
            .partition_point(|(event, _)| event.seq < gap.first_seq);
        let within = self.listed[begin..].iter();
        let last_seq = gap.last_seq;
        let within = within.take_while(|(event, _)| event.seq <= last_seq);
        let mut events = Vec::new();
        let mut left = gap;
        for (event, before) in within {
            let (piece, rest) = self.cut(&left, event, *before);
            events.extend(piece.map(of_gap));
            events.push(event.clone());
            left = rest;
        }
        if left.first_seq <= left.last_seq {
            events.push(of_gap(left));
        }
        events
    }

    /// Splits a gap at an entry: the part before it, if any, and the part behind it.
    fn cut(&self, gap: &Gap, event: &Event, before: [u64; 2]) -> (Option<Gap>, Gap) {
        let mut piece = Gap {
            last_seq: event.seq - 1,
            at: event.at,
            attempt: event.attempt,
            ..gap.clone()
        };
        let mut rest = Gap {
            first_seq: event.seq + 1,
            ..gap.clone()
        };
        for (stream, before) in before.into_iter().enumerate() {
            let end = rest.ends[stream];
            let begin = rest.bytes[stream].map(|bytes| end.saturating_sub(bytes));
            let before = before.clamp(begin.unwrap_or(0).min(end), end);
            piece.ends[stream] = before;
            piece.bytes[stream] = begin.map(|begin| before - begin);
            rest.bytes[stream] = self.counted.then_some(end - before);
        }
        let has_piece = piece.first_seq <= piece.last_seq;
        (has_piece.then_some(piece), rest)
    }
}

fn listed(read: RunEntries) -> Vec<(Event, [u64; 2])> {
    let event = |listed: kennel_store::RunEntry| {
        let event = Event {
            seq: listed.place.seq,
            attempt: listed.place.attempt,
            at: listed.place.at,
            payload: Payload::Lifecycle(listed.entry),
        };
        (event, listed.place.lens)
    };
    read.entries.into_iter().map(event).collect()
}

fn of_gap(gap: Gap) -> Event {
    Event {
        seq: gap.last_seq,
        attempt: gap.attempt,
        at: gap.at,
        payload: Payload::Gap(gap),
    }
}

impl ByRow {
    /// Makes the events of a run without a journal, from a position on; absent: the row does not have the position of
    /// its end.
    pub(crate) fn from(
        events: RowEvents,
        reason: GapReason,
        from: Position,
    ) -> Result<Option<Self>, CallError> {
        let Some(end) = events.at else {
            return Ok(None);
        };
        let begun = Some([0; 2]);
        let at = match from {
            // No output remains from which a tail could begin.
            Position::Beginning | Position::Tail(_) => Reached {
                lens: begun,
                ..Reached::default()
            },
            Position::LiveOnly => reached(end),
            Position::After(at) if at.seq > end.seq => {
                return Err(ahead(events.run, at.seq, end.seq));
            }
            Position::After(at) if at.seq == 0 => Reached { lens: begun, ..at },
            Position::After(at) => at,
        };
        Ok(Some(Self {
            counted: events.counted,
            events: Arc::new(events),
            reason,
            end,
            at,
        }))
    }

    /// Makes the events that a journal without its end does not have; the journal ends here, and no seq has passed the
    /// bound.
    pub(crate) fn behind(events: Arc<RowEvents>, head: Point, seq_bound: u64) -> Self {
        let beyond = |at: &Point| at.seq > head.seq;
        let end = events.at.filter(beyond);
        Self {
            counted: events.counted && end.is_some(),
            events,
            reason: GapReason::Damaged,
            // The end's seq exceeds all given seqs: no seq is reused.
            end: end.unwrap_or(Point {
                seq: seq_bound + 1,
                lens: head.lens,
            }),
            at: reached(head),
        }
    }

    /// Continues from the position of a reader.
    pub(crate) fn after(mut self, at: Reached) -> Self {
        self.at = at;
        self
    }

    pub(crate) fn at(&self) -> Reached {
        self.at
    }

    /// Returns the seq of the run's last event.
    pub(crate) fn seq(&self) -> u64 {
        self.end.seq
    }

    /// Returns the lengths of the two streams.
    pub(crate) fn lens(&self) -> [u64; 2] {
        self.end.lens
    }

    /// Returns all remaining events; `None`: all were given.
    pub(crate) fn next(&mut self) -> Option<Vec<Event>> {
        let Point { seq, lens } = self.end;
        if self.at.seq >= seq {
            return None;
        }
        let end = Event {
            seq,
            ..self.events.end.clone()
        };
        let mut events = Vec::new();
        if self.at.seq + 1 < seq {
            let known = self.at.lens.filter(|_| self.counted);
            let missing = |stream: usize| Some(lens[stream].saturating_sub(known?[stream]));
            events = self.events.fill(Gap {
                first_seq: self.at.seq + 1,
                last_seq: seq - 1,
                bytes: [missing(0), missing(1)],
                ends: lens,
                reason: self.reason,
                at: end.at,
                attempt: end.attempt,
            });
        }
        events.push(end);
        self.at = reached(self.end);
        Some(events)
    }
}

fn reached(at: Point) -> Reached {
    kennel_journal::Position::from(at).into()
}

/// Makes the error of a position beyond the run's last event.
pub(crate) fn ahead(run: RunId, asked: u64, head: u64) -> CallError {
    CallError::CursorAhead { run, asked, head }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries at these seqs, each behind so many bytes of stdout.
    fn row(listed: &[(u64, u64)], end: Option<(u64, u64)>, counted: bool) -> RowEvents {
        let event = |seq| Event {
            seq,
            attempt: 1,
            at: Timestamp(1),
            payload: Payload::Lifecycle(Entry::Started),
        };
        let listed = listed.iter().map(|(seq, len)| (event(*seq), [*len, 0]));
        RowEvents {
            run: RunId::from_u128(1),
            listed: listed.collect(),
            end: event(end.map_or(0, |(seq, _)| seq)),
            at: end.map(|(seq, len)| Point {
                seq,
                lens: [len, 0],
            }),
            counted,
        }
    }

    fn gap(first_seq: u64, last_seq: u64, bytes: Option<u64>, end: u64) -> Gap {
        Gap {
            first_seq,
            last_seq,
            bytes: [bytes, bytes.map(|_| 0)],
            ends: [end, 0],
            reason: GapReason::Damaged,
            at: Timestamp(2),
            attempt: 1,
        }
    }

    /// The result: a seq, or first and last of a gap with its bytes and the next offset of stdout.
    fn shown(events: &[Event]) -> Vec<String> {
        let show = |event: &Event| match &event.payload {
            Payload::Gap(gap) => {
                assert_eq!(event.seq, gap.last_seq);
                let bytes = gap.bytes[0].map_or("?".into(), |bytes| bytes.to_string());
                let (first, last, end) = (gap.first_seq, gap.last_seq, gap.ends[0]);
                format!("{first}-{last}: {bytes} to {end}")
            }
            _ => event.seq.to_string(),
        };
        events.iter().map(show).collect()
    }

    #[test]
    fn gap_is_split_at_known_entries() {
        let row = row(&[(1, 0), (2, 0), (5, 30), (8, 100), (12, 100)], None, true);
        let all = row.fill(gap(3, 11, Some(100), 100));
        assert_eq!(
            shown(&all),
            [
                "3-4: 30 to 30",
                "5",
                "6-7: 70 to 100",
                "8",
                "9-11: 0 to 100"
            ]
        );
        let none = row.fill(gap(3, 4, Some(30), 30));
        assert_eq!(shown(&none), ["3-4: 30 to 30"]);
        let only = row.fill(gap(5, 5, Some(0), 30));
        assert_eq!(shown(&only), ["5"]);
    }

    #[test]
    fn missing_bytes_before_an_entry_may_be_unknown() {
        let counted = row(&[(5, 30), (8, 100)], None, true);
        let all = counted.fill(gap(3, 9, None, 120));
        assert_eq!(
            shown(&all),
            ["3-4: ? to 30", "5", "6-7: 70 to 100", "8", "9-9: 20 to 120"]
        );
        let uncounted = row(&[(5, 30), (8, 100)], None, false);
        let all = uncounted.fill(gap(3, 9, None, 120));
        assert_eq!(
            shown(&all),
            ["3-4: ? to 30", "5", "6-7: ? to 100", "8", "9-9: ? to 120"]
        );
    }

    #[test]
    fn run_without_journal_is_read_from_any_position() {
        let from = |position| {
            let row = row(&[(1, 0), (4, 9)], Some((6, 11)), true);
            let given = ByRow::from(row, GapReason::Retention, position).unwrap();
            let mut given = given.expect("its end is known");
            let events = given.next();
            assert!(given.next().is_none() && given.at().seq == 6);
            shown(&events.unwrap_or_default())
        };
        let after = |seq, lens: Option<u64>| {
            Position::After(Reached {
                seq,
                lens: lens.map(|len| [len, 0]),
                ..Reached::default()
            })
        };
        let all = ["1", "2-3: 9 to 9", "4", "5-5: 2 to 11", "6"];
        assert_eq!(from(Position::Beginning), all);
        assert_eq!(from(after(0, None)), all);
        assert_eq!(
            from(after(2, Some(5))),
            ["3-3: 4 to 9", "4", "5-5: 2 to 11", "6"]
        );
        assert_eq!(
            from(after(2, None)),
            ["3-3: ? to 9", "4", "5-5: 2 to 11", "6"]
        );
        assert_eq!(from(after(5, None)), ["6"]);
        assert!(from(after(6, None)).is_empty() && from(Position::LiveOnly).is_empty());
        let row = row(&[(1, 0)], None, true);
        let unknown = ByRow::from(row, GapReason::Damaged, Position::Beginning);
        assert!(
            unknown.unwrap().is_none(),
            "the row does not say where its end is"
        );
    }

    #[test]
    fn end_missing_in_journal_keeps_its_seq() {
        let head = |seq| Point { seq, lens: [5, 0] };
        let lost = |end, head| {
            let row = Arc::new(row(&[(1, 0), (4, 9)], end, true));
            let mut given = ByRow::behind(row, head, 65_536).after(reached(head));
            shown(&given.next().unwrap())
        };
        assert_eq!(
            lost(Some((6, 11)), head(2)),
            ["3-3: 4 to 9", "4", "5-5: 2 to 11", "6"]
        );
        // The journal has more than the row says: no seq is reused.
        let above = lost(Some((6, 11)), head(7));
        assert_eq!(above, ["8-65536: ? to 5", "65537"]);
        assert_eq!(lost(None, head(2)).last().unwrap(), "65537");
    }
}
