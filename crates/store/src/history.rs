//! Ended runs from the oldest on, the removal of their rows, and the ids that no later run may have.

use crate::{Age, StoreError, open, reader::Columns, record_bytes::bytes, sql::Sql};
use kennel_lifecycle::{NodeId, RunId, Timestamp};

/// An ended run, as its removal looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedRow {
    /// Run id.
    pub run: RunId,
    /// Owner of the run.
    pub owner: String,
    /// End of the run.
    pub ended: Timestamp,
    /// Its position among all runs.
    pub age: Age,
    /// Whether it has files beside its row, as far as the row knows.
    pub has_files: bool,
    /// Whether processes that it left may live: its tree is not proven empty, and its boot is the present one.
    pub may_live: bool,
}

/// Rows to be removed with what refers to them. Open rows stay, and rows that another server has by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRemoval {
    /// Their node.
    pub node: NodeId,
    /// The node's present generation; absent: the database does not have the node any more.
    pub generation: Option<i64>,
    /// The runs.
    pub runs: Vec<RunId>,
    /// Ids before this one, of rows that were removed earlier, are remembered no more, some at a time.
    pub forgotten_before: RunId,
}

/// A row that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedRow {
    /// Run id.
    pub run: RunId,
    /// Owner of the run.
    pub owner: String,
    /// What the row counted in the quota of its owner, in bytes.
    pub bytes: u64,
}

/// Most remembered ids that are forgotten in one transaction.
const FORGOTTEN_MAX: u32 = 500;

/// Condition on an inserted row `w`: its id was not removed.
pub(crate) const IS_NEW: &str =
    "NOT EXISTS (SELECT 1 FROM removed_ids gone WHERE gone.run_id = w.run_id)";

/// Builds the statement for ended runs of a node that follow `start`, the oldest first.
pub(crate) fn ended(node: NodeId, boot: &str, start: Age, limit: u32) -> Sql {
    let mut sql = Sql::new(
        "SELECT run_id, owner, ended_us, age, \
         CAST(CASE WHEN output_age IS NOT NULL AND output_removed_us IS NULL THEN 1 ELSE 0 END AS BIGINT) AS has_files, \
         CAST(CASE WHEN tree_verdict NOT IN ('empty', 'never_ran') AND boot_id = $1 THEN 1 ELSE 0 END AS BIGINT) AS may_live \
         FROM runs WHERE node = $2 AND end_reason IS NOT NULL AND age > $3 ORDER BY age LIMIT $4",
    );
    sql = sql.bind(boot.to_owned()).bind(node.to_string());
    sql.bind(start.0).bind(i64::from(limit))
}

/// Reads such a run.
pub(crate) fn ended_row(row: &impl Columns) -> Result<EndedRow, StoreError> {
    let is = |column| Ok::<_, StoreError>(row.column::<i64>(column)? != 0);
    Ok(EndedRow {
        run: open::id(row, "run_id")?,
        owner: row.column("owner")?,
        ended: Timestamp(row.column("ended_us")?),
        age: Age(row.column("age")?),
        has_files: is("has_files")?,
        may_live: is("may_live")?,
    })
}

/// Selects the first node after `$1` that has rows, and that the database does not have any more. Each node is one look into
/// the index.
pub(crate) const STRAY_NODE: &str = "WITH RECURSIVE each (node) AS (SELECT MIN(node) FROM runs WHERE node > $1 UNION ALL \
    SELECT (SELECT MIN(r.node) FROM runs r WHERE r.node > each.node) FROM each WHERE each.node IS NOT NULL) \
    SELECT node FROM each WHERE node IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.node = each.node) LIMIT 1";

