//! The writer: appends entries, notifies readers, enforces the bound, and repairs what a dead writer left.

mod late;
mod segments;

use crate::{
    Boot, ENTRY_BYTES_MAX, Fact, Hub, Kind, LIFECYCLE_BYTES_MAX, Point,
    format::{After, Dropped, Header, IndexEntry},
    kept::{self, KeptFile},
    log::{Log, Scanned, SegmentChain, Span, scan},
    mark::Mark,
    payloads,
    segment::{Segment, remove_files, slot},
};
use bytes::Bytes;
use kennel_lifecycle::{OnOutputFull, OutputBound, Timestamp};
use segments::{PROBE, begin_anew, follow, header, piece, probe, whole};
use std::{fs::File, io, path::Path, sync::Arc};
use tokio::sync::watch;

pub use late::{Late, LateFact};

/// Entries of one index write; more output than that takes several.
const ENTRIES_PER_WRITE_MAX: u64 = 256;

const OUTPUTS: [Kind; 2] = [Kind::Stdout, Kind::Stderr];

/// The one writer of a run's journal.
///
/// A failed call has changed nothing that a reader sees; it may be repeated.
#[derive(Debug)]
pub struct Writer {
    log: Arc<Log>,
    segment: Arc<Segment>,
    bound: OutputBound,
    boot: Boot,
    /// Position after the last byte that an entry refers to.
    end: Point,
    facts_len: u64,
    /// First and last seq of the lifecycle entries in this segment.
    facts: Option<(u64, u64)>,
    /// Bytes of the other segments.
    closed_bytes: u64,
    mark: Mark,
    attempt: u32,
    /// Time of the last entry of the writer before.
    found_at: Timestamp,
    /// Output missing after the end.
    dropped: Dropped,
    /// Whether data had to be removed because of the bound.
    has_passed_bound: bool,
    /// Where output waits at the bound: events up to this seq may be removed.
    released: u64,
    /// Whether output waits for nothing any more.
    beyond_bound: bool,
    head: watch::Sender<Point>,
}

/// Position for the next bytes of a stream.
#[derive(Debug)]
pub struct AppendPosition<'a> {
    /// The raw file. Not opened for appending (splice(2): EINVAL).
    pub file: &'a File,
    /// Offset in that file.
    pub offset: u64,
    /// Most bytes that may be written there.
    pub room: usize,
}

impl Writer {
    /// Creates the journal of a new run in `dir`, which exists and has no journal.
    pub fn create(dir: &Path, bound: OutputBound, boot: Boot, now: Timestamp) -> io::Result<Self> {
        let log = Log::to_write(dir);
        let segment = Segment::create(dir, header(bound, boot, now))?;
        let mark = Mark::first(dir);
        Ok(Self::new(log, segment, Vec::new(), boot, mark))
    }

    /// Opens the journal of a run whose writer died, as [`Writer::reopen`] does, and indexes the output that no entry
    /// refers to. A crash within is repaired by the next call.
    pub fn recover(dir: &Path, boot: Boot, now: Timestamp) -> io::Result<Self> {
        let (mut writer, unnamed) = Self::reopen(dir, boot, now)?;
        writer.index_unnamed(unnamed, now)?;
        Ok(writer)
    }

    /// Indexes the output that no entry refers to, as [`Writer::reopen`] has found it.
    pub fn index_unnamed(&mut self, unnamed: [u64; 2], now: Timestamp) -> io::Result<()> {
        for (kind, bytes) in OUTPUTS.into_iter().zip(unnamed) {
            self.output_written(kind, bytes, now)?;
        }
        self.resume_after_dropped(now)
    }

    /// Opens the journal of a run whose writer died and cuts a torn tail, which needs no disk space. Returns also the
    /// number of bytes of stdout and of stderr in their files that no entry refers to: they must be recorded with
    /// [`Writer::output_written`] before anything else.
    ///
    /// Where the host has died as well, it continues above the mark: entries that were delivered may be lost.
    pub fn reopen(dir: &Path, boot: Boot, now: Timestamp) -> io::Result<(Self, [u64; 2])> {
        Self::reopen_as(dir, boot, now, false)
    }

