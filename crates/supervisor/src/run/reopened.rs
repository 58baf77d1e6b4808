//! The journal of a run of an earlier server: continued, and read for what its entries say.

use crate::{
    base::{blocking::blocking, cause::Chain, clock, event},
    registry::Shared,
    run::output::Output,
};
use kennel_journal::Fact;
use kennel_keeper::rundir;
use kennel_lifecycle::{AttemptRecord, Entry, Facets, Outcome, RunId};
use kennel_store::{RunEntry, RunRow};
use std::{io, sync::Arc};

/// Everything that an earlier server has left of a run.
#[derive(Debug)]
pub(crate) struct Left {
    /// Its row; where it was not recorded, the row that would have been.
    pub(crate) row: RunRow,
    /// Its journal, where it can be written.
    pub(crate) output: Option<Output>,
    /// Record of the attempt by its entries.
    pub(crate) record: AttemptRecord,
    /// Facets of the run by its entries.
    pub(crate) facets: Facets,
}

impl Left {
    pub(crate) fn new(row: RunRow, journal: io::Result<Reopened>) -> Self {
        let mut left = Self {
            row,
            output: None,
            record: AttemptRecord::default(),
            facets: Facets::default(),
        };
        match journal {
            Ok(journal) => {
                left.record = journal.record(left.row.new.attempt);
                left.facets = event::facets(&journal.facts);
                left.output = Some(journal.output);
            }
            Err(error) => {
                let (run, error) = (left.row.new.run, Chain(&error));
                tracing::error!(run_id = %run, %error, "cannot open the journal: the run continues, its output blocks, and the next server of this node retries");
            }
        }
        left
    }
}

/// A journal that can be written, and its entries.
#[derive(Debug)]
pub(crate) struct Reopened {
    pub(crate) output: Output,
    facts: Vec<Fact>,
}

impl Reopened {
    /// Opens the journal; `row` is the run's row, where it was read. Blocks: the whole index is read.
    pub(crate) fn open(shared: &Shared, run: RunId, row: Option<&RunRow>) -> io::Result<Self> {
        let dir = rundir::path(&shared.config.data_dir, run);
        rundir::open_run_dir(&dir);
        let reopened = shared
            .record
            .reopen_journal(run, row, &dir, shared.boot())?;
        let facts = reopened.0.facts()?;
        let open = Arc::clone(&shared.pipes_open);
        let output = Output::over(run, &dir, reopened, event::entry_list(&facts), open);
        let mut output = output.behind(&shared.consumers.floors);
        output.read_summed(&facts)?;
        Ok(Self { output, facts })
    }

    /// Opens the journal of a run whose directory may be gone.
    pub(crate) async fn open_or_make(shared: &Arc<Shared>, run: RunId) -> io::Result<Self> {
        let shared = Arc::clone(shared);
        let opened = blocking(move || {
            rundir::create(&shared.config.data_dir, run)?;
            Self::open(&shared, run, None)
        });
        opened.await.flatten()
    }

    /// Returns the record of one attempt by its entries.
    pub(crate) fn record(&self, attempt: u32) -> AttemptRecord {
        let mut record = event::record(&self.facts, attempt);
        for RunEntry { place, entry } in self.output.summed_of(attempt) {
            record.fold(place.at, entry);
        }
        record
    }

    /// Appends the missing final entries of a run with this outcome. Returns whether all are on the disk.
    pub(crate) fn end(&mut self, attempt: u32, outcome: &Outcome) -> bool {
        let missing = self.record(attempt).missing_ends(outcome, None);
        self.append(attempt, &missing);
        self.output.has_written_all()
    }

    /// Appends entries of a run without a task.
    pub(crate) fn append(&mut self, attempt: u32, entries: &[Entry]) {
        self.output.begin_attempt(attempt);
        for entry in entries {
            self.output.line(entry, clock::now());
        }
    }
}
