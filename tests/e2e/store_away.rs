//! A server that starts while its store is unavailable: running runs continue, and are recorded when the store is back.

use kennel_proto::pb::{AbortWait, RunState};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, Postgres, RunExt, STORE_PATIENCE, cases,
    client::retry_after,
    collector::{Collector, Manner, SpanRow},
    complaint, eventually, eventually_async, must, new_run_id,
    procfs::Proc,
    sh,
    shell::run_to_end,
    sqlite::lock_writes,
    within,
};
use std::{fs, path::Path};
use tonic::Code;

/// Rows of a schema changed by a later Kennel, and back.
const NEWER: &str = "UPDATE schema_level SET level = 999, min_level = 999";
const NOT_NEWER: &str = "UPDATE schema_level SET level = 1, min_level = 1";

/// Returns a script that counts until the file is there, then exits with 3.
fn count_until(go: &Path) -> String {
    let go = go.display();
    format!(
        "trap 'echo interrupted' INT; echo up; i=0; until [ -e {go} ]; do i=$((i+1)); echo $i; sleep 0.05; done; exit 3"
    )
}

/// A server, and its database.
struct Stored {
    kennel: Kennel,
    postgres: Postgres,
}

impl Stored {
    async fn start() -> Self {
        let postgres = Postgres::start().await;
        let kennel = kennel_that_tells(&postgres, Vec::new()).await;
        Self { kennel, postgres }
    }
}

cases! {
    fn starts_without_store(mut Stored::start().await);
    upgrade_falls_back_on_unusable_schema,
    newer_schema_does_not_end_runs,
    stop_known_only_by_row_is_done_later,
}

/// Starts a server with these variables.
async fn kennel_that_tells(postgres: &Postgres, env: Vec<(String, String)>) -> Kennel {
    // The TTL outlasts a prompt server start, and is short enough to notice a missing one.
    Kennel::start(Options {
        words: vec!["--orphan-ttl", "20s"],
        env,
        ..Options::on(&postgres.url())
    })
    .await
}

/// Kills the server and waits for one that serves without its store.
async fn replace_without_store(kennel: &mut Kennel) -> Client {
    kennel.replace_server().await;
    let mut client = kennel.client().await;
    let info = client.server_info().await.expect("it answers");
    assert_eq!(info.generation, 0, "the store has given none: {info:?}");
    assert!(info.store.is_some_and(|store| !store.reachable));
    client
}

async fn refuses_a_spawn(client: &mut Client) {
    let refused = client.spawn_as(&new_run_id(), sh("exit 0")).await;
    let refused = refused.expect_err("the store is away");
    assert!(retry_after(&refused).is_some());
    let refused = complaint(&refused);
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::Unavailable, "STORE_UNAVAILABLE")
    );
}

// promise: D-24a
#[tokio::test(flavor = "multi_thread")]
async fn start_without_database_waits_for_it() {
    let mut postgres = Postgres::start().await;
    postgres.crash().await;
    let mut kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = kennel.client().await;
    assert!(kennel.is_serving("liveness").await && kennel.is_serving("startup").await);
    assert!(!kennel.is_serving("readiness").await);
    refuses_a_spawn(&mut client).await;
    postgres.run().await;
    kennel.becomes_ready(true).await;
    let run_id = must("spawn", client.spawn(sh("exit 3")).await).run_id;
    must("wait", client.ended(&run_id).await);

    // The server also waits for a read-only database, such as a standby.
    let reads = |only: &str| format!("ALTER SYSTEM SET default_transaction_read_only = {only}");
    postgres.psql(&reads("on")).await;
    postgres.psql("SELECT pg_reload_conf()").await;
    kennel.terminate(PATIENCE).await;
    kennel.restart().await;
    assert!(kennel.is_serving("liveness").await && !kennel.is_serving("readiness").await);
    postgres
        .psql("ALTER SYSTEM RESET default_transaction_read_only")
        .await;
    postgres.psql("SELECT pg_reload_conf()").await;
    kennel.becomes_ready(true).await;
}

