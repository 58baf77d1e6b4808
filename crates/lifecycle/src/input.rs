//! What comes into the machine.

use crate::{
    Exit, Leftovers, MemoryKills, RowState, RunIdentity, StartFailure, StopCommand, StopInput,
    StopOrder, StopReason, StopStep, StreamsEnd, Stuck, Timestamp, TreeVerdict,
};
use std::time::Duration;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Someone wants something. Answered: obeyed or refused.
    Command(Command),
    /// The world says something. Tolerated: may come late or twice.
    Report(Report),
}

/// A wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Begin.
    Admit,
    /// End. A repeated stop is obeyed too, but may only shorten the grace.
    Stop(StopOrder),
    /// One signal of the caller's choice; as far as this machine goes, the run goes on.
    Interrupt,
    /// Stop every task.
    Pause,
    /// Continue every task.
    Resume,
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A child waits at the gate.
    Prepared(Box<RunIdentity>),
    /// No child was made.
    PrepareFailed(StartFailure),
    /// The row is written.
    Recorded,
    /// The row is certainly not written.
    RecordFailed,
    /// Whether the row is written is not known.
    RecordUnknown,
    /// Another row stands under the key.
    KeyTaken,
    /// The stop is on the row, or will be: the tree may be signalled.
    StopRecorded,
    /// This state is on the row.
    StateRecorded(RowState),
    /// This state could not be written.
    StateNotRecorded(RowState),
    /// The shim says that the child ended before it was let go.
    NotReleased,
    /// The command runs.
    Executed,
    /// execve failed.
    ExecFailed(StartFailure),
    /// The leader ended.
    LeaderExited(Exit),
    /// Who was alive when the leader ended, where anybody was.
    LeftBehind(Leftovers),
    /// A round of signals of the stop ladder went out.
    Signalled(StopStep),
    /// The keeper has carried out an action of a stop at standard input.
    InputStopped(StopInput),
    /// A command of a stop is over.
    CommandStopped(StopCommand),
    /// SIGKILL does not end these. The keeper goes on watching and killing.
    TreeStuck(Stuck),
    /// A SIGKILL that a caller asked for went out; it is no stop.
    KillSent,
    /// How many processes of the run the kernel has killed for want of memory, where it has. Comes before the last word
    /// on the tree.
    MemoryKills(MemoryKills),
    /// When the keeper took the look that its last word rests on. Comes right before that word.
    Census(Timestamp),
    /// The keeper's last word on the tree. Comes exactly once for each prepared child.
    TreeEnded(TreeVerdict),
    /// The output has been read to its end.
    StreamsClosed(StreamsEnd),
    /// Every task of the tree is stopped.
    Frozen,
    /// Not every task could be stopped; those that were go on.
    NotFrozen,
    /// The tree runs again.
    Thawed,
    /// The keeper has continued the tree by itself: the pause has lasted for as long as it may.
    PauseExpired,
    /// The keeper has begun to stop the tree by itself.
    KeeperStops {
        /// Why.
        reason: StopReason,
        /// Time between the first polite signal, which is out, and SIGKILL.
        grace: Duration,
    },
    /// The outcome is on the row.
    OutcomeRecorded,
    /// The row is removed.
    Withdrawn,
    /// The row may not be removed: somebody has changed it.
    NotWithdrawn,
}
