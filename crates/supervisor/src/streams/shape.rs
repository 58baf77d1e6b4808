//! A run's events as a reader wants their output: whole, without escape sequences, or by lines.

use crate::base::{
    KINDS,
    calls::{Event, Payload},
};
use kennel_journal::{Form, Item, Kind, LineBegins, Piece, Position, Reader, View};
use kennel_lifecycle::Entry;
use std::io;

/// Output that is fed again to learn where a line stands, at a time.
const FED_AGAIN_BYTES: u64 = 1 << 20;
/// Facts that are looked through, at a time.
const FACTS_BYTES: usize = 64 * 1024;

/// Makes of each event what the reader wants of it.
#[derive(Debug)]
pub(crate) struct Shape {
    form: Form,
    /// One for each stream; absent: where it stands is not known before the next of its bytes.
    views: [Option<View>; 2],
}

impl Shape {
    /// From the reader's position on, as one goes on that has come there; it was told from where its views must be fed,
    /// unless it was not. Of a stream that is given from an offset behind the position on, the view begins there.
    pub(crate) async fn at(
        form: Form,
        reader: &Reader,
        fed_from: Option<[u64; 2]>,
        given_from: Option<[u64; 2]>,
    ) -> io::Result<Self> {
        let at = reader.position();
        let known = match (at.lens, fed_from) {
            _ if at.seq == 0 => Some(([0; 2], [0; 2])),
            (Some(lens), _)
                if given_from.is_some_and(|from| from[0] >= lens[0] && from[1] >= lens[1]) =>
            {
                Some((lens, lens))
            }
            (Some(lens), Some(begins)) => Some((lens, begins)),
            // There is no line to go back to.
            (Some(lens), None) if !form.lines => Some((lens, lens)),
            _ => looked_up(reader, form.line_bytes_max).await?,
        };
        let Some((mut lens, mut begins)) = known else {
            let views = [None, None];
            return Ok(Self { form, views });
        };
        for (stream, from) in given_from.into_iter().flatten().enumerate() {
            if from >= lens[stream] {
                (lens[stream], begins[stream]) = (from, from);
            }
        }
        let [stdout, stderr] = KINDS;
        let stdout = fed(form, reader, stdout, begins[0], lens[0]).await?;
        let stderr = fed(form, reader, stderr, begins[1], lens[1]).await?;
        let views = [Some(stdout), Some(stderr)];
        Ok(Self { form, views })
    }

    /// Where there are no bytes to be shaped: all that is not told is missing.
    pub(crate) fn of_nothing(form: Form) -> Self {
        let views = [None, None];
        Self { form, views }
    }

    /// From where views must be fed to go on behind what was shaped last.
    pub(crate) fn fed_from(&self) -> Option<[u64; 2]> {
        let [stdout, stderr] = &self.views;
        Some([stdout.as_ref()?.resumes_at(), stderr.as_ref()?.resumes_at()])
    }

    /// The line of a stream that has not ended: where it begins, and what there is of it.
    pub(crate) fn unfinished(&self, stream: u8) -> Option<(u64, &[u8])> {
        let view = self.views.get(usize::from(stream) - 1)?;
        Some(view.as_ref()?.unfinished())
    }

    /// What becomes of an event: several of the same seq, or nothing yet.
    pub(crate) fn shape(&mut self, event: Event, into: &mut Vec<Event>) {
        match &event.payload {
            Payload::Output {
                stream,
                offset,
                data,
            } => {
                let (stream, offset) = (*stream, *offset);
                let Some(view) = self.views.get_mut(usize::from(stream) - 1) else {
                    return;
                };
                let view = view.get_or_insert_with(|| View::new(self.form, offset));
                let pieces = view.feed(data);
                self.give(&event, stream, pieces, into);
            }
            Payload::Gap(gap) => {
                let ends = gap.ends;
                // Of the last event before it: so much is known there.
                let before = Event {
                    seq: gap.first_seq - 1,
                    ..event.clone()
                };
                for (stream, end) in (1..).zip(ends) {
                    let next = View::new(self.form, end);
                    let view = self.views[usize::from(stream) - 1].replace(next);
                    let pieces = view.map(|mut view| view.finish()).unwrap_or_default();
                    let cut = |piece| Piece {
                        is_cut: true,
                        ..piece
                    };
                    self.give(&before, stream, pieces.into_iter().map(cut).collect(), into);
                }
                into.push(event);
            }
            Payload::Lifecycle(line) => {
                if ends_streams(line) {
                    for stream in [1, 2] {
                        let view = self.views[usize::from(stream) - 1].as_mut();
                        let pieces = view.map(View::finish).unwrap_or_default();
                        self.give(&event, stream, pieces, into);
                    }
                }
                into.push(event);
            }
            Payload::Line { .. } => into.push(event),
        }
    }

    fn give(&self, event: &Event, stream: u8, pieces: Vec<Piece>, into: &mut Vec<Event>) {
        let event_of = |piece: Piece| {
            let Piece {
                offset,
                data,
                is_cut,
            } = piece;
            let payload = if self.form.lines {
                Payload::Line {
                    stream,
                    offset,
                    text: data,
                    is_cut,
                }
            } else {
                Payload::Output {
                    stream,
                    offset,
                    data: data.into(),
                }
            };
            Event {
                seq: event.seq,
                attempt: event.attempt,
                at: event.at,
                payload,
            }
        };
        into.extend(pieces.into_iter().map(event_of));
    }
}

/// Whether a line tells that no output of its attempt follows.
fn ends_streams(line: &Entry) -> bool {
    matches!(
        line,
        Entry::StreamsClosed(_) | Entry::AttemptEnded { .. } | Entry::Ended(_)
    )
}

/// Where the streams and their lines are at the reader's position. One whose end was told was given with it.
async fn looked_up(
    reader: &Reader,
    line_bytes_max: u32,
) -> io::Result<Option<([u64; 2], [u64; 2])>> {
    let seq = reader.position().seq;
    let Some(found) = reader.line_begins(line_bytes_max).await? else {
        return Ok(None);
    };
    let LineBegins { lens, begins, .. } = found;
    let mut facts = reader.clone();
    facts.move_to(Position {
        seq: found.output_seq,
        lens: None,
    });
    while facts.position().seq < seq {
        let Some(items) = facts.next(FACTS_BYTES).await? else {
            break;
        };
        for item in items.iter().filter(|item| item.last_seq() <= seq) {
            let is_end = match item {
                Item::Gap(_) => true,
                // A line that cannot be read says nothing; readers are told so when they come to it.
                Item::Entry(entry) => {
                    serde_json::from_slice(&entry.data).is_ok_and(|line| ends_streams(&line))
                }
            };
            if is_end {
                return Ok(Some((lens, lens)));
            }
        }
    }
    Ok(Some((lens, begins)))
}

/// A view that was fed with these bytes of a stream, all of which was given before.
async fn fed(form: Form, reader: &Reader, kind: Kind, begin: u64, end: u64) -> io::Result<View> {
    let mut at = begin;
    let mut view = View::new(form, at);
    while at < end {
        let stretch = reader.bytes(kind, at, end, FED_AGAIN_BYTES).await?;
        if stretch.data.is_empty() {
            return Ok(View::new(form, end));
        }
        if stretch.offset != at {
            view = View::new(form, stretch.offset);
        }
        view.feed(&stretch.data);
        at = stretch.offset + stretch.data.len() as u64;
    }
    Ok(view)
}
