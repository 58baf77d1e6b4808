//! Events beyond the bound of a run: its journal does not get them. They are counted, and one event before the end of
//! the run has their number. A file beside the journal has that number, and the entries of the current attempt.

use kennel_lifecycle::{AttemptRecord, Timestamp};
use kennel_store::RunEntry;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The events of a run beyond its bound.
#[derive(Debug)]
pub(super) struct SummedEvents {
    path: PathBuf,
    pub(super) sum: Sum,
    /// Number of events that the journal reports.
    pub(super) reported: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sum {
    pub(super) count: u64,
    /// Entries of the newest attempt that the next server needs.
    pub(super) entries: Vec<RunEntry>,
}

impl SummedEvents {
    pub(super) fn new(journal: &Path) -> Self {
        Self {
            path: journal.join("summed"),
            sum: Sum::default(),
            reported: 0,
        }
    }

    /// Reads the file of an earlier server.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let bytes = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read?,
        };
        // The end of an earlier, longer text may follow.
        let sum = serde_json::Deserializer::from_slice(&bytes)
            .into_iter()
            .next();
        // A host crash may have left no valid text.
        self.sum = sum.and_then(Result::ok).unwrap_or_default();
        Ok(())
    }

    /// Counts an event. A crash before it is counted: the next server records it again, as it does without a bound.
    pub(super) fn add(&mut self, event: RunEntry) -> io::Result<()> {
        let mut sum = self.sum.clone();
        sum.count += 1;
        let mut record = AttemptRecord::default();
        record.fold(Timestamp(1), &event.entry);
        // All other events are in the run's facets.
        if record != AttemptRecord::default() {
            let attempt = event.place.attempt;
            sum.entries.retain(|other| other.place.attempt == attempt);
            sum.entries.push(event);
        }
        let mut how = OpenOptions::new();
        how.write(true).create(true).truncate(false).mode(0o600);
        let file = how.open(&self.path)?;
        file.write_all_at(&serde_json::to_vec(&sum)?, 0)?;
        self.sum = sum;
        Ok(())
    }
}
