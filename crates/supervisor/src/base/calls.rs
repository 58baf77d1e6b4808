//! Types of the edge's calls and of their answers.

mod error;

use crate::base::{
    other_node::Elsewhere,
    spec_digest::{ComparedSpecs, SpecDigest},
};
use bytes::Bytes;
use kennel_journal::{Gap, Position as JournalPosition, Tail};
use kennel_keeper::client::{SignalTarget, SignalledProcesses};
use kennel_lifecycle::{
    Activity, AnnotationChange, Deadline, Entry, Exit, InputClosed, KeeperEpoch, NodeId, Refusal,
    RunId, RunSpec, RunState, Signal, Stuck, TerminalSize, Timestamp,
};
use kennel_store::{LeftStop, PageStart, RunRow, UnreadRow};
use std::{collections::BTreeMap, ops::Deref, time::Duration};

pub use error::CallError;

/// A request to run something, parsed and checked for form.
#[derive(Clone, Debug, Default)]
pub struct SpawnCall {
    /// The caller's own key; absent: the server makes one.
    pub run: Option<RunId>,
    /// The caller's own key in place of it.
    pub request_key: Option<String>,
    /// What happens where an open run of the owner has the name.
    pub on_name_conflict: OnNameConflict,
    /// Check everything that can be checked and run nothing.
    pub validate_only: bool,
    /// The command and its policy.
    pub spec: RunSpec,
    /// Keyed digests of the client's spec.
    pub digest: Box<SpecDigest>,
    /// The caller, as a principal such as `uid:0`.
    pub owner: String,
    /// Most live runs of this owner; absent: as many as the node may have.
    pub owner_runs_max: Option<u32>,
    /// Bytes of output of this owner on the disk from which on no run is begun; absent: any number.
    pub owner_output_max: Option<u64>,
    /// W3C trace context of the parent: that of the call's span, or the caller's where spans are not recorded.
    pub traceparent: Option<String>,
    /// The caller's W3C trace state.
    pub tracestate: Option<String>,
    /// The caller's W3C baggage.
    pub baggage: Option<String>,
    /// The ended run that this one repeats.
    pub restarted_from: Option<RunId>,
}

/// The answer to a spawn whose name an open run of the owner has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNameConflict {
    /// An error.
    #[default]
    Fail,
    /// That run.
    Return,
}

/// The result of a spawn: a run that runs, or has run.
#[derive(Clone, Debug)]
pub struct Spawned {
    /// The run.
    pub run: RunView,
    /// The key existed before, with the same digest, or the name: nothing new was started.
    pub existing: bool,
    /// Its spec beside the requested one, where it was found by its name.
    pub compared: Option<Box<ComparedSpecs>>,
}

impl Spawned {
    /// A run that was there before.
    pub(crate) fn existing(run: RunView) -> Self {
        Self {
            run,
            existing: true,
            compared: None,
        }
    }

    /// A run that is new.
    pub(crate) fn new(run: RunView) -> Self {
        Self {
            run,
            existing: false,
            compared: None,
        }
    }
}

/// A page of a list.
#[derive(Clone, Debug, Default)]
pub struct RunPage {
    /// Runs, in the order of the list.
    pub runs: Vec<RunView>,
    /// Runs whose rows this version cannot read.
    pub unread: Vec<UnreadRow>,
    /// Where the next page begins, if there is one.
    pub next: Option<PageStart>,
}

/// All that is known of a run: its row, and what only its task and the list of nodes know.
#[derive(Clone, Debug, PartialEq)]
pub struct RunView {
    /// The row as it is, or will be once it is written; without its entries.
    pub row: Box<RunRow>,
    /// State.
    pub state: RunState,
    /// Time at which each of its time limits is reached, while that counts and is known; of
    /// [`Deadline::Inactivity`] the time to which a caller or the command has extended it.
    pub limit_ends: BTreeMap<Deadline, Timestamp>,
    /// Time at which its pause reaches the time limit, while it is paused.
    pub pause_expires: Option<Timestamp>,
    /// Size that Kennel last set for its terminal, while it runs; absent: it has none.
    pub terminal: Option<TerminalSize>,
    /// Exit of the leader, reported as soon as it is known; absent: not yet, or it never ran.
    pub exit: Option<Exit>,
    /// Processes that SIGKILL does not end, while that is so and the run has not ended.
    pub stuck: Option<Stuck>,
    /// The node that has it, if that is another one.
    pub elsewhere: Option<Elsewhere>,
    /// The stop that is left for that node.
    pub left_stop: Option<LeftStop>,
    /// Why no decision is taken about it here; absent: they are.
    pub pinned: Option<Pinned>,
}

