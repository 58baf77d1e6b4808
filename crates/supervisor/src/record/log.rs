//! Writes the table into the node log, and handles a log that cannot be written.

use super::{frames, replay, run_table::RunTable};
use crate::base::cause::Chain;
use kennel_journal::{
    Boot,
    node_log::{LogPosition, NodeLog, Origin, OwnedFrame, PayloadFormat, Retain, Trimmed},
};
use kennel_lifecycle::RunId;
use kennel_linux::own_file;
use kennel_store::{CHANGE_FORM, Change, NewRun};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::Notify;

/// The directory of the log, in the data directory.
const DIR: &str = "log";
/// A marker file: the rows that former servers logged are outdated, and no server trusts them.
const BEHIND: &str = "behind";
/// Number of the format of the frames.
const FORMAT: u32 = 2;
/// Approximate largest size of frames appended at once.
pub(super) const AT_ONCE_BYTES: usize = 1024 * 1024;

/// Location and writer of this server's log.
#[derive(Debug)]
pub(super) struct NodeLogLocation {
    pub(super) dir: PathBuf,
    pub(super) origin: Origin,
}

/// The table with its log.
#[derive(Debug)]
pub(super) struct LoggedTable {
    pub(super) table: RunTable,
    /// Absent: the log cannot be opened.
    pub(super) log: Option<Arc<NodeLog>>,
    /// Whether the table has what former servers logged.
    has_read: bool,
    pub(super) behind_mark: PathBuf,
    /// Number of the segment written last.
    segment: u32,
    has_complained: bool,
    trim_due: Arc<Notify>,
}

impl NodeLogLocation {
    pub(super) fn new(data_dir: &Path, epoch: u128, server: u32, boot_id: &str) -> Self {
        let number = FORMAT;
        let hash = CHANGE_FORM;
        Self {
            dir: data_dir.join(DIR),
            origin: Origin {
                format: PayloadFormat { number, hash },
                epoch,
                server: server.into(),
                boot: Boot::of_id(boot_id),
            },
        }
    }

    pub(super) fn behind_mark(&self) -> PathBuf {
        self.dir.join(BEHIND)
    }
}

impl LoggedTable {
    pub(super) fn new(
        place: &NodeLogLocation,
        log: Option<NodeLog>,
        table: Option<RunTable>,
        trim_due: Arc<Notify>,
    ) -> Self {
        Self {
            log: log.map(Arc::new),
            has_read: table.is_some(),
            table: table.unwrap_or_default(),
            behind_mark: place.behind_mark(),
            segment: 0,
            has_complained: false,
            trim_due,
        }
    }

    /// Folds changes in force, and logs them.
    pub(super) fn note(&mut self, mut changes: Vec<(RunId, Change)>) {
        changes.retain(|(run, change)| {
            let concerns = self.table.concerns(*run, change);
            if concerns {
                self.table.fold(*run, change);
            }
            concerns
        });
        let runs: Vec<RunId> = changes.iter().map(|(run, _)| *run).collect();
        if self.log.is_none() || !self.table.behind.is_empty() {
            self.fall_behind(runs.iter().copied());
            self.catch_up();
        } else {
            let frames = changes.iter().map(|(run, change)| {
                let frame = self.table.entry(*run).known(*run, change);
                (*run, frame)
            });
            let frames: Vec<_> = frames.collect();
            self.append_all(&frames);
        }
        for run in runs {
            self.table.prune(run);
        }
    }

    /// Logs the state of the node.
    pub(super) fn note_node(&mut self) {
        self.table.node.1 += 1;
        let frame = self.table.node_frame();
        if let Err(error) = self.append(&[&frame]) {
            self.table.node.1 -= 1;
            self.complain(&error);
        }
    }

