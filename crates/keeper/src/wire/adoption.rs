//! What a shim keeps of a run for the next keeper, and tells it.

use kennel_lifecycle::{CgroupIdentity, Held, HostIdentity, Policy, ProcessIdentity};
use serde::{Deserialize, Serialize};

/// What a shim cannot know by itself: given to it with the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireKeepsake {
    pub(crate) held: Held,
    pub(crate) host: HostIdentity,
}

/// What a keeper has counted, told to the shim each time it changes. Times are of `CLOCK_BOOTTIME`, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireMemory {
    /// What was left of the time that the run may take when it last began to be counted, and since when it is.
    pub(crate) max_runtime: Option<(u64, Option<u64>)>,
    /// Since when every task stands still.
    pub(crate) paused_since: Option<u64>,
    /// The last pause has lasted for as long as it may.
    pub(crate) pause_expired: bool,
    /// What the command has sent to its notification socket.
    pub(crate) notices: WireNotices,
}

/// What a command has said of itself by `sd_notify(3)`, as far as limits of time depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireNotices {
    /// It is ready.
    pub(crate) ready: bool,
    /// The same as `max_runtime` for the time until it is.
    pub(crate) start: Option<(u64, Option<u64>)>,
    /// By how much it has extended that.
    pub(crate) extended_ms: u64,
    /// It is stopping, and sends no signs that it lives any more.
    pub(crate) stopping: bool,
}

/// A run without a keeper, for the next one. What has happened to it follows, as it would have been told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireAdoptable {
    pub(crate) run: u128,
    pub(crate) command: ProcessIdentity,
    pub(crate) shim: ProcessIdentity,
    /// The first process of its private pid namespace.
    pub(crate) init: Option<i32>,
    pub(crate) cgroup: Option<CgroupIdentity>,
    pub(crate) policy: Policy,
    pub(crate) keepsake: WireKeepsake,
    pub(crate) memory: WireMemory,
    /// When the leader ended, on `CLOCK_BOOTTIME`.
    pub(crate) leader_left_at: Option<u64>,
    /// Since when the shim knows that the tree is to end, on `CLOCK_BOOTTIME`.
    pub(crate) stopping_since: Option<u64>,
    /// Whether the write end of standard input is among the descriptors.
    pub(crate) input: bool,
    /// Whether the socket at which its processes say something of it is.
    pub(crate) notify: bool,
}
