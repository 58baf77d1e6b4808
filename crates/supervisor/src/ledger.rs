//! What the store has taken of this node's runs: the rows of those that are open, and of those that have ended last.
//!
//! A store may go back: another life of it, such as a copy that takes its place, may lack what it had answered. From here
//! that is written again. The rows are in a file too, for a server that comes after this one in the same boot.
//!
//! INVARIANT: a row is noted after the store has taken it and before anybody acts upon that or is told of it. So a row that
//! is put back to what is noted is never behind what was told, and what was written beyond it is written again.

use crate::cause::Chain;
use kennel_journal::NoteFile;
use kennel_lifecycle::{OutputRemoval, RunId};
use kennel_store::{Fact, Life, RunRow, Standing};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashSet, VecDeque, btree_map},
    io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The file, in the data directory.
const FILE: &str = "ledger";
/// Most ended runs that are kept.
const CLOSED_MAX: usize = 1024;
/// Most bytes of their specs.
const CLOSED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// When the file is written anew; and not before it has doubled.
const FILE_BYTES: u64 = 8 * 1024 * 1024;

/// The rows that the store is known to have taken.
#[derive(Debug)]
pub(crate) struct Ledger {
    boot_id: String,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    open: BTreeMap<RunId, RunRow>,
    /// Those of them that nobody has read or written: they are what a row would say at least.
    assumed: HashSet<RunId>,
    /// The newest last.
    closed: VecDeque<RunRow>,
    /// Whose rows those are.
    ended: HashSet<RunId>,
    closed_bytes: usize,
    /// In which all of this is known to be there.
    life: Option<Life>,
    /// The last one that is known.
    generation: i64,
    /// Absent: it cannot be written, so a later server is told nothing by it.
    file: Option<NoteFile>,
    /// Its size when it was written anew.
    file_bytes: u64,
}

/// A row that the store should have.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) row: RunRow,
    /// Nobody has read or written it: a row that is there knows more.
    pub(crate) assumed: bool,
}

impl Ledger {
    /// With what an earlier server of this boot has left. What ran in another boot has ended with it, and what was noted of
    /// it last may not have come to the disk.
    pub(crate) fn open(data_dir: &Path, boot_id: &str) -> Self {
        let mut book = Book::default();
        match NoteFile::open(&data_dir.join(FILE)) {
            Ok((file, notes)) => {
                book.read(&notes, boot_id);
                book.file = Some(file);
            }
            Err(error) => unnoted(&error),
        }
        Self {
            boot_id: boot_id.to_owned(),
            book: Mutex::new(book),
        }
    }

    /// Whether the store is not the one, or not as far, as it was.
    pub(crate) fn differs(&self, standing: &Standing) -> bool {
        let book = self.lock();
        let life = book.life.as_ref();
        life.is_some_and(|life| *life != standing.life)
            || standing.generation.unwrap_or(0) < book.generation
    }

    /// The last generation that is known.
    pub(crate) fn generation(&self) -> i64 {
        self.lock().generation
    }

    /// The node was given this generation; what the store has of its runs is not known yet.
    pub(crate) fn raised(&self, generation: i64) {
        let mut book = self.lock();
        book.generation = book.generation.max(generation);
        let header = book.header(&self.boot_id);
        book.append(&header, &self.boot_id);
    }

    /// Open rows that are noted and not among these.
    pub(crate) fn open_beside(&self, rows: &[RunRow]) -> Vec<RunId> {
        let rows: HashSet<RunId> = rows.iter().map(|row| row.new.run).collect();
        let mut runs: Vec<RunId> = self.lock().open.keys().copied().collect();
        runs.retain(|run| !rows.contains(run));
        runs
    }

    /// The node is taken over in this life; `open` are its open rows there, and `ended` those that were noted as open.
    pub(crate) fn taken(&self, life: Life, open: &[RunRow], ended: Vec<RunRow>) {
        let mut book = self.lock();
        for row in ended {
            book.put(row);
        }
        let rows = open;
        book.life = Some(life);
        book.assumed.clear();
        let rows = rows.iter().map(|row| (row.new.run, row.clone()));
        book.open = rows.collect();
        book.rewrite(&self.boot_id);
    }

    /// The store has this row.
    pub(crate) fn put(&self, row: RunRow) {
        let note = row_note(&row);
        let mut book = self.lock();
        book.put(row);
        book.append(&note, &self.boot_id);
    }

    /// The store has this row: it was read. Of one that has ended that is all there is to know.
    pub(crate) fn has(&self, row: RunRow) {
        let known = row.outcome.is_some() && self.lock().ended.contains(&row.new.run);
        if !known {
            self.put(row);
        }
    }

