//! Connections to Postgres: to a session of its own, or through a pooler that gives each transaction any free session.
//!
//! Behind such a pooler (PgBouncer in transaction mode) nothing may be left in a session: no prepared statement, no
//! setting, no lock. Each query is then a complete transaction, which costs three round trips more. The kind needs no
//! setting: the start of a session carries a mark that only the session's own start can have given it, and a pooler
//! refuses or drops it.

use super::life;
use crate::{
    StoreUrl,
    life::Lives,
    reader::{Row, RowReader, Where},
    sql::Sql,
    writer::Failure,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use sqlx::{
    ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction,
    pool::PoolConnection,
    postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow},
    query::Query,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Connections that read at the same time.
const READERS_MAX: u32 = 8;
/// Longest wait for a connection, new or from the pool.
pub(super) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// A parameter that Postgres does not know, and retains.
const MARK: &str = "kennel.session";
const IS_MARKED: &str = "SELECT COALESCE(current_setting('kennel.session', true), '') = 'own'";

/// Writes must survive a crash even where the database's own default is to answer before the disk has them.
const DURABLE_SESSION: &str = "SELECT set_config('synchronous_commit', 'on', false) \
    WHERE current_setting('synchronous_commit') = 'off'";
/// The same for one transaction, with its BEGIN.
const DURABLE_TRANSACTION: &str = "BEGIN; SELECT set_config('synchronous_commit', 'on', true) \
    WHERE current_setting('synchronous_commit') = 'off'";

/// Owner of the server's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    /// This connection, for as long as it lives.
    Own,
    /// Another session for each transaction.
    Shared,
}

/// Connection options, and findings about the connection.
#[derive(Debug)]
pub(super) struct Link {
    logins: Mutex<Logins>,
    /// Once a pooler was found it counts as there until the next start: statements that work behind one work without.
    is_shared: AtomicBool,
    /// Lives of Postgres found at the server.
    pub(super) lives: Lives,
}

/// Connection options by owner of the session.
#[derive(Clone, Debug)]
struct Logins {
    url: StoreUrl,
    own: PgConnectOptions,
    shared: PgConnectOptions,
}

impl Logins {
    fn new(url: StoreUrl, options: PgConnectOptions) -> Self {
        // No column is a floating-point number, and a pooler refuses unknown parameters.
        let shared = options.disable_statement_logging().extra_float_digits(None);
        Self {
            own: shared.clone().options([(MARK, "own")]),
            shared,
            url,
        }
    }
}

impl Link {
    pub(super) fn new(url: StoreUrl, options: PgConnectOptions) -> Self {
        Self {
            logins: Mutex::new(Logins::new(url, options)),
            is_shared: AtomicBool::new(false),
            lives: Lives::default(),
        }
    }

    fn logins(&self) -> Logins {
        self.logins.lock().clone()
    }

    /// Reads the options again after a failed login; whether they are others, so that another login may succeed.
    fn reread(&self) -> bool {
        let mut logins = self.logins.lock();
        let Some(url) = logins.url.reread() else {
            return false;
        };
        let Some(options) = url.connect_options() else {
            return false;
        };
        tracing::info!(store = %url, "the file with the URL of the database has changed, logging in with its content");
        *logins = Logins::new(url, options);
        true
    }

    pub(super) fn session(&self) -> Session {
        if self.is_shared.load(Ordering::Relaxed) {
            Session::Shared
        } else {
            Session::Own
        }
    }

    /// Opens a connection for writing.
    pub(super) async fn connect(&self) -> Result<(PgConnection, Session), sqlx::Error> {
        match self.log_in().await {
            Err(_) if self.reread() => self.log_in().await,
            connected => connected,
        }
    }

    async fn log_in(&self) -> Result<(PgConnection, Session), sqlx::Error> {
        let Logins { own, shared, .. } = self.logins();
        if self.session() == Session::Own {
            match PgConnection::connect_with(&own).await {
                Ok(mut conn) => {
                    if is_marked(&mut conn).await? {
                        sqlx::raw_sql(DURABLE_SESSION).execute(&mut conn).await?;
                        self.lives.meet(&life::ask(&mut conn).await?);
                        return Ok((conn, Session::Own));
                    }
                    self.met_a_pooler();
                }
                Err(error) if shows_pooler(&error) => self.met_a_pooler(),
                Err(error) => return Err(error),
            }
        }
        let conn = PgConnection::connect_with(&shared).await?;
        Ok((conn, Session::Shared))
    }

    /// Checks the life of the session. One of its own was checked when it began; behind a pooler each transaction may
    /// be in another life. Nothing is done in a life in which the node was not acquired.
    pub(super) async fn look_where(
        &self,
        conn: &mut PgConnection,
        session: Session,
    ) -> Result<(), sqlx::Error> {
        if session == Session::Shared {
            self.lives.meet(&life::ask(conn).await?);
        }
        self.lives.check()
    }

