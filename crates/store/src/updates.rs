//! What a change writes over a row, on which condition, and the positions that the database gives.

use crate::record::{COLUMNS, ColumnPart};

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

/// As [`FREE_KEY`], of a run that is new: another one with its key keeps it out of the record.
pub(crate) const NEW_KEY: &str = "CASE WHEN w.end_reason IS NULL OR NOT EXISTS (SELECT 1 FROM runs r \
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

/// Columns that a change writes over a row: `w` is the row after it.
pub(crate) fn set(put: ColumnPart, output_age: &str) -> String {
    let changed = COLUMNS
        .iter()
        .filter(|c| c.part != ColumnPart::Birth && c.part <= put);
    let set = changed.map(|c| match c.name {
        "seq" => "seq = w.seq + 1".to_owned(),
        // A row keeps that of its end.
        "output_age" => format!("output_age = CASE WHEN w.output_age IS NOT NULL THEN COALESCE(runs.output_age, {output_age}) END"),
        name => format!("{name} = w.{name}"),
    });
    set.collect::<Vec<_>>().join(", ")
}

/// Condition on the row: no other write has changed it since the change was computed from it.
pub(crate) const UNCHANGED: &str = "runs.run_id = w.run_id AND runs.seq = w.seq";
