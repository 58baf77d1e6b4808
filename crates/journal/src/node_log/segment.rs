//! The current segment, and those before it that are not synced.

use super::{
    disk::{self, Disk},
    format::{BLOCK_BYTES, HEADER_LEN, Header, LAYOUT, LogPosition, Origin, SegmentId},
    frame::{ESSENTIAL, Encoder, Frame, PAYLOAD_BYTES_MAX},
    inventory::Inventory,
};
use crate::errors::{failed, remove};
use std::{fs::File, io, path::Path, sync::Arc};

/// Reserved space at the end of the allocated part that only essential frames use.
pub const RESERVE_BYTES: u32 = 64 * 1024;

/// Sizes of the parts of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogSizes {
    /// Largest segment: a frame of [`PAYLOAD_BYTES_MAX`] fits into an empty one.
    pub segment: u32,
    /// Space is allocated in steps of so many bytes.
    pub step: u32,
    /// Size below which the log leaves needed frames in their segments.
    pub copy_above: u64,
}

impl Default for LogSizes {
    fn default() -> Self {
        Self {
            segment: 24 * 1024 * 1024,
            step: 256 * 1024,
            copy_above: 64 * 1024 * 1024,
        }
    }
}

/// The written part of a segment.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) id: SegmentId,
    /// The file, with the segment's lock.
    pub(super) file: Arc<File>,
    /// Offset after the last frame.
    pub(super) end: u32,
    /// Whether its name survives a power loss.
    pub(super) is_name_synced: bool,
}

impl Written {
    pub(super) fn end(&self) -> LogPosition {
        LogPosition {
            segment: self.id,
            offset: self.end,
        }
    }
}

/// The current segment.
#[derive(Debug)]
struct CurrentSegment {
    written: Written,
    header: [u8; HEADER_LEN],
    /// Length of the file: everything after `end` is zero.
    allocated: u32,
    /// End of the part to which a failed write may have left data.
    dirty_to: u32,
    /// Whether the next append begins another segment.
    is_closed: bool,
    /// Whether a sync of it failed.
    is_abandoned: bool,
}

/// The end of the log, where frames are appended.
#[derive(Debug)]
pub(super) struct LogHead {
    origin: Origin,
    sizes: LogSizes,
    live: CurrentSegment,
    /// Closed segments that are not synced, oldest first.
    older: Vec<Written>,
    pub(super) inventory: Inventory,
    /// The bytes of one append.
    buffer: Vec<u8>,
    /// Offsets of its frames.
    offsets: Vec<u32>,
}

/// Position of appended frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Position of the first one.
    pub begin: LogPosition,
    /// Position after the last one: the argument of [`NodeLog::sync`](super::NodeLog::sync).
    pub end: LogPosition,
}

impl LogHead {
    /// Creates the first segment of a server. The caller has locked the directory.
    pub(super) fn create(
        disk: &dyn Disk,
        dir: &Path,
        generation: u64,
        origin: Origin,
        sizes: LogSizes,
    ) -> io::Result<Self> {
        let number = 0;
        let id = SegmentId { generation, number };
        Ok(Self {
            origin,
            sizes,
            live: CurrentSegment::create(disk, dir, id, origin, 0, sizes.step)?,
            older: Vec::new(),
            inventory: Inventory::default(),
            buffer: Vec::new(),
            offsets: Vec::new(),
        })
    }

    /// Returns the position after the last frame.
    pub(super) fn end(&self) -> LogPosition {
        self.live.written.end()
    }

    /// Returns the length of the current segment.
    pub(super) fn live_len(&self) -> u64 {
        u64::from(self.live.allocated)
    }

