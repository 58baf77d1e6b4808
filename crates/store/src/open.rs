//! Opening a store: the connection, the schema, and their errors.

use crate::{
    Age, Contract, EpochRow, LeftStop, Life, MIGRATIONS, Migration, NodeRemoval, NodeRow,
    SchemaState, Store, StoreError, StoreUrl, StoredNode, WithOutput,
    database::Database,
    database_store::DatabaseStore,
    json, postgres,
    reader::{Columns, Dialect},
    record, sqlite,
    url::StoreLocation,
};
use kennel_lifecycle::{HostIdentity, StopOrder, Timestamp};
use std::{path::PathBuf, str::FromStr, sync::Arc, time::Duration};

/// Reason why a store cannot be used. No message shows a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The SQLite file cannot be opened or created.
    #[error("cannot open the SQLite database {path:?}: {why}")]
    SqliteFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, or what to look at.
        why: &'static str,
        /// SQLite's error.
        #[source]
        source: sqlx::Error,
    },
    /// The SQLite file is a symbolic link.
    #[error("the SQLite database {} is a symbolic link, which is not followed: name the file itself", path.display())]
    SqliteLink {
        /// The link.
        path: PathBuf,
    },
    /// The SQLite in this program is too old to be trusted with a WAL.
    #[error(
        "SQLite {found} can corrupt its write-ahead log: build Kennel with the bundled one, 3.51.3 or newer"
    )]
    SqliteTooOld {
        /// Its version.
        found: String,
    },
    /// No server answers there, or not in the protocol of Postgres.
    #[error(
        "cannot connect to {url}: check that Postgres runs there and that host, port and sslmode are right"
    )]
    PostgresConnect {
        /// The address, without its password.
        url: String,
        /// The cause.
        #[source]
        source: sqlx::Error,
    },
    /// The server does not answer in time.
    #[error(
        "{url} did not answer within {wait:?}: check that Postgres runs there and that nothing is in between"
    )]
    PostgresSilent {
        /// The address, without its password.
        url: String,
        /// The time that it was given.
        wait: Duration,
    },
    /// User or password are wrong.
    #[error("{url} refuses the user or the password: check both, and pg_hba.conf of the server")]
    PostgresCredentials {
        /// The address, without its password.
        url: String,
        /// Postgres' error.
        #[source]
        source: sqlx::Error,
    },
    /// There is no such database.
    #[error("there is no such database at {url}: make it with createdb")]
    PostgresDatabase {
        /// The address, without its password.
        url: String,
        /// Postgres' error.
        #[source]
        source: sqlx::Error,
    },
    /// The schema cannot be read, or a migration failed; it has left nothing behind.
    #[error(
        "cannot bring the schema up to date: check that the database user may read and change the tables there"
    )]
    Migration(#[source] sqlx::Error),
    /// The schema lacks a migration, and the database user may not apply it.
    #[error(
        "the schema of the database is too old, it lacks migration {missing}, and its user may not change it: run `kennel \
         migrate` with the URL of a user who may"
    )]
    SchemaTooOld {
        /// Number and name of the first that is missing.
        missing: String,
        /// The database's error.
        #[source]
        source: sqlx::Error,
    },
    /// Nodes use what a migration takes away.
    #[error(
        "the schema cannot be contracted to level {min_level}, older nodes use it: upgrade or forget {nodes}"
    )]
    NodesBelow {
        /// Least level of a server from then on.
        min_level: i64,
        /// Names and levels of these nodes.
        nodes: String,
    },
    /// A table that a migration would make exists, and no migration of Kennel has made it.
    #[error(
        "cannot make the tables, those of another program are in the way: give Kennel a database of its own"
    )]
    TableInTheWay(#[source] sqlx::Error),
    /// The database is another program's: an SQLite file with tables and none of Kennel, or migrations of that program.
    #[error(
        "it is the database of another program, and is left as it is: give Kennel one of its own"
    )]
    ForeignDatabase,
    /// The schema query got no answer, or another migration does not finish.
    #[error(
        "the schema was not brought up to date within {wait:?}: check what the database is doing, and whether another \
         Kennel is migrating it"
    )]
    MigrationSilent {
        /// The time that it was given.
        wait: Duration,
    },
    /// The user lacks rights on tables that are there.
    #[error(
        "the database user has no {missing}: grant it SELECT, INSERT, UPDATE and DELETE on all tables of Kennel"
    )]
    RightsMissing {
        /// Rights and tables, such as `DELETE on runs`.
        missing: String,
    },
    /// A migration that was applied before differs from that of this program.
    #[error(
        "migration {version} of the database is another one than that of this Kennel: use the Kennel that made it, or another database"
    )]
    SchemaDiffers {
        /// Number of the migration.
        version: i64,
    },
    /// The schema was contracted: it is for later versions of Kennel alone.
    #[error(
        "SCHEMA_TOO_NEW: the schema of the database requires level {min_level}, and this Kennel has level {level}: use a newer \
         Kennel, or another database"
    )]
    SchemaTooNew {
        /// Least level of a server that may use it.
        min_level: i64,
        /// Level of this program.
        level: i64,
    },
}

