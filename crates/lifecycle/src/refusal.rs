//! Reasons why a command was not obeyed.

/// A refused command changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Admitted before.
    #[error("the run has been admitted before")]
    AlreadyAdmitted,
    /// The command has not started yet.
    #[error("the run has not started yet")]
    NotRunningYet,
    /// Resume of a run that is not paused.
    #[error("the run is not paused")]
    NotPaused,
    /// The run is paused, or about to be.
    #[error("the run is paused")]
    Paused,
    /// The run is ending.
    #[error("the run is stopping")]
    Stopping,
    /// Not enough of the run is stored to make another attempt.
    #[error("the run was spawned without a policy that restarts it")]
    NotRestartable,
    /// The run has ended.
    #[error("the run has ended")]
    Ended,
    /// The run has not ended.
    #[error("the run has not ended")]
    NotEnded,
    /// Its tree is not proven empty, and the leak check needs its record.
    #[error(
        "processes that it left may be alive: its record stays until the host has booted again"
    )]
    MayLive,
}