    /// Appends the frames with one write: all or none of them.
    pub(super) fn append(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        frames: &[Frame<'_>],
    ) -> io::Result<Appended> {
        let is_essential = frames.iter().any(|f| f.has(ESSENTIAL));
        let mut end = self.encode(frames);
        self.check_sizes(frames)?;
        if self.live.is_closed || !self.live.allocate(disk, end, is_essential, self.sizes)? {
            match self.begin_segment(disk, dir) {
                Ok(()) => {
                    end = self.encode(frames);
                    if !self.live.allocate(disk, end, is_essential, self.sizes)? {
                        return Err(too_large());
                    }
                }
                // The disk is full: the reserve is for essential frames.
                Err(_) if is_essential && self.live.has_reserve_for(end) => {}
                Err(error) => return Err(error),
            }
        }
        let appended = self.write(disk, dir, end)?;
        for (index, frame) in frames.iter().enumerate() {
            let upto = self.offsets.get(index + 1).copied().unwrap_or(end);
            let bytes = u64::from(upto - self.offsets[index]);
            self.inventory.add(frame, bytes, appended.end);
        }
        Ok(appended)
    }

    /// Encodes the frames for the end of the current segment. Returns their end.
    fn encode(&mut self, frames: &[Frame<'_>]) -> u32 {
        self.buffer.clear();
        self.offsets.clear();
        let mut encoder = Encoder {
            id: self.live.written.id,
            header: &self.live.header,
            offset: self.live.written.end,
            out: &mut self.buffer,
        };
        self.offsets.extend(frames.iter().map(|f| encoder.put(f)));
        encoder.offset
    }

    /// Refuses frames that fit into no segment, before one is begun for them.
    fn check_sizes(&self, frames: &[Frame<'_>]) -> io::Result<()> {
        let room = (self.sizes.segment - RESERVE_BYTES) as usize - HEADER_LEN;
        let is_large = |frame: &Frame<'_>| frame.payload.len() > PAYLOAD_BYTES_MAX;
        if self.buffer.len() > room || frames.iter().any(is_large) {
            return Err(too_large());
        }
        Ok(())
    }

    fn write(&mut self, disk: &dyn Disk, dir: &Path, end: u32) -> io::Result<Appended> {
        let live = &mut self.live;
        let before = live.written.end;
        // Zeros overwrite what a failed write left after the frames.
        let dirty = live.dirty_to.saturating_sub(end) as usize;
        self.buffer.resize(self.buffer.len() + dirty, 0);
        let file = &live.written.file;
        if let Err(error) = disk.write(file, &self.buffer, u64::from(before)) {
            live.dirty_to = live.dirty_to.max(end);
            let zeros = vec![0; (live.dirty_to - before) as usize];
            // If zeroing fails too, the next append retries it.
            if disk.write(file, &zeros, u64::from(before)).is_ok() {
                live.dirty_to = 0;
            }
            return Err(failed("write", &live.written.id.path(dir), error));
        }
        live.dirty_to = 0;
        live.written.end = end;
        let begin = LogPosition {
            segment: live.written.id,
            offset: self.offsets.first().copied().unwrap_or(before),
        };
        let end = live.written.end();
        Ok(Appended { begin, end })
    }

    fn begin_segment(&mut self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let Written { id, end, .. } = self.live.written;
        let number = id.number.checked_add(1);
        let number = number.ok_or(io::ErrorKind::StorageFull)?;
        let id = SegmentId { number, ..id };
        // The previous segment stays locked until the new segment is locked.
        let _lock = disk::lock_dir(dir)?;
        // Removes data of an earlier attempt; no other server has this generation.
        remove(&id.path(dir))?;
        let live = CurrentSegment::create(disk, dir, id, self.origin, end, self.sizes.step)?;
        let former = std::mem::replace(&mut self.live, live);
        let len = u64::from(former.allocated);
        self.inventory.close(former.written.id, len);
        if !former.is_abandoned {
            self.older.push(former.written);
        }
        Ok(())
    }

    /// Returns the segments that may not be synced, oldest first.
    pub(super) fn unsynced(&self) -> Vec<Written> {
        let mut unsynced = self.older.clone();
        if !self.live.is_abandoned {
            unsynced.push(self.live.written.clone());
        }
        unsynced
    }

    /// Records that these were synced up to their ends.
    pub(super) fn set_synced(&mut self, synced: &[Written]) {
        let is_synced = |w: &Written| synced.iter().any(|s| s.id == w.id && s.end == w.end);
        self.older.retain(|written| !is_synced(written));
        for written in self.older.iter_mut().chain([&mut self.live.written]) {
            written.is_name_synced |= synced.iter().any(|s| s.id == written.id);
        }
    }

    /// Abandons all unsynced segments: they are not synced again. Returns the end of the log.
    pub(super) fn abandon(&mut self) -> LogPosition {
        self.older.clear();
        self.live.is_abandoned = true;
        self.live.is_closed = true;
        self.end()
    }
}

fn too_large() -> io::Error {
    let why = "the frames of one append are larger than the log takes";
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl CurrentSegment {
    fn create(
        disk: &dyn Disk,
        dir: &Path,
        id: SegmentId,
        origin: Origin,
        previous_end: u32,
        step: u32,
    ) -> io::Result<Self> {
        let path = id.path(dir);
        let file = disk::create(&path)?;
        let layout = LAYOUT;
        let header = Header {
            layout,
            origin,
            id,
            previous_end,
        };
        let header = header.encode();
        let mut bytes = header.to_vec();
        bytes.resize(step as usize, 0);
        if let Err(error) = disk.write(&file, &bytes, 0) {
            remove(&path)?;
            return Err(failed("write", &path, error));
        }
        let written = Written {
            id,
            file: Arc::new(file),
            end: u32::try_from(HEADER_LEN).unwrap_or(BLOCK_BYTES),
            is_name_synced: false,
        };
        Ok(Self {
            written,
            header,
            allocated: step,
            dirty_to: 0,
            is_closed: false,
            is_abandoned: false,
        })
    }

    /// Whether frames up to `end` fit; allocates space for them. `false`: another segment is needed.
    fn allocate(
        &mut self,
        disk: &dyn Disk,
        end: u32,
        is_essential: bool,
        sizes: LogSizes,
    ) -> io::Result<bool> {
        let wanted = end.saturating_add(RESERVE_BYTES);
        if wanted <= self.allocated {
            return Ok(true);
        }
        if wanted > sizes.segment {
            return Ok(false);
        }
        let upto = wanted.next_multiple_of(sizes.step).min(sizes.segment);
        // Zeros are written, not just allocated: a sync of frames then changes no metadata.
        let zeros = vec![0; (upto - self.allocated) as usize];
        match disk.write(&self.written.file, &zeros, u64::from(self.allocated)) {
            Ok(()) => {
                self.allocated = upto;
                Ok(true)
            }
            Err(_) if is_essential && self.has_reserve_for(end) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether essential frames up to `end` may be written into the allocated part.
    fn has_reserve_for(&self, end: u32) -> bool {
        end <= self.allocated && !self.is_closed
    }
}
