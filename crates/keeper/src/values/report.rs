//! Reports of the keeper about a run, and results of signals.

use super::Notified;
use kennel_lifecycle::{
    Deadline, Exit, Leftovers, MemoryKills, Signal, StartFailure, StopCommand, StopInput,
    StopReason, StopStep, Stuck, TreeVerdict, Usage,
};
use kennel_linux::targets::{RoundTarget, SignalledProcess};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Event of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The child exited before its release.
    NotReleased {},
    /// exec succeeded.
    Executed {},
    /// exec failed. The leader's exit that follows is not an exit of the command.
    ExecFailed(StartFailure),
    /// A signal that a client requested was sent, or could not be sent.
    SignalSent {
        /// The signal.
        signal: Signal,
        /// Number of processes that it was sent to, where that is known.
        targets: Option<u32>,
        /// errno(3) of a failure.
        errno: Option<i32>,
    },
    /// The leader exited.
    #[serde(with = "crate::object::exit")]
    LeaderExited(Exit),
    /// A round of signals of the stop ladder was sent.
    StopStep(StopStep),
    /// The targets of the next reported round; at most
    /// [`TARGETS_LISTED_MAX`](kennel_linux::targets::TARGETS_LISTED_MAX).
    #[serde(with = "crate::object::targets")]
    RoundTargets(Vec<RoundTarget>),
    /// The processes that were alive when the leader exited, if any.
    LeftBehind(Leftovers),
    /// SIGKILL does not end these processes. Reported again when the set changes; the keeper keeps watching and
    /// killing.
    TreeStuck(Stuck),
    /// Number of processes of the run that the kernel has killed for want of memory, where it has; before the final
    /// report.
    MemoryKills(MemoryKills),
    /// The final report on the tree; once per prepared child; nothing follows it.
    #[serde(with = "crate::object::tree")]
    TreeEnded(TreeVerdict),
    /// The keeper has begun the run's plan by itself, for this reason.
    #[serde(with = "crate::object::reason")]
    Stops(StopReason),
    /// The pause has reached its maximum, and all processes that it had stopped were continued.
    PauseExpired {},
    /// An action of a stop at standard input was carried out.
    StopInput(StopInput),
    /// A command of a stop is over.
    StopCommand(StopCommand),
    /// A process of the run has sent a notice.
    #[serde(with = "crate::object::notice")]
    Notified(Notified),
    /// A limit of time that the keeper counts was extended.
    Extended {
        /// The limit.
        limit: Deadline,
        /// Total of its extensions in this attempt.
        total: Duration,
        /// Source: [`NOTIFIED`](kennel_lifecycle::NOTIFIED), or a principal; empty: not known.
        by: String,
    },
    /// Resources that the run has used, where its control group counts any; before the final report.
    Usage(Box<Usage>),
}

/// Result of a signal or a pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalResult {
    /// The signal reached the group, or every task.
    Done,
    /// No process is left to signal.
    Gone,
    /// Not every task was seen stopped in time; the stopped ones continue.
    Partial(Vec<Unstopped>),
    /// The call failed with this errno(3).
    Failed(i32),
    /// The keeper holds no such run.
    UnknownRun,
}

/// A process that a pause did not stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unstopped {
    /// Process id.
    pub pid: i32,
    /// The reason, in one plain sentence; empty where there are too many to check each.
    pub why: String,
}

/// Results of a signal to several processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalledProcesses {
    /// Result for each, by rising process id.
    pub signalled: Vec<SignalledProcess>,
    /// Number of further processes that were signalled.
    pub unlisted: u32,
    /// The signal was for a foreground group, and the leader has no terminal with one: no process was signalled.
    pub no_terminal: bool,
}
