//! A real Postgres of the test's own: a cluster in a temporary directory, on a unix socket only, never run by root.

mod template;

use crate::{
    PATIENCE,
    kennel::kill_exactly,
    procfs::{self, Proc},
    shell,
    wait::eventually,
};
use nix::{
    sys::signal::Signal,
    unistd::{Gid, Uid, User, chown},
};
use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// Superuser of the cluster.
pub const NAME: &str = "kennel";

/// Database of the cluster: the one that initdb makes, since another takes as long as the cluster's start.
pub const DATABASE: &str = "postgres";

/// Name of a prepared transaction that belongs to no session.
const HELD: &str = "held-by-a-test";

/// Follows children, stops at `fdatasync` alone, and adds a millisecond to it.
const SLOW_FLUSH: [&str; 6] = [
    "-f",
    "--seccomp-bpf",
    "-e",
    "trace=fdatasync",
    "-e",
    "inject=fdatasync:delay_exit=1000",
];

/// A running cluster; stopped and removed when dropped.
pub struct Postgres {
    dir: TempDir,
    binaries: PathBuf,
    user: Option<(Uid, Gid)>,
    server: Option<Child>,
    flush: Flush,
}

/// Duration of a flush.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    /// As long as the disk needs.
    Plain,
    /// A millisecond more: every `fdatasync` is delayed by strace(1), all other system calls run untraced.
    Slow,
}

impl Postgres {
    /// Makes a cluster and waits until it answers.
    pub async fn start() -> Self {
        Self::start_with(Flush::Plain).await
    }

    /// As [`Self::start`], with a millisecond added to every flush; or why that cannot be done here.
    pub async fn start_with_slow_flush() -> Result<Self, String> {
        let probe = Command::new("strace")
            .args(SLOW_FLUSH)
            .args(["-o", "/dev/null", "true"])
            .stderr(Stdio::null())
            .status();
        match probe {
            Ok(status) if status.success() => Ok(Self::start_with(Flush::Slow).await),
            Ok(_) => Err("strace cannot delay system calls here".to_owned()),
            Err(_) => Err("strace is not installed".to_owned()),
        }
    }

