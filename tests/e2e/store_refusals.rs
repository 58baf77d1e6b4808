//! Stores that a start cannot use, and a second service where one is: reported in one line, and nothing is touched.

use kennel_proto::pb::RunState;
use kennel_tests::{
    Kennel, Options, PATIENCE, Postgres, RunExt, cases, census, eventually_async,
    kennel::{bare_command, serve_words},
    must, programs, sh,
    shell::run_to_end,
};
use std::{fs, os::unix::fs::DirBuilderExt, path::Path};
use tempfile::TempDir;

/// A later Kennel has contracted the schema.
const NEWER: &str = "UPDATE schema_level SET level = 999, min_level = 999";
const NOT_NEWER: &str = "UPDATE schema_level SET level = 1, min_level = 1";

/// Everything that a start could have changed; not when a live node last reported.
const EVERYTHING: &str = "SELECT (SELECT json_agg(to_jsonb(n) - 'heard_us' ORDER BY node) FROM nodes n), \
    (SELECT json_agg(k ORDER BY keeper_epoch) FROM keeper_epochs k), (SELECT json_agg(r ORDER BY run_id) FROM runs r), \
    (SELECT string_agg(relname, ',' ORDER BY relname) FROM pg_class WHERE relkind = 'r')";

/// Returns all of it, once the one run is recorded as running, which no caller waits for.
async fn everything(postgres: &Postgres) -> String {
    eventually_async("it is written down as running", PATIENCE, async || {
        let state = postgres.psql("SELECT state FROM runs").await;
        (state == "running").then_some(())
    })
    .await;
    postgres.psql(EVERYTHING).await
}

/// Output of a service that did not get to serve.
struct Refused {
    code: Option<i32>,
    error: String,
    dir: TempDir,
}

/// Starts a service on this directory and waits for its end.
async fn refused_in(dir: TempDir, store: &str) -> Refused {
    let mut command = bare_command(&programs::kennel());
    command.args(serve_words(dir.path(), Some(store)));
    command.env("KENNEL_LOG", "warn");
    let output = run_to_end(command, PATIENCE).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let errors: Vec<&str> = said.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let data_dir = dir.path().join("data");
    assert_eq!(census::of_data_dir(&data_dir.to_string_lossy()), []);
    Refused {
        code: output.status.code(),
        error: errors[0].to_owned(),
        dir,
    }
}

fn directory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("kennel-test-").tempdir().expect("made")
}

async fn refused(store: &str) -> Refused {
    refused_in(directory(), store).await
}

/// A service on Postgres with a run, which no refused start may affect.
struct Scene {
    postgres: Postgres,
    kennel: Kennel,
    bystander: String,
}

impl Scene {
    async fn begin() -> Self {
        let postgres = Postgres::start().await;
        let kennel = Kennel::start(Options::on(&postgres.url())).await;
        let mut client = kennel.client().await;
        let spec = sh("echo up; exec sleep 300");
        let bystander = must("spawn", client.spawn(spec).await).run_id;
        client.hear_up(&bystander).await;
        Self {
            postgres,
            kennel,
            bystander,
        }
    }

    /// Checks that the run is unaffected.
    async fn continues(&self) {
        let mut client = self.kennel.client().await;
        let seen = must("get", client.get(&self.bystander).await);
        assert_eq!(seen.state(), RunState::Running);
    }
}

async fn bystander_can_be_ended(scene: &Scene) {
    let mut client = scene.kennel.client().await;
    let ended = must("abort", client.abort(&scene.bystander).await);
    assert_eq!(ended.reason(), "aborted");
}

cases! {
    fn refused_starts_beside_a_service(Scene::begin().await);
    unusable_store_is_one_line_and_stays_untouched,
    second_service_of_busy_node_is_refused,
    bystander_can_be_ended,
}

impl Refused {
    fn says(&self, all: &[&str]) {
        assert_eq!(self.code, Some(1), "{}", self.error);
        for part in all {
            assert!(self.error.contains(part), "{part:?} in {}", self.error);
        }
    }
}

