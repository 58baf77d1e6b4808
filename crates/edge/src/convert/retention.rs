//! Retention of ended runs' output, and its removals.

use super::time;
use crate::pb;
use kennel_lifecycle::{OutputRemoval, RemovalReason, RetentionLimits};

pub(crate) fn removal(removal: OutputRemoval) -> pb::OutputRemoval {
    use pb::OutputRemovalReason as Reason;
    let reason = match removal.reason {
        RemovalReason::OwnerRuns => Reason::OwnerRuns,
        RemovalReason::Age => Reason::Age,
        RemovalReason::NodeBytes => Reason::NodeBytes,
    };
    let [stdout_bytes, stderr_bytes] = removal.lens;
    pb::OutputRemoval {
        remove_time: Some(time::timestamp(removal.at)),
        reason: reason.into(),
        stdout_bytes,
        stderr_bytes,
    }
}

pub(crate) fn limits(limits: &RetentionLimits) -> pb::Retention {
    pb::Retention {
        runs_per_owner: limits.runs_per_owner,
        at_least: Some(time::duration(limits.at_least)),
        at_most: limits.at_most.map(time::duration),
        node_bytes: limits.node_bytes,
    }
}