    async fn start_with(flush: Flush) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("kennel-pg-")
            .tempdir()
            .expect("a temporary directory can be made");
        let user = unprivileged_user();
        if let Some((uid, gid)) = user {
            chown(dir.path(), Some(uid), Some(gid)).expect("root may give a directory away");
        }
        let mut postgres = Self {
            dir,
            binaries: binaries(),
            user,
            server: None,
            flush,
        };
        let (binaries, data) = (postgres.binaries.clone(), postgres.data());
        let owner = user.map(|(uid, gid)| (uid.as_raw(), gid.as_raw()));
        let made = tokio::task::spawn_blocking(move || {
            let words = ["-U", NAME, "-A", "trust", "-E", "UTF8", "--locale=C"];
            template::unpack(&binaries, owner, &words, &data)
        });
        let made = made.await.expect("no panic");
        made.expect("a cluster can be made");
        postgres.run().await;
        postgres
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
        format!(
            "postgres://{NAME}@localhost/{DATABASE}?host={}",
            dir.display()
        )
    }

    /// Runs one statement through psql; returns its rows, columns separated by `|`.
    pub async fn psql(&self, sql: &str) -> String {
        self.psql_in(DATABASE, sql).await
    }

    /// Makes 2,000 copies of a row, with these values for columns: `i` is the number of the copy, `r` the row.
    pub async fn copy_rows(&self, table: &str, which: &str, values: &[(&str, &str)]) {
        let columns = format!(
            "SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        );
        let columns = self.psql(&columns).await;
        let column = |name: &str| {
            let value = values.iter().find(|(column, _)| *column == name);
            value.map_or_else(|| format!("r.{name}"), |(_, value)| (*value).to_owned())
        };
        let columns: Vec<String> = columns.lines().map(column).collect();
        let columns = columns.join(", ");
        let copy = format!(
            "INSERT INTO {table} SELECT {columns} FROM generate_series(1, 2000) i, (SELECT * FROM {table} WHERE {which}) r"
        );
        self.psql(&copy).await;
    }

    /// Runs one statement likewise, in another database.
    pub async fn psql_in(&self, database: &str, sql: &str) -> String {
        let mut psql = Command::new("psql");
        psql.arg("-h")
            .arg(self.dir.path())
            .args([
                "-U",
                NAME,
                "-d",
                database,
                "-X",
                "-q",
                "-At",
                "-v",
                "ON_ERROR_STOP=1",
            ])
            .args(["-c", sql])
            .current_dir("/");
        let output = shell::run_to_end(psql, PATIENCE).await;
        assert!(
            output.status.success(),
            "psql {sql}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        shell::text(&output)
    }

    /// Returns the directory of its socket.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.dir.path()
    }

    /// Creates a role that has to give this password, unlike all others.
    pub async fn guard(&self, role: &str, password: &str) {
        let made = format!("CREATE ROLE {role} LOGIN PASSWORD '{password}'");
        self.psql(&made).await;
        let rules = self.data().join("pg_hba.conf");
        let rest = fs::read_to_string(&rules).expect("initdb has made it");
        fs::write(&rules, format!("local all {role} scram-sha-256\n{rest}")).expect("own file");
        self.psql("SELECT pg_reload_conf()").await;
        eventually("the rules are read", PATIENCE, || {
            let mut psql = Command::new("psql");
            psql.arg("-h").arg(self.dir.path());
            psql.args(["-U", role, "-d", DATABASE, "-w", "-X", "-c", "SELECT 1"]);
            let asked = psql.stdout(Stdio::null()).stderr(Stdio::null()).status();
            asked.is_ok_and(|status| !status.success()).then_some(())
        })
        .await;
    }

    /// Blocks all writes to this table until [`Self::let_write`]: a writer waits, with its statement sent.
    pub async fn hold_writes(&self, table: &str) {
        let lock =
            format!("BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE; PREPARE TRANSACTION '{HELD}'");
        self.psql(&lock).await;
    }

    /// Continues after [`Self::hold_writes`].
    pub async fn let_write(&self) {
        self.psql(&format!("ROLLBACK PREPARED '{HELD}'")).await;
    }

    /// Stops the cluster at once, as a crash would.
    pub async fn crash(&mut self) {
        let family = self.family();
        let mut server = self.server.take().expect("it runs");
        for proc in &family {
            kill_exactly(proc, Signal::SIGKILL);
        }
        server.wait().expect("own child");
        eventually("every backend ends", PATIENCE, || {
            crate::kennel::reap_orphans();
            family
                .iter()
                .all(|proc| !proc.is_still_there())
                .then_some(())
        })
        .await;
    }

    /// Starts the cluster again on its data.
    pub async fn run(&mut self) {
        assert!(self.server.is_none(), "it runs already");
        // A crash leaves this file; no postmaster runs.
        let _ = fs::remove_file(self.data().join("postmaster.pid"));
        let log = File::create(self.dir.path().join("log")).expect("a log can be made");
        let mut server = match self.flush {
            Flush::Plain => self.program("postgres"),
            Flush::Slow => {
                let mut strace = self.unprivileged(Path::new("strace"));
                strace
                    .args(SLOW_FLUSH)
                    .args(["-o", "/dev/null"])
                    .arg(self.binaries.join("postgres"));
                strace
            }
        };
        server
            .arg("-D")
            .arg(self.data())
            .arg("-k")
            .arg(self.dir.path())
            .args(["-c", "listen_addresses=", "-c", "max_connections=50"])
            // For `hold_writes`, and to see whole statements of waiting writers.
            .args(["-c", "max_prepared_transactions=1"])
            .args(["-c", "track_activity_query_size=16384"])
            // Shared memory in its own directory instead of /dev/shm: a crash leaves nothing beyond the directory.
            .args(["-c", "dynamic_shared_memory_type=mmap"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor can be copied"))
            .stderr(log);
        self.server = Some(server.spawn().expect("postgres starts"));
        // Like pg_ctl, wait for the server state in this file's last line.
        eventually("postgres answers", PATIENCE, || {
            let state = fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
            state.trim_end().ends_with("ready").then_some(())
        })
        .await;
    }

    /// Copies the present cluster, as a replica that lags behind from here on.
    pub async fn copy(&self) {
        let mut backup = self.program("pg_basebackup");
        backup.arg("-h").arg(self.dir.path()).arg("-D");
        backup.arg(self.copied()).args(["-U", NAME, "-X", "fetch"]);
        backup.args(["-c", "fast", "--no-sync"]);
        let output = shell::run_to_end(backup, PATIENCE * 2).await;
        assert!(
            output.status.success(),
            "pg_basebackup: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// After [`Self::crash`]: replaces the cluster by the copy, which lacks later writes.
    pub async fn fail_over(&mut self) {
        assert!(self.server.is_none(), "it runs still");
        fs::remove_dir_all(self.data()).expect("removed");
        fs::rename(self.copied(), self.data()).expect("in its place");
        self.run().await;
    }

    /// Halts every process of the cluster: connections stay, nothing is answered.
    pub fn halt(&self) {
        // Stop the server first: it forks the others.
        if let Some(server) = self.server_proc() {
            kill_exactly(&server, Signal::SIGSTOP);
        }
        for proc in self.family() {
            kill_exactly(&proc, Signal::SIGSTOP);
        }
    }

    /// Continues after [`Self::halt`].
    pub fn go_on(&self) {
        for proc in self.family() {
            kill_exactly(&proc, Signal::SIGCONT);
        }
    }

    fn family(&self) -> Vec<Proc> {
        let Some(server) = self.server_proc() else {
            return Vec::new();
        };
        let mut family = procfs::descendants(&procfs::all(), server.pid);
        family.push(server);
        family
    }

    fn server_proc(&self) -> Option<Proc> {
        let server = self.server.as_ref()?;
        Proc::read(i32::try_from(server.id()).expect("pids are small"))
    }

    /// Returns the directory of the cluster.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn copied(&self) -> PathBuf {
        self.dir.path().join("copy")
    }

    fn program(&self, name: &str) -> Command {
        self.unprivileged(&self.binaries.join(name))
    }

    fn unprivileged(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).env("LC_ALL", "C");
        if let Some((uid, gid)) = self.user {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let family = self.family();
        for proc in &family {
            kill_exactly(proc, Signal::SIGKILL);
        }
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
        crate::kennel::reap_orphans();
    }
}

/// Returns these words, to be executed as the user of a Postgres.
#[must_use]
pub fn as_its_user(words: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    if let Some((uid, gid)) = unprivileged_user() {
        let (uid, gid) = (format!("--reuid={uid}"), format!("--regid={gid}"));
        all.extend(["/usr/bin/setpriv".into(), uid, gid, "--clear-groups".into()]);
    }
    all.extend(words.iter().map(|word| (*word).to_owned()));
    all
}

/// Returns the user of Debian's package, since Postgres refuses to be root. `None`: the test is not root.
#[must_use]
pub fn unprivileged_user() -> Option<(Uid, Gid)> {
    if !Uid::effective().is_root() {
        return None;
    }
    let user = User::from_name("postgres")
        .expect("the user database can be read")
        .expect("the package postgresql has made the user postgres");
    Some((user.uid, user.gid))
}

/// Returns the program directory of the newest installed version.
#[must_use]
pub fn binaries() -> PathBuf {
    let versions = Path::new("/usr/lib/postgresql");
    let mut found: Vec<PathBuf> = fs::read_dir(versions)
        .unwrap_or_else(|error| panic!("{}: {error}; `make tools` installs it", versions.display()))
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|bin| bin.join("postgres").exists())
        .collect();
    found.sort();
    found.pop().expect("a Postgres is installed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_crash_keeps_what_was_committed() {
        let mut postgres = Postgres::start().await;
        postgres.psql("CREATE TABLE t (n int)").await;
        postgres.psql("INSERT INTO t VALUES (7)").await;
        postgres.crash().await;
        postgres.run().await;
        assert_eq!(postgres.psql("SELECT n FROM t").await, "7");
    }

    #[tokio::test]
    async fn slow_flush_adds_a_millisecond() {
        let Ok(postgres) = Postgres::start_with_slow_flush().await else {
            return;
        };
        postgres.psql("CREATE TABLE t (n int)").await;
        let script = "INSERT INTO t VALUES (7);\n".repeat(100);
        let file = postgres.dir.path().join("script.sql");
        fs::write(&file, script).expect("written");
        let began = std::time::Instant::now();
        postgres.psql(&format!("\\i {}", file.display())).await;
        assert!(began.elapsed() >= std::time::Duration::from_millis(100));
    }
}
