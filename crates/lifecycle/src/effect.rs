//! What goes out of the machine: work for the driver, in order.

use crate::names::named;
use crate::{Entry, Outcome, RunIdentity, StopOrder, Timestamp, ladder::StopPlan};

/// One thing to do. The comment says what a crash before or after it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask the keeper for a child behind a gate. A crash: the gate's other end closes, nothing ran.
    Prepare,
    /// Write the run's one row. A crash: the gate closes; a written row of a first attempt is removed, of a later one its attempt is
    /// closed as never run.
    Record(Box<RunIdentity>),
    /// Open the gate. Only after the row is known to be written.
    Release,
    /// Shut the gate: the child ends without exec.
    ShutGate,
    /// Write `desired = STOP`, who wants it, and the deadline; the first who wanted it stays. A crash after it: whoever
    /// comes next goes on with the stop.
    RecordStop {
        /// Why and how fast.
        order: StopOrder,
        /// When SIGKILL is due.
        deadline: Timestamp,
    },
    /// Hand the plan to the keeper. A second plan may only shorten the first.
    StopTree(StopPlan),
    /// Leave the rest of the tree alone: the leader has ended by itself. A crash before it: keeper and shim know the
    /// policy and do the same.
    KeepRest,
    /// Send the signal that was asked for, once.
    Interrupt,
    /// Write the state, and report when it is written.
    RecordState(RowState),
    /// Write that the command runs, at leisure: recovery treats `starting` alike.
    RecordRunning,
    /// Stop every task and look.
    Freeze,
    /// Continue what was stopped.
    Thaw,
    /// The tree is gone: read what is left of the output and do not wait for more.
    FinishOutput,
    /// Write the outcome, as an upsert, until it is written.
    RecordOutcome(Outcome),
    /// Remove the run's row: its gate was never opened, and its server died before anybody was answered. Tried until the row
    /// is gone. A crash: whoever comes next does it again, or finds no row.
    Withdraw,
    /// The run left no trace in the store: remove what was made for it.
    Forget,
    /// The outcome is safe: the keeper may forget the run.
    Acknowledge,
    /// Append an entry to those of the run, and show it to its readers.
    Append(Entry),
}

named! {
    /// What is wanted of a run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Desired {
        /// That it run.
        Run = "run",
        /// That it end.
        Stop = "stop",
    }
}

named! {
    /// A state that is written before or after the kernel was asked for it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RowState {
        /// It runs.
        Running = "running",
        /// A pause was asked for; tasks may be stopped.
        Pausing = "pausing",
        /// Every task was seen stopped.
        Paused = "paused",
    }
}

named! {
    /// Why a paused tree runs again.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ResumeReason {
        /// A caller asked for it.
        Asked = "resume",
        /// The pause has lasted for as long as it may.
        MaxPause = "max_pause",
    }
}
