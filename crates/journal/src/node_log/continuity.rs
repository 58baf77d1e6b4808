//! Completeness of runs in spite of damage.

use super::{
    format::LogPosition,
    frame::{Frame, SNAPSHOT},
    scan::LogDamage,
};
use std::{collections::BTreeMap, ops::RangeInclusive};

/// Follows the seqs of each incarnation through a replay. Seqs of one incarnation are contiguous from 1, and a snapshot
/// replaces all up to its own. A run all of whose frames are damaged is not known here: rows and keeper have it.
#[derive(Debug, Default)]
pub struct Continuity {
    runs: BTreeMap<(u128, u64), Track>,
}

/// A run whose frames are not proved to be complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintedRun {
    /// The run.
    pub run: u128,
    /// Its incarnation.
    pub incarnation: u64,
    /// Seqs without a frame.
    pub missing: Vec<RangeInclusive<u64>>,
    /// The highest seq found.
    pub last_seq: u64,
    /// Whether there is damage after it, so that more frames may have followed.
    pub may_have_more: bool,
}

#[derive(Debug)]
struct Track {
    /// Position of the highest seq.
    last: LogPosition,
    last_seq: u64,
    missing: Vec<RangeInclusive<u64>>,
    is_closed: bool,
}

impl Continuity {
    /// Counts a frame; `closes`: it is the last of its incarnation.
    pub fn add(&mut self, position: LogPosition, frame: &Frame<'_>, closes: bool) {
        let key = (frame.run, frame.incarnation);
        let track = self.runs.entry(key).or_insert_with(|| Track {
            last: position,
            last_seq: 0,
            missing: Vec::new(),
            is_closed: false,
        });
        track.is_closed |= closes;
        if frame.has(SNAPSHOT) {
            track.fill(1..=frame.seq);
        } else {
            track.fill(frame.seq..=frame.seq);
        }
        if frame.seq > track.last_seq {
            if frame.seq > track.last_seq + 1 && !frame.has(SNAPSHOT) {
                track.missing.push(track.last_seq + 1..=frame.seq - 1);
            }
            track.last_seq = frame.seq;
        }
        if frame.seq == track.last_seq {
            track.last = position;
        }
    }

    /// Returns the runs that may lack frames.
    pub fn tainted(&self, damages: &[LogDamage]) -> Vec<TaintedRun> {
        let last_damage = damages.iter().map(LogDamage::position).max();
        let tainted = self.runs.iter().filter_map(|(key, track)| {
            let is_before = last_damage.is_some_and(|damage| damage > track.last);
            let may_have_more = is_before && !track.is_closed;
            (may_have_more || !track.missing.is_empty()).then(|| TaintedRun {
                run: key.0,
                incarnation: key.1,
                missing: track.missing.clone(),
                last_seq: track.last_seq,
                may_have_more,
            })
        });
        tainted.collect()
    }
}

impl Track {
    /// Records that these seqs were found: again, or late, as after a failed sync.
    fn fill(&mut self, found: RangeInclusive<u64>) {
        if self.missing.is_empty() {
            return;
        }
        let (first, last) = found.into_inner();
        let left = self.missing.iter().flat_map(|range| {
            let before = *range.start()..=(*range.end()).min(first.saturating_sub(1));
            let behind = (*range.start()).max(last.saturating_add(1))..=*range.end();
            [before, behind]
        });
        self.missing = left.filter(|range| !range.is_empty()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_log::{Expected, SegmentId};
    use kennel_lifecycle::Timestamp;

    fn position(offset: u32) -> LogPosition {
        let segment = SegmentId {
            generation: 1,
            number: 0,
        };
        LogPosition { segment, offset }
    }

    fn damage(offset: u32) -> LogDamage {
        let at = u64::from(offset);
        LogDamage::new(position(offset).segment, at..at + 1, Expected::Bytes)
    }

    fn frame(seq: u64, kind: u16) -> Frame<'static> {
        Frame {
            kind,
            run: 7,
            incarnation: 1,
            seq,
            attempt: 1,
            at: Timestamp(0),
            lens: [0, 0],
            payload: b"",
        }
    }

    /// Frames at 10, 20, and so on.
    fn tainted(frames: &[Frame<'_>], closes: bool, damages: &[u32]) -> Vec<TaintedRun> {
        let mut continuity = Continuity::default();
        for (index, frame) in (1..).zip(frames) {
            let is_last = index as usize == frames.len();
            continuity.add(position(index * 10), frame, closes && is_last);
        }
        let damages: Vec<_> = damages.iter().map(|at| damage(*at)).collect();
        continuity.tainted(&damages)
    }

    fn seqs(seqs: &[u64]) -> Vec<Frame<'static>> {
        seqs.iter().map(|seq| frame(*seq, 1)).collect()
    }

    #[test]
    fn contiguous_seqs_prove_no_frame_was_lost() {
        assert_eq!(tainted(&seqs(&[1, 2, 3]), false, &[15, 25]), []);
        assert_eq!(tainted(&seqs(&[1, 2, 3]), true, &[15, 35]), []);
        let open = tainted(&seqs(&[1, 2, 3]), false, &[35]);
        assert!(open[0].may_have_more && open[0].missing.is_empty());
    }

    #[test]
    fn missing_seqs_are_reported_until_found() {
        let found = tainted(&seqs(&[1, 5]), true, &[]);
        assert_eq!(found[0].missing, [2..=4]);
        assert_eq!(tainted(&seqs(&[3]), true, &[])[0].missing, [1..=2]);
        let found = tainted(&seqs(&[1, 5, 3]), true, &[]);
        assert_eq!(found[0].missing, [2..=2, 4..=4]);
        assert_eq!(tainted(&seqs(&[1, 3, 1, 2, 3]), true, &[]), []);
    }

    #[test]
    fn snapshot_replaces_all_earlier_seqs() {
        let snapshot = frame(4, 1 | SNAPSHOT);
        assert_eq!(tainted(&[snapshot, frame(5, 1)], false, &[5]), []);
        assert_eq!(tainted(&[frame(5, 1), snapshot], false, &[]), []);
        let found = tainted(&[frame(6, 1), snapshot], true, &[]);
        assert_eq!(found[0].missing, [5..=5]);
    }
}
