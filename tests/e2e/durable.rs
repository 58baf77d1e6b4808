//! No command runs unrecorded, and acknowledged calls are durable: with a store that becomes unavailable.

use kennel_proto::pb::RunState;
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, Postgres, RunExt, STORE_PATIENCE, cases, complaint,
    eventually_async, must, new_run_id, node_log, sh, within,
};
use std::{fs, time::Duration};
use tonic::Code;

/// A server, and its database.
struct Stored {
    kennel: Kennel,
    postgres: Postgres,
}

impl Stored {
    async fn start() -> Self {
        let postgres = Postgres::start().await;
        let kennel = Kennel::start(Options::on(&postgres.url())).await;
        Self { kennel, postgres }
    }
}

cases! {
    fn calls_without_store(mut Stored::start().await);
    a_stop_is_durable_before_it_is_answered,
    unanswered_insert_is_withdrawn_and_runs_later,
    nothing_starts_without_store_and_runs_continue,
}

// promise: D-3, D-9
async fn nothing_starts_without_store_and_runs_continue(stored: &mut Stored) {
    let Stored { kennel, postgres } = stored;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; echo late; exit 3",
        go.display()
    );
    let before = must("spawn", client.spawn(sh(&script)).await);
    let print = Footprint::of_run(&before);

    postgres.crash().await;
    let ran = kennel.scratch().join("ran");
    let refused_id = new_run_id();
    let spec = sh(&format!("echo ran > {}", ran.display()));
    let spawned = within(
        "spawn answers",
        STORE_PATIENCE,
        client.spawn_as(&refused_id, spec.clone()),
    )
    .await;
    let refused = spawned.expect_err("the store is away");
    assert_eq!(
        (
            complaint(&refused).code,
            complaint(&refused).reason.as_str()
        ),
        (Code::Unavailable, "STORE_UNAVAILABLE")
    );
    assert!(!ran.exists(), "the command never ran");
    Footprint::of_id(&refused_id).until_nothing_is_left().await;

    fs::write(&go, "").expect("written");
    let ended = within("it ends meanwhile", PATIENCE, client.ended(&before.run_id)).await;
    let run = must("wait", ended);
    assert!(run.code() == Some(3) && run.end_time.is_some(), "{run:?}");
    let pending = node_log::logged(&kennel.data_dir()).pending;
    assert!(pending > 0, "ENDED is reported only when it is durable");

    postgres.run().await;
    let id = &before.run_id;
    let sql = format!("SELECT end_reason, exit_value FROM runs WHERE run_id = '{id}'");
    let written = async || (postgres.psql(&sql).await == "exited|3").then_some(());
    eventually_async("the row is written", STORE_PATIENCE, written).await;
    let heard = must("stream", client.hear_all(&before.run_id, 0).await);
    assert_eq!(heard.text(), "late\n");
    print.assert_nothing_left();

    eventually_async("spawn works again", STORE_PATIENCE, || {
        let mut client = client.clone();
        async move { client.spawn(sh("exit 0")).await.ok() }
    })
    .await;
    assert!(!ran.exists(), "nor did it run later");
}

// promise: D-4
async fn unanswered_insert_is_withdrawn_and_runs_later(stored: &mut Stored) {
    let Stored { kennel, postgres } = stored;
    let mut client = kennel.client().await;
    // A first run opens a database connection before the database stops answering.
    let first = must("spawn", client.spawn(sh("exit 0")).await);
    must("wait", client.ended(&first.run_id).await);
    let ran = kennel.scratch().join("ran-later");
    let run_id = new_run_id();

    postgres.halt();
    let spec = sh(&format!("echo ran > {}", ran.display()));
    let spawned = within(
        "spawn answers",
        STORE_PATIENCE,
        client.spawn_as(&run_id, spec.clone()),
    )
    .await;
    postgres.go_on();
    let refused = spawned.expect_err("the store does not answer");
    assert_eq!(
        (
            complaint(&refused).code,
            complaint(&refused).reason.as_str()
        ),
        (Code::Unavailable, "STORE_UNAVAILABLE")
    );

    // A possibly recorded run is withdrawn.
    let got = within("get answers", STORE_PATIENCE, client.get(&run_id)).await;
    let got = complaint(&got.expect_err("it never ran"));
    assert_eq!(got.reason, "RUN_NOT_FOUND");
    Footprint::of_id(&run_id).until_nothing_is_left().await;
    assert!(!ran.exists());
    let again = within("the id is free", STORE_PATIENCE, async {
        client.spawn_as(&run_id, spec).await
    })
    .await;
    let (again, existing) = must("spawn", again);
    assert!(!existing);
    let ended = must("wait", client.ended(&again.run_id).await);
    assert_eq!(ended.state(), RunState::Succeeded);
    assert_eq!(fs::read_to_string(&ran).expect("it ran"), "ran\n");
}

// promise: D-10
async fn a_stop_is_durable_before_it_is_answered(stored: &mut Stored) {
    let Stored { kennel, postgres } = stored;
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client
            .spawn(sh("trap '' TERM; while :; do sleep 1; done"))
            .await,
    );
    let grace = Some(Duration::from_mins(1));
    let aborted = client
        .abort_with(&run.run_id, grace, kennel_proto::pb::AbortWait::None)
        .await;
    must("abort", aborted);
    let desired = postgres
        .psql(&format!(
            "SELECT desired, stop_deadline IS NOT NULL FROM runs WHERE run_id = '{}'",
            run.run_id
        ))
        .await;
    assert_eq!(desired, "stop|t");
}
