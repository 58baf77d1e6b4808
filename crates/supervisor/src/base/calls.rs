//! What the edge may ask, and what it gets.

mod error;

use crate::base::other_node::Elsewhere;
use bytes::Bytes;
use kennel_journal::{Gap, Position as JournalPosition, Tail};
use kennel_keeper::client::{Shots, SignalTarget};
use kennel_lifecycle::{
    Activity, AnnotationChange, Entry, Exit, Facets, Held, InputClosed, KeeperEpoch, NodeId,
    Outcome, OutputRemoval, Policy, RecordedSpec, RunId, RunSpec, RunState, Signal, Stuck,
    TerminalSize, Timestamp,
};
use kennel_store::{Desired, PastAttempt};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use error::CallError;

/// A request to run something, parsed and checked for form.
#[derive(Clone, Debug, Default)]
pub struct SpawnCall {
    /// The caller's own key; absent: the server makes one.
    pub run: Option<RunId>,
    /// Check everything that can be checked and run nothing.
    pub validate_only: bool,
    /// What to run.
    pub spec: RunSpec,
    /// Keyed digest of the client's whole spec.
    pub spec_digest: Vec<u8>,
    /// Which way of making the digest.
    pub spec_digest_version: i32,
    /// Who asks, as a principal such as `uid:0`.
    pub owner: String,
    /// Most live runs of this owner; absent: as many as the node may have.
    pub owner_runs_max: Option<u32>,
    /// The W3C trace context to be under: that of the call's span, or the caller's where spans are not recorded.
    pub traceparent: Option<String>,
    /// The caller's W3C trace state.
    pub tracestate: Option<String>,
    /// The caller's W3C baggage.
    pub baggage: Option<String>,
    /// The ended run that this one is made of.
    pub restarted_from: Option<RunId>,
}

/// A run that runs, or has run.
#[derive(Clone, Debug)]
pub struct Spawned {
    /// The run.
    pub run: RunView,
    /// The key was there before, with the same digest: nothing new was started.
    pub existing: bool,
}

/// Everything that is known of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunView {
    /// Key.
    pub run: RunId,
    /// Who spawned it.
    pub owner: String,
    /// Node that runs it.
    pub node: NodeId,
    /// State.
    pub state: RunState,
    /// What is wanted of it.
    pub desired: Desired,
    /// 1 for the first.
    pub attempt: u32,
    /// Command, shim, control group, host; absent: never prepared.
    pub identity: Option<kennel_lifecycle::RunIdentity>,
    /// What holds the run, and what that leaves open; absent: never prepared.
    pub held: Option<Held>,
    /// When SIGKILL is due, where a stop was asked for.
    pub stop_deadline: Option<Timestamp>,
    /// When it will have taken as long as it may, while that counts.
    pub deadline: Option<Timestamp>,
    /// When its pause will have lasted as long as it may, while it is paused.
    pub pause_expires: Option<Timestamp>,
    /// How large Kennel has made its terminal last, while it runs; absent: it has none.
    pub terminal: Option<TerminalSize>,
    /// What the client wants, without environment values and input.
    pub spec: Arc<RecordedSpec>,
    /// The caller's W3C trace context.
    pub traceparent: Option<String>,
    /// The ended run that this one was made of.
    pub restarted_from: Option<RunId>,
    /// When the request was accepted.
    pub created: Timestamp,
    /// Stations.
    pub times: kennel_store::Times,
    /// The leader's end, told as soon as it is known; absent: not yet, or it never ran.
    pub exit: Option<Exit>,
    /// The end; present exactly where `state` is terminal.
    pub outcome: Option<Outcome>,
    /// Whom SIGKILL does not end, while that is so and the run has not ended.
    pub stuck: Option<Stuck>,
    /// Attempts that have ended, the newest of them, in order. While the run waits for another one, the last of them is
    /// the present one.
    pub past: Vec<PastAttempt>,
    /// Restarts in a row.
    pub restarts: u32,
    /// When the next attempt is due; present exactly where `state` is `Backoff`.
    pub next_restart: Option<Timestamp>,
    /// That its output was removed after its end; absent: it was not.
    pub output_removed: Option<OutputRemoval>,
    /// What clients and output say of it beside its state.
    pub facets: Facets,
    /// Where it is, if another node has it.
    pub elsewhere: Option<Elsewhere>,
}

