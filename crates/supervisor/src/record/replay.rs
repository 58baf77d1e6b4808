//! Replay: builds the table at a start from what former servers logged.
//!
//! Pending changes were synced, and are delivered whichever boot they are of. Rows are trusted of this boot only: the
//! last notes of another boot may not have reached the disk. Damage taints the runs that it may concern: their rows are
//! a minimum of what is known of them.

use super::{
    NodeRecord,
    frames::{EntryState, Line},
    log::{LoggedTable, NodeLogLocation},
    outbox,
    run_table::{Entry, Pending, RunTable},
};
use crate::base::{blocking::blocking, cause::Chain, faults::BootError, log_words};
use kennel_journal::node_log::{
    Continuity, NodeLog, ReplayError, Replayed, ReplayedFrame, SNAPSHOT, move_aside,
};
use kennel_lifecycle::{KeeperEpoch, RunId};
use kennel_store::{Change, Life};
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use std::{collections::BTreeMap, fs, io, path::Path, sync::Arc, time::Duration};
use tokio::sync::{Notify, mpsc, watch};

/// Pause and limit of retries while a former server holds the lock.
const LOCK_RETRY: Duration = Duration::from_millis(10);
const LOCK_TRIES: u32 = 2_000;
/// Most tainted runs named in one log line.
const NAMED_MAX: usize = 20;

impl NodeRecord {
    /// Opens the record with what former servers logged. Runs do not end because of an unreadable log: it is moved
    /// aside, and what cannot be written waits for the store.
    ///
    /// # Errors
    ///
    /// A former server is still alive.
    pub(crate) async fn open(
        data_dir: &Path,
        epoch: KeeperEpoch,
        server: u32,
        boot_id: &str,
    ) -> Result<(Arc<Self>, impl Future<Output = ()> + Send + use<>), BootError> {
        let place = NodeLogLocation::new(data_dir, epoch.as_u128(), server, boot_id);
        let trim_due = Arc::new(Notify::new());
        let due = Arc::clone(&trim_due);
        let opened = blocking(move || {
            let (log, table) = open_somehow(&place)?;
            let mut record = LoggedTable::new(&place, log, table, due);
            record.begin();
            Ok((place, record))
        });
        let opened = opened.await.flatten();
        let (place, record) = opened.map_err(BootError::Record)?;
        let count = record.table.pending_count();
        if count > 0 {
            tracing::info!(count, "changes are pending for the database");
        }
        let (jobs, queue) = mpsc::channel(outbox::PROMISES_QUEUED_MAX);
        let record = Arc::new(Self {
            place,
            state: Mutex::new(record),
            jobs,
            pending: watch::Sender::new(()),
            delivering: tokio::sync::Mutex::new(()),
            trim_due,
        });
        let promises = outbox::write_promises(Arc::downgrade(&record), queue);
        Ok((record, promises))
    }
}

/// Opens the log and reads it. No log: there is no space for one, or the path in its place cannot be read.
fn open_somehow(place: &NodeLogLocation) -> io::Result<(Option<NodeLog>, Option<RunTable>)> {
    let error = match open(place) {
        Ok((log, table)) => return Ok((Some(log), Some(table))),
        Err(error) => error,
    };
    if let ReplayError::FormerServer { .. } = error {
        return Err(io::Error::other(error));
    }
    if is_full(&error)
        && let Ok(table) = read(place)
    {
        tracing::error!(why = %Chain(&error), "no space for the node log, its contents are known: retrying at the next entry");
        return Ok((None, Some(table)));
    }
    let aside = move_aside(&place.dir);
    let opened = aside.and_then(|aside| match open(place) {
        Ok(opened) => Ok((opened, aside)),
        Err(error) => {
            // The old directory is not the cause: restore it for a server that can read it.
            let _ = fs::remove_dir(&place.dir);
            let _ = fs::rename(&aside, &place.dir);
            Err(io::Error::other(error))
        }
    });
    match opened {
        Ok(((log, table), aside)) => {
            let (error, aside) = (Chain(&error), aside.display());
            tracing::error!(%error, %aside, "cannot read the node log, keeping its files: ends of runs that ended while the database was unavailable may be lost");
            Ok((Some(log), Some(table)))
        }
        Err(_) => {
            let (error, path) = (Chain(&error), place.dir.display());
            tracing::error!(%error, %path, "cannot read or create the node log, retrying at the next entry");
            Ok((None, None))
        }
    }
}

