//! A run's output and its journal: the pump from pipes or terminal, and the entries that the machine appends.
//!
//! Bytes go from pipe to file by splice and are indexed after; a server that dies between the two has lost neither.
//! Where the disk is full the run's policy says whether the pump waits, and the command with it, or drops and counts.
//! Entries are never dropped for that: they wait, in their order.

mod dropping;
mod entries;
mod finish;
mod held;
mod pace;
mod rate;
mod refusal;
mod sources;
mod summed;

use crate::{
    base::{
        KINDS,
        cause::{Chain, is_full},
        clock,
    },
    record::NodeRecord,
    registry::floors::Floor,
};
use held::Held;
use kennel_journal::{Boot, Dropped, Hub, Writer};
use kennel_keeper::client::Outputs;
use kennel_lifecycle::{
    Entry, Limit, OnDiskFull, OnOutputFull, OutputBound, RunId, StreamsEnd, Timestamp,
};
use kennel_linux::{OutputPipe, PipeState, crash_point, splice::Spliced};
use kennel_store::EntryList;
use pace::Next;
use refusal::Refusal;
use sources::Sources;
use std::{
    collections::VecDeque,
    fs::File,
    io,
    ops::Range,
    path::Path,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};
use summed::SummedEvents;
use tokio::{sync::watch, time::Instant};

/// Most bytes moved before the run's task handles its orders again.
const PUMP_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of one stream read after the tree is empty: more than a pipe can hold (pipe(7): 1 MiB).
const FINISH_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Wait after the disk refused a write.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Most entries that wait for a disk that refuses; beyond it the oldest are given up, and that is reported.
const PENDING_LINES_MAX: usize = 256;

/// Most warnings about a disk that refuses, per server; further ones are only logged.
const WARNINGS_MAX: u32 = 64;

/// A function that moves bytes from a pipe to an offset of a file.
type Splice = fn(&OutputPipe, &File, u64, usize) -> io::Result<Spliced>;

/// The journal of one run and the pipes that feed it.
#[derive(Debug)]
pub(crate) struct Output {
    run: RunId,
    writer: Writer,
    sources: Sources,
    /// Bytes that are in the file of a stream and not yet in the index.
    unindexed: [u64; 2],
    pending: VecDeque<PendingLine>,
    /// Entries of the journal.
    entries: EntryList,
    /// Entries beyond its bound.
    summed: SummedEvents,
    /// Holds the entries while the journal is not made; absent: it is made.
    record: Option<Arc<NodeRecord>>,
    /// Seq of the run's end according to the row.
    row_end: Option<u64>,
    /// Number of entries that were given up.
    given_up: u64,
    /// Attempt of whatever is written next.
    attempt: u32,
    disk: DiskState,
    /// The tree is gone and the rest is being read; the streams' end so far.
    finishing: Option<StreamsEnd>,
    limit: LimitReached,
    /// Acknowledged position of the consumers, where output waits at the bound.
    floor: Option<watch::Receiver<Floor>>,
    held: Held,
}

/// The disk, as far as it keeps output and entries waiting.
#[derive(Debug, Default)]
struct DiskState {
    retry_at: Option<Instant>,
    /// Present from the first refused write until everything is written again.
    refusal: Option<Refusal>,
    /// Number of warnings so far.
    warnings: u32,
    /// Destination of dropped output.
    sink: Option<File>,
    /// The run has ended, and the disk has not taken the last entries.
    flushes_late: bool,
    /// Output no longer waits for room on the disk.
    hurries: bool,
}

/// An entry that the disk has not taken yet.
#[derive(Debug)]
struct PendingLine {
    entry: Entry,
    at: Timestamp,
    attempt: u32,
}

/// Whether the run has reached a limit at which it is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitReached {
    No,
    Now(Limit),
    Reported,
}

/// Event for the pump.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ready {
    Pipe(usize),
    Retry,
    /// Consumers have acknowledged.
    Floor,
}

impl Output {
    /// Makes a new journal in `dir`, at its first use. Where output may be dropped when the disk is full, it must be
    /// possible to count that: then the journal is made at once.
    pub(crate) fn create(
        run: RunId,
        dir: &Path,
        bound: OutputBound,
        boot: Boot,
        open: Arc<AtomicUsize>,
        record: Arc<NodeRecord>,
    ) -> io::Result<Self> {
        let writer = Writer::create_late(dir, bound, boot, clock::now());
        let mut output = Self::over(run, dir, (writer, [0, 0]), EntryList::default(), open);
        output.record = Some(record);
        if bound.on_disk_full != OnDiskFull::Block {
            output.make_journal()?;
        }
        Ok(output)
    }

