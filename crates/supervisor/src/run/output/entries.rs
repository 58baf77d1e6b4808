//! Entries of a run among its output: their positions, and those that the row of the run gets.

use super::{Output, PendingLine};
use crate::base::event;
use kennel_journal::Kind;
use kennel_lifecycle::Entry;
use kennel_linux::crash_point;
use kennel_store::{EntriesEnd, EntriesText, EntryPlace, RunEntry};
use std::io;

/// Most bytes of the entries of a run whose journal is not made.
const LATE_BYTES_MAX: u64 = 16 * 1024;

impl Output {
    /// Appends an entry to the journal.
    pub(super) fn put(&mut self, line: &PendingLine) -> io::Result<()> {
        let payload = event::encode(&line.entry);
        let place = EntryPlace {
            seq: self.hub().head().seq + 1,
            at: line.at,
            attempt: line.attempt,
            lens: self.lens(),
        };
        self.persist(place, &line.entry, payload.len())?;
        self.writer.begin_attempt(line.attempt);
        self.writer.lifecycle(payload.as_bytes(), line.at)?;
        self.entries.push(place, &payload);
        Ok(())
    }

    /// Makes an entry survive this server before a reader gets it. A run that is silent to its end has its entries in
    /// the node log, and at its end in its row, which has the end itself.
    ///
    /// After a crash behind it the next server finds the entry there, and no reader has got it.
    fn persist(&mut self, place: EntryPlace, entry: &Entry, bytes: usize) -> io::Result<()> {
        if !self.writer.is_late() {
            return Ok(());
        }
        let is_persisted = match (entry, &self.record) {
            (Entry::Ended(_), _) => self.row_end == Some(place.seq),
            (_, Some(record)) => {
                let entry = entry.clone();
                self.writer.len(Kind::Lifecycle) + bytes as u64 <= LATE_BYTES_MAX
                    && record
                        .log_entry(self.run, RunEntry { place, entry })
                        .is_ok()
            }
            (_, None) => false,
        };
        if is_persisted {
            return Ok(());
        }
        self.make_journal()
    }

    /// Makes the journal, if it is not made. The node log does not need its entries any more.
    pub(super) fn make_journal(&mut self) -> io::Result<()> {
        if self.record.is_none() {
            return Ok(());
        }
        self.writer.make()?;
        crash_point!("output.journal_made");
        if let Some(record) = self.record.take() {
            record.journal_made(self.run);
        }
        Ok(())
    }

    /// Whether the journal is not made: there was no output.
    pub(crate) fn has_no_file(&self) -> bool {
        self.writer.is_late()
    }

    /// Returns the entries for the row, before the run's end is appended to the journal as its last entry. Where the
    /// disk refuses, waiting entries have no position yet: another server may have to write them.
    pub(crate) fn entries_at_end(&mut self) -> EntriesText {
        let end = (!self.has_pending()).then(|| EntriesEnd {
            seq: self.hub().head().seq + 1,
            lens: self.lens(),
        });
        self.row_end = end.as_ref().map(|end| end.seq);
        self.entries.text(end, self.writer.is_counted())
    }
}
