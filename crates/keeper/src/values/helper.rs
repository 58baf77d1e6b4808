//! A helper command, which runs in the run's tree beside the run's own.

use kennel_lifecycle::{Exit, StartFailure};
use serde::{Deserialize, Serialize};

/// End of a helper command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelperEnd {
    /// The command exited.
    Exited(Exit),
    /// The command took too long and was ended, with every process of its session.
    TimedOut,
    /// The command did not start.
    Failed(StartFailure),
    /// The run is not running any more, or has the maximum of helper commands.
    Refused,
}
