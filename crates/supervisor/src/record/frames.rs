//! Frames of the node log: their kinds and payloads.
//!
//! Seqs of a run are contiguous within one incarnation, which a run gets when it enters the table. Frames of no run have
//! run 0.

use super::{
    late::LateEntries,
    run_table::{Entry, Pending, RunTable},
};
use crate::base::clock;
use kennel_journal::node_log::{CRITICAL, ESSENTIAL, OwnedFrame, SNAPSHOT};
use kennel_lifecycle::{LaterText, RunId};
use kennel_store::{Change, NewRun, RunEntry, RunRow};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use std::sync::Arc;

/// A change in force: the store has taken it, or it concerns this node only.
pub(super) const KNOWN: u16 = 1;
/// A change that is pending for the store.
pub(super) const PENDING: u16 = 2;
/// The store has taken the pending changes up to a seq.
const DELIVERED: u16 = 3;
/// The store will never take the pending changes up to a seq, or they were never promised.
const REFUSED: u16 = 4;
/// The whole state of a run.
pub(super) const STATE: u16 = 5;
/// State of the node.
const NODE: u16 = 6;
/// An entry of a run whose journal is not made yet.
pub(super) const ENTRY: u16 = 7;
const FLAGS: u16 = CRITICAL | SNAPSHOT | ESSENTIAL;

/// Content of a frame.
#[derive(Debug)]
pub(super) enum Line {
    Known(Change),
    Pending(Change, usize),
    /// A pending change that only a later version reads.
    LaterPending(LaterText),
    Delivered(u64),
    Refused(u64),
    State(Box<EntryState>),
    Node(NodeState),
    Entry(Box<RunEntry>),
    /// A kind of a later version, which changes nothing that is known here.
    Other,
}

/// An entry of the table as one frame.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EntryState<R = RunRow> {
    pub(super) row: Option<R>,
    pub(super) assumed: bool,
    /// Absent where there is none, or where the row has this attempt.
    pub(super) intended: Option<NewRun>,
    /// Whether work remains for the run.
    pub(super) unfinished: bool,
    /// Each as its JSON: a later version may know more of them than this one.
    pub(super) pending: Vec<(u64, LaterText)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) late: Option<LateEntries>,
}

/// State of the node.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct NodeState {
    pub(super) generation: i64,
    /// Life of the store in which the node was acquired.
    pub(super) life: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Upto {
    upto: u64,
}

impl Line {
    /// Decodes a frame. The error says why the bytes are not valid here.
    pub(super) fn decode(kind: u16, payload: &[u8]) -> Result<Self, String> {
        Ok(match kind & !FLAGS {
            KNOWN => Self::Known(Change::decode(payload)?),
            PENDING => match Change::decode(payload) {
                Ok(change) => Self::Pending(change, payload.len()),
                Err(why) => Self::LaterPending(read(payload).map_err(|_| why)?),
            },
            DELIVERED => Self::Delivered(read::<Upto>(payload)?.upto),
            REFUSED => Self::Refused(read::<Upto>(payload)?.upto),
            STATE => Self::State(match read(payload) {
                Ok(state) => state,
                Err(_) => Box::new(read::<EntryState<IgnoredAny>>(payload)?.without_row()),
            }),
            NODE => Self::Node(read(payload)?),
            ENTRY => Self::Entry(read(payload)?),
            other if kind & CRITICAL != 0 => return Err(format!("{other} is no known kind")),
            _ => Self::Other,
        })
    }
}

fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|e| e.to_string())
}

fn write<T: Serialize>(value: &T) -> Vec<u8> {
    // All values of these types are JSON.
    serde_json::to_vec(value).unwrap_or_default()
}

impl EntryState<IgnoredAny> {
    /// The row is of a later version: it is read from the database.
    fn without_row(self) -> EntryState {
        EntryState {
            row: None,
            assumed: true,
            intended: self.intended,
            unfinished: self.unfinished,
            pending: self.pending,
            late: self.late,
        }
    }
}

impl EntryState {
    pub(super) fn of(entry: &Entry) -> Self {
        let row = entry.row.clone();
        let is_of_row = |new: &NewRun| row.as_ref().is_some_and(|r| r.new.attempt == new.attempt);
        Self {
            intended: entry.intended.clone().filter(|new| !is_of_row(new)),
            unfinished: entry.intended.is_some(),
            assumed: entry.assumed,
            late: entry.late.clone(),
            pending: (entry.later.iter().cloned())
                .chain(
                    (entry.pending.iter().chain(&entry.in_flight))
                        .map(|pending| (pending.seq, LaterText::of(&*pending.change))),
                )
                .collect(),
            row,
        }
    }

