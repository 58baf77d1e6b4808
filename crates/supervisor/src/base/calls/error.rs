//! Causes of failed calls.

use super::{InputEnd, RunView};
use crate::base::{other_node::Elsewhere, spec_digest::ComparedSpecs};
use kennel_keeper::client::{NoPty, Unstopped, UpgradeRefusal};
use kennel_lifecycle::{
    Containment, Deadline, InputClosed, Missing, Refusal, RunId, RunState, StartFailure,
    TerminalSize, Violation,
};
use std::time::Duration;

/// Cause of a failed call. Each has a documented reason in the contract.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// No such run.
    #[error("there is no run {0}")]
    RunNotFound(RunId),
    /// No run of the owner has this name.
    #[error("there is no run named {0:?}")]
    NoRunNamed(String),
    /// An open run of the owner has this name.
    #[error("an open run has the name {name:?}")]
    NameTaken {
        /// The name.
        name: String,
        /// That run.
        holder: Box<RunView>,
    },
    /// Another spec has this key.
    #[error("run {run} exists with another spec")]
    SpecMismatch {
        /// That run.
        run: RunId,
        /// Its spec and the requested one; absent: it is another owner's.
        between: Option<Box<ComparedSpecs>>,
    },
    /// An abort came before the spawn.
    #[error("run {0} was aborted before it was spawned")]
    RunFenced(RunId),
    /// A run had this key, and is removed.
    #[error("run {0} was removed")]
    RunRemoved(RunId),
    /// The time in the key is too far ahead of this host's clock, or longer ago than rows are remembered.
    #[error(
        "there is no run {run}, and none is made of it: the time in it, {time}, is not between {oldest} and {newest}"
    )]
    RunIdExpired {
        /// Id of the run.
        run: RunId,
        /// Time in the id, as RFC 3339 has it.
        time: String,
        /// The least time of an id that makes a run.
        oldest: String,
        /// The greatest.
        newest: String,
    },
    /// The run's state does not allow this now.
    #[error("run {run}: {refusal}")]
    Refused {
        /// Id of the run.
        run: RunId,
        /// Reason of the refusal.
        refusal: Refusal,
        /// State of the run.
        state: RunState,
    },
    /// This version does not know what a later one has said of the run.
    #[error("run {run} is pinned: this version does not know {by:?}, and only an abort acts")]
    Pinned {
        /// Id of the run.
        run: RunId,
        /// Name of the need or kind.
        by: String,
        /// State of the run; absent: this version cannot read it.
        state: Option<RunState>,
    },
    /// The executable was not found.
    #[error("command {command:?} was not found")]
    CommandNotFound {
        /// The command as requested.
        command: String,
        /// Paths that were searched.
        looked_in: Vec<String>,
    },
    /// A step of the start failed.
    #[error("the command could not be started: {failure}")]
    SpawnFailed {
        /// Id of the run.
        run: RunId,
        /// The failed step, its errno and its path.
        failure: StartFailure,
    },
    /// The available containment is weaker than the spec allows. Nothing was started.
    #[error("run {run} would be contained by {} only, and its spec demands {}", held_by(*.reached), held_by(*.wanted))]
    ContainmentUnavailable {
        /// Id of the run.
        run: RunId,
        /// Weakest containment that the spec allows.
        wanted: Containment,
        /// Containment available here and now.
        reached: Containment,
        /// Reason why no stronger one is available, where that is known.
        why: Option<String>,
    },
    /// The run was stopped before it had started.
    #[error("run {0} was stopped before it started")]
    StoppedFirst(RunId),
    /// A cap is reached.
    #[error("no room: {what} (limit {limit})")]
    QuotaExceeded {
        /// Name of the cap.
        what: String,
        /// Value of the cap.
        limit: u64,
    },
    /// The pattern of a wait for output takes too much of a processor.
    #[error("the pattern takes too much processor time on the output of run {0}")]
    PatternTooDear(RunId),
    /// The host has no space on the disk, or no descriptor or no memory left for the keeper's answer: then the request
    /// may have been carried out.
    #[error("this host has no room: {0}")]
    HostFull(String),
    /// The store does not answer. Nothing was started.
    #[error("the store is not available")]
    StoreUnavailable,
    /// Another server has the lease of this node. Nothing was started.
    #[error(
        "another server has the lease of this node: this one starts nothing until it has it again"
    )]
    NodeFenced,
    /// An operator drains this node: it takes no new runs.
    #[error("this node is being drained and takes no new runs")]
    NodeDrained,
    /// The service is shutting down, or its keeper is gone.
    #[error("this server is shutting down")]
    Draining,
    /// The upgrade was refused: this server continues.
    #[error("{0}")]
    NotUpgraded(UpgradeRefusal),
    /// A pause did not reach every task; tasks that were stopped continue.
    #[error("run {run} could not be paused: some tasks did not stop")]
    NotPaused {
        /// Id of the run.
        run: RunId,
        /// Tasks that did not stop, and why.
        moving: Vec<Unstopped>,
    },
    /// The spec asks for what this host or this server's rights do not allow.
    #[error("this server cannot do this here: {}", .0.first().map_or("", |m| m.capability.as_str()))]
    CapabilityMissing(Vec<Missing>),
    /// The spec does not fit the settings of this node.
    #[error("{}: {}", .0.field, .0.description)]
    InvalidSpec(Violation),
    /// A secret of the server cannot be read. Nothing was started.
    #[error("the secret {name} cannot be read from {origin}: {why}")]
    SecretUnavailable {
        /// Its name.
        name: String,
        /// Its source, such as `file:db/password`.
        origin: String,
        /// Why, in words.
        why: String,
    },
    /// No terminal is available for the run. Nothing was started.
    #[error("{}", no_pty(.0))]
    NoPty(NoPty),
    /// The run has no terminal.
    #[error("run {run} has no terminal")]
    NotOnTerminal {
        /// Id of the run.
        run: RunId,
    },
    /// The terminal is larger than the largest that is drawn.
    #[error(
        "the terminal of run {run} has {} rows of {} characters, more than is drawn", .size.rows, .size.cols
    )]
    ScreenTooLarge {
        /// Id of the run.
        run: RunId,
        /// Size of the terminal.
        size: TerminalSize,
    },
    /// Input of a terminal is not closed: a key ends it.
    #[error(
        "run {run} is on a terminal, whose input is not closed: type its end-of-file character"
    )]
    TerminalInput {
        /// Id of the run.
        run: RunId,
    },
    /// A signal was for the foreground group of a terminal that the leader does not have.
    #[error("the leader of run {run} has no controlling terminal with a foreground process group")]
    NoTerminal {
        /// Id of the run.
        run: RunId,
    },
    /// A signal could not be sent, or a pause not be recorded.
    #[error("this could not be done to run {run}: {}", std::io::Error::from_raw_os_error(*errno))]
    SignalFailed {
        /// Id of the run.
        run: RunId,
        /// errno(3).
        errno: i32,
    },
    /// The question was answered before.
    #[error(
        "run {run}: question {question} was answered before{}",
        by_principal(by)
    )]
    AnsweredAlready {
        /// Id of the run.
        run: RunId,
        /// Number of the question.
        question: u64,
        /// Principal who answered; empty: not known any more.
        by: String,
    },
    /// The run has not asked this, or something else has ended the question.
    #[error("run {run} does not ask question {question}")]
    QuestionGone {
        /// Id of the run.
        run: RunId,
        /// Number of the question.
        question: u64,
        /// Numbers of the questions that wait.
        open: Vec<u64>,
    },
    /// The annotations of a run have changed since the caller read them.
    #[error("run {run}: the annotations have version {present}, not {expected}")]
    AnnotationsChanged {
        /// Id of the run.
        run: RunId,
        /// Version that the caller expects.
        expected: u64,
        /// Present version.
        present: u64,
    },
    /// The run has no such limit of time now.
    #[error("run {run} has no {} that counts now", .limit.map_or("limit of time", Deadline::name))]
    NoTimeLimit {
        /// Id of the run.
        run: RunId,
        /// The limit; absent: it has none at all.
        limit: Option<Deadline>,
    },
    /// A limit of time cannot be extended so far.
    #[error("{} of run {run} can be extended to {}s from now on at most", .limit.name(), .possible.as_secs())]
    ExtensionTooLong {
        /// Id of the run.
        run: RunId,
        /// The limit.
        limit: Deadline,
        /// Longest time until it is reached that its bound allows.
        possible: Duration,
    },
    /// Standard input accepts no more.
    #[error("the input of run {run} is closed: {}; {accepted} bytes were accepted", why_closed(*.end))]
    InputClosed {
        /// Id of the run.
        run: RunId,
        /// Reason.
        end: InputEnd,
        /// Number of bytes accepted.
        accepted: u64,
    },
    /// The offset of a write is not the position of standard input.
    #[error("the input of run {run} stands at {accepted}{}", if *.unfinished { ", in the middle of another write" } else { "" })]
    InputOffset {
        /// Id of the run.
        run: RunId,
        /// Number of bytes accepted.
        accepted: u64,
        /// Whether another write was cut off midway.
        unfinished: bool,
    },
    /// The number of accepted bytes is not known.
    #[error(
        "how far the input of run {run} has come is not known: the service died while it was written"
    )]
    InputUnknown {
        /// Id of the run.
        run: RunId,
        /// Least number of bytes accepted.
        least: u64,
        /// Largest number of bytes accepted.
        most: u64,
    },
    /// The run has ended, and its input with it.
    #[error("run {run} has ended, and so has its input")]
    InputEnded {
        /// Id of the run.
        run: RunId,
        /// State of the run.
        state: RunState,
        /// Number of bytes accepted, where known.
        accepted: Option<u64>,
    },
    /// The present attempt is not the expected one.
    #[error("attempt {attempt} of run {run} is the present one")]
    OtherAttempt {
        /// Id of the run.
        run: RunId,
        /// The present attempt.
        attempt: u32,
    },
    /// The position is beyond the run's last event.
    #[error("position {asked} is beyond the head {head} of run {run}")]
    CursorAhead {
        /// Id of the run.
        run: RunId,
        /// Requested position.
        asked: u64,
        /// Seq of the last event.
        head: u64,
    },
    /// The offset is beyond the end of the stream.
    #[error("offset {asked} is beyond the {end} bytes that run {run} has written")]
    OffsetAhead {
        /// Id of the run.
        run: RunId,
        /// Requested offset.
        asked: u64,
        /// Length of the stream in bytes.
        end: u64,
    },
    /// Events at the position can no longer be read, and the caller does not accept a gap.
    #[error("events {first_seq} to {last_seq} of run {run} can no longer be read")]
    CursorExpired {
        /// Id of the run.
        run: RunId,
        /// First missing seq.
        first_seq: u64,
        /// Last missing seq.
        last_seq: u64,
    },
    /// The consumer does not exist, or no longer.
    #[error("there is no consumer {name:?}{}", of_run(*.run))]
    ConsumerNotFound {
        /// Id of the run; absent: a consumer of many runs.
        run: Option<RunId>,
        /// Name of the consumer.
        name: String,
    },
    /// A newer reader of the same consumer has replaced this one.
    #[error("another reader has acquired consumer {name:?}{}", of_run(*.run))]
    ConsumerTakenOver {
        /// Id of the run; absent: a consumer of many runs.
        run: Option<RunId>,
        /// Name of the consumer.
        name: String,
    },
    /// The cap of consumers is reached.
    #[error("no room for another consumer: {what} (limit {limit})")]
    TooManyConsumers {
        /// Name of the cap.
        what: &'static str,
        /// Value of the cap.
        limit: u64,
    },
    /// The run's journal cannot be read.
    #[error("the journal of run {run} cannot be read: {why}")]
    JournalUnreadable {
        /// Id of the run.
        run: RunId,
        /// Reason.
        why: String,
    },
    /// The run belongs to another node, which alone can do this.
    #[error("run {run} is on node {}", .elsewhere.described())]
    RunElsewhere {
        /// Id of the run.
        run: RunId,
        /// The node of the run.
        elsewhere: Box<Elsewhere>,
    },
    /// The run's node could not be reached: the stop is queued for it, and not carried out.
    #[error("the stop of run {run} is left for its node {}, which cannot be reached: it is not done yet", .elsewhere.name)]
    AbortQueued {
        /// Id of the run.
        run: RunId,
        /// The node of the run.
        elsewhere: Box<Elsewhere>,
    },
    /// The node that was called has no database: the stop of a run that it does not know is recorded there, and not
    /// carried out.
    #[error("the stop of run {run} is recorded at node {}, which does not reach its database: it is not done yet, and another node may start the run before", .node.name)]
    AbortUndelivered {
        /// Id of the run.
        run: RunId,
        /// The node that was called.
        node: Box<Elsewhere>,
    },
    /// A node that has a lease cannot be forgotten.
    #[error("node {} has a lease: it can be forgotten once that has ended", .0.name)]
    NodeHasLease(Box<Elsewhere>),
    /// No node, or several, have this name.
    #[error("there is no node {name:?}: {why}")]
    NodeNotFound {
        /// The name as requested.
        name: String,
        /// Reason why the name selects no node.
        why: &'static str,
    },
    /// An internal fault.
    #[error("internal fault: {0}")]
    Internal(String),
}

fn by_principal(by: &str) -> String {
    if by.is_empty() {
        String::new()
    } else {
        format!(" by {by}")
    }
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
        InputEnd::Closed(InputClosed::Command) => "no process reads it any more",
        InputEnd::Closed(InputClosed::AttemptEnded) => "the attempt is over",
        InputEnd::Closed(InputClosed::Stop) => "a stop of the run has closed it",
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
