//! The writer: appends entries, tells readers, and mends what a dead writer left.

use crate::{
    ENTRY_BYTES_MAX, Entry, Hub, Kind, LIFECYCLE_BYTES_MAX,
    files::{Files, slot},
    format::{Header, IndexEntry, position},
};
use kennel_lifecycle::Timestamp;
use std::{fs::File, io, os::unix::fs::FileExt, path::Path, sync::Arc};
use tokio::sync::watch;

/// Entries of one index write; more output than that takes several.
const ENTRIES_PER_WRITE_MAX: u64 = 256;

const OUTPUTS: [Kind; 2] = [Kind::Stdout, Kind::Stderr];

/// The one writer of a run's journal.
///
/// A failed call has changed nothing that a reader sees; it may be made again.
#[derive(Debug)]
pub struct Writer {
    files: Arc<Files>,
    lens: [u64; 3],
    attempt: u32,
    head: watch::Sender<u64>,
}

impl Writer {
    /// Makes the journal of a new run in `dir`, which exists and is empty of a journal.
    pub fn create(dir: &Path) -> io::Result<Self> {
        let writer = Self::new(Files::create(dir)?, 0, [0; 3], 1);
        writer.write_header()?;
        Ok(writer)
    }

    /// Opens the journal of a run whose writer died, as [`Writer::reopen`] does, and indexes the output that no entry
    /// names, with `now` as its time. A crash within is mended by the next call.
    pub fn recover(dir: &Path, now: Timestamp) -> io::Result<Self> {
        let (mut writer, unnamed) = Self::reopen(dir)?;
        for (kind, bytes) in OUTPUTS.into_iter().zip(unnamed) {
            writer.output_written(kind, bytes, now)?;
        }
        Ok(writer)
    }

    /// Opens the journal of a run whose writer died and cuts a torn tail, which needs no room on the disk. Gives also
    /// how many bytes of stdout and of stderr are in their files and named by no entry: they are to be told with
    /// [`Writer::output_written`] before anything else is.
    pub fn reopen(dir: &Path) -> io::Result<(Self, [u64; 2])> {
        let files = Files::open_or_create(dir)?;
        let intact = files.intact()?;
        let writer = Self::new(files, intact.head, intact.lens, intact.attempt);
        writer.cut(intact.head)?;
        if !intact.header {
            writer.write_header()?;
        }
        let unnamed = OUTPUTS.map(|kind| intact.found[slot(kind)] - writer.len(kind));
        Ok((writer, unnamed))
    }

    fn new(files: Files, head: u64, lens: [u64; 3], attempt: u32) -> Self {
        Self {
            files: Arc::new(files),
            lens,
            attempt,
            head: watch::Sender::new(head),
        }
    }

    fn write_header(&self) -> io::Result<()> {
        self.files
            .index
            .write_all_at(&Header::encode(), 0)
            .map_err(|e| self.files.index_failed("write", e))
    }

    /// Takes away what is not known to be whole: a fact without an entry was never told to anybody.
    fn cut(&self, head: u64) -> io::Result<()> {
        self.files
            .index
            .set_len(position(head + 1))
            .map_err(|e| self.files.index_failed("truncate", e))?;
        let Some(facts) = self.files.made(Kind::Lifecycle) else {
            return Ok(());
        };
        facts
            .set_len(self.len(Kind::Lifecycle))
            .map_err(|e| self.files.raw_failed("truncate", Kind::Lifecycle, e))
    }

    /// The raw file of a stream, for splicing at [`Writer::len`]. Not opened for appending (splice(2): EINVAL).
    /// The first call makes it.
    pub fn file(&self, kind: Kind) -> io::Result<&File> {
        self.files.raw(kind)
    }

    /// Whether the raw file of a stream has been made.
    #[must_use]
    pub fn has_file(&self, kind: Kind) -> bool {
        self.files.made(kind).is_some()
    }

