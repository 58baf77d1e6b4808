//! Retention of ended runs' output, and its removals.

use super::time;
use crate::{enums::mapped, pb};
use kennel_lifecycle::{OutputRemoval, RemovalReason, RetentionLimits, RowLimits};

pub(crate) fn removal(removal: OutputRemoval) -> pb::OutputRemoval {
    let [stdout_bytes, stderr_bytes] = removal.lens;
    pb::OutputRemoval {
        remove_time: Some(time::timestamp(removal.at)),
        reason: reason(removal.reason).into(),
        stdout_bytes,
        stderr_bytes,
    }
}

mapped! { fn reason(RemovalReason) -> OutputRemovalReason { OwnerRuns Age NodeBytes } }

pub(crate) fn limits(limits: &RetentionLimits, rows: &RowLimits) -> pb::Retention {
    pb::Retention {
        runs_per_owner: limits.runs_per_owner,
        at_least: Some(time::duration(limits.at_least)),
        at_most: limits.at_most.map(time::duration),
        node_bytes: limits.node_bytes,
        records_per_owner: rows.per_owner,
        records_at_least: Some(time::duration(rows.at_least)),
        records_at_most: rows.at_most.map(time::duration),
        id_age_max: Some(time::duration(rows.ids)),
    }
}
