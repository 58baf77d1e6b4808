//! Named readers of events: the row of each, and the SQL of both databases.

use crate::{StoreError, record};
use kennel_lifecycle::{NodeId, RunId, Timestamp};
use sqlx::{ColumnIndex, Database, Decode, Encode, QueryBuilder, Row, Type};

/// Which consumer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerKey {
    /// The run that it reads; absent: many, by a filter.
    pub run: Option<RunId>,
    /// Its name.
    pub name: String,
}

impl ConsumerKey {
    fn run_text(&self) -> String {
        self.run.map(|run| run.to_string()).unwrap_or_default()
    }

    /// As no run is called.
    pub(crate) fn text(&self) -> String {
        format!("{}/{}", self.run_text(), self.name)
    }

    /// What an error about it names: the run, or none that there is.
    pub(crate) fn fenced(&self) -> StoreError {
        StoreError::Fenced(self.run.unwrap_or(RunId::from_u128(0)))
    }
}

/// A named reader, as far as it has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRow {
    /// Which.
    pub key: ConsumerKey,
    /// Node whose runs it reads.
    pub node: NodeId,
    /// Who has registered it.
    pub owner: String,
    /// Raised by one with each reader.
    pub session: u64,
    /// Of a run: the seq up to which it has acknowledged. Of many: the number of the message.
    pub acked: u64,
    /// Where that is, as a client is given it.
    pub cursor: Vec<u8>,
    /// When it was registered.
    pub created: Timestamp,
    /// The last acknowledgement.
    pub acked_at: Option<Timestamp>,
}

/// Which consumers of a node, in the order of their keys: those of many runs come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerFilter {
    /// Of this run alone, or of many runs alone (`Some(None)`); absent: all.
    pub run: Option<Option<RunId>>,
    /// Of this name alone.
    pub name: Option<String>,
    /// Of this owner alone.
    pub owner: Option<String>,
    /// Behind this one.
    pub after: Option<ConsumerKey>,
}

const COLUMNS: &str =
    "node, run_id, name, owner, session, acked, cursor_bytes, created_us, acked_us";

/// Of two writes of one consumer the one that knows less changes nothing, whichever comes first.
const PUT_OVER: &str = "ON CONFLICT (node, run_id, name) DO UPDATE SET session = excluded.session, \
    acked = excluded.acked, cursor_bytes = excluded.cursor_bytes, acked_us = excluded.acked_us \
    WHERE consumers.created_us = excluded.created_us AND consumers.session <= excluded.session \
    AND consumers.acked <= excluded.acked";

pub(crate) fn put_sqlite() -> String {
    format!(
        "INSERT INTO consumers ({COLUMNS}) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 \
         WHERE EXISTS (SELECT 1 FROM nodes WHERE node = ?1 AND generation = ?10) {PUT_OVER}"
    )
}

// FOR KEY SHARE, as an INSERT of a run: a new generation waits for it, or it for the new generation.
pub(crate) fn put_postgres() -> String {
    format!(
        "INSERT INTO consumers ({COLUMNS}) SELECT n.node, $2, $3, $4, $5, $6, $7, $8, $9 FROM nodes n \
         WHERE n.node = $1 AND n.generation = $10 FOR KEY SHARE OF n {PUT_OVER} RETURNING run_id || '/' || name"
    )
}

pub(crate) const DELETE_SQLITE: &str = "DELETE FROM consumers WHERE node = ?1 AND run_id = ?2 AND name = ?3 \
    AND EXISTS (SELECT 1 FROM nodes WHERE node = ?1 AND generation = ?4)";

pub(crate) const DELETE_POSTGRES: &str = "WITH present AS (SELECT node FROM nodes \
    WHERE node = $1 AND generation = $4 FOR KEY SHARE) \
    DELETE FROM consumers WHERE node IN (SELECT node FROM present) AND run_id = $2 AND name = $3 \
    RETURNING run_id || '/' || name";

pub(crate) const EXPIRE_SQLITE: &str = "DELETE FROM consumers WHERE node = ?1 \
    AND EXISTS (SELECT 1 FROM nodes WHERE node = ?1 AND generation = ?3) \
    AND run_id IN (SELECT run_id FROM runs WHERE node = ?1 AND output_removed_us < ?2)";

pub(crate) const EXPIRE_POSTGRES: &str = "WITH present AS (SELECT node FROM nodes \
    WHERE node = $1 AND generation = $3 FOR KEY SHARE) \
    DELETE FROM consumers WHERE node IN (SELECT node FROM present) \
    AND run_id IN (SELECT run_id FROM runs WHERE node = $1 AND output_removed_us < $2) \
    RETURNING run_id || '/' || name";

/// How many consumers a run (or many runs) has, and how many the node.
pub(crate) const COUNT: &str = "SELECT COUNT(*) AS of_node, \
    COUNT(CASE WHEN run_id = $2 THEN 1 END) AS of_run FROM consumers WHERE node = $1";