    /// Logs an intended attempt, or fails without a trace of it.
    pub(super) fn intend(&mut self, new: NewRun) -> io::Result<()> {
        let run = new.run;
        let change = Change::Intended(Box::new(new));
        if self.log.is_none() {
            self.note(vec![(run, change)]);
            return Ok(());
        }
        self.catch_up();
        let frame = self.table.entry(run).known(run, &change);
        match self.append(&[&frame]) {
            Ok(_) => {}
            // The frame exceeds the log's limit: the log lacks this change.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.take_back(run),
            Err(error) => {
                self.take_back(run);
                self.table.prune(run);
                return Err(error);
            }
        }
        self.table.fold(run, &change);
        Ok(())
    }

    /// Undoes a seq: the last frame of the run was not written.
    pub(super) fn take_back(&mut self, run: RunId) {
        self.table.entry(run).seq -= 1;
    }

    /// Appends frames of runs, as many at once as one write takes.
    pub(super) fn append_all(&mut self, frames: &[(RunId, OwnedFrame)]) {
        for part in parts(frames) {
            let only: Vec<&OwnedFrame> = part.iter().map(|(_, frame)| frame).collect();
            if let Err(error) = self.append(&only) {
                for (run, _) in part {
                    self.take_back(*run);
                }
                if error.kind() != io::ErrorKind::InvalidInput {
                    self.fall_behind(part.iter().map(|(run, _)| *run));
                }
                self.complain(&error);
            }
        }
    }

    pub(super) fn append(&mut self, frames: &[&OwnedFrame]) -> io::Result<LogPosition> {
        let log = self.log.as_ref();
        let log = log.ok_or_else(|| io::Error::other("the node log is not open"))?;
        let frames: Vec<_> = frames.iter().map(|frame| frame.frame()).collect();
        let end = log.append(&frames)?.end;
        self.has_complained = false;
        if end.segment.number != self.segment {
            self.segment = end.segment.number;
            self.trim_due.notify_one();
        }
        Ok(end)
    }

    /// Logs that the node log cannot be written and is outdated.
    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_complained, true) {
            tracing::warn!(why = %Chain(error), "cannot write the node log: a crash of this server with an older copy of the database would lose entries");
        }
    }

    /// Records that the log knows less of these runs than the table. No later server may trust its rows.
    fn fall_behind(&mut self, runs: impl Iterator<Item = RunId>) {
        let was_behind = !self.table.behind.is_empty();
        self.table.behind.extend(runs);
        if was_behind || self.table.behind.is_empty() {
            return;
        }
        let mut how = own_file::options();
        how.write(true).create(true);
        // Without the log's directory there is no log to trust.
        if let Err(error) = own_file::none_if_absent(how.open(&self.behind_mark)) {
            tracing::error!(why = %Chain(&error), "the node log is behind, and cannot be marked as behind");
        }
    }

    /// Appends what the log lacks, as far as the log accepts it.
    pub(super) fn catch_up(&mut self) {
        if self.log.is_none() || self.table.behind.is_empty() {
            return;
        }
        while let Some(run) = self.table.behind.first().copied() {
            let frame = self.table.entry(run).state(run);
            if let Err(error) = self.append(&[&frame]) {
                self.take_back(run);
                if error.kind() != io::ErrorKind::InvalidInput {
                    return self.complain(&error);
                }
            }
            self.table.behind.remove(&run);
            self.table.prune(run);
        }
        if let Err(error) = own_file::none_if_absent(fs::remove_file(&self.behind_mark)) {
            tracing::warn!(why = %Chain(&error), "cannot remove the mark that the node log is behind");
        }
    }

    /// Opens the log, where that failed before. What it holds counts as older than all that is new.
    pub(super) fn open_late(&mut self, place: &NodeLogLocation) -> io::Result<()> {
        if self.log.is_some() {
            return Ok(());
        }
        let (log, found) = replay::open(place).map_err(io::Error::other)?;
        self.log = Some(Arc::new(log));
        if !std::mem::replace(&mut self.has_read, true) {
            self.put_found(found);
        }
        let all: Vec<RunId> = self.table.runs.keys().copied().collect();
        self.fall_behind(all.into_iter());
        self.begin();
        Ok(())
    }

    /// Writes the first frames of this server.
    pub(super) fn begin(&mut self) {
        let Some(log) = self.log.clone() else {
            return;
        };
        self.table.begin_incarnations(log.generation());
        let behind: Vec<RunId> = self.table.behind.iter().copied().collect();
        for run in &behind {
            // The previous incarnation may have used these seqs.
            let incarnation = self.table.new_incarnation();
            self.table.entry(*run).begin_anew(incarnation);
        }
        self.catch_up();
        self.note_node();
        // After this sync these pending changes need no other copy.
        if !behind.is_empty()
            && let Err(error) = log.sync(log.end())
        {
            self.complain(&io::Error::other(error));
        }
    }

    /// Merges what was found: what is known of a run here is newer, except for changes pending for the store.
    fn put_found(&mut self, found: RunTable) {
        self.table.generation = self.table.generation.max(found.generation);
        for (run, old) in found.runs {
            let entry = self.table.entry(run);
            if entry.is_empty() {
                *entry = old;
                self.table.list(run);
                continue;
            }
            entry.later.extend(old.later);
            old.pending
                .into_iter()
                .rev()
                .for_each(|p| entry.pending.push_front(p));
        }
        self.table.queue_all();
    }
}

