//! SQLite: one connection that writes, a few that read.

mod file;

use self::file::OpenedFile;
use crate::{
    Age, Contract, Migration, OpenError, SchemaState, consumer,
    database::Database,
    history::{self, IS_NEW},
    open::{self},
    put::OwnRows,
    reader::{Dialect, Row, RowReader, STATEMENT_TIMEOUT, Where, connected},
    record::{COLUMNS, Column, ColumnPart, Record, Statements, column_list},
    schema::{self, SchemaAdmission},
    sql::Sql,
    updates::{
        FREE_KEY, FREE_NAME, NEW_KEY, UNCHANGED, age_before, newest_age, newest_output, set,
    },
    writer::{Answer, Committer, Failure, Write, Writer},
};
use async_trait::async_trait;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Sqlite, SqliteConnection, SqlitePool,
    error::DatabaseError,
    query::Query,
    sqlite::{
        SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions,
        SqliteSynchronous,
    },
};
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::timeout;

/// The first release whose WAL cannot be corrupted by a reset (<https://sqlite.org/wal.html#walresetbug>).
const VERSION_MIN: (u32, u32, u32) = (3, 51, 3);
/// Connections that read at the same time.
const READERS_MAX: u32 = 4;
/// Longest wait for a lock that another process holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a free reading connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens the file, creates it where it is missing, and brings its schema up to date.
pub(crate) async fn open(path: &Path, known: &'static [Migration]) -> Result<Database, OpenError> {
    make_private(path)?;
    plan(path, known, Contract::Never).await?;
    let unusable = |source| unusable(path, source);
    let options = options(path, true);
    let (mut conn, version) = connect(path, &options).await?;
    let schema = schema::bring_up_to_date(&mut conn, known).await?;
    let file = OpenedFile::of(path).map_err(|error| unusable(error.into()))?;
    let options = options.create_if_missing(false);
    let admission = SchemaAdmission::new(known);
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS_MAX)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_lazy_with(options.clone().read_only(true));
    Ok(Database {
        writer: Writer::start(Box::new(SqliteCommitter {
            options,
            conn: Some(conn),
            file: file.clone(),
            sql: statements(),
            level: admission.level,
        })),
        leases: None,
        reader: Box::new(SqliteReader {
            pool: readers,
            file,
        }),
        dialect: &DIALECT,
        description: format!("sqlite {version}, schema {schema}"),
        admission,
        own: OnceLock::new(),
        own_rows: OwnRows::default(),
    })
}

/// Applies the migrations that an existing file lacks.
pub(crate) async fn migrate(
    path: &Path,
    known: &[Migration],
    contract: Contract,
    dry_run: bool,
) -> Result<SchemaState, OpenError> {
    let planned = plan(path, known, contract).await?;
    if dry_run || planned.applied.is_empty() {
        return Ok(planned);
    }
    let (mut conn, _) = connect(path, &options(path, false)).await?;
    let state = schema::apply(&mut conn, known, contract, false).await;
    // A failed close is harmless: the next connection finishes the work.
    let _ = conn.close().await;
    state
}

/// Returns what an existing file lacks, and changes nothing of it: it may be another program's.
async fn plan(
    path: &Path,
    known: &[Migration],
    contract: Contract,
) -> Result<SchemaState, OpenError> {
    // Without a WAL the file is complete; reading a WAL would create more files.
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .immutable(!Path::new(&log).exists())
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging();
    let (mut conn, _) = connect(path, &options).await?;
    let state = schema::apply(&mut conn, known, contract, true).await;
    let _ = conn.close().await;
    state.map_err(|error| match error {
        // Not an SQLite file.
        OpenError::Migration(source) => unusable(path, source),
        error => error,
    })
}

fn options(path: &Path, create: bool) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(create)
        .journal_mode(SqliteJournalMode::Wal)
        // FULL: an answered commit is on disk, even after power loss.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

