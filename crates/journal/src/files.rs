//! The four files of a journal: opening, reading and checking them. Changes nothing in them.

use crate::{
    Entry, Kind,
    format::{ENTRY_LEN, HEADER_LEN, Header, IndexEntry, position},
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Index entries read with one pread.
const INDEX_CHUNK: usize = 256;
/// Entries handed out with one read, however small they are.
const ENTRIES_PER_READ_MAX: u64 = 4096;

/// Raw files in the order of [`slot`].
const RAW: [(Kind, &str); 3] = [
    (Kind::Lifecycle, "lifecycle"),
    (Kind::Stdout, "stdout"),
    (Kind::Stderr, "stderr"),
];
const INDEX: &str = "index";

/// Which of the three raw files is this stream's.
pub(crate) fn slot(kind: Kind) -> usize {
    match kind {
        Kind::Lifecycle => 0,
        Kind::Stdout => 1,
        Kind::Stderr => 2,
    }
}

/// Open files of one journal. Shared by the writer and its readers, who all name the offset they mean.
///
/// A raw file is made with its first byte: many commands never write to one of their streams, and a file costs an
/// inode and a descriptor. One that is not there is empty.
#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    how: OpenOptions,
    pub(crate) index: File,
    raw: [OnceLock<File>; 3],
}

/// What is intact in a journal that has no writer.
#[derive(Debug)]
pub(crate) struct Intact {
    /// Whether the header is there.
    pub(crate) header: bool,
    /// Last entry that is whole and whose bytes are there.
    pub(crate) head: u64,
    /// Length of each stream up to that entry.
    pub(crate) lens: [u64; 3],
    /// The attempt that it is of.
    pub(crate) attempt: u32,
    /// Length of each raw file.
    pub(crate) found: [u64; 3],
}

