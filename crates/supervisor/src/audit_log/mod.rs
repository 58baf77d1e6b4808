//! The audit trail: who asked for which change, which signals were sent, and what happened to the service itself. Lines of
//! JSON in files of their own, only ever appended.
//!
//! One thread writes them, beside the runtime: a disk that hangs holds up nobody. What it cannot write waits, within bounds;
//! beyond them it is dropped and counted, and the count is written when there is room again.
//!
//! INVARIANT: no line holds an argument of a command beyond its name, a value of a variable, or a byte of input.

mod chain;
mod files;
mod reader;
mod writer;

pub use chain::{ChainChecked, ChainError, ChainHead, check as check_audit_chain};
pub use reader::{TrailAsk, TrailKind, TrailReader};

use crate::base::clock;
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

/// Lines that wait for the thread.
const JOBS_MAX: usize = 4096;
/// How long an answer waits for its line.
const WRITTEN_MAX: Duration = Duration::from_millis(100);
/// How long the end of a server waits for its last lines.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Longest text of a caller that is kept.
const TEXT_BYTES_MAX: usize = 256;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrailRecord {
    /// Rises by one; 0 as long as it is not written.
    #[serde(default)]
    pub seq: u64,
    /// SHA-256 of the line before it, in hexadecimal digits; empty: it is the first of all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prev: String,
    /// When, in microseconds since 1970.
    pub at_us: i64,
    /// Which run, as its id was asked for. Absent: it is about the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// What.
    #[serde(flatten)]
    pub entry: TrailEntry,
}

/// What a line tells of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TrailEntry {
    /// Somebody has asked for a change.
    Request(LoggedRequest),
    /// A signal was sent.
    Signal(LoggedSignal),
    /// Something happened to the service.
    Node(NodeTold),
}

/// A change that somebody has asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedRequest {
    /// Name of the rpc.
    pub rpc: String,
    /// Who, as a principal.
    pub by: String,
    /// Process that asked, as the socket knows it; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The request's own id; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// What was asked for, without anything that could be a secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asked: BTreeMap<String, String>,
    /// Name of the status, `OK` where it was done.
    pub code: String,
    /// The documented reason of a refusal; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How many calls this stands for: those that come in great numbers are written together.
    #[serde(default = "one")]
    pub calls: u64,
    /// How many bytes they brought.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
}

/// A signal that was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedSignal {
    /// Of which attempt; 0: of none that is known.
    pub attempt: u32,
    /// Name.
    pub signal: String,
    /// By which address: `tree`, `cgroup_kill`, `shim_children`, `pid_namespace`, `client`, `reap`.
    pub scope: String,
    /// `keeper` or `shim`.
    pub sender: String,
    /// Why, in a few words.
    pub why: String,
    /// How many processes it reached.
    pub delivered: u32,
    /// How many had ended before.
    pub gone: u32,
    /// How many the kernel refused.
    pub refused: u32,
    /// errno(3) of the first refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// Whom, as far as that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<LoggedProcess>,
    /// How many more.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub unlisted: u32,
    /// The boot in which start times mean something.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
}

/// A process that was to get a signal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedProcess {
    /// Process id in the keeper's pid namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot; 0: not known.
    pub start_ticks: u64,
    /// What made sure that it was the run's.
    pub evidence: Vec<String>,
    /// `delivered`, `gone`, `refused`, or what became of one that was reaped.
    pub result: String,
}

/// Something that happened to the service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTold {
    /// One word, such as `server_started`.
    pub what: String,
    /// More of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub detail: BTreeMap<String, String>,
}

fn one() -> u64 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero_u32(value: &u32) -> bool {
    *value == 0
}

impl TrailRecord {
    /// A line about now.
    #[must_use]
    pub fn now(run: Option<String>, entry: TrailEntry) -> Self {
        Self::at(clock::now(), run, entry)
    }

    pub(crate) fn at(at: Timestamp, run: Option<String>, entry: TrailEntry) -> Self {
        let run = run.map(|run| cut(&run));
        Self {
            seq: 0,
            prev: String::new(),
            at_us: at.0,
            run,
            entry,
        }
    }

    pub(crate) fn node<const N: usize>(what: &str, detail: [(&str, String); N]) -> Self {
        let detail = detail.into_iter().map(|(name, text)| (name.into(), text));
        Self::now(
            None,
            TrailEntry::Node(NodeTold {
                what: what.into(),
                detail: detail.collect(),
            }),
        )
    }
}

impl LoggedRequest {
    /// With something that was asked for; a long text is cut.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.asked.insert(name.into(), cut(&value.into()));
        self
    }

    /// Whether the other one may be counted with this one.
    fn is_like(&self, other: &Self) -> bool {
        (&self.rpc, &self.by, self.pid, &self.code, &self.reason)
            == (&other.rpc, &other.by, other.pid, &other.code, &other.reason)
    }
}

/// A text of at most so many bytes.
fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let mut end = TEXT_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

enum Job {
    Line(Box<TrailRecord>, Option<oneshot::Sender<()>>),
    /// One of many: they are counted together for a while.
    Counted(Box<TrailRecord>),
    /// A refused caller's: they are counted together for longer, whatever was asked for.
    Denied(Box<TrailRecord>),
    Flush(oneshot::Sender<()>),
}

/// Where lines are handed in. Nothing here fails, and nothing waits for a disk.
#[derive(Debug)]
pub(crate) struct Trail {
    dir: PathBuf,
    jobs: SyncSender<Job>,
    head: watch::Receiver<u64>,
    lost: Arc<AtomicU64>,
}

impl Trail {
    /// The trail in this data directory, with what is there.
    pub(crate) fn open(data_dir: &Path) -> Self {
        let dir = data_dir.join(files::DIR);
        let (jobs, queue) = sync_channel(JOBS_MAX);
        let (head_sender, head) = watch::channel(0);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = writer::Writer::new(dir.clone(), head_sender, Arc::clone(&lost));
        let thread = std::thread::Builder::new().name("trail".into());
        if let Err(error) = thread.spawn(move || writer.run(&queue)) {
            tracing::error!(%error, "the audit trail cannot be written: its lines are dropped and counted");
        }
        Self {
            dir,
            jobs,
            head,
            lost,
        }
    }

    /// Hands a line in.
    pub(crate) fn tell(&self, record: TrailRecord) {
        self.hand_in(Job::Line(Box::new(record), None));
    }

    /// Hands in one of many.
    pub(crate) fn count(&self, record: TrailRecord) {
        self.hand_in(Job::Counted(Box::new(record)));
    }

    /// Hands in what a caller was refused who may not call.
    pub(crate) fn deny(&self, record: TrailRecord) {
        self.hand_in(Job::Denied(Box::new(record)));
    }

    /// Hands a line in, and waits a moment until it is in its file.
    pub(crate) async fn told(&self, record: TrailRecord) {
        let (written, when) = oneshot::channel();
        self.hand_in(Job::Line(Box::new(record), Some(written)));
        // Late or lost: the answer does not wait for it.
        let _ = tokio::time::timeout(WRITTEN_MAX, when).await;
    }

    /// Waits until all that was handed in is in its file, for a second at most.
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

    /// A reader from its own position on.
    pub(crate) fn read(&self, ask: TrailAsk) -> TrailReader {
        TrailReader::new(self.dir.clone(), ask, self.head.clone())
    }

    /// How many lines were dropped by this server and are not accounted for in the trail yet.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
