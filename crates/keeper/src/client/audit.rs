//! Requests of a leak check to the keeper.

use super::{ClientError, KeeperClient};
use crate::{
    audit::{Belongings, Described, Scan},
    wire::{Answer, ToKeeper},
};
use kennel_lifecycle::{CgroupIdentity, RunId, Signal};
use serde::{Deserialize, Serialize};

/// Most processes and most directories that [`Kernel::reap`](super::Kernel::reap) takes at once.
pub const REAPED_MAX: usize = 2048;

/// Processes and sockets that only the keeper knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperInventory {
    /// Pid of the server.
    pub server: i32,
    /// Shims without work.
    pub spare_shims: Vec<i32>,
    /// Shims with their runs.
    pub shims: Vec<(i32, RunId)>,
    /// Listening sockets, and the state of their paths.
    pub sockets: Vec<(String, SocketSeen)>,
    /// Number of descriptors that the keeper has open; absent: the kernel does not report it (before Linux 6.2).
    pub fds: Option<u64>,
}

/// State of the path of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketSeen {
    /// The socket is there.
    InPlace,
    /// Nothing is there: no new client can connect.
    Missing,
    /// Another file is there.
    Replaced,
}

/// Input of a leak check, except for the store.
#[derive(Clone, Debug)]
pub struct Look {
    /// The host's processes, and what Kennel has left on it.
    pub scan: Scan,
    /// Inventory of the keeper after the scan.
    pub inventory: KeeperInventory,
    /// Resources of the service itself.
    pub belongings: Belongings,
}

/// Result of a second check.
#[derive(Clone, Debug, Default)]
pub struct SecondLook {
    /// Each requested process; absent: it is gone.
    pub processes: Vec<Option<Described>>,
    /// Directories that still exist and are empty.
    pub directories: Vec<(RunId, CgroupIdentity)>,
    /// Inventory of the keeper after that: a shim may have changed its run since the first scan.
    pub inventory: KeeperInventory,
}

/// Result for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The process ended after this signal.
    #[serde(with = "crate::object::signal")]
    Ended(Signal),
    /// The process had ended before the first signal.
    #[serde(with = "crate::object::empty")]
    Gone,
    /// The process is not the recorded one, or is part of a live run: nothing was sent.
    #[serde(with = "crate::object::empty")]
    Changed,
    /// A signal could not be sent: errno(3).
    #[serde(with = "crate::object::errno")]
    Failed(i32),
    /// The process was still alive two seconds after SIGKILL.
    #[serde(with = "crate::object::empty")]
    Survived,
}

/// Result of a reap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaped {
    /// Result for each process, in the order of the request.
    pub fates: Vec<Fate>,
    /// Number of directories that were removed.
    pub directories_removed: u32,
}

impl KeeperClient {
    /// Returns what only the keeper knows of its processes and sockets. Changes nothing.
    pub async fn inventory(&self) -> Result<KeeperInventory, ClientError> {
        let asked = |seq| ToKeeper::Inventory { seq };
        match self.link.ask(asked, Vec::new()).await? {
            (Answer::Inventory(inventory), _) => Ok(inventory),
            (Answer::Exhausted(what), _) => Err(ClientError::Exhausted(what)),
            _ => Err(ClientError::KeeperGone),
        }
    }
}