    /// The store has removed the open row of this run, or lacks it.
    pub(crate) fn withdrawn(&self, run: RunId) {
        let mut book = self.lock();
        book.assumed.remove(&run);
        if book.open.remove(&run).is_some() {
            book.rewrite(&self.boot_id);
        }
    }

    /// The store has changed the open row of this run.
    pub(crate) fn change(&self, run: RunId, change: impl FnOnce(RunRow) -> RunRow) {
        let mut book = self.lock();
        let Some(row) = book.open.get(&run).cloned().map(change) else {
            return;
        };
        let note = row_note(&row);
        book.put(row);
        book.append(&note, &self.boot_id);
    }

    /// The store has marked the row of an ended run: its output is removed.
    pub(crate) fn removed(&self, run: RunId, removal: OutputRemoval) {
        let mut book = self.lock();
        let Some(row) = book.closed.iter().find(|row| row.new.run == run).cloned() else {
            return;
        };
        let row = RunRow {
            output_removed: Some(removal),
            ..row
        };
        let note = row_note(&row);
        book.put(row);
        book.append(&note, &self.boot_id);
    }

    /// The store has been told this.
    pub(crate) fn told(&self, fact: &Fact) {
        match fact {
            Fact::Stop { run, .. } | Fact::State { run, .. } => {
                self.change(*run, |row| fact.upon(row));
            }
            // What stands under that key may be another's: it is read.
            Fact::Fence(..) => {}
            Fact::Close(new, _) => {
                let open = self.lock().open.get(&new.run).cloned();
                let row = open.unwrap_or_else(|| RunRow::open((**new).clone()));
                self.put(fact.upon(row));
            }
        }
    }

    /// What the row of a run says at least that is gone on with without it.
    pub(crate) fn assume(&self, row: &RunRow) {
        let mut book = self.lock();
        let run = row.new.run;
        if let btree_map::Entry::Vacant(place) = book.open.entry(run) {
            place.insert(row.clone());
            book.assumed.insert(run);
        }
    }

    /// What the open row of this run says.
    pub(crate) fn open_row(&self, run: RunId) -> Option<RunRow> {
        self.lock().open.get(&run).cloned()
    }

    /// All that the store should have.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let book = self.lock();
        let closed = book.closed.iter().map(|row| (row, false));
        let open = book.open.values();
        let open = open.map(|row| (row, book.assumed.contains(&row.new.run)));
        let entry = |(row, assumed): (&RunRow, bool)| Entry {
            row: row.clone(),
            assumed,
        };
        closed.chain(open).map(entry).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        // A panic elsewhere leaves rows that the store has.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn read(&mut self, notes: &[Vec<u8>], boot_id: &str) {
        let mut of_boot = true;
        for note in notes {
            match note.split_first() {
                Some((b'R', row)) if of_boot => match RunRow::decode(row) {
                    Ok(row) => self.put(row),
                    Err(why) => tracing::warn!(%why, "a row of an earlier server cannot be read"),
                },
                Some((b'H', header)) => {
                    let header: Value = serde_json::from_slice(header).unwrap_or_default();
                    of_boot = header["boot_id"].as_str() == Some(boot_id);
                    let generation = header["generation"].as_i64().unwrap_or_default();
                    self.generation = self.generation.max(generation);
                    let life = header["life"].as_str().filter(|_| of_boot);
                    self.life = life.map(Life::named);
                }
                _ => {}
            }
        }
    }

    fn put(&mut self, row: RunRow) {
        let run = row.new.run;
        self.assumed.remove(&run);
        if row.outcome.is_none() {
            self.open.insert(run, row);
            return;
        }
        self.open.remove(&run);
        if !self.ended.insert(run) {
            // All that happens to a run that has ended.
            if row.output_removed.is_some()
                && let Some(known) = self.closed.iter_mut().find(|row| row.new.run == run)
            {
                *known = row;
            }
            return;
        }
        self.closed_bytes += row.new.spec.text_len();
        self.closed.push_back(row);
        while self.closed.len() > CLOSED_MAX || self.closed_bytes > CLOSED_BYTES_MAX {
            let Some(oldest) = self.closed.pop_front() else {
                return;
            };
            self.closed_bytes -= oldest.new.spec.text_len();
            self.ended.remove(&oldest.new.run);
        }
    }

    fn header(&self, boot_id: &str) -> Vec<u8> {
        let header = json!({
            "boot_id": boot_id,
            "life": self.life.as_ref().map(Life::to_string),
            "generation": self.generation,
        });
        [b"H", header.to_string().as_bytes()].concat()
    }

    fn append(&mut self, note: &[u8], boot_id: &str) {
        let Some(file) = &mut self.file else {
            return;
        };
        let most = FILE_BYTES.max(2 * self.file_bytes);
        if let Err(error) = file.append(note) {
            unnoted(&error);
            return self.give_up();
        }
        if file.size_bytes() > most {
            self.rewrite(boot_id);
        }
    }

    fn rewrite(&mut self, boot_id: &str) {
        let header = self.header(boot_id);
        let open = self.open.values();
        let known = open.filter(|row| !self.assumed.contains(&row.new.run));
        let rows = self.closed.iter().chain(known).map(row_note);
        let Some(file) = &mut self.file else {
            return;
        };
        let written = file.rewrite(std::iter::once(header).chain(rows));
        self.file_bytes = file.size_bytes();
        if let Err(error) = written {
            unnoted(&error);
            self.give_up();
        }
    }

    /// What is in the file is behind what was done, and must not be believed.
    fn give_up(&mut self) {
        if let Some(mut file) = self.file.take()
            && let Err(error) = file.clear()
        {
            let why = Chain(&error).to_string();
            tracing::error!(%why, "old notes of what the store has taken cannot be removed");
        }
    }
}