impl Deref for RunView {
    type Target = RunRow;

    fn deref(&self) -> &RunRow {
        &self.row
    }
}

/// Why this version decides nothing about a run: a later version has recorded something about it that this one does not
/// know. The keeper supervises the run as before; only an abort acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Name of the need, or of the kind of message, that is not known.
    pub by: String,
    /// Time since which it is pinned.
    pub since: Timestamp,
}

impl Pinned {
    /// Returns the refusal of a call for this run.
    pub(crate) fn refusal(&self, run: RunId, state: RunState) -> CallError {
        let by = self.by.clone();
        let state = Some(state);
        CallError::Pinned { run, by, state }
    }
}

impl RunView {
    /// Makes the refusal of a call in the state that is shown here.
    pub(crate) fn refuse_call(&self, refusal: Refusal) -> CallError {
        CallError::Refused {
            run: self.run,
            refusal,
            state: self.state,
        }
    }

    /// Refuses a call for a pinned run.
    pub(crate) fn refuse_pinned(&self) -> Result<(), CallError> {
        let refusal = |pinned: &Pinned| pinned.refusal(self.run, self.state);
        self.pinned.as_ref().map(refusal).map_or(Ok(()), Err)
    }
}

/// Effect of an abort of an unknown id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfUnknown {
    /// Leaves a fence: a spawn that the abort has overtaken never runs.
    #[default]
    Fence,
    /// Refuses the abort and leaves nothing.
    Refuse,
}

/// Duration of the wait of an Abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortWait {
    /// Until the stop is durable.
    None,
    /// Until the leader has exited.
    LeaderExited,
    /// Until the tree is empty and the run has ended.
    TreeEmpty,
}

/// A request to end a run.
#[derive(Clone, Debug)]
pub struct AbortCall {
    /// Run to end.
    pub run: RunId,
    /// Grace; absent: the run's own grace.
    pub grace: Option<Duration>,
    /// Duration of the wait.
    pub wait: AbortWait,
    /// Effect where no run has this id.
    pub if_unknown: IfUnknown,
    /// The caller, as a principal.
    pub by: String,
    /// The caller's owner, of the fence.
    pub owner: String,
    /// The request's own id.
    pub request_id: Option<String>,
}

/// A request for another size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeCall {
    /// Id of the run.
    pub run: RunId,
    /// New size.
    pub size: TerminalSize,
    /// Expected attempt; absent: the present one.
    pub expected_attempt: Option<u32>,
}

/// A request for another attempt of a run.
#[derive(Clone, Debug)]
pub struct RestartCall {
    /// Id of the run.
    pub run: RunId,
    /// Grace; absent: the run's own grace.
    pub grace: Option<Duration>,
    /// Expected attempt; absent: the present one.
    pub expected_attempt: Option<u32>,
    /// The caller, as a principal.
    pub by: String,
    /// The request's own id.
    pub request_id: Option<String>,
}

/// A request to change annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotateCall {
    /// Id of the run.
    pub run: RunId,
    /// Annotations to set and remove.
    pub change: AnnotationChange,
    /// Activity of the run from here on; absent: unchanged.
    pub activity: Option<Activity>,
    /// What it asks, where it waits for input.
    pub question: String,
    /// The caller, as a principal.
    pub by: String,
}

/// A request to extend limits of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendCall {
    /// Id of the run.
    pub run: RunId,
    /// The limits; empty: all that the run has now.
    pub limits: Vec<Deadline>,
    /// Least time until each is reached, from now on, pauses not counted.
    pub time: Duration,
    /// The caller, as a principal.
    pub by: String,
}

/// A request for one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalCall {
    /// Id of the run.
    pub run: RunId,
    /// Signal to send.
    pub signal: Signal,
    /// Processes of the run to signal.
    pub target: SignalTarget,
    /// The request's own id.
    pub request_id: Option<String>,
}

