//! Postgres: one connection that writes, a pool that reads.

mod failure;
mod life;
mod link;
mod rights;
mod statements;

use self::failure::failure;
pub(crate) use self::failure::is_transient;
use self::link::{ACQUIRE_TIMEOUT, Link, Readers, Session};
use self::statements::{LOCK_WITHDRAWN, WITHDRAW};
use crate::{
    Age, Contract, Migration, OpenError, SchemaState, StoreUrl,
    consumer::{self, ConsumerChange},
    database::Database,
    history,
    open::{self},
    put::OwnRows,
    reader::{Dialect, STATEMENT_TIMEOUT, connected},
    record::{ColumnPart, Record, Statements},
    schema::{self, SchemaAdmission},
    writer::{Answer, Committer, Failure, Write, Writer},
};
use async_trait::async_trait;
use kennel_lifecycle::{NodeId, RunId, Timestamp};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Postgres, Row,
    postgres::{PgArguments, PgConnectOptions},
    query::Query,
};
use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::timeout;

/// Longest wait for the first connection.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects and brings the schema up to date. `address` is the address of `url` with its password.
pub(crate) async fn open(
    address: &str,
    url: &StoreUrl,
    known: &'static [Migration],
) -> Result<Database, OpenError> {
    let link = Arc::new(link(address, url)?);
    let (mut conn, session, version) = reach(&link, url).await?;
    rights::check(&mut conn).await?;
    let schema = schema::bring_up_to_date(&mut conn, known).await?;
    let admission = SchemaAdmission::new(known);
    let pooled = match session {
        Session::Own => "",
        Session::Shared => " behind a pooler",
    };
    let writer = |conn| {
        let committer = PostgresCommitter {
            link: Arc::clone(&link),
            conn,
            sql: statements::build(),
            level: admission.level,
            in_doubt: false,
        };
        Writer::start(Box::new(committer))
    };
    Ok(Database {
        writer: writer(Some((conn, session))),
        leases: Some(writer(None)),
        reader: Box::new(Readers::new(link)),
        dialect: &DIALECT,
        description: format!("postgres {version}{pooled}, schema {schema}"),
        admission,
        own: OnceLock::new(),
        own_rows: OwnRows::default(),
    })
}

/// Applies the missing migrations, as the user of this URL.
pub(crate) async fn migrate(
    address: &str,
    url: &StoreUrl,
    known: &[Migration],
    contract: Contract,
    dry_run: bool,
) -> Result<SchemaState, OpenError> {
    let (mut conn, ..) = reach(&link(address, url)?, url).await?;
    schema::apply(&mut conn, known, contract, dry_run).await
}

fn link(address: &str, url: &StoreUrl) -> Result<Link, OpenError> {
    let options: PgConnectOptions = address
        .parse()
        .map_err(|source| open_error(url.to_string(), source))?;
    Ok(Link::new(url.clone(), options))
}

/// Opens the first connection, and returns the version of the server.
async fn reach(link: &Link, url: &StoreUrl) -> Result<(PgConnection, Session, String), OpenError> {
    match timeout(OPEN_TIMEOUT, connect(link)).await {
        Ok(reached) => reached.map_err(|source| open_error(url.to_string(), source)),
        Err(_) => Err(OpenError::PostgresSilent {
            url: url.to_string(),
            wait: OPEN_TIMEOUT,
        }),
    }
}

async fn connect(link: &Link) -> Result<(PgConnection, Session, String), sqlx::Error> {
    let (mut conn, session) = link.connect().await?;
    let row = sqlx::raw_sql("SHOW server_version")
        .fetch_one(&mut conn)
        .await?;
    let version: String = row.try_get(0)?;
    let version = version.split(' ').next().unwrap_or_default().to_owned();
    Ok((conn, session, version))
}

/// Converts by SQLSTATE (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).
fn open_error(url: String, source: sqlx::Error) -> OpenError {
    let code = source
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .map(std::borrow::Cow::into_owned)
        .unwrap_or_default();
    match code.as_str() {
        "28P01" | "28000" => OpenError::PostgresCredentials { url, source },
        "3D000" => OpenError::PostgresDatabase { url, source },
        _ => OpenError::PostgresConnect { url, source },
    }
}

struct PostgresCommitter {
    link: Arc<Link>,
    /// The connection; absent after a fault: the state of a broken connection is not known, so it is never used again.
    conn: Option<(PgConnection, Session)>,
    sql: Statements,
    /// Level of the schema that this program has.
    level: i64,
    /// Whether the present transaction may have been committed.
    in_doubt: bool,
}

/// Present time, in microseconds.
pub(crate) const NOW: &str = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)";

