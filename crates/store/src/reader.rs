//! The reading side of a database: its connections, and what differs in their SQL and in their rows.

use crate::{StoreError, sql::Sql, writer::Failure};
use async_trait::async_trait;
use sqlx::{Decode, Postgres, Row as _, Sqlite, Type, postgres::PgRow, sqlite::SqliteRow};
use std::{fmt, time::Duration};
use tokio::time::timeout;

/// Longest time of one transaction or one query.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for a connection that writes, no longer than this. `late`: that it did not come.
pub(crate) async fn connected<C>(
    connecting: impl Future<Output = Result<C, sqlx::Error>>,
    most: Duration,
    late: &str,
) -> Result<C, Failure> {
    let unavailable = |why| Err(Failure::Unavailable(why));
    match timeout(most, connecting).await {
        Ok(connected) => connected.or_else(|error| unavailable(error.to_string())),
        Err(_) => unavailable(format!("{late} within {most:?}")),
    }
}

/// The connections of a database that read.
#[async_trait]
pub(crate) trait RowReader: Send + Sync + fmt::Debug {
    /// Returns the rows of one query, in such a life of the database.
    async fn rows(&self, sql: Sql, life: Where) -> Result<Vec<Row>, sqlx::Error>;

    /// Interprets an error of the database.
    fn failure(&self, error: &sqlx::Error) -> Failure;

    /// Closes all connections.
    async fn close(&self);
}

/// A row of either database.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// The life of the database that a query requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// The life in which the node was acquired.
    Taken,
    Anywhere,
}

/// Parts of statements that differ between the two databases.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// Present time, in microseconds.
    pub(crate) now: &'static str,
    /// The life of the database.
    pub(crate) life: &'static str,
    /// Statement that says in `takes_writes` whether the database takes writes, and fails where the tables are missing.
    pub(crate) ping: &'static str,
    /// Statement for a node that has rows, and that the database does not have any more; absent: it has one node.
    pub(crate) stray_node: Option<&'static str>,
    /// Indexed text of a run's id from its end to its beginning; absent: the database has none.
    pub(crate) reversed_id: Option<&'static str>,
    /// Column `labels` as JSON text.
    pub(crate) labels_text: &'static str,
    /// The labels of a run, as rows with `key` and `value`.
    pub(crate) labels_rows: &'static str,
}

/// A type that a column can be read as, in either database.
pub(crate) trait ReadableColumn:
    for<'r> Decode<'r, Sqlite> + Type<Sqlite> + for<'r> Decode<'r, Postgres> + Type<Postgres>
{
}

impl<T> ReadableColumn for T where
    T: for<'r> Decode<'r, Sqlite> + Type<Sqlite> + for<'r> Decode<'r, Postgres> + Type<Postgres>
{
}

/// A row with columns.
pub(crate) trait Columns: Send {
    /// Reads the column of this name.
    fn column<T: ReadableColumn>(&self, name: &str) -> Result<T, StoreError>;
}

impl Columns for SqliteRow {
    fn column<T: ReadableColumn>(&self, name: &str) -> Result<T, StoreError> {
        self.try_get(name).map_err(corrupt)
    }
}

impl Columns for PgRow {
    fn column<T: ReadableColumn>(&self, name: &str) -> Result<T, StoreError> {
        self.try_get(name).map_err(corrupt)
    }
}

impl Columns for Row {
    fn column<T: ReadableColumn>(&self, name: &str) -> Result<T, StoreError> {
        match self {
            Self::Sqlite(row) => Columns::column(row, name),
            Self::Postgres(row) => Columns::column(row, name),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` gives it")]
fn corrupt(error: sqlx::Error) -> StoreError {
    StoreError::Corrupt(error.to_string())
}
