//! Errors about other nodes.

use super::{Fault, RETRY_NEXT_SERVER};
use crate::reason::Reason;
use kennel_supervisor::Elsewhere;
use tonic::Status;

/// Returns the status for a node that cannot be called. Without a retry delay: a client that waits gives up.
pub(crate) fn node_unreachable(node: &Elsewhere, why: &str) -> Status {
    unreachable(node, why).status()
}

/// Returns the status of a call whose connection to the node broke: that node's next server may answer.
pub(crate) fn node_lost(node: &Elsewhere, why: &str) -> Status {
    unreachable(node, why).retry(RETRY_NEXT_SERVER).status()
}

fn unreachable(node: &Elsewhere, why: &str) -> Fault {
    let Elsewhere { name, address, .. } = node;
    let text = format!(
        "node {name} ({}) at {address} cannot be reached: {why}",
        node.node
    );
    of_node(Reason::NodeUnreachable, text, node)
}

/// Returns the status for a filter of another node's runs in a call that its node must answer itself.
pub(crate) fn node_of_call() -> Status {
    let why = "is not the node that the call names, which answers for its own runs";
    super::invalid(&[kennel_lifecycle::Violation::new("filter.node", why)])
}

pub(super) fn of_node(reason: Reason, text: String, node: &Elsewhere) -> Fault {
    Fault::new(reason, text)
        .fact("node_id", &node.node)
        .fact("node_name", &node.name)
        .fact("address", &node.address)
        .fact("reachable", &node.is_reachable)
}
