//! The phases of a run, and the coarser states that clients see.

use crate::names::named;
use crate::{
    EndReason, Exit, Outcome, RunIdentity, StartFailure, StopOrder, StreamsEnd, Timestamp,
    TreeVerdict,
};

/// Where one run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing exists in the kernel yet.
    Accepted,
    /// The keeper was asked for a child behind a gate.
    Preparing {
        /// A stop that came first; it wins at the next safe point.
        stop: Option<StopOrder>,
    },
    /// A child waits at the gate and its record is being written. It must not exec.
    Gated {
        /// Who waits.
        proc: Box<RunIdentity>,
        /// A stop that came first.
        stop: Option<StopOrder>,
    },
    /// The gate is shut, or exec failed: the child leaves without having run.
    Leaving(Leaving),
    /// Recorded, and the gate is open; the result of exec is awaited.
    Released {
        /// Who was let go.
        proc: Box<RunIdentity>,
    },
    /// The command runs.
    Running {
        /// Who runs.
        proc: Box<RunIdentity>,
    },
    /// The wish to pause is being recorded, then the tree is being stopped and looked at.
    Pausing {
        /// Who is paused.
        proc: Box<RunIdentity>,
        /// How far the pause has come.
        stage: PauseStage,
    },
    /// Every task of the tree was seen stopped.
    Paused {
        /// Who is paused.
        proc: Box<RunIdentity>,
    },
    /// The tree is being continued.
    Resuming {
        /// Who is resumed.
        proc: Box<RunIdentity>,
    },
    /// Asked to end; the keeper climbs the ladder.
    Stopping {
        /// Who is stopped.
        proc: Box<RunIdentity>,
        /// Why and how fast.
        order: StopOrder,
        /// When SIGKILL is due.
        deadline: Timestamp,
        /// How far the order has come.
        stage: StopStage,
    },
    /// The leader is gone; members of its tree or unread output may remain.
    Draining {
        /// Whose tree.
        proc: Box<RunIdentity>,
        /// The stop that the leader's end followed, if it followed one; or the one that ended a rest which went on.
        stop: Option<StopOrder>,
        /// When SIGKILL is due for the rest, where a stop has set it.
        deadline: Option<Timestamp>,
    },
    /// All is known; the outcome is being written.
    Closing(Outcome),
    /// Written. Nothing follows.
    Closed(Outcome),
    /// Given up before anything was recorded: the id is free again.
    Forgotten(NeverRan),
}

/// How far a stop order has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopStage {
    /// Being recorded; nothing was signalled.
    Recording,
    /// With the keeper.
    Ordered,
}

/// How far a pause has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseStage {
    /// Being recorded; nothing was stopped.
    Recording,
    /// The keeper stops the tasks and looks.
    Freezing,
    /// The keeper has said that the pause is over, which can be heard before its word that there was one.
    Expired,
}

/// What is known of exec after the gate was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exec {
    /// No word yet.
    Awaited,
    /// It succeeded.
    Confirmed,
    /// The shim died before it could tell: the command may have run.
    Assumed,
}

/// A child that leaves without having run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Why it does not run.
    pub why: NeverRan,
    /// What is known of its row.
    pub row: Row,
    /// What the keeper said of the child's tree, once it has.
    pub tree: Option<TreeVerdict>,
}

/// What is known of a run's row in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Not written.
    Absent,
    /// An INSERT is on its way and has not been answered.
    InFlight,
    /// Written, or perhaps written: the outcome has to be.
    Owed,
    /// Written, and to be removed once nothing of the child is left: its server died before it answered anybody.
    Void,
    /// Being removed.
    Withdrawing,
}

/// Why a command never ran.
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
    /// The leader's end.
    pub leader: Option<Exit>,
    /// The tree's.
    pub tree: Option<TreeVerdict>,
    /// The output's.
    pub streams: Option<StreamsEnd>,
}

named! {
    /// What clients may rely on: fewer than phases.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum RunState {
        /// Being prepared, recorded or executed.
        Starting = "starting",
        /// The command runs.
        Running = "running",
        /// Every task of the tree is stopped.
        Paused = "paused",
        /// On its way to the end.
        Stopping = "stopping",
        /// An attempt has ended, and the next one has its time.
        Backoff = "backoff",
        /// The leader exited with code 0.
        Succeeded = "succeeded",
        /// It exited otherwise, or never started.
        Failed = "failed",
        /// A caller ended it.
        Cancelled = "cancelled",
        /// It ended unobserved.
        Lost = "lost",
    }
}

impl RunState {
    /// Those of a run that has not ended.
    pub const OPEN: [Self; 5] = [
        Self::Starting,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Backoff,
    ];

    /// Whether nothing follows.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::Lost
        )
    }
}

impl Phase {
    /// The state shown to clients. Total: a new phase does not compile without one.
    #[must_use]
    pub fn public(&self) -> RunState {
        match self {
            Self::Accepted
            | Self::Preparing { .. }
            | Self::Gated { .. }
            | Self::Leaving(_)
            | Self::Released { .. } => RunState::Starting,
            // A pause is only told when it has been seen, a resume only when it has been done.
            Self::Running { .. } | Self::Pausing { .. } => RunState::Running,
            Self::Paused { .. } | Self::Resuming { .. } => RunState::Paused,
            Self::Stopping { .. } | Self::Draining { .. } | Self::Closing(_) => RunState::Stopping,
            Self::Closed(outcome) => outcome.state(),
            Self::Forgotten(_) => RunState::Failed,
        }
    }
}

impl Outcome {
    /// The final state of a run that ended so.
    #[must_use]
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
            | EndReason::OomKilled(_)
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