/// Builds the statement that removes the rows `$2`, a JSON array of ids that `elements` makes rows of, of node `$1`.
pub(crate) fn removal(elements: &str, removal: &RowRemoval) -> String {
    let is_ours = match removal.generation {
        Some(generation) => format!(
            "EXISTS (SELECT 1 FROM nodes n WHERE n.node = $1 AND n.generation = {generation})"
        ),
        None => "NOT EXISTS (SELECT 1 FROM nodes n WHERE n.node = $1)".to_owned(),
    };
    format!(
        "DELETE FROM runs WHERE run_id IN (SELECT {elements}) AND node = $1 AND end_reason IS NOT NULL AND {is_ours} \
         RETURNING run_id, owner, {} AS bytes",
        bytes()
    )
}

/// Statements that follow for the removed rows `$2` of node `$1`: what refers to them goes.
pub(crate) fn follow(elements: &str) -> [String; 2] {
    ["consumers", "left_stops"].map(|table| {
        format!("DELETE FROM {table} WHERE node = $1 AND run_id IN (SELECT {elements})")
    })
}

/// Builds the statement that remembers the ids of the removed rows `$2`, of a node `$1`.
pub(crate) fn remember(elements: &str) -> String {
    format!(
        "WITH w (run_id) AS (SELECT {elements}) INSERT INTO removed_ids (run_id) SELECT run_id FROM w WHERE $1 <> '' \
         ON CONFLICT DO NOTHING"
    )
}

/// Selects the newest of all ids that were forgotten.
pub(crate) const FORGOTTEN: &str = "SELECT newest FROM forgotten_ids";

/// Builds the statements that forget some ids before `$1`, and keep the newest of them.
pub(crate) fn forget_ids() -> [String; 2] {
    let which = format!(
        "SELECT run_id FROM removed_ids WHERE run_id < $1 ORDER BY run_id LIMIT {FORGOTTEN_MAX}"
    );
    [
        format!(
            "INSERT INTO forgotten_ids (one, newest) SELECT 1, MAX(run_id) FROM ({which}) f WHERE TRUE HAVING COUNT(*) > 0 \
             ON CONFLICT (one) DO UPDATE SET newest = excluded.newest WHERE forgotten_ids.newest < excluded.newest"
        ),
        format!("DELETE FROM removed_ids WHERE run_id IN ({which})"),
    ]
}

/// Declares `remove_rows` for a connection of one of the two kinds.
macro_rules! remove_rows {
    ($connection:ty) => {
        async fn remove_rows(
            conn: &mut $connection,
            removal: &$crate::RowRemoval,
        ) -> Result<$crate::writer::Answer, sqlx::Error> {
            use sqlx::Row as _;
            let remove = $crate::history::removal(ELEMENTS, removal);
            let rows = sqlx::query(sqlx::AssertSqlSafe(remove))
                .bind(removal.node.to_string())
                .bind($crate::json::write(&removal.runs))
                .persistent(false)
                .fetch_all(&mut *conn)
                .await?;
            let mut removed = Vec::with_capacity(rows.len());
            for row in &rows {
                let run: String = row.try_get("run_id")?;
                let bytes: i64 = row.try_get("bytes")?;
                let run = run
                    .parse()
                    .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
                removed.push($crate::RemovedRow {
                    run,
                    owner: row.try_get("owner")?,
                    bytes: bytes.unsigned_abs(),
                });
            }
            let runs: Vec<_> = removed.iter().map(|row| row.run).collect();
            // Old ids are forgotten first: an id removed now stays until the next removal, whatever its age.
            for statement in $crate::history::forget_ids() {
                sqlx::query(sqlx::AssertSqlSafe(statement))
                    .bind(removal.forgotten_before.to_string())
                    .persistent(false)
                    .execute(&mut *conn)
                    .await?;
            }
            let [consumers, stops] = $crate::history::follow(ELEMENTS);
            for statement in [consumers, stops, $crate::history::remember(ELEMENTS)] {
                sqlx::query(sqlx::AssertSqlSafe(statement))
                    .bind(removal.node.to_string())
                    .bind($crate::json::write(&runs))
                    .persistent(false)
                    .execute(&mut *conn)
                    .await?;
            }
            Ok($crate::writer::Answer::Removed(removed))
        }
    };
}
pub(crate) use remove_rows;
