//! Notices of a run's command.

use kennel_lifecycle::{Activity, StatusText};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A notice by `sd_notify(3)` of a process of a run, or of an unrelated one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notified {
    /// The attempt is ready; once.
    Ready,
    /// The command reports this status.
    Status(StatusText),
    /// The command has this activity from here on.
    Activity(Activity),
    /// The notice was refused: nothing shows that its sender is a process of the run. Only the first few of a run.
    Refused {
        /// Process id of the sender; 0: not known.
        pid: i32,
        /// User id of the sender.
        uid: u32,
        /// Whether the sender had exited, so that it could not be identified any more.
        ended: bool,
    },
    /// The command extends its limits of time: at least so long from the time of this report. It is reported where the
    /// server counts one.
    Extends(Duration),
}
