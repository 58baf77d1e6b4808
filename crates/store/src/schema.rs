//! The schema by level: what a database has of it, what it lacks, and which Kennel may use it.
//!
//! A migration *expands*: it adds, and raises the level of the schema to its number, so that servers of both levels use
//! the database. Or it *contracts*: it takes away what no server of its least level uses, and raises the least level. A
//! migration that this program does not know is none of its concern as long as the least level is at most its own.

use crate::{OpenError, StoreError, reader::Columns};
use sqlx::{
    AssertSqlSafe, PgConnection, SqlSafeStr, SqliteConnection,
    migrate::{Migration as Checksummed, MigrationType},
    postgres::PgRow,
    sqlite::SqliteRow,
};
use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// One change of the schema, the same in both databases. In each, all that it does is one transaction.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number; numbers rise.
    pub number: i64,
    /// Its name for people.
    pub name: &'static str,
    /// Its statements for SQLite.
    pub sqlite: &'static str,
    /// Its statements for Postgres.
    pub postgres: &'static str,
    /// Of a migration that contracts: the least level of a server that may use the database from then on.
    pub min_level: Option<i64>,
}

impl fmt::Display for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.number, self.name)
    }
}

/// All migrations of this Kennel. A released one is never edited, and each that changes `runs` makes the view
/// `kennel_runs` again.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        number: 1,
        name: "runs",
        sqlite: include_str!("../../../migrations/sqlite/0001_runs.sql"),
        postgres: include_str!("../../../migrations/postgres/0001_runs.sql"),
        min_level: None,
    },
    Migration {
        number: 2,
        name: "names",
        sqlite: include_str!("../../../migrations/sqlite/0002_names.sql"),
        postgres: include_str!("../../../migrations/postgres/0002_names.sql"),
        min_level: None,
    },
    Migration {
        number: 3,
        name: "history",
        sqlite: include_str!("../../../migrations/sqlite/0003_history.sql"),
        postgres: include_str!("../../../migrations/postgres/0003_history.sql"),
        min_level: None,
    },
    Migration {
        number: 4,
        name: "forgotten",
        sqlite: include_str!("../../../migrations/sqlite/0004_forgotten.sql"),
        postgres: include_str!("../../../migrations/postgres/0004_forgotten.sql"),
        min_level: None,
    },
];

/// Which migrations that contract are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// None.
    Never,
    /// Those whose level all nodes that are not forgotten have had for a day.
    Due,
    /// All: refused while a node that is not forgotten is below their level.
    Now,
}

/// State of a schema.
#[derive(Clone, Debug)]
pub struct SchemaState {
    /// Its level.
    pub level: i64,
    /// The least level of a server that may use it.
    pub min_level: i64,
    /// Migrations that were applied, or would be by a dry run.
    pub applied: Vec<Migration>,
    /// Migrations that contract, and are not due.
    pub waiting: Vec<Migration>,
}

/// The level of this program, beside the least level that was read last.
#[derive(Debug)]
pub(crate) struct SchemaAdmission {
    pub(crate) level: i64,
    min_level: AtomicI64,
}

impl SchemaAdmission {
    /// Returns that of a program with these migrations, which has been admitted.
    pub(crate) fn new(known: &[Migration]) -> Self {
        Self {
            level: level(known),
            min_level: AtomicI64::new(0),
        }
    }

    /// Records the least level of the database; fails where it is above that of this program.
    pub(crate) fn read(&self, min_level: i64) -> Result<(), StoreError> {
        self.min_level.store(min_level, Ordering::Relaxed);
        self.check()
    }

    /// Fails where the schema is that of later servers alone.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let (min_level, level) = (self.min_level.load(Ordering::Relaxed), self.level);
        if min_level > level {
            return Err(StoreError::SchemaTooNew { min_level, level });
        }
        Ok(())
    }
}

/// Returns the level of the schema that this Kennel has.
pub fn schema_level() -> i64 {
    level(MIGRATIONS)
}

/// Returns the level of a program with these migrations.
fn level(known: &[Migration]) -> i64 {
    let expanding = known.iter().filter(|one| one.min_level.is_none());
    expanding.map(|one| one.number).max().unwrap_or(0)
}

