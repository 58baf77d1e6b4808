//! Known state of the node's runs, in memory: rows that the store has taken, and writes pending for it.

use super::late::LateEntries;
use kennel_lifecycle::{LaterText, RunId};
use kennel_store::{Change, Life, NewRun, RunRow};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    sync::Arc,
};

/// Most ended runs whose rows are retained.
pub(super) const CLOSED_MAX: usize = 1024;
/// Most bytes of their specs and entries.
const CLOSED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most pending changes written to the store at once.
const AT_ONCE_MAX: usize = 256;

/// One run.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// Incarnation of the run's key, named in the log's frames.
    pub(super) incarnation: u64,
    /// Seq of its last frame.
    pub(super) seq: u64,
    /// The row in the store; absent: there is none, or it is not known.
    pub(super) row: Option<RunRow>,
    /// The row was neither read nor written, or the log is incomplete: a row in the store knows more.
    pub(super) assumed: bool,
    /// The attempt that was intended last, until no work remains for the run.
    pub(super) intended: Option<NewRun>,
    /// Entries of the run's journal, until that is made; absent: it is made, or they are not known.
    pub(super) late: Option<LateEntries>,
    /// Pending changes for the store, in order.
    pub(super) pending: VecDeque<Pending>,
    /// Pending changes that only a later version reads: they wait for it.
    pub(super) later: Vec<(u64, LaterText)>,
    /// Changes written to the log and not synced yet.
    pub(super) in_flight: VecDeque<Pending>,
    is_listed: bool,
}

/// A change that is pending for the store.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) seq: u64,
    pub(super) change: Arc<Change>,
    pub(super) bytes: usize,
}

/// A pending change on its way to the store.
#[derive(Clone, Debug)]
pub(super) struct Due {
    pub(super) run: RunId,
    pub(super) change: Arc<Change>,
}

#[derive(Debug, Default)]
pub(super) struct RunTable {
    pub(super) runs: BTreeMap<RunId, Entry>,
    /// Ended runs, the newest last.
    closed: VecDeque<RunId>,
    closed_bytes: usize,
    /// One item for each pending change, in the order in which they were promised.
    queue: VecDeque<RunId>,
    pub(super) pending_bytes: usize,
    /// Life of the store that is known to have the rows.
    pub(super) life: Option<Life>,
    /// The last known generation.
    pub(super) generation: i64,
    /// Runs for which the log is behind this table.
    pub(super) behind: BTreeSet<RunId>,
    /// Incarnation and last seq of the node's frames.
    pub(super) node: (u64, u64),
    next_incarnation: u64,
    /// Incarnations that ended while the log was trimmed, with their last seqs.
    pub(super) ended_in_trim: Option<Vec<(RunId, u64, u64)>>,
}

impl Entry {
    pub(super) fn new(incarnation: u64) -> Self {
        Self {
            incarnation,
            ..Self::default()
        }
    }

    pub(super) fn open_row(&self) -> Option<&RunRow> {
        self.row.as_ref().filter(|row| row.outcome.is_none())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.row.as_ref().is_some_and(|row| row.outcome.is_some())
    }

    /// Begins another incarnation: its next frame is its first, and holds the whole state.
    pub(super) fn begin_anew(&mut self, incarnation: u64) {
        self.incarnation = incarnation;
        self.seq = 0;
        let pending = self.pending.iter_mut().chain(&mut self.in_flight);
        let pending = pending.map(|pending| &mut pending.seq);
        for seq in pending.chain(self.later.iter_mut().map(|(seq, _)| seq)) {
            self.seq += 1;
            *seq = self.seq;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.row.is_none()
            && self.intended.is_none()
            && self.pending.is_empty()
            && self.later.is_empty()
            && self.in_flight.is_empty()
    }
}

impl RunTable {
    /// Makes incarnations of this server begin above those of all before it.
    pub(super) fn begin_incarnations(&mut self, log_generation: u64) {
        let first = log_generation << 32;
        self.next_incarnation = self.next_incarnation.max(first);
        if self.node.0 < first {
            self.node = (self.new_incarnation(), 0);
        }
    }

    pub(super) fn new_incarnation(&mut self) -> u64 {
        self.next_incarnation += 1;
        self.next_incarnation
    }