fn row_note(row: &RunRow) -> Vec<u8> {
    [b"R", row.encode().as_slice()].concat()
}

fn unnoted(error: &io::Error) {
    let why = Chain(error).to_string();
    tracing::warn!(%why, "what the store takes cannot be noted on the disk: should this server die, and the store go back, less is known");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracker::tests::new_run;
    use kennel_lifecycle::{RowState, Timestamp};
    use kennel_store::{NewRun, StoredState};

    fn standing(life: &str, generation: i64) -> Standing {
        Standing {
            life: Life::named(life),
            generation: Some(generation),
        }
    }

    fn ended(id: u128) -> RunRow {
        let outcome = kennel_lifecycle::Outcome {
            reason: kennel_lifecycle::EndReason::ServerShutdown,
            exit: None,
            tree: kennel_lifecycle::TreeVerdict::NeverRan,
            streams: None,
            certificate: kennel_lifecycle::StopCertificate::default(),
        };
        let mut row = RunRow::open(NewRun {
            run: RunId::from_u128(id),
            ..new_run()
        });
        row.state = StoredState::Ended(outcome.state());
        row.desired = kennel_store::Desired::Stop;
        row.times.ended = Some(Timestamp(1));
        row.outcome = Some(outcome);
        row
    }

    #[test]
    fn a_later_server_of_this_boot_knows_what_was_noted_and_one_of_another_only_the_number() {
        let dir = tempfile::tempdir().unwrap();
        let open = RunRow::open(new_run());
        let run = open.new.run;
        let ledger = Ledger::open(dir.path(), "boot");
        assert!(!ledger.differs(&standing("a", 0)), "nothing is known");
        ledger.raised(3);
        ledger.taken(Life::named("a"), std::slice::from_ref(&open), Vec::new());
        ledger.put(ended(9));
        ledger.told(&Fact::State {
            run,
            state: RowState::Paused,
            started: None,
        });
        ledger.assume(&RunRow::open(NewRun {
            run: RunId::from_u128(8),
            ..new_run()
        }));
        let later = Ledger::open(dir.path(), "boot");
        assert_eq!(later.generation(), 3);
        assert!(!later.differs(&standing("a", 3)) && !later.differs(&standing("a", 4)));
        assert!(later.differs(&standing("b", 3)) && later.differs(&standing("a", 2)));
        let rows: Vec<_> = later.entries().into_iter().map(|entry| entry.row).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], ended(9));
        assert_eq!((rows[1].new.run, rows[1].state), (run, StoredState::Paused));
        let other = Ledger::open(dir.path(), "another boot");
        assert!(other.entries().is_empty());
        assert_eq!(other.generation(), 3);
        assert!(!other.differs(&standing("b", 3)));
    }

    #[test]
    fn of_ended_runs_the_newest_are_kept_and_the_file_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path(), "boot");
        let count = CLOSED_MAX as u128 + 5;
        let mut spec = kennel_lifecycle::RunSpec::default();
        spec.command.argv = vec!["x".repeat(10_000).into()];
        let spec = std::sync::Arc::new(kennel_lifecycle::RecordedSpec::from(spec));
        for id in 1..=count {
            let mut row = ended(id);
            row.new.spec = spec.clone();
            ledger.put(row);
        }
        let later = Ledger::open(dir.path(), "boot");
        for entries in [ledger.entries(), later.entries()] {
            assert_eq!(entries.len(), CLOSED_MAX);
            assert_eq!(entries[0].row.new.run, RunId::from_u128(6));
        }
        for id in count..3 * count {
            let mut row = ended(id);
            row.new.spec = spec.clone();
            ledger.put(row);
        }
        let size = std::fs::metadata(dir.path().join(FILE)).unwrap().len();
        let whole = CLOSED_MAX as u64 * 11_000;
        assert!(size < 2 * whole + FILE_BYTES, "{size}");
    }
}