impl RunView {
    /// What is done with the run, and how it is ended.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.spec.policy
    }
}

/// What an abort of an unknown id does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfUnknown {
    /// It leaves a fence: a spawn that it has overtaken never runs.
    #[default]
    Fence,
    /// It is refused and leaves nothing.
    Refuse,
}

/// How long an Abort waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortWait {
    /// Until the stop is durable.
    None,
    /// Until the leader has ended.
    LeaderExited,
    /// Until the tree is empty and the run has ended.
    TreeEmpty,
}

/// A wish to end a run.
#[derive(Clone, Debug)]
pub struct AbortCall {
    /// Which.
    pub run: RunId,
    /// Absent: the run's own grace.
    pub grace: Option<Duration>,
    /// How long to wait.
    pub wait: AbortWait,
    /// What is done where no run has this id.
    pub if_unknown: IfUnknown,
    /// Who asks.
    pub by: String,
    /// The request's own id.
    pub request_id: Option<String>,
}

/// A wish for another size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeCall {
    /// Which run.
    pub run: RunId,
    /// How large.
    pub size: TerminalSize,
    /// The attempt that is meant; absent: the present one.
    pub expected_attempt: Option<u32>,
}

/// A wish for another attempt of a run.
#[derive(Clone, Debug)]
pub struct RestartCall {
    /// Which.
    pub run: RunId,
    /// Absent: the run's own grace.
    pub grace: Option<Duration>,
    /// The attempt that is meant; absent: the present one.
    pub expected_attempt: Option<u32>,
    /// Who asks.
    pub by: String,
    /// The request's own id.
    pub request_id: Option<String>,
}

/// A wish for other annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotateCall {
    /// Which run.
    pub run: RunId,
    /// What is to be set and removed.
    pub change: AnnotationChange,
    /// What the run does from here on; absent: as before.
    pub activity: Option<Activity>,
    /// Who asks.
    pub by: String,
}

/// A wish for one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalCall {
    /// Which run.
    pub run: RunId,
    /// Which signal.
    pub signal: Signal,
    /// Whom of the run it is for.
    pub target: SignalTarget,
    /// The request's own id.
    pub request_id: Option<String>,
}

/// A signal that was sent.
#[derive(Clone, Debug)]
pub struct Signalled {
    /// The run.
    pub run: RunView,
    /// What came of it for each process; empty where `repeated`.
    pub shots: Shots,
    /// A signal went out under this request id before, and none did now.
    pub repeated: bool,
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The command runs.
    Started,
    /// Every task is stopped.
    Paused,
    /// First end.
    LeaderExited,
    /// Second end.
    StreamsClosed,
    /// Third end.
    TreeEmpty,
    /// All is known and written.
    Ended,
    /// The present attempt is ready.
    Ready,
}

/// The answer to a wait.
#[derive(Clone, Debug)]
pub struct Waited {
    /// False: the condition can no longer occur.
    pub reached: bool,
    /// The run as it is then.
    pub run: RunView,
}

/// Which events to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// From the first.
    Beginning,
    /// From the one after this sequence number.
    After(Reached),
    /// From the next that happens.
    LiveOnly,
    /// From where so much of the output begins that there is; what has come before it of the other stream is left out.
    Tail(Tail),
}

/// Which kinds of events a reader wants. Gaps are given to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// Stations.
    pub lifecycle: bool,
    /// Standard output and standard error.
    pub output: [bool; 2],
    /// Signals.
    pub signals: bool,
    /// Warnings.
    pub warnings: bool,
}

impl Kinds {
    /// Everything.
    pub const ALL: Self = Self {
        lifecycle: true,
        output: [true; 2],
        signals: true,
        warnings: true,
    };
    /// Nothing.
    pub const NONE: Self = Self {
        lifecycle: false,
        output: [false; 2],
        signals: false,
        warnings: false,
    };