fn unusable(path: &Path, source: sqlx::Error) -> OpenError {
    let code = source.as_database_error().and_then(DatabaseError::code);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let why = match code.as_deref() {
        // SQLITE_CORRUPT and SQLITE_NOTADB, see sqlite.org/rescode.html.
        Some("11" | "26") => "it is damaged, or no database of SQLite",
        _ if dir.is_some_and(|dir| !dir.exists()) => "its directory does not exist",
        _ if !path.exists() => "there is no such file",
        _ => "check that it and its directory are readable and writable",
    };
    let path = path.to_owned();
    OpenError::SqliteFile { path, why, source }
}

/// Opens a connection, and returns the version of SQLite.
async fn connect(
    path: &Path,
    options: &SqliteConnectOptions,
) -> Result<(SqliteConnection, String), OpenError> {
    let unusable = |source| unusable(path, source);
    let mut conn = SqliteConnection::connect_with(options)
        .await
        .map_err(unusable)?;
    let version: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(&mut conn)
        .await
        .map_err(unusable)?;
    check_version(&version)?;
    Ok((conn, version))
}

/// Makes a missing file private: specs contain the arguments of commands, secrets included. SQLite gives its side files
/// the same mode. A symbolic link is refused: SQLite would follow it.
fn make_private(path: &Path) -> Result<(), OpenError> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
        return Err(OpenError::SqliteLink {
            path: path.to_owned(),
        });
    }
    let mut how = OpenOptions::new();
    how.write(true).create_new(true).mode(0o600);
    // An existing file retains its mode; a failed creation is reported by SQLite, which tries next.
    let _ = how.open(path);
    Ok(())
}

fn check_version(version: &str) -> Result<(), OpenError> {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    if (next(), next(), next()) < VERSION_MIN {
        return Err(OpenError::SqliteTooOld {
            found: version.to_owned(),
        });
    }
    Ok(())
}

struct SqliteCommitter {
    options: SqliteConnectOptions,
    /// The connection; absent after a fault: where SQLite has rolled back by itself (a full disk), sqlx believes that
    /// the transaction is still open, and begins no other one.
    conn: Option<SqliteConnection>,
    /// The file; no later server would find writes to another file, or to one without a name.
    file: OpenedFile,
    sql: Statements,
    /// Level of the schema that this program has.
    level: i64,
}

fn statements() -> Statements {
    let names = column_list("");
    // Unnumbered parameters: sqlx searches for the name of each numbered one.
    let row: Vec<String> = COLUMNS
        .iter()
        .map(|column| format!("? AS {}", column.name))
        .collect();
    let row = row.join(", ");
    // INV-9: a row is only written under its node's current generation, so a new generation fences all earlier servers.
    let present =
        "EXISTS (SELECT 1 FROM nodes n WHERE n.node = w.node AND n.generation = w.generation)";
    let insert = |age: &str, name: &str, key: &str, which: &str| -> Arc<str> {
        let value = |column: &Column| match column.name {
            "age" => age.to_owned(),
            "seq" => "w.seq + 1".to_owned(),
            "output_age" => OUTPUT_AGE.to_owned(),
            "name" => name.to_owned(),
            "request_key" => key.to_owned(),
            name => format!("w.{name}"),
        };
        let values: Vec<String> = COLUMNS.iter().map(value).collect();
        format!(
            "INSERT INTO runs ({names}) SELECT {} FROM (SELECT {row}) AS w WHERE {present} AND {which} \
             ON CONFLICT DO NOTHING",
            values.join(", "),
        )
        .into()
    };
    let put = |part| {
        let set = set(part, OUTPUT_AGE);
        format!("UPDATE runs SET {set} FROM (SELECT {row}) AS w WHERE {UNCHANGED} AND {present}")
            .into()
    };
    Statements {
        insert: insert(AGE, "w.name", NEW_KEY, IS_NEW),
        mend: insert(age_before!("1"), FREE_NAME, FREE_KEY, "TRUE"),
        puts: [put(ColumnPart::Hot), put(ColumnPart::Rare)],
    }
}

impl SqliteCommitter {
    /// Returns the connection; a new one where there is none.
    async fn connection(&mut self) -> Result<SqliteConnection, Failure> {
        if let Some(conn) = self.conn.take() {
            return Ok(conn);
        }
        let connecting = SqliteConnection::connect_with(&self.options);
        connected(connecting, ACQUIRE_TIMEOUT, "sqlite could not be opened").await
    }