/// Longest time for reading; nothing is changed by it.
const READ_MAX: Duration = Duration::from_secs(10);
/// Longest time for all missing migrations, the wait for a concurrent one included.
const APPLY_MAX: Duration = Duration::from_mins(10);
/// Pause after a lock of the database was waited for in vain: other servers write meanwhile.
const LOCK_PAUSE: Duration = Duration::from_millis(200);
/// Time for which all nodes must have had a level.
const DAY_US: i64 = 24 * 60 * 60 * 1_000_000;

/// A connection whose schema can be changed.
pub(crate) trait SchemaConnection: Send {
    type Row: Columns;
    /// Which of the two tables of the schema's state exist, and whether any other table shows that the database is
    /// another program's where they do not: in Postgres programs share one.
    const TABLES: &'static str;
    const MAKE_TABLE: &'static str;
    /// Begins the transaction of all migrations: one at a time in a database.
    const BEGIN: &'static str;
    const NOW: &'static str;

    /// Returns the statements for this database.
    fn text(migration: &Migration) -> &'static str;

    /// Returns bytes as a literal, by their hexadecimal digits.
    fn literal(digits: &str) -> String;

    fn run(&mut self, sql: String) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn rows(
        &mut self,
        sql: String,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;
}

macro_rules! schema_connection {
    ($connection:ty, $row:ty, $text:ident, { $($constants:tt)+ }) => {
        impl SchemaConnection for $connection {
            type Row = $row;
            $($constants)+

            fn text(migration: &Migration) -> &'static str {
                migration.$text
            }

            async fn run(&mut self, sql: String) -> Result<(), sqlx::Error> {
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(self).await.map(drop)
            }

            async fn rows(&mut self, sql: String) -> Result<Vec<$row>, sqlx::Error> {
                sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(self).await
            }
        }
    };
}

schema_connection!(SqliteConnection, SqliteRow, sqlite, {
    const TABLES: &'static str = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations') AS applied, \
        EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'schema_level') AS level, \
        EXISTS (SELECT 1 FROM sqlite_schema WHERE substr(name, 1, 7) <> 'sqlite_' \
        AND name <> '_sqlx_migrations') AS others";
    const MAKE_TABLE: &'static str = "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version BIGINT PRIMARY KEY, \
        description TEXT NOT NULL, installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, \
        success BOOLEAN NOT NULL, checksum BLOB NOT NULL, execution_time BIGINT NOT NULL)";
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const NOW: &'static str = crate::sqlite::NOW;

    fn literal(digits: &str) -> String {
        format!("X'{digits}'")
    }
});

schema_connection!(PgConnection, PgRow, postgres, {
    const TABLES: &'static str = "SELECT to_regclass('_sqlx_migrations') IS NOT NULL AS applied, \
        to_regclass('schema_level') IS NOT NULL AS level, FALSE AS others";
    const MAKE_TABLE: &'static str = "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version BIGINT PRIMARY KEY, \
        description TEXT NOT NULL, installed_on TIMESTAMPTZ NOT NULL DEFAULT now(), \
        success BOOLEAN NOT NULL, checksum BYTEA NOT NULL, execution_time BIGINT NOT NULL)";
    // A transaction lock: no pooler retains a session lock. Statements of all nodes queue behind one that waits for a
    // table: it times out soon, and the migration is tried again.
    const BEGIN: &'static str = "BEGIN; SET LOCAL lock_timeout = '2s'; \
        SELECT pg_advisory_xact_lock(7738135570302951424)";
    const NOW: &'static str = crate::postgres::NOW;

    fn literal(digits: &str) -> String {
        format!("decode('{digits}', 'hex')")
    }
});

/// State of the schema as it is in the database; of an empty database all is zero.
#[derive(Default)]
struct StoredSchema {
    /// Checksums by number.
    applied: BTreeMap<i64, Vec<u8>>,
    level: i64,
    min_level: i64,
    /// There are tables or migrations, and none of Kennel.
    is_foreign: bool,
}

