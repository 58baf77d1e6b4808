//! Why a call failed.

use super::InputEnd;
use crate::base::other_node::Elsewhere;
use kennel_keeper::client::{NoPty, Unstopped, UpgradeRefusal};
use kennel_lifecycle::{
    Containment, InputClosed, Missing, Refusal, RunId, RunState, StartFailure, TerminalSize,
};

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
    #[error("run {run} has no terminal")]
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
    /// The annotations of a run have changed since the caller has read them.
    #[error("run {run}: the annotations have version {present}, not {expected}")]
    AnnotationsChanged {
        /// Which run.
        run: RunId,
        /// Version that the caller expects.
        expected: u64,
        /// Present version.
        present: u64,
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
    #[error("another reader has acquired consumer {name:?}{}", of_run(*.run))]
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
    /// The run's node could not be reached: the stop is left for it, and not done.
    #[error("the stop of run {run} is left for its node {}, which cannot be reached: it is not done yet", .elsewhere.name)]
    AbortQueued {
        /// Which run.
        run: RunId,
        /// Where it is.
        elsewhere: Box<Elsewhere>,
    },
    /// A node that has a lease is not forgotten.
    #[error("node {} has a lease: it can be forgotten once that has ended", .0.name)]
    NodeHasLease(Box<Elsewhere>),
    /// No node, or several, have this name.
    #[error("there is no node {name:?}: {why}")]
    NodeNotFound {
        /// As it was asked for.
        name: String,
        /// Why none is meant.
        why: &'static str,
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