impl OpenError {
    /// Whether the same call may succeed later although no person changes a setting, a right or the schema: the database is
    /// down, starting, full, or silent.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::PostgresSilent { .. } | Self::MigrationSilent { .. } => true,
            Self::PostgresConnect { source, .. } | Self::Migration(source) => {
                postgres::is_transient(source)
            }
            _ => false,
        }
    }

    /// Whether the schema does not fit this program; another one may.
    pub fn is_of_schema(&self) -> bool {
        matches!(
            self,
            Self::Migration(_)
                | Self::TableInTheWay(_)
                | Self::ForeignDatabase
                | Self::RightsMissing { .. }
                | Self::SchemaDiffers { .. }
                | Self::SchemaTooNew { .. }
                | Self::SchemaTooOld { .. }
        )
    }

    /// Whether a lock of the database was waited for in vain.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Migration(error) if code(error).as_deref() == Some("55P03"))
    }

    /// Adds what can be done about the failure of a migration.
    pub(crate) fn at(self, missing: String) -> Self {
        let Self::Migration(source) = self else {
            return self;
        };
        match code(&source).as_deref() {
            // Missing privilege; read-only file.
            Some("42501" | "8") => Self::SchemaTooOld { missing, source },
            // A table, index or type exists already: SQLite has no code for it.
            Some("42P07" | "42710") => Self::TableInTheWay(source),
            Some("1") if source.to_string().ends_with("already exists") => {
                Self::TableInTheWay(source)
            }
            _ => Self::Migration(source),
        }
    }
}

/// Returns the code of the database: SQLSTATE, or SQLite's number.
fn code(error: &sqlx::Error) -> Option<String> {
    let code = error.as_database_error()?.code()?;
    Some(code.into_owned())
}

/// Connects, checks, and brings the schema up to date.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>, OpenError> {
    open_with(url, MIGRATIONS).await
}

/// Opens as a Kennel with these migrations: an earlier or a later one.
pub async fn open_with(
    url: &StoreUrl,
    known: &'static [Migration],
) -> Result<Arc<dyn Store>, OpenError> {
    let db = database(url, known).await?;
    Ok(Arc::new(DatabaseStore::of(db, url)))
}

pub(crate) async fn database(
    url: &StoreUrl,
    known: &'static [Migration],
) -> Result<Database, OpenError> {
    match url.place() {
        StoreLocation::Sqlite(path) => sqlite::open(path, known).await,
        StoreLocation::Postgres(address) => postgres::open(address, url, known).await,
    }
}

