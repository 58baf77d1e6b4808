//! State that a shim stores of a run for the next keeper, and its message to that.

use super::{policy::WirePolicy, versions::Versions};
use crate::values::Extended;
use kennel_lifecycle::{CgroupIdentity, Countdown, Held, HostIdentity, ProcessIdentity};
use serde::{Deserialize, Serialize};

/// Facts that a shim cannot know by itself: passed to it with the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireKeepsake {
    pub(crate) held: Held,
    pub(crate) host: HostIdentity,
}

/// State of a keeper's counters, sent to the shim after each change. Times are of `CLOCK_BOOTTIME`, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireMemory {
    /// Time left of the run's limit.
    pub(crate) max_runtime: Option<Countdown>,
    /// Time since which every task is stopped.
    pub(crate) paused_since: Option<u64>,
    /// Whether the last pause has reached its maximum.
    pub(crate) pause_expired: bool,
    /// Notices of the command to its notification socket.
    pub(crate) notices: WireNotices,
    /// Totals of the extensions of time limits.
    pub(crate) extended: Extended,
}

/// Notices of a command by `sd_notify(3)`, as far as time limits depend on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireNotices {
    /// Whether it is ready.
    pub(crate) ready: bool,
    /// The time until then.
    pub(crate) start: Option<Countdown>,
    /// Time until which the command has extended the limits that the server counts.
    pub(crate) until: Option<u64>,
    /// Whether it is stopping, and sends no watchdog signs any more.
    pub(crate) stopping: bool,
}

/// A run without a keeper, for the next one. Its events follow, as they would have been reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireAdoptable {
    /// Of the shim, which may be of another version than the keeper.
    pub(crate) versions: Versions,
    pub(crate) command: ProcessIdentity,
    pub(crate) shim: ProcessIdentity,
    /// The first process of its private pid namespace.
    pub(crate) init: Option<i32>,
    pub(crate) cgroup: Option<CgroupIdentity>,
    pub(crate) policy: WirePolicy,
    pub(crate) keepsake: WireKeepsake,
    pub(crate) memory: WireMemory,
    /// Time of the leader's exit, on `CLOCK_BOOTTIME`.
    pub(crate) leader_left_at: Option<u64>,
    /// Time since which the shim knows that the tree is to end, on `CLOCK_BOOTTIME`.
    pub(crate) stopping_since: Option<u64>,
    /// Whether the write end of standard input is among the descriptors.
    pub(crate) input: bool,
    /// Whether the notification socket of its processes is among the descriptors.
    pub(crate) notify: bool,
}
