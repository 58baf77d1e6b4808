//! Entries of a run among its output: their positions, and those that the row of the run gets.

use super::{Output, PendingLine};
use crate::base::{clock, event};
use kennel_journal::{Fact, Kind};
use kennel_lifecycle::{Entry, Timestamp};
use kennel_linux::crash_point;
use kennel_store::{EntriesEnd, EntriesText, EntryPlace, RunEntry};
use std::io;

/// Most bytes of the entries of a run whose journal is not made.
const LATE_BYTES_MAX: u64 = 16 * 1024;

impl Output {
    /// Returns the bound of the run's output where its other events alone have reached that.
    pub(crate) fn full_of_events(&self) -> Option<u64> {
        let most = self.writer.bound().max_bytes;
        (self.writer.len(Kind::Lifecycle) >= most).then_some(most)
    }

    /// Appends an entry to the journal, or counts it where the events of the run have reached their bound.
    pub(super) fn put(&mut self, line: &PendingLine) -> io::Result<()> {
        match self.full_of_events() {
            _ if matches!(line.entry, Entry::Ended(_)) => self.sum_up(line.at, line.attempt)?,
            Some(max_bytes) => return self.count(line, max_bytes),
            None => {}
        }
        self.append(line)
    }

    /// Counts an entry that the journal does not get. Before the first of them a warning says so.
    fn count(&mut self, line: &PendingLine, max_bytes: u64) -> io::Result<()> {
        if self.summed.sum.count == 0 {
            let message = format!(
                "the events of this run that are not output have reached {max_bytes} bytes: further ones are only counted"
            );
            self.append(&PendingLine {
                entry: Entry::Warning { message },
                ..*line
            })?;
        }
        let (place, entry) = (self.place_of(line), line.entry.clone());
        self.summed.add(RunEntry { place, entry })
    }

    /// Appends the number of entries that were counted since the last such number, if there are any.
    fn sum_up(&mut self, at: Timestamp, attempt: u32) -> io::Result<()> {
        let events = self.summed.sum.count.saturating_sub(self.summed.reported);
        if events > 0 {
            let entry = Entry::EventsSummed { events };
            self.append(&PendingLine { entry, at, attempt })?;
            self.summed.reported += events;
        }
        Ok(())
    }

    /// Reads what an earlier server has counted; `facts` are the entries of the journal.
    pub(crate) fn read_summed(&mut self, facts: &[Fact]) -> io::Result<()> {
        self.summed.reported = event::summed(facts);
        self.summed.read()
    }

    /// Returns the entries of an attempt that the journal did not get.
    pub(crate) fn summed_of(&self, attempt: u32) -> impl Iterator<Item = &RunEntry> {
        let entries = self.summed.sum.entries.iter();
        entries.filter(move |entry| entry.place.attempt == attempt)
    }

    fn place_of(&self, line: &PendingLine) -> EntryPlace {
        EntryPlace {
            seq: self.hub().head().seq + 1,
            at: line.at,
            attempt: line.attempt,
            lens: self.lens(),
        }
    }

    fn append(&mut self, line: &PendingLine) -> io::Result<()> {
        let payload = event::encode(&line.entry);
        let place = self.place_of(line);
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

    /// Whether files will be left at the run's end: its journal is made, or the end has no position that needs none.
    pub(crate) fn has_files(&self) -> bool {
        !self.has_no_file() || self.row_end.is_none()
    }

    /// Returns the entries for the row, before the run's end is appended to the journal as its last entry. Where the
    /// disk refuses, waiting entries have no position yet: another server may have to write them.
    pub(crate) fn entries_at_end(&mut self) -> EntriesText {
        let is_whole = !self.has_pending() && self.sum_up(clock::now(), self.attempt).is_ok();
        let end = is_whole.then(|| EntriesEnd {
            seq: self.hub().head().seq + 1,
            lens: self.lens(),
        });
        self.row_end = end.as_ref().map(|end| end.seq);
        self.entries.text(end, self.writer.is_counted())
    }
}
