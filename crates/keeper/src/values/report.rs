//! What the keeper reports of a run, and what came of a signal.

use super::Notified;
use kennel_lifecycle::{
    Exit, Leftovers, MemoryKills, Signal, StartFailure, StopCommand, StopInput, StopReason,
    StopStep, Stuck, TreeVerdict,
};
use kennel_linux::aims::Aim;
use serde::{Deserialize, Serialize};

/// What happened to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    /// The child ended before it was let go.
    NotReleased,
    /// exec succeeded.
    Executed,
    /// exec failed. The leader's exit that follows is not an exit of the command.
    ExecFailed(StartFailure),
    /// A signal that a client asked for went out, or could not.
    SignalSent {
        /// Which.
        signal: Signal,
        /// How many processes it was sent to, where that is known.
        targets: Option<u32>,
        /// errno(3) of a failure.
        errno: Option<i32>,
    },
    /// The leader ended.
    LeaderExited(Exit),
    /// A round of signals of the stop ladder went out.
    StopStep(StopStep),
    /// The processes that the next reported round was for; at most [`AIMS_LISTED_MAX`](kennel_linux::aims::AIMS_LISTED_MAX).
    Aimed(Vec<Aim>),
    /// The processes that were alive when the leader exited, if any.
    LeftBehind(Leftovers),
    /// SIGKILL does not end these. Reported again when others are left; the keeper keeps watching and killing.
    TreeStuck(Stuck),
    /// How many processes of the run the kernel has killed for want of memory, where it has; before the last word.
    MemoryKills(MemoryKills),
    /// The final report on the tree; once per prepared child; nothing follows it.
    TreeEnded(TreeVerdict),
    /// The keeper has begun with the run's plan by itself, for this reason.
    Stops(StopReason),
    /// The pause has lasted for as long as it may, and all processes that it had stopped were continued.
    PauseExpired,
    /// An action of a stop at standard input was carried out.
    StopInput(StopInput),
    /// A command of a stop is over.
    StopCommand(StopCommand),
    /// What a process of the run has said of it.
    Notified(Notified),
}

/// How a signal or a pause went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalResult {
    /// It reached the group, or every task.
    Done,
    /// No process is left to signal.
    Gone,
    /// Not every task was seen stopped in time; what had been stopped goes on.
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
    /// Why not, in one plain sentence; empty where there are too many to look at each.
    pub why: String,
}