// promise: D-21a, D-24, D-29
async fn unusable_store_is_one_line_and_stays_untouched(scene: &Scene) {
    let postgres = &scene.postgres;
    postgres.guard("guarded", "correct").await;
    let dir = postgres.socket_dir().display();
    let at =
        |user: &str, database: &str| format!("postgres://{user}@localhost/{database}?host={dir}");
    postgres.psql("CREATE DATABASE taken").await;
    postgres
        .psql_in("taken", "CREATE TABLE runs (marathon text)")
        .await;
    postgres.psql("CREATE DATABASE closed").await;
    postgres
        .psql_in(
            "closed",
            "CREATE ROLE visitor LOGIN; REVOKE CREATE ON SCHEMA public FROM public",
        )
        .await;
    let before = everything(postgres).await;

    let wrong = refused(&at("guarded:s3cret", "kennel")).await;
    wrong.says(&["refuses the user or the password", "pg_hba.conf"]);
    let unknown_role = refused(&at("nobody", "kennel")).await;
    unknown_role.says(&["role \"nobody\" does not exist"]);
    refused(&at("kennel", "absent"))
        .await
        .says(&["there is no such database", "createdb"]);
    postgres
        .psql("CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        .await;
    let reader = refused(&at("reader", kennel_tests::postgres::DATABASE)).await;
    reader.says(&[
        "INSERT on nodes, UPDATE on nodes",
        "grant it SELECT, INSERT, UPDATE and DELETE",
    ]);
    let taken = refused(&at("kennel", "taken")).await;
    taken.says(&[
        "those of another program are in the way",
        "relation \"runs\" already exists",
    ]);
    let tables = "SELECT string_agg(relname, ',') FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace";
    assert_eq!(postgres.psql_in("taken", tables).await, "runs");
    let visitor = refused(&at("visitor", "closed")).await;
    visitor.says(&["lacks migration 1 (runs)", "kennel migrate"]);
    assert_eq!(postgres.psql_in("closed", tables).await, "");
    assert_eq!(postgres.psql(EVERYTHING).await, before);

    postgres.psql(NEWER).await;
    refused(&postgres.url())
        .await
        .says(&["SCHEMA_TOO_NEW", "level 999", "use a newer Kennel"]);
    postgres.psql(NOT_NEWER).await;
    assert_eq!(postgres.psql(EVERYTHING).await, before);
    scene.continues().await;

    // A database user other than the service's migrates the schema.
    let migrate = async |words: &[&str]| {
        let mut command = bare_command(&programs::kennel());
        command.args(["migrate", "--store", &at("kennel", "closed")]);
        command.args(words);
        let output = run_to_end(command, PATIENCE).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let planned = migrate(&["--dry-run"]).await;
    assert!(
        planned.contains("would apply migration 1 (runs)"),
        "{planned}"
    );
    assert_eq!(postgres.psql_in("closed", tables).await, "");
    let done = migrate(&["-o", "json"]).await;
    assert!(done.contains("\"min_level\""), "{done}");
    assert!(migrate(&[]).await.contains("nothing to do"));
    let runs = postgres.psql_in("closed", "SELECT count(*) FROM kennel_runs");
    assert_eq!(runs.await, "0");
}

// promise: D-24
#[tokio::test(flavor = "multi_thread")]
async fn foreign_database_is_reported_and_stays_untouched() {
    let dir = directory();
    let letter = dir.path().join("letter");
    fs::write(&letter, "Dear all, ".repeat(1000)).expect("written");
    let store = format!("sqlite:{}", letter.display());
    let refused_it = refused_in(dir, &store).await;
    refused_it.says(&["letter", "not a database"]);
    let now = fs::read_to_string(&letter).expect("it is there");
    assert_eq!(now, "Dear all, ".repeat(1000));
    let nowhere = refused("sqlite:/nonexistent/kennel.db").await;
    nowhere.says(&["its directory does not exist"]);
}

/// The directory of a node, copied: both are the same node, on the same store.
// promise: D-25
async fn second_service_of_busy_node_is_refused(scene: &Scene) {
    let (postgres, kennel) = (&scene.postgres, &scene.kennel);
    let before = everything(postgres).await;
    let copied = copy_of_node(kennel);

    let second = refused_in(copied, &postgres.url()).await;

    let holder = format!("is still alive as process {}", kennel.keeper_pid());
    second.says(&["cannot take this node over", &holder]);
    assert_eq!(postgres.psql(EVERYTHING).await, before);
    scene.continues().await;
    drop(second.dir);
}

/// Makes a directory with the same node id. Where the first has no runs nothing shows that it lives: the second
/// acquires the node, and the first writes nothing more.
fn copy_of_node(kennel: &Kennel) -> TempDir {
    let dir = directory();
    let data_dir = dir.path().join("data");
    let mut private = fs::DirBuilder::new();
    private
        .mode(0o700)
        .create(&data_dir)
        .expect("own directory");
    copy(&kennel.data_dir().join("node"), &data_dir.join("node"));
    dir
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).expect("own directory");
}
