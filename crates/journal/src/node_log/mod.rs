//! The node log: one append-only log of frames for all runs of a node.
//!
//! Owns segments, their layout and their syncs. Payloads are opaque: their meaning is the caller's. Each server writes
//! its own segments and locks its current one; those of other servers are read and removed, never changed. The order of
//! the log is that of (generation, segment number, offset); a generation is one above all found in the directory, so
//! that neither clocks nor the random ids of boots decide.
//!
//! | part | bytes |
//! |---|---|
//! | file `GENERATION-NUMBER.log` | blocks of 64 KiB; zeros after the last frame |
//! | block | header (85), fragments; a rest below 14 bytes is zero |
//! | header | magic (8), layout (4), format number (4) and hash (8), keeper epoch (16), server (8), boot (16), generation (8), segment number (4), end of the segment before it (4), CRC (4), end mark (1) |
//! | fragment | length (2), part: 1 whole, 2 first, 3 middle, 4 last (1), 0 (1), CRC of these (4), CRC of these and of the bytes (4), the bytes, end mark (1) |
//! | frame | payload length (4), kind and flags (2), attempt (4), run (16), incarnation (8), seq (8), time (8), lengths of both streams (8, 8), payload |
//!
//! All numbers are little-endian; CRCs are CRC-32 and, in fragments, begin with generation, number and offset, so that
//! bytes of another position are not taken for a frame.
//!
//! A write is cut at its end, and an end mark is never zero: a fragment without it, with nothing after it, was cut by a
//! crash; any other mismatch is damage. A damaged fragment loses its frame, a damaged fragment head the rest of its
//! block.

mod continuity;
mod disk;
mod format;
mod frame;
mod inventory;
mod replay;
mod scan;
mod segment;
mod sync;
mod trim;

pub use continuity::{Continuity, TaintedRun};
pub use disk::{Disk, HostDisk, move_aside};
pub use format::{BLOCK_BYTES, LAYOUT, LogPosition, Origin, PayloadFormat, SegmentId};
pub use frame::{CRITICAL, ESSENTIAL, Frame, FrameOf, OwnedFrame, PAYLOAD_BYTES_MAX, SNAPSHOT};
pub use replay::{ReplayError, Replayed, ReplayedFrame, ReplayedSegment};
pub use scan::{Expected, LogDamage};
pub use segment::{Appended, LogSizes, RESERVE_BYTES};
pub use sync::SyncError;
pub use trim::{Retain, Trimmed};

use crate::errors::damaged;
use parking_lot::Mutex;
use segment::LogHead;
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use sync::Synced;

/// The log of this server, and those of earlier ones beside it.
#[derive(Debug)]
pub struct NodeLog {
    dir: PathBuf,
    generation: u64,
    disk: Arc<dyn Disk>,
    copy_above: u64,
    head: Mutex<LogHead>,
    /// Permits one sync at a time: a caller that waits for it finds the work done.
    sync_turn: Mutex<()>,
    trim_turn: Mutex<()>,
    synced: Mutex<Synced>,
}

impl NodeLog {
    /// Begins the segments of this server in the directory, which is created where it is missing.
    pub fn open(dir: &Path, origin: Origin) -> io::Result<Self> {
        Self::open_on(Arc::new(HostDisk), dir, origin, LogSizes::default())
    }

    /// Opens the log likewise, with another disk and other sizes.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        origin: Origin,
        sizes: LogSizes,
    ) -> io::Result<Self> {
        disk::make_dir(dir)?;
        let lock = disk::lock_dir(dir)?;
        let newest = disk::segments(dir)?.last().map_or(0, |id| id.generation);
        let generation = newest
            .checked_add(1)
            .ok_or_else(|| damaged(dir, format!("{newest} is no generation")))?;
        let head = LogHead::create(&*disk, dir, generation, origin, sizes)?;
        drop(lock);
        Ok(Self {
            dir: dir.to_owned(),
            generation,
            disk,
            copy_above: sizes.copy_above,
            synced: Mutex::new(Synced::new(head.end())),
            head: Mutex::new(head),
            sync_turn: Mutex::new(()),
            trim_turn: Mutex::new(()),
        })
    }

    /// Passes each frame of all earlier servers to `visit`, in the order of the log; blocks.
    ///
    /// # Errors
    ///
    /// [`ReplayError::FormerServer`]: one of them still lives. The call may be repeated.
    pub fn replay(
        &self,
        mut visit: impl FnMut(ReplayedFrame<'_>),
    ) -> Result<Replayed, ReplayError> {
        let _turn = self.trim_turn.lock();
        if let Some(path) = replay::locked_by_former(&self.dir, self.generation)? {
            return Err(ReplayError::FormerServer { path });
        }
        let (replayed, closed) = replay::replay(&self.dir, self.generation, &mut visit)?;
        let mut head = self.head.lock();
        head.inventory.put_former(closed, self.generation);
        Ok(replayed)
    }

    /// Replays likewise a log in which no segment can be begun: its disk is full.
    pub fn read_former(
        dir: &Path,
        mut visit: impl FnMut(ReplayedFrame<'_>),
    ) -> Result<Replayed, ReplayError> {
        if !dir.exists() {
            return Ok(Replayed::default());
        }
        if let Some(path) = replay::locked_by_former(dir, u64::MAX)? {
            return Err(ReplayError::FormerServer { path });
        }
        replay::replay(dir, u64::MAX, &mut visit).map(|(replayed, _)| replayed)
    }

    /// Returns the number of this server in the directory, above those of all earlier ones.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Appends these frames with one write. They survive a crash of this process; a power loss once they are synced.
    ///
    /// # Errors
    ///
    /// None of them was appended, and the call may be repeated: the disk is full or fails, or they are too large.
    pub fn append(&self, frames: &[Frame<'_>]) -> io::Result<Appended> {
        self.head.lock().append(&*self.disk, &self.dir, frames)
    }

    /// Returns the position after the last frame.
    pub fn end(&self) -> LogPosition {
        self.head.lock().end()
    }
}
