//! A PgBouncer of the test's own before its Postgres: in transaction mode, so that each transaction gets another session.

use crate::{
    PATIENCE, Postgres,
    postgres::{DATABASE, NAME, unprivileged_user},
    wait::eventually,
};
use nix::unistd::chown;
use std::{
    fs::{self, File},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// Path in Debian.
const BINARY: &str = "/usr/sbin/pgbouncer";
const PORT: u16 = 6432;

/// Sessions for all clients, in turn, none older than a second; a waiting client gets an early error.
const SETTINGS: &str = "pool_mode = transaction\nserver_round_robin = 1\nserver_lifetime = 1\n\
    server_login_retry = 1\nquery_wait_timeout = 3\nlog_connections = 1";

/// A running pooler; ended when dropped.
pub struct PgBouncer {
    dir: TempDir,
    process: Option<Child>,
}

impl PgBouncer {
    /// Starts one before this cluster, with two sessions for all clients, and waits until it listens.
    pub async fn start(postgres: &Postgres) -> Self {
        Self::with_sessions(postgres, 2).await
    }

    /// Likewise, with so many sessions.
    pub async fn with_sessions(postgres: &Postgres, sessions: u32) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("kennel-pgbouncer-")
            .tempdir()
            .expect("a temporary directory can be made");
        let ini = format!(
            "[databases]\n* = host={cluster} user={NAME}\n[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\n\
             unix_socket_dir = {own}\nauth_type = any\n\
             default_pool_size = {sessions}\n{SETTINGS}\n",
            cluster = postgres.socket_dir().display(),
            own = dir.path().display(),
        );
        fs::write(dir.path().join("pgbouncer.ini"), ini).expect("own directory");
        File::create(dir.path().join("log")).expect("own directory");
        if let Some((uid, gid)) = unprivileged_user() {
            chown(dir.path(), Some(uid), Some(gid)).expect("root may give a directory away");
        }
        let mut bouncer = Self { dir, process: None };
        bouncer.run().await;
        bouncer
    }

    /// Returns the `--store` value.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_in(self.dir.path())
    }

    /// Returns the `--store` value with its socket in another directory.
    #[must_use]
    pub fn url_in(&self, dir: &Path) -> String {
        Self::url_of(dir)
    }

    pub(crate) fn url_of(dir: &Path) -> String {
        let dir = dir.display();
        format!("postgres://{NAME}@localhost:{PORT}/{DATABASE}?host={dir}")
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().expect("own child");
        process.wait().expect("own child");
    }

    /// Starts it again.
    pub async fn run(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let socket = self.socket();
        // A kill leaves the socket behind.
        let _ = fs::remove_file(&socket);
        let log = File::options().append(true).open(self.log_file());
        let mut command = Command::new(BINARY);
        command
            .arg(self.dir.path().join("pgbouncer.ini"))
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("it was made"));
        if let Some((uid, gid)) = unprivileged_user() {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
        let process = command.spawn();
        self.process = Some(process.expect("pgbouncer starts; `make tools` installs it"));
        eventually("pgbouncer listens", PATIENCE, || {
            UnixStream::connect(&socket).ok()
        })
        .await;
    }

    /// Returns how many sessions of Postgres it has opened so far.
    #[must_use]
    pub fn sessions_opened(&self) -> usize {
        let log = fs::read_to_string(self.log_file()).expect("it was made");
        log.matches("new connection to server").count()
    }

    /// Returns the socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(format!(".s.PGSQL.{PORT}"))
    }

    fn log_file(&self) -> PathBuf {
        Path::new(self.dir.path()).join("log")
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.log_file()).unwrap_or_default();
            eprintln!("--- log of pgbouncer ---\n{log}");
        }
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
