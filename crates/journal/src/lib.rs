//! One ordered log per run: raw files per stream and an index, readable from any position while it grows.
//!
//! Owns the layout on disk, sequence numbers, and the tidings to readers. Never moves a byte of output itself:
//! whoever splices a pipe into the stream's file tells the journal how much came.

use kennel_lifecycle::Timestamp;
use std::{fs::File, io, path::Path};

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A fact of the run; its payload is opaque here.
    Lifecycle,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One entry with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position in the run's order, from 1, without holes.
    pub seq: u64,
    /// When it was recorded.
    pub at: Timestamp,
    /// What it is about.
    pub kind: Kind,
    /// Offset of the first byte in the whole of its stream.
    pub offset: u64,
    /// The bytes.
    pub data: Vec<u8>,
}

/// Largest number of bytes in one output entry.
pub const ENTRY_BYTES_MAX: u32 = 64 * 1024;
/// Largest lifecycle payload.
pub const LIFECYCLE_BYTES_MAX: usize = 16 * 1024;

/// The one writer of a run's journal.
#[derive(Debug)]
pub struct Writer {}

/// A reader with its own position. Cheap; never slows the writer.
#[derive(Debug)]
pub struct Reader {}

/// Where readers of a live run come from. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hub {}

#[expect(clippy::todo, unused_variables, reason = "signatures first")]
impl Writer {
    /// Makes the journal of a new run in `dir`, which exists and is empty of a journal.
    pub fn create(dir: &Path) -> io::Result<Self> {
        todo!()
    }

    /// Opens the journal of a run whose writer died: cuts a torn tail, and indexes output that had been written
    /// after the last entry, with `now` as its time.
    pub fn recover(dir: &Path, now: Timestamp) -> io::Result<Self> {
        todo!()
    }

    /// The raw file of a stream, for splicing at [`Writer::len`]. Not opened for appending (splice(2): EINVAL).
    #[must_use]
    pub fn file(&self, kind: Kind) -> &File {
        todo!()
    }

    /// Length of a stream so far: where the next byte belongs.
    #[must_use]
    pub fn len(&self, kind: Kind) -> u64 {
        todo!()
    }

    /// `bytes` more of a stream have been written into its file at [`Writer::len`]. More than
    /// [`ENTRY_BYTES_MAX`] become several entries. Gives the last seq.
    pub fn output_written(&mut self, kind: Kind, bytes: u64, now: Timestamp) -> io::Result<u64> {
        todo!()
    }

    /// A fact. Gives its seq.
    pub fn lifecycle(&mut self, payload: &[u8], now: Timestamp) -> io::Result<u64> {
        todo!()
    }

    /// Makes all that was written survive a power loss (fdatasync).
    pub fn sync(&self) -> io::Result<()> {
        todo!()
    }

    /// Where live readers come from.
    #[must_use]
    pub fn hub(&self) -> Hub {
        todo!()
    }
}

#[expect(
    clippy::todo,
    clippy::unused_async,
    unused_variables,
    reason = "signatures first"
)]
impl Hub {
    /// Last seq; 0: nothing yet.
    #[must_use]
    pub fn head(&self) -> u64 {
        todo!()
    }

    /// A reader that begins after this seq, which is at most the head.
    pub fn read_after(&self, seq: u64) -> io::Result<Reader> {
        todo!()
    }
}

#[expect(
    clippy::todo,
    clippy::unused_async,
    unused_variables,
    reason = "signatures first"
)]
impl Reader {
    /// A reader of a journal that nobody writes any more. Changes nothing on disk; a torn tail is not read.
    pub fn open_ended(dir: &Path, after_seq: u64) -> io::Result<Self> {
        todo!()
    }

    /// Last seq that there is now.
    #[must_use]
    pub fn head(&self) -> u64 {
        todo!()
    }

    /// The next entries in order: at least one, at most `bytes_max` bytes of data (but always one entry), without hole or repeat.
    /// Waits while there is none. `None`: the writer is gone and all has been read. Cancel-safe.
    pub async fn next(&mut self, bytes_max: usize) -> io::Result<Option<Vec<Entry>>> {
        todo!()
    }
}