/// A batch by statement. No run is in it twice, so the order of the statements is free: those that lock the node
/// come first, as in `open_node`, or the two could wait for each other.
#[derive(Default)]
struct Sorted<'a> {
    inserts: Vec<&'a Record>,
    mends: Vec<&'a Record>,
    puts: Vec<&'a Record>,
    rare_puts: Vec<&'a Record>,
    withdrawals: Vec<(RunId, NodeId, i64)>,
    consumers: Vec<(&'a ConsumerChange, i64)>,
    leases: Vec<PgQuery<'a>>,
    left_stops: Vec<PgQuery<'a>>,
}

impl<'a> Sorted<'a> {
    fn new(batch: &'a [Write], level: i64) -> Self {
        let mut sorted = Self::default();
        for write in batch {
            match write {
                Write::Insert(record) => sorted.inserts.push(record),
                Write::Mend(record) => sorted.mends.push(record),
                Write::Put { record, part, .. } => match part {
                    ColumnPart::Rare => sorted.rare_puts.push(record),
                    _ => sorted.puts.push(record),
                },
                Write::Withdraw(run, node, at) => sorted.withdrawals.push((*run, *node, *at)),
                Write::Consumer { write, generation } => {
                    sorted.consumers.push((write, *generation));
                }
                Write::Lease {
                    node,
                    generation,
                    given_up,
                    draining,
                } => sorted
                    .leases
                    .push(lease(level, *node, *generation, *given_up, *draining)),
                Write::LeaveStop(stop) => sorted.left_stops.push(stop.leave(LEAVE_STOP).query()),
                Write::RemoveLeftStop(stop) => sorted.left_stops.push(stop.remove().query()),
                // Each such write has its own batch, which is not sorted.
                Write::Open(_)
                | Write::Forget { .. }
                | Write::RemoveNodes(_)
                | Write::RemoveRows(_) => {}
            }
        }
        sorted
    }

    /// Returns the statements in their order: those that lock a node come before those that do not.
    fn queries(self, sql: &Statements) -> Vec<PgQuery<'a>> {
        let mut queries = self.leases;
        for (write, generation) in self.consumers {
            // As an INSERT of a run: a new generation waits for it, or it for the new generation.
            let text = AssertSqlSafe(write.statement(" FOR KEY SHARE OF n"));
            queries.push(consumer::bind!(sqlx::query(text), write, generation));
        }
        let whole = [
            (self.inserts, &sql.insert),
            (self.mends, &sql.mend),
            (self.puts, &sql.puts[0]),
            (self.rare_puts, &sql.puts[1]),
        ];
        for (records, sql) in whole {
            if !records.is_empty() {
                let query = sqlx::query(AssertSqlSafe(sql.clone()));
                queries.push(Record::bind_postgres(&records, query));
            }
        }
        for (run, node, generation) in self.withdrawals {
            for text in [LOCK_WITHDRAWN, WITHDRAW] {
                let run = sqlx::query(text).bind(run.to_string());
                queries.push(run.bind(node.to_string()).bind(generation));
            }
        }
        queries.extend(self.left_stops);
        queries
    }
}

/// Runs the statements; returns what was written, inserted runs with their ages.
async fn execute(
    queries: Vec<PgQuery<'_>>,
    conn: &mut PgConnection,
    session: Session,
) -> Result<HashMap<String, Age>, sqlx::Error> {
    let mut written = HashMap::new();
    for query in queries {
        let query = query.persistent(session == Session::Own);
        for row in query.fetch_all(&mut *conn).await? {
            // Only an INSERT returns the age.
            let age = if row.len() > 1 { row.try_get(1)? } else { 0 };
            written.insert(row.try_get(0)?, Age(age));
        }
    }
    Ok(written)
}

type PgQuery<'q> = Query<'q, Postgres, PgArguments>;

/// The statement for the lease of a node.
fn lease<'q>(
    level: i64,
    node: NodeId,
    generation: i64,
    given_up: bool,
    draining: Option<Timestamp>,
) -> PgQuery<'q> {
    let gives = " RETURNING 'node ' || node || CASE WHEN EXISTS \
        (SELECT 1 FROM left_stops s WHERE s.node = nodes.node) THEN ' left' ELSE '' END";
    let lease = sqlx::query(AssertSqlSafe(open::lease(NOW, given_up, level) + gives));
    let lease = lease.bind(node.to_string()).bind(generation);
    lease.bind(draining.map(|since| since.0))
}

impl PostgresCommitter {
    /// Returns the connection; a new one where there is none.
    async fn connection(&mut self) -> Result<(PgConnection, Session), Failure> {
        if let Some(conn) = self.conn.take() {
            return Ok(conn);
        }
        let connecting = self.link.connect();
        connected(connecting, ACQUIRE_TIMEOUT, "postgres could not be reached").await
    }

