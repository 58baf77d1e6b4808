//! The one record of the node: what the store has taken of its runs, which writes are pending for it, and which runs
//! have unfinished work. It is a table in memory, and the node log behind it.
//!
//! A store may go back: another life of it, such as a copy that replaces it, may lack what it had confirmed. Those rows
//! are written again from this record. A change that the store does not take is promised here: it is synced, and
//! delivered when the store is back. While any change is pending, all that can be pending is queued behind it.
//!
//! INVARIANT: a change is noted after the store has taken it and before any caller acts upon that or is answered. So a
//! row restored to the noted state is never behind what was reported, and what was written beyond it is written again.

mod frames;
mod late;
mod log;
pub(crate) mod node_store;
mod outbox;
pub(crate) mod persisted_spec;
mod replay;
mod run_table;
#[cfg(test)]
mod tests;

use kennel_lifecycle::RunId;
use kennel_store::{Age, Change, FoundRows, Life, NewRun, RunRow, StoredNode};
pub(crate) use late::silent;
use log::{LoggedTable, NodeLogLocation};
pub(crate) use outbox::Delivery;
use parking_lot::Mutex;
use run_table::RunTable;
use std::{collections::HashSet, io, sync::Arc};
use tokio::sync::{Notify, mpsc, watch};

/// The record, for all that read or change it.
#[derive(Debug)]
pub(crate) struct NodeRecord {
    place: NodeLogLocation,
    state: Mutex<LoggedTable>,
    jobs: mpsc::Sender<outbox::Job>,
    /// Watches for changes of the pending writes.
    pending: watch::Sender<()>,
    /// Held while pending changes are delivered.
    delivering: tokio::sync::Mutex<()>,
    /// Notified when a segment of the log was closed.
    trim_due: Arc<Notify>,
}

/// A row that the store should have.
#[derive(Debug)]
pub(crate) struct KnownRow {
    pub(crate) row: RunRow,
    /// A row in the store knows more.
    pub(crate) assumed: bool,
}

impl NodeRecord {
    /// Whether the store is another one, or has gone back.
    pub(crate) fn differs(&self, stored_node: &StoredNode) -> bool {
        let record = self.state.lock();
        let table = &record.table;
        let life = table.life.as_ref();
        life.is_some_and(|life| *life != stored_node.life)
            || stored_node.generation.unwrap_or(0) < table.generation
    }

    /// Returns the last known generation.
    pub(crate) fn generation(&self) -> i64 {
        self.state.lock().table.generation
    }

    /// Records the generation of the node; what the store has of its runs is not known yet.
    pub(crate) fn raised(&self, generation: i64) {
        let mut record = self.state.lock();
        record.table.generation = record.table.generation.max(generation);
        record.note_node();
    }

    /// Returns the known open rows that are not among these.
    pub(crate) fn open_beside(&self, rows: &FoundRows) -> Vec<RunId> {
        let rows: HashSet<RunId> = rows.runs().collect();
        let record = self.state.lock();
        let open = record.table.runs.iter();
        let open = open.filter(|(run, entry)| entry.open_row().is_some() && !rows.contains(run));
        open.map(|(run, _)| *run).collect()
    }

    /// Records that the node was acquired in this life; `open` are its open rows there, and `ended` the rows that were
    /// known as open.
    pub(crate) fn acquired(&self, life: Life, open: &FoundRows, ended: Vec<RunRow>) {
        let gone = self.open_beside(open);
        let ended_runs: HashSet<RunId> = ended.iter().map(|row| row.new.run).collect();
        let gone = gone.into_iter().filter(|run| !ended_runs.contains(run));
        let gone = gone.map(|run| (run, Change::Withdrawn));
        let rows = ended.into_iter().chain(open.rows.iter().cloned());
        let mut record = self.state.lock();
        let rows = rows.map(|row| (row.new.run, Change::Snapshot(Box::new(row))));
        let mut changes: Vec<_> = gone.chain(rows).collect();
        changes.retain(|(run, change)| !record.table.has(*run, change));
        record.note(changes);
        record.table.life = Some(life);
        record.note_node();
        drop(record);
        self.trim_due.notify_one();
    }

