//! Named consumers of events: the row of each, and the SQL of both databases.

use crate::{StoreError, reader::Columns, record, sql::Sql};
use kennel_lifecycle::{NodeId, RunId, Timestamp};

/// Key of a consumer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerKey {
    /// The run that it reads; absent: a multi-run stream, by a filter.
    pub run: Option<RunId>,
    /// Owner that registered it.
    pub owner: String,
    /// Its name, among those of its owner.
    pub name: String,
}

impl ConsumerKey {
    pub(crate) fn run_text(&self) -> String {
        self.run.map(|run| run.to_string()).unwrap_or_default()
    }

    /// Text that is no run's key.
    pub(crate) fn text(&self) -> String {
        format!("{}/{}/{}", self.run_text(), self.name, self.owner)
    }

    /// Returns the fencing error of the consumer: with its run, or the id of none.
    pub(crate) fn fenced(&self) -> StoreError {
        StoreError::Fenced(self.run.unwrap_or(RunId::from_u128(0)))
    }
}

/// A named consumer and its acknowledged position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRow {
    /// Key of the consumer.
    pub key: ConsumerKey,
    /// Node whose runs it reads.
    pub node: NodeId,
    /// Session number, incremented by each reader.
    pub session: u64,
    /// Acknowledged position: the seq for a run, the message number for a multi-run stream.
    pub acked: u64,
    /// That position, as a client gets it.
    pub cursor: Vec<u8>,
    /// Time of its registration.
    pub created: Timestamp,
    /// Time of the last acknowledgement.
    pub acked_at: Option<Timestamp>,
}

/// Filter on the consumers of a node, in the order of their keys: those of multi-run streams come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerFilter {
    /// Consumers of this run alone, or of multi-run streams alone (`Some(None)`); absent: all.
    pub run: Option<Option<RunId>>,
    /// Consumers of this name alone.
    pub name: Option<String>,
    /// Consumers of this owner alone.
    pub owner: Option<String>,
    /// Consumers after this one.
    pub after: Option<ConsumerKey>,
}

const COLUMNS: &str =
    "node, run_id, name, owner, session, acked, cursor_bytes, created_us, acked_us";

/// Of two writes of one consumer the less advanced one changes nothing, in either order.
const PUT_OVER: &str = "ON CONFLICT (node, run_id, owner, name) DO UPDATE SET session = excluded.session, \
    acked = excluded.acked, cursor_bytes = excluded.cursor_bytes, acked_us = excluded.acked_us \
    WHERE consumers.created_us = excluded.created_us AND consumers.session <= excluded.session \
    AND consumers.acked <= excluded.acked";

/// Consumers of node `$1`, of its present generation, that end; with the parameter of the generation and the lock of the
/// node's row.
fn delete(generation: &str, lock: &str) -> String {
    format!(
        "WITH present AS (SELECT n.node FROM nodes n WHERE n.node = $1 AND n.generation = {generation}{lock}) \
         DELETE FROM consumers WHERE node IN (SELECT node FROM present) AND "
    )
}

/// Gives [`ConsumerChange::key`].
const GIVES: &str = " RETURNING run_id || '/' || name || '/' || owner";

/// Counts the consumers of an owner: of a run (or of multi-run streams), and all of the node.
pub(crate) const COUNT: &str = "SELECT COUNT(*) AS of_node, \
    COUNT(CASE WHEN run_id = $2 THEN 1 END) AS of_run FROM consumers WHERE node = $1 AND owner = $3";

/// A change of named consumers. `Fenced`: the generation is not the node's present one, or the consumer as the change has
/// it is less advanced than the stored one, or another one of the same name.
#[derive(Clone, Debug)]
pub enum ConsumerChange {
    /// The consumer is to be as in this row: registered, or advanced.
    Put(ConsumerRow),
    /// The consumer is to be deleted; there may be none.
    Delete(NodeId, ConsumerKey),
    /// Consumers of runs whose output was removed before this time are to be deleted.
    Expire(NodeId, Timestamp),
}