    /// Checks a fault of a connection that was taken for a session of its own.
    pub(super) fn look_at(&self, error: &sqlx::Error) {
        if shows_pooler(error) {
            self.met_a_pooler();
        }
    }

    fn met_a_pooler(&self) {
        if !self.is_shared.swap(true, Ordering::Relaxed) {
            tracing::info!("a connection pooler is in use: each query is a transaction of its own");
        }
    }
}

async fn is_marked(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let row = sqlx::raw_sql(IS_MARKED).fetch_one(conn).await?;
    sqlx::Row::try_get(&row, 0)
}

/// Whether the error shows a pooler, by SQLSTATE: a parameter at the start that Postgres would have taken; a prepared
/// statement that is gone, or that another client has prepared.
fn shows_pooler(error: &sqlx::Error) -> bool {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("08P01" | "26000" | "42P05"))
}

/// Begins a transaction whose commit is on the disk when it is answered.
pub(super) async fn begin(
    conn: &mut PgConnection,
    session: Session,
) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    match session {
        Session::Own => conn.begin().await,
        Session::Shared => conn.begin_with(DURABLE_TRANSACTION).await,
    }
}

/// Connections for reading.
#[derive(Debug)]
pub(super) struct Readers {
    link: Arc<Link>,
    own: PgPool,
    shared: PgPool,
    /// The address whose options the pools have.
    url: Mutex<StoreUrl>,
}

impl Readers {
    pub(super) fn new(link: Arc<Link>) -> Self {
        let pool = || {
            PgPoolOptions::new()
                .max_connections(READERS_MAX)
                .acquire_timeout(ACQUIRE_TIMEOUT)
        };
        let looking = Arc::clone(&link);
        let own = pool().after_connect(move |conn, _| {
            let link = Arc::clone(&looking);
            Box::pin(async move {
                if is_marked(conn).await? {
                    link.lives.meet(&life::ask(conn).await?);
                    return Ok(());
                }
                link.met_a_pooler();
                Err(sqlx::Error::Protocol("a pooler is in between".into()))
            })
        });
        let logins = link.logins();
        Self {
            own: own.connect_lazy_with(logins.own),
            shared: pool().connect_lazy_with(logins.shared),
            url: Mutex::new(logins.url),
            link,
        }
    }

    /// Returns a connection of a pool. The options may be others than when the pool was made.
    async fn lend(&self, pool: &PgPool) -> Result<LentConnection, sqlx::Error> {
        let lent = match pool.acquire().await {
            Err(_) if self.use_current_logins() => pool.acquire().await,
            lent => lent,
        };
        Ok(LentConnection(Some(lent?)))
    }

    /// Gives the pools the options as they are in their file; whether they had others.
    fn use_current_logins(&self) -> bool {
        self.link.reread();
        let Logins { url, own, shared } = self.link.logins();
        let mut former = self.url.lock();
        if *former == url {
            return false;
        }
        *former = url;
        self.own.set_connect_options(own);
        self.shared.set_connect_options(shared);
        true
    }

    async fn rows_of_own(
        &self,
        query: Query<'_, Postgres, PgArguments>,
        life: Where,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut lent = self.lend(&self.own).await?;
        if life == Where::Taken {
            self.link.lives.check()?;
        }
        let rows = query.fetch_all(lent.connection()).await?;
        lent.give_back();
        Ok(rows)
    }

    async fn rows_of_shared(
        &self,
        query: Query<'_, Postgres, PgArguments>,
        life: Where,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut lent = self.lend(&self.shared).await?;
        // An unnamed statement lives until the next: a transaction has the session to itself.
        let mut tx = lent.connection().begin_with("BEGIN READ ONLY").await?;
        if life == Where::Taken {
            self.link.look_where(&mut tx, Session::Shared).await?;
        }
        let rows = query.persistent(false).fetch_all(&mut *tx).await?;
        tx.commit().await?;
        lent.give_back();
        Ok(rows)
    }
}

#[async_trait]
impl RowReader for Readers {
    async fn rows(&self, sql: Sql, life: Where) -> Result<Vec<Row>, sqlx::Error> {
        let rows = match self.link.session() {
            Session::Own => self.rows_of_own(sql.query(), life).await,
            Session::Shared => self.rows_of_shared(sql.query(), life).await,
        };
        if let Err(error) = &rows {
            self.link.look_at(error);
        }
        Ok(rows?.into_iter().map(Row::Postgres).collect())
    }

    fn failure(&self, error: &sqlx::Error) -> Failure {
        super::failure(error)
    }

    async fn close(&self) {
        self.own.close().await;
        self.shared.close().await;
    }
}

/// A connection of a pool that is closed where its query was abandoned: the pool would wait for its answer, and lend no
/// other client one meanwhile.
struct LentConnection(Option<PoolConnection<Postgres>>);

impl LentConnection {
    fn connection(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("it is there until it is given back")
    }

    fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for LentConnection {
    fn drop(&mut self) {
        if let Some(conn) = self.0.take() {
            drop(conn.detach());
        }
    }
}