/// Splits frames into parts of about [`AT_ONCE_BYTES`].
fn parts(frames: &[(RunId, OwnedFrame)]) -> impl Iterator<Item = &[(RunId, OwnedFrame)]> {
    let mut rest = frames;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |(_, frame): &&(RunId, OwnedFrame)| {
            let is_first = bytes == 0;
            bytes += frame.payload.len() + 1;
            is_first || bytes <= AT_ONCE_BYTES
        };
        let count = rest.iter().take_while(fits).count();
        let (part, others) = rest.split_at(count);
        rest = others;
        (!part.is_empty()).then_some(part)
    })
}

impl super::NodeRecord {
    /// Removes segments of the log that hold nothing needed; blocks.
    pub(super) fn trim(&self) {
        let log = {
            let mut record = self.state.lock();
            record.catch_up();
            record.table.ended_in_trim = Some(Vec::new());
            record.log.clone()
        };
        let trimmed = log.map(|log| log.trim(&mut Needs(self)));
        let mut record = self.state.lock();
        // A state copied while its run was forgotten would bring the run back.
        for (run, incarnation, seq) in record.table.ended_in_trim.take().unwrap_or_default() {
            let frame = frames::gone(run, incarnation, seq);
            if let Err(error) = record.append(&[&frame]) {
                record.complain(&error);
            }
        }
        drop(record);
        match trimmed {
            Some(Ok(Trimmed { segments, copied })) if segments > 0 => {
                tracing::debug!(segments, copied, "old segments of the node log are removed");
            }
            Some(Err(error)) => {
                tracing::warn!(why = %Chain(&error), "cannot trim the node log");
            }
            Some(Ok(_)) | None => {}
        }
    }
}

/// Decides which frames the log retains.
struct Needs<'a>(&'a super::NodeRecord);

impl Retain for Needs<'_> {
    fn needs(&mut self, run: u128, incarnation: u64, seq: u64) -> bool {
        let record = self.0.state.lock();
        if run == 0 {
            return (incarnation, seq) == record.table.node;
        }
        let entry = record.table.runs.get(&RunId::from_u128(run));
        entry.is_some_and(|entry| entry.incarnation == incarnation)
    }

    fn snapshot(&mut self, run: u128, incarnation: u64) -> Option<OwnedFrame> {
        let record = self.0.state.lock();
        if run == 0 {
            return Some(record.table.node_frame());
        }
        let id = RunId::from_u128(run);
        let entry = record.table.runs.get(&id)?;
        (entry.incarnation == incarnation && entry.seq > 0).then(|| entry.snapshot(id))
    }
}
