//! Where a run of another node is.

use kennel_lifecycle::{NodeId, Timestamp};
use kennel_store::NodeRow;
use std::time::Duration;

/// A node that was not heard of for longer is called unreachable: it has missed three beats.
const HEARD_WITHIN: Duration = Duration::from_secs(35);

/// Where a run of another node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Its node.
    pub node: NodeId,
    /// The node's name for people.
    pub name: String,
    /// Where its server listens; empty: not known.
    pub address: String,
    /// When it was last heard of, by the clock of the database; absent: never.
    pub last_heard: Option<Timestamp>,
    /// Whether that was lately.
    pub is_reachable: bool,
}

impl Elsewhere {
    /// For people.
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
            "; that node was not heard of lately"
        };
        format!("{name} ({node}), which listens at {address}: ask there{heard}")
    }

    pub(crate) fn of(node: NodeId, nodes: &[NodeRow]) -> Self {
        let row = nodes.iter().find(|row| row.node == node);
        Self {
            node,
            name: row.map(|row| row.name.clone()).unwrap_or_default(),
            address: row.map(|row| row.address.clone()).unwrap_or_default(),
            last_heard: row.map(|row| row.heard),
            is_reachable: row.is_some_and(|row| row.heard.plus(HEARD_WITHIN) >= row.now),
        }
    }
}