/// Applies the migrations that the database lacks, as another user than the service or before it is started; or says what
/// they are. A missing SQLite file is not made.
pub async fn migrate(
    url: &StoreUrl,
    known: &[Migration],
    contract: Contract,
    dry_run: bool,
) -> Result<SchemaState, OpenError> {
    match url.place() {
        StoreLocation::Sqlite(path) => sqlite::migrate(path, known, contract, dry_run).await,
        StoreLocation::Postgres(address) => {
            postgres::migrate(address, url, known, contract, dry_run).await
        }
    }
}

/// `$1` node, `$2` name, `$3` keeper epoch, `$4` now, `$5` the last known generation, `$6` address, `$7` duration of
/// the lease, `$8` a keeper that is verified to have exited, `$9` start of its drain; returns the new generation, and
/// nothing where another keeper has the lease.
pub(crate) fn raise_generation(now: &str, may_be_held: bool, level: i64) -> String {
    let is_free = if may_be_held {
        format!(
            "nodes.keeper_epoch IN (excluded.keeper_epoch, CAST($8 AS TEXT)) OR nodes.heard_us + nodes.lease_us < {now}"
        )
    } else {
        "$8 = $8 OR TRUE".to_owned()
    };
    format!(
        "INSERT INTO nodes (node, name, generation, keeper_epoch, opened_us, address, heard_us, lease_us, draining_us, level, level_us) \
        VALUES ($1, $2, CAST($5 AS BIGINT) + 1, $3, $4, $6, {now}, $7, $9, {level}, {now}) ON CONFLICT (node) DO UPDATE SET name = excluded.name, \
        generation = CASE WHEN nodes.generation < excluded.generation THEN excluded.generation \
            ELSE nodes.generation + 1 END, keeper_epoch = excluded.keeper_epoch, opened_us = excluded.opened_us, \
        address = excluded.address, heard_us = excluded.heard_us, lease_us = excluded.lease_us, forgotten_us = NULL, \
        draining_us = excluded.draining_us, {} WHERE {is_free} \
        RETURNING generation",
        set_level(now, level)
    )
}

/// The level of the node's server, and since when it has it.
fn set_level(now: &str, level: i64) -> String {
    format!(
        "level = {level}, level_us = CASE WHEN nodes.level = {level} THEN nodes.level_us ELSE {now} END"
    )
}

/// Renews or gives up the lease of node `$1` of generation `$2`, which is draining since `$3`.
pub(crate) fn lease(now: &str, given_up: bool, level: i64) -> String {
    let change = if given_up {
        // A node with an open run is not ended: its lease only counts as expired.
        format!("lease_us = CASE WHEN EXISTS ({OPEN_RUN}) THEN 1 ELSE 0 END")
    } else {
        format!("heard_us = {now}, {}", set_level(now, level))
    };
    format!("UPDATE nodes SET {change}, draining_us = $3 WHERE node = $1 AND generation = $2")
}

/// Selects an open run of a row of `nodes`.
const OPEN_RUN: &str = "SELECT 1 FROM runs r WHERE r.node = nodes.node AND r.end_reason IS NULL";

/// Tables whose rows go with their node, and the nodes themselves, in this order.
pub(crate) const OF_NODE: [&str; 4] = ["left_stops", "consumers", "keeper_epochs", "nodes"];
/// Nodes that are removed in one transaction.
const REMOVED_MAX: u32 = 32;

/// Selects nodes without an open run that may be removed: `$1` is the node, `$2` a time in microseconds.
pub(crate) fn removable(now: &str, which: &NodeRemoval) -> String {
    let condition = match which {
        // The asking server's node stays, whatever its clock did.
        NodeRemoval::WithoutLeaseFor { .. } => "node <> $1".to_owned(),
        NodeRemoval::Node(_) => "node = $1".to_owned(),
        NodeRemoval::Unused(_) => {
            let refers = ["left_stops", "consumers", "runs"];
            let refers = refers.map(|table| {
                format!(" AND NOT EXISTS (SELECT 1 FROM {table} t WHERE t.node = nodes.node)")
            });
            format!("node = $1 AND lease_us = 0{}", refers.concat())
        }
    };
    format!(
        "SELECT node FROM nodes WHERE {condition} AND heard_us + lease_us + $2 < {now} \
        AND NOT EXISTS ({OPEN_RUN}) ORDER BY node LIMIT {REMOVED_MAX}"
    )
}