// promise: D-9, R-40, R-40a
#[tokio::test(flavor = "multi_thread")]
async fn server_started_without_store_adopts_runs() {
    let mut postgres = Postgres::start().await;
    let collector = Collector::start(Manner::Willing).await;
    let mut kennel = kennel_that_tells(&postgres, collector.env()).await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let run_id = new_run_id();
    let spec = sh(&count_until(&go));
    let (run, _) = must("spawn", client.spawn_as(&run_id, spec.clone()).await);
    let victim = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&victim.run_id).await;
    let before = client.server_info().await.expect("it answers").generation;
    let print = Footprint::of_run(&run);
    let leader = Proc::read(run.attempt().pid).expect("it runs");

    postgres.crash().await;
    let mut client = replace_without_store(&mut kennel).await;

    assert!(kennel.is_serving("liveness").await && kennel.is_serving("startup").await);
    assert!(!kennel.is_serving("readiness").await && !kennel.is_serving("").await);
    refuses_a_spawn(&mut client).await;
    let seen = must("get", client.get(&run_id).await);
    assert_eq!(seen.state(), RunState::Running);
    assert_eq!(seen.lasting(), run.lasting());
    // A repeated Spawn still finds its run.
    let (_, existing) = must("again", client.spawn_as(&run_id, spec).await);
    assert!(existing);
    must("interrupt", client.interrupt(&run_id, "a").await);
    client.hear_text(&run_id, "interrupted").await;
    let stranger = complaint(&client.get(&new_run_id()).await.expect_err("no node has it"));
    assert_eq!(stranger.reason, "STORE_UNAVAILABLE");
    let aborted = within("abort", PATIENCE, client.abort(&victim.run_id)).await;
    assert_eq!(must("abort", aborted).reason(), "aborted");
    let fenced = new_run_id();
    let queued = client.abort_with(&fenced, None, AbortWait::None).await;
    let queued = complaint(&queued.expect_err("another node may start it"));
    assert_eq!(queued.reason, "ABORT_QUEUED");
    fs::write(&go, "").expect("written");
    let ended = within("it ends", PATIENCE, client.ended(&run_id)).await;
    assert_eq!(must("wait", ended).code(), Some(3));
    assert!(!leader.is_alive());

    // Acknowledged changes outlive the server that acknowledged them.
    let mut client = replace_without_store(&mut kennel).await;
    postgres.run().await;
    kennel.becomes_ready(true).await;
    let info = client.server_info().await.expect("it answers");
    assert_eq!(info.generation, before + 1);
    assert_eq!(must("get", client.get(&run_id).await).reason(), "exited");
    let late = client.spawn_as(&fenced, sh("exit 0")).await;
    assert_eq!(complaint(&late.expect_err("fenced")).reason, "RUN_FENCED");
    let row = postgres
        .psql("SELECT end_reason, exit_value FROM runs ORDER BY created_us")
        .await;
    assert_eq!(row, "exited|3\naborted|15\nfenced|");
    // The fence is reported once the store has accepted it.
    let of_fence = [("kennel.run.end_reason", "fenced")];
    eventually("the fence is recorded", PATIENCE, || {
        let spans = collector.spans().into_iter().map(SpanRow::from);
        let runs = spans.filter(|span| span.name == "run");
        let mut ids = runs.filter_map(|run| run.attributes.get("kennel.run.id").cloned());
        let is_exported = ids.any(|id| id == fenced);
        (is_exported && collector.count("kennel.run.ended", &of_fence) == 1).then_some(())
    })
    .await;
    assert_eq!(tellings(&mut client, &run_id, "ended").await, 1);
    print.assert_nothing_left();
    must("spawn", client.spawn(sh("exit 0")).await);
}

async fn tellings(client: &mut Client, run_id: &str, station: &str) -> usize {
    let heard = must("stream", client.hear_all(run_id, 0).await);
    heard.stations().iter().filter(|s| **s == station).count()
}

