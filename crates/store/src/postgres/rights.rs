//! Rights on the tables that a server uses.

use crate::OpenError;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use std::time::Duration;
use tokio::time::timeout;

/// Longest wait for the answer.
const LOOK_MAX: Duration = Duration::from_secs(10);
const ALL: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];
/// Tables with the rights that a server uses on them.
const RIGHTS: &[(&str, &[&str])] = &[
    ("_sqlx_migrations", &["SELECT"]),
    ("schema_level", &["SELECT"]),
    ("nodes", &ALL),
    ("keeper_epochs", &ALL),
    ("runs", &ALL),
    ("consumers", &ALL),
    ("left_stops", &ALL),
    ("removed_ids", &["SELECT", "INSERT", "DELETE"]),
    ("forgotten_ids", &["SELECT", "INSERT", "UPDATE"]),
];

/// Fails where the user lacks a right: found at the start, not at the first statement that needs it. A table that a
/// migration is still to make lacks none.
pub(super) async fn check(conn: &mut PgConnection) -> Result<(), OpenError> {
    let pairs = RIGHTS.iter();
    let pairs = pairs.flat_map(|(table, rights)| rights.iter().map(move |right| (table, right)));
    let needed = pairs.enumerate();
    let needed = needed.map(|(place, (table, right))| format!("({place}, '{table}', '{right}')"));
    let needed = needed.collect::<Vec<_>>().join(", ");
    // No parameters: a pooler may run a prepared statement in another session.
    let query = format!(
        "SELECT what || ' on ' || name FROM (VALUES {needed}) AS needed (place, name, what) \
         WHERE to_regclass(name) IS NOT NULL AND NOT has_table_privilege(to_regclass(name), what) ORDER BY place"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(query)).fetch_all(conn);
    let Ok(rows) = timeout(LOOK_MAX, rows).await else {
        return Err(OpenError::MigrationSilent { wait: LOOK_MAX });
    };
    let rows = rows.map_err(OpenError::Migration)?;
    let missing: Vec<String> = rows.iter().filter_map(|row| row.try_get(0).ok()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(OpenError::RightsMissing { missing })
}
