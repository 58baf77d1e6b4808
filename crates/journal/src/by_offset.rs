//! The bytes of one stream by their offset, without regard to seqs, and the earliest beginning of a line.

use crate::{
    Point,
    log::{Log, Next, Span},
    segment::{Segment, slot},
};
use bytes::Bytes;
use std::{io, sync::Arc};

/// Contiguous bytes of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// Offset of the first of them in the whole of the stream.
    pub offset: u64,
    /// The bytes. Empty: there are none.
    pub data: Bytes,
    /// Whether bytes before them, or where there are none all requested ones, were written and cannot be read.
    pub after_damage: bool,
}

/// Beginnings of the unfinished lines at a position of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineBegins {
    /// Length of the streams before it.
    pub lens: [u64; 2],
    /// Offsets of the lines that have not ended there: not before the attempt. A line that is too long, or that begins
    /// before the known part, counts from the position.
    pub begins: [u64; 2],
    /// Seq of the last output before it, or an earlier one: only lifecycle entries lie between.
    pub output_seq: u64,
}

/// State before an entry, as far as its segment shows.
pub(crate) struct Before {
    pub(crate) lens: [u64; 2],
    output_seq: u64,
    /// Beginning of the entry's attempt, or of the segment.
    begin: [u64; 2],
    is_attempts: bool,
}

impl Log {
    /// Returns the first existing bytes of a stream between these offsets, as far as they are contiguous in one
    /// segment, at most so many.
    pub(crate) fn bytes(
        &self,
        stream: usize,
        (begin, end): (u64, u64),
        len_max: u64,
        head: Point,
    ) -> io::Result<Stretch> {
        let (mut begin, mut after_damage) = (begin, false);
        loop {
            let Some((next, offset, until)) = self.holder(stream, begin, end, head) else {
                return Ok(Stretch {
                    after_damage,
                    ..Stretch::default()
                });
            };
            let span_until = until;
            let mut until = until.min(offset.saturating_add(len_max));
            let read = match &next {
                Next::Span(number, _) => {
                    let segment = Segment::open(&self.dir, *number, false)
                        .and_then(|segment| segment.ok_or(io::ErrorKind::NotFound.into()));
                    match segment {
                        Ok(segment) => {
                            let raw = &segment.raw[stream];
                            let there = raw.end()?;
                            if self.is_closed() && there <= offset {
                                // These bytes are damaged: the next segment continues after them.
                                (begin, after_damage) = (span_until, true);
                                continue;
                            }
                            if self.is_closed() {
                                until = until.min(there);
                            }
                            raw.read(offset, until)
                        }
                        Err(error) => Err(error),
                    }
                }
                Next::Current(segment) => segment.raw[stream].read(offset, until),
                Next::Hole(..) | Next::Gone => return Ok(Stretch::default()),
            };
            match read {
                Ok(data) => {
                    return Ok(Stretch {
                        offset,
                        data,
                        after_damage,
                    });
                }
                // The segment was removed between the scan and the read.
                Err(_) if self.has_changed(&next)? => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the holder of the first bytes between these offsets, and their range.
    fn holder(&self, stream: usize, begin: u64, end: u64, head: Point) -> Option<(Next, u64, u64)> {
        let chain = self.chain.lock();
        let part = |first: Point, last: [u64; 2]| {
            let (from, to) = (first.lens[stream].max(begin), last[stream].min(end));
            (from < to).then_some((from, to))
        };
        let in_span = |span: &Span| {
            let (from, to) = part(span.first, span.there)?;
            Some((Next::Span(span.number, span.end.seq), from, to))
        };
        let in_current = || {
            let current = chain.current.as_ref()?;
            let (from, to) = part(current.header.first, head.lens)?;
            Some((Next::Current(Arc::clone(current)), from, to))
        };
        chain.spans.iter().find_map(in_span).or_else(in_current)
    }

    /// Returns the unfinished lines before the entry after this seq. Absent: they are not known any more.
    pub(crate) fn line_begins(
        &self,
        seq: u64,
        head: Point,
        line_bytes_max: u32,
    ) -> io::Result<Option<LineBegins>> {
        let most = u64::from(line_bytes_max);
        let Some(before) = self.before(seq)? else {
            return Ok(None);
        };
        let mut begins = before.lens;
        for (stream, begin) in begins.iter_mut().enumerate() {
            let len = before.lens[stream];
            let back = len.saturating_sub(most).max(before.begin[stream]);
            let reaches = before.is_attempts && back == before.begin[stream];
            let found = self.bytes(stream, (back, len), most, head)?;
            if found.offset + found.data.len() as u64 != len {
                continue;
            }
            match memchr::memrchr(b'\n', &found.data) {
                Some(at) => *begin = found.offset + at as u64 + 1,
                None if reaches => *begin = found.offset,
                None => {}
            }
        }
        Ok(Some(LineBegins {
            lens: before.lens,
            begins,
            output_seq: before.output_seq,
        }))
    }

    fn before(&self, seq: u64) -> io::Result<Option<Before>> {
        let (current, number) = {
            let chain = self.chain.lock();
            let holds = |span: &&Span| span.first.seq <= seq && seq <= span.end.seq;
            let number = chain.spans.iter().rfind(holds).map(|span| span.number);
            (chain.current.clone(), number)
        };
        let current = current.filter(|segment| segment.header.first.seq <= seq);
        let segment = match (current, number) {
            (Some(current), _) => return current.before(seq).map(Some),
            (None, Some(number)) => Segment::open(&self.dir, number, false)?,
            (None, None) => None,
        };
        segment.map(|segment| segment.before(seq)).transpose()
    }
}

impl Segment {
    /// Returns the state before the entry after this seq, which is in this segment or its end.
    pub(crate) fn before(&self, seq: u64) -> io::Result<Before> {
        let first = self.header.first;
        let mut before = Before {
            lens: first.lens,
            output_seq: first.seq,
            begin: first.lens,
            is_attempts: first.seq == 0,
        };
        let (mut at, mut attempt) = (first.seq, self.header.attempt);
        while at < seq {
            for entry in self.index_chunk(at, seq)? {
                at += 1;
                let entry = entry.ok_or_else(|| self.broken(at))?;
                if entry.attempt != attempt {
                    attempt = entry.attempt;
                    before.begin = before.lens;
                    before.is_attempts = true;
                }
                if let Some(stream) = slot(entry.kind) {
                    before.lens[stream] = entry.end();
                    before.output_seq = at;
                }
            }
        }
        Ok(before)
    }
}
