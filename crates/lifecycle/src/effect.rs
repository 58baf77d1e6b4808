//! Effects of the machine: work for the driver, in order.

use crate::names::named;
use crate::{Entry, Outcome, StopOrder, Timestamp, ladder::StopPlan};

/// One action. Its comment says what a crash before or after it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask the keeper for a child behind a gate. A crash: the gate's other end closes, nothing ran.
    Prepare,
    /// Write the run's one row. A crash: the gate closes; a written row of a first attempt is removed, of a later one its attempt is
    /// closed as never run.
    Record,
    /// Open the gate. Only after the row is known to be written.
    Release,
    /// Shut the gate: the child ends without exec.
    ShutGate,
    /// Write `desired = STOP`, the requester, and the deadline; the first request stays. A crash after it: the next
    /// server continues the stop.
    RecordStop {
        /// Reason and grace.
        order: StopOrder,
        /// Time at which SIGKILL is due.
        deadline: Timestamp,
    },
    /// Give the plan to the keeper. A second plan may only shorten the first.
    StopTree(StopPlan),
    /// Detach the rest of the tree: the leader has exited by itself. A crash before it: keeper and shim know the policy
    /// and do the same.
    KeepRest,
    /// Send the requested signal, once.
    Interrupt,
    /// Write the state, and report when it is written.
    RecordState(RowState),
    /// Write that the command runs, with low priority: recovery treats `starting` alike.
    RecordRunning,
    /// Stop every task and scan the tree.
    Freeze,
    /// Continue the stopped tasks.
    Thaw,
    /// The tree is gone: read the remaining output and do not wait for more.
    FinishOutput,
    /// Write the outcome, as an upsert, until it is written.
    RecordOutcome(Outcome),
    /// Remove the run's row: its gate was never opened, and its server died before any caller was answered. Retried
    /// until the row is gone. A crash: the next server does it again, or finds no row.
    Withdraw,
    /// The run left no trace in the store: remove its files and control group.
    Forget,
    /// The outcome is durable: the keeper may forget the run.
    Acknowledge,
    /// Append an entry to those of the run, and show it to its readers.
    Append(Entry),
}

named! {
    /// Desired state of a run.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Desired {
        /// The run is to continue.
        #[default]
        Run = "run",
        /// The run is to end.
        Stop = "stop",
    }
}

named! {
    /// A state that is written before or after the request to the kernel.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RowState {
        /// The run runs.
        Running = "running",
        /// A pause was requested; tasks may be stopped.
        Pausing = "pausing",
        /// Every task was seen stopped.
        Paused = "paused",
    }
}

named! {
    /// Reason why a paused tree runs again.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ResumeReason {
        /// A caller requested it.
        Asked = "resume",
        /// The pause has reached its maximum.
        MaxPause = "max_pause",
    }
}
