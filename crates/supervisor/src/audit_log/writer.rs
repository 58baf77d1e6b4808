//! The thread that writes the audit log.

use super::{
    DeniedCaller, Job, LoggedRequest, TrailEntry, TrailRecord,
    chain::{self, ChainHead},
    files, shares,
};
use crate::base::clock::ClockSettings;
use kennel_lifecycle::Timestamp;
use kennel_linux::own_file;
use std::{
    collections::VecDeque,
    fs::{self, DirBuilder, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

/// Most lines that wait for room on the disk.
const PENDING_MAX: usize = 4096;
/// Most lines written by one call.
const BATCH_MAX: usize = 256;
/// Interval at which pending work is checked for being due.
const TICK: Duration = Duration::from_secs(1);
/// Time for which calls are counted together.
const COUNT_FOR: Duration = Duration::from_secs(10);
/// Time for which refusals of one user and reason are counted together.
const DENIED_FOR: Duration = Duration::from_mins(1);
/// Most callers of each kind, with their reasons, whose refusals are counted at a time, in the order of [`DeniedCaller`].
/// They take no place of another kind. Refusals of further ones are lost, and counted as lost; those of runs are counted
/// for their user.
const DENIED_MAX: [usize; 3] = [16, 256, 16];
/// Most kinds of calls that are counted at a time.
const COUNTED_MAX: usize = 1024;
/// Bytes at the end of a file in which its last line is searched; no line is nearly as long.
const TAIL_BYTES: u64 = 256 * 1024;
/// Interval at which old files are searched for.
const AGE_EVERY: Duration = Duration::from_hours(1);

pub(super) struct Writer {
    dir: PathBuf,
    head: watch::Sender<u64>,
    lost: Arc<AtomicU64>,
    clock: ClockSettings,
    open: Option<Open>,
    pending: VecDeque<TrailRecord>,
    waiting: Vec<oneshot::Sender<()>>,
    counted: Vec<(Instant, TrailRecord)>,
    denied: [Vec<(Instant, TrailRecord)>; DENIED_MAX.len()],
    /// Written, but not synced.
    dirty: bool,
    /// Whether the failure to write was logged.
    failure_logged: bool,
    aged: Option<Instant>,
}

struct Open {
    file: File,
    bytes: u64,
    /// Seq of the next line.
    next: u64,
    /// Hash of the line before it.
    hash: String,
}

impl Writer {
    pub(super) fn new(
        dir: PathBuf,
        head: watch::Sender<u64>,
        lost: Arc<AtomicU64>,
        clock: ClockSettings,
    ) -> Self {
        Self {
            dir,
            head,
            lost,
            clock,
            open: None,
            pending: VecDeque::new(),
            waiting: Vec::new(),
            counted: Vec::new(),
            denied: Default::default(),
            dirty: false,
            failure_logged: false,
            aged: None,
        }
    }

    /// Writes until every sender of the queue is dropped.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        // The file is opened now so that readers know the last line before any write.
        let _ = self.opened();
        loop {
            let job = if self.is_idle() {
                jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                jobs.recv_timeout(TICK)
            };
            match job {
                Ok(job) => self.take(job),
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while self.pending.len() < BATCH_MAX
                && let Ok(job) = jobs.try_recv()
            {
                self.take(job);
            }
            let now = Instant::now();
            self.end_counts(now.checked_sub(COUNT_FOR), now.checked_sub(DENIED_FOR));
            self.write();
        }
        self.end_counts(None, None);
        self.write();
        self.sync();
    }

    fn is_idle(&self) -> bool {
        let denied = self.denied.iter().any(|sums| !sums.is_empty());
        let counts = denied || !self.counted.is_empty();
        !self.dirty && self.pending.is_empty() && !counts
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Line(record, written) => {
                self.pend(*record);
                self.waiting.extend(written);
            }
            Job::Counted(record) => self.count(*record),
            Job::Denied(record, of) => self.deny(*record, of),
            Job::Flush(written) => {
                self.end_counts(None, None);
                self.waiting.push(written);
            }
        }
    }

    fn pend(&mut self, record: TrailRecord) {
        if self.pending.len() >= PENDING_MAX {
            self.pending.pop_front();
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.pending.push_back(record);
    }

    /// Writes the first call of a kind at once, those after it together.
    fn count(&mut self, record: TrailRecord) {
        let is_like = |one: &LoggedRequest, other: &LoggedRequest| one.is_like(other);
        if add_to(&mut self.counted, &record, is_like) {
            return;
        }
        if self.counted.len() < COUNTED_MAX {
            self.counted.extend(sum_after(&record));
        }
        self.pend(record);
    }

    /// Counts refused callers like [`Self::count`]; there may be any number of them.
    fn deny(&mut self, mut record: TrailRecord, of: DeniedCaller) {
        if let TrailEntry::Request(request) = &mut record.entry {
            request.unnamed = of != DeniedCaller::Named;
        }
        let is_like = |one: &LoggedRequest, other: &LoggedRequest| one.is_denied_like(other);
        let sums = &mut self.denied[of as usize];
        if add_to(sums, &record, is_like) {
            return;
        }
        if sums.len() >= DENIED_MAX[of as usize] {
            if of == DeniedCaller::Run {
                let run = None;
                return self.deny(TrailRecord { run, ..record }, DeniedCaller::Stranger);
            }
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        sums.extend(sum_after(&record));
        self.pend(record);
    }

    /// Writes the counts that were begun before these times; absent: all.
    fn end_counts(&mut self, counted: Option<Instant>, denied: Option<Instant>) {
        let due_of = |sums: &mut Vec<(Instant, TrailRecord)>, before: Option<Instant>| {
            let is_due = |begun: &Instant| before.is_none_or(|before| *begun <= before);
            let due = sums.extract_if(.., |(begun, _)| is_due(begun));
            due.collect::<Vec<_>>()
        };
        let mut due = due_of(&mut self.counted, counted);
        for sums in &mut self.denied {
            due.extend(due_of(sums, denied));
        }
        for (_, sum) in due {
            if let TrailEntry::Request(request) = &sum.entry
                && request.calls > 0
            {
                self.pend(sum);
            }
        }
    }

    fn write(&mut self) {
        if self.pending.is_empty() {
            self.waiting.clear();
            return;
        }
        match self.try_write() {
            Ok(()) => {
                if std::mem::take(&mut self.failure_logged) {
                    tracing::info!("the audit log can be written again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failure_logged, true) {
                    let dir = self.dir.display();
                    tracing::error!(%error, %dir, "cannot write the audit log: records are buffered, and beyond {PENDING_MAX} the oldest are dropped and counted");
                }
            }
        }
        // Dropped senders wake the callers that still wait: no further write follows.
        self.waiting.clear();
    }

    fn try_write(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            self.begin_next_file()?;
            let lost = self.lost.load(Ordering::Relaxed);
            let note = || TrailRecord::node("audit_lines_lost", [("lines", lost.to_string())]);
            let note = (lost > 0).then(note);
            let batch = self.pending.iter().take(BATCH_MAX).cloned();
            self.append(note.into_iter().chain(batch).collect())?;
            self.lost.fetch_sub(lost, Ordering::Relaxed);
            let written = self.pending.len().min(BATCH_MAX);
            self.pending.drain(..written);
        }
        Ok(())
    }

    /// Appends lines to the newest file.
    fn append(&mut self, records: Vec<TrailRecord>) -> io::Result<()> {
        let open = self.opened()?;
        let (mut text, mut next, mut hash) = (Vec::new(), open.next, open.hash.clone());
        for mut record in records {
            record.seq = next;
            record.prev = hash;
            let line = serde_json::to_vec(&record)?;
            hash = chain::hash(&line);
            text.extend(line);
            text.push(b'\n');
            next += 1;
        }
        if let Err(error) = open.file.write_all(&text) {
            // A partial line must not precede the next record.
            let whole = open.bytes;
            if open.file.set_len(whole).is_err() {
                self.open = None;
            }
            return Err(error);
        }
        open.bytes += text.len() as u64;
        open.next = next;
        open.hash = hash;
        self.dirty = true;
        self.head.send_replace(next - 1);
        Ok(())
    }

    /// Opens the newest file behind its last line.
    fn opened(&mut self) -> io::Result<&mut Open> {
        match &mut self.open {
            Some(_) => {}
            none => {
                // Only the last directory is created: a removed data directory must not reappear.
                match DirBuilder::new().mode(0o700).create(&self.dir) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    Ok(()) | Err(_) => {}
                }
                let first = files::list(&self.dir)?.last().copied().unwrap_or(1);
                let open = Open::new(&self.dir, first)?;
                self.head.send_replace(open.next - 1);
                *none = Some(open);
            }
        }
        self.open.as_mut().ok_or(io::ErrorKind::NotFound.into())
    }

    /// Begins the next file where the newest is full. Removes files that are too old or too many.
    fn begin_next_file(&mut self) -> io::Result<()> {
        let open = self.opened()?;
        let full = open.bytes >= files::FILE_BYTES_MAX;
        if full {
            let next = open.next;
            open.file.sync_data()?;
            self.open = Some(Open::new(&self.dir, next)?);
        }
        let due = |aged: Instant| aged.elapsed() >= AGE_EVERY;
        if full || self.aged.is_none_or(due) {
            self.aged = Some(Instant::now());
            self.remove_old();
        }
        Ok(())
    }

    /// Removes files that are too old. Of each that is one too many, the newest file gets the lines of those who have
    /// written the least in it.
    ///
    /// A crash before the removal: the next server repeats them once more.
    fn remove_old(&mut self) {
        let firsts = files::list(&self.dir).unwrap_or_default();
        // The file being written is never removed.
        let before = firsts.len().saturating_sub(1);
        let too_many = firsts.len().saturating_sub(files::FILES_MAX);
        let oldest = self.clock.before(files::AGE_MAX);
        for (nth, first) in firsts[..before].iter().enumerate() {
            let path = files::path(&self.dir, *first);
            // Lines decide a file's age: any process of this user can change its file times.
            let too_old = || written_at(&path).is_some_and(|last| last < oldest);
            if nth < too_many {
                let text = fs::read(&path);
                if let Err(error) = text.and_then(|text| self.append(shares::least(&text, oldest)))
                {
                    tracing::warn!(%error, path = %path.display(), "cannot repeat lines of an old file of the audit log, removing it with them");
                }
            }
            if (nth < too_many || too_old())
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::warn!(%error, path = %path.display(), "cannot remove an old file of the audit log");
            }
        }
    }

    fn sync(&mut self) {
        if self.dirty
            && let Some(open) = &self.open
            && let Err(error) = open.file.sync_data()
        {
            tracing::warn!(%error, "the audit log is not on disk yet");
        }
        self.dirty = false;
    }
}

impl Open {
    fn new(dir: &Path, first: u64) -> io::Result<Self> {
        let path = files::path(dir, first);
        let mut file = own_file::options()
            .read(true)
            .append(true)
            .create(true)
            .open(path)?;
        let bytes = file.metadata()?.len();
        let text = tail(&mut file, bytes)?;
        let mut bytes = bytes;
        if text.last().is_some_and(|last| *last != b'\n') {
            // A host crash left a partial line: once it is ended, readers skip it as invalid.
            file.write_all(b"\n")?;
            bytes += 1;
        }
        let last = last_line(&text);
        // No two files begin at the same seq.
        let next = first + u64::from(bytes > 0);
        let next = last.as_ref().map_or(next, |last| last.seq + 1);
        let last = match last {
            None => last_before(dir, first)?,
            last => last,
        };
        Ok(Self {
            file,
            bytes,
            next,
            hash: last.map(|last| last.hash).unwrap_or_default(),
        })
    }
}

/// Reads the end of the file of this path.
fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    tail(&mut file, bytes)
}

