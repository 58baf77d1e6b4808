//! Requests of a leak check to the keeper.

use super::{ClientError, KEEPER_ANSWER_MAX, KeeperClient, Victim, listing};
use crate::{
    audit::{self, Belongings, Described, Installation, Scan},
    wire::{
        self, Answer, ToKeeper,
        audit::{AUDIT_BYTES_MAX, VICTIMS_MAX, WireVictims},
    },
};
use kennel_lifecycle::{CgroupIdentity, ProcessIdentity, RunId, Signal, ladder::StopPlan};
use kennel_linux::memfd;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Most processes and most directories that [`KeeperClient::reap`] takes at once.
pub const REAPED_MAX: usize = VICTIMS_MAX / 2;

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
pub enum Fate {
    /// The process ended after this signal.
    Ended(Signal),
    /// The process had ended before the first signal.
    Gone,
    /// The process is not the recorded one, or is part of a live run: nothing was sent.
    Changed,
    /// A signal could not be sent: errno(3).
    Failed(i32),
    /// The process was still alive two seconds after SIGKILL.
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
    /// Scans all processes of the host, then asks the keeper what it knows of them. Signals no process.
    pub async fn audit(
        &self,
        installation: Installation,
        data_dir: PathBuf,
    ) -> Result<Look, ClientError> {
        let looking = tokio::task::spawn_blocking(move || {
            let scan = audit::scan(&installation);
            scan.map(|scan| (scan, audit::belongings(&data_dir, installation.keeper)))
        });
        let looked = looking.await.map_err(|_| ClientError::KeeperGone)?;
        let (scan, belongings) = looked.map_err(|e| ClientError::Exhausted(e.to_string()))?;
        Ok(Look {
            scan,
            inventory: self.inventory().await?,
            belongings,
        })
    }

    /// Checks findings again, describes them further, and asks the keeper again.
    pub async fn look_again(
        &self,
        processes: Vec<ProcessIdentity>,
        directories: Vec<(RunId, CgroupIdentity)>,
    ) -> Result<SecondLook, ClientError> {
        let looking = tokio::task::spawn_blocking(move || {
            (audit::describe(&processes), audit::still_empty(directories))
        });
        let (processes, directories) = looking.await.map_err(|_| ClientError::KeeperGone)?;
        Ok(SecondLook {
            processes,
            directories,
            inventory: self.inventory().await?,
        })
    }

    /// Returns what only the keeper knows of its processes and sockets. Changes nothing.
    pub async fn inventory(&self) -> Result<KeeperInventory, ClientError> {
        let asked = |seq| ToKeeper::Inventory { seq };
        match self.link.ask(asked, Vec::new()).await? {
            (Answer::Inventory, fds) => listing::read_up_to(fds, AUDIT_BYTES_MAX),
            (Answer::Exhausted(what), _) => Err(ClientError::Exhausted(what)),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// Ends these processes by the plan, each verified at each signal, and removes these directories where they are
    /// empty; at most [`REAPED_MAX`] of each. Answers when all have ended, or two seconds after SIGKILL.
    pub async fn reap(
        &self,
        victims: &[Victim],
        directories: &[CgroupIdentity],
        plan: &StopPlan,
    ) -> Result<Reaped, ClientError> {
        let order = WireVictims {
            victims: victims.iter().take(REAPED_MAX).cloned().collect(),
            directories: directories.iter().take(REAPED_MAX).cloned().collect(),
        };
        let file = wire::encode(&order).and_then(|bytes| memfd::sealed("kennel-reap", &bytes));
        let file = file.map_err(|error| ClientError::Exhausted(error.to_string()))?;
        let wait = KEEPER_ANSWER_MAX.saturating_add(plan.kill_after);
        let plan = plan.clone();
        let asked = |seq| ToKeeper::Reap { seq, plan };
        match self.link.ask_for(asked, vec![file], wait).await? {
            (Answer::Reaped, fds) => listing::read_up_to(fds, AUDIT_BYTES_MAX),
            (Answer::Exhausted(what), _) => Err(ClientError::Exhausted(what)),
            _ => Err(ClientError::KeeperGone),
        }
    }
}
