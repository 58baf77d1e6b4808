//! The phases of a run, and the coarser states that clients see.

use crate::names::named;
use crate::{
    EndReason, Exit, Outcome, StartFailure, StopOrder, StreamsEnd, Timestamp, TreeVerdict,
};

/// Phase of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing exists in the kernel yet.
    #[default]
    Accepted,
    /// The keeper was asked for a child behind a gate.
    Preparing {
        /// A stop that came first; it wins at the next safe point.
        stop: Option<StopOrder>,
    },
    /// A child waits at the gate and its record is being written. It must not exec.
    Gated {
        /// A stop that came first.
        stop: Option<StopOrder>,
    },
    /// The gate is shut, or exec failed: the child exits without having run.
    Leaving(Leaving),
    /// Recorded, and the gate is open; the result of exec is awaited.
    Released,
    /// The command runs.
    Running,
    /// The pause request is being recorded, then the tree is being stopped and scanned.
    Pausing {
        /// Progress of the pause.
        stage: PauseStage,
    },
    /// Every task of the tree was seen stopped.
    Paused,
    /// The tree is being continued.
    Resuming,
    /// A stop was accepted; the keeper climbs the ladder.
    Stopping {
        /// Reason and grace.
        order: StopOrder,
        /// Time at which SIGKILL is due.
        deadline: Timestamp,
        /// Progress of the order.
        stage: StopStage,
    },
    /// The leader is gone; members of its tree or unread output may remain.
    Draining {
        /// The stop that the leader's exit followed, if it followed one; or the one that ended a rest which continued.
        stop: Option<StopOrder>,
        /// Time at which SIGKILL is due for the rest, where a stop has set it.
        deadline: Option<Timestamp>,
    },
    /// All is known; the outcome is being written.
    Closing(Outcome),
    /// Written. Nothing follows.
    Closed(Outcome),
    /// Given up before anything was recorded: the id is free again.
    Forgotten(NeverRan),
}

/// Progress of a stop order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopStage {
    /// The order is being recorded; nothing was signalled.
    Recording,
    /// The keeper has the order.
    Ordered,
}

/// Progress of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseStage {
    /// The pause is being recorded; nothing was stopped.
    Recording,
    /// The keeper stops the tasks and scans the tree.
    Freezing,
    /// The keeper has reported that the pause is over, which can arrive before its report that there was one.
    Expired,
}

/// Known result of exec after the gate was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Exec {
    /// No result yet.
    #[default]
    Awaited,
    /// exec succeeded.
    Confirmed,
    /// The shim died before it could report: the command may have run.
    Assumed,
}

/// A child that exits without having run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Reason why the command does not run.
    pub why: NeverRan,
    /// Known state of its row.
    pub row: Row,
    /// The keeper's verdict on the child's tree, once given.
    pub tree: Option<TreeVerdict>,
}

/// Known state of a run's row in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// The row is not written.
    Absent,
    /// An INSERT is in flight and has not been answered.
    InFlight,
    /// Written, or perhaps written: the outcome must be written.
    Owed,
    /// Written, and to be removed once nothing of the child is left: its server died before it answered any caller.
    Void,
    /// The row is being removed.
    Withdrawing,
}

/// Reason why a command never ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeverRan {
    /// A step of the start failed.
    Failed(StartFailure),
    /// A stop came before the gate opened.
    Stopped(StopOrder),
    /// The key was taken: the store holds another row for it.
    Superseded,
}

/// The three ends of a run, each known at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Exit of the leader.
    pub leader: Option<Exit>,
    /// Verdict on the tree.
    pub tree: Option<TreeVerdict>,
    /// End of the output.
    pub streams: Option<StreamsEnd>,
}

named! {
    /// States that clients see: fewer than phases.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum RunState {
        /// The run is being prepared, recorded or executed.
        Starting = "starting",
        /// The command runs.
        Running = "running",
        /// Every task of the tree is stopped.
        Paused = "paused",
        /// The run is ending.
        Stopping = "stopping",
        /// An attempt has ended, and the next one waits for its time.
        Backoff = "backoff",
        /// The leader exited with code 0.
        Succeeded = "succeeded",
        /// The leader exited otherwise, or the command never started.
        Failed = "failed",
        /// A caller ended the run.
        Cancelled = "cancelled",
        /// The run ended unobserved.
        Lost = "lost",
    }
}

impl RunState {
    /// States of a run that has not ended.
    pub const OPEN: [Self; 5] = [
        Self::Starting,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Backoff,
    ];

    /// States of a run that has ended.
    pub const ENDED: [Self; 4] = [Self::Succeeded, Self::Failed, Self::Cancelled, Self::Lost];

    /// Whether the state is final.
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::Lost
        )
    }
}

impl Phase {
    /// Returns the state shown to clients. Total: a new phase does not compile without one.
    pub fn public(&self) -> RunState {
        match self {
            Self::Accepted
            | Self::Preparing { .. }
            | Self::Gated { .. }
            | Self::Leaving(_)
            | Self::Released { .. } => RunState::Starting,
            // A pause is only reported when it is complete, a resume only when it is done.
            Self::Running { .. } | Self::Pausing { .. } => RunState::Running,
            Self::Paused { .. } | Self::Resuming { .. } => RunState::Paused,
            Self::Stopping { .. } | Self::Draining { .. } | Self::Closing(_) => RunState::Stopping,
            Self::Closed(outcome) => outcome.state(),
            Self::Forgotten(_) => RunState::Failed,
        }
    }
}

impl Outcome {
    /// Returns the final state of a run with this outcome.
    pub fn state(&self) -> RunState {
        match self.reason {
            EndReason::Exited if self.exit == Some(Exit::Code(0)) => RunState::Succeeded,
            EndReason::SuccessExit | EndReason::Result { .. } => RunState::Succeeded,
            EndReason::Exited
            | EndReason::StartFailed(_)
            | EndReason::DeadlineExceeded(_)
            | EndReason::LimitExceeded(_)
            | EndReason::NotReady
            | EndReason::NotLive { .. }
            | EndReason::Watchdog { .. }
            | EndReason::OomKilled(_)
            | EndReason::MemoryReserve(_)
            | EndReason::ShimLost
            | EndReason::Restarted { .. }
            | EndReason::RestartsExhausted { .. } => RunState::Failed,
            EndReason::Aborted { .. }
            | EndReason::Fenced { .. }
            | EndReason::ParentEnded
            | EndReason::ServerShutdown => RunState::Cancelled,
            EndReason::ServiceLost
            | EndReason::Rebooted
            | EndReason::OrphanTerminated
            | EndReason::NodeForgotten { .. } => RunState::Lost,
        }
    }
}