impl StoredSchema {
    async fn read<C: SchemaConnection>(conn: &mut C) -> Result<Self, sqlx::Error> {
        let mut stored = Self::default();
        let tables = conn.rows(C::TABLES.to_owned()).await?;
        let exists = |table| tables.first().map_or(Ok(false), |row| column(row, table));
        if exists("applied")? {
            let applied = "SELECT version, checksum FROM _sqlx_migrations";
            for row in conn.rows(applied.to_owned()).await? {
                let checksum = column(&row, "checksum")?;
                stored.applied.insert(column(&row, "version")?, checksum);
            }
        }
        let is_ours = exists("level")?;
        stored.is_foreign = !is_ours && (exists("others")? || !stored.applied.is_empty());
        if is_ours {
            let levels = "SELECT level, min_level FROM schema_level";
            for row in conn.rows(levels.to_owned()).await? {
                (stored.level, stored.min_level) =
                    (column(&row, "level")?, column(&row, "min_level")?);
            }
        }
        Ok(stored)
    }

    /// Returns the migrations that the database lacks; or why it does not fit this program.
    fn missing<C: SchemaConnection>(
        &self,
        known: &[Migration],
    ) -> Result<Vec<Migration>, OpenError> {
        if self.is_foreign {
            return Err(OpenError::ForeignDatabase);
        }
        let (min_level, level) = (self.min_level, level(known));
        if min_level > level {
            return Err(OpenError::SchemaTooNew { min_level, level });
        }
        let mut missing = Vec::new();
        for migration in known {
            match self.applied.get(&migration.number) {
                Some(applied) if *applied == checksum::<C>(migration) => {}
                Some(_) => {
                    let version = migration.number;
                    return Err(OpenError::SchemaDiffers { version });
                }
                None => missing.push(*migration),
            }
        }
        Ok(missing)
    }
}

