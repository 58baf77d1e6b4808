//! Entries of runs whose journals are not made yet: they stand in the node log, and in memory.
//!
//! A journal is made with its first output, when its entries become long, when the log cannot be written, or after a
//! crash before anything else is done with it. From then on it has all entries.

use super::{NodeRecord, log::LoggedTable, run_table::Entry};
use crate::base::{clock, event};
use kennel_journal::{Boot, Late, LateFact, Writer};
use kennel_lifecycle::{OutputBound, RunId};
use kennel_store::{EntriesEnd, RunEntry, RunRow};
use serde::{Deserialize, Serialize};
use std::{io, path::Path};

/// The entries of a run whose journal is not made, from the first one on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct LateEntries {
    /// Readers may have got more entries than these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_cut: bool,
    entries: Vec<RunEntry>,
}

impl LateEntries {
    /// No entry is known.
    const CUT: Self = Self {
        is_cut: true,
        entries: Vec::new(),
    };
}

/// Returns all entries of a run that wrote nothing, where its row has them, and the position of its end behind them.
/// Such a run needs no journal.
pub(crate) fn silent(row: &RunRow) -> Option<(Vec<RunEntry>, EntriesEnd)> {
    let read = row.entries.as_ref()?.read().ok()?;
    let end = read.end?;
    let is_whole = end.lens == [0; 2] && end.seq == read.entries.len() as u64 + 1;
    is_whole.then_some((read.entries, end))
}

impl Entry {
    /// Adds a logged entry.
    pub(super) fn put_late(&mut self, entry: RunEntry) {
        let late = self.late.get_or_insert_default();
        let follows = entry.place.seq == late.entries.len() as u64 + 1;
        late.is_cut |= !follows;
        if !late.is_cut {
            late.entries.push(entry);
        }
    }

    /// Marks that entries may be missing behind the known ones.
    pub(super) fn lose_late(&mut self) {
        if let Some(late) = &mut self.late {
            late.is_cut = true;
        }
    }
}

impl LoggedTable {
    fn log_entry(&mut self, run: RunId, entry: RunEntry) -> io::Result<()> {
        self.catch_up();
        let known = self.table.runs.get_mut(&run);
        let known = known.filter(|known| known.late.is_some());
        let (Some(known), true) = (known, self.table.behind.is_empty()) else {
            return Err(io::Error::other("the node log does not have this run"));
        };
        let frame = known.late_entry(run, &entry);
        if let Err(error) = self.append(&[&frame]) {
            self.take_back(run);
            return Err(error);
        }
        self.table.entry(run).put_late(entry);
        Ok(())
    }
}

impl NodeRecord {
    /// Logs an entry of a run whose journal is not made, before any reader gets it.
    ///
    /// # Errors
    ///
    /// The entry is not logged: the journal has to be made.
    pub(crate) fn log_entry(&self, run: RunId, entry: RunEntry) -> io::Result<()> {
        self.state.lock().log_entry(run, entry)
    }

    /// Drops the entries: the journal of the run is made, and has them all.
    pub(crate) fn journal_made(&self, run: RunId) {
        if let Some(entry) = self.state.lock().table.runs.get_mut(&run) {
            entry.late = None;
        }
    }

    /// Opens the journal of a run of an earlier server, as [`Writer::reopen`] does; a missing journal is made of the
    /// entries known here. For a run that was silent to its end none is made: its row, which is given where it was
    /// read, has all entries.
    ///
    /// Where not all entries are known, the journal continues above the mark: no seq is given twice.
    pub(crate) fn reopen_journal(
        &self,
        run: RunId,
        row: Option<&RunRow>,
        dir: &Path,
        boot: Boot,
    ) -> io::Result<(Writer, [u64; 2])> {
        let JournalState {
            silent,
            late: LateEntries { is_cut, entries },
            bound,
        } = self.known(run, row);
        if let Some(entries) = silent.filter(|_| !kennel_journal::is_made(dir)) {
            let texts = texts(&entries);
            let writer = Writer::of_facts(dir, &facts(&entries, &texts))?;
            return Ok((writer, [0, 0]));
        }
        let texts = texts(&entries);
        let late = Late {
            bound,
            is_cut,
            facts: facts(&entries, &texts),
        };
        let reopened = Writer::reopen_late(dir, &late, boot, clock::now())?;
        self.journal_made(run);
        Ok(reopened)
    }

    fn known(&self, run: RunId, read: Option<&RunRow>) -> JournalState {
        let record = self.state.lock();
        let entry = record.table.runs.get(&run);
        let row = entry.and_then(|entry| entry.row.as_ref());
        let silent = [read, row].into_iter().flatten().find_map(silent);
        let new = read.or(row).map(|row| &row.new);
        let new = new.or_else(|| entry?.intended.as_ref());
        JournalState {
            silent: silent.map(|(entries, _)| entries),
            late: entry
                .and_then(|entry| entry.late.clone())
                .unwrap_or(LateEntries::CUT),
            bound: new.map(|new| new.policy().output).unwrap_or_default(),
        }
    }
}

/// The journal's state as this server knows it.
struct JournalState {
    /// All entries but the last of a run that was silent to its end.
    silent: Option<Vec<RunEntry>>,
    late: LateEntries,
    bound: OutputBound,
}

fn texts(entries: &[RunEntry]) -> Vec<String> {
    let text = |entry: &RunEntry| event::encode(&entry.entry);
    entries.iter().map(text).collect()
}

fn facts<'a>(entries: &[RunEntry], texts: &'a [String]) -> Vec<LateFact<'a>> {
    let fact = |(entry, text): (&RunEntry, &'a String)| LateFact {
        at: entry.place.at,
        attempt: entry.place.attempt,
        payload: text.as_bytes(),
    };
    entries.iter().zip(texts).map(fact).collect()
}
