//! The audit log: which caller requested which change, which signals were sent, and what happened to the service
//! itself. Lines of JSON in files of their own, only ever appended.
//!
//! One thread writes them, beside the runtime: a disk that hangs blocks no other work. Lines that cannot be written are
//! queued, within bounds; beyond them lines are dropped and counted, and the count is written when there is room again.
//!
//! INVARIANT: no line holds an argument of a command beyond its name, a value of a variable, or a byte of input.

mod chain;
mod files;
mod reader;
mod shares;
mod writer;

pub use chain::{
    ChainChecked, ChainError, ChainHead, check as check_audit_chain, export as export_audit_chain,
};
pub use reader::{TrailAsk, TrailKind, TrailReader};

use crate::base::clock::{self, ClockSettings};
use kennel_lifecycle::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};
use tokio::sync::{oneshot, watch};

/// Most lines queued for the thread.
const JOBS_MAX: usize = 4096;
/// Longest time that an answer waits for its line.
const WRITTEN_MAX: Duration = Duration::from_millis(100);
/// Longest time that the shutdown of a server waits for its last lines.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Longest text of a caller that is recorded.
const TEXT_BYTES_MAX: usize = 256;

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrailRecord {
    /// Sequence number, rising by one; 0 as long as the line is not written.
    #[serde(default)]
    pub seq: u64,
    /// SHA-256 of the line before it, in hexadecimal digits; empty: this is the first line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prev: String,
    /// Seq of the line that this one repeats, whose file was removed; 0: it repeats none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeats: u64,
    /// Time in microseconds since 1970.
    pub at_us: i64,
    /// Id of the run, as requested. Absent: the line is about the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Content of the line.
    #[serde(flatten)]
    pub entry: TrailEntry,
}

/// Content of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TrailEntry {
    /// A caller requested a change.
    Request(LoggedRequest),
    /// A signal was sent.
    Signal(LoggedSignal),
    /// Something happened to the service.
    Node(ServiceEvent),
}

/// A change that a caller requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedRequest {
    /// Name of the rpc.
    pub rpc: String,
    /// The caller, as a principal.
    pub by: String,
    /// Process id of the caller, from the socket; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// What the peer has shown: `certificate:` and its serial, `token:sha256:` and the beginning of a token's hash, or
    /// `token:key:` and the key that has signed a token; empty: it is known by its process, or by nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub credential: String,
    /// The request's own id; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// Requested values, without anything that could be a secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asked: BTreeMap<String, String>,
    /// Name of the status, `OK` where the request succeeded.
    pub code: String,
    /// The documented reason of a refusal; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Number of calls that this line stands for: frequent calls are recorded together.
    #[serde(default = "one")]
    pub calls: u64,
    /// Number of bytes that the calls brought.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Whether a caller without a name in the access file, or a process of a run, was refused: all these have one share
    /// of the files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unnamed: bool,
}

/// A signal that was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedSignal {
    /// Principal to whose share of the files the line counts: the caller, or the owner of the run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The attempt; 0: no attempt is known.
    pub attempt: u32,
    /// Name of the signal.
    pub signal: String,
    /// Scope of the signals: `tree`, `cgroup_kill`, `shim_children`, `pid_namespace`, `client`, `reap`.
    pub scope: String,
    /// `keeper` or `shim`.
    pub sender: String,
    /// Reason, in a few words.
    pub why: String,
    /// Number of processes that the signal reached.
    pub delivered: u32,
    /// Number of processes that had ended before.
    pub gone: u32,
    /// Number of processes for which the kernel refused the signal.
    pub refused: u32,
    /// errno(3) of the first refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// Target processes, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<LoggedProcess>,
    /// Number of further target processes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted: u32,
    /// Id of the boot to which the start times refer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
}

/// A process that a signal was meant for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedProcess {
    /// Process id in the keeper's pid namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot; 0: not known.
    pub start_ticks: u64,
    /// Evidence that the process was the run's.
    pub evidence: Vec<String>,
    /// `delivered`, `gone`, `refused`, or the result of a reap.
    pub result: String,
}

/// Caller whose request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeniedCaller {
    /// The access file does not name it.
    Stranger,
    /// It has a role, and not the one that it needs.
    Named,
    /// A process of a run.
    Run,
}

/// Something that happened to the service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceEvent {
    /// Kind of event in one word, such as `server_started`.
    pub what: String,
    /// Further details.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub detail: BTreeMap<String, String>,
}

fn one() -> u64 {
    1
}

fn is_zero<N: Default + PartialEq>(value: &N) -> bool {
    *value == N::default()
}

impl TrailRecord {
    /// Makes a line with the present time.
    pub fn now(run: Option<String>, entry: TrailEntry) -> Self {
        Self::at(clock::now(), run, entry)
    }

