//! The node of a run that another node has.

use kennel_lifecycle::{NodeId, Timestamp};
use kennel_store::NodeRow;

/// The node of a run that another node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Id of the node.
    pub node: NodeId,
    /// The node's name for people; empty: its row was removed.
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
    /// Of the node of a run: whether its present keeper has taken up or judged the run.
    pub has_run: bool,
}

impl Elsewhere {
    /// Describes the node for people, and where to ask.
    pub(crate) fn described(&self) -> String {
        let Self {
            name,
            node,
            address,
            is_reachable,
            ..
        } = self;
        if name.is_empty() {
            // Each node row has a name.
            return format!(
                "{node}, which was removed: its records can be read, its output once a server is started on its data directory"
            );
        }
        let heard = if *is_reachable {
            ""
        } else {
            "; the lease of that node has ended"
        };
        format!("{name} ({node}), which listens at {address}: ask there{heard}")
    }

    /// Returns the node by its row; one without a row was removed.
    pub(crate) fn of(node: NodeId, nodes: &[NodeRow]) -> Self {
        let row = nodes.iter().find(|row| row.node == node);
        row.cloned().map_or_else(|| Self::unknown(node), Self::from)
    }

    /// Returns a node of which no more than its id is known.
    pub fn unknown(node: NodeId) -> Self {
        Self {
            node,
            name: String::new(),
            address: String::new(),
            last_heard: None,
            unreachable_since: None,
            forgotten: None,
            draining: None,
            is_reachable: false,
            has_run: true,
        }
    }
}

impl From<NodeRow> for Elsewhere {
    fn from(row: NodeRow) -> Self {
        let is_reachable = row.until() >= row.now;
        Self {
            node: row.node,
            last_heard: Some(row.heard),
            unreachable_since: Some(row.until()).filter(|_| !is_reachable),
            forgotten: row.forgotten,
            draining: row.draining,
            is_reachable,
            has_run: true,
            name: row.name,
            address: row.address,
        }
    }
}
