//! A journal that is created on the disk only when necessary: its lifecycle entries are in memory, and their writer has
//! them elsewhere, from where a later server can write them into files after a crash.

use super::{Writer, segments::header};
use crate::{
    Boot, Position, Reader,
    errors::remove,
    log::{Log, has_index},
    mark::Mark,
    segment::Segment,
};
use kennel_lifecycle::{OutputBound, Timestamp};
use std::{io, path::Path};

/// A lifecycle entry whose journal did not exist on disk when it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateFact<'a> {
    /// Time at which it was recorded.
    pub at: Timestamp,
    /// Its attempt.
    pub attempt: u32,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Data stored elsewhere about a journal that was to be created later.
#[derive(Clone, Debug)]
pub struct Late<'a> {
    /// Its bound.
    pub bound: OutputBound,
    /// Whether readers may have got more than these entries.
    pub is_cut: bool,
    /// The lifecycle entries, from the first one on.
    pub facts: Vec<LateFact<'a>>,
}

impl Writer {
    /// Makes the journal of a new run, of which nothing is created on the disk before [`Writer::make`] or the first
    /// byte of output.
    pub fn create_late(dir: &Path, bound: OutputBound, boot: Boot, now: Timestamp) -> Self {
        let segment = Segment::late(dir, header(bound, boot, now));
        let log = Log::late(dir, &segment);
        Self::new(log, segment, Vec::new(), boot, Mark::first(dir))
    }

    /// Whether no file of it exists on the disk.
    pub fn is_late(&self) -> bool {
        self.segment.index.is_late()
    }

    /// Creates the files of a journal that was to be created later, with all lifecycle entries so far.
    ///
    /// A crash meanwhile: an index without all of them may be there ([`Writer::reopen_late`]).
    ///
    /// # Errors
    ///
    /// The journal stays in memory, and the call may be repeated.
    pub fn make(&mut self) -> io::Result<()> {
        if !self.is_late() {
            return Ok(());
        }
        // Lifecycle bytes outside of the index are written before the entries that refer to them (INV-11).
        self.log.facts.make()?;
        self.segment.index.make()
    }

    /// As [`Writer::reopen`], for a journal that may not exist on disk, or not completely.
    pub fn reopen_late(
        dir: &Path,
        late: &Late<'_>,
        boot: Boot,
        now: Timestamp,
    ) -> io::Result<(Self, [u64; 2])> {
        let is_missing = !has_index(dir)?;
        if is_missing {
            // An index with a torn header has no information.
            remove(&dir.join("index"))?;
            let begun = late.facts.first().map_or(now, |first| first.at);
            // If this server dies before the next segment exists, the next server begins that segment.
            let begun_in = if late.is_cut { boot.other() } else { boot };
            let mut writer = Self::create_late(dir, late.bound, begun_in, begun);
            writer.append_all(&late.facts)?;
            writer.make()?;
        }
        let (mut writer, unnamed) = Self::reopen_as(dir, boot, now, is_missing && late.is_cut)?;
        let there = usize::try_from(writer.end.seq).unwrap_or(usize::MAX);
        // All missing entries are written before anything else.
        let missing = late.facts.get(there..).unwrap_or_default();
        writer.append_all(missing)?;
        if let Some(last) = missing.last() {
            writer.found_at = last.at;
        }
        Ok((writer, unnamed))
    }

    /// Makes the journal of a run that was silent to its end, with these lifecycle entries: none of its files need be
    /// created any more.
    pub fn of_facts(dir: &Path, facts: &[LateFact<'_>]) -> io::Result<Self> {
        let begun = facts.first().map_or(Timestamp(0), |first| first.at);
        let mut writer = Self::create_late(dir, OutputBound::default(), Boot::UNKNOWN, begun);
        writer.append_all(facts)?;
        if let Some(last) = facts.last() {
            writer.found_at = last.at;
        }
        Ok(writer)
    }

    fn append_all(&mut self, facts: &[LateFact<'_>]) -> io::Result<()> {
        facts.iter().try_for_each(|fact| {
            self.begin_attempt(fact.attempt);
            self.lifecycle(fact.payload, fact.at).map(drop)
        })
    }
}

impl Reader {
    /// Opens the journal of an ended run that was never created on disk: these are all its lifecycle entries. `dir` is
    /// where it would be.
    pub fn of_facts(dir: &Path, facts: &[LateFact<'_>]) -> io::Result<Self> {
        let writer = Writer::of_facts(dir, facts)?;
        writer.hub().read_from(Position::default())
    }
}