/// A signal that was sent.
#[derive(Clone, Debug)]
pub struct Signalled {
    /// The run.
    pub run: RunView,
    /// Result for each process; empty where `repeated`.
    pub signalled: SignalledProcesses,
    /// A signal was sent under this request id before, and none now.
    pub repeated: bool,
}

/// Condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The command runs.
    Started,
    /// Every task is stopped.
    Paused,
    /// The leader has exited.
    LeaderExited,
    /// Both output streams have ended.
    StreamsClosed,
    /// The process tree is empty.
    TreeEmpty,
    /// The outcome is known and written.
    Ended,
    /// The present attempt is ready.
    Ready,
}

/// The answer to a wait.
#[derive(Clone, Debug)]
pub struct WaitAnswer {
    /// False: the condition can no longer occur.
    pub reached: bool,
    /// The run as it is at that moment.
    pub run: RunView,
}

/// Position from which to read events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// From the first.
    Beginning,
    /// From the one after this sequence number.
    After(Reached),
    /// From the next that happens.
    LiveOnly,
    /// From the offset at which the last so many bytes of output begin; what the other stream has before it is left
    /// out.
    Tail(Tail),
}

/// Kinds of events that a reader selects. Gaps are given to every reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// Lifecycle events.
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

    /// Whether this payload is selected.
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

/// Position up to which a run's events were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Seq of the last event; 0: none.
    pub seq: u64,
    /// Lengths of standard output and of standard error up to there, if known.
    pub lens: Option<[u64; 2]>,
    /// Offsets from which a view must be fed to continue behind them: the start of the unfinished line, or of the
    /// escape sequence. Absent: it was no view, or they are not known.
    pub fed_from: Option<[u64; 2]>,
    /// For each stream, the offset before which nothing is given, where that lies behind this position: the reader
    /// began with a tail.
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
    /// Attempt of the event.
    pub attempt: u32,
    /// Time of the record.
    pub at: Timestamp,
    /// Content.
    pub payload: Payload,
}

/// Content of an event.
#[derive(Clone, Debug)]
pub enum Payload {
    /// A lifecycle entry of the run.
    Lifecycle(Entry),
    /// Output bytes of the command.
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
        /// The line continues in the next line of the stream, or the rest of it is missing.
        is_cut: bool,
    },
    /// Events that can no longer be read; the event's seq is that of the last of them.
    Gap(Gap),
}

/// Identity of this server and capabilities of its host.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// This node.
    pub node: NodeId,
    /// Display name of the node.
    pub node_name: String,
    /// Generation of this server; 0 while the store has not given it one.
    pub generation: i64,
    /// The keeper, and the capabilities of the host.
    pub keeper: kennel_keeper::client::KeeperHello,
    /// Time since which the keeper has not answered; absent: it answers.
    pub keeper_unresponsive: Option<Timestamp>,
    /// Kind of the store.
    pub store: String,
    /// Whether the store answers and accepts writes: none are pending for it.
    pub store_reachable: bool,
    /// Duration of the node's lease from each renewal.
    pub lease: Duration,
    /// The keeper that has acquired the lease in the place of this one.
    pub fenced_by: Option<KeeperEpoch>,
    /// Live runs by state.
    pub live: BTreeMap<RunState, u32>,
    /// Start time of this server.
    pub started: Timestamp,
    /// Most live runs that the limits of this host allow.
    pub runs_max: u32,
    /// Limits of the retained output of ended runs.
    pub retention: kennel_lifecycle::RetentionLimits,
    /// Limits of the rows of ended runs.
    pub rows: kennel_lifecycle::RowLimits,
    /// Lines of the audit log that were dropped and that it does not account for yet.
    pub audit_lost: u64,
    /// Files of runs that could not be read and were set aside.
    pub unreadable_files: u64,
    /// Open rows of this node that this version cannot read.
    pub unreadable_records: u64,
    /// Drain state of the node.
    pub drain: crate::base::drain::DrainStatus,
}

/// Reason why no more input is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEnd {
    /// The input was open, and is closed now.
    Closed(InputClosed),
    /// The run was spawned without a standard input to write to.
    Spec,
}