/// Gives node `$1`, whose lease has expired, to the keeper `$2`; returns the new generation.
pub(crate) fn forget(now: &str) -> String {
    format!(
        "UPDATE nodes SET generation = generation + 1, keeper_epoch = $2, lease_us = 0, forgotten_us = {now}, draining_us = NULL \
        WHERE node = $1 AND heard_us + lease_us < {now} RETURNING generation"
    )
}

/// Selects the life of the database, the state of node `$1` there, and the least level of a server.
pub(crate) fn ask_standing(Dialect { life, now, .. }: &Dialect) -> String {
    format!(
        "SELECT {life} AS life, n.generation, n.keeper_epoch, n.heard_us + n.lease_us - {now} AS left_us, \
        s.min_level FROM schema_level s LEFT JOIN nodes n ON n.node = $1"
    )
}

/// Records the keeper as a process; a keeper that has been recorded before, under an earlier server, gets the new
/// generation.
pub(crate) const RECORD_KEEPER: &str = "INSERT INTO keeper_epochs (keeper_epoch, node, generation, process_pid, \
    process_group_id, session_id, start_ticks, pidfs_handle, boot_id, pidns_inode, \
    pidns_init_start_ticks, opened_us) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (keeper_epoch) DO UPDATE SET \
    generation = excluded.generation WHERE keeper_epochs.node = excluded.node";

/// `$1` run, `$2` node, `$3` grace, `$4` reason, `$5` now; with the lock that the row gets.
macro_rules! leave_stop {
    ($lock:literal) => {
        concat!(
            "INSERT INTO left_stops (run_id, node, grace_us, reason_detail, asked_us) \
             SELECT run_id, node, $3, $4, $5 FROM runs WHERE run_id = $1 AND node = $2 AND end_reason IS NULL",
            $lock,
            " ON CONFLICT (run_id) DO UPDATE SET grace_us = excluded.grace_us \
             WHERE excluded.grace_us < left_stops.grace_us"
        )
    };
}
pub(crate) use leave_stop;

/// `$1` run, `$2` node, `$3` grace: a stop that was shortened meanwhile is still to be carried out.
pub(crate) const REMOVE_LEFT_STOP: &str =
    "DELETE FROM left_stops WHERE run_id = $1 AND node = $2 AND grace_us = $3";

/// `$1` node, `$2` a JSON array of runs, which `elements` makes rows of, `$3` their present keeper.
pub(crate) fn hand_over(elements: &str) -> String {
    format!(
        "UPDATE runs SET seq = runs.seq + 1, keeper_epoch = $3 WHERE node = $1 AND run_id IN (SELECT {elements}) \
        AND end_reason IS NULL AND keeper_epoch <> $3"
    )
}

