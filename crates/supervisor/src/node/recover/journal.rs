//! The journal of a run that is being recovered.

use super::Recovery;
use crate::{
    base::{KINDS, blocking::blocking, clock, event},
    registry::Shared,
    run::saved_output,
};
use kennel_journal::{Hub, Writer};
use kennel_keeper::rundir;
use kennel_lifecycle::{AttemptRecord, Entry, Outcome, RunId, Timestamp};
use kennel_store::{EntriesEnd, EntriesText, EntryList, EntryPlace};
use std::{io, path::Path, sync::Arc};

/// The journal of a run whose server died, and what its entries say.
pub(crate) struct Journal {
    pub(super) writer: Writer,
    pub(crate) record: AttemptRecord,
    pub(super) entries: EntryList,
}

impl Journal {
    /// Indexes the output that its server has left.
    pub(crate) fn open(shared: &Shared, run: RunId, dir: &Path, attempt: u32) -> io::Result<Self> {
        let reopened = shared.record.reopen_journal(run, dir, shared.boot());
        let (mut writer, unnamed) = reopened?;
        writer.index_unnamed(unnamed, clock::now())?;
        let facts = writer.facts()?;
        let record = event::record(&facts, attempt);
        let entries = event::entry_list(&facts);
        writer.begin_attempt(attempt);
        Ok(Self {
            writer,
            record,
            entries,
        })
    }

    fn hub(&self) -> Hub {
        self.writer.hub()
    }

    pub(super) fn append(&mut self, entry: &Entry, now: Timestamp) -> io::Result<()> {
        let json = event::encode(entry);
        let seq = self.writer.lifecycle(json.as_bytes(), now)?;
        self.entries.push(self.place(seq, now), &json);
        self.record.fold(now, entry);
        Ok(())
    }

    fn place(&self, seq: u64, at: Timestamp) -> EntryPlace {
        EntryPlace {
            seq,
            at,
            attempt: self.writer.attempt(),
            lens: self.lens(),
        }
    }

    fn lens(&self) -> [u64; 2] {
        KINDS.map(|kind| self.writer.len(kind))
    }

    /// Appends the ends that are missing, in their order.
    pub(crate) fn end(&mut self, outcome: &Outcome, now: Timestamp) -> io::Result<()> {
        let missing = self.record.missing_ends(outcome, None);
        missing.iter().try_for_each(|entry| self.append(entry, now))
    }

    /// What the row is to have of it, written before [`Self::end`] appends the ends that are missing.
    pub(super) fn entries_at_end(&self, outcome: &Outcome, now: Timestamp) -> EntriesText {
        let mut entries = self.entries.clone();
        let mut seq = self.hub().head().seq;
        for entry in self.record.missing_ends(outcome, None) {
            seq += 1;
            if !matches!(entry, Entry::Ended(_)) {
                entries.push(self.place(seq, now), &event::encode(&entry));
            }
        }
        let lens = self.lens();
        entries.text(Some(EntriesEnd { seq, lens }), self.writer.is_counted())
    }
}

impl Recovery {
    pub(super) async fn serve_readers(&mut self) {
        if self.journal.is_some() {
            return;
        }
        match self.journal().await {
            Ok(journal) => {
                let hub = journal.hub();
                self.live.send_modify(|live| live.hub = Some(hub.clone()));
                self.journal = Some(journal);
            }
            Err(error) => {
                let run = self.row.new.run;
                tracing::error!(run_id = %run, %error, "the journal cannot be opened, nothing is written to it");
                self.live.send_modify(|live| live.no_journal = true);
            }
        }
    }

    /// What the shim has saved of the output comes before the ends. The journal says LOST of the streams: more may be missing.
    pub(super) fn take_saved_output(&mut self) {
        let run = self.row.new.run;
        let run_dir = rundir::path(&self.shared.config.data_dir, run);
        let taken = self
            .journal
            .as_mut()
            .map(|journal| saved_output::take(&mut journal.writer, &run_dir));
        if let Some(Err(error)) = taken {
            tracing::error!(run_id = %run, %error, "the output that its shim has saved is not in the journal");
        }
    }

    async fn journal(&self) -> io::Result<Journal> {
        let (shared, run) = (Arc::clone(&self.shared), self.row.new.run);
        let attempt = self.row.new.attempt;
        let opened = blocking(move || {
            let dir = rundir::create(&shared.config.data_dir, run)?;
            Journal::open(&shared, run, &dir, attempt)
        });
        opened.await.flatten()
    }
}