    /// Opens likewise; a cut journal is handled as after the death of the host.
    fn reopen_as(
        dir: &Path,
        boot: Boot,
        now: Timestamp,
        is_cut: bool,
    ) -> io::Result<(Self, [u64; 2])> {
        crate::errors::remove(&dir.join(PROBE))?;
        let log = Log::to_write(dir);
        let Scanned {
            mut spans,
            last,
            stray,
        } = scan(dir, &log.facts, true)?;
        let mark = Mark::open(dir)?;
        let mut kept = KeptFile::open(dir)?;
        let (segment, intact) = match last {
            Some(last) => last,
            None => {
                let segment = begin_anew(dir, header(OutputBound::default(), boot, now))?;
                let intact = segment.intact(&log.facts)?;
                (segment, intact)
            }
        };
        for number in stray {
            if number != segment.header.number {
                remove_files(dir, number)?;
            }
        }
        let mut there: Vec<(u64, u64)> = spans.iter().map(|s| (s.first.seq, s.end.seq)).collect();
        there.push((segment.header.first.seq, intact.end.seq));
        kept.mend(&there)?;
        segment.cut(intact.end.seq)?;
        log.facts.cut(intact.facts_len)?;
        let unnamed = [
            segment.raw[0].end()? - intact.end.lens[0],
            segment.raw[1].end()? - intact.end.lens[1],
        ];
        let lost = is_cut || boot.differs(segment.header.boot);
        let segment = if lost {
            let next = Header {
                number: segment.header.number + 1,
                first: Point {
                    seq: mark.seq().max(intact.end.seq),
                    ..intact.end
                },
                facts_len: intact.facts_len,
                boot,
                bound: segment.header.bound,
                after: After::HostLoss,
                attempt: intact.attempt,
                at: now,
            };
            let next = follow(dir, &segment, intact.end, next)?;
            spans.push(Span::of(&segment, &intact));
            next
        } else {
            segment
        };
        let mut writer = Self::new(log, segment, spans, boot, mark);
        if !lost {
            writer.end = intact.end;
            writer.facts = intact.facts;
            writer.dropped = writer.segment.dropped()?;
            writer.head.send_replace(intact.end);
        }
        writer.facts_len = intact.facts_len;
        writer.attempt = intact.attempt;
        writer.found_at = intact.at;
        Ok((writer, unnamed))
    }

    fn new(log: Log, segment: Segment, spans: Vec<Span>, boot: Boot, mark: Mark) -> Self {
        let Header {
            first,
            facts_len,
            bound,
            attempt,
            at: found_at,
            ..
        } = segment.header;
        let segment = Arc::new(segment);
        let closed_bytes = spans.iter().map(Span::size).sum();
        *log.chain.lock() = SegmentChain {
            spans,
            current: Some(Arc::clone(&segment)),
        };
        Self {
            log: Arc::new(log),
            segment,
            bound,
            boot,
            end: first,
            facts_len,
            facts: None,
            closed_bytes,
            mark,
            attempt,
            found_at,
            dropped: Dropped::default(),
            has_passed_bound: false,
            released: 0,
            beyond_bound: false,
            head: watch::Sender::new(first),
        }
    }

    /// Whether output has to wait ([`OnOutputFull::Block`]): there is space for more only when the oldest is released.
    pub fn waits(&self) -> bool {
        if self.bound.on_full != OnOutputFull::Block || self.beyond_bound {
            return false;
        }
        let max = self.segment_max(self.segment.header.number);
        let size = self.segment.size(self.end);
        let stays = |span: &&Span| span.end.seq > self.released;
        let chain = self.log.chain.lock();
        let staying: u64 = chain.spans.iter().filter(stays).map(Span::size).sum();
        // A full segment is closed and counts in addition to the next.
        let closing = if size >= max { size } else { 0 };
        staying + closing + max > self.bound.max_bytes
    }

    /// Permits, where output waits at the bound, the removal of events up to this seq. They are removed when their
    /// space is needed.
    pub fn release_up_to(&mut self, seq: u64) {
        self.released = self.released.max(seq);
    }

