//! Inputs of the machine.

use crate::{
    Exit, Leftovers, MemoryKills, RowState, RunIdentity, StartFailure, StopCommand, StopInput,
    StopOrder, StopReason, StopStep, StreamsEnd, Stuck, Timestamp, TreeVerdict, Usage,
};
use std::time::Duration;

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A request. Answered: obeyed or refused.
    Command(Command),
    /// An event of kernel, keeper or store. Tolerated: may come late or twice.
    Report(Report),
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Start the run.
    Admit,
    /// End the run. A repeated stop is obeyed too, but may only shorten the grace.
    Stop(StopOrder),
    /// Send one signal of the caller's choice; for this machine the run continues.
    Interrupt,
    /// Stop every task.
    Pause,
    /// Continue every task.
    Resume,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A child waits at the gate.
    Prepared(Box<RunIdentity>),
    /// No child was made.
    PrepareFailed(StartFailure),
    /// The row is written.
    Recorded,
    /// The row is verified not to be written.
    RecordFailed,
    /// The state of the row is unknown: written or not.
    RecordUnknown,
    /// Another row has the key.
    KeyTaken,
    /// The stop is on the row, or will be: the tree may be signalled.
    StopRecorded,
    /// The row has this state.
    StateRecorded(RowState),
    /// This state could not be written.
    StateNotRecorded(RowState),
    /// The shim reports that the child exited before its release.
    NotReleased,
    /// The command has started.
    Executed,
    /// execve failed.
    ExecFailed(StartFailure),
    /// The leader exited.
    LeaderExited(Exit),
    /// Processes that were alive when the leader exited, where there were any.
    LeftBehind(Leftovers),
    /// A round of signals of the stop ladder was sent.
    Signalled(StopStep),
    /// The keeper has carried out an action of a stop at standard input.
    InputStopped(StopInput),
    /// A command of a stop is over.
    CommandStopped(StopCommand),
    /// SIGKILL does not end these processes. The keeper keeps watching and killing.
    TreeStuck(Stuck),
    /// A SIGKILL that a caller requested was sent; it is no stop.
    KillSent,
    /// Number of processes of the run that the kernel has killed for want of memory, where it has. Comes before the
    /// verdict on the tree.
    MemoryKills(MemoryKills),
    /// Resources that the run has used. Comes before the verdict on the tree.
    Usage(Box<Usage>),
    /// Time of the scan that the keeper's verdict rests on. Comes right before the verdict.
    Census(Timestamp),
    /// The keeper's verdict on the tree. Comes exactly once for each prepared child.
    TreeEnded(TreeVerdict),
    /// The output has been read to its end.
    StreamsClosed(StreamsEnd),
    /// Every task of the tree is stopped.
    Frozen,
    /// Not every task could be stopped; the stopped ones continue.
    NotFrozen,
    /// The tree runs again.
    Thawed,
    /// The keeper has continued the tree by itself: the pause has reached its maximum.
    PauseExpired,
    /// The keeper has begun to stop the tree by itself.
    KeeperStops {
        /// Reason of the stop.
        reason: StopReason,
        /// Time between the first polite signal, which is sent, and SIGKILL.
        grace: Duration,
    },
    /// The outcome is in the row.
    OutcomeRecorded,
    /// The row is removed.
    Withdrawn,
    /// The row may not be removed: another writer has changed it.
    NotWithdrawn,
}
