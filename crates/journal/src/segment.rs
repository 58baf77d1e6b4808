//! One segment of a journal: its index and the raw files of the two streams.

use crate::{
    Entry, Kind, Point,
    errors::{damaged, failed, remove},
    format::{
        DROPPED_AT, DROPPED_LEN, Dropped, ENTRY_LEN, HEADER_LEN, Header, IndexEntry, IndexStart,
        entries_at, take,
    },
    payloads::{self, Payloads},
    raw::Raw,
};
use bytes::Bytes;
use kennel_lifecycle::Timestamp;
use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Index entries read with one pread.
const INDEX_CHUNK: usize = 256;
/// Index entries of the first pread for output: few are enough where entries are large.
const INDEX_CHUNK_FIRST: usize = 8;
/// Entries returned by one read, however small they are.
pub(crate) const ENTRIES_PER_READ_MAX: u64 = 4096;

/// Open files of one segment. Shared by the writer and its readers, each of which gives its own offset.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    path: PathBuf,
    pub(crate) index: Arc<Raw>,
    pub(crate) raw: [Raw; 2],
}

/// Intact part of a segment without a writer.
#[derive(Debug)]
pub(crate) struct Intact {
    /// Position after the last entry that is whole and whose bytes are there.
    pub(crate) end: Point,
    /// Lengths of the streams that can be read, where the index is damaged; absent: those of `end`.
    pub(crate) there: Option<[u64; 2]>,
    /// Length of the lifecycle entries up to there.
    pub(crate) facts_len: u64,
    /// Its attempt.
    pub(crate) attempt: u32,
    /// Time of its last entry; without one, time of its beginning.
    pub(crate) at: Timestamp,
    /// First and last seq of its lifecycle entries.
    pub(crate) facts: Option<(u64, u64)>,
}

impl Intact {
    /// Returns that of a segment without entries.
    pub(crate) fn before(header: &Header) -> Self {
        Self {
            end: header.first,
            there: None,
            facts_len: header.facts_len,
            attempt: header.attempt,
            at: header.at,
            facts: None,
        }
    }

    /// Adds an entry that follows.
    pub(crate) fn add(&mut self, entry: &IndexEntry) {
        if let Some(stream) = slot(entry.kind) {
            self.end.lens[stream] = entry.end();
        } else {
            let begin = self.facts.map_or(entry.seq, |(begin, _)| begin);
            self.facts = Some((begin, entry.seq));
            self.facts_len = entry.end();
        }
        self.end.seq = entry.seq;
        self.attempt = entry.attempt;
        self.at = entry.at;
    }
}

/// Returns which of the two raw files is this stream's.
pub(crate) fn slot(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Lifecycle => None,
        Kind::Stdout => Some(0),
        Kind::Stderr => Some(1),
    }
}

/// Returns the name of a segment's file.
fn name(of: &str, number: u32) -> String {
    match number {
        0 => of.to_owned(),
        number => format!("{of}.{number}"),
    }
}

/// Returns the segment of a file by its name, and whether it is an index.
pub(crate) fn number_of(name: &str) -> Option<(u32, bool)> {
    let (of, number) = match name.split_once('.') {
        None => (name, 0),
        Some((of, number)) => (of, number.parse().ok().filter(|n| *n > 0)?),
    };
    match of {
        "index" => Some((number, true)),
        "stdout" | "stderr" => Some((number, false)),
        _ => None,
    }
}

/// Removes a segment. The index is removed first: without it the other files belong to no segment.
pub(crate) fn remove_files(dir: &Path, number: u32) -> io::Result<()> {
    for of in ["index", "stdout", "stderr"] {
        remove(&dir.join(name(of, number)))?;
    }
    Ok(())
}

impl Segment {
    /// Creates a segment whose index is missing. On failure its files are removed.
    pub(crate) fn create(dir: &Path, header: Header) -> io::Result<Self> {
        let segment = Self::late(dir, header);
        segment.index.make()?;
        Ok(segment)
    }

    /// Makes a segment whose index is created later.
    pub(crate) fn late(dir: &Path, header: Header) -> Self {
        let path = dir.join(name("index", header.number));
        let mut how = OpenOptions::new();
        how.read(true).write(true).create_new(true).mode(0o600);
        let index = Raw::late(path.clone(), &how, header.encode().to_vec());
        Self::over(dir, header, index, path, &writing())
    }

