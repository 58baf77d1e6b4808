//! Reads output by its offset: a part of a stream, its end, or both its ends.

use crate::{
    base::{
        KINDS,
        calls::{CallError, Position},
    },
    registry::Supervisor,
    streams::events::unreadable,
};
use bytes::Bytes;
use kennel_journal::{Form, Kind, LINE_BYTES_MAX, Piece, Reader, View};
use kennel_lifecycle::{OutputRemoval, RunId};
use std::io;

/// Distance for which an escape sequence is followed that the range cuts; none is longer.
const SEQUENCE_BYTES_MAX: u64 = 65 * 1024;

const PLAIN: Form = Form {
    plain: true,
    lines: false,
    line_bytes_max: LINE_BYTES_MAX,
};

/// Selects output to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputCall {
    /// Id of the run.
    pub run: RunId,
    /// 1: standard output, 2: standard error.
    pub stream: u8,
    /// Part of the stream.
    pub range: OutputRange,
    /// Whether escape sequences and control characters are removed.
    pub plain: bool,
}

/// A part of a stream, in bytes as they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputRange {
    /// The first available bytes from this offset on.
    From {
        /// Offset of the first byte.
        offset: u64,
        /// Most bytes.
        bytes_max: u64,
    },
    /// The first bytes and the last ones.
    Ends {
        /// Number of first bytes.
        head: u64,
        /// Number of last bytes.
        tail: u64,
    },
}

/// Output of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputRead {
    /// Available and missing parts, in order.
    pub parts: Vec<OutputPart>,
    /// Offset at which a later call continues.
    pub next_offset: u64,
    /// Present length of the stream in bytes.
    pub end_offset: u64,
    /// Whether the run has ended: the stream does not grow any more.
    pub is_final: bool,
    /// Removal of all output after the run's end.
    pub removed: Option<OutputRemoval>,
    /// Whether the journal of the ended run has lost its end: how much more was written is not known.
    pub end_lost: bool,
}

/// A part of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// Bytes.
    Bytes {
        /// Offset in the stream of the first.
        offset: u64,
        /// The bytes, or their plain text.
        data: Bytes,
    },
    /// Bytes that are not in the result.
    Missing {
        /// Offset in the stream of the first.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Reason.
        why: Missing,
    },
}

/// Reason why bytes are not in a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// They were not requested.
    NotAsked,
    /// They are not retained any more.
    Removed,
    /// They cannot be read: files of the journal are damaged.
    Damaged,
}

impl Supervisor {
    /// Returns the present output of a run.
    pub async fn read_output(&self, call: OutputCall) -> Result<OutputRead, CallError> {
        match self.read_output_there(call).await {
            // The journal may have been removed during the read, which the row then shows.
            Err(CallError::JournalUnreadable { .. }) => self.read_output_there(call).await,
            read => read,
        }
    }

    async fn read_output_there(&self, call: OutputCall) -> Result<OutputRead, CallError> {
        let run = call.run;
        let (view, events) = self.events(run, Position::LiveOnly).await?;
        self.refuse_unless_here(&view).await?;
        let is_final = view.outcome.is_some();
        let lens = events.head_lens();
        let stream = usize::from(call.stream).checked_sub(1);
        let Some((kind, end)) = stream.and_then(|at| Some((KINDS.get(at)?, *lens.get(at)?))) else {
            return Err(CallError::Internal(format!("stream {}", call.stream)));
        };
        if let OutputRange::From { offset, .. } = call.range
            && offset > end
        {
            return Err(CallError::OffsetAhead {
                run,
                asked: offset,
                end,
            });
        }
        let mut read = OutputRead {
            end_offset: end,
            next_offset: end,
            is_final,
            removed: view.output_removed,
            end_lost: events.has_lost_end(),
            ..OutputRead::default()
        };
        let Some(reader) = events.into_reader() else {
            let begin = match call.range {
                OutputRange::From { offset, .. } => offset,
                OutputRange::Ends { .. } => 0,
            };
            if begin < end {
                read.parts.push(OutputPart::Missing {
                    offset: begin,
                    bytes: end - begin,
                    why: match read.removed {
                        Some(_) => Missing::Removed,
                        None => Missing::Damaged,
                    },
                });
            }
            return Ok(read);
        };
        let mut source = Source {
            readable: reader.end().lens[usize::from(call.stream) - 1],
            reader,
            kind: *kind,
            end,
            is_final,
            plain: call.plain,
            parts: Vec::new(),
        };
        let done = match call.range {
            OutputRange::From { offset, bytes_max } => source.from(offset, bytes_max).await,
            OutputRange::Ends { head, tail } => source.ends(head, tail).await,
        };
        read.next_offset = done.map_err(|e| unreadable(run, &e))?;
        read.parts = source.parts;
        Ok(read)
    }
}

