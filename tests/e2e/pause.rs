//! Pause and resume: paused means that every task was seen stopped.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::RunState;
use kennel_tests::{
    Footprint, Kennel, Options, RunExt, SpecExt, client::Client, complaint, eventually, must,
    naughty, procfs, sh,
};
use std::{fs, path::Path, time::Duration};
use tonic::Code;

with_and_without_cgroup!(paused_tree_stands_still_or_is_aborted);

async fn paused_tree(kennel: &Kennel) -> (Client, kennel_proto::pb::Run) {
    let mut client = kennel.client().await;
    let spec = naughty(&["mixed-tree"]).grace(Duration::from_secs(20));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let run = must("pause", client.pause(&run.run_id).await);
    assert_eq!(run.state(), RunState::Paused);
    (client, run)
}

/// Whether every task of the tree is frozen or stopped, according to the kernel.
fn stands_still(run: &kennel_proto::pb::Run) -> bool {
    let identity = run.attempt().identity.as_ref().expect("an identity");
    if let Some(cgroup) = &identity.cgroup_path {
        let events = fs::read_to_string(Path::new(cgroup).join("cgroup.events"))
            .expect("a live run's control group is there");
        return events.lines().any(|line| line == "frozen 1");
    }
    let tree = procfs::descendants(&procfs::all(), run.attempt().shim_pid);
    assert!(!tree.is_empty());
    tree.iter()
        .all(|proc| proc.state == 'T' || proc.is_zombie())
}

async fn paused_tree_stands_still_or_is_aborted(options: Options) {
    let kennel = Kennel::start(options).await;
    play_scenes! {
        &kennel;
        paused_tree_stands_still_until_resumed,
        a_paused_run_can_be_aborted,
        ended_run_can_be_neither_paused_nor_resumed,
    }
}

// promise: T-11
async fn paused_tree_stands_still_until_resumed(kennel: &Kennel) {
    let (mut client, run) = paused_tree(kennel).await;
    assert!(stands_still(&run));
    assert_eq!(
        must("again", client.pause(&run.run_id).await).state(),
        RunState::Paused
    );

    let run = must("resume", client.resume(&run.run_id).await);
    assert_eq!(run.state(), RunState::Running);
    assert!(!stands_still(&run));
    assert_eq!(
        must("again", client.resume(&run.run_id).await).state(),
        RunState::Running
    );

    let print = Footprint::of_run(&run);
    must("abort", client.abort(&run.run_id).await);
    print.assert_nothing_left();
    let stations = must("stream", client.hear_all(&run.run_id, 0).await).stations();
    let of_pause: Vec<_> = stations
        .into_iter()
        .filter(|station| ["paused", "resumed"].contains(station))
        .collect();
    assert_eq!(of_pause, ["paused", "resumed"]);
}

// promise: T-11
async fn a_paused_run_can_be_aborted(kennel: &Kennel) {
    let (mut client, run) = paused_tree(kennel).await;
    let print = Footprint::of_run(&run);
    let run = must("abort", client.abort(&run.run_id).await);
    assert_eq!(
        run.signal().as_deref(),
        Some("SIGTERM"),
        "the signal first, then the thaw"
    );
    print.assert_nothing_left();
}

// promise: T-12
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_tree_does_not_outlive_its_service() {
    let mut kennel = Kennel::on_sqlite().await;
    let (_, run) = paused_tree(&kennel).await;
    let print = Footprint::of_run(&run);
    kennel.kill_keeper();
    kennel.restart().await;
    let mut client = kennel.client().await;
    let run = must("get", client.ended(&run.run_id).await);
    assert!(
        ["orphan_terminated", "service_lost"].contains(&run.reason()),
        "{run:?}"
    );
    eventually("the tree is gone", kennel_tests::PATIENCE, || {
        kennel_tests::kennel::reap_orphans();
        print.count().is_empty().then_some(())
    })
    .await;
}

async fn ended_run_can_be_neither_paused_nor_resumed(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exit 0")).await);
    must("wait", client.ended(&run.run_id).await);
    for refused in [
        client.pause(&run.run_id).await.expect_err("it is over"),
        client.resume(&run.run_id).await.expect_err("it is over"),
    ] {
        let complaint = complaint(&refused);
        assert_eq!(
            (complaint.code, complaint.reason.as_str()),
            (Code::FailedPrecondition, "RUN_ENDED")
        );
    }
}
