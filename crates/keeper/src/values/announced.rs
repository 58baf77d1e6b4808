//! Messages that the keeper sends unasked: its hello, and its events.

use super::{Fact, FormerServer, Levels, StraySignal, Upgrade, UpgradeRefusal};
use kennel_lifecycle::{
    HostIdentity, KeeperEpoch, LimitPowers, ProcessIdentity, RunId, Timestamp, named,
};
use kennel_linux::capability::{Capability, CapabilityName};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A report that the keeper sends unasked. Reports of one run come in the order of the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperReport {
    /// Id of the run.
    pub run: RunId,
    /// Time of the event, by the wall clock of keeper or shim.
    pub at: Timestamp,
    /// Content of the report.
    pub fact: Fact,
}

named! {
    /// A reader of messages; its name is the one in logs too.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum SkippedBy {
        /// The keeper.
        #[default]
        Keeper = "keeper",
        /// A shim.
        Shim = "shim",
        /// The server.
        Server = "server",
    }
}

/// An event of the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeeperEvent {
    /// About one run. A message of its own.
    #[serde(skip)]
    Report(KeeperReport),
    /// SIGTERM or SIGINT was received: stop all runs by the shutdown ladder, commit, exit with code 0.
    Shutdown {},
    /// The signal was received again: skip the graces.
    ShutdownNow {},
    /// Another server is to replace this one: finish pending work, exit with code 75.
    Leave {},
    /// A signal requested an upgrade, which was refused.
    #[serde(with = "crate::object::refusal")]
    NotUpgraded(UpgradeRefusal),
    /// The keeper received a signal that means nothing to it, and ignored it.
    Stray(StraySignal),
    /// The shim of a run that the hello has called late has reconnected:
    /// [`take_held`](crate::client::Kernel::take_held) returns the run. Reports of its past follow.
    #[serde(skip)]
    ShimReconnected(RunId),
    /// The shim of such a run is gone. A message of its own.
    #[serde(skip)]
    ShimGone(RunId),
    /// A process does not know a kind of message, or a value in one, and has passed over it; each once for a server.
    Skipped {
        /// The reader.
        #[serde(deserialize_with = "kennel_lifecycle::known_or_default")]
        reader: SkippedBy,
        /// Name of the kind or value.
        name: String,
    },
    /// A message about this run was critical, and had this name that only a later version knows. A message of its own.
    #[serde(skip)]
    Pinned {
        /// Id of the run.
        run: RunId,
        /// Name of the kind or value.
        by: String,
    },
    /// The keeper is gone (end of file): drain, commit, exit with code 70.
    #[serde(skip)]
    Gone,
}

/// Description of the keeper and its host; sent once, at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperHello {
    /// Levels that the keeper speaks.
    pub speaks: Levels,
    /// Kinds of messages that it takes.
    pub knows: Vec<String>,
    /// Epoch of this keeper.
    pub epoch: KeeperEpoch,
    /// Version of the keeper, which is that of the binary it was started from.
    pub version: String,
    /// Process of this keeper.
    pub keeper: ProcessIdentity,
    /// Boot and pid namespace.
    pub host: HostIdentity,
    /// Directory under which runs get their control groups; absent: none can be made, and why.
    pub cgroup_base: Result<PathBuf, String>,
    /// Whether pidfs inodes can be recorded.
    pub pidfs: bool,
    /// Resources for which runs can have limits.
    pub powers: LimitPowers,
    /// Version of the kernel, as in uname(2).
    pub kernel: String,
    /// Capabilities of the host, found by trying them.
    #[serde(deserialize_with = "kennel_lifecycle::known")]
    pub capabilities: Vec<Capability>,
    /// Runs of an earlier keeper whose shims are alive and have not reconnected yet: an event follows for each.
    pub late: Vec<RunId>,
    /// Number of servers that this keeper has had before this one.
    pub restarts: u32,
    /// End of the last of them.
    #[serde(deserialize_with = "kennel_lifecycle::known_or_default")]
    pub former: Option<FormerServer>,
    /// The last upgrade for which a server has left, and its result, if this server serves.
    #[serde(deserialize_with = "kennel_lifecycle::known_or_default")]
    pub upgrade: Option<Upgrade>,
}

impl KeeperHello {
    /// Adds the capability that follows from the others: whether detached processes stay known.
    pub(crate) fn judge_detached(&mut self) {
        let known = match &self.cgroup_base {
            Err(why) if !self.adopts_as_init() => {
                let text = "no control group outlives the shim of a detached process, and the keeper is not process 1";
                Err(format!("{text}: {why}"))
            }
            Ok(_) | Err(_) => Ok(()),
        };
        let known = Capability::tried(CapabilityName::DetachedIdentity, known);
        self.capabilities.push(known);
    }

    /// Whether the keeper is process 1, so that it adopts every orphan of its pid namespace. Where runs have control
    /// groups, these distinguish its own from others.
    pub fn adopts_as_init(&self) -> bool {
        self.keeper.pid == 1 && self.cgroup_base.is_err()
    }

    /// Returns why this host lacks a capability; absent: it has it.
    pub fn lacks(&self, name: CapabilityName) -> Option<&str> {
        let found = self.capabilities.iter().find(|c| c.name == name);
        found.map_or(Some("it was not tried out"), |c| c.missing.as_deref())
    }
}
