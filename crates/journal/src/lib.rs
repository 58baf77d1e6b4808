//! One ordered log per run: raw files per stream and an index, readable from any position while it grows.
//!
//! Owns the layout on disk, sequence numbers, and the tidings to readers. Never moves a byte of output itself:
//! whoever splices a pipe into the stream's file tells the journal how much came.
//!
//! A run's directory holds the raw files `stdout`, `stderr` and `lifecycle`, and `index`: a header, then entries of
//! one size, so that a seq is a place in the file. Bytes are written before the entry that names them.
//!
//! INVARIANT: the entries of one stream cover its raw file from 0 without gap or overlap.

use kennel_lifecycle::Timestamp;

mod facts;
mod files;
mod format;
mod hub;
mod reader;
mod writer;

pub use facts::{FACTS_BYTES_MAX, FactFile, FactsFound, move_aside, set_aside};
pub use hub::Hub;
pub use reader::Reader;
pub use writer::Writer;

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
    /// Of which attempt of the run.
    pub attempt: u32,
    /// What it is about.
    pub kind: Kind,
    /// Offset of the first byte in the whole of its stream, over all attempts.
    pub offset: u64,
    /// The bytes.
    pub data: Vec<u8>,
}

/// Last attempt that is told apart; all after it bear its number.
pub const ATTEMPT_MAX: u32 = 1 << 24;
/// Largest number of bytes in one output entry.
pub const ENTRY_BYTES_MAX: u32 = 64 * 1024;
/// Largest lifecycle payload.
pub const LIFECYCLE_BYTES_MAX: usize = 16 * 1024;
