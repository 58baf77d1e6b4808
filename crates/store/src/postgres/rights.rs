//! Rights on the tables that a server uses.

use crate::OpenError;
use sqlx::PgConnection;
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
];
/// `$1` tables and `$2` rights, in pairs. A table that a migration is still to make has none that could be missing.
const MISSING: &str = "SELECT needed.right || ' on ' || needed.name \
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS needed (name, \"right\", place) \
    WHERE to_regclass(needed.name) IS NOT NULL AND NOT has_table_privilege(to_regclass(needed.name), needed.right) \
    ORDER BY needed.place";

/// Fails where the user lacks a right: found at the start, not at the first statement that needs it.
pub(super) async fn check(conn: &mut PgConnection) -> Result<(), OpenError> {
    let pairs = RIGHTS.iter();
    let pairs = pairs.flat_map(|(table, rights)| rights.iter().map(|right| (*table, *right)));
    let (tables, rights): (Vec<&str>, Vec<&str>) = pairs.unzip();
    let missing = sqlx::query_scalar(MISSING).bind(tables).bind(rights);
    let missing = missing.persistent(false).fetch_all(conn);
    let Ok(missing) = timeout(LOOK_MAX, missing).await else {
        return Err(OpenError::MigrationSilent { wait: LOOK_MAX });
    };
    let missing: Vec<String> = missing.map_err(OpenError::Migration)?;
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(OpenError::RightsMissing { missing })
}
