//! One ordered log per run: raw files per stream and an index, readable from any position while it grows.
//!
//! Owns the layout on disk, sequence numbers, and the notification of readers. Never moves a byte of output itself: the
//! code that splices a pipe into the stream's file gives the journal the count.
//!
//! A run's directory holds segments: `index`, `stdout` and `stderr`, then `index.1`, `stdout.1` and so on, of which the
//! oldest are removed when all together have reached the journal's bound. An index is a header, then entries of one
//! size, so that a seq is an offset in the file. Bytes are written before the entry that refers to them. Lifecycle
//! entries have one raw file for all segments, `lifecycle`, and are never removed: `kept` has the entries of removed
//! segments. `mark` is a seq that no entry has passed, on the disk before one gets near it.
//!
//! INVARIANT: the entries of one stream in one segment cover its raw file from 0 without gap or overlap.

use bytes::Bytes;
use kennel_lifecycle::Timestamp;

mod by_offset;
mod damage;
mod errors;
mod format;
mod gap;
mod hub;
mod kept;
mod log;
mod mark;
pub mod node_log;
mod payloads;
mod raw;
mod reader;
mod screen;
mod segment;
mod tail;
mod view;
mod whole;
mod writer;

pub use by_offset::{LineBegins, Stretch};
pub use format::Dropped;
pub use gap::{Gap, GapReason, Item};
pub use hub::Hub;
pub use log::is_made;
pub use reader::Reader;
pub use screen::{Color, Picture, PictureLine, SCREEN_CELLS_MAX, Screen, Span, Style, is_drawn};
pub use tail::{Amount, Tail, TailBegin};
pub use view::{Form, LINE_BYTES_MAX, Piece, View};
pub use whole::{Whole, size_bytes, whole};
pub use writer::{AppendPosition, Late, LateFact, Writer};

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A lifecycle entry of the run; its payload is opaque here.
    Lifecycle,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A position in a journal: the data before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Seq of the last entry; 0: none.
    pub seq: u64,
    /// Length of standard output and of standard error.
    pub lens: [u64; 2],
}

/// Position of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Last seq; 0: nothing.
    pub seq: u64,
    /// Length of standard output and of standard error up to there, if it is known.
    pub lens: Option<[u64; 2]>,
}

impl From<Point> for Position {
    fn from(point: Point) -> Self {
        Self {
            seq: point.seq,
            lens: Some(point.lens),
        }
    }
}

/// Boot of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot(pub u128);

impl Boot {
    /// The boot is not known.
    pub const UNKNOWN: Self = Self(0);

    /// Returns the boot of this id, which need not be a UUID.
    pub fn of_id(boot_id: &str) -> Self {
        let digits = boot_id.replace('-', "");
        let hashed = || {
            let bytes = boot_id.bytes();
            bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
                (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
            })
        };
        Self(u128::from_str_radix(&digits, 16).unwrap_or_else(|_| hashed()))
    }

    /// Returns a boot other than this one.
    pub(crate) fn other(self) -> Self {
        Self(!self.0)
    }

    /// Whether the host has died between the two boots, as far as is known.
    pub(crate) fn differs(self, other: Self) -> bool {
        self != other && self != Self::UNKNOWN && other != Self::UNKNOWN
    }
}

/// One entry with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position in the run's order, from 1, without holes.
    pub seq: u64,
    /// Time at which it was recorded.
    pub at: Timestamp,
    /// Attempt of the run.
    pub attempt: u32,
    /// Kind of the entry.
    pub kind: Kind,
    /// Offset of the first byte in the whole of its stream, over all attempts.
    pub offset: u64,
    /// The bytes.
    pub data: Bytes,
}

/// A lifecycle entry with its position among the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The entry.
    pub entry: Entry,
    /// Length of standard output and of standard error before it.
    pub lens: [u64; 2],
}

/// Last attempt with a number of its own; all after it bear its number.
pub const ATTEMPT_MAX: u32 = 1 << 24;
/// Largest number of bytes in one output entry.
pub const ENTRY_BYTES_MAX: u32 = 64 * 1024;
/// Largest lifecycle payload.
pub const LIFECYCLE_BYTES_MAX: usize = 128 * 1024;
