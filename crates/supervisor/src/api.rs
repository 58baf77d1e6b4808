//! What the edge may ask, and what it gets.

use crate::{Elsewhere, InputEnd};
use bytes::Bytes;
use kennel_journal::{Gap, Position as JournalPosition, Tail};
use kennel_keeper::client::{NoPty, Shots, SignalTarget, Unstopped, UpgradeRefusal};
use kennel_lifecycle::{
    Containment, Entry, Exit, Held, InputClosed, Missing, NodeId, Outcome, OutputRemoval, Policy,
    RecordedSpec, Refusal, RunId, RunSpec, RunState, Signal, StartFailure, Stuck, TerminalSize,
    Timestamp,
};
use kennel_store::{Desired, PastAttempt};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

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
    pub drain: crate::DrainStatus,
}

/// Why a call failed. Each has a documented reason in the contract.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// No such run.
    #[error("there is no run {0}")]
    RunNotFound(RunId),
    /// The key is taken by another spec.
    #[error("run {0} exists with another spec")]
    SpecMismatch(RunId),
    /// Abort came first.
    #[error("run {0} was aborted before it was spawned")]
    RunFenced(RunId),
    /// The key is older than what is remembered, or from the future.
    #[error("the time in run id {0} is not within what this server accepts")]
    RunIdExpired(RunId),
    /// Not now.
    #[error("run {run}: {refusal}")]
    Refused {
        /// Which run.
        run: RunId,
        /// Why.
        refusal: Refusal,
        /// Its state.
        state: RunState,
    },
    /// The executable was not found.
    #[error("command {command:?} was not found")]
    CommandNotFound {
        /// What was asked for.
        command: String,
        /// Where was looked.
        looked_in: Vec<String>,
    },
    /// A step of the start failed.
    #[error("the command could not be started: {failure}")]
    SpawnFailed {
        /// Which run.
        run: RunId,
        /// Which step, which errno, which path.
        failure: StartFailure,
    },
    /// What would hold the run is weaker than its spec allows. Nothing was started.
    #[error("run {run} would be held by {} alone, and its spec wants {}", held_by(*.reached), held_by(*.wanted))]
    ContainmentUnavailable {
        /// Which run.
        run: RunId,
        /// The weakest that will do.
        wanted: Containment,
        /// What there is here and now.
        reached: Containment,
        /// Why there is no more, where that is known.
        why: Option<String>,
    },
    /// The run was stopped before it had started.
    #[error("run {0} was stopped before it started")]
    StoppedFirst(RunId),
    /// A cap is reached.
    #[error("no room for another run: {what} (limit {limit})")]
    QuotaExceeded {
        /// Which cap.
        what: String,
        /// Its value.
        limit: u64,
    },
    /// The host has no descriptor or no memory left for the keeper's answer. What was asked for may have been done.
    #[error("this host has no room for the answer: {0}")]
    HostFull(String),
    /// The store does not answer. Nothing was started.
    #[error("the store is not available")]
    StoreUnavailable,
    /// An operator drains this node: it takes no new runs.
    #[error("this node is being drained and takes no new runs")]
    NodeDrained,
    /// The service is shutting down, or its keeper is gone.
    #[error("this server is shutting down")]
    Draining,
    /// This server goes on.
    #[error("{0}")]
    NotUpgraded(UpgradeRefusal),
    /// A pause did not reach every task; what had been stopped goes on.
    #[error("run {run} could not be paused: some tasks did not stop")]
    NotPaused {
        /// Which run.
        run: RunId,
        /// Who did not stop, and why.
        moving: Vec<Unstopped>,
    },
    /// The spec asks for what this host or this server's rights do not allow.
    #[error("this server cannot do this here: {}", .0.first().map_or("", |m| m.capability.as_str()))]
    CapabilityMissing(Vec<Missing>),
    /// There is no terminal for the run. Nothing was started.
    #[error("{}", no_pty(.0))]
    NoPty(NoPty),
    /// The run is on no terminal.
    #[error("run {run} is not of kind RUN_KIND_TERMINAL")]
    NotOnTerminal {
        /// Which run.
        run: RunId,
    },
    /// The terminal is larger than one that is drawn.
    #[error(
        "the terminal of run {run} has {} rows of {} characters, more than is drawn", .size.rows, .size.cols
    )]
    ScreenTooLarge {
        /// Which run.
        run: RunId,
        /// How large.
        size: TerminalSize,
    },
    /// The input of a terminal is not closed but ended by a key.
    #[error(
        "run {run} is on a terminal, whose input is not closed: type its end-of-file character"
    )]
    TerminalInput {
        /// Which run.
        run: RunId,
    },
    /// A signal was for the foreground group of a terminal that the leader does not have.
    #[error("the leader of run {run} has no controlling terminal with a foreground process group")]
    NoTerminal {
        /// Which run.
        run: RunId,
    },
    /// A signal could not be sent.
    #[error("the signal could not be sent to run {run} (errno {errno})")]
    SignalFailed {
        /// Which run.
        run: RunId,
        /// errno(3).
        errno: i32,
    },
    /// Nothing more is accepted on standard input.
    #[error("the input of run {run} is closed: {}; {accepted} bytes were accepted", why_closed(*.end))]
    InputClosed {
        /// Which run.
        run: RunId,
        /// Why.
        end: InputEnd,
        /// How much was accepted.
        accepted: u64,
    },
    /// A write is not for where standard input stands.
    #[error("the input of run {run} stands at {accepted}{}", if *.unfinished { ", in the middle of another write" } else { "" })]
    InputOffset {
        /// Which run.
        run: RunId,
        /// How much was accepted.
        accepted: u64,
        /// Another write was cut off midway.
        unfinished: bool,
    },
    /// How much was accepted is not known.
    #[error(
        "how far the input of run {run} has come is not known: the service died while it was written"
    )]
    InputUnknown {
        /// Which run.
        run: RunId,
        /// At least so much was.
        least: u64,
        /// And at most so much.
        most: u64,
    },
    /// The run is over, and its input with it.
    #[error("run {run} has ended, and so has its input")]
    InputEnded {
        /// Which run.
        run: RunId,
        /// Its state.
        state: RunState,
        /// How much was accepted, where that is known.
        accepted: Option<u64>,
    },
    /// Another attempt than was meant.
    #[error("attempt {attempt} of run {run} is the present one")]
    OtherAttempt {
        /// Which run.
        run: RunId,
        /// The present attempt.
        attempt: u32,
    },
    /// The position is beyond what the run has.
    #[error("position {asked} is beyond the head {head} of run {run}")]
    CursorAhead {
        /// Which run.
        run: RunId,
        /// Asked for.
        asked: u64,
        /// The last that there is.
        head: u64,
    },
    /// The offset is beyond what the stream has.
    #[error("offset {asked} is beyond the {end} bytes that run {run} has written")]
    OffsetAhead {
        /// Which run.
        run: RunId,
        /// Asked for.
        asked: u64,
        /// How many bytes there are.
        end: u64,
    },
    /// Events at the position can no longer be read, and the caller wants none beyond them.
    #[error("events {first_seq} to {last_seq} of run {run} can no longer be read")]
    CursorExpired {
        /// Which run.
        run: RunId,
        /// The first that is missing.
        first_seq: u64,
        /// The last that is missing.
        last_seq: u64,
    },
    /// There is no such consumer, or no more.
    #[error("there is no consumer {name:?}{}", of_run(*.run))]
    ConsumerNotFound {
        /// Of which run; absent: of many.
        run: Option<RunId>,
        /// Its name.
        name: String,
    },
    /// Somebody else reads in the consumer's name since.
    #[error("another reader has taken over consumer {name:?}{}", of_run(*.run))]
    ConsumerTakenOver {
        /// Of which run; absent: of many.
        run: Option<RunId>,
        /// Its name.
        name: String,
    },
    /// No more consumers are kept.
    #[error("no room for another consumer: {what} (limit {limit})")]
    TooManyConsumers {
        /// Which cap.
        what: &'static str,
        /// Its value.
        limit: u64,
    },
    /// The run's journal cannot be read.
    #[error("the journal of run {run} cannot be read: {why}")]
    JournalUnreadable {
        /// Which run.
        run: RunId,
        /// Why.
        why: String,
    },
    /// The run is another node's: only that can do it.
    #[error("run {run} is on node {}", .elsewhere.described())]
    RunElsewhere {
        /// Which run.
        run: RunId,
        /// Where it is.
        elsewhere: Box<Elsewhere>,
    },
    /// A fault of ours.
    #[error("internal fault: {0}")]
    Internal(String),
}

fn of_run(run: Option<RunId>) -> String {
    run.map_or(" of many runs".to_owned(), |run| format!(" of run {run}"))
}

fn no_pty(none: &NoPty) -> String {
    match none {
        NoPty::Exhausted { current, max } => {
            let number =
                |n: &Option<u64>| n.map_or("an unknown number".to_owned(), |n| n.to_string());
            format!(
                "the terminals of this host are used up: {} of {} are open",
                number(current),
                number(max)
            )
        }
        NoPty::Unavailable { why, .. } => format!("this host gives no terminal: {why}"),
    }
}

fn why_closed(end: InputEnd) -> &'static str {
    match end {
        InputEnd::Closed(InputClosed::Client) => "a client has closed it",
        InputEnd::Closed(InputClosed::Command) => "nobody reads it any more",
        InputEnd::Closed(InputClosed::AttemptEnded) => "the attempt is over",
        InputEnd::Spec => "the run was spawned without one that stays open",
    }
}

fn held_by(containment: Containment) -> &'static str {
    match containment {
        Containment::Subreaper => "its shim",
        Containment::Cgroup => "a control group",
        Containment::PrivatePidns => "a private pid namespace",
    }
}