fn is_full(error: &ReplayError) -> bool {
    let ReplayError::Read(error) = error else {
        return false;
    };
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Opens this server's log, and reads those of the former ones.
pub(super) fn open(place: &NodeLogLocation) -> Result<(NodeLog, RunTable), ReplayError> {
    let log = NodeLog::open(&place.dir, place.origin)?;
    let mut tries = 0;
    loop {
        let mut replay = TableReplay::new(place);
        match log.replay(|frame| replay.visit(&frame)) {
            Ok(replayed) => return Ok((log, replay.finish(place, &replayed))),
            Err(ReplayError::FormerServer { .. }) if tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(LOCK_RETRY);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads the logs of former servers.
fn read(place: &NodeLogLocation) -> Result<RunTable, ReplayError> {
    let mut replay = TableReplay::new(place);
    let replayed = NodeLog::read_former(&place.dir, |frame| replay.visit(&frame))?;
    Ok(replay.finish(place, &replayed))
}

/// Folds frames into a table.
struct TableReplay {
    table: RunTable,
    place_boot: kennel_journal::Boot,
    /// No row is trusted: the log is outdated.
    is_behind: bool,
    /// Frames that arrived before their predecessors.
    early: BTreeMap<RunId, BTreeMap<u64, (Line, bool)>>,
    continuity: Continuity,
    /// Runs whose rows are not trusted although they are of this boot.
    tainted: Vec<RunId>,
    /// Runs with an unreadable frame.
    unread: Vec<RunId>,
    /// Number of those that a later version has written.
    later_frames: usize,
}

impl TableReplay {
    fn new(place: &NodeLogLocation) -> Self {
        Self {
            table: RunTable::default(),
            place_boot: place.origin.boot,
            is_behind: place.behind_mark().exists(),
            early: BTreeMap::new(),
            continuity: Continuity::default(),
            tainted: Vec::new(),
            unread: Vec::new(),
            later_frames: 0,
        }
    }

    fn visit(&mut self, found: &ReplayedFrame<'_>) {
        let frame = found.frame;
        let is_ours = found
            .origin
            .is_some_and(|origin| origin.boot == self.place_boot);
        let line = Line::decode(frame.kind, frame.payload);
        if frame.run == 0 {
            return self.node(line, is_ours);
        }
        let run = RunId::from_u128(frame.run);
        self.continuity.add(found.position, &frame, false);
        if self.is_behind && is_ours {
            self.tainted.push(run);
        }
        let line = line.unwrap_or_else(|why| {
            if serde_json::from_slice::<IgnoredAny>(frame.payload).is_ok() {
                self.later_frames += 1;
            } else {
                tracing::error!(run_id = %run, %why, position = %found.position, "cannot read a frame of the node log");
            }
            self.unread.push(run);
            Line::Other
        });
        if !self.is_of_newest(run, frame.incarnation) {
            return;
        }
        let entry = self.table.entry(run);
        if frame.seq <= entry.seq {
            return;
        }
        let is_next = frame.seq == entry.seq + 1 || frame.has(SNAPSHOT);
        if is_next {
            self.apply(run, frame.seq, line, is_ours);
            self.apply_early(run);
        } else {
            let early = self.early.entry(run).or_default();
            early.insert(frame.seq, (line, is_ours));
        }
    }

    fn node(&mut self, line: Result<Line, String>, is_ours: bool) {
        let Ok(Line::Node(state)) = line else {
            return;
        };
        self.table.generation = self.table.generation.max(state.generation);
        let of_boot = state.life.filter(|_| is_ours);
        self.table.life = of_boot.map(Life::named);
    }

    /// Whether this is the newest incarnation of the run seen so far; a newer one replaces the others.
    fn is_of_newest(&mut self, run: RunId, incarnation: u64) -> bool {
        let known = self.table.runs.get(&run).map(|entry| entry.incarnation);
        if known.is_none_or(|known| known < incarnation) {
            self.early.remove(&run);
            self.table.remove(run);
            self.table.runs.insert(run, Entry::new(incarnation));
        }
        known.is_none_or(|known| known <= incarnation)
    }

    fn apply_early(&mut self, run: RunId) {
        loop {
            let Some(entry) = self.table.runs.get(&run) else {
                return;
            };
            let next = entry.seq + 1;
            let Some(early) = self.early.get_mut(&run) else {
                return;
            };
            early.retain(|seq, _| *seq >= next);
            let Some((line, is_ours)) = early.remove(&next) else {
                return;
            };
            self.apply(run, next, line, is_ours);
        }
    }

    fn apply(&mut self, run: RunId, seq: u64, line: Line, is_ours: bool) {
        let is_believed = is_ours && !self.is_behind;
        let entry = self.table.entry(run);
        entry.seq = seq;
        if !is_believed && entry.row.take().is_some() {
            self.table.list(run);
        }
        let entry = self.table.entry(run);
        match line {
            Line::Known(change) => {
                let is_local = matches!(change, Change::Intended(_) | Change::Forgotten);
                if is_local || is_believed && self.table.concerns(run, &change) {
                    self.table.fold(run, &change);
                }
            }
            Line::Pending(change, bytes) => {
                let change = Arc::new(change);
                let pending = Pending { seq, change, bytes };
                entry.in_flight.push_back(pending);
                self.table.promise(run);
            }
            Line::LaterPending(text) => entry.later.push((seq, text)),
            Line::Delivered(upto) => {
                let taken = self.table.take_pending(run, upto);
                if is_believed {
                    self.table.fold_delivered(run, &taken);
                }
            }
            Line::Refused(upto) => drop(self.table.take_pending(run, upto)),
            Line::State(state) => self.restore(run, *state, is_believed),
            Line::Entry(late) => entry.put_late(*late),
            Line::Node(_) | Line::Other => {}
        }
        // Entries after this frame may not have reached the disk.
        if !is_ours {
            self.table.entry(run).lose_late();
        }
    }

    fn restore(&mut self, run: RunId, state: EntryState, is_believed: bool) {
        self.table.take_pending(run, u64::MAX);
        let entry = self.table.entry(run);
        state.restore(entry, is_believed);
        let pending = std::mem::take(&mut entry.pending);
        entry.in_flight = pending;
        while self.table.has_in_flight(run) {
            self.table.promise(run);
        }
        self.table.list(run);
    }

    fn finish(mut self, place: &NodeLogLocation, replayed: &Replayed) -> RunTable {
        self.report_damage(place, replayed);
        if !replayed.damages.is_empty() {
            let tainted = self.continuity.tainted(&replayed.damages);
            self.unread
                .extend(tainted.iter().map(|t| RunId::from_u128(t.run)));
            for (run, early) in std::mem::take(&mut self.early) {
                for (seq, (line, is_ours)) in early {
                    self.apply(run, seq, line, is_ours);
                }
            }
        }
        for run in &self.unread {
            if let Some(entry) = self.table.runs.get_mut(run) {
                entry.lose_late();
            }
        }
        if self.later_frames > 0 {
            let count = self.later_frames;
            tracing::warn!(
                count,
                "frames of the node log are of a later version, reading the rows of their runs from the database"
            );
        }
        for (run, entry) in &self.table.runs {
            if !entry.later.is_empty() {
                tracing::error!(run_id = %run, count = entry.later.len(), "writes pending for the database are of a later version: keeping them for it, and leaving the run alone");
            }
        }
        self.tainted.append(&mut self.unread);
        self.tainted.sort_unstable();
        self.tainted.dedup();
        let is_in_table = |run: &RunId| self.table.runs.contains_key(run);
        self.tainted.retain(is_in_table);
        for run in &self.tainted {
            self.table.entry(*run).assumed = true;
        }
        if !self.tainted.is_empty() {
            let count = self.tainted.len();
            let named = &self.tainted[..count.min(NAMED_MAX)];
            let runs = log_words::list(named);
            tracing::error!(
                count,
                runs,
                "the node log may lack entries of these runs, reading their rows from the database"
            );
        }
        self.table.behind.extend(self.tainted.drain(..));
        self.table.prune_all();
        self.table
    }

    fn report_damage(&self, place: &NodeLogLocation, replayed: &Replayed) {
        for damage in &replayed.damages {
            tracing::error!(%damage, "the node log is damaged");
            // A hard link preserves the data after the segment is removed as unneeded.
            let path = damage.segment.path(&place.dir);
            let _ = fs::hard_link(&path, path.with_extension("damaged"));
        }
        if self.is_behind {
            tracing::warn!(
                "an earlier server could not write the node log: its entries about rows are not trusted"
            );
        }
    }
}
