//! The beginning of the tail of a journal's output, searched from the end: the last lines, or the last bytes.

use crate::{
    Point, Position,
    format::IndexEntry,
    log::{Log, Next},
    segment::{Segment, slot},
};
use std::{io, sync::Arc};

/// Index entries that are read together, from the end.
const ENTRIES_BACK: u64 = 256;

/// The requested tail of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Its size in lines or bytes.
    pub amount: Amount,
    /// Whether standard output and standard error count; a stream that does not has no byte in the tail.
    pub streams: [bool; 2],
}

/// A size in lines or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Lines of all streams together, the last that have ended; an unfinished line is one. A line ends with LF, with
    /// its attempt, or where bytes are missing.
    Lines(u64),
    /// Bytes, of all streams together, the last that were read.
    Bytes(u64),
}

/// Beginning of a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailBegin {
    /// Position to read from. If there is less than requested, the beginning of the journal.
    pub position: Position,
    /// Offset of each stream's first byte in the tail: earlier bytes of a read are not in it.
    pub begins: [u64; 2],
}

impl Log {
    /// Returns the beginning of this tail of the output up to the head.
    pub(crate) fn tail(&self, tail: Tail, head: Point) -> io::Result<TailBegin> {
        loop {
            let parts = self.parts(head);
            let mut walk = TailWalk::new(tail, head);
            match self.walk_back(&mut walk, &parts) {
                Ok(seq) => {
                    let lens = match seq {
                        _ if seq == head.seq => Some(head.lens),
                        0 => Some([0; 2]),
                        _ => self.lens_after(seq)?,
                    };
                    return Ok(TailBegin {
                        position: Position { seq, lens },
                        begins: walk.begins(),
                    });
                }
                // The oldest segment may have been removed meanwhile.
                Err(error) => {
                    let mut changed = false;
                    for (next, ..) in &parts {
                        changed |= self.has_changed(next)?;
                    }
                    if !changed {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Returns the segments up to the head, the newest first, each with its range.
    fn parts(&self, head: Point) -> Vec<(Next, Point, Point)> {
        let chain = self.chain.lock();
        let spans = chain.spans.iter().map(|span| {
            let next = Next::Span(span.number, span.end.seq);
            (next, span.first, span.end)
        });
        let current = chain.current.iter().map(|segment| {
            let first = segment.header.first;
            (Next::Current(Arc::clone(segment)), first, head)
        });
        let mut parts: Vec<_> = spans.chain(current).collect();
        parts.retain(|(_, first, _)| first.seq < head.seq);
        for (_, _, end) in &mut parts {
            if end.seq > head.seq {
                *end = head;
            }
        }
        parts.reverse();
        parts
    }

    /// Returns the seq after which the tail begins.
    fn walk_back(&self, walk: &mut TailWalk, parts: &[(Next, Point, Point)]) -> io::Result<u64> {
        if walk.is_done() {
            return Ok(walk.after);
        }
        let mut behind: Option<Point> = None;
        for (next, first, end) in parts {
            // A tail that reaches a hole begins before the hole: the missing part of its first line is a gap.
            if behind.is_some_and(|behind| behind.seq > end.seq)
                && walk.crosses_hole(behind.unwrap_or(*end))
            {
                return Ok(end.seq);
            }
            let opened = match next {
                Next::Span(number, _) => Segment::open(&self.dir, *number, false)?,
                _ => None,
            };
            let segment = match (next, &opened) {
                (Next::Current(segment), _) => segment,
                (_, Some(segment)) => segment,
                _ => return Err(io::ErrorKind::NotFound.into()),
            };
            let mut last = end.seq;
            while last > first.seq {
                let after = first.seq.max(last.saturating_sub(ENTRIES_BACK));
                let entries = segment.index_chunk(after, last)?;
                for (seq, entry) in (after + 1..=last).rev().zip(entries.into_iter().rev()) {
                    let entry = entry.ok_or_else(|| segment.broken(seq))?;
                    walk.meet(&entry, segment)?;
                    if walk.is_done() {
                        return Ok(walk.after);
                    }
                }
                last = after;
            }
            behind = Some(*first);
        }
        // No earlier bytes exist, or they are gone, which is an error.
        walk.reaches_the_beginning();
        let is_whole = behind.is_none_or(|first| first.seq == 0);
        Ok(if is_whole && walk.has_all_ends() {
            walk.after
        } else {
            0
        })
    }
}

/// A walk from the head towards the beginning.
struct TailWalk {
    amount: Amount,
    /// Number of line ends found.
    lines: u64,
    streams: [Stream; 2],
    /// Seq before the oldest entry in the tail.
    after: u64,
}

/// State of one stream.
#[derive(Clone, Copy)]
struct Stream {
    /// Offset of its first byte that is known to be in the tail.
    begin: u64,
    /// Whether the tail has a line of it whose beginning was not found yet.
    is_open: bool,
    is_done: bool,
    /// Attempt of the entry found last; absent: any end here ends a line.
    attempt: Option<u32>,
}

impl TailWalk {
    fn new(tail: Tail, head: Point) -> Self {
        let stream = |number: usize| Stream {
            begin: head.lens[number],
            is_open: false,
            is_done: !tail.streams[number],
            attempt: None,
        };
        let mut walk = Self {
            amount: tail.amount,
            lines: 0,
            streams: [stream(0), stream(1)],
            after: head.seq,
        };
        if matches!(tail.amount, Amount::Lines(0) | Amount::Bytes(0)) {
            walk.close_others();
        }
        walk
    }

    fn begins(&self) -> [u64; 2] {
        self.streams.map(|stream| stream.begin)
    }

    fn is_done(&self) -> bool {
        self.streams.iter().all(|stream| stream.is_done)
    }

    /// Ends the search for streams that have nothing in the tail.
    fn close_others(&mut self) {
        for stream in &mut self.streams {
            stream.is_done |= !stream.is_open;
        }
    }

    fn meet(&mut self, entry: &IndexEntry, segment: &Segment) -> io::Result<()> {
        let Some(number) = slot(entry.kind) else {
            return Ok(());
        };
        if self.streams[number].is_done || entry.len == 0 {
            return Ok(());
        }
        match self.amount {
            Amount::Bytes(_) => self.meet_bytes(number, entry),
            Amount::Lines(most) => {
                let data = segment.raw[number].read(entry.offset, entry.end())?;
                self.meet_lines(number, most, entry, &data);
            }
        }
        Ok(())
    }

    fn meet_bytes(&mut self, number: usize, entry: &IndexEntry) {
        let Amount::Bytes(left) = &mut self.amount else {
            return;
        };
        let taken = u64::from(entry.len).min(*left);
        *left -= taken;
        let is_full = *left == 0;
        self.streams[number].begin = entry.end() - taken;
        self.after = entry.seq - 1;
        if is_full {
            self.streams.iter_mut().for_each(|s| s.is_done = true);
        }
    }

    fn meet_lines(&mut self, number: usize, most: u64, entry: &IndexEntry, data: &[u8]) {
        let breaks = self.streams[number].attempt != Some(entry.attempt);
        self.streams[number].attempt = Some(entry.attempt);
        // The line ends with its attempt even without LF.
        let ends_bare = breaks && data.last() != Some(&b'\n');
        if ends_bare && self.meets_end(number, most, entry.end()) {
            return;
        }
        for at in memchr::memrchr_iter(b'\n', data) {
            if self.meets_end(number, most, entry.offset + at as u64 + 1) {
                // Bytes after that line end in this entry belong to the tail.
                if self.streams[number].begin < entry.end() {
                    self.after = entry.seq - 1;
                }
                return;
            }
        }
        if self.streams[number].is_open {
            self.streams[number].begin = entry.offset;
            self.after = entry.seq - 1;
        }
    }

    /// Handles the end of a line at this offset. Returns whether it is one too many: the tail of the stream begins
    /// after it.
    fn meets_end(&mut self, number: usize, most: u64, offset: u64) -> bool {
        let stream = &mut self.streams[number];
        if self.lines == most {
            stream.is_done = true;
            if stream.is_open {
                stream.begin = offset;
            }
            return true;
        }
        stream.is_open = true;
        self.lines += 1;
        if self.lines == most {
            self.close_others();
        }
        false
    }

    /// Handles missing bytes between the found ones and the next. Returns whether the tail is full: then it begins
    /// among them.
    fn crosses_hole(&mut self, behind: Point) -> bool {
        for (number, stream) in self.streams.iter_mut().enumerate() {
            stream.attempt = None;
            if stream.is_open && !stream.is_done {
                stream.begin = behind.lens[number];
            }
        }
        self.has_all_ends()
    }

    /// Whether the requested number of lines is in the tail, though the first of them may begin further back.
    fn has_all_ends(&self) -> bool {
        matches!(self.amount, Amount::Lines(most) if self.lines == most)
    }

    fn reaches_the_beginning(&mut self) {
        for stream in &mut self.streams {
            if !stream.is_done {
                stream.begin = 0;
            }
        }
    }
}
