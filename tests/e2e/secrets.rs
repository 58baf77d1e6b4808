//! Values of variables, sent secrets and bytes of input are not on the disk, in the database or in the log: the file that
//! the next attempt needs is sealed, and removed at the end.

use kennel_proto::pb::{self, RestartMode, RunKind, secret::Source};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, STORE_PATIENCE, SpecExt, eventually,
    eventually_async, must, sh,
};
use nix::sys::signal::Signal;
use std::{fmt::Write as _, fs, os::unix::fs::PermissionsExt, path::Path};

const IN_ENV: &str = "canary-of-a-variable-5f2c91";
const IN_SECRET: &str = "canary-of-a-secret-d41b77";
const IN_FILE: &str = "canary-of-a-secret-file-19ae30";
const IN_INPUT: &str = "canary-of-the-input-83b07d";
const WRITTEN: &str = "canary-that-was-written-c46e1a";
const SECRETS: [&str; 5] = [IN_ENV, IN_SECRET, IN_FILE, IN_INPUT, WRITTEN];
/// Labels are no secrets. This one shows that the search works.
const LABEL: &str = "canary-of-a-label-0d97e5";

/// Whether the bytes contain the text, literally or in hexadecimal digits.
pub(crate) fn holds(bytes: &[u8], text: &str) -> bool {
    let mut digits = String::new();
    for byte in text.bytes() {
        let _ = write!(digits, "{byte:02x}");
    }
    // Invalid UTF-8 is replaced; bytes of the searched text are not.
    let bytes = bytes.to_ascii_lowercase();
    let searched = String::from_utf8_lossy(&bytes);
    searched.contains(&text.to_ascii_lowercase()) || searched.contains(&digits)
}

/// Returns the files below the directory that contain the text, relative to it.
pub(crate) fn files_with(text: &str, root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type());
            match kind {
                Ok(kind) if kind.is_dir() => left.push(path),
                Ok(kind)
                    if kind.is_file() && fs::read(&path).is_ok_and(|bytes| holds(&bytes, text)) =>
                {
                    let path = path.strip_prefix(root).expect("it is below");
                    found.push(path.display().to_string());
                }
                _ => {}
            }
        }
    }
    found
}

/// Returns all rows of all tables, as text.
async fn rows(postgres: &Postgres) -> String {
    let tables = "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables \
        WHERE schemaname NOT IN ('pg_catalog', 'information_schema')";
    let mut all = String::new();
    for table in postgres.psql(tables).await.lines() {
        all += &postgres
            .psql(&format!("SELECT t::text FROM {table} t"))
            .await;
    }
    all
}

/// A kennel with two runs that got secrets.
struct Scene {
    kennel: Kennel,
    postgres: Option<Postgres>,
    /// Restarted after each exit; has a variable and an input.
    repeated: String,
    /// Clients write to it.
    written: String,
}

impl Scene {
    async fn begin(postgres: Option<Postgres>) -> Self {
        let options = Options {
            store: postgres.as_ref().map(Postgres::url),
            env: vec![("KENNEL_LOG".into(), "debug".into())],
            ..Options::default()
        };
        let kennel = Kennel::start(options).await;
        let mut client = kennel.client().await;
        let seen = kennel.scratch().join("seen");
        let script = format!(
            "read x; read y < $FILE; echo ${{#TOKEN}} ${{#SENT}} ${{#y}} ${{#x}} >> {}; exec sleep 300",
            seen.display()
        );
        let mut spec = sh(&script)
            .env("TOKEN", IN_ENV)
            .secret("SENT", Source::Value(IN_SECRET.into()))
            .secret_file("FILE", Source::Value(format!("{IN_FILE}\n").into()))
            .label("canary", LABEL)
            .kind_of(RunKind::Service)
            .restart(pb::RestartPolicy {
                mode: RestartMode::Always.into(),
                ..pb::RestartPolicy::default()
            });
        spec.initial_input = Some(format!("{IN_INPUT}\n").into_bytes().into());
        spec.set_recovery(pb::RecoveryPolicy::Adopt);
        let repeated = must("spawn", client.spawn(spec).await).run_id;
        let mut spec = sh("while read x; do echo ${#x}; done").open_input();
        spec.set_recovery(pb::RecoveryPolicy::Adopt);
        let written = must("spawn", client.spawn(spec).await).run_id;
        let scene = Self {
            kennel,
            postgres,
            repeated,
            written,
        };
        scene.attempts_have_read(1).await;
        scene.write(&mut client, 0).await;
        scene
    }

    /// Waits until so many attempts have had both secrets.
    async fn attempts_have_read(&self, count: usize) {
        let lens = [IN_ENV, IN_SECRET, IN_FILE, IN_INPUT].map(|text| text.len().to_string());
        let line = format!("{}\n", lens.join(" "));
        let seen = self.kennel.scratch().join("seen");
        eventually("the command has its secrets", PATIENCE, || {
            let text = fs::read_to_string(&seen).unwrap_or_default();
            (text == line.repeat(count)).then_some(())
        })
        .await;
    }