    async fn transact(
        &self,
        conn: &mut SqliteConnection,
        batch: &[Write],
    ) -> Result<Vec<Answer>, Failure> {
        // One statement is its own transaction: two round trips to the connection's thread are saved.
        if let [write] = batch
            && !write.has_own_transaction()
        {
            let answer = execute(conn, write, self).await;
            return Ok(vec![answer.map_err(|e| failure(&e))?]);
        }
        let mut tx = conn
            .begin_with("BEGIN IMMEDIATE")
            .await
            .map_err(|e| certain(failure(&e)))?;
        let mut answers = Vec::with_capacity(batch.len());
        for write in batch {
            let answer = execute(&mut tx, write, self).await;
            answers.push(answer.map_err(|e| certain(failure(&e)))?);
        }
        tx.commit().await.map_err(|e| failure(&e))?;
        Ok(answers)
    }
}

#[async_trait]
impl Committer for SqliteCommitter {
    async fn commit(&mut self, batch: &[Write]) -> Result<Vec<Answer>, Failure> {
        self.file.check().map_err(Failure::Unavailable)?;
        let mut conn = self.connection().await?;
        let done = match timeout(STATEMENT_TIMEOUT, self.transact(&mut conn, batch)).await {
            Ok(done) => done,
            Err(_) => Err(Failure::Unknown(format!(
                "sqlite did not answer within {STATEMENT_TIMEOUT:?}"
            ))),
        };
        match &done {
            Ok(_) | Err(Failure::Refused(_)) => self.conn = Some(conn),
            Err(Failure::Unavailable(_) | Failure::Unknown(_)) => drop(conn),
        }
        done
    }

    /// Does nothing: a file does not go away while it is open.
    async fn idle(&mut self) {}

    async fn close(self: Box<Self>) {
        if let Some(conn) = self.conn
            && let Err(error) = conn.close().await
        {
            tracing::warn!(%error, "the database file was not closed cleanly, the next start recovers it");
        }
    }
}

/// The age of a row that is inserted; `w` is the row.
const AGE: &str = concat!("MAX(w.age, w.created_us, 1 + (", newest_age!(), "))");
/// As [`AGE`], among the ends of the node that have output. MAX of NULL is NULL.
const OUTPUT_AGE: &str = concat!("MAX(w.output_age, 1 + ", newest_output!("w.node"), ")");

async fn execute(
    conn: &mut SqliteConnection,
    write: &Write,
    SqliteCommitter { sql, level, .. }: &SqliteCommitter,
) -> Result<Answer, sqlx::Error> {
    let query = match write {
        Write::Insert(record) => whole(record, &sql.insert),
        Write::Mend(record) => whole(record, &sql.mend),
        Write::Put { record, part, .. } => whole(record, sql.put(*part)),
        Write::Withdraw(run, node, generation) => sqlx::query(
            "DELETE FROM runs WHERE run_id = ?1 AND node = ?2 AND state = 'starting' AND desired = 'run' \
             AND attempt = 1 AND EXISTS (SELECT 1 FROM nodes WHERE node = ?2 AND generation = ?3) \
             AND NOT EXISTS (SELECT 1 FROM left_stops l WHERE l.run_id = runs.run_id)",
        )
        .bind(run.to_string())
        .bind(node.to_string())
        .bind(generation),
        Write::Consumer { write, generation } => {
            let text = AssertSqlSafe(write.statement(""));
            consumer::bind!(sqlx::query(text), &**write, *generation)
        }
        Write::Lease {
            node,
            generation,
            given_up,
            draining,
        } => sqlx::query(AssertSqlSafe(open::lease(NOW, *given_up, *level)))
            .bind(node.to_string())
            .bind(generation)
            .bind(draining.map(|since| since.0)),
        Write::LeaveStop(stop) => stop.leave(LEAVE_STOP).query(),
        Write::RemoveLeftStop(stop) => stop.remove().query(),
        Write::Open(opening) => return open_node(conn, opening, *level).await,
        Write::Forget { node, keeper_epoch } => {
            return forget_node(conn, *node, *keeper_epoch).await;
        }
        Write::RemoveNodes(which) => return remove_nodes(conn, which).await,
        Write::RemoveRows(removal) => return remove_rows(conn, removal).await,
    };
    let done = query.execute(conn).await?;
    Ok(match (done.rows_affected(), write) {
        (0, _) => Answer::NotWritten,
        // The age is the rowid.
        (_, Write::Insert(_)) => Answer::Written(Age(done.last_insert_rowid())),
        (..) => Answer::Written(Age::NONE),
    })
}