    async fn transact(
        &mut self,
        conn: &mut PgConnection,
        session: Session,
        batch: &[Write],
    ) -> Result<Vec<Answer>, sqlx::Error> {
        self.in_doubt = false;
        if let [Write::Open(opening)] = batch {
            let mut tx = link::begin(conn, session).await?;
            let answer = open_node(&mut tx, opening, self.level).await?;
            let life = life::ask(&mut tx).await?;
            self.in_doubt = true;
            tx.commit().await?;
            if answer != Answer::NotWritten {
                self.link.lives.take(life);
            }
            return Ok(vec![answer]);
        }
        if let [write] = batch
            && write.has_own_transaction()
        {
            let mut tx = link::begin(conn, session).await?;
            self.link.look_where(&mut tx, session).await?;
            let answer = match write {
                Write::Forget { node, keeper_epoch } => {
                    forget_node(&mut tx, *node, *keeper_epoch).await?
                }
                Write::RemoveNodes(which) => remove_nodes(&mut tx, which).await?,
                Write::RemoveRows(removal) => remove_rows(&mut tx, removal).await?,
                _ => Answer::NotWritten,
            };
            self.in_doubt = true;
            tx.commit().await?;
            return Ok(vec![answer]);
        }
        self.link.lives.check()?;
        let queries = Sorted::new(batch, self.level).queries(&self.sql);
        let written = if session == Session::Own && queries.len() == 1 {
            // One statement is its own transaction, which saves two round trips.
            self.in_doubt = true;
            execute(queries, conn, session).await?
        } else {
            let mut tx = link::begin(conn, session).await?;
            self.link.look_where(&mut tx, session).await?;
            let written = execute(queries, &mut tx, session).await?;
            self.in_doubt = true;
            tx.commit().await?;
            written
        };
        let answer = |write: &Write| {
            let Some(key) = write.key() else {
                return Answer::NotWritten;
            };
            match written.get(&key) {
                Some(age) => Answer::Written(*age),
                None if written.contains_key(&format!("{key} left")) => Answer::Left,
                None => Answer::NotWritten,
            }
        };
        Ok(batch.iter().map(answer).collect())
    }
}

#[async_trait]
impl Committer for PostgresCommitter {
    async fn commit(&mut self, batch: &[Write]) -> Result<Vec<Answer>, Failure> {
        let (mut conn, session) = self.connection().await?;
        let transaction = self.transact(&mut conn, session, batch);
        let failure = match timeout(STATEMENT_TIMEOUT, transaction).await {
            Ok(Ok(answers)) => {
                self.conn = Some((conn, session));
                return Ok(answers);
            }
            Ok(Err(error)) => {
                self.link.look_at(&error);
                failure(&error)
            }
            Err(_) => Failure::Unknown(format!(
                "postgres did not answer within {STATEMENT_TIMEOUT:?}"
            )),
        };
        match failure {
            Failure::Refused(_) => self.conn = Some((conn, session)),
            Failure::Unavailable(_) | Failure::Unknown(_) => drop(conn),
        }
        match failure {
            // COMMIT was not sent and never will be.
            Failure::Unknown(why) if !self.in_doubt => Err(Failure::Unavailable(why)),
            failure => Err(failure),
        }
    }

    async fn idle(&mut self) {
        if let Some((mut conn, session)) = self.conn.take()
            && let Ok(Ok(())) = timeout(ACQUIRE_TIMEOUT, conn.ping()).await
        {
            self.conn = Some((conn, session));
        }
    }

    async fn close(mut self: Box<Self>) {
        if let Some((conn, _)) = self.conn.take()
            && let Err(error) = conn.close().await
        {
            tracing::debug!(%error, "the connection to Postgres was lost before it was closed");
        }
    }
}

open::open_node!(PgConnection);
history::remove_rows!(PgConnection);

// FOR KEY SHARE: a run that never began is withdrawn before this statement, or not at all.
const LEAVE_STOP: &str = open::leave_stop!(" FOR KEY SHARE OF runs");
/// The transaction that raises the generation waits for rows that are written under the present one.
const LOCK_NODE: &str = "SELECT 1 FROM nodes WHERE node = $1 FOR UPDATE";
/// A node that comes back waits until its row is gone; one that another server removes is that server's.
const LOCK_REMOVED: &str = " FOR UPDATE SKIP LOCKED";

/// The elements of a JSON array, as rows.
const ELEMENTS: &str = "jsonb_array_elements_text($2::jsonb)";

/// Several servers may claim the same node in a database.
const MAY_BE_HELD: bool = true;

static DIALECT: Dialect = Dialect {
    now: NOW,
    life: life::words!(),
    // Reports the state of a new session: behind a pooler the query itself runs in a read-only transaction.
    ping: "SELECT NOT pg_is_in_recovery() AND NOT current_setting('default_transaction_read_only')::boolean \
        AS takes_writes, (SELECT 1 FROM nodes LIMIT 1)",
    stray_node: Some(history::STRAY_NODE),
    reversed_id: Some("(reverse(run_id) COLLATE \"C\")"),
    labels_text: "labels::text AS labels",
    labels_rows: "jsonb_each_text(labels)",
};