    /// Opens a segment; absent where its header is torn.
    pub(crate) fn open(dir: &Path, number: u32, write: bool) -> io::Result<Option<Self>> {
        let path = dir.join(name("index", number));
        let mut how = OpenOptions::new();
        how.read(true).write(write);
        let index = how.open(&path).map_err(|e| failed("open", &path, e))?;
        let mut bytes = [0; HEADER_LEN];
        let len = index.metadata().map(|m| m.len());
        let len = len.map_err(|e| failed("find the length of", &path, e))?;
        let there = usize::try_from(len).map_or(HEADER_LEN, |len| len.min(HEADER_LEN));
        index
            .read_exact_at(&mut bytes[..there], 0)
            .map_err(|e| failed("read", &path, e))?;
        let header = match Header::decode(&bytes[..there]) {
            IndexStart::Good(header) if header.number == number => *header,
            IndexStart::Torn => return Ok(None),
            IndexStart::Good(..) | IndexStart::Foreign => {
                return Err(damaged(&path, "it is not the index of a journal".into()));
            }
            IndexStart::OtherVersion(version) => {
                // Another version can read this index.
                let why = format!("version {version} is not known here");
                let unknown = io::Error::new(io::ErrorKind::Unsupported, why);
                return Err(failed("read", &path, unknown));
            }
        };
        let index = Raw::opened(path.clone(), &how, index);
        let how = if write { writing() } else { how };
        Ok(Some(Self::over(dir, header, index, path, &how)))
    }

    fn over(dir: &Path, header: Header, index: Raw, path: PathBuf, how: &OpenOptions) -> Self {
        let raw = |stream: usize, of| {
            let base = header.first.lens[stream];
            Raw::new(dir.join(name(of, header.number)), how, base)
        };
        Self {
            raw: [raw(0, "stdout"), raw(1, "stderr")],
            header,
            path,
            index: Arc::new(index),
        }
    }

    /// Returns its number of bytes up to this position.
    pub(crate) fn size(&self, end: Point) -> u64 {
        size(self.header.first, end)
    }

    /// Returns the number of entries in its index, by its length.
    pub(crate) fn entries(&self) -> io::Result<u64> {
        let len = self.index.end()?;
        Ok(len.saturating_sub(entries_at(self.header.number)) / ENTRY_LEN as u64)
    }

    /// Walks the whole index up to the first entry that is not whole, out of order, or whose bytes are missing.
    pub(crate) fn intact(&self, facts: &Payloads) -> io::Result<Intact> {
        let found = [self.raw[0].end()?, self.raw[1].end()?];
        let facts_found = facts.end()?;
        let mut intact = Intact::before(&self.header);
        let last = self.header.first.seq + self.entries()?;
        while intact.end.seq < last {
            for entry in self.index_chunk(intact.end.seq, last)? {
                let Some(entry) = entry else {
                    return Ok(intact);
                };
                let (at, there) = match slot(entry.kind) {
                    Some(stream) => (intact.end.lens[stream], found[stream]),
                    None => (intact.facts_len, facts_found),
                };
                if entry.offset != at || entry.end() > there {
                    return Ok(intact);
                }
                if entry.kind == Kind::Lifecycle && facts.is_lost(entry.offset, entry.end())? {
                    return Ok(intact);
                }
                intact.add(&entry);
            }
        }
        Ok(intact)
    }

    /// Returns some entries after this seq, at most up to `last`; `None` in place of a broken one.
    pub(crate) fn index_chunk(&self, after: u64, last: u64) -> io::Result<Vec<Option<IndexEntry>>> {
        self.index_entries(after, last, INDEX_CHUNK)
    }

    fn index_entries(
        &self,
        after: u64,
        last: u64,
        count_max: usize,
    ) -> io::Result<Vec<Option<IndexEntry>>> {
        let count = usize::try_from(last - after).map_or(count_max, |n| n.min(count_max));
        let begin = self.position(after + 1);
        let bytes = self.index.read(begin, begin + (count * ENTRY_LEN) as u64)?;
        Ok((after + 1..)
            .zip(bytes.chunks_exact(ENTRY_LEN))
            .map(|(seq, bytes)| IndexEntry::decode(bytes).filter(|e| e.seq == seq))
            .collect())
    }

