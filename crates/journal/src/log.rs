//! The chain of a journal's segments, read from any seq, across missing parts.

use crate::{
    Gap, GapReason, Item, Point,
    errors::failed,
    format::After,
    gap::Why,
    kept::KeptFile,
    payloads::Payloads,
    segment::{self, ENTRIES_PER_READ_MAX, Intact, Segment, number_of, writing},
};
use bytes::Bytes;
use kennel_lifecycle::Timestamp;
use parking_lot::Mutex;
use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A journal on disk. Shared by its writer and its readers.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) dir: PathBuf,
    pub(crate) facts: Payloads,
    pub(crate) chain: Mutex<SegmentChain>,
    /// Whether its run has ended, so that unreadable data is damage.
    is_closed: bool,
}

/// The existing segments.
#[derive(Debug, Default)]
pub(crate) struct SegmentChain {
    /// All but the current one, in order.
    pub(crate) spans: Vec<Span>,
    /// The segment that is written. Absent: there is no writer.
    pub(crate) current: Option<Arc<Segment>>,
}

/// A closed segment.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) number: u32,
    pub(crate) first: Point,
    pub(crate) end: Point,
    /// Lengths of the streams that can be read.
    pub(crate) there: [u64; 2],
    pub(crate) begun: (Timestamp, u32),
    pub(crate) after: After,
    /// First and last seq of its lifecycle entries.
    pub(crate) facts: Option<(u64, u64)>,
}

/// Data after a position.
pub(crate) enum Next {
    /// Entries of a segment, up to this seq.
    Span(u32, u64),
    Current(Arc<Segment>),
    /// A hole up to this position.
    Hole(Point, Why, (Timestamp, u32)),
    /// There were entries, and they were removed meanwhile.
    Gone,
}

impl Span {
    pub(crate) fn of(segment: &Segment, intact: &Intact) -> Self {
        Self {
            there: intact.there.unwrap_or(intact.end.lens),
            ..Self::closed(segment, intact.end, intact.facts)
        }
    }

