//! Nodes of a database, their keepers and their leases.

use crate::{
    json,
    open::{REMOVE_LEFT_STOP, micros},
    sql::Sql,
};
use kennel_lifecycle::{
    HostIdentity, KeeperEpoch, NodeId, ProcessIdentity, RunId, StopOrder, Timestamp,
};
use std::time::Duration;

/// Description of the server at its start.
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
    /// Address at which it listens, as clients name it; empty: none.
    pub address: String,
    /// Runs of earlier keepers that this one holds.
    pub held: Vec<RunId>,
    /// The last known generation of the node: a restored store may have a lower one.
    pub above: i64,
    /// Duration of the lease that is acquired with the node.
    pub lease: Duration,
    /// An earlier keeper of the node that is verified to have exited: its lease counts no more.
    pub gone: Option<KeeperEpoch>,
    /// Start of the node's drain; absent: it is not draining.
    pub draining: Option<Timestamp>,
    /// Present time.
    pub now: Timestamp,
}

/// Nodes whose rows are removed, with their keepers, consumers and left stops. None of them has an open run, or a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRemoval {
    /// Those that have had no lease for this long.
    WithoutLeaseFor {
        /// Time since the end of the lease.
        time: Duration,
        /// The node of the server that asks, which stays.
        own: NodeId,
    },
    /// This one.
    Node(NodeId),
    /// This one, if it has given its lease up and no run, consumer or left stop refers to it.
    Unused(NodeId),
}

impl NodeRemoval {
    pub(crate) fn node(&self) -> NodeId {
        match self {
            Self::WithoutLeaseFor { own: node, .. } | Self::Node(node) | Self::Unused(node) => {
                *node
            }
        }
    }

    pub(crate) fn without_lease_for(&self) -> Duration {
        match self {
            Self::WithoutLeaseFor { time, .. } => *time,
            Self::Node(_) | Self::Unused(_) => Duration::ZERO,
        }
    }
}

/// A stop of a run whose node could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftStop {
    /// The run to stop.
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

    /// Makes the statement that leaves it, of which each kind of database has the text.
    pub(crate) fn leave(&self, statement: &str) -> Sql {
        let sql = self.of_stop(statement);
        sql.bind(self.reason.clone()).bind(self.asked.0)
    }

    /// Makes the statement that removes it.
    pub(crate) fn remove(&self) -> Sql {
        self.of_stop(REMOVE_LEFT_STOP)
    }

    fn of_stop(&self, statement: &str) -> Sql {
        let sql = Sql::new(statement).bind(self.run.to_string());
        sql.bind(self.node.to_string()).bind(self.grace_us)
    }
}

/// A node of this database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Node id.
    pub node: NodeId,
    /// Its name for people.
    pub name: String,
    /// Address at which its server listens; empty: not known.
    pub address: String,
    /// Time at which it acquired or renewed its lease.
    pub heard: Timestamp,
    /// Duration of the lease.
    pub lease: Duration,
    /// The keeper that has or had the lease.
    pub keeper_epoch: KeeperEpoch,
    /// Time at which an operator has forgotten it; absent: it was not, or is back.
    pub forgotten: Option<Timestamp>,
    /// Start of its drain, as of its last renewal; absent: it is not draining.
    pub draining: Option<Timestamp>,
    /// Present time, by the same clock: the database's.
    pub now: Timestamp,
}

impl NodeRow {
    /// Returns the expiry of its lease.
    pub fn until(&self) -> Timestamp {
        self.heard.plus(self.lease)
    }
}

/// A keeper that was recorded on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRow {
    /// Whether it has open rows; else the lease is its own.
    pub has_open: bool,
    /// Its epoch.
    pub keeper_epoch: KeeperEpoch,
    /// Its process.
    pub keeper: ProcessIdentity,
    /// Its host.
    pub host: HostIdentity,
}