    /// Of which attempt what is written is.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// What is written from here on is of this attempt. Bytes that a dead writer has left unnamed are of the attempt that
    /// its last entry was of.
    pub fn begin_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
    }

    /// Length of a stream so far: where the next byte belongs.
    #[must_use]
    pub fn len(&self, kind: Kind) -> u64 {
        self.lens[slot(kind)]
    }

    /// `bytes` more of a stream have been written into its file at [`Writer::len`]. More than
    /// [`ENTRY_BYTES_MAX`] become several entries. Gives the last seq.
    pub fn output_written(&mut self, kind: Kind, bytes: u64, now: Timestamp) -> io::Result<u64> {
        if kind == Kind::Lifecycle {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "lifecycle entries are written whole",
            ));
        }
        let end = self.len(kind) + bytes;
        while self.len(kind) < end {
            let most = ENTRIES_PER_WRITE_MAX * u64::from(ENTRY_BYTES_MAX);
            self.append(kind, (end - self.len(kind)).min(most), now)?;
        }
        Ok(self.last_seq())
    }

    /// A fact. Gives its seq.
    pub fn lifecycle(&mut self, payload: &[u8], now: Timestamp) -> io::Result<u64> {
        if payload.len() > LIFECYCLE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a lifecycle payload has at most {LIFECYCLE_BYTES_MAX} bytes"),
            ));
        }
        self.files
            .raw(Kind::Lifecycle)?
            .write_all_at(payload, self.len(Kind::Lifecycle))
            .map_err(|e| self.files.raw_failed("write", Kind::Lifecycle, e))?;
        self.append(Kind::Lifecycle, payload.len() as u64, now)?;
        Ok(self.last_seq())
    }

    /// Names the next `bytes` of a stream, which are in its file, with one write to the index.
    ///
    /// A crash before the write: recovery names the output, and cuts the fact. After it: the entry stands.
    fn append(&mut self, kind: Kind, bytes: u64, now: Timestamp) -> io::Result<()> {
        let first = self.last_seq() + 1;
        let begin = self.len(kind);
        let end = begin + bytes;
        let mut entry = IndexEntry {
            seq: first,
            at: now,
            kind,
            offset: begin,
            len: piece(begin, end),
            attempt: self.attempt,
        };
        if entry.end() == end {
            self.write_entries(first, &entry.encode())?;
        } else {
            let mut batch = Vec::new();
            batch.extend(entry.encode());
            while entry.end() < end {
                entry.seq += 1;
                entry.offset = entry.end();
                entry.len = piece(entry.offset, end);
                batch.extend(entry.encode());
            }
            self.write_entries(first, &batch)?;
        }
        self.lens[slot(kind)] = end;
        // Readers look only after this, when bytes and entry are in place.
        self.head.send_replace(entry.seq);
        Ok(())
    }

    fn write_entries(&self, first: u64, batch: &[u8]) -> io::Result<()> {
        self.files
            .index
            .write_all_at(batch, position(first))
            .map_err(|e| self.files.index_failed("write", e))
    }

    fn last_seq(&self) -> u64 {
        *self.head.borrow()
    }

    /// All facts so far, in order.
    ///
    /// Reads the whole index (36 bytes an entry): call it where blocking is allowed.
    pub fn facts(&self) -> io::Result<Vec<Entry>> {
        self.files.facts(self.last_seq())
    }

    /// Makes all that was written survive a power loss (fdatasync).
    pub fn sync(&self) -> io::Result<()> {
        self.files.sync()
    }

    /// Where live readers come from.
    #[must_use]
    pub fn hub(&self) -> Hub {
        Hub::new(Arc::clone(&self.files), self.head.subscribe())
    }
}

/// Length of the entry that begins here.
fn piece(begin: u64, end: u64) -> u32 {
    u32::try_from(end - begin).map_or(ENTRY_BYTES_MAX, |len| len.min(ENTRY_BYTES_MAX))
}
