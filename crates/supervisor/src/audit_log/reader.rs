//! Reads the audit log from any line on, while it grows.

use super::{TrailEntry, TrailRecord, files};
use crate::base::blocking::blocking;
use kennel_lifecycle::Timestamp;
use kennel_linux::own_file;
use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    fs::File,
    hash::{Hash, Hasher},
    io::{self, BufRead, BufReader, Seek, SeekFrom},
    path::PathBuf,
};
use tokio::sync::watch;

/// Most records returned at once.
const BATCH_MAX: usize = 256;
/// Most bytes examined at once.
const LOOK_BYTES_MAX: u64 = 1024 * 1024;

/// Selects lines.
#[derive(Clone, Debug, Default)]
pub struct TrailAsk {
    /// Lines behind this seq.
    pub after_seq: u64,
    /// Lines about this run only.
    pub run: Option<String>,
    /// Lines not older than this.
    pub since: Option<Timestamp>,
    /// Lines not newer than this.
    pub until: Option<Timestamp>,
    /// Lines of these kinds.
    pub kinds: Vec<TrailKind>,
    /// Whether to follow new lines.
    pub follow: bool,
    /// Whether to return lines that repeat others, and signals that a keeper has reported again: all of the chain.
    pub repeats: bool,
}

/// A kind of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailKind {
    /// Requests about a run.
    Request,
    /// Signals.
    Signal,
    /// Events of the service, and requests about no run.
    Node,
}

impl TrailAsk {
    fn wants(&self, record: &TrailRecord) -> bool {
        let kind = match (&record.entry, &record.run) {
            (TrailEntry::Request(_), Some(_)) => TrailKind::Request,
            (TrailEntry::Signal(_), _) => TrailKind::Signal,
            (TrailEntry::Node(_), _) | (TrailEntry::Request(_), None) => TrailKind::Node,
        };
        let about = self.run.is_none() || record.run.is_none() || self.run == record.run;
        record.seq > self.after_seq
            && self.kinds.contains(&kind)
            && about
            && self.since.is_none_or(|since| record.at_us >= since.0)
            && self.until.is_none_or(|until| record.at_us <= until.0)
    }
}

/// A position in the audit log.
#[derive(Debug)]
pub struct TrailReader {
    place: Option<AuditLogPosition>,
    ask: TrailAsk,
    head: watch::Receiver<u64>,
}

#[derive(Debug)]
struct AuditLogPosition {
    dir: PathBuf,
    /// The file being read, and the offset in it; absent: none yet.
    at: Option<(u64, u64)>,
    /// Seq of the first line that was read; absent: none yet.
    begun: Option<u64>,
    /// Signals already returned: a keeper reports again what a dead server may not have recorded.
    returned: HashSet<u64>,
    ask: TrailAsk,
}

impl TrailReader {
    pub(super) fn new(dir: PathBuf, ask: TrailAsk, head: watch::Receiver<u64>) -> Self {
        let place = AuditLogPosition {
            dir,
            at: None,
            begun: None,
            returned: HashSet::new(),
            ask: ask.clone(),
        };
        Self {
            place: Some(place),
            ask,
            head,
        }
    }

    /// Returns the next records, at least one; `None` where there are no more, and new ones are not awaited. Not
    /// cancel-safe.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub async fn next(&mut self) -> io::Result<Option<Vec<TrailRecord>>> {
        loop {
            // Marked seen before the read: records written meanwhile count as a change.
            self.head.borrow_and_update();
            let Some(mut place) = self.place.take() else {
                return Ok(None);
            };
            let looked = blocking(move || (place.look(), place)).await;
            let (found, place) = looked?;
            self.place = Some(place);
            let (found, at_end) = found?;
            if !found.is_empty() {
                return Ok(Some(found));
            }
            if at_end && (!self.ask.follow || self.head.changed().await.is_err()) {
                return Ok(None);
            }
        }
    }
}

impl AuditLogPosition {
    /// Reads on for a while; returns what it found, and whether that was all.
    fn look(&mut self) -> io::Result<(Vec<TrailRecord>, bool)> {
        let firsts = files::list(&self.dir)?;
        let mut found = Vec::new();
        let mut looked = 0;
        loop {
            let Some((first, offset)) = self.at.or_else(|| self.beginning(&firsts)) else {
                return Ok((found, true));
            };
            // Looked up before the file is read to its end: a file with a successor does not grow.
            let successor = firsts.iter().find(|other| **other > first).copied();
            let (read, at_end) = self.look_into(first, offset, &mut found)?;
            looked += read;
            self.at = Some((first, offset + read));
            match (at_end, successor) {
                (true, Some(next)) => self.at = Some((next, 0)),
                (true, None) => return Ok((found, true)),
                (false, _) => {}
            }
            if found.len() >= BATCH_MAX || looked >= LOOK_BYTES_MAX {
                return Ok((found, false));
            }
        }
    }

    /// Finds the last file that begins at or before the requested position.
    fn beginning(&self, firsts: &[u64]) -> Option<(u64, u64)> {
        let wanted = self.ask.after_seq.saturating_add(1);
        let at_or_before = firsts.iter().rev().find(|first| **first <= wanted);
        at_or_before.or(firsts.first()).map(|first| (*first, 0))
    }

    /// Reads whole lines; returns their bytes, and whether there are no more.
    fn look_into(
        &mut self,
        first: u64,
        offset: u64,
        found: &mut Vec<TrailRecord>,
    ) -> io::Result<(u64, bool)> {
        let file = File::open(files::path(&self.dir, first));
        let Some(mut file) = own_file::none_if_absent(file)? else {
            // Retention removed this file.
            return Ok((0, true));
        };
        file.seek(SeekFrom::Start(offset))?;
        let mut lines = BufReader::new(file);
        let (mut read, mut line) = (0, Vec::new());
        while found.len() < BATCH_MAX && read < LOOK_BYTES_MAX {
            line.clear();
            let bytes = lines.read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                return Ok((read, true));
            }
            read += bytes as u64;
            // A host crash can leave a line that is not a record.
            if let Ok(record) = serde_json::from_slice::<TrailRecord>(&line)
                && self.is_new(&record)
                && self.ask.wants(&record)
            {
                found.push(record);
            }
        }
        Ok((read, false))
    }

    fn is_new(&mut self, record: &TrailRecord) -> bool {
        let begun = *self.begun.get_or_insert(record.seq);
        if self.ask.repeats {
            return true;
        }
        // This reader returned the repeated line already, or an earlier one did to the same caller.
        if record.repeats > 0 && (record.repeats >= begun || record.repeats <= self.ask.after_seq) {
            return false;
        }
        let TrailEntry::Signal(signal) = &record.entry else {
            return true;
        };
        if !matches!(signal.sender.as_str(), "keeper" | "shim") {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        (&record.run, record.at_us, signal.attempt).hash(&mut hasher);
        (&signal.signal, &signal.scope, &signal.sender).hash(&mut hasher);
        (signal.delivered, signal.gone, signal.refused).hash(&mut hasher);
        self.returned.insert(hasher.finish())
    }
}