    pub(crate) fn closed(segment: &Segment, end: Point, facts: Option<(u64, u64)>) -> Self {
        Self {
            number: segment.header.number,
            first: segment.header.first,
            end,
            there: end.lens,
            begun: (segment.header.at, segment.header.attempt),
            after: segment.header.after,
            facts,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        segment::size(self.first, self.end)
    }
}

/// The journal files of a directory.
pub(crate) struct Scanned {
    pub(crate) spans: Vec<Span>,
    /// The last segment, and its intact part; absent: there is none with a whole header.
    pub(crate) last: Option<(Segment, Intact)>,
    /// Segments without a whole header, and raw files without an index.
    pub(crate) stray: Vec<u32>,
}

/// Scans every segment: closed ones by their neighbours, the last one whole.
pub(crate) fn scan(dir: &Path, facts: &Payloads, write: bool) -> io::Result<Scanned> {
    scan_as(dir, facts, write, Segment::intact)
}

/// Scans likewise; `extent` determines the length of a segment that its successor does not continue.
fn scan_as(
    dir: &Path,
    facts: &Payloads,
    write: bool,
    extent: fn(&Segment, &Payloads) -> io::Result<Intact>,
) -> io::Result<Scanned> {
    let (numbers, mut stray) = segments(dir)?;
    let mut opened = Vec::new();
    for number in numbers {
        match Segment::open(dir, number, write) {
            Ok(Some(segment)) => opened.push(segment),
            Ok(None) => stray.push(number),
            // The segment was removed since the directory was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let mut spans = Vec::new();
    let last = opened.pop();
    for (place, segment) in opened.iter().enumerate() {
        let follows = opened.get(place + 1).or(last.as_ref());
        let follows = follows.filter(|next| next.header.number == segment.header.number + 1);
        let first = segment.header.first;
        // A segment whose successor continues it was closed completely.
        let whole = follows.filter(|next| {
            let entries = next.header.first.seq.checked_sub(first.seq);
            next.header.after == After::All && segment.entries().is_ok_and(|n| Some(n) == entries)
        });
        spans.push(match whole {
            Some(next) if first.seq < next.header.first.seq => {
                let (end, facts) = (next.header.first, (first.seq + 1, next.header.first.seq));
                Span::closed(segment, end, Some(facts))
            }
            _ => Span::of(segment, &extent(segment, facts)?),
        });
    }
    let last = match last {
        Some(segment) => {
            let intact = extent(&segment, facts)?;
            Some((segment, intact))
        }
        None => None,
    };
    Ok(Scanned { spans, last, stray })
}

/// Whether `dir` has a journal, however damaged.
pub fn is_made(dir: &Path) -> bool {
    segments(dir).is_ok_and(|(indexes, raw)| !indexes.is_empty() || !raw.is_empty())
}

/// Whether there is an index with a whole header.
pub(crate) fn has_index(dir: &Path) -> io::Result<bool> {
    for number in segments(dir)?.0 {
        if Segment::open(dir, number, false)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the numbers of the existing indexes, in order, and of raw files without an index.
fn segments(dir: &Path) -> io::Result<(Vec<u32>, Vec<u32>)> {
    let (mut indexes, mut raw) = (Vec::new(), Vec::new());
    let list = |e| failed("list", dir, e);
    for file in fs::read_dir(dir).map_err(list)? {
        let name = file.map_err(list)?.file_name();
        match name.to_str().and_then(number_of) {
            Some((number, true)) => indexes.push(number),
            Some((number, false)) => raw.push(number),
            None => {}
        }
    }
    indexes.sort_unstable();
    raw.sort_unstable();
    raw.dedup();
    raw.retain(|number| indexes.binary_search(number).is_err());
    Ok((indexes, raw))
}

impl Log {
    /// Opens the chain for a writer.
    pub(crate) fn to_write(dir: &Path) -> Self {
        Self::new(dir, &writing())
    }

    /// Makes the chain for the writer of a journal whose files are created later.
    pub(crate) fn late(dir: &Path, first: &Segment) -> Self {
        Self {
            facts: Payloads::late(dir, &writing(), Arc::clone(&first.index)),
            ..Self::to_write(dir)
        }
    }

    /// Opens the chain for readers of a journal without a writer. Returns its end too.
    pub(crate) fn to_read(dir: &Path) -> io::Result<(Self, Point)> {
        let log = Self::new(dir, OpenOptions::new().read(true));
        let end = log.look()?;
        Ok((log, end))
    }

    /// Opens the chain for readers of a journal whose run has ended: damage becomes a gap. Returns its end too.
    pub(crate) fn to_read_closed(dir: &Path) -> io::Result<(Self, Point)> {
        let log = Self {
            is_closed: true,
            ..Self::new(dir, OpenOptions::new().read(true))
        };
        let end = log.look()?;
        Ok((log, end))
    }

    /// Returns the lengths after its last entry, where it has no writer: more may be readable.
    pub(crate) fn closed_lens(&self) -> Option<[u64; 2]> {
        let chain = self.chain.lock();
        let last = chain.spans.last().filter(|_| chain.current.is_none());
        Some(last?.end.lens)
    }

    /// Whether its run has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn new(dir: &Path, how: &OpenOptions) -> Self {
        Self {
            dir: dir.to_owned(),
            facts: Payloads::new(dir, how),
            chain: Mutex::default(),
            is_closed: false,
        }
    }

    /// Reads a directory without a writer. Returns the journal's end.
    fn look(&self) -> io::Result<Point> {
        let Scanned {
            mut spans,
            last,
            stray,
        } = if self.is_closed {
            scan_as(&self.dir, &self.facts, false, Segment::extent)?
        } else {
            scan(&self.dir, &self.facts, false)?
        };
        spans.extend(last.map(|(segment, intact)| Span::of(&segment, &intact)));
        // A journal removed meanwhile looks shorter, or empty.
        self.is_there()?;
        let end = match spans.last() {
            Some(span) => Point {
                lens: span.there,
                ..span.end
            },
            // The header of the only segment is torn.
            None if !stray.is_empty() => Point::default(),
            None => return Segment::open(&self.dir, 0, false).map(|_| Point::default()),
        };
        self.chain.lock().spans = spans;
        Ok(end)
    }

    /// Checks that the directory exists; else returns the error of its kind.
    pub(crate) fn is_there(&self) -> io::Result<()> {
        let found = fs::metadata(&self.dir);
        found.map(drop).map_err(|e| failed("find", &self.dir, e))
    }

    /// Returns the first seq from which on nothing is missing.
    pub(crate) fn whole_from(&self, head: u64) -> u64 {
        let chain = self.chain.lock();
        let current = chain.current.iter();
        let current = current.map(|s| (s.header.first.seq, head));
        let spans = chain.spans.iter().map(|s| (s.first.seq, s.end.seq));
        let mut begin = None;
        let mut end = 0;
        for (first, last) in spans.chain(current) {
            if begin.is_none() || first != end {
                begin = Some(first);
            }
            end = last;
        }
        begin.map_or(head, |begin| begin + 1).min(head)
    }

    /// Returns the lengths before the entry after this seq; absent where they are not known any more.
    pub(crate) fn lens_after(&self, seq: u64) -> io::Result<Option<[u64; 2]>> {
        let (number, current) = {
            let chain = self.chain.lock();
            if let Some(span) = chain.spans.iter().find(|s| s.end.seq == seq) {
                return Ok(Some(span.end.lens));
            }
            let holds = |s: &&Span| s.first.seq <= seq && seq < s.end.seq;
            let number = chain.spans.iter().find(holds).map(|s| s.number);
            (number, chain.current.clone())
        };
        let current = current.filter(|s| s.header.first.seq <= seq);
        match (number, current) {
            (Some(number), _) => match Segment::open(&self.dir, number, false)? {
                Some(segment) => Ok(Some(segment.before(seq)?.lens)),
                None => Ok(None),
            },
            (None, Some(current)) => Ok(Some(current.before(seq)?.lens)),
            (None, None) => {
                let kept = KeptFile::open(&self.dir)?.between(seq - 1, seq, 1)?;
                Ok(kept.first().map(|(_, before)| before.lens))
            }
        }
    }

    /// Reads after a position: at least one item, at most `bytes_max` bytes but always one entry. Returns also the
    /// stream lengths after it, if they are known.
    ///
    /// INVARIANT: `after < head.seq`, and all entries up to the head are written.
    pub(crate) fn read(
        &self,
        after: u64,
        lens: Option<[u64; 2]>,
        head: Point,
        bytes_max: usize,
    ) -> io::Result<(Vec<Item>, Option<[u64; 2]>)> {
        loop {
            let lens = match lens {
                None if after == 0 => Some([0; 2]),
                // The read finds and reports segments removed meanwhile.
                None => self.lens_after(after).unwrap_or_default(),
                known => known,
            };
            let next = self.next(after);
            match self.read_next(&next, after, lens, head, bytes_max) {
                Ok(items) => {
                    let lens = items.iter().fold(lens, after_item);
                    return Ok((items, lens));
                }
                // The segment was removed between the scan and the read.
                Err(_) if self.has_changed(&next)? => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn next(&self, after: u64) -> Next {
        let chain = self.chain.lock();
        let follows = chain.spans.iter().find(|span| span.end.seq > after);
        let before = chain.spans.iter().rfind(|span| span.end.seq <= after);
        let (number, first, begun, behind) = match (follows, &chain.current) {
            (Some(span), _) if span.first.seq <= after => {
                return Next::Span(span.number, span.end.seq);
            }
            (Some(span), _) => (span.number, span.first, span.begun, span.after),
            (None, Some(current)) if current.header.first.seq <= after => {
                return Next::Current(Arc::clone(current));
            }
            (None, Some(current)) => {
                let header = &current.header;
                let begun = (header.at, header.attempt);
                (header.number, header.first, begun, header.after)
            }
            (None, None) => return Next::Gone,
        };
        let is_next = before.is_some_and(|before| before.number + 1 == number);
        let (reason, counted) = match behind {
            _ if !is_next => (GapReason::Bound, true),
            After::FullDisk { counted } => (GapReason::FullDisk, counted),
            After::HostLoss => (GapReason::HostLost, false),
            // The previous segment was complete when this one began.
            After::All => (GapReason::Damaged, true),
        };
        Next::Hole(first, Why { reason, counted }, begun)
    }

    fn read_next(
        &self,
        next: &Next,
        after: u64,
        lens: Option<[u64; 2]>,
        head: Point,
        bytes_max: usize,
    ) -> io::Result<Vec<Item>> {
        let entries = match next {
            Next::Span(number, last) => {
                let segment = Segment::open(&self.dir, *number, false)?;
                let segment = segment.ok_or(io::ErrorKind::NotFound)?;
                match segment.read(after, *last, bytes_max, &self.facts) {
                    Err(error) if self.is_damage(&error) => {
                        let end = self.span_end(*number);
                        return segment.read_over_damage(after, lens, end, bytes_max, &self.facts);
                    }
                    read => read?,
                }
            }
            Next::Current(segment) => segment.read(after, head.seq, bytes_max, &self.facts)?,
            Next::Gone => return Err(io::ErrorKind::NotFound.into()),
            Next::Hole(until, why, begun) => {
                return self.read_hole(after, lens, (*until, *why, *begun), bytes_max);
            }
        };
        Ok(entries.into_iter().map(Item::Entry).collect())
    }

    /// Returns the retained lifecycle entries, and gaps between them.
    fn read_hole(
        &self,
        after: u64,
        mut lens: Option<[u64; 2]>,
        (until, why, begun): (Point, Why, (Timestamp, u32)),
        bytes_max: usize,
    ) -> io::Result<Vec<Item>> {
        let count_max = usize::try_from(ENTRIES_PER_READ_MAX).unwrap_or(usize::MAX);
        let kept = KeptFile::open(&self.dir)?.between(after, until.seq, count_max)?;
        // A missing lifecycle file means no entries only if the directory exists.
        self.is_there()?;
        let (mut items, mut at, mut bytes) = (Vec::new(), after, 0usize);
        for (entry, before) in &kept {
            bytes = bytes.saturating_add(entry.len as usize);
            if bytes > bytes_max && !items.is_empty() {
                return Ok(items);
            }
            if before.seq > at {
                let begun = (entry.at, entry.attempt);
                items.push(Item::Gap(Gap::between(at, lens, *before, why, begun)));
            }
            let data = if entry.len == 0 {
                Bytes::new()
            } else {
                self.facts.read(entry.offset, entry.end())?
            };
            items.push(Item::Entry(entry.with(data)));
            (at, lens) = (entry.seq, Some(before.lens));
        }
        if kept.len() < count_max && until.seq > at {
            items.push(Item::Gap(Gap::between(at, lens, until, why, begun)));
        }
        Ok(items)
    }

    /// Whether the segment to be read is gone. Without a writer the directory shows it.
    pub(crate) fn has_changed(&self, next: &Next) -> io::Result<bool> {
        let Next::Span(number, _) = next else {
            return Ok(false);
        };
        let is_there = || {
            self.chain
                .lock()
                .spans
                .iter()
                .any(|span| span.number == *number)
        };
        if self.chain.lock().current.is_none() && is_there() {
            self.look()?;
        }
        Ok(!is_there())
    }
}

fn after_item(lens: Option<[u64; 2]>, item: &Item) -> Option<[u64; 2]> {
    match item {
        Item::Gap(gap) => Some(gap.ends),
        Item::Entry(entry) => {
            let mut lens = lens?;
            if let Some(stream) = segment::slot(entry.kind) {
                lens[stream] = entry.offset + entry.data.len() as u64;
            }
            Some(lens)
        }
    }
}