impl Files {
    /// Makes the index, which may not exist.
    pub(crate) fn create(dir: &Path) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create_new(true).mode(0o600);
        Self::open(dir, how)
    }

    /// Opens the files for writing. A missing index is made: the writer may have died before it made it.
    pub(crate) fn open_or_create(dir: &Path) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        how.read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        Self::open(dir, how)?.with_raw()
    }

    /// Opens the files for reading.
    pub(crate) fn open_to_read(dir: &Path) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        how.read(true);
        Self::open(dir, how)?.with_raw()
    }

    fn open(dir: &Path, how: OpenOptions) -> io::Result<Self> {
        let path = dir.join(INDEX);
        Ok(Self {
            index: how.open(&path).map_err(|e| failed("open", path, e))?,
            dir: dir.to_owned(),
            how,
            raw: Default::default(),
        })
    }

    /// Opens the raw files that are there.
    fn with_raw(self) -> io::Result<Self> {
        for (kind, name) in RAW {
            if self.dir.join(name).exists() {
                self.raw(kind)?;
            }
        }
        Ok(self)
    }

    /// The raw file of a stream; a writer makes it where it is missing.
    pub(crate) fn raw(&self, kind: Kind) -> io::Result<&File> {
        let place = &self.raw[slot(kind)];
        if let Some(file) = place.get() {
            return Ok(file);
        }
        let path = self.dir.join(RAW[slot(kind)].1);
        let file = self.how.open(&path).map_err(|e| failed("open", path, e))?;
        // Two readers may open it at once: the first one stays.
        Ok(place.get_or_init(|| file))
    }

    /// The raw file of a stream that has come to have one.
    pub(crate) fn made(&self, kind: Kind) -> Option<&File> {
        self.raw[slot(kind)].get()
    }

    /// Makes content and names of all files survive a power loss; bytes before the entries that name them.
    pub(crate) fn sync(&self) -> io::Result<()> {
        for (kind, _) in RAW {
            if let Some(file) = self.made(kind) {
                file.sync_data()
                    .map_err(|e| self.raw_failed("sync", kind, e))?;
            }
        }
        self.index
            .sync_data()
            .map_err(|e| self.index_failed("sync", e))?;
        File::open(&self.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(|e| failed("sync", self.dir.clone(), e))
    }

    /// Walks the whole index up to the first entry that is not whole, out of order, or whose bytes are missing.
    pub(crate) fn intact(&self) -> io::Result<Intact> {
        let mut found = [0; 3];
        for (kind, _) in RAW {
            found[slot(kind)] = self
                .made(kind)
                .map_or(Ok(0), length)
                .map_err(|e| self.raw_failed("find the length of", kind, e))?;
        }
        let index_len =
            length(&self.index).map_err(|e| self.index_failed("find the length of", e))?;
        let mut intact = Intact {
            header: self.check_header(index_len)?,
            head: 0,
            lens: [0; 3],
            attempt: 1,
            found,
        };
        if !intact.header {
            return Ok(intact);
        }
        let entries = (index_len - HEADER_LEN as u64) / ENTRY_LEN as u64;
        while intact.head < entries {
            let before = intact.head;
            for entry in self.index_chunk(before, entries)? {
                let Some(entry) = entry.filter(|e| intact.continues(e)) else {
                    return Ok(intact);
                };
                intact.head = entry.seq;
                intact.lens[slot(entry.kind)] = entry.end();
                intact.attempt = entry.attempt;
            }
        }
        Ok(intact)
    }

    fn check_header(&self, index_len: u64) -> io::Result<bool> {
        let mut bytes = [0; HEADER_LEN];
        let present = usize::try_from(index_len).map_or(HEADER_LEN, |len| len.min(HEADER_LEN));
        self.index
            .read_exact_at(&mut bytes[..present], 0)
            .map_err(|e| self.index_failed("read", e))?;
        match Header::decode(&bytes[..present]) {
            Header::Good => Ok(true),
            Header::Torn => Ok(false),
            Header::Foreign => Err(self.damaged("it is not the index of a journal".into())),
            Header::OtherVersion(version) => {
                Err(self.damaged(format!("version {version} is not known here")))
            }
        }
    }

    /// Some entries after this seq, at most up to `last`; `None` in place of a broken one.
    fn index_chunk(&self, after: u64, last: u64) -> io::Result<Vec<Option<IndexEntry>>> {
        let count = usize::try_from(last - after).map_or(INDEX_CHUNK, |n| n.min(INDEX_CHUNK));
        let mut bytes = vec![0; count * ENTRY_LEN];
        self.index
            .read_exact_at(&mut bytes, position(after + 1))
            .map_err(|e| self.index_failed("read", e))?;
        Ok((after + 1..)
            .zip(bytes.chunks_exact(ENTRY_LEN))
            .map(|(seq, bytes)| IndexEntry::decode(bytes).filter(|e| e.seq == seq))
            .collect())
    }

    /// Entries after this seq up to `head`, at least one, at most `bytes_max` bytes but always one entry.
    ///
    /// INVARIANT: `after < head`, and all entries up to `head` are written.
    pub(crate) fn read(&self, after: u64, head: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let last = head.min(after.saturating_add(ENTRIES_PER_READ_MAX));
        let mut chosen: Vec<IndexEntry> = Vec::new();
        let mut bytes = 0usize;
        'full: while after + (chosen.len() as u64) < last {
            let from = after + chosen.len() as u64;
            for (seq, entry) in (from + 1..).zip(self.index_chunk(from, last)?) {
                let entry = entry.ok_or_else(|| self.damaged(format!("entry {seq} is broken")))?;
                bytes = bytes.saturating_add(entry.len as usize);
                if bytes > bytes_max && !chosen.is_empty() {
                    break 'full;
                }
                chosen.push(entry);
            }
        }
        self.with_bytes(&chosen)
    }

    /// All facts up to `head`, without the output between them.
    ///
    /// INVARIANT: all entries up to `head` are written.
    pub(crate) fn facts(&self, head: u64) -> io::Result<Vec<Entry>> {
        let mut facts = Vec::new();
        let mut after = 0;
        while after < head {
            let mut chosen = Vec::new();
            for entry in self.index_chunk(after, head)? {
                after += 1;
                let entry =
                    entry.ok_or_else(|| self.damaged(format!("entry {after} is broken")))?;
                if entry.kind == Kind::Lifecycle {
                    chosen.push(entry);
                }
            }
            facts.extend(self.with_bytes(&chosen)?);
        }
        Ok(facts)
    }

    /// One pread per stream: the entries of a stream lie side by side in its raw file.
    fn with_bytes(&self, chosen: &[IndexEntry]) -> io::Result<Vec<Entry>> {
        let mut spans: [Option<(u64, u64)>; 3] = [None; 3];
        for entry in chosen {
            let span = &mut spans[slot(entry.kind)];
            let (begin, end) = span.unwrap_or((entry.offset, entry.offset));
            if end != entry.offset {
                return Err(self.damaged(format!("entry {} is out of place", entry.seq)));
            }
            *span = Some((begin, entry.end()));
        }
        let mut bytes: [Vec<u8>; 3] = Default::default();
        for (kind, _) in RAW {
            if let Some((begin, end)) = spans[slot(kind)] {
                // Bounded: ENTRIES_PER_READ_MAX entries of ENTRY_BYTES_MAX fit into 32 bits.
                let mut read = vec![0; usize::try_from(end - begin).unwrap_or(usize::MAX)];
                self.raw(kind)?
                    .read_exact_at(&mut read, begin)
                    .map_err(|e| self.raw_failed("read", kind, e))?;
                bytes[slot(kind)] = read;
            }
        }
        Ok(chosen
            .iter()
            .map(|entry| {
                let (begin, end) = spans[slot(entry.kind)].unwrap_or_default();
                let read = &mut bytes[slot(entry.kind)];
                let data = if entry.len == 0 {
                    Vec::new()
                } else if (begin, end) == (entry.offset, entry.end()) {
                    std::mem::take(read)
                } else {
                    let at = usize::try_from(entry.offset - begin).unwrap_or(usize::MAX);
                    read[at..at + entry.len as usize].to_vec()
                };
                Entry {
                    seq: entry.seq,
                    at: entry.at,
                    attempt: entry.attempt,
                    kind: entry.kind,
                    offset: entry.offset,
                    data,
                }
            })
            .collect())
    }

    pub(crate) fn index_failed(&self, what: &'static str, source: io::Error) -> io::Error {
        failed(what, self.dir.join(INDEX), source)
    }

    pub(crate) fn raw_failed(
        &self,
        what: &'static str,
        kind: Kind,
        source: io::Error,
    ) -> io::Error {
        failed(what, self.dir.join(RAW[slot(kind)].1), source)
    }

    fn damaged(&self, why: String) -> io::Error {
        self.index_failed("read", io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

impl Intact {
    fn continues(&self, entry: &IndexEntry) -> bool {
        let slot = slot(entry.kind);
        entry.seq == self.head + 1
            && entry.offset == self.lens[slot]
            && entry.end() <= self.found[slot]
    }
}

/// An error of one file, with its name; the kind of the cause is kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}")]
struct FileError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(what: &'static str, path: PathBuf, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), FileError { what, path, source })
}

fn length(file: &File) -> io::Result<u64> {
    file.metadata().map(|m| m.len())
}
