//! What a change writes over a row, on which condition, and the positions that the database gives.

use crate::record::{COLUMNS, Part};

/// Query for the age of the newest run.
macro_rules! newest_age {
    () => {
        "SELECT COALESCE(MAX(age), 0) AS newest FROM runs"
    };
}
pub(crate) use newest_age;

/// The age of a row that an earlier life of the database had: as it was there, where no other row has it, else this much
/// above the newest. `w` is the row.
macro_rules! age_before {
    ($above:literal) => {
        concat!(
            "CASE WHEN w.age > 0 AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.age = w.age) THEN w.age ELSE ",
            $above,
            " + (",
            newest_age!(),
            ") END"
        )
    };
}
pub(crate) use age_before;

/// The name and the key of a row that is written again, or that ends without having been written: nothing keeps it out of
/// the record, and a run that took them meanwhile has them. `w` is the row.
pub(crate) const FREE_NAME: &str = "CASE WHEN w.end_reason IS NOT NULL OR NOT EXISTS (SELECT 1 FROM runs r \
    WHERE r.owner = w.owner AND r.name = w.name AND r.end_reason IS NULL) THEN w.name END";
pub(crate) const FREE_KEY: &str = "CASE WHEN NOT EXISTS (SELECT 1 FROM runs r \
    WHERE r.owner = w.owner AND r.request_key = w.request_key) THEN w.request_key END";

/// Query for the newest end of node `$node` that has output: its index is read at its end.
macro_rules! newest_output {
    ($node:literal) => {
        concat!(
            "(SELECT COALESCE(MAX(o.output_age), 0) FROM runs o WHERE o.node = ",
            $node,
            " AND o.output_age IS NOT NULL AND o.output_removed_us IS NULL)"
        )
    };
}
pub(crate) use newest_output;

/// Columns that a closing writes over an open row. Earlier known times stay where the closing knows none; those of an
/// earlier attempt do not.
pub(crate) const CLOSING_SET: &str = "seq = runs.seq + 1, state = excluded.state, attempt = excluded.attempt, end_reason = excluded.end_reason, \
    end_detail = excluded.end_detail, exit_kind = excluded.exit_kind, exit_value = excluded.exit_value, \
    tree_verdict = excluded.tree_verdict, tree_detail = excluded.tree_detail, \
    certificate_detail = excluded.certificate_detail, \
    streams_end = excluded.streams_end, \
    started_us = CASE WHEN excluded.attempt = runs.attempt \
        THEN COALESCE(excluded.started_us, runs.started_us) ELSE excluded.started_us END, \
    leader_exited_us = CASE WHEN excluded.attempt = runs.attempt \
        THEN COALESCE(excluded.leader_exited_us, runs.leader_exited_us) ELSE excluded.leader_exited_us END, \
    streams_closed_us = CASE WHEN excluded.attempt = runs.attempt \
        THEN COALESCE(excluded.streams_closed_us, runs.streams_closed_us) ELSE excluded.streams_closed_us END, \
    tree_empty_us = CASE WHEN excluded.attempt = runs.attempt \
        THEN COALESCE(excluded.tree_empty_us, runs.tree_empty_us) ELSE excluded.tree_empty_us END, \
    ended_us = excluded.ended_us, output_age = excluded.output_age, next_restart_us = NULL, entries = excluded.entries";

/// Columns that the begin of an attempt writes over a row that waits for it; `w` is the row of the attempt.
pub(crate) const BEGINNING_SET: &str = "seq = runs.seq + 1, state = 'starting', attempt = w.attempt, keeper_epoch = w.keeper_epoch, \
    process_pid = w.process_pid, process_group_id = w.process_group_id, session_id = w.session_id, \
    start_ticks = w.start_ticks, pidfs_handle = w.pidfs_handle, boot_id = w.boot_id, pidns_inode = w.pidns_inode, \
    pidns_init_start_ticks = w.pidns_init_start_ticks, \
    cgroup_path = w.cgroup_path, cgroup_inode = w.cgroup_inode, containment_detail = w.containment_detail, \
    shim_pid = w.shim_pid, shim_process_group_id = w.shim_process_group_id, shim_session_id = w.shim_session_id, \
    shim_start_ticks = w.shim_start_ticks, shim_pidfs_handle = w.shim_pidfs_handle, \
    started_us = NULL, leader_exited_us = NULL, streams_closed_us = NULL, tree_empty_us = NULL, \
    restarts = w.restarts, next_restart_us = NULL";

/// Condition on the row: it waits for exactly this attempt (INV-20).
pub(crate) const BEGINNING_WHERE: &str = "runs.run_id = w.run_id AND runs.node = w.node \
    AND runs.end_reason IS NULL AND runs.state = 'backoff' AND runs.desired = 'run' \
    AND runs.attempt = w.attempt - 1";

/// Columns that the end of an attempt writes; `w` is the row as it is then.
pub(crate) const RESTING_SET: &str = "seq = runs.seq + 1, state = 'backoff', attempt = w.attempt, \
    started_us = w.started_us, leader_exited_us = w.leader_exited_us, \
    streams_closed_us = w.streams_closed_us, tree_empty_us = w.tree_empty_us, \
    restarts = w.restarts, next_restart_us = w.next_restart_us, attempts_detail = w.attempts_detail";

/// Condition on the row: it is of the attempt, or waited for an attempt that was not begun. A stop order in the row
/// stays.
pub(crate) const RESTING_WHERE: &str = "runs.run_id = w.run_id AND runs.node = w.node \
    AND runs.end_reason IS NULL \
    AND (runs.attempt = w.attempt OR (runs.attempt = w.attempt - 1 AND runs.state = 'backoff'))";

/// Condition on the row that a mending overwrites: it is open, or another keeper of its node, which could not see the
/// run, has closed it as lost, and the run is open.
pub(crate) const MENDING_WHERE: &str = "runs.end_reason IS NULL \
    OR (runs.end_reason IN ('service_lost', 'rebooted') AND excluded.end_reason IS NULL)";

/// Columns that mending writes over a row: all but those of the run's birth.
pub(crate) fn mending_set() -> String {
    let others = COLUMNS.iter().filter(|c| c.part != Part::Birth);
    let set = others.map(|c| format!(", {0} = excluded.{0}", c.name));
    "seq = runs.seq + 1".to_owned() + &set.collect::<String>()
}
