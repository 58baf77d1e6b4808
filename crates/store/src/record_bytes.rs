//! Bytes of the rows of each owner, for its quota.

use crate::{NewRun, StoreError, json::spec_text, reader::Columns, sql::Sql};
use kennel_lifecycle::NodeId;

/// What a row counts beside its texts.
pub const ROW_BYTES: u64 = 1024;

/// Returns the bytes of the row of a new run.
pub fn row_bytes(new: &NewRun) -> u64 {
    ROW_BYTES + spec_text(&new.spec).len() as u64
}

/// What a row counts, in SQL.
pub(crate) fn bytes() -> String {
    format!(
        "CAST({ROW_BYTES} + octet_length(spec) + octet_length(facets) + COALESCE(octet_length(entries), 0) AS BIGINT)"
    )
}

/// Builds the statement for the sums of a node.
pub(crate) fn select(node: NodeId) -> Sql {
    let sum = format!(
        "SELECT owner, CAST(SUM({}) AS BIGINT) AS bytes FROM runs WHERE node = $1 GROUP BY owner",
        bytes()
    );
    Sql::new(sum).bind(node.to_string())
}

/// Reads the sum of an owner.
pub(crate) fn row(row: &impl Columns) -> Result<(String, u64), StoreError> {
    let bytes: i64 = row.column("bytes")?;
    Ok((row.column("owner")?, bytes.unsigned_abs()))
}
