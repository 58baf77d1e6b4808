//! Removes old segments, and copies the frames of them that are still needed.

use super::{
    NodeLog, disk,
    format::{LogPosition, SegmentId},
    frame::{FRAME_OVERHEAD, OwnedFrame, SNAPSHOT},
    inventory::{ClosedSegment, Key, SegmentShare},
    scan::SegmentScan,
};
use crate::errors::{failed, remove};
use std::{
    collections::{HashMap, HashSet},
    io,
};

/// Approximate bytes of copied frames that are appended at once.
const COPIED_BYTES: usize = 256 * 1024;

/// The caller's knowledge of its runs.
pub trait Retain {
    /// Whether frames of this incarnation up to `seq` are needed: the run is live, or its end is not projected, or it is one
    /// of the newest ends.
    fn needs(&mut self, run: u128, incarnation: u64, seq: u64) -> bool;

    /// Returns a frame that replaces all of the incarnation up to its own seq. `None`: its frames are copied unchanged.
    fn snapshot(&mut self, run: u128, incarnation: u64) -> Option<OwnedFrame>;
}

/// Result of a trim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Segments that were removed.
    pub segments: usize,
    /// Frames that were appended in place of theirs.
    pub copied: usize,
}

/// Needed frames of one segment.
#[derive(Default)]
struct Needed {
    runs: Vec<(Key, SegmentShare)>,
    /// Position up to which the log must be synced before the segment is removed: snapshots there replace frames of it.
    relies_upon: Option<LogPosition>,
}

impl NodeLog {
    /// Removes the oldest segments without needed frames; blocks. Above [`LogSizes::copy_above`](super::LogSizes) and
    /// twice the needed size, the needed frames of the oldest one are appended again and synced first, so that a long
    /// run does not prevent its removal. Frames of one run are then not in the order of their seqs.
    ///
    /// # Errors
    ///
    /// The segment stays: its frames cannot be read, or their replacements not appended or synced.
    pub fn trim(&self, retain: &mut dyn Retain) -> io::Result<Trimmed> {
        let _turn = self.trim_turn.lock();
        let mut trimmed = Trimmed::default();
        let closed = self.head.lock().inventory.closed.clone();
        let mut copy_above = None;
        for segment in &closed {
            let needed = self.needed(segment, retain);
            if !needed.runs.is_empty() {
                let bound = *copy_above.get_or_insert_with(|| self.bound(retain));
                if self.size_bytes() <= bound {
                    break;
                }
                trimmed.copied += self.copy(segment, &needed, retain)?;
            }
            if let Some(position) = needed.relies_upon {
                self.sync(position).map_err(io::Error::other)?;
            }
            self.remove(segment.id)?;
            trimmed.segments += 1;
        }
        Ok(trimmed)
    }

    /// Returns the length of all segments.
    pub fn size_bytes(&self) -> u64 {
        let head = self.head.lock();
        head.inventory.closed_bytes() + head.live_len()
    }

    /// Returns the size above which needed frames are copied: twice their own size.
    fn bound(&self, retain: &mut dyn Retain) -> u64 {
        let segments = {
            let head = self.head.lock();
            head.inventory.all(head.end().segment)
        };
        let mut live: HashMap<Key, u64> = HashMap::new();
        for segment in &segments {
            for (key, share) in self.needed(segment, retain).runs {
                *live.entry(key).or_default() += share.bytes;
            }
        }
        let left = live.into_iter().map(|((run, incarnation), bytes)| {
            let snapshot = retain.snapshot(run, incarnation);
            snapshot.map_or(bytes, |s| (s.payload.len() + FRAME_OVERHEAD) as u64)
        });
        self.copy_above.max(2 * left.sum::<u64>())
    }

    fn needed(&self, segment: &ClosedSegment, retain: &mut dyn Retain) -> Needed {
        let mut needed = Needed::default();
        for (key, share) in &segment.summary.runs {
            // The lock is not held while the caller is asked: the caller may be about to append.
            let covering = self
                .head
                .lock()
                .inventory
                .covering(segment.id, *key, share.last_seq);
            if let Some(snapshot) = covering {
                needed.relies_upon = needed.relies_upon.max(Some(snapshot.end));
            } else if retain.needs(key.0, key.1, share.last_seq) {
                needed.runs.push((*key, *share));
            }
        }
        needed
    }

    /// Appends and syncs replacements of the needed frames of a segment. Returns the number of frames.
    fn copy(
        &self,
        segment: &ClosedSegment,
        needed: &Needed,
        retain: &mut dyn Retain,
    ) -> io::Result<usize> {
        let mut copies = Copies::new(self);
        let mut as_they_are = HashSet::new();
        for ((run, incarnation), share) in &needed.runs {
            let key = (*run, *incarnation);
            let snapshot = retain.snapshot(*run, *incarnation);
            // A snapshot that is older than the segment does not replace all of it.
            let stands = |s: &OwnedFrame| (s.run, s.incarnation) == key && s.seq >= share.last_seq;
            match snapshot.filter(stands) {
                Some(mut frame) => {
                    frame.kind |= SNAPSHOT;
                    copies.push(frame)?;
                }
                None => {
                    as_they_are.insert(key);
                }
            }
        }
        if !as_they_are.is_empty() {
            self.copy_frames(segment.id, &as_they_are, &mut copies)?;
        }
        copies.finish()
    }

    fn copy_frames(
        &self,
        id: SegmentId,
        keys: &HashSet<Key>,
        copies: &mut Copies<'_>,
    ) -> io::Result<()> {
        let path = id.path(&self.dir);
        let mut scan =
            SegmentScan::new(disk::open(&path)?, id).map_err(|e| failed("read", &path, e))?;
        while let Some(found) = scan.next() {
            let frame = scan.frame(&found);
            let needed = frame.filter(|f| keys.contains(&(f.run, f.incarnation)));
            needed.map_or(Ok(()), |frame| copies.push(frame.into()))?;
        }
        Ok(())
    }

    fn remove(&self, id: SegmentId) -> io::Result<()> {
        remove(&id.path(&self.dir))?;
        self.head.lock().inventory.remove(id);
        // One sync per removal: if a power loss restores this segment, all later segments must exist too.
        self.disk
            .sync_dir(&self.dir)
            .map_err(|e| failed("sync", &self.dir, e))
    }
}

/// Frames to be copied to the head of the log.
struct Copies<'a> {
    log: &'a NodeLog,
    waiting: Vec<OwnedFrame>,
    waiting_bytes: usize,
    count: usize,
    end: Option<LogPosition>,
}

impl<'a> Copies<'a> {
    fn new(log: &'a NodeLog) -> Self {
        Self {
            log,
            waiting: Vec::new(),
            waiting_bytes: 0,
            count: 0,
            end: None,
        }
    }

    fn push(&mut self, frame: OwnedFrame) -> io::Result<()> {
        self.waiting_bytes += frame.payload.len();
        self.waiting.push(frame);
        if self.waiting_bytes >= COPIED_BYTES {
            self.append()?;
        }
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let frames: Vec<_> = self.waiting.iter().map(OwnedFrame::frame).collect();
        if !frames.is_empty() {
            self.end = Some(self.log.append(&frames)?.end);
        }
        self.count += frames.len();
        self.waiting.clear();
        self.waiting_bytes = 0;
        Ok(())
    }

    fn finish(mut self) -> io::Result<usize> {
        self.append()?;
        if let Some(end) = self.end {
            self.log.sync(end).map_err(io::Error::other)?;
        }
        Ok(self.count)
    }
}