/// Brings the schema up to date at a start, and returns its level. A migration that contracts is no condition of it.
pub(crate) async fn bring_up_to_date<C: SchemaConnection>(
    conn: &mut C,
    known: &[Migration],
) -> Result<i64, OpenError> {
    let state = apply(conn, known, Contract::Never, false).await?;
    if !state.waiting.is_empty() {
        match apply(conn, known, Contract::Due, false).await {
            Ok(state) => {
                for migration in state.applied {
                    tracing::info!(%migration, "the schema of the database was contracted: all nodes have its level for a day");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the schema of the database was not contracted: the next start tries again");
            }
        }
    }
    Ok(state.level)
}

/// Brings the schema up to date, or says what that would be. An up-to-date database is only read, so that its user need
/// not have the right to change it.
pub(crate) async fn apply<C: SchemaConnection>(
    conn: &mut C,
    known: &[Migration],
    contract: Contract,
    dry_run: bool,
) -> Result<SchemaState, OpenError> {
    let state = in_time(READ_MAX, plan(conn, known, contract)).await?;
    let Some(first) = state.applied.first() else {
        return Ok(state);
    };
    if dry_run {
        return Ok(state);
    }
    let lacking = first.to_string();
    in_time(APPLY_MAX, async {
        loop {
            let error = match apply_once(conn, known, contract).await {
                Ok(state) => return Ok(state),
                Err(error) => error,
            };
            // If the connection is lost, the database rolls back by itself.
            let _ = conn.run("ROLLBACK".to_owned()).await;
            if !error.is_lock_timeout() {
                return Err(error.at(lacking));
            }
            sleep(LOCK_PAUSE).await;
        }
    })
    .await
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    let timed = timeout(limit, work).await;
    timed.unwrap_or(Err(OpenError::MigrationSilent { wait: limit }))
}

/// Returns the state of the schema, with the missing migrations as if they were applied.
async fn plan<C: SchemaConnection>(
    conn: &mut C,
    known: &[Migration],
    contract: Contract,
) -> Result<SchemaState, OpenError> {
    let stored = StoredSchema::read(conn)
        .await
        .map_err(OpenError::Migration)?;
    let mut state = SchemaState {
        level: stored.level,
        min_level: stored.min_level,
        applied: Vec::new(),
        waiting: Vec::new(),
    };
    for migration in stored.missing::<C>(known)? {
        // An empty database has neither nodes nor their table.
        let is_due = match migration.min_level {
            None => true,
            Some(_) if stored.level == 0 => contract == Contract::Now,
            Some(min_level) => is_due(conn, min_level, contract).await?,
        };
        if is_due {
            state.applied.push(migration);
        } else {
            state.waiting.push(migration);
        }
    }
    Ok(state)
}

/// Whether no server that is below this level needs what such a migration takes away.
async fn is_due<C: SchemaConnection>(
    conn: &mut C,
    min_level: i64,
    contract: Contract,
) -> Result<bool, OpenError> {
    if contract == Contract::Never {
        return Ok(false);
    }
    let nodes = format!(
        "SELECT name, level, level_us > {} - {DAY_US} AS is_new FROM nodes WHERE forgotten_us IS NULL",
        C::NOW
    );
    let nodes = conn.rows(nodes).await.map_err(OpenError::Migration)?;
    let (mut below, mut is_new) = (Vec::new(), nodes.is_empty());
    for node in &nodes {
        let read = || {
            let level: i64 = column(node, "level")?;
            Ok((level, column(node, "is_new")?))
        };
        let (level, is_new_there): (i64, bool) = read().map_err(OpenError::Migration)?;
        if level < min_level {
            let name: String = column(node, "name").map_err(OpenError::Migration)?;
            below.push(format!("{name} (level {level})"));
        }
        is_new |= is_new_there;
    }
    match contract {
        Contract::Now if below.is_empty() => Ok(true),
        Contract::Now => Err(OpenError::NodesBelow {
            min_level,
            nodes: below.join(", "),
        }),
        Contract::Due | Contract::Never => Ok(below.is_empty() && !is_new),
    }
}

/// Applies all or none.
async fn apply_once<C: SchemaConnection>(
    conn: &mut C,
    known: &[Migration],
    contract: Contract,
) -> Result<SchemaState, OpenError> {
    let migration = OpenError::Migration;
    conn.run(C::BEGIN.to_owned()).await.map_err(migration)?;
    // Created before planning: CREATE TABLE makes Postgres drop table metadata cached before the lock.
    conn.run(C::MAKE_TABLE.to_owned())
        .await
        .map_err(migration)?;
    // Another process may have migrated the database meanwhile.
    let mut state = plan(conn, known, contract).await?;
    for one in &state.applied {
        let (number, name) = (one.number, one.name);
        conn.run(C::text(one).to_owned()).await.map_err(migration)?;
        let change = match one.min_level {
            None => format!("level = {number} WHERE level < {number}"),
            Some(least) => format!("min_level = {least} WHERE min_level < {least}"),
        };
        let checksum = C::literal(&hexadecimal(&checksum::<C>(one)));
        let enter = format!(
            "UPDATE schema_level SET {change}; INSERT INTO _sqlx_migrations \
            (version, description, success, checksum, execution_time) VALUES ({number}, '{name}', TRUE, {checksum}, -1)"
        );
        conn.run(enter).await.map_err(migration)?;
    }
    let stored = StoredSchema::read(conn).await.map_err(migration)?;
    (state.level, state.min_level) = (stored.level, stored.min_level);
    conn.run("COMMIT".to_owned()).await.map_err(migration)?;
    Ok(state)
}

/// Returns the checksum of its text, as sqlx's own tools have it.
fn checksum<C: SchemaConnection>(migration: &Migration) -> Vec<u8> {
    let text = C::text(migration).into_sql_str();
    let (number, name) = (migration.number, migration.name.into());
    let one = Checksummed::new(number, name, MigrationType::Simple, text, false);
    one.checksum.into_owned()
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut digits = String::new();
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

fn column<T: crate::reader::ReadableColumn>(
    row: &impl Columns,
    name: &str,
) -> Result<T, sqlx::Error> {
    let value = row.column(name);
    value.map_err(|error| sqlx::Error::Decode(error.into()))
}