/// A stream that is being read.
struct Source {
    reader: Reader,
    kind: Kind,
    /// Length of the stream by the journal: beyond it, the journal has lost the rest.
    readable: u64,
    end: u64,
    is_final: bool,
    plain: bool,
    parts: Vec<OutputPart>,
}

impl Source {
    /// Reads both ends. Returns the offset at which to continue.
    async fn ends(&mut self, head: u64, tail: u64) -> io::Result<u64> {
        let head = head.min(self.end);
        let tail_begins = self.end.saturating_sub(tail).max(head);
        self.range(0, head).await?;
        if tail_begins > head {
            self.parts.push(OutputPart::Missing {
                offset: head,
                bytes: tail_begins - head,
                why: Missing::NotAsked,
            });
        }
        self.range(tail_begins, self.end).await?;
        Ok(self.end)
    }

    /// Reads all bytes between two offsets.
    async fn range(&mut self, begin: u64, end: u64) -> io::Result<()> {
        let (_, view) = self.read(begin, end, u64::MAX).await?;
        self.finish(view);
        Ok(())
    }

    /// Reads so many available bytes from an offset on. Returns the offset at which to continue.
    async fn from(&mut self, offset: u64, bytes_max: u64) -> io::Result<u64> {
        let (mut at, view) = self.read(offset, self.end, bytes_max).await?;
        let Some(mut view) = view else {
            return Ok(at);
        };
        let begun = view.resumes_at();
        if begun < at {
            at = self.rest_of_sequence(&mut view, at).await?;
            // An unfinished sequence may continue: a repeated call begins at its start.
            if view.resumes_at() < at && !self.is_final {
                return Ok(begun);
            }
        }
        self.finish(Some(view));
        Ok(at)
    }

    /// Reads so many available bytes between two offsets. Returns the offset reached, and the plain text.
    async fn read(
        &mut self,
        begin: u64,
        end: u64,
        bytes_max: u64,
    ) -> io::Result<(u64, Option<View>)> {
        let (mut at, mut left, mut view) = (begin, bytes_max, None);
        while at < end && left > 0 {
            let stretch = self.reader.bytes(self.kind, at, end, left).await?;
            let len = stretch.data.len() as u64;
            let found = match len {
                0 if at < self.readable => end.min(self.readable),
                0 => end,
                _ => stretch.offset,
            };
            if found > at {
                self.finish(view.take());
                self.parts.push(OutputPart::Missing {
                    offset: at,
                    bytes: found - at,
                    why: if stretch.after_damage || at >= self.readable {
                        Missing::Damaged
                    } else {
                        Missing::Removed
                    },
                });
            }
            if self.plain {
                let view = view.get_or_insert_with(|| View::new(PLAIN, found));
                let text = view.feed(&stretch.data);
                self.give(text);
            } else if len > 0 {
                self.parts.push(OutputPart::Bytes {
                    offset: found,
                    data: stretch.data,
                });
            }
            at = found + len;
            left -= len;
        }
        Ok((at, view))
    }

    /// Feeds the rest of a sequence, byte for byte, and nothing behind it. Returns the offset reached.
    async fn rest_of_sequence(&mut self, view: &mut View, mut at: u64) -> io::Result<u64> {
        let (kind, end) = (self.kind, self.end);
        let stretch = self.reader.bytes(kind, at, end, SEQUENCE_BYTES_MAX).await?;
        if stretch.offset != at {
            return Ok(at);
        }
        for byte in stretch.data {
            if view.resumes_at() == at {
                break;
            }
            self.give(view.feed(&[byte]));
            at += 1;
        }
        Ok(at)
    }

    fn finish(&mut self, view: Option<View>) {
        if let Some(mut view) = view {
            self.give(view.finish());
        }
    }

    fn give(&mut self, pieces: Vec<Piece>) {
        let bytes = |Piece { offset, data, .. }| OutputPart::Bytes {
            offset,
            data: data.into(),
        };
        self.parts.extend(pieces.into_iter().map(bytes));
    }
}