    /// Returns the entry of the run; makes it where it is missing.
    pub(super) fn entry(&mut self, run: RunId) -> &mut Entry {
        if !self.runs.contains_key(&run) {
            let entry = Entry::new(self.new_incarnation());
            self.runs.insert(run, entry);
        }
        self.runs.get_mut(&run).expect("it was just looked for")
    }

    /// Whether a change alters what is known of a run. Others are not logged.
    pub(super) fn concerns(&self, run: RunId, change: &Change) -> bool {
        match change {
            Change::Intended(_)
            | Change::Inserted(_)
            | Change::Closed(..)
            | Change::Fenced(..)
            | Change::Snapshot(_) => true,
            Change::Begun(..)
            | Change::Rested(..)
            | Change::Stop { .. }
            | Change::State { .. }
            | Change::Facets(_)
            | Change::Withdrawn => self.runs.get(&run).is_some_and(|e| e.open_row().is_some()),
            Change::OutputRemoved(_) => self.runs.get(&run).is_some_and(Entry::is_closed),
            Change::Forgotten => self.runs.get(&run).is_some_and(|e| e.intended.is_some()),
        }
    }

    /// Folds a durable change into what is known.
    pub(super) fn fold(&mut self, run: RunId, change: &Change) {
        let entry = self.entry(run);
        match change {
            Change::Intended(new) => {
                // The first attempt resets a run's late entries, but not under the key of an ended run.
                if new.attempt == 1 {
                    entry.late = (!entry.is_closed()).then(LateEntries::default);
                }
                entry.intended = Some((**new).clone());
            }
            Change::Forgotten => (entry.intended, entry.late) = (None, None),
            // The only change of an ended run is the removal of its output.
            Change::Snapshot(row)
                if entry.is_closed() && row.outcome.is_some() && row.output_removed.is_none() => {}
            change => {
                let before = entry.row.take();
                let entries = before.as_ref().and_then(|row| row.entries.clone());
                entry.row = change.upon(before);
                // A row read in a batch comes without entries.
                if let Some(row) = entry.row.as_mut().filter(|row| row.outcome.is_some()) {
                    row.entries = row.entries.take().or(entries);
                }
                entry.assumed = false;
            }
        }
        self.list(run);
    }

    /// Updates the list of ended runs, which retains the newest.
    pub(super) fn list(&mut self, run: RunId) {
        let Some(entry) = self.runs.get_mut(&run) else {
            return;
        };
        if entry.is_closed() == entry.is_listed {
            return;
        }
        entry.is_listed = !entry.is_listed;
        if !entry.is_listed {
            self.closed.retain(|closed| *closed != run);
            return self.count_closed_bytes();
        }
        self.closed_bytes += text_len(entry);
        self.closed.push_back(run);
        while self.closed.len() > CLOSED_MAX || self.closed_bytes > CLOSED_BYTES_MAX {
            let Some(oldest) = self.closed.pop_front() else {
                return;
            };
            if let Some(entry) = self.runs.get_mut(&oldest) {
                self.closed_bytes = self.closed_bytes.saturating_sub(text_len(entry));
                entry.row = None;
                entry.is_listed = false;
            }
            self.prune(oldest);
        }
    }

    fn count_closed_bytes(&mut self) {
        let closed = self.closed.iter().filter_map(|run| self.runs.get(run));
        self.closed_bytes = closed.map(text_len).sum();
    }

    /// Removes the entry of a run of which nothing needs to be known any more.
    pub(super) fn prune(&mut self, run: RunId) {
        let is_empty = self.runs.get(&run).is_some_and(Entry::is_empty);
        if !is_empty || self.behind.contains(&run) {
            return;
        }
        if let Some(entry) = self.runs.remove(&run)
            && let Some(ended) = &mut self.ended_in_trim
        {
            ended.push((run, entry.incarnation, entry.seq));
        }
    }

    pub(super) fn prune_all(&mut self) {
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        for run in runs {
            self.prune(run);
        }
    }

    /// Moves the first change in flight to the pending ones: it is durable here.
    pub(super) fn promise(&mut self, run: RunId) {
        let entry = self.entry(run);
        if let Some(pending) = entry.in_flight.pop_front() {
            let bytes = pending.bytes;
            entry.pending.push_back(pending);
            self.pending_bytes += bytes;
            self.queue.push_back(run);
        }
    }