    /// Continues an existing journal in `dir`, with the bytes that its index does not name ([`Writer::reopen`]) and its
    /// entries.
    pub(crate) fn over(
        run: RunId,
        dir: &Path,
        reopened: (Writer, [u64; 2]),
        entries: EntryList,
        open: Arc<AtomicUsize>,
    ) -> Self {
        let (writer, unindexed) = reopened;
        let (is_silent, head) = (writer.is_late(), writer.hub().head().seq);
        let left = unindexed != [0, 0] || writer.dropped() != Dropped::default();
        Self {
            run,
            attempt: writer.attempt(),
            writer,
            sources: Sources::of(open),
            unindexed,
            pending: VecDeque::new(),
            entries,
            summed: SummedEvents::new(dir),
            record: None,
            // Without a journal here, the run's end is in its row, and follows the head.
            row_end: is_silent.then_some(head + 1),
            given_up: 0,
            disk: DiskState {
                retry_at: left.then(clock::instant),
                ..DiskState::default()
            },
            finishing: None,
            limit: LimitReached::No,
            floor: None,
            held: Held::default(),
        }
    }

    /// Returns the source of readers.
    pub(crate) fn hub(&self) -> Hub {
        self.writer.hub()
    }

    /// Begins an attempt: later writes belong to it, and its output is not moved before it runs.
    pub(crate) fn begin_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.sources.flows = false;
        self.writer.go_beyond_bound(false);
        self.held = Held::default();
    }

    /// Lengths of standard output and error by now.
    pub(crate) fn lens(&self) -> [u64; 2] {
        KINDS.map(|kind| self.writer.len(kind))
    }

    /// Starts to read the command's output.
    pub(crate) fn attach(&mut self, outputs: Outputs) -> io::Result<()> {
        self.sources.attach(outputs)
    }

    /// Moves output from here on: the first entry of a command is that it runs.
    pub(crate) fn flow(&mut self) {
        self.sources.flows = true;
    }

    /// Whether output is moved.
    pub(crate) fn flows(&self) -> bool {
        self.sources.flows
    }

    /// Waits until there is something to move. Cancel-safe.
    pub(crate) async fn ready(&self) -> Ready {
        let retry = async {
            match self.disk.retry_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
            Ready::Retry
        };
        if self.disk.retry_at.is_some() && !self.disk.drops() {
            return retry.await;
        }
        if self.held.holds() {
            return tokio::select! {
                ready = self.floor_moved() => ready,
                ready = retry => ready,
            };
        }
        let turn = self.sources.rate.next_turn();
        let wait = |index: usize| async move {
            match &self.sources.pipes[index] {
                Some(_) if turn.is_some() && self.sources.flows && !self.disk.drops() => {
                    if let Some(turn) = turn {
                        tokio::time::sleep_until(turn).await;
                    }
                }
                Some(pipe) if self.sources.flows => match self.sources.paces[index].next() {
                    // The read that follows meets a poll error again and handles it.
                    None => drop(pipe.readable().await),
                    Some(Next::Now) => tokio::task::yield_now().await,
                    Some(Next::At(at)) => tokio::time::sleep_until(at).await,
                },
                _ => std::future::pending().await,
            }
            Ready::Pipe(index)
        };
        tokio::select! {
            ready = wait(0) => ready,
            ready = wait(1) => ready,
            ready = retry => ready,
        }
    }

    /// Moves what is ready. Returns the end of the output when this call has reached it.
    pub(crate) fn pump(&mut self, ready: Ready) -> Option<StreamsEnd> {
        let was_open = self.is_open();
        let before = self.lens();
        match ready {
            Ready::Pipe(index) if self.disk.drops() => {
                if let Err(error) = self.discard(index, PUMP_BYTES_MAX, OutputPipe::splice_to_file)
                {
                    self.cannot_drop(&error);
                }
            }
            Ready::Pipe(index) => self.move_all(index..index + 1),
            Ready::Retry => {
                self.disk.retry_at = None;
                if self.finishing.is_some() {
                    return self.finish();
                }
                self.move_all(if self.sources.flows { 0..2 } else { 0..0 });
            }
            Ready::Floor => self.move_all(if self.sources.flows { 0..2 } else { 0..0 }),
        }
        if let Ready::Pipe(index) = ready {
            let bytes = self.lens()[index] - before[index];
            // Bytes left in a pipe at the end exceed a blocking bound: gathering would add more.
            let gathers = self.writer.bound().on_full != OnOutputFull::Block;
            self.sources.pace(index, bytes, gathers);
        }
        (was_open && !self.is_open()).then_some(StreamsEnd::Eof)
    }

    fn move_all(&mut self, mut indexes: Range<usize>) {
        self.apply_floor();
        let moved = self
            .settle()
            .and_then(|()| indexes.try_for_each(|index| self.move_some(index)));
        match moved {
            Ok(()) => self.recovered(),
            Err(error) => self.refused(&error),
        }
        if self.writer.bound().on_full == OnOutputFull::Abort && self.writer.has_passed_bound() {
            self.reach(Limit::OutputBytes);
        }
        self.report_held();
        self.report_rate();
    }

    /// Whether a stream is still being read.
    pub(crate) fn is_open(&self) -> bool {
        self.sources.pipes.iter().any(Option::is_some)
    }

    /// Whether everything of an ended run is on the disk.
    pub(crate) fn has_written_all(&mut self) -> bool {
        self.disk.flushes_late = self.has_pending();
        !self.disk.flushes_late
    }

    /// Whether that has become true after it was not: once.
    pub(crate) fn has_flushed_late(&mut self) -> bool {
        !self.has_pending() && std::mem::take(&mut self.disk.flushes_late)
    }

    /// Whether entries wait for the disk.
    pub(crate) fn has_pending(&self) -> bool {
        self.unindexed != [0, 0]
            || !self.pending.is_empty()
            || self.writer.dropped() != Dropped::default()
    }

    /// Appends an entry to the journal, or queues it until the disk takes it.
    pub(crate) fn line(&mut self, line: &Entry, at: Timestamp) {
        self.pending.push_back(PendingLine {
            entry: line.clone(),
            at,
            attempt: self.attempt,
        });
        if let Err(error) = self.settle() {
            self.refused(&error);
        }
        while self.pending.len() > PENDING_LINES_MAX {
            tracing::error!(run_id = %self.run, "dropping an entry of the journal: the disk is full or failing");
            self.pending.pop_front();
            self.given_up += 1;
        }
    }

    /// Writes what is queued, in order: bytes in the files, what was dropped behind them, then entries. Where the disk
    /// was full, some room is required before anything follows the queued entries: nothing follows the last entry of a
    /// run.
    fn settle(&mut self) -> io::Result<()> {
        for (index, kind) in KINDS.into_iter().enumerate() {
            let bytes = self.unindexed[index];
            if bytes > 0 {
                self.writer.output_written(kind, bytes, clock::now())?;
                self.unindexed[index] = 0;
            }
        }
        let dropped = self.writer.dropped();
        if dropped != Dropped::default() {
            self.writer.resume_after_dropped(clock::now())?;
            self.disk
                .refusal
                .get_or_insert_with(Refusal::found)
                .is_over(dropped);
            // Output can be moved again at once.
            self.disk.retry_at = Some(clock::instant());
        }
        if !self.pending.is_empty() {
            self.warn()?;
        }
        while let Some(line) = self.pending.pop_front() {
            if let Err(error) = self.put(&line) {
                self.pending.push_front(line);
                return Err(error);
            }
        }
        self.writer.begin_attempt(self.attempt);
        Ok(())
    }

    /// Moves available bytes of one stream.
    fn move_some(&mut self, index: usize) -> io::Result<()> {
        if self.is_silent(index, OutputPipe::look)? {
            return Ok(());
        }
        let most = self.sources.rate.room();
        if most == 0 {
            return Ok(());
        }
        let before = self.lens()[index];
        let moved = self.drain(index, most, OutputPipe::splice_to_file);
        self.sources
            .rate
            .note(self.lens()[index] - before >= most as u64);
        moved
    }

    /// Whether a stream has no file yet, and needs none now: a file is made for its first byte. Closes the stream at
    /// its end.
    fn is_silent(
        &mut self,
        index: usize,
        look: fn(&OutputPipe) -> io::Result<PipeState>,
    ) -> io::Result<bool> {
        let (Some(pipe), false) = (
            &self.sources.pipes[index],
            self.writer.has_file(KINDS[index]),
        ) else {
            return Ok(false);
        };
        let found = look(pipe)?;
        if found == PipeState::End {
            self.sources.close(index);
        }
        Ok(found != PipeState::Bytes)
    }

    /// Moves at most `bytes_max` of one stream, until it is empty for now or ends.
    fn drain(&mut self, index: usize, bytes_max: usize, splice: Splice) -> io::Result<()> {
        if self.sources.pipes[index].is_some() {
            self.make_journal()?;
        }
        let kind = KINDS[index];
        let mut left = bytes_max;
        while let (Some(pipe), 1..) = (&self.sources.pipes[index], left) {
            if self.writer.waits() {
                match pipe.look()? {
                    PipeState::Bytes => self.held.hold(),
                    PipeState::Empty => {}
                    PipeState::End => self.sources.close(index),
                }
                break;
            }
            let place = self.writer.place(kind, clock::now())?;
            match splice(pipe, place.file, place.offset, left.min(place.room))? {
                Spliced::Bytes(bytes) => {
                    left = left.saturating_sub(bytes);
                    self.unindexed[index] = bytes as u64;
                    crash_point!("output.moved");
                    self.writer
                        .output_written(kind, bytes as u64, clock::now())?;
                    crash_point!("output.indexed");
                    self.unindexed[index] = 0;
                    self.sources.rate.pay(bytes as u64);
                }
                Spliced::WouldBlock => break,
                Spliced::Eof => self.sources.close(index),
            }
        }
        Ok(())
    }

    /// Warns for how long the disk has refused and what is missing, if that was not reported.
    fn warn(&mut self) -> io::Result<()> {
        let Some(refusal) = &self.disk.refusal else {
            return Ok(());
        };
        if refusal.is_warned || self.disk.warnings >= WARNINGS_MAX {
            return Ok(());
        }
        if refusal.full {
            self.writer.probe()?;
        }
        let message = refusal.message(clock::now(), self.given_up);
        let line = PendingLine {
            entry: Entry::Warning { message },
            at: clock::now(),
            attempt: self.attempt,
        };
        self.put(&line)?;
        if let Some(refusal) = &mut self.disk.refusal {
            refusal.is_warned = true;
        }
        self.given_up = 0;
        self.disk.warnings += 1;
        Ok(())
    }

    /// Ends the refusal: everything is written.
    fn recovered(&mut self) {
        if self.disk.refusal.is_none() {
            return;
        }
        if let Err(error) = self.warn() {
            return self.refused(&error);
        }
        self.disk.refusal = None;
        self.disk.retry_at = None;
        tracing::info!(run_id = %self.run, "journal write succeeded again");
    }

    fn refused(&mut self, error: &io::Error) {
        self.open_dir_up(error);
        let policy = self.writer.bound().on_disk_full;
        let (again, full) = (self.disk.refusal.is_some(), is_full(error));
        if !again {
            // Logged once, not per attempt: the log may be on the same disk.
            tracing::error!(run_id = %self.run, error = %Chain(error), policy = policy.api_name(), "journal write failed, retrying");
        }
        let refusal = self
            .disk
            .refusal
            .get_or_insert_with(|| Refusal::new(clock::now(), error));
        refusal.full |= full;
        let filling = |pipe: &OutputPipe| pipe.is_filling().unwrap_or(true);
        let fills = || self.sources.pipes.iter().flatten().any(filling);
        match policy {
            OnDiskFull::Drop if full && again && self.sources.flows && fills() => {
                refusal.drops = true;
            }
            OnDiskFull::Abort if full => refusal.drops = true,
            OnDiskFull::Block | OnDiskFull::Drop | OnDiskFull::Abort => {}
        }
        self.disk.retry_at = Some(clock::instant() + RETRY_AFTER);
        if full && policy == OnDiskFull::Abort {
            self.reach(Limit::Disk);
        }
    }

    fn reach(&mut self, limit: Limit) {
        if self.limit == LimitReached::No {
            self.limit = LimitReached::Now(limit);
        }
    }

    /// Number of output bytes read, dropped ones included.
    pub(crate) fn read_bytes(&self) -> u64 {
        let dropped = self.writer.dropped().bytes;
        self.lens().iter().chain(&dropped).sum()
    }

    /// Whether output is left in its pipe: consumers have not acknowledged, the disk is full, or its turn has not come.
    pub(crate) fn is_held_back(&self) -> bool {
        self.held.holds()
            || self.disk.retry_at.is_some() && !self.disk.drops()
            || self.sources.rate.next_turn().is_some()
    }

    /// Time at which an earlier server recorded the run's last event.
    pub(crate) fn found_at(&self) -> Timestamp {
        self.writer.found_at()
    }

    /// Returns the limit at which the run is to be stopped, once.
    pub(crate) fn limit_reached(&mut self) -> Option<Limit> {
        let LimitReached::Now(limit) = self.limit else {
            return None;
        };
        self.limit = LimitReached::Reported;
        Some(limit)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.sources.close(0);
        self.sources.close(1);
    }
}

#[cfg(test)]
mod tests;