    /// Whether this is among them.
    pub(crate) fn has(self, payload: &Payload) -> bool {
        match payload {
            Payload::Lifecycle(Entry::SignalSent { .. } | Entry::StopStep(_)) => self.signals,
            Payload::Lifecycle(
                Entry::Warning { .. } | Entry::MemoryKills(_) | Entry::ProcessSpared { .. },
            ) => self.warnings,
            Payload::Lifecycle(_) => self.lifecycle,
            Payload::Output { stream, .. } | Payload::Line { stream, .. } => {
                let place = usize::from(*stream).saturating_sub(1);
                self.output.get(place).copied().unwrap_or_default()
            }
            Payload::Gap(_) => true,
        }
    }
}

/// Up to where somebody has read a run's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Last seq; 0: nothing.
    pub seq: u64,
    /// How much of standard output and of standard error that was, if it is known.
    pub lens: Option<[u64; 2]>,
    /// From which of these bytes on a view must be fed to go on behind them: where the line began that had not ended, or
    /// the escape sequence. Absent: it was no view, or that is not known.
    pub fed_from: Option<[u64; 2]>,
    /// Of each stream, offset before which nothing is given, where that lies behind this position: it began with a tail.
    pub begins: Option<[u64; 2]>,
}

impl From<JournalPosition> for Reached {
    fn from(at: JournalPosition) -> Self {
        Self {
            seq: at.seq,
            lens: at.lens,
            fed_from: None,
            begins: None,
        }
    }
}

impl From<Reached> for JournalPosition {
    fn from(at: Reached) -> Self {
        Self {
            seq: at.seq,
            lens: at.lens,
        }
    }
}

/// An event of a run.
#[derive(Clone, Debug)]
pub struct Event {
    /// Position in the run's order, from 1.
    pub seq: u64,
    /// Of which attempt.
    pub attempt: u32,
    /// When it was recorded.
    pub at: Timestamp,
    /// What.
    pub payload: Payload,
}

/// What an event says.
#[derive(Clone, Debug)]
pub enum Payload {
    /// A station or a fact of the run.
    Lifecycle(Entry),
    /// Bytes of the command's.
    Output {
        /// 1: standard output, 2: standard error.
        stream: u8,
        /// Offset of the first byte in the whole of the stream, over all attempts.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// A line of the command's output, in a view by lines. Its seq is that of the event in which it ended.
    Line {
        /// 1: standard output, 2: standard error.
        stream: u8,
        /// Offset of the first byte that is shown in the whole of the stream.
        offset: u64,
        /// The line without its end.
        text: Vec<u8>,
        /// It goes on in the next line of the stream, or what follows of it is missing.
        is_cut: bool,
    },
    /// Events that can no longer be read; the event's seq is that of the last of them.
    Gap(Gap),
}

/// What this server is and what its host can do.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// This node.
    pub node: NodeId,
    /// Its name for people.
    pub node_name: String,
    /// Generation of this server; 0 while the store has not given it one.
    pub generation: i64,
    /// The keeper, and what the host can do.
    pub keeper: kennel_keeper::client::KeeperHello,
    /// Since when the keeper has not answered; absent: it does.
    pub keeper_unresponsive: Option<Timestamp>,
    /// What kind of store this is.
    pub store: String,
    /// Whether the store answers, and takes what it is told: it is owed nothing.
    pub store_reachable: bool,
    /// How long the node's lease lasts from each renewal.
    pub lease: Duration,
    /// The keeper that has the lease in the place of this one.
    pub fenced_by: Option<KeeperEpoch>,
    /// Live runs by state.
    pub live: BTreeMap<RunState, u32>,
    /// When this server began.
    pub started: Timestamp,
    /// Most live runs that this host's limits allow.
    pub runs_max: u32,
    /// How much output of ended runs it keeps.
    pub retention: kennel_lifecycle::RetentionLimits,
    /// Lines of the audit trail that were dropped and are not accounted for in it yet.
    pub audit_lost: u64,
    /// Whether the node is out of service.
    pub drain: crate::base::drain::DrainStatus,
}

/// Why nothing more is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEnd {
    /// It was open, and no longer is.
    Closed(InputClosed),
    /// The run was spawned without one to write to.
    Spec,
}