    /// Writes the secret with this number, from 0, and waits until it was read.
    async fn write(&self, client: &mut Client, number: usize) {
        let line = format!("{WRITTEN}\n");
        let offset = u64::try_from(number * line.len()).expect("it is short");
        let id = format!("write-{number}");
        let write = client.write(&self.written, &id, Some(offset), line.as_bytes());
        must("write", write.await);
        let read = format!("{}\n", WRITTEN.len()).repeat(number + 1);
        client.hear_text(&self.written, &read).await;
    }

    async fn restart(&self, number: u32) {
        let mut client = self.kennel.client().await;
        let run = must("restart", client.restart(&self.repeated, None).await);
        assert_eq!(run.attempt().number, number);
        self.attempts_have_read(usize::try_from(number).expect("a few"))
            .await;
    }

    /// Kills keeper and server; the next service adopts the runs.
    async fn lose_service(&mut self) {
        self.kennel.kill_service_after(|| {});
        self.kennel.restart().await;
    }

    /// Returns the locations of each secret, by place.
    async fn places(&self) -> Vec<String> {
        let mut places = Vec::new();
        let log = self.kennel.log();
        let rows = match &self.postgres {
            Some(postgres) => rows(postgres).await,
            None => String::new(),
        };
        for secret in SECRETS {
            places.extend(files_with(secret, &self.kennel.data_dir()));
            for (name, text) in [("log", &log), ("database", &rows)] {
                if holds(text.as_bytes(), secret) {
                    places.push(name.into());
                }
            }
        }
        places.sort();
        places.dedup();
        places
    }

    /// Checks that no place has them in the clear, although the sealed file for the next attempt is there.
    async fn only_sealed_copy_has_them(&self) {
        let sealed = self.kennel.run_dir(&self.repeated).join("child");
        let sealed = fs::metadata(sealed).expect("another attempt may follow");
        assert_eq!(sealed.permissions().mode() & 0o777, 0o600);
        assert_eq!(self.places().await, Vec::<String>::new());
        let mut client = self.kennel.client().await;
        for run in [&self.repeated, &self.written] {
            let read = format!("{:?}", must("get", client.get(run).await));
            let trail = format!("{:?}", must("trail", client.trail(run).await));
            for secret in SECRETS {
                assert!(!read.contains(secret) && !trail.contains(secret));
            }
        }
        let is_found = match &self.postgres {
            Some(postgres) => holds(rows(postgres).await.as_bytes(), LABEL),
            None => files_with(LABEL, &self.kennel.data_dir())
                .iter()
                .any(|file| file.starts_with("kennel.db")),
        };
        assert!(is_found, "the search finds nothing at all");
    }

    /// Ends both runs and then the service: no secret is anywhere.
    async fn end(mut self) {
        let mut client = self.kennel.client().await;
        for run in [&self.repeated, &self.written] {
            must("abort", client.abort(run).await);
            must("wait", client.ended(run).await);
        }
        eventually_async("no place holds a secret", STORE_PATIENCE, async || {
            self.places().await.is_empty().then_some(())
        })
        .await;
        self.kennel.signal(Signal::SIGTERM);
        self.kennel.wait_for_exit(PATIENCE).await;
        let sealed = self.kennel.run_dir(&self.repeated).join("child");
        assert!(!sealed.exists(), "no attempt follows");
        assert_eq!(self.places().await, Vec::<String>::new());
    }
}

// promise: B-7, B-7a, RW-91
#[tokio::test(flavor = "multi_thread")]
async fn secrets_leave_no_trace_on_sqlite() {
    let mut scene = Scene::begin(None).await;
    scene.only_sealed_copy_has_them().await;
    scene.restart(2).await;
    scene.kennel.replace_server().await;
    scene.only_sealed_copy_has_them().await;
    scene.lose_service().await;
    scene.restart(3).await;
    scene.only_sealed_copy_has_them().await;
    scene.end().await;
}

// promise: B-7a, RW-91
#[tokio::test(flavor = "multi_thread")]
async fn secrets_leave_no_trace_despite_store_outage() {
    let mut scene = Scene::begin(Some(Postgres::start().await)).await;
    scene.only_sealed_copy_has_them().await;
    scene.postgres.as_mut().expect("it has one").crash().await;
    scene.kennel.replace_server().await;
    let mut client = scene.kennel.client().await;
    scene.write(&mut client, 1).await;
    scene.postgres.as_mut().expect("it has one").run().await;
    scene.kennel.becomes_ready(true).await;
    scene.restart(2).await;
    scene.only_sealed_copy_has_them().await;
    scene.lose_service().await;
    scene.restart(3).await;
    let mut client = scene.kennel.client().await;
    scene.write(&mut client, 2).await;
    scene.only_sealed_copy_has_them().await;
    scene.end().await;
}
