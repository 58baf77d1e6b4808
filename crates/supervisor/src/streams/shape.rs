//! Form of a run's output for a reader: unchanged, without escape sequences, or by lines.

use crate::base::{
    KINDS,
    calls::{Event, Payload},
};
use kennel_journal::{Form, Item, Kind, LineBegins, Piece, Position, Reader, View};
use kennel_lifecycle::Entry;
use std::io;

/// Bytes of output fed again at a time, to find the start of a line.
const FED_AGAIN_BYTES: u64 = 1 << 20;
/// Bytes of entries searched at a time.
const FACTS_BYTES: usize = 64 * 1024;

/// Converts each event to the form that the reader requests.
#[derive(Debug)]
pub(crate) struct Shape {
    form: Form,
    /// One for each stream; absent: its position is not known before the stream's next bytes.
    views: [Option<View>; 2],
}

impl Shape {
    /// Continues at the position of a reader; that includes where its views must be fed from, if known. For a stream
    /// that is given from an offset behind the position on, the view begins there.
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
            // Without lines the view has no earlier offset to return to.
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

    /// Makes a shape for events without bytes: all output that is not given is missing.
    pub(crate) fn of_nothing(form: Form) -> Self {
        let views = [None, None];
        Self { form, views }
    }

    /// Returns the offsets from which views must be fed to continue behind the last shaped event.
    pub(crate) fn fed_from(&self) -> Option<[u64; 2]> {
        let [stdout, stderr] = &self.views;
        Some([stdout.as_ref()?.resumes_at(), stderr.as_ref()?.resumes_at()])
    }

    /// Returns the unfinished line of a stream: its offset, and its bytes so far.
    pub(crate) fn unfinished(&self, stream: u8) -> Option<(u64, &[u8])> {
        let view = self.views.get(usize::from(stream) - 1)?;
        Some(view.as_ref()?.unfinished())
    }

    /// Converts an event: into several of the same seq, or into nothing yet.
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
                // Remaining text gets the seq before the gap, the last known one.
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

/// Whether an entry says that no output of its attempt follows.
fn ends_streams(line: &Entry) -> bool {
    matches!(
        line,
        Entry::StreamsClosed(_) | Entry::AttemptEnded { .. } | Entry::Ended(_)
    )
}

/// Finds the offsets of the streams and their lines at the reader's position. The last line of an ended stream was
/// given with its end.
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
                // An entry that cannot be read is skipped: readers get the error when they reach it.
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

/// Makes a view that was fed with these bytes of a stream, all of which was given before.
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
