//! The runs with frames in each segment: enough to decide on removals without reading it.

use super::{
    format::{LogPosition, SegmentId},
    frame::{Frame, SNAPSHOT},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// A run and its incarnation.
pub(super) type Key = (u128, u64);

/// The frames of one run in one segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentShare {
    /// The highest seq.
    pub(super) last_seq: u64,
    /// Total bytes of its frames.
    pub(super) bytes: u64,
}

/// The runs with frames in one segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    pub(super) runs: HashMap<Key, SegmentShare>,
}

impl Summary {
    /// Counts a frame of so many bytes.
    pub(super) fn add(&mut self, frame: &Frame<'_>, bytes: u64) {
        let share = self.runs.entry((frame.run, frame.incarnation)).or_default();
        share.last_seq = share.last_seq.max(frame.seq);
        share.bytes += bytes;
    }
}

/// A closed segment.
#[derive(Clone, Debug)]
pub(super) struct ClosedSegment {
    pub(super) id: SegmentId,
    /// Length of the file.
    pub(super) len: u64,
    pub(super) summary: Arc<Summary>,
}

impl ClosedSegment {
    pub(super) fn new(id: SegmentId, len: u64, summary: Arc<Summary>) -> Self {
        Self { id, len, summary }
    }
}

/// The newest snapshot of a run that this server wrote.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotAt {
    pub(super) seq: u64,
    /// Position after its frame.
    pub(super) end: LogPosition,
}

/// All segments of the directory that this server may remove, and its current one.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// Oldest first; those of earlier servers, once they were replayed, are before the own ones.
    pub(super) closed: VecDeque<ClosedSegment>,
    /// The current segment.
    pub(super) live: Summary,
    /// Only own snapshots: whether those of an earlier server were synced is not known.
    pub(super) snapshots: HashMap<Key, SnapshotAt>,
}

impl Inventory {
    /// Counts a frame of the current segment.
    pub(super) fn add(&mut self, frame: &Frame<'_>, bytes: u64, end: LogPosition) {
        self.live.add(frame, bytes);
        if frame.has(SNAPSHOT) {
            let seq = frame.seq;
            let key = (frame.run, frame.incarnation);
            let known = self.snapshots.get(&key);
            // A copied snapshot may be older than the newest.
            if known.is_none_or(|known| known.seq <= seq) {
                self.snapshots.insert(key, SnapshotAt { seq, end });
            }
        }
    }

    /// Records that the current segment is closed.
    pub(super) fn close(&mut self, id: SegmentId, len: u64) {
        let summary = Arc::new(std::mem::take(&mut self.live));
        self.closed.push_back(ClosedSegment::new(id, len, summary));
    }

    /// Adds the segments of earlier servers.
    pub(super) fn put_former(&mut self, former: Vec<ClosedSegment>, generation: u64) {
        self.closed.retain(|c| c.id.generation == generation);
        for segment in former.into_iter().rev() {
            self.closed.push_front(segment);
        }
    }

    /// Records that the segment is gone.
    pub(super) fn remove(&mut self, id: SegmentId) {
        self.closed.retain(|segment| segment.id != id);
        self.snapshots.retain(|_, at| at.end.segment != id);
    }

    /// Returns the closed segments, and the current one in its present state.
    pub(super) fn all(&self, live: SegmentId) -> Vec<ClosedSegment> {
        let live = ClosedSegment::new(live, 0, Arc::new(self.live.clone()));
        self.closed.iter().cloned().chain([live]).collect()
    }

    /// Returns the snapshot that replaces a run's frames up to this seq in this segment.
    pub(super) fn covering(&self, id: SegmentId, key: Key, last_seq: u64) -> Option<SnapshotAt> {
        let at = self.snapshots.get(&key)?;
        (at.end.segment > id && at.seq >= last_seq).then_some(*at)
    }

    /// Returns the total bytes of all closed segments.
    pub(super) fn closed_bytes(&self) -> u64 {
        self.closed.iter().map(|segment| segment.len).sum()
    }
}
