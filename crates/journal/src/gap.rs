//! Items of a reader: entries, and gaps where some are missing.

use crate::{Entry, Point};
use kennel_lifecycle::Timestamp;

/// An item that a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An entry.
    Entry(Entry),
    /// Missing entries.
    Gap(Gap),
}

/// Missing entries, none of them a retained lifecycle entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Seq of the first missing entry.
    pub first_seq: u64,
    /// Seq of the last missing entry.
    pub last_seq: u64,
    /// Missing bytes of standard output and of standard error; absent: not known, because the reader began among them,
    /// or they were lost or dropped uncounted.
    pub bytes: [Option<u64>; 2],
    /// Offsets at which the two streams continue.
    pub ends: [u64; 2],
    /// Reason why the entries are missing.
    pub reason: GapReason,
    /// Start time of the data after the gap.
    pub at: Timestamp,
    /// Attempt of the data after the gap.
    pub attempt: u32,
}

/// Reason why entries are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapReason {
    /// The bound of this journal.
    Bound,
    /// The disk was full.
    FullDisk,
    /// The run has ended, and its journal was removed to make space for others. No journal has this reason: the code
    /// that removed it reports it.
    Retention,
    /// The run is another node's, where its journal is. No journal has this reason: the code that reads the run without
    /// it reports it.
    OtherNode,
    /// The host has died: data not yet on the disk is lost, and so many seqs are skipped that no delivered one is used
    /// again.
    HostLost,
    /// The entries were written, and cannot be read any more: files of the journal were cut, changed or removed.
    Damaged,
}

/// Reason why entries are missing, and whether the number of bytes is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Why {
    pub(crate) reason: GapReason,
    pub(crate) counted: bool,
}

impl Item {
    /// Returns the seq of its last entry.
    pub fn last_seq(&self) -> u64 {
        match self {
            Self::Entry(entry) => entry.seq,
            Self::Gap(gap) => gap.last_seq,
        }
    }

    /// Returns the entry, if it is one.
    pub fn into_entry(self) -> Option<Entry> {
        match self {
            Self::Entry(entry) => Some(entry),
            Self::Gap(_) => None,
        }
    }
}

impl Gap {
    /// Makes the gap from a position, whose stream lengths may be unknown, to another one.
    pub(crate) fn between(
        seq: u64,
        lens: Option<[u64; 2]>,
        until: Point,
        why: Why,
        (at, attempt): (Timestamp, u32),
    ) -> Self {
        let bytes = |stream: usize| match lens {
            Some(lens) if why.counted => Some(until.lens[stream].saturating_sub(lens[stream])),
            _ => None,
        };
        Self {
            first_seq: seq + 1,
            last_seq: until.seq,
            bytes: [bytes(0), bytes(1)],
            ends: until.lens,
            reason: why.reason,
            at,
            attempt,
        }
    }
}
