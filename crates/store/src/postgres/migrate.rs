//! The schema in Postgres: read without changing anything, and brought up to date in one transaction.

use crate::{
    OpenError,
    open::{self, POSTGRES_MIGRATIONS},
};
use sqlx::{
    PgConnection, Row,
    migrate::{Migrate, MigrateError, Migration},
};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::timeout;

/// Table of sqlx's own tools, too.
const TABLE: &str = "_sqlx_migrations";
const IS_THERE: &str = "SELECT to_regclass('_sqlx_migrations') IS NOT NULL";
const APPLIED: &str = "SELECT version, success, checksum FROM _sqlx_migrations ORDER BY version";
/// `$1` version, `$2` name, `$3` checksum.
const ENTER: &str = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
    VALUES ($1, $2, TRUE, $3, -1)";
/// One migration at a time in a database. A lock of the transaction: no pooler would retain a lock of the session.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7738135570302951424)";
/// Longest time for reading; nothing is changed by it.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Longest time for all missing migrations, the wait for a concurrent one included.
const APPLY_MAX: Duration = Duration::from_mins(10);

/// Applies the missing migrations; returns the newest number. An up-to-date database is only read, so that its user
/// need not have the right to create tables.
pub(super) async fn migrate(conn: &mut PgConnection) -> Result<i64, OpenError> {
    let known: Vec<Migration> = open::migrations(POSTGRES_MIGRATIONS).collect();
    let newest = known.last().map_or(0, |migration| migration.version);
    if !in_time(LOOK_MAX, missing(conn, &known)).await?.is_empty() {
        in_time(APPLY_MAX, apply_missing(conn, &known)).await?;
    }
    Ok(newest)
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, MigrateError>>,
) -> Result<T, OpenError> {
    match timeout(limit, work).await {
        Ok(done) => done.map_err(|error| open::migration_error(error, POSTGRES_MIGRATIONS)),
        Err(_) => Err(OpenError::MigrationSilent { wait: limit }),
    }
}

/// Returns the migrations that are missing; or why this database does not fit this program.
async fn missing<'a>(
    conn: &mut PgConnection,
    known: &'a [Migration],
) -> Result<Vec<&'a Migration>, MigrateError> {
    let is_there = sqlx::raw_sql(IS_THERE).fetch_one(&mut *conn).await?;
    let mut applied: BTreeMap<i64, Vec<u8>> = BTreeMap::new();
    if is_there.try_get(0)? {
        for row in sqlx::raw_sql(APPLIED).fetch_all(conn).await? {
            let version = row.try_get(0)?;
            if !row.try_get::<bool, _>(1)? {
                return Err(MigrateError::Dirty(version));
            }
            applied.insert(version, row.try_get(2)?);
        }
    }
    let newer = |version: &&i64| known.iter().all(|migration| migration.version != **version);
    if let Some(version) = applied.keys().find(newer) {
        return Err(MigrateError::VersionMissing(*version));
    }
    let mut missing = Vec::new();
    for migration in known {
        match applied.get(&migration.version) {
            Some(checksum) if *checksum == *migration.checksum => {}
            Some(_) => return Err(MigrateError::VersionMismatch(migration.version)),
            None => missing.push(migration),
        }
    }
    Ok(missing)
}

/// Applies all or none.
async fn apply_missing(conn: &mut PgConnection, known: &[Migration]) -> Result<(), MigrateError> {
    let mut tx = sqlx::Connection::begin(conn).await?;
    sqlx::raw_sql(LOCK).execute(&mut *tx).await?;
    tx.ensure_migrations_table(TABLE).await?;
    // Another process may have migrated it meanwhile.
    for migration in missing(&mut tx, known).await? {
        sqlx::raw_sql(migration.sql.clone())
            .execute(&mut *tx)
            .await
            .map_err(|error| MigrateError::ExecuteMigration(error, migration.version))?;
        sqlx::query(ENTER)
            .bind(migration.version)
            .bind(&*migration.description)
            .bind(&*migration.checksum)
            .persistent(false)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    Ok(())
}
