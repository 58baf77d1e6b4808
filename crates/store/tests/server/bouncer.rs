//! A PgBouncer in transaction mode before the test's Postgres, which gives each transaction another session.

use super::{PostgresServer, PostgresServerError, as_postgres, hand_over, io_error, we_are_root};
use sqlx::{AssertSqlSafe, Connection, PgConnection, postgres::PgConnectOptions};
use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Stdio},
    sync::atomic::Ordering,
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Path in Debian.
const BINARY: &str = "/usr/sbin/pgbouncer";
/// The same as the server's: only the directory of the socket differs.
const PORT: u16 = 5432;
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running pooler; terminated when this is dropped.
#[derive(Debug)]
pub(crate) struct Bouncer {
    dir: TempDir,
    process: Child,
}

impl PostgresServer {
    /// Starts a pooler before this server, which has to be a cluster of its own; with further lines for its settings.
    pub(crate) async fn bouncer(&self, settings: &str) -> Result<Bouncer, PostgresServerError> {
        if !Path::new(BINARY).exists() {
            return Err(PostgresServerError::NoBouncer);
        }
        let cluster = self.socket_dir().ok_or(PostgresServerError::NotOwn)?;
        let dir = tempfile::Builder::new()
            .prefix("kennel-pgbouncer-")
            .tempdir()
            .map_err(io_error("make a directory"))?;
        let ini = dir.path().join("pgbouncer.ini");
        // Idle sessions are closed: each case has its own database, and the server limits sessions.
        let text = format!(
            "[databases]\n* = host={cluster} user=postgres\n[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\n\
             unix_socket_dir = {own}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 3\n\
             server_round_robin = 1\nserver_idle_timeout = 2\n{settings}\n",
            cluster = cluster.display(),
            own = dir.path().display(),
        );
        fs::write(&ini, text).map_err(io_error("write pgbouncer.ini"))?;
        if we_are_root() {
            hand_over(dir.path())?;
        }
        let log = fs::File::create(dir.path().join("log")).map_err(io_error("make a log"))?;
        let process = as_postgres(Path::new(BINARY))?
            .arg(&ini)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(io_error("start pgbouncer"))?;
        let bouncer = Bouncer { dir, process };
        bouncer.answers().await?;
        Ok(bouncer)
    }

    /// Creates a new, empty database, and returns the address of a store behind the pooler.
    pub(crate) async fn database(&self, bouncer: &Bouncer) -> Result<String, PostgresServerError> {
        let number = self.schemas.fetch_add(1, Ordering::Relaxed);
        let name = format!("kennel_test_{number}");
        let mut conn = self.connect().await?;
        let create = format!("CREATE DATABASE {name}");
        sqlx::query(AssertSqlSafe(create))
            .execute(&mut conn)
            .await?;
        conn.close().await?;
        Ok(bouncer.url(&name))
    }
}

impl Bouncer {
    /// Returns the directory of its socket.
    #[must_use]
    pub(crate) fn socket_dir(&self) -> &Path {
        self.dir.path()
    }

    fn url(&self, database: &str) -> String {
        let dir = self.dir.path().display();
        format!("postgres://kennel@localhost:{PORT}/{database}?host={dir}")
    }

    async fn answers(&self) -> Result<(), PostgresServerError> {
        let options: PgConnectOptions = self.url("postgres").parse()?;
        let options = options.extra_float_digits(None);
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Ok(conn) = PgConnection::connect_with(&options).await {
                conn.close().await?;
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        let log = fs::read_to_string(self.dir.path().join("log"));
        Err(PostgresServerError::Silent {
            log: log.unwrap_or_default(),
        })
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        // PgBouncer has nothing to save.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
