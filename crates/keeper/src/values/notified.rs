//! What the command of a run has said of the run.

use kennel_lifecycle::{Activity, StatusText};
use serde::{Deserialize, Serialize};

/// What a process of a run has said by `sd_notify(3)`, or one that is none of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notified {
    /// The attempt is ready; once.
    Ready,
    /// What it says that it is doing.
    Status(StatusText),
    /// What it does from here on.
    Activity(Activity),
    /// It was not heard: nothing shows that its sender is a process of the run. The first few of a run.
    Refused {
        /// Number of the sender; 0: not known.
        pid: i32,
        /// Its user.
        uid: u32,
        /// It had ended, so that nothing could be said of it any more.
        ended: bool,
    },
}