    /// Restores the state into an entry; an untrusted row is left out.
    pub(super) fn restore(self, entry: &mut Entry, is_believed: bool) {
        let of_row = self.row.as_ref().filter(|_| self.unfinished);
        let of_row = of_row.map(|row| super::intention(&row.new));
        entry.intended = self.intended.or(of_row);
        entry.row = self.row.filter(|_| is_believed);
        entry.assumed = self.assumed;
        entry.late = self.late;
        for (seq, text) in self.pending {
            match Change::decode(text.as_str().as_bytes()) {
                Ok(change) => entry.pending.push_back(Pending {
                    seq,
                    bytes: text.as_str().len(),
                    change: Arc::new(change),
                }),
                Err(_) => entry.later.push((seq, text)),
            }
        }
        let pending = entry.pending.make_contiguous();
        pending.sort_by_key(|pending| pending.seq);
    }
}

impl Entry {
    fn frame(&self, run: RunId, kind: u16, seq: u64, payload: Vec<u8>) -> OwnedFrame {
        let row = self.row.as_ref().map(|row| &row.new);
        let attempt = row.or(self.intended.as_ref()).map_or(0, |new| new.attempt);
        OwnedFrame {
            kind,
            run: run.as_u128(),
            incarnation: self.incarnation,
            seq,
            attempt,
            at: clock::now(),
            lens: [0, 0],
            payload,
        }
    }

    /// Makes the next frame of the run: a change in force.
    pub(super) fn known(&mut self, run: RunId, change: &Change) -> OwnedFrame {
        let essential = match change {
            Change::Stop { .. } | Change::Closed(..) | Change::Fenced(..) => ESSENTIAL,
            _ => 0,
        };
        let seq = self.next_seq();
        self.frame(run, KNOWN | essential, seq, change.encode())
    }

    /// Makes the next frame of the run: a pending change.
    pub(super) fn pending(&mut self, run: RunId, bytes: Vec<u8>) -> OwnedFrame {
        let seq = self.next_seq();
        self.frame(run, PENDING | CRITICAL | ESSENTIAL, seq, bytes)
    }

    /// Makes the next frame of the run: the result of its pending changes up to a seq.
    pub(super) fn settled(&mut self, run: RunId, upto: u64, delivered: bool) -> OwnedFrame {
        let kind = if delivered { DELIVERED } else { REFUSED };
        let seq = self.next_seq();
        self.frame(run, kind | ESSENTIAL, seq, write(&Upto { upto }))
    }

    /// Makes the next frame of the run: an entry of its journal.
    pub(super) fn late_entry(&mut self, run: RunId, entry: &RunEntry) -> OwnedFrame {
        let seq = self.next_seq();
        self.frame(run, ENTRY | CRITICAL, seq, write(entry))
    }

    /// Makes the next frame of the run, which replaces all before it.
    pub(super) fn state(&mut self, run: RunId) -> OwnedFrame {
        let seq = self.next_seq();
        self.state_at(run, seq)
    }

    /// Makes a frame that replaces all up to the last one.
    pub(super) fn snapshot(&self, run: RunId) -> OwnedFrame {
        self.state_at(run, self.seq)
    }

    fn state_at(&self, run: RunId, seq: u64) -> OwnedFrame {
        let payload = write(&EntryState::of(self));
        self.frame(run, STATE | SNAPSHOT, seq, payload)
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }
}

impl RunTable {
    /// Makes a frame of the node's newest state.
    pub(super) fn node_frame(&self) -> OwnedFrame {
        let state = NodeState {
            generation: self.generation,
            life: self.life.as_ref().map(ToString::to_string),
        };
        OwnedFrame {
            kind: NODE | SNAPSHOT,
            run: 0,
            incarnation: self.node.0,
            seq: self.node.1,
            attempt: 0,
            at: clock::now(),
            lens: [0, 0],
            payload: write(&state),
        }
    }
}

/// Makes a frame that removes an incarnation.
pub(super) fn gone(run: RunId, incarnation: u64, seq: u64) -> OwnedFrame {
    let mut entry = Entry::new(incarnation);
    entry.seq = seq;
    entry.snapshot(run)
}
