//! Errors about other nodes.

use super::{Fault, RETRY_NEXT_SERVER};
use crate::reason::Reason;
use kennel_lifecycle::RunId;
use kennel_supervisor::Elsewhere;
use tonic::Status;

/// Returns the status that sends the caller to the run's own node.
pub(super) fn elsewhere(run: RunId, elsewhere: &Elsewhere, text: String) -> Status {
    fault(Reason::RunOnOtherNode, text, elsewhere)
        .run(run)
        .precondition("NODE", elsewhere.address.as_str())
        .status()
}

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
    fault(Reason::NodeUnreachable, text, node)
}

/// Returns the status for a node that does not exist.
pub(crate) fn node_not_found(name: &str, why: &str) -> Status {
    let text = format!("there is no node {name:?}: {why}");
    Fault::new(Reason::NodeNotFound, text)
        .fact("node", name)
        .status()
}

/// Returns the status for a filter of another node's runs in a call that its node must answer itself.
pub(crate) fn node_of_call() -> Status {
    let why = "is not the node that the call names, which answers for its own runs";
    super::invalid(&[kennel_lifecycle::Violation::new("filter.node", why)])
}

/// Returns the status for a stop that is left for an unreachable node.
pub(super) fn queued(run: RunId, node: &Elsewhere, text: String) -> Status {
    fault(Reason::AbortQueued, text, node)
        .run(run)
        .precondition("NODE", node.address.as_str())
        .status()
}

/// Returns the status for a node with a lease, which is not forgotten.
pub(super) fn has_lease(node: &Elsewhere, text: String) -> Status {
    fault(Reason::NodeHasLease, text, node)
        .precondition("NODE_LEASE", node.node.to_string())
        .status()
}

fn fault(reason: Reason, text: String, node: &Elsewhere) -> Fault {
    Fault::new(reason, text)
        .fact("node_id", node.node.to_string())
        .fact("node_name", node.name.as_str())
        .fact("address", node.address.as_str())
        .fact("reachable", node.is_reachable.to_string())
}
