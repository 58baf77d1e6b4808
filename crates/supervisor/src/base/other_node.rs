//! The node of a run that another node has.

use kennel_lifecycle::{NodeId, Timestamp};
use kennel_store::NodeRow;

/// The node of a run that another node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Id of the node.
    pub node: NodeId,
    /// The node's name for people.
    pub name: String,
    /// Address of its server; empty: not known.
    pub address: String,
    /// Time at which the node acquired or renewed its lease, by the clock of the database; absent: never.
    pub last_heard: Option<Timestamp>,
    /// Time at which its lease ended; absent: it has one, or never had.
    pub unreachable_since: Option<Timestamp>,
    /// Time at which an operator forgot the node.
    pub forgotten: Option<Timestamp>,
    /// Since when it is drained, as of its last renewal.
    pub draining: Option<Timestamp>,
    /// Whether it has a lease.
    pub is_reachable: bool,
}

impl Elsewhere {
    /// Describes the node for people.
    pub(crate) fn described(&self) -> String {
        let Self {
            name,
            node,
            address,
            is_reachable,
            ..
        } = self;
        let heard = if *is_reachable {
            ""
        } else {
            "; the lease of that node has ended"
        };
        format!("{name} ({node}), which listens at {address}: ask there{heard}")
    }

    pub(crate) fn of(node: NodeId, nodes: &[NodeRow]) -> Self {
        let row = nodes.iter().find(|row| row.node == node);
        let is_reachable = row.is_some_and(|row| row.until() >= row.now);
        Self {
            node,
            name: row.map(|row| row.name.clone()).unwrap_or_default(),
            address: row.map(|row| row.address.clone()).unwrap_or_default(),
            last_heard: row.map(|row| row.heard),
            forgotten: row.and_then(|row| row.forgotten),
            draining: row.and_then(|row| row.draining),
            unreachable_since: row.map(NodeRow::until).filter(|_| !is_reachable),
            is_reachable,
        }
    }
}