impl ConsumerChange {
    /// Key that may be in a transaction once.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Put(row) => row.key.text(),
            Self::Delete(_, key) => key.text(),
            Self::Expire(..) => "/".to_owned(),
        }
    }

    /// Returns the statement, with the lock that the node's row gets.
    pub(crate) fn statement(&self, lock: &str) -> String {
        let text = match self {
            Self::Put(_) => format!(
                "INSERT INTO consumers ({COLUMNS}) SELECT n.node, $2, $3, $4, $5, $6, $7, $8, $9 FROM nodes n \
                 WHERE n.node = $1 AND n.generation = $10{lock} {PUT_OVER}"
            ),
            Self::Delete(..) => delete("$5", lock) + "run_id = $2 AND owner = $3 AND name = $4",
            Self::Expire(..) => {
                delete("$3", lock)
                    + "run_id IN (SELECT run_id FROM runs WHERE node = $1 \
                       AND CASE WHEN output_age IS NULL THEN ended_us ELSE output_removed_us END < $2 \
                       UNION ALL SELECT c.run_id FROM consumers c WHERE c.node = $1 AND c.run_id <> '' \
                       AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = c.run_id))"
            }
        };
        text + GIVES
    }

    /// Size in bytes, of the parts that a client chooses.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Put(row) => row.cursor.len(),
            Self::Delete(..) | Self::Expire(..) => 0,
        }
    }
}

/// Binds the parameters of a statement for this write, in order, the generation last.
macro_rules! bind {
    ($query:expr, $write:expr, $generation:expr) => {{
        use $crate::consumer::ConsumerChange as W;
        let query = $query;
        match $write {
            W::Put(row) => query
                .bind(row.node.to_string())
                .bind(row.key.run.map(|run| run.to_string()).unwrap_or_default())
                .bind(row.key.name.clone())
                .bind(row.key.owner.clone())
                .bind($crate::consumer::number(row.session))
                .bind($crate::consumer::number(row.acked))
                .bind(row.cursor.clone())
                .bind(row.created.0)
                .bind(row.acked_at.map(|at| at.0)),
            W::Delete(node, key) => query
                .bind(node.to_string())
                .bind(key.run.map(|run| run.to_string()).unwrap_or_default())
                .bind(key.owner.clone())
                .bind(key.name.clone()),
            W::Expire(node, before) => query.bind(node.to_string()).bind(before.0),
        }
        .bind($generation)
    }};
}
pub(crate) use bind;

/// Converts to a column's type: no run has so many events that it matters.
pub(crate) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Builds the statement for these rows.
pub(crate) fn select(node: NodeId, filter: &ConsumerFilter, limit: u32) -> Sql {
    let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM consumers WHERE node = "));
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
        sql.push(" AND (run_id, owner, name) > (")
            .push_bind(after.run_text())
            .push(", ")
            .push_bind(after.owner.clone())
            .push(", ")
            .push_bind(after.name.clone())
            .push(")");
    }
    sql.push(" ORDER BY run_id, owner, name LIMIT ")
        .push_bind(i64::from(limit));
    sql
}

/// Reads a consumer from a row.
pub(crate) fn row(row: &impl Columns) -> Result<ConsumerRow, StoreError> {
    let name: String = row.column("name")?;
    let unreadable =
        |what: String| StoreError::Corrupt(format!("consumer {name:?}: cannot read {what}"));
    let unsigned = |column: &str| {
        let found: i64 = row.column(column)?;
        u64::try_from(found).map_err(|_| unreadable(format!("{column} {found}")))
    };
    let run: String = row.column("run_id")?;
    let run = match &*run {
        "" => None,
        run => Some(record::read_id("run_id", run).map_err(unreadable)?),
    };
    let node: String = row.column("node")?;
    Ok(ConsumerRow {
        node: record::read_id("node", &node).map_err(unreadable)?,
        session: unsigned("session")?,
        acked: unsigned("acked")?,
        cursor: row.column("cursor_bytes")?,
        created: Timestamp(row.column("created_us")?),
        acked_at: row.column::<Option<_>>("acked_us")?.map(Timestamp),
        key: ConsumerKey {
            run,
            owner: row.column("owner")?,
            name: name.clone(),
        },
    })
}

/// Reads the two numbers of [`COUNT`], that of the run first.
pub(crate) fn counts(row: &impl Columns) -> Result<(u64, u64), StoreError> {
    let number = |name: &str| row.column::<i64>(name).map(i64::unsigned_abs);
    Ok((number("of_run")?, number("of_node")?))
}
