//! What a reader meets: entries, and the places where some are missing.

use crate::{Entry, Point};
use kennel_lifecycle::Timestamp;

/// What a reader is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An entry.
    Entry(Entry),
    /// Entries that are not there.
    Gap(Gap),
}

/// Entries that are not there, none of them a fact that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first of them.
    pub first_seq: u64,
    /// The last of them.
    pub last_seq: u64,
    /// How many bytes of standard output and of standard error; absent: not known, because the reader began among them, or
    /// they were lost or dropped uncounted.
    pub bytes: [Option<u64>; 2],
    /// Where the two streams go on.
    pub ends: [u64; 2],
    /// Why.
    pub reason: GapReason,
    /// When what follows was begun.
    pub at: Timestamp,
    /// Of which attempt what follows is.
    pub attempt: u32,
}

/// Why entries are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapReason {
    /// The bound of this journal.
    Bound,
    /// There was no room on the disk.
    FullDisk,
    /// The run has ended, and its journal was removed to make room for others. No journal says so: the code that removed it does.
    Retention,
    /// The run is of another node, where its journal is. No journal says so: the code that reads the run without it does.
    OtherNode,
    /// The host has died: what it had not written to the disk is lost, and so many seqs are left out that none of those
    /// which were delivered comes again.
    HostLost,
    /// They were written, and cannot be read any more: files of the journal were cut, changed or removed.
    Damaged,
}

/// Why entries are missing, and whether it is known how many bytes that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Why {
    pub(crate) reason: GapReason,
    pub(crate) counted: bool,
}

impl Item {
    /// Seq of the last entry that it is about.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        match self {
            Self::Entry(entry) => entry.seq,
            Self::Gap(gap) => gap.last_seq,
        }
    }

    /// The entry, if it is one.
    #[must_use]
    pub fn into_entry(self) -> Option<Entry> {
        match self {
            Self::Entry(entry) => Some(entry),
            Self::Gap(_) => None,
        }
    }
}

impl Gap {
    /// From a place, of whose streams perhaps nothing is known, to another one.
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
