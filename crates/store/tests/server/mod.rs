//! A real Postgres for tests: a cluster of its own, or the server that `KENNEL_TEST_POSTGRES` names.

mod bouncer;
#[path = "../../../../tests/src/postgres/template.rs"]
mod template;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::{
    fs, io,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Variable with a server to be used instead of a cluster of the test's own; its user must be allowed to create
/// schemas.
pub(crate) const SERVER_VARIABLE: &str = "KENNEL_TEST_POSTGRES";
/// Directory of the binaries in Debian, by version.
const BINARIES: &str = "/usr/lib/postgresql";
/// A role that has to give a password; every other role on the socket is trusted.
pub(crate) const ROLE: &str = "kennel";
/// Its password.
pub(crate) const PASSWORD: &str = "correct horse";
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why there is no Postgres to test with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostgresServerError {
    /// The binaries are missing.
    #[error(
        "no Postgres under {BINARIES}: `make test` installs it (Debian package postgresql), or set \
         {SERVER_VARIABLE} to the URL of a server"
    )]
    NotInstalled,
    /// There is no pooler.
    #[error("no PgBouncer: `make test` installs it (Debian package pgbouncer)")]
    NoBouncer,
    /// The server is not the test's own, so that nothing can be put before it.
    #[error("a pooler needs a cluster of the test's own")]
    NotOwn,
    /// A call on files or processes failed.
    #[error("cannot {what} for the test's Postgres")]
    Io {
        /// The attempted action.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server does not answer.
    #[error("the test's Postgres does not answer within {START_TIMEOUT:?}: {log}")]
    Silent {
        /// Its log.
        log: String,
    },
    /// A statement of the fixture was refused.
    #[error("the test's Postgres refused a statement")]
    Sql(#[from] sqlx::Error),
}

/// A running server. A cluster of the test's own is stopped and removed when this is dropped.
#[derive(Debug)]
pub(crate) struct PostgresServer {
    /// Parameters that reach it, without user, password and search path.
    base: String,
    cluster: Option<Cluster>,
    schemas: AtomicU32,
}

#[derive(Debug)]
struct Cluster {
    dir: TempDir,
    binaries: PathBuf,
    process: Option<Child>,
}

impl PostgresServer {
    /// Starts the server of [`SERVER_VARIABLE`] if it is set, else a cluster of its own.
    pub(crate) async fn start() -> Result<Self, PostgresServerError> {
        match std::env::var(SERVER_VARIABLE) {
            Ok(url) => Ok(Self {
                base: url,
                cluster: None,
                schemas: AtomicU32::new(0),
            }),
            Err(_) => Self::start_own().await,
        }
    }

    /// Starts a cluster of its own in any case: one that may be stopped.
    pub(crate) async fn start_own() -> Result<Self, PostgresServerError> {
        let binaries = newest_binaries().ok_or(PostgresServerError::NotInstalled)?;
        let dir = tempfile::Builder::new()
            .prefix("kennel-pg-")
            .tempdir()
            .map_err(io_error("make a directory"))?;
        if we_are_root() {
            hand_over(dir.path())?;
        }
        let socket = dir.path().display();
        let base = format!("postgres://localhost/postgres?host={socket}");
        let cluster = Cluster {
            dir,
            binaries,
            process: None,
        };
        cluster.init()?;
        let mut server = Self {
            base,
            cluster: Some(cluster),
            schemas: AtomicU32::new(0),
        };
        server.resume().await?;
        let role = format!("CREATE ROLE {ROLE} LOGIN SUPERUSER PASSWORD '{PASSWORD}'");
        let mut conn = server.connect().await?;
        sqlx::query(AssertSqlSafe(role)).execute(&mut conn).await?;
        conn.close().await?;
        Ok(server)
    }

    /// Creates a new, empty schema, and returns the address of a store.
    pub(crate) async fn schema(&self) -> Result<String, PostgresServerError> {
        let number = self.schemas.fetch_add(1, Ordering::Relaxed);
        let name = format!("kennel_test_{}_{number}", std::process::id());
        let mut conn = self.connect().await?;
        let create = format!("CREATE SCHEMA {name}");
        sqlx::query(AssertSqlSafe(create))
            .execute(&mut conn)
            .await?;
        conn.close().await?;
        let url = self.url(None);
        Ok(format!("{url}&options=-c%20search_path%3D{name}"))
    }

    /// Removes the schemas of [`PostgresServer::schema`]; only needed on a server that is not the test's own.
    pub(crate) async fn drop_schemas(&self) -> Result<(), PostgresServerError> {
        let mut conn = self.connect().await?;
        for number in 0..self.schemas.load(Ordering::Relaxed) {
            let pid = std::process::id();
            let drop = format!("DROP SCHEMA IF EXISTS kennel_test_{pid}_{number} CASCADE");
            sqlx::query(AssertSqlSafe(drop)).execute(&mut conn).await?;
        }
        conn.close().await?;
        Ok(())
    }

    /// Returns the address for this user and password; without them, for the superuser.
    #[must_use]
    pub(crate) fn url(&self, login: Option<(&str, &str)>) -> String {
        let joint = if self.base.contains('?') { '&' } else { '?' };
        let base = &self.base;
        match (login, &self.cluster) {
            (Some((user, password)), _) => {
                format!("{base}{joint}user={user}&password={password}")
            }
            (None, Some(_)) => format!("{base}{joint}user=postgres"),
            (None, None) => format!("{base}{joint}application_name=kennel_test"),
        }
    }

    /// Returns the directory of the socket of a cluster of its own.
    #[must_use]
    pub(crate) fn socket_dir(&self) -> Option<&Path> {
        self.cluster.as_ref().map(|cluster| cluster.dir.path())
    }

    /// Ends the cluster as a crash does, without closing connections. It can be resumed.
    pub(crate) fn crash(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            cluster.stop("-QUIT");
        }
    }

    /// After [`Self::crash`]: lets it come back as a standby, which follows no server.
    pub(crate) fn demote(&self) -> Result<(), PostgresServerError> {
        let Some(cluster) = &self.cluster else {
            return Ok(());
        };
        let signal = cluster.data().join("standby.signal");
        fs::write(signal, "").map_err(io_error("write standby.signal"))
    }

    /// Starts the cluster again, and waits until it answers.
    pub(crate) async fn resume(&mut self) -> Result<(), PostgresServerError> {
        let Some(cluster) = &mut self.cluster else {
            return Ok(());
        };
        cluster.start()?;
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Ok(conn) = self.connect().await {
                conn.close().await?;
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        let log = self.cluster.as_ref().map(Cluster::log);
        Err(PostgresServerError::Silent {
            log: log.unwrap_or_default(),
        })
    }

    /// Returns a database of a cluster of its own as statements of SQL that each version of Postgres reads.
    pub(crate) fn dump(&self, database: &str) -> Result<String, PostgresServerError> {
        let cluster = self.cluster.as_ref().ok_or(PostgresServerError::NotOwn)?;
        let output = as_postgres(&cluster.binaries.join("pg_dump"))?
            .arg("-h")
            .arg(cluster.dir.path())
            .args([
                "-U",
                "postgres",
                "--inserts",
                "--no-owner",
                "--no-privileges",
                database,
            ])
            .current_dir(cluster.dir.path())
            .output()
            .map_err(io_error("run pg_dump"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Session settings and psql commands depend on the version, and all names are schema-qualified.
        let is_sql = |line: &&str| {
            let others = ["SET ", "SELECT pg_catalog.set_config", "\\", "--"];
            !line.is_empty() && !others.iter().any(|other| line.starts_with(other))
        };
        let lines: Vec<_> = text.lines().filter(is_sql).collect();
        Ok(lines.join("\n") + "\n")
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        PgConnection::connect(&self.url(None)).await
    }
}

impl Cluster {
    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn init(&self) -> Result<(), PostgresServerError> {
        let owner = if we_are_root() {
            Some(postgres_ids()?)
        } else {
            None
        };
        let locale = "--locale=C.UTF-8";
        let words = ["-U", "postgres", "-A", "trust", "-E", "UTF8", locale];
        template::unpack(&self.binaries, owner, &words, &self.data())
            .map_err(io_error("make a cluster"))?;
        let rules = format!("local all {ROLE} scram-sha-256\nlocal all all trust\n");
        fs::write(self.data().join("pg_hba.conf"), rules).map_err(io_error("write pg_hba.conf"))
    }

    fn start(&mut self) -> Result<(), PostgresServerError> {
        let log = fs::File::create(self.dir.path().join("log")).map_err(io_error("make a log"))?;
        let process = as_postgres(&self.binaries.join("postgres"))?
            .arg("-D")
            .arg(self.data())
            .arg("-k")
            .arg(self.dir.path())
            .args(["-c", "listen_addresses="])
            // Shared memory is in the cluster's directory, not in /dev/shm: a crash leaves nothing elsewhere.
            .args(["-c", "dynamic_shared_memory_type=mmap"])
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // A terminal's Ctrl-C ends the test, which then ends the cluster.
            .process_group(0)
            .spawn()
            .map_err(io_error("start postgres"))?;
        self.process = Some(process);
        Ok(())
    }

    /// Terminates the server by this signal, at last by SIGKILL, and waits for it.
    fn stop(&mut self, signal: &str) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        let pid = process.id().to_string();
        // A failed kill means that the process has exited, which the wait below finds.
        let _ = Command::new("kill").args([signal, &pid]).status();
        let deadline = std::time::Instant::now() + STOP_TIMEOUT;
        while matches!(process.try_wait(), Ok(None)) {
            if std::time::Instant::now() > deadline {
                let _ = process.kill();
                let _ = process.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Immediate shutdown: no data is needed.
        self.stop("-QUIT");
    }
}

fn newest_binaries() -> Option<PathBuf> {
    let versions = fs::read_dir(BINARIES).ok()?.flatten();
    versions
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            let binaries = entry.path().join("bin");
            binaries
                .join("initdb")
                .exists()
                .then_some((version, binaries))
        })
        .max()
        .map(|(_, binaries)| binaries)
}

/// Postgres refuses to run as root, so root becomes the package's user first. Without a program in between, so that the
/// child is Postgres itself and a signal reaches it.
fn as_postgres(program: &Path) -> Result<Command, PostgresServerError> {
    let mut command = Command::new(program);
    if we_are_root() {
        let (uid, gid) = postgres_ids()?;
        command.uid(uid).gid(gid);
    }
    Ok(command)
}

/// Gives a directory to the package's user.
fn hand_over(dir: &Path) -> Result<(), PostgresServerError> {
    let (uid, gid) = postgres_ids()?;
    chown(dir, Some(uid), Some(gid)).map_err(io_error("hand over a directory"))
}

fn we_are_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Returns user and group of the package.
fn postgres_ids() -> Result<(u32, u32), PostgresServerError> {
    Ok((id_of("-u")?, id_of("-g")?))
}

fn id_of(which: &str) -> Result<u32, PostgresServerError> {
    let output = Command::new("id")
        .args([which, "postgres"])
        .output()
        .map_err(io_error("run id"))?;
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|_| PostgresServerError::NotInstalled)
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> PostgresServerError {
    move |source| PostgresServerError::Io { what, source }
}
