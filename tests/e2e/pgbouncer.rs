//! The store behind a PgBouncer in transaction mode: each transaction in another session, and either of the two may go away.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Kennel, Options, PATIENCE, Postgres, RunExt, STORE_PATIENCE, SpecExt, complaint,
    eventually_async, load::Load, must, pgbouncer::PgBouncer, sh, within,
};
use std::{fs, time::Duration};

/// Workers of a load.
const WORKERS: usize = 4;
/// Runs of theirs after which a load counts as continuing.
const SOME: usize = 12;

// promise: D-20a
#[tokio::test(flavor = "multi_thread")]
async fn service_works_behind_transaction_pooler() {
    let mut postgres = Postgres::start().await;
    let mut bouncer = PgBouncer::start(&postgres).await;
    let mut kennel = Kennel::start(Options::on(&bouncer.url())).await;
    // Another node uses the pooler's sessions in between.
    let other = Kennel::start(Options::on(&bouncer.url())).await;
    let mut client = kennel.client().await;
    let info = client.server_info().await.expect("it answers");
    let store = info.store.expect("a store");
    assert!(store.kind.contains("behind a pooler"), "{store:?}");
    let go = kennel.scratch().join("go");
    let script = format!(
        "echo up; until [ -e {} ]; do sleep 0.05; done; exit 3",
        go.display()
    );
    let lasting = must("spawn", client.spawn(sh(&script)).await);
    client.hear_up(&lasting.run_id).await;
    let mut load = Load::start(&kennel, WORKERS).await;
    let mut beside = Load::start(&other, 1).await;
    load.continues(SOME, STORE_PATIENCE).await;

    let before = load.refusals();
    bouncer.kill();
    load.is_refused_since(&before, STORE_PATIENCE).await;
    abort_one_that_runs(&mut client, &lasting.run_id).await;
    bouncer.run().await;
    load.continues(SOME, STORE_PATIENCE).await;

    let before = load.refusals();
    postgres.crash().await;
    load.is_refused_since(&before, STORE_PATIENCE).await;
    postgres.run().await;
    load.continues(SOME, STORE_PATIENCE).await;

    kennel.replace_server().await;
    load.continues(SOME, STORE_PATIENCE).await;
    let mut client = kennel.client().await;
    is_started_again(&mut client).await;

    let ended = load.ended();
    let tally = load.finish(&mut client).await;
    beside.continues(1, STORE_PATIENCE).await;
    beside.finish(&mut other.client().await).await;
    assert!(tally.keys >= 4 * SOME && tally.keys >= ended, "{tally:?}");
    let listed = must("list", client.list_all(pb::RunFilter::default(), 50).await);
    assert!(listed.len() > tally.keys);
    fs::write(&go, "").expect("written");
    let ended = within("it ends", PATIENCE, client.ended(&lasting.run_id)).await;
    assert_eq!(must("wait", ended).code(), Some(3));
    assert!(bouncer.sessions_opened() > 6, "sessions were not changed");
    let open = "SELECT count(*) FROM runs WHERE end_reason IS NULL";
    eventually_async("every row is closed", STORE_PATIENCE, async || {
        (postgres.psql(open).await == "0").then_some(())
    })
    .await;
}

/// Aborts while the pooler is away: running runs are listed and can be stopped.
async fn abort_one_that_runs(client: &mut kennel_tests::Client, lasting: &str) {
    let seen = must("get", client.get(lasting).await);
    assert_eq!(seen.state(), RunState::Running);
    let unknown = kennel_tests::new_run_id();
    let wait = pb::AbortWait::None;
    let fenced = within("abort", PATIENCE, client.abort_with(&unknown, None, wait)).await;
    let queued = complaint(&fenced.expect_err("another node may start it"));
    assert_eq!(queued.reason, "ABORT_QUEUED");
}

async fn is_started_again(client: &mut kennel_tests::Client) {
    let policy = pb::RestartPolicy {
        mode: pb::RestartMode::OnFailure.into(),
        max_restarts: Some(3),
        delay: Some(kennel_tests::client::duration(Duration::from_millis(20))),
        ..pb::RestartPolicy::default()
    };
    let run = must("spawn", client.spawn(sh("exit 3").restart(policy)).await);
    let run = within("it gives up", STORE_PATIENCE, client.ended(&run.run_id)).await;
    let run = must("wait", run);
    assert_eq!(run.reason(), "restarts_exhausted", "{run:?}");
}