/// Declares `open_node` for a connection of one of the two kinds: the same statements, none of which depends on the
/// session.
macro_rules! open_node {
    ($connection:ty) => {
        async fn open_node(
            conn: &mut $connection,
            opening: &$crate::Opening,
            level: i64,
        ) -> Result<$crate::writer::Answer, sqlx::Error> {
            let node = opening.node.to_string();
            let epoch = opening.keeper_epoch.to_string();
            sqlx::query(LOCK_NODE)
                .bind(&node)
                .persistent(false)
                .execute(&mut *conn)
                .await?;
            let raise =
                sqlx::AssertSqlSafe($crate::open::raise_generation(NOW, MAY_BE_HELD, level));
            let generation: Option<i64> = sqlx::query_scalar(raise)
                .bind(&node)
                .bind(&opening.node_name)
                .bind(&epoch)
                .bind(opening.now.0)
                .bind(opening.above)
                .bind(&opening.address)
                .bind($crate::open::micros(opening.lease))
                .bind(opening.gone.map(|epoch| epoch.to_string()))
                .bind(opening.draining.map(|since| since.0))
                .persistent(false)
                .fetch_optional(&mut *conn)
                .await?;
            let Some(generation) = generation else {
                return Ok($crate::writer::Answer::NotWritten);
            };
            let keeper = opening.keeper;
            let recorded = sqlx::query($crate::open::RECORD_KEEPER)
                .bind(&epoch)
                .bind(&node)
                .bind(generation)
                .bind(i64::from(keeper.pid))
                .bind(i64::from(keeper.pgid))
                .bind(i64::from(keeper.sid))
                .bind(keeper.start_ticks.cast_signed())
                .bind(keeper.pidfs_handle.map(u64::cast_signed))
                .bind(&opening.host.boot_id)
                .bind(opening.host.pidns_inode.cast_signed())
                .bind(opening.host.init_start_ticks.map(u64::cast_signed))
                .bind(opening.now.0)
                .persistent(false)
                .execute(&mut *conn)
                .await?;
            if recorded.rows_affected() == 0 {
                // The error rolls everything back, above all the raised generation.
                return Err(sqlx::Error::Encode(
                    format!("keeper {epoch} was recorded for another node").into(),
                ));
            }
            if !opening.held.is_empty() {
                sqlx::query(sqlx::AssertSqlSafe($crate::open::hand_over(ELEMENTS)))
                    .bind(&node)
                    .bind($crate::json::write(&opening.held))
                    .bind(&epoch)
                    .persistent(false)
                    .execute(&mut *conn)
                    .await?;
            }
            Ok($crate::writer::Answer::Generation(generation))
        }

        async fn forget_node(
            conn: &mut $connection,
            node: kennel_lifecycle::NodeId,
            keeper_epoch: kennel_lifecycle::KeeperEpoch,
        ) -> Result<$crate::writer::Answer, sqlx::Error> {
            let node = node.to_string();
            sqlx::query(LOCK_NODE)
                .bind(&node)
                .persistent(false)
                .execute(&mut *conn)
                .await?;
            let forget = sqlx::AssertSqlSafe($crate::open::forget(NOW));
            let generation: Option<i64> = sqlx::query_scalar(forget)
                .bind(&node)
                .bind(keeper_epoch.to_string())
                .persistent(false)
                .fetch_optional(&mut *conn)
                .await?;
            let Some(generation) = generation else {
                return Ok($crate::writer::Answer::NotWritten);
            };
            Ok($crate::writer::Answer::Generation(generation))
        }

        async fn remove_nodes(
            conn: &mut $connection,
            which: &$crate::NodeRemoval,
        ) -> Result<$crate::writer::Answer, sqlx::Error> {
            let select = $crate::open::removable(NOW, which) + LOCK_REMOVED;
            let nodes: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(select))
                .bind(which.node().to_string())
                .bind($crate::open::micros(which.without_lease_for()))
                .persistent(false)
                .fetch_all(&mut *conn)
                .await?;
            for node in &nodes {
                for table in $crate::open::OF_NODE {
                    let delete = format!("DELETE FROM {table} WHERE node = $1");
                    sqlx::query(sqlx::AssertSqlSafe(delete))
                        .bind(node)
                        .persistent(false)
                        .execute(&mut *conn)
                        .await?;
                }
            }
            Ok(match nodes.is_empty() {
                true => $crate::writer::Answer::NotWritten,
                false => $crate::writer::Answer::Written($crate::Age::NONE),
            })
        }
    };
}
pub(crate) use open_node;

/// Reads the age of a run.
pub(crate) fn age(row: &impl Columns) -> Result<Age, StoreError> {
    row.column("age").map(Age)
}