/// A stop that was accepted before the server died is in the row alone, if no process lived to record more of it.
// promise: R-40a
async fn stop_known_only_by_row_is_done_later(stored: &mut Stored) {
    let Stored { kennel, postgres } = stored;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&run.run_id).await;
    let (run_id, stop) = (
        &run.run_id,
        r#"{"reason":{"abort":{"by":"uid:7","request_id":"r"}},"grace":{"secs":1,"nanos":0}}"#,
    );
    postgres
        .psql(&format!(
            "UPDATE runs SET desired = 'stop', stop_deadline = 1, stop_detail = '{stop}' WHERE run_id = '{run_id}'"
        ))
        .await;
    postgres.crash().await;
    let mut client = replace_without_store(kennel).await;
    assert_eq!(
        must("get", client.get(run_id).await).state(),
        RunState::Running
    );
    postgres.run().await;
    let ended = within("it ends", STORE_PATIENCE, client.ended(run_id)).await;
    let ended = must("wait", ended);
    assert_eq!(ended.reason(), "aborted");
    let aborted_by = postgres
        .psql(&format!(
            "SELECT end_detail FROM runs WHERE run_id = '{run_id}'"
        ))
        .await;
    assert!(aborted_by.contains("uid:7"), "{aborted_by}");
}

/// For any fault of the store: runs wait, and the log reports it.
// promise: D-26a, R-40a
async fn newer_schema_does_not_end_runs(stored: &mut Stored) {
    let Stored { kennel, postgres } = stored;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&run.run_id).await;
    // Both a running and a later server refuse Spawn.
    postgres.psql(NEWER).await;
    kennel.becomes_ready(false).await;
    refuses_a_spawn(&mut client).await;
    assert!(kennel.log().contains("SCHEMA_TOO_NEW"));
    postgres.psql(NOT_NEWER).await;
    kennel.becomes_ready(true).await;
    let logged = kennel.log().len();
    postgres.psql(NEWER).await;
    let mut client = replace_without_store(kennel).await;
    refuses_a_spawn(&mut client).await;
    assert!(kennel.is_serving("liveness").await && !kennel.is_serving("readiness").await);
    assert_eq!(
        must("get", client.get(&run.run_id).await).state(),
        RunState::Running
    );
    let log = kennel.log();
    assert!(log[logged..].contains("requires level 999"), "{log}");
    postgres.psql(NOT_NEWER).await;
    kennel.becomes_ready(true).await;
    must("abort", client.abort(&run.run_id).await);
}

/// The new binary cannot use this schema; the former one may.
// promise: R-25a
async fn upgrade_falls_back_on_unusable_schema(stored: &mut Stored) {
    let Stored { kennel, postgres } = stored;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&run.run_id).await;
    let upgrade = || run_to_end(kennel.cli(&["upgrade"]), PATIENCE);

    let logged = kennel.log().len();
    postgres.psql(NEWER).await;
    let output = upgrade().await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("fell back to kennel"), "{printed}");
    let log = kennel.log();
    assert!(log[logged..].contains("requires level 999"), "{log}");
    let mut client = kennel.client().await;
    let again = must("get", client.get(&run.run_id).await);
    assert_eq!(again.state(), RunState::Running);

    postgres.psql(NOT_NEWER).await;
    kennel.becomes_ready(true).await;
    // If the database is only unavailable, the new server waits like any other.
    postgres.crash().await;
    let output = upgrade().await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("(generation 0)"), "{printed}");
    postgres.run().await;
    kennel.becomes_ready(true).await;
    must("abort", kennel.client().await.abort(&run.run_id).await);
}

/// Another program has locked the database file.
// promise: D-9
#[tokio::test(flavor = "multi_thread")]
async fn locked_sqlite_refuses_runs_and_loses_no_end() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    let victim = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&victim.run_id).await;
    let lock = lock_writes(&kennel.data_dir().join("kennel.db"));
    refuses_a_spawn(&mut client).await;
    let aborted = within("abort", PATIENCE, client.abort(&victim.run_id)).await;
    assert_eq!(must("abort", aborted).reason(), "aborted");
    must("abort", client.abort(&run.run_id).await);
    drop(lock);
    kennel.becomes_ready(true).await;
    eventually_async("spawn works again", STORE_PATIENCE, async || {
        client.clone().spawn(sh("exit 0")).await.ok()
    })
    .await;
    assert_eq!(
        must("get", client.get(&victim.run_id).await).reason(),
        "aborted"
    );
}