    pub(super) fn has_in_flight(&self, run: RunId) -> bool {
        let entry = self.runs.get(&run);
        entry.is_some_and(|entry| !entry.in_flight.is_empty())
    }

    /// Removes the run with all that is known of it.
    pub(super) fn remove(&mut self, run: RunId) {
        self.take_pending(run, u64::MAX);
        if let Some(entry) = self.runs.get_mut(&run) {
            entry.row = None;
            self.list(run);
            self.runs.remove(&run);
        }
    }

    /// Takes the pending changes of a run up to this seq.
    pub(super) fn take_pending(&mut self, run: RunId, upto: u64) -> Vec<Pending> {
        let Some(entry) = self.runs.get_mut(&run) else {
            return Vec::new();
        };
        entry.later.retain(|(seq, _)| *seq > upto);
        let is_taken = |pending: &Pending| pending.seq <= upto;
        let count = entry.pending.iter().take_while(|p| is_taken(p)).count();
        let taken: Vec<Pending> = entry.pending.drain(..count).collect();
        for pending in &taken {
            self.pending_bytes -= pending.bytes;
            if let Some(at) = self.queue.iter().position(|queued| *queued == run) {
                self.queue.remove(at);
            }
        }
        taken
    }

    /// Folds changes that the store has taken.
    pub(super) fn fold_delivered(&mut self, run: RunId, taken: &[Pending]) {
        for pending in taken {
            // A fence may have found another run under its key: the row is read.
            let counts = match &*pending.change {
                Change::Fenced(..) => false,
                change => self.concerns(run, change),
            };
            if counts {
                self.fold(run, &pending.change);
            }
        }
    }

    /// Rebuilds the queue, after entries were inserted as a whole.
    pub(super) fn queue_all(&mut self) {
        self.queue.clear();
        self.pending_bytes = 0;
        for (run, entry) in &self.runs {
            for pending in &entry.pending {
                self.queue.push_back(*run);
                self.pending_bytes += pending.bytes;
            }
        }
    }

    /// Returns the first pending changes, at most one per run: they may be written in any order.
    pub(super) fn first_due(&self) -> Vec<Due> {
        let mut runs = HashSet::new();
        let queue = self.queue.iter().take(AT_ONCE_MAX);
        let queue = queue.take_while(|run| runs.insert(**run));
        let due = queue.filter_map(|run| {
            let entry = self.runs.get(run)?;
            let first = entry.pending.front()?;
            // Delivering this change would also settle an earlier change of a later version.
            let waits = entry.later.iter().any(|(seq, _)| *seq < first.seq);
            (!waits).then(|| Due {
                run: *run,
                change: Arc::clone(&first.change),
            })
        });
        due.collect()
    }

    pub(super) fn pending_count(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn pending_of(&self, run: RunId) -> impl Iterator<Item = &Change> {
        let entry = self.runs.get(&run);
        let pending = entry.into_iter().flat_map(|entry| &entry.pending);
        pending.map(|pending| &*pending.change)
    }

    /// Applies the pending changes of a run to its row.
    pub(super) fn with_pending(&self, mut row: RunRow) -> RunRow {
        for change in self.pending_of(row.new.run) {
            row = change.upon(Some(row.clone())).unwrap_or(row);
        }
        row
    }

    /// Iterates over the rows of ended runs, the oldest first, and then those of open ones.
    pub(super) fn known(&self) -> impl Iterator<Item = (&RunRow, bool)> {
        let closed = self.closed.iter().filter_map(|run| self.runs.get(run));
        let open = self.runs.values().filter(|e| e.open_row().is_some());
        let entries = closed.chain(open);
        entries.filter_map(|entry| Some((entry.row.as_ref()?, entry.assumed)))
    }
}

fn text_len(entry: &Entry) -> usize {
    let len = |row: &RunRow| {
        let entries = row.entries.as_ref();
        row.new.spec.text_len() + entries.map_or(0, |entries| entries.as_str().len())
    };
    entry.row.as_ref().map_or(0, len)
}