    /// Reads entries after this seq up to `last`, at least one, at most `bytes_max` bytes but always one entry.
    ///
    /// INVARIANT: `first <= after < last`, and all entries up to `last` are written.
    pub(crate) fn read(
        &self,
        after: u64,
        last: u64,
        bytes_max: usize,
        facts: &Payloads,
    ) -> io::Result<Vec<Entry>> {
        let last = last.min(after.saturating_add(ENTRIES_PER_READ_MAX));
        let mut chosen: Vec<IndexEntry> = Vec::new();
        let mut bytes = 0usize;
        'full: while after + (chosen.len() as u64) < last {
            let from = after + chosen.len() as u64;
            let count_max = if chosen.is_empty() {
                INDEX_CHUNK_FIRST
            } else {
                INDEX_CHUNK
            };
            for (seq, entry) in (from + 1..).zip(self.index_entries(from, last, count_max)?) {
                let entry = entry.ok_or_else(|| self.broken(seq))?;
                bytes = bytes.saturating_add(entry.len as usize);
                if bytes > bytes_max && !chosen.is_empty() {
                    break 'full;
                }
                chosen.push(entry);
            }
        }
        self.with_bytes(&chosen, facts)
    }

    /// Returns the lifecycle entries between these two seqs, both included, each with the position before it.
    pub(crate) fn facts(&self, begin: u64, end: u64) -> io::Result<Vec<(IndexEntry, Point)>> {
        let mut found = Vec::new();
        let mut at = Point {
            seq: begin - 1,
            lens: self.before(begin - 1)?.lens,
        };
        while at.seq < end {
            for entry in self.index_chunk(at.seq, end)? {
                let entry = entry.ok_or_else(|| self.broken(at.seq + 1))?;
                match slot(entry.kind) {
                    Some(stream) => at.lens[stream] = entry.end(),
                    None => found.push((entry, at)),
                }
                at.seq = entry.seq;
            }
        }
        Ok(found)
    }

    /// Reads the bytes, with one pread per stream: the entries of a stream are contiguous in its raw file.
    fn with_bytes(&self, chosen: &[IndexEntry], facts: &Payloads) -> io::Result<Vec<Entry>> {
        let place = |kind| slot(kind).unwrap_or(2);
        let mut spans: [Option<(u64, u64)>; 3] = [None; 3];
        for entry in chosen {
            let span = &mut spans[place(entry.kind)];
            let (begin, end) = span.unwrap_or((entry.offset, entry.offset));
            if end != entry.offset {
                return Err(self.broken(entry.seq));
            }
            *span = Some((begin, entry.end()));
        }
        let mut bytes: [Bytes; 3] = Default::default();
        for (number, (span, bytes)) in spans.iter().zip(&mut bytes).enumerate() {
            if let Some((begin, end)) = span.filter(|(begin, end)| begin < end) {
                *bytes = match self.raw.get(number) {
                    Some(raw) => raw.read(begin, end)?,
                    None => facts.read(begin, end)?,
                };
            }
        }
        let with_bytes = |entry: &IndexEntry| {
            let (begin, _) = spans[place(entry.kind)].unwrap_or_default();
            if entry.len == 0 {
                return Ok(entry.with(Bytes::new()));
            }
            let at = usize::try_from(entry.offset - begin).unwrap_or(usize::MAX);
            let bytes = bytes[place(entry.kind)].slice(at..at + entry.len as usize);
            if entry.kind == Kind::Lifecycle && payloads::is_lost(&bytes) {
                return Err(self.broken(entry.seq));
            }
            Ok(entry.with(bytes))
        };
        chosen.iter().map(with_bytes).collect()
    }

    /// Writes entries, of which the first has this seq.
    pub(crate) fn write_entries(&self, first: u64, batch: &[u8]) -> io::Result<()> {
        self.index.write(batch, self.position(first))
    }

    /// Reads from its index the bytes dropped after its last entry.
    pub(crate) fn dropped(&self) -> io::Result<Dropped> {
        let begin = DROPPED_AT as u64;
        let bytes = self.index.read(begin, begin + DROPPED_LEN as u64)?;
        Ok(Dropped::decode(&take(&bytes, 0)))
    }

    /// Overwrites that, in an allocated block.
    pub(crate) fn write_dropped(&self, dropped: Dropped) -> io::Result<()> {
        self.index.write(&dropped.encode(), DROPPED_AT as u64)
    }

    /// Cuts the index after this seq.
    pub(crate) fn cut(&self, last: u64) -> io::Result<()> {
        self.index.cut(self.position(last + 1))
    }

    /// Makes index and streams survive a power loss; bytes before the entries that refer to them.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.raw.iter().try_for_each(Raw::sync)?;
        self.index.sync()
    }

    /// Returns the offset in the index of the entry with this seq.
    fn position(&self, seq: u64) -> u64 {
        entries_at(self.header.number) + (seq - 1 - self.header.first.seq) * ENTRY_LEN as u64
    }

    pub(crate) fn broken(&self, seq: u64) -> io::Error {
        damaged(&self.path, format!("entry {seq} is broken"))
    }
}

/// Returns the bytes of a segment between these positions; lifecycle lines are not counted, wherever they are.
pub(crate) fn size(first: Point, end: Point) -> u64 {
    let output = (end.lens[0] - first.lens[0]) + (end.lens[1] - first.lens[1]);
    HEADER_LEN as u64 + output + (end.seq - first.seq) * ENTRY_LEN as u64
}

/// Returns the options with which a writer opens a raw file.
pub(crate) fn writing() -> OpenOptions {
    let mut how = OpenOptions::new();
    how.read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    how
}
