//! What the row of a run is to have of its journal: all but output, with its place.

use super::{Output, Owed};
use kennel_store::{EntriesEnd, EntriesText, EntryPlace};
use std::io;

impl Output {
    /// Puts a line into the journal.
    pub(super) fn put(&mut self, line: &Owed) -> io::Result<()> {
        self.writer.begin_attempt(line.attempt);
        let seq = self.writer.lifecycle(line.payload.as_bytes(), line.at)?;
        let place = EntryPlace {
            seq,
            at: line.at,
            attempt: line.attempt,
            lens: self.lens(),
        };
        self.entries.push(place, &line.payload);
        Ok(())
    }

    /// What the row is to have, before the run's end is put into the journal as its last line. Where the disk refuses, what
    /// waits for it has no place yet: another server may come to write it.
    pub(crate) fn entries_at_end(&self) -> EntriesText {
        let end = (!self.owes()).then(|| EntriesEnd {
            seq: self.hub().head().seq + 1,
            lens: self.lens(),
        });
        self.entries.text(end, self.writer.is_counted())
    }
}
