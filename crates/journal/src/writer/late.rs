//! A journal of which nothing is made on the disk before it has to be: its facts stand in memory, and their writer has them
//! elsewhere, from where they are made into files after a crash.

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

/// A fact whose journal was not made when it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateFact<'a> {
    /// When it was recorded.
    pub at: Timestamp,
    /// Of which attempt.
    pub attempt: u32,
    /// Its payload.
    pub payload: &'a [u8],
}

/// What is known elsewhere of a journal that was to be made later.
#[derive(Clone, Debug)]
pub struct Late<'a> {
    /// Its bound.
    pub bound: OutputBound,
    /// Readers may have been given more than these facts.
    pub is_cut: bool,
    /// The facts, from the first one on.
    pub facts: Vec<LateFact<'a>>,
}

impl Writer {
    /// The journal of a new run, of which nothing is made on the disk before [`Writer::make`] or the first byte of output.
    #[must_use]
    pub fn create_late(dir: &Path, bound: OutputBound, boot: Boot, now: Timestamp) -> Self {
        let segment = Segment::late(dir, header(bound, boot, now));
        let log = Log::late(dir, &segment);
        Self::new(log, segment, Vec::new(), boot, Mark::first(dir))
    }

    /// Whether nothing of it was made on the disk.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.segment.index.is_late()
    }

    /// Makes the files of a journal that was to be made later, with all facts so far.
    ///
    /// A crash on the way: an index without all facts may be there ([`Writer::reopen_late`]).
    ///
    /// # Errors
    ///
    /// It stays in memory, and the call may be repeated.
    pub fn make(&mut self) -> io::Result<()> {
        if !self.is_late() {
            return Ok(());
        }
        // Facts that do not lie in the index come before the entries that name them (INV-11).
        self.log.facts.make()?;
        self.segment.index.make()
    }

    /// As [`Writer::reopen`], of a journal that may not have been made, or not wholly.
    pub fn reopen_late(
        dir: &Path,
        late: &Late<'_>,
        boot: Boot,
        now: Timestamp,
    ) -> io::Result<(Self, [u64; 2])> {
        let is_missing = !has_index(dir)?;
        if is_missing {
            // One whose header is torn says nothing.
            remove(&dir.join("index"))?;
            let begun = late.facts.first().map_or(now, |first| first.at);
            // Should this server die before the next segment is there, the next server begins that.
            let begun_in = if late.is_cut { boot.other() } else { boot };
            let mut writer = Self::create_late(dir, late.bound, begun_in, begun);
            writer.append_all(&late.facts)?;
            writer.make()?;
        }
        let (mut writer, unnamed) = Self::reopen_as(dir, boot, now, is_missing && late.is_cut)?;
        let there = usize::try_from(writer.end.seq).unwrap_or(usize::MAX);
        // Nothing else is written before all of these are.
        let missing = late.facts.get(there..).unwrap_or_default();
        writer.append_all(missing)?;
        if let Some(last) = missing.last() {
            writer.found_at = last.at;
        }
        Ok((writer, unnamed))
    }

    /// The journal of a run that was silent to its end, with these facts: nothing of it need be made any more.
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
    /// A reader of the journal of an ended run that was never made: these are all its facts. `dir` is where it would be.
    pub fn of_facts(dir: &Path, facts: &[LateFact<'_>]) -> io::Result<Self> {
        let writer = Writer::of_facts(dir, facts)?;
        writer.hub().read_from(Position::default())
    }
}
