//! A command beside the run's own, in the run's tree.

use kennel_lifecycle::{Exit, StartFailure};
use serde::{Deserialize, Serialize};

/// How a command beside the run's own ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelperEnd {
    /// It exited.
    Exited(Exit),
    /// It took too long and was ended, with every process of its session.
    TimedOut,
    /// It did not start.
    Failed(StartFailure),
    /// The run does not run any more, or has as many such commands as it may.
    Refused,
}