/// Reads the end of a file, which holds its last line.
fn tail(file: &mut File, bytes: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(bytes.saturating_sub(TAIL_BYTES)))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// Finds the last record of a file, and its line.
fn last_record(text: &[u8]) -> Option<(TrailRecord, &[u8])> {
    let lines = text.split(|byte| *byte == b'\n').filter(|l| !l.is_empty());
    lines
        .rev()
        .find_map(|line| Some((serde_json::from_slice(line).ok()?, line)))
}

fn last_line(text: &[u8]) -> Option<ChainHead> {
    last_record(text).map(|(record, line)| ChainHead {
        seq: record.seq,
        hash: chain::hash(line),
    })
}

/// Returns the time of the last record of a file; absent: none can be read, and the file has no age.
fn written_at(path: &Path) -> Option<Timestamp> {
    let text = end_of(path).ok()?;
    last_record(&text).map(|(record, _)| Timestamp(record.at_us))
}

/// Finds the last record of the files before this one.
fn last_before(dir: &Path, first: u64) -> io::Result<Option<ChainHead>> {
    let before = files::list(dir)?
        .into_iter()
        .rev()
        .filter(|one| *one < first);
    for one in before {
        if let Some(last) = last_line(&end_of(&files::path(dir, one))?) {
            return Ok(Some(last));
        }
    }
    Ok(None)
}

/// Adds a call to the sum of similar calls; returns whether there is such a sum.
fn add_to(
    sums: &mut [(Instant, TrailRecord)],
    record: &TrailRecord,
    is_like: impl Fn(&LoggedRequest, &LoggedRequest) -> bool,
) -> bool {
    let TrailEntry::Request(request) = &record.entry else {
        return false;
    };
    let like = sums.iter_mut().find_map(|(_, sum)| {
        let TrailEntry::Request(of_sum) = &mut sum.entry else {
            return None;
        };
        (sum.run == record.run && is_like(of_sum, request)).then_some(of_sum)
    });
    let Some(sum) = like else { return false };
    sum.calls += request.calls;
    sum.bytes += request.bytes;
    true
}

/// Begins a sum of the calls that come after this one.
fn sum_after(record: &TrailRecord) -> Option<(Instant, TrailRecord)> {
    let mut sum = record.clone();
    let TrailEntry::Request(of_sum) = &mut sum.entry else {
        return None;
    };
    (of_sum.calls, of_sum.bytes) = (0, 0);
    Some((Instant::now(), sum))
}