/// A statement with all columns of one row.
fn whole<'q>(record: &Record, sql: &Arc<str>) -> Query<'q, Sqlite, SqliteArguments> {
    record.bind_sqlite(sqlx::query(AssertSqlSafe(sql.clone())))
}

const LEAVE_STOP: &str = open::leave_stop!("");

/// Present time, in microseconds.
pub(crate) const NOW: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";

open::open_node!(SqliteConnection);
history::remove_rows!(SqliteConnection);

/// Before COMMIT was sent, nothing can have been written.
fn certain(failure: Failure) -> Failure {
    match failure {
        Failure::Unknown(why) => Failure::Unavailable(why),
        Failure::Unavailable(_) | Failure::Refused(_) => failure,
    }
}

/// Converts by the primary result code (<https://sqlite.org/rescode.html>).
fn failure(error: &sqlx::Error) -> Failure {
    let text = error.to_string();
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .and_then(|code| code.parse::<u32>().ok());
    match (error, code.map(|code| code & 0xff)) {
        // ERROR (no such table), BUSY, LOCKED, NOMEM, READONLY, CORRUPT, FULL, CANTOPEN, NOTADB: the statement or
        // COMMIT did nothing, and the file may be repaired.
        (_, Some(1 | 5..=8 | 11 | 13 | 14 | 26)) => Failure::Unavailable(text),
        // TOOBIG, CONSTRAINT, MISMATCH: bad row.
        (_, Some(18..=20)) | (sqlx::Error::Encode(_), _) => Failure::Refused(text),
        // IOERR at COMMIT may have come after the write to the disk; other codes are not expected.
        _ => Failure::Unknown(text),
    }
}

/// Its transaction locks the whole file.
const LOCK_NODE: &str = "SELECT 1 FROM nodes WHERE node = $1";
/// Nothing else writes meanwhile.
const LOCK_REMOVED: &str = "";

/// The elements of a JSON array, as rows.
const ELEMENTS: &str = "value FROM json_each($2)";

/// A file belongs to one data directory, whose lock shows its owner.
const MAY_BE_HELD: bool = false;

pub(crate) static DIALECT: Dialect = Dialect {
    now: NOW,
    // The file stays the same while open; if another file replaces it, the store is unavailable.
    life: "'sqlite'",
    // Checks that the file is readable; only a write shows whether it is writable.
    ping: "SELECT TRUE AS takes_writes, (SELECT 1 FROM nodes LIMIT 1)",
    stray_node: None,
    reversed_id: None,
    labels_text: "labels",
    labels_rows: "json_each(runs.labels)",
};

#[derive(Debug)]
struct SqliteReader {
    pool: SqlitePool,
    file: OpenedFile,
}

#[async_trait]
impl RowReader for SqliteReader {
    async fn rows(&self, sql: Sql, _life: Where) -> Result<Vec<Row>, sqlx::Error> {
        let there = self.file.check();
        there.map_err(|why| sqlx::Error::Io(std::io::Error::other(why)))?;
        let rows = sql.query().fetch_all(&self.pool).await?;
        Ok(rows.into_iter().map(Row::Sqlite).collect())
    }

    fn failure(&self, error: &sqlx::Error) -> Failure {
        failure(error)
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_before_wal_reset_fix_is_refused() {
        for old in ["3.40.1", "3.51.2", "3.9.9", "2.99.99"] {
            let error = check_version(old).expect_err(old);
            assert!(error.to_string().contains(old), "{error}");
        }
        for good in ["3.51.3", "3.52.0", "4.0.0"] {
            check_version(good).expect(good);
        }
    }
}