/// Reads an id from its column.
pub(crate) fn id<T: FromStr>(row: &impl Columns, column: &str) -> Result<T, StoreError> {
    let text: String = row.column(column)?;
    record::read_id(column, &text).map_err(StoreError::Corrupt)
}

/// Reads an ended run that has its output.
pub(crate) fn with_output(row: &impl Columns) -> Result<WithOutput, StoreError> {
    Ok(WithOutput {
        run: id(row, "run_id")?,
        owner: row.column("owner")?,
        ended: Timestamp(row.column("ended_us")?),
        age: Age(row.column("output_age")?),
    })
}

/// Reads the state of a node.
pub(crate) fn stored_node(row: &impl Columns) -> Result<StoredNode, StoreError> {
    let keeper_epoch: Option<String> = row.column("keeper_epoch")?;
    let left: Option<i64> = row.column("left_us")?;
    let life: String = row.column("life")?;
    Ok(StoredNode {
        life: Life::named(life),
        generation: row.column("generation")?,
        keeper_epoch: keeper_epoch
            .map(|epoch| record::read_id("keeper_epoch", &epoch))
            .transpose()
            .map_err(StoreError::Corrupt)?,
        lease_left: duration(left.unwrap_or(0)),
    })
}

/// Converts to the stored form.
pub(crate) fn micros(duration: Duration) -> i64 {
    duration.as_micros().try_into().unwrap_or(i64::MAX)
}

/// Converts from the stored form; a negative value is zero.
fn duration(micros: i64) -> Duration {
    Duration::from_micros(micros.try_into().unwrap_or(0))
}

/// Reads a node.
pub(crate) fn node_row(row: &impl Columns) -> Result<NodeRow, StoreError> {
    Ok(NodeRow {
        node: id(row, "node")?,
        name: row.column("name")?,
        address: row.column("address")?,
        heard: Timestamp(row.column("heard_us")?),
        lease: duration(row.column("lease_us")?),
        keeper_epoch: id(row, "keeper_epoch")?,
        forgotten: row.column::<Option<_>>("forgotten_us")?.map(Timestamp),
        draining: row.column::<Option<_>>("draining_us")?.map(Timestamp),
        now: Timestamp(row.column("now_us")?),
    })
}

/// Reads a stop that is left.
pub(crate) fn left_stop(row: &impl Columns) -> Result<LeftStop, StoreError> {
    let reason: String = row.column("reason_detail")?;
    Ok(LeftStop {
        run: id(row, "run_id")?,
        order: StopOrder {
            reason: json::read("reason_detail", &reason).map_err(StoreError::Corrupt)?,
            grace: duration(row.column("grace_us")?),
        },
        asked: Timestamp(row.column("asked_us")?),
    })
}

/// Reads a keeper.
pub(crate) fn epoch_row(row: &impl Columns) -> Result<EpochRow, StoreError> {
    let number = |name: &str| row.column::<i64>(name);
    let epoch: String = row.column("keeper_epoch")?;
    let unreadable =
        |what: String| StoreError::Corrupt(format!("keeper {epoch}: cannot read {what}"));
    let keeper = record::process(
        [
            Some(number("process_pid")?),
            Some(number("process_group_id")?),
            Some(number("session_id")?),
        ],
        Some(number("start_ticks")?),
        row.column("pidfs_handle")?,
    )
    .map_err(unreadable)?
    .ok_or_else(|| unreadable("its process".into()))?;
    let begun: Option<i64> = row.column("pidns_init_start_ticks")?;
    Ok(EpochRow {
        has_open: number("has_open")? > 0,
        keeper_epoch: record::read_id("keeper_epoch", &epoch).map_err(unreadable)?,
        keeper,
        host: HostIdentity {
            boot_id: row.column("boot_id")?,
            pidns_inode: number("pidns_inode")?.cast_unsigned(),
            init_start_ticks: begun.map(i64::cast_unsigned),
        },
    })
}