    /// Lets output exceed the bound instead of waiting at it; or ends that.
    pub fn go_beyond_bound(&mut self, beyond: bool) {
        self.beyond_bound = beyond;
    }

    /// Returns the position for the next bytes of a stream. Begins another segment, and removes the oldest, where this
    /// one is full: all bytes in its files must have been recorded. The first call creates the file.
    pub fn place(&mut self, kind: Kind, now: Timestamp) -> io::Result<AppendPosition<'_>> {
        let Some(stream) = slot(kind) else {
            return Err(whole());
        };
        self.make()?;
        if self.segment.size(self.end) >= self.segment_max(self.segment.header.number) {
            self.roll(now)?;
        }
        let max = self.segment_max(self.segment.header.number);
        let left = max - self.segment.size(self.end);
        let raw = &self.segment.raw[stream];
        Ok(AppendPosition {
            file: raw.file()?,
            offset: raw.place(self.end.lens[stream]),
            room: usize::try_from(left).unwrap_or(usize::MAX),
        })
    }

    /// Returns the directory of the journal.
    pub fn dir(&self) -> &Path {
        &self.log.dir
    }

    /// Whether the raw file of a stream exists.
    pub fn has_file(&self, kind: Kind) -> bool {
        slot(kind).is_none_or(|stream| self.segment.raw[stream].is_open())
    }

    /// Returns the attempt of the written data.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the time of the last entry of the writer before this one; for a new journal, the time of its creation.
    pub fn found_at(&self) -> Timestamp {
        self.found_at
    }

    /// Begins an attempt: data written from here on is of this one. Unrecorded bytes of a dead writer are of the
    /// attempt of its last entry.
    pub fn begin_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
    }

    /// Returns the present length of a stream: the offset of the next byte.
    pub fn len(&self, kind: Kind) -> u64 {
        slot(kind).map_or(self.facts_len, |stream| self.end.lens[stream])
    }

    /// `bytes` more of a stream have been written to their [`AppendPosition`]: records them. More than
    /// [`ENTRY_BYTES_MAX`] become several entries. Returns the last seq.
    pub fn output_written(&mut self, kind: Kind, bytes: u64, now: Timestamp) -> io::Result<u64> {
        if slot(kind).is_none() {
            return Err(whole());
        }
        let end = self.len(kind) + bytes;
        while self.len(kind) < end {
            let most = ENTRIES_PER_WRITE_MAX * u64::from(ENTRY_BYTES_MAX);
            self.append(kind, (end - self.len(kind)).min(most), now)?;
        }
        Ok(self.end.seq)
    }

    /// Drops output for which there is no space: `discard` takes bytes of a stream from their source, and returns their
    /// number. They are counted on the disk, where that needs no space; the stream continues after
    /// [`Self::resume_after_dropped`], and until then none of it is written.
    ///
    /// A crash within: that bytes are missing is known, how many is not.
    pub fn drop_output<T>(
        &mut self,
        kind: Kind,
        discard: impl FnOnce() -> io::Result<(u64, T)>,
    ) -> io::Result<T> {
        let Some(stream) = slot(kind) else {
            return Err(whole());
        };
        self.make()?;
        self.segment.write_dropped(Dropped {
            uncounted: true,
            ..self.dropped
        })?;
        let discarded = discard();
        if let Ok((bytes, _)) = &discarded {
            self.dropped.bytes[stream] += bytes;
        }
        self.segment.write_dropped(self.dropped)?;
        discarded.map(|(_, more)| more)
    }

    /// Returns the dropped output that no reader has noticed yet.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Checks whether the disk has enough space to continue.
    pub fn probe(&self) -> io::Result<()> {
        probe(&self.log.dir)
    }

    /// Reports dropped output to readers, if there is any, and continues after it; needs some disk space. All bytes in
    /// the files must have been recorded.
    ///
    /// A crash meanwhile: the next segment is there, or it is done again.
    pub fn resume_after_dropped(&mut self, now: Timestamp) -> io::Result<()> {
        let dropped = self.dropped;
        if dropped == Dropped::default() {
            return Ok(());
        }
        self.probe()?;
        let lens = self.end.lens;
        let first = Point {
            seq: self.end.seq + 1,
            lens: [lens[0] + dropped.bytes[0], lens[1] + dropped.bytes[1]],
        };
        self.mark.cover(first.seq)?;
        let counted = !dropped.uncounted;
        self.begin_segment(first, After::FullDisk { counted }, now)?;
        self.end = first;
        self.dropped = Dropped::default();
        self.head.send_replace(self.end);
        Ok(())
    }

    /// Whether data had to be removed because of the bound, since this writer was opened.
    pub fn has_passed_bound(&self) -> bool {
        self.has_passed_bound
    }

    /// Returns the policy for output for which there is no space.
    pub fn bound(&self) -> OutputBound {
        self.bound
    }

    /// Records a lifecycle entry. Returns its seq.
    pub fn lifecycle(&mut self, payload: &[u8], now: Timestamp) -> io::Result<u64> {
        if payload.len() > LIFECYCLE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a lifecycle payload has at most {LIFECYCLE_BYTES_MAX} bytes"),
            ));
        }
        if payloads::is_lost(payload) {
            let why = "a lifecycle payload is not all zeros";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.log.facts.write(payload, self.facts_len)?;
        self.append(Kind::Lifecycle, payload.len() as u64, now)?;
        let first = self.facts.map_or(self.end.seq, |(first, _)| first);
        self.facts = Some((first, self.end.seq));
        Ok(self.end.seq)
    }

    /// Records the next `bytes` of a stream, which are in its file, with one write to the index.
    ///
    /// The bytes are written before, and after the last recorded one (INV-11).
    ///
    /// A crash before the write: recovery records the output, and cuts the lifecycle entry. After it: the entry stands.
    /// INV-11: the bytes were written before.
    fn append(&mut self, kind: Kind, bytes: u64, now: Timestamp) -> io::Result<()> {
        let first = self.end.seq + 1;
        let begin = self.len(kind);
        let end = begin + bytes;
        let mut entry = IndexEntry {
            seq: first,
            at: now,
            kind,
            offset: begin,
            len: piece(kind, begin, end),
            attempt: self.attempt,
        };
        let more = (end - entry.end()).div_ceil(u64::from(ENTRY_BYTES_MAX));
        self.mark.cover(first + more)?;
        if more == 0 {
            self.segment.write_entries(first, &entry.encode())?;
        } else {
            let mut batch = Vec::new();
            batch.extend(entry.encode());
            while entry.end() < end {
                entry.seq += 1;
                entry.offset = entry.end();
                entry.len = piece(kind, entry.offset, end);
                batch.extend(entry.encode());
            }
            self.segment.write_entries(first, &batch)?;
        }
        match slot(kind) {
            Some(stream) => self.end.lens[stream] = end,
            None => self.facts_len = end,
        }
        self.end.seq = entry.seq;
        // Readers read only after this send: bytes and entry are in place.
        self.head.send_replace(self.end);
        Ok(())
    }

    /// Returns the maximum size of the segment with this number.
    fn segment_max(&self, number: u32) -> u64 {
        let max = self.bound.max_bytes;
        match (self.bound.on_full, number) {
            (OnOutputFull::Rotate | OnOutputFull::Abort | OnOutputFull::Block, _) => max / 8,
            (OnOutputFull::HeadTail, 0) => max / 2,
            (OnOutputFull::HeadTail, _) => max / 16,
        }
    }

    /// Removes segments for which there will be no space, closes this segment and begins the next one.
    ///
    /// A crash meanwhile: the segments are removed, or the next roll removes them; the next segment is there or not.
    fn roll(&mut self, now: Timestamp) -> io::Result<()> {
        self.begin_segment(self.end, After::All, now)
    }

    fn begin_segment(&mut self, first: Point, after: After, now: Timestamp) -> io::Result<()> {
        self.shrink()?;
        let next = Header {
            number: self.segment.header.number + 1,
            first,
            facts_len: self.facts_len,
            boot: self.boot,
            bound: self.bound,
            after,
            attempt: self.attempt,
            at: now,
        };
        let next = Arc::new(Segment::create(&self.log.dir, next)?);
        let span = Span::closed(&self.segment, self.end, self.facts);
        self.closed_bytes += span.size();
        {
            let mut chain = self.log.chain.lock();
            chain.spans.push(span);
            chain.current = Some(Arc::clone(&next));
        }
        self.segment = next;
        self.facts = None;
        Ok(())
    }

    /// Removes the oldest segments until there is space for another full one.
    fn shrink(&mut self) -> io::Result<()> {
        // Number of first segments that are retained.
        let keep = match self.bound.on_full {
            OnOutputFull::Rotate | OnOutputFull::Abort | OnOutputFull::Block => 0,
            OnOutputFull::HeadTail => 1,
        };
        let coming = self.segment.size(self.end) + self.segment_max(u32::MAX);
        while self.closed_bytes + coming > self.bound.max_bytes {
            let oldest = self.log.chain.lock().spans.get(keep).cloned();
            let Some(oldest) = oldest else { break };
            if self.bound.on_full == OnOutputFull::Block && oldest.end.seq > self.released {
                break;
            }
            self.has_passed_bound = true;
            if let Some((first, last)) = oldest.facts {
                let segment = Segment::open(&self.log.dir, oldest.number, false)?;
                let facts = match segment {
                    Some(segment) => segment.facts(first, last)?,
                    None => Vec::new(),
                };
                if !facts.is_empty() {
                    self.log.facts.sync()?;
                    kept::append(&self.log.dir, &facts)?;
                }
            }
            if oldest.number == 0 {
                self.log.facts.leave_index(self.facts_len)?;
            }
            // Readers are notified before the removal, so that none takes it for damage.
            self.log.chain.lock().spans.remove(keep);
            self.closed_bytes -= oldest.size();
            let removed = remove_files(&self.log.dir, oldest.number);
            self.log.facts.look_for_index();
            removed?;
        }
        Ok(())
    }

    /// Whether the number of all missing bytes is known, as far as the segments show.
    pub fn is_counted(&self) -> bool {
        let current = self.segment.header.after;
        current.is_counted()
            && self
                .log
                .chain
                .lock()
                .spans
                .iter()
                .all(|s| s.after.is_counted())
    }

    /// Returns all lifecycle entries so far, in order.
    ///
    /// Reads all indexes (36 bytes an entry): call it where blocking is allowed.
    pub fn facts(&self) -> io::Result<Vec<Fact>> {
        let spans = self.log.chain.lock().spans.clone();
        let mut facts = Vec::new();
        for span in &spans {
            if let (Some((first, last)), Some(segment)) = (
                span.facts,
                Segment::open(&self.log.dir, span.number, false)?,
            ) {
                facts.extend(segment.facts(first, last)?);
            }
        }
        if let Some((first, last)) = self.facts {
            facts.extend(self.segment.facts(first, last)?);
        }
        facts.extend(KeptFile::open(&self.log.dir)?.between(0, u64::MAX, usize::MAX)?);
        facts.sort_by_key(|(entry, _)| entry.seq);
        facts.dedup_by_key(|(entry, _)| entry.seq);
        let with_bytes = |(entry, before): &(IndexEntry, Point)| {
            let data = match entry.len {
                0 => Bytes::new(),
                _ => self.log.facts.read(entry.offset, entry.end())?,
            };
            let (entry, lens) = (entry.with(data), before.lens);
            Ok(Fact { entry, lens })
        };
        facts.iter().map(with_bytes).collect()
    }

    /// Returns the source of live readers.
    pub fn hub(&self) -> Hub {
        Hub::new(Arc::clone(&self.log), self.head.subscribe())
    }
}

impl Drop for Writer {
    /// From here on the directory shows the contents; for a journal that was never created, memory does.
    fn drop(&mut self) {
        if self.is_late() {
            return;
        }
        let span = Span::closed(&self.segment, self.end, self.facts);
        let mut chain = self.log.chain.lock();
        chain.spans.push(span);
        chain.current = None;
    }
}
