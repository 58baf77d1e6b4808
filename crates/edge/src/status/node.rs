//! Errors about other nodes.

use super::{Facts, Fault, RETRY_NEXT_SERVER};
use crate::reason::Reason;
use kennel_lifecycle::RunId;
use kennel_supervisor::Elsewhere;
use tonic::{Code, Status};

/// Returns the status that sends the caller to the run's own node.
pub(super) fn elsewhere(run: RunId, elsewhere: &Elsewhere, text: String) -> Status {
    let facts = facts(Facts::run(run), elsewhere);
    let subject = elsewhere.address.as_str();
    Fault::new(
        Code::FailedPrecondition,
        Reason::RunOnOtherNode,
        text,
        facts,
    )
    .precondition("NODE", subject)
    .status()
}

/// Returns the status for a node that cannot be called.
pub(crate) fn node_unreachable(node: &Elsewhere, why: &str) -> Status {
    let Elsewhere { name, address, .. } = node;
    let text = format!(
        "node {name} ({}) at {address} cannot be reached: {why}",
        node.node
    );
    let facts = facts(Facts::default(), node);
    Fault::new(Code::Unavailable, Reason::NodeUnreachable, text, facts)
        .retry(RETRY_NEXT_SERVER)
        .status()
}

/// Returns the status for a node that does not exist.
pub(crate) fn node_not_found(name: &str, why: &str) -> Status {
    let facts = Facts::default().with("node", name);
    let text = format!("there is no node {name:?}: {why}");
    Fault::new(Code::NotFound, Reason::NodeNotFound, text, facts).status()
}

/// Returns the status for a filter of another node's runs in a call that its node must answer itself.
pub(crate) fn node_of_call() -> Status {
    let why = "is not the node that the call names, which answers for its own runs";
    super::invalid(&[kennel_lifecycle::Violation::new("filter.node", why)])
}

/// Returns the status for a stop that is left for an unreachable node.
pub(super) fn queued(run: RunId, node: &Elsewhere, text: String) -> Status {
    let facts = facts(Facts::run(run), node);
    Fault::new(Code::FailedPrecondition, Reason::AbortQueued, text, facts)
        .precondition("NODE", node.address.as_str())
        .status()
}

/// Returns the status for a node with a lease, which is not forgotten.
pub(super) fn has_lease(node: &Elsewhere, text: String) -> Status {
    let facts = facts(Facts::default(), node);
    Fault::new(Code::FailedPrecondition, Reason::NodeHasLease, text, facts)
        .precondition("NODE_LEASE", node.node.to_string())
        .status()
}

fn facts(facts: Facts, node: &Elsewhere) -> Facts {
    facts
        .with("node_id", node.node.to_string())
        .with("node_name", node.name.as_str())
        .with("address", node.address.as_str())
        .with("reachable", node.is_reachable.to_string())
}
