//! Nodes of a database, their keepers and their leases.

use crate::{json, open::micros};
use kennel_lifecycle::{
    HostIdentity, KeeperEpoch, NodeId, ProcessIdentity, RunId, StopOrder, Timestamp,
};
use std::time::Duration;

/// What the server says of itself when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// This node.
    pub node: NodeId,
    /// Name for people, such as the host name.
    pub node_name: String,
    /// The keeper.
    pub keeper_epoch: KeeperEpoch,
    /// The keeper as a process.
    pub keeper: ProcessIdentity,
    /// Boot and pid namespace.
    pub host: HostIdentity,
    /// Where it listens, as clients name it; empty: nowhere.
    pub address: String,
    /// Runs of earlier keepers that this one holds.
    pub held: Vec<RunId>,
    /// The last generation of the node that is known: what a store says that has gone back may lie below it.
    pub above: i64,
    /// How long the lease lasts that is taken with the node.
    pub lease: Duration,
    /// An earlier keeper of the node that has certainly ended: its lease counts no more.
    pub gone: Option<KeeperEpoch>,
    /// Since when the node is drained; absent: it is not.
    pub draining: Option<Timestamp>,
    /// Now.
    pub now: Timestamp,
}

/// A stop of a run whose node could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftStop {
    /// Which run.
    pub run: RunId,
    /// The first caller, and the shortest grace of all calls.
    pub order: StopOrder,
    /// Time of the first call.
    pub asked: Timestamp,
}

/// A row of `left_stops`, as values of its columns.
#[derive(Debug)]
pub(crate) struct StopWrite {
    pub(crate) run: RunId,
    pub(crate) node: NodeId,
    pub(crate) grace_us: i64,
    pub(crate) reason: String,
    pub(crate) asked: Timestamp,
}

impl StopWrite {
    pub(crate) fn new(node: NodeId, stop: &LeftStop) -> Self {
        Self {
            run: stop.run,
            node,
            grace_us: micros(stop.order.grace),
            reason: json::write(&stop.order.reason),
            asked: stop.asked,
        }
    }
}

/// A node of this database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Which.
    pub node: NodeId,
    /// Its name for people.
    pub name: String,
    /// Where its server listens; empty: not known.
    pub address: String,
    /// When it took or renewed its lease.
    pub heard: Timestamp,
    /// How long that lasts.
    pub lease: Duration,
    /// When an operator has forgotten it; absent: it was not, or is back.
    pub forgotten: Option<Timestamp>,
    /// Since when it is drained, as of its last renewal; absent: it is not.
    pub draining: Option<Timestamp>,
    /// The time now, by the same clock: the database's.
    pub now: Timestamp,
}

impl NodeRow {
    /// When its lease ends, or has ended.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.heard.plus(self.lease)
    }
}

/// A keeper that was recorded on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRow {
    /// Whether it has open rows; else the lease is its own.
    pub has_open: bool,
    /// Its name.
    pub keeper_epoch: KeeperEpoch,
    /// It as a process.
    pub keeper: ProcessIdentity,
    /// Where.
    pub host: HostIdentity,
}
