//! Records of ended runs are removed, by the node's limits and by a client: the id of a removed run makes no other.

use kennel_proto::pb;
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, SpecExt, argv, complaint, eventually_async, must,
    new_run_id, run_id_of,
    shell::{run_to_end, text},
};
use std::time::{Duration, SystemTime};
use tonic::Status;

/// A run of `true` under its own id, and under a key, with a label.
fn asked(run_id: &str, key: &str) -> pb::SpawnRequest {
    pb::SpawnRequest {
        run_id: run_id.to_owned(),
        request_key: key.to_owned(),
        spec: Some(argv(&["true"]).label("company", "acme")),
        ..pb::SpawnRequest::default()
    }
}

async fn ran(client: &mut Client, request: pb::SpawnRequest) -> String {
    let spawned = must("spawn", client.process.spawn(request).await);
    let run_id = spawned.into_inner().run.expect("a run").run_id;
    must("wait", client.ended(&run_id).await);
    run_id
}

async fn remove(client: &mut Client, run_id: &str) -> Result<(), Status> {
    let request = pb::RemoveRunRequest {
        run_id: run_id.to_owned(),
        ..pb::RemoveRunRequest::default()
    };
    client.process.remove_run(request).await.map(drop)
}

async fn refusal(client: &mut Client, run_id: &str) -> String {
    let refused = client.process.spawn(asked(run_id, "")).await;
    complaint(&refused.expect_err("it makes no run")).reason
}

// promise: K-12
#[tokio::test(flavor = "multi_thread")]
async fn records_beyond_the_limits_are_removed() {
    let words = [
        "--retain-rows",
        "2",
        "--retain-rows-min",
        "0s",
        "--id-horizon",
        "1h",
    ];
    let mut kennel = Kennel::start(Options {
        words: words.to_vec(),
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let mut runs = Vec::new();
    for number in 0..3 {
        runs.push(ran(&mut client, asked("", &format!("key-{number}"))).await);
    }
    for _ in 0..3 {
        runs.push(ran(&mut client, asked(&new_run_id(), "")).await);
    }
    // A starting server checks retention of all runs.
    kennel.replace_server().await;
    let client = kennel.client().await;
    eventually_async("four are removed", PATIENCE, async || {
        let mut client = client.clone();
        let listed = must("list", client.list_all(pb::RunFilter::default(), 0).await);
        (listed.len() == 2).then_some(())
    })
    .await;
    let mut client = client;
    for (place, run) in runs.iter().enumerate() {
        let found = client.get(run).await;
        assert_eq!(found.is_ok(), place >= 4, "{found:?}");
    }
    assert_eq!(refusal(&mut client, &runs[3]).await, "RUN_REMOVED");
    let fenced = client.abort(&runs[3]).await.expect_err("it was removed");
    assert_eq!(complaint(&fenced).reason, "RUN_REMOVED");
    // A removed row frees its key; a known id returns its run; an old unknown id is refused.
    let again = ran(&mut client, asked("", "key-0")).await;
    assert!(!runs.contains(&again));
    let there = must("spawn", client.process.spawn(asked(&runs[5], "")).await);
    assert!(there.into_inner().existing);
    let old = run_id_of(SystemTime::now() - Duration::from_hours(2));
    assert_eq!(refusal(&mut client, &old).await, "RUN_ID_EXPIRED");
    let shown = run_to_end(kennel.cli(&["status"]), PATIENCE).await;
    let kept = "of the last 2 ended runs of each owner, at least 0ns, at most 2592000s";
    assert!(text(&shown).contains(kept), "{}", text(&shown));
}

// promise: K-13
#[tokio::test(flavor = "multi_thread")]
async fn selected_ended_runs_of_two_nodes_are_removed() {
    let postgres = Postgres::start().await;
    let one = Kennel::start(Options::on(&postgres.url())).await;
    let two = Kennel::start(Options::on(&postgres.url())).await;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let live = pb::SpawnRequest {
        spec: Some(argv(&["sleep", "600"]).label("company", "acme")),
        ..pb::SpawnRequest::default()
    };
    let live = must("spawn", here.process.spawn(live).await).into_inner();
    let live = live.run.expect("a run").run_id;
    let loud = pb::SpawnRequest {
        spec: Some(argv(&["echo", "output"]).label("company", "bolt")),
        ..pb::SpawnRequest::default()
    };
    let loud = ran(&mut there, loud).await;
    let mut ended = Vec::new();
    for client in [&mut here, &mut there] {
        ended.push(ran(client, asked(&new_run_id(), "")).await);
    }
    let refused = remove(&mut here, &live).await.expect_err("it is alive");
    assert_eq!(complaint(&refused).reason, "INVALID_STATE");
    // Removal deletes output at the other node.
    assert!(two.run_dir(&loud).exists());
    must("remove", remove(&mut here, &loud).await);
    assert!(!two.run_dir(&loud).exists());
    let gone = remove(&mut there, &loud).await.expect_err("it is gone");
    assert_eq!(complaint(&gone).reason, "RUN_NOT_FOUND");

    let typed = run_to_end(one.cli(&["rm", "-l", "company=acme"]), PATIENCE).await;
    assert!(typed.status.success(), "{typed:?}");
    assert_eq!(text(&typed).lines().count(), 2, "{typed:?}");
    for run in &ended {
        assert_eq!(refusal(&mut there, run).await, "RUN_REMOVED");
        let repeated = run_to_end(two.cli(&["rm", run]), PATIENCE).await;
        assert_eq!(text(&repeated), *run);
    }
    assert!(must("get", here.get(&live).await).end_reason.is_none());
    let swept = run_to_end(one.cli(&["sweep"]), PATIENCE).await;
    assert_eq!(
        text(&swept),
        "removed 0 directories of runs, 0B\nkept 0 directories of runs, 0B: no record explains them"
    );
}
