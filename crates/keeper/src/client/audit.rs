//! Requests of a leak check to the keeper.

use super::{ClientError, KeeperClient, link::ask};
use crate::{
    audit::{Belongings, Described, HostScan},
    values::KeeperInventory,
    wire::{Answer, ToKeeper},
};
use kennel_lifecycle::{CgroupIdentity, RunId};

/// Most processes and most directories that [`Kernel::reap`](super::Kernel::reap) takes at once.
pub const REAPED_MAX: usize = 2048;

/// Input of a leak check, except for the store.
#[derive(Clone, Debug)]
pub struct LeakScan {
    /// The host's processes, and what Kennel has left on it.
    pub scan: HostScan,
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

impl KeeperClient {
    /// Returns what only the keeper knows of its processes and sockets. Changes nothing.
    pub async fn inventory(&self) -> Result<KeeperInventory, ClientError> {
        ask!(
            self.link.ask(None, ToKeeper::Inventory {}),
            Answer::Inventory(inventory) => inventory
        )
    }
}
