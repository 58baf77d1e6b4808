//! A run of another node.

use super::{Facts, Fault};
use crate::reason::Reason;
use kennel_lifecycle::RunId;
use kennel_supervisor::Elsewhere;
use tonic::{Code, Status};

/// The caller is to go to the run's own node.
pub(super) fn elsewhere(run: RunId, elsewhere: &Elsewhere, text: String) -> Status {
    let facts = Facts::run(run)
        .with("node_id", elsewhere.node.to_string())
        .with("node_name", elsewhere.name.as_str())
        .with("address", elsewhere.address.as_str())
        .with("reachable", elsewhere.is_reachable.to_string());
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