    pub(crate) fn at(at: Timestamp, run: Option<String>, entry: TrailEntry) -> Self {
        let run = run.map(|run| cut(&run));
        Self {
            seq: 0,
            prev: String::new(),
            repeats: 0,
            at_us: at.0,
            run,
            entry,
        }
    }

    pub(crate) fn node<const N: usize>(what: &str, detail: [(&str, String); N]) -> Self {
        let detail = detail.into_iter().map(|(name, text)| (name.into(), text));
        Self::now(
            None,
            TrailEntry::Node(ServiceEvent {
                what: what.into(),
                detail: detail.collect(),
            }),
        )
    }
}

impl LoggedRequest {
    /// Adds a requested value; a long text is cut.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.asked.insert(name.into(), cut(&value.into()));
        self
    }

    /// Whether the other request may be counted together with this one.
    fn is_like(&self, other: &Self) -> bool {
        (&self.rpc, self.pid, &self.code) == (&other.rpc, other.pid, &other.code)
            && self.is_denied_like(other)
    }

    /// Whether the other refusal may be counted together with this one, whatever was requested.
    fn is_denied_like(&self, other: &Self) -> bool {
        (&self.by, &self.credential, &self.reason) == (&other.by, &other.credential, &other.reason)
    }
}

/// Cuts a text to at most so many bytes.
fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(TEXT_BYTES_MAX)])
}

enum Job {
    Line(Box<TrailRecord>, Option<oneshot::Sender<()>>),
    /// One of many similar calls: they are counted together for a while.
    Counted(Box<TrailRecord>),
    /// A refused caller's request: refusals are counted together for longer, whatever was requested.
    Denied(Box<TrailRecord>, DeniedCaller),
    Flush(oneshot::Sender<()>),
}

/// Queue of the audit log. Nothing here fails, and nothing waits for a disk.
#[derive(Debug)]
pub struct Trail {
    dir: PathBuf,
    jobs: SyncSender<Job>,
    head: watch::Receiver<u64>,
    lost: Arc<AtomicU64>,
}

impl Trail {
    /// Opens the audit log in this data directory, with the existing files.
    pub(crate) fn open(data_dir: &Path, clock: ClockSettings) -> Self {
        let dir = data_dir.join(files::DIR);
        let (jobs, queue) = sync_channel(JOBS_MAX);
        let (head_sender, head) = watch::channel(0);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = writer::Writer::new(dir.clone(), head_sender, Arc::clone(&lost), clock);
        let thread = std::thread::Builder::new().name("trail".into());
        if let Err(error) = thread.spawn(move || writer.run(&queue)) {
            tracing::error!(%error, "cannot write the audit log: records are dropped and counted");
        }
        Self {
            dir,
            jobs,
            head,
            lost,
        }
    }

    /// Queues a record at once and does not report whether it was written.
    pub fn record(&self, record: TrailRecord) {
        self.hand_in(Job::Line(Box::new(record), None));
    }

    /// Queues a line about something that happened to the service.
    pub(crate) fn note<const N: usize>(&self, what: &str, detail: [(&str, String); N]) {
        self.record(TrailRecord::node(what, detail));
    }

    /// Queues one of many similar calls, where the caller cannot wait.
    pub fn count(&self, record: TrailRecord) {
        self.hand_in(Job::Counted(Box::new(record)));
    }

    /// Queues the refusal of a caller without permission: the first at once, then those of a minute as one line, so that
    /// a flood of refusals pushes nothing else out.
    pub fn deny(&self, record: TrailRecord, of: DeniedCaller) {
        self.hand_in(Job::Denied(Box::new(record), of));
    }

    /// Queues a record, and waits a moment until it is in its file, never longer.
    pub async fn record_written(&self, record: TrailRecord) {
        let (written, when) = oneshot::channel();
        self.hand_in(Job::Line(Box::new(record), Some(written)));
        // The line is late or lost: the answer does not wait for it.
        let _ = tokio::time::timeout(WRITTEN_MAX, when).await;
    }

    /// Waits until every queued line is in its file, for a second at most.
    pub(crate) async fn flush(&self) {
        let (written, when) = oneshot::channel();
        self.hand_in(Job::Flush(written));
        let _ = tokio::time::timeout(FLUSH_MAX, when).await;
    }

    fn hand_in(&self, job: Job) {
        let not_taken = match self.jobs.try_send(job) {
            Ok(()) => return,
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job,
        };
        if !matches!(not_taken, Job::Flush(_)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads the audit log, with every record queued by now.
    pub async fn read(&self, ask: TrailAsk) -> TrailReader {
        self.flush().await;
        TrailReader::new(self.dir.clone(), ask, self.head.clone())
    }

    /// Follows the seq of the newest line in the files; it begins with every one queued by now.
    pub async fn head(&self) -> watch::Receiver<u64> {
        self.flush().await;
        self.head.clone()
    }

    /// Number of lines that this server dropped and that the audit log does not account for yet.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