/// A change of one.
#[derive(Debug)]
pub(crate) enum ConsumerWrite {
    /// It is so.
    Put(ConsumerRow),
    /// It is no more.
    Delete(NodeId, ConsumerKey),
    /// Those of runs whose output was removed before this time are no more.
    Expire(NodeId, Timestamp),
}

impl ConsumerWrite {
    /// What may be in a transaction once.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Put(row) => row.key.text(),
            Self::Delete(_, key) => key.text(),
            Self::Expire(..) => "/".to_owned(),
        }
    }

    /// Bytes that a client decides over.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Put(row) => row.cursor.len(),
            Self::Delete(..) | Self::Expire(..) => 0,
        }
    }
}

/// Binds what a statement for this write names, in order, the generation last.
macro_rules! bind {
    ($query:expr, $write:expr, $generation:expr) => {{
        use $crate::consumer::ConsumerWrite as W;
        let query = $query;
        match $write {
            W::Put(row) => query
                .bind(row.node.to_string())
                .bind(row.key.run.map(|run| run.to_string()).unwrap_or_default())
                .bind(row.key.name.clone())
                .bind(row.owner.clone())
                .bind($crate::consumer::number(row.session))
                .bind($crate::consumer::number(row.acked))
                .bind(row.cursor.clone())
                .bind(row.created.0)
                .bind(row.acked_at.map(|at| at.0)),
            W::Delete(node, key) => query
                .bind(node.to_string())
                .bind(key.run.map(|run| run.to_string()).unwrap_or_default())
                .bind(key.name.clone()),
            W::Expire(node, before) => query.bind(node.to_string()).bind(before.0),
        }
        .bind($generation)
    }};
}
pub(crate) use bind;

/// As a column has it: no run has so many events that it matters.
pub(crate) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The statement for these rows.
pub(crate) fn select<DB>(node: NodeId, filter: &ConsumerFilter, limit: u32) -> QueryBuilder<DB>
where
    DB: Database,
    for<'t> String: Encode<'t, DB> + Type<DB>,
    for<'t> i64: Encode<'t, DB> + Type<DB>,
{
    let mut sql = QueryBuilder::new(format!("SELECT {COLUMNS} FROM consumers WHERE node = "));
    sql.push_bind(node.to_string());
    if let Some(run) = filter.run {
        let run = run.map(|run| run.to_string()).unwrap_or_default();
        sql.push(" AND run_id = ").push_bind(run);
    }
    if let Some(name) = &filter.name {
        sql.push(" AND name = ").push_bind(name.clone());
    }
    if let Some(owner) = &filter.owner {
        sql.push(" AND owner = ").push_bind(owner.clone());
    }
    if let Some(after) = &filter.after {
        sql.push(" AND (run_id, name) > (")
            .push_bind(after.run_text())
            .push(", ")
            .push_bind(after.name.clone())
            .push(")");
    }
    sql.push(" ORDER BY run_id, name LIMIT ")
        .push_bind(i64::from(limit));
    sql
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` gives it")]
fn corrupt(error: sqlx::Error) -> StoreError {
    StoreError::Corrupt(error.to_string())
}

/// A consumer out of either database.
pub(crate) fn row<R>(row: &R) -> Result<ConsumerRow, StoreError>
where
    R: Row,
    for<'a> &'a str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Option<i64>: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    let text = |name: &str| row.try_get::<String, _>(name).map_err(corrupt);
    let number = |name: &str| row.try_get::<i64, _>(name).map_err(corrupt);
    let name = text("name")?;
    let unreadable =
        |what: String| StoreError::Corrupt(format!("consumer {name:?}: cannot read {what}"));
    let unsigned = |column: &str| {
        let found = number(column)?;
        u64::try_from(found).map_err(|_| unreadable(format!("{column} {found}")))
    };
    let run = text("run_id")?;
    let run = match &*run {
        "" => None,
        run => Some(record::read_id("run_id", run).map_err(unreadable)?),
    };
    Ok(ConsumerRow {
        node: record::read_id("node", &text("node")?).map_err(unreadable)?,
        owner: text("owner")?,
        session: unsigned("session")?,
        acked: unsigned("acked")?,
        cursor: row.try_get("cursor_bytes").map_err(corrupt)?,
        created: Timestamp(number("created_us")?),
        acked_at: row
            .try_get::<Option<i64>, _>("acked_us")
            .map_err(corrupt)?
            .map(Timestamp),
        key: ConsumerKey {
            run,
            name: name.clone(),
        },
    })
}

/// The two numbers of [`COUNT`], that of the run first.
pub(crate) fn counts<R>(row: &R) -> Result<(u64, u64), StoreError>
where
    R: Row,
    for<'a> &'a str: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let number = |name: &str| row.try_get::<i64, _>(name).map_err(corrupt);
    Ok((
        number("of_run")?.unsigned_abs(),
        number("of_node")?.unsigned_abs(),
    ))
}