    /// Notes that the store has taken this change. INV-21: noted before any caller acts upon it.
    pub(crate) fn took(&self, run: RunId, change: Change) {
        self.state.lock().note(vec![(run, change)]);
    }

    /// Notes that the store has this row: it was read. For an ended run that is all there is to know.
    pub(crate) fn has(&self, row: RunRow) {
        let run = row.new.run;
        let mut record = self.state.lock();
        let entry = record.table.runs.get(&run);
        let known = row.outcome.is_some() && entry.is_some_and(run_table::Entry::is_closed);
        if !known {
            record.note(vec![(run, Change::Snapshot(Box::new(row)))]);
        }
    }

    /// Notes the minimal row of a run that is adopted without it.
    pub(crate) fn assume(&self, row: &RunRow) {
        let mut record = self.state.lock();
        let entry = record.table.entry(row.new.run);
        if entry.row.is_none() {
            entry.row = Some(row.clone());
            entry.assumed = true;
            record.table.list(row.new.run);
        }
    }

    /// Returns the open row of this run.
    pub(crate) fn open_row(&self, run: RunId) -> Option<RunRow> {
        let record = self.state.lock();
        record.table.runs.get(&run)?.open_row().cloned()
    }

    /// Returns the row of this run, where it is known that the run has ended.
    pub(crate) fn ended_row(&self, run: RunId) -> Option<RunRow> {
        let record = self.state.lock();
        let entry = record.table.runs.get(&run)?;
        entry.row.clone().filter(|row| row.outcome.is_some())
    }

    /// Returns all rows that the store should have.
    pub(crate) fn known_rows(&self) -> Vec<KnownRow> {
        let record = self.state.lock();
        let known = record.table.known().map(|(row, assumed)| KnownRow {
            row: row.clone(),
            assumed,
        });
        known.collect()
    }

    /// Returns the age of the newest run that is known.
    pub(crate) fn newest_age(&self) -> Age {
        let record = self.state.lock();
        let ages = record.table.known().map(|(row, _)| row.new.age);
        ages.max().unwrap_or_default()
    }

    /// Records an attempt that is about to be made; work remains for it until [`Self::forget`].
    ///
    /// # Errors
    ///
    /// The attempt cannot be recorded, and must not be made.
    pub(crate) fn intend(&self, new: &NewRun) -> io::Result<()> {
        self.state.lock().intend(intention(new))
    }

    /// Returns the attempt of this run that was intended last, where work remains for the run.
    pub(crate) fn intended(&self, run: RunId) -> Option<NewRun> {
        self.state.lock().table.runs.get(&run)?.intended.clone()
    }

    /// Whether work remains for the run.
    pub(crate) fn is_unfinished(&self, run: RunId) -> bool {
        let record = self.state.lock();
        let entry = record.table.runs.get(&run);
        entry.is_some_and(|entry| entry.intended.is_some())
    }

    /// Returns all runs for which work remains.
    pub(crate) fn unfinished(&self) -> Vec<RunId> {
        let record = self.state.lock();
        let runs = record.table.runs.iter();
        let runs = runs.filter(|(_, entry)| entry.intended.is_some());
        runs.map(|(run, _)| *run).collect()
    }

    /// Records that no work remains for the run.
    pub(crate) fn forget(&self, run: RunId) {
        self.took(run, Change::Forgotten);
    }
}

impl RunTable {
    /// Whether this is known already. Not the generation: it is that of one write of the row, and each write names its
    /// own.
    fn has(&self, run: RunId, change: &Change) -> bool {
        let entry = self.runs.get(&run).filter(|entry| !entry.assumed);
        match (change, entry.and_then(|entry| entry.row.as_ref())) {
            (Change::Snapshot(row), Some(known)) => {
                let mut known = known.clone();
                known.new.generation = row.new.generation;
                **row == known
            }
            _ => false,
        }
    }
}

/// Makes the row of an intended attempt: it has no identity yet.
fn intention(new: &NewRun) -> NewRun {
    NewRun {
        identity: None,
        held: None,
        ..new.clone()
    }
}
