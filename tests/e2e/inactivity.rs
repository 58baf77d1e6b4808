//! `timeouts.inactivity`: a run without output and input is stopped.

use crate::{play_apart, play_at_once};
use kennel_proto::pb::{self, RunState, end_reason::Reason};
use kennel_tests::{
    Client, Kennel, PATIENCE, RunExt, SpecExt, client::complaint, eventually, must, sh,
};
use std::time::Duration;

/// Many times the pause between two outputs or inputs, also on a busy machine.
const LIMIT: Duration = Duration::from_millis(1_500);

pub(crate) fn limited(script: &str, limit: Duration) -> pb::RunSpec {
    let mut spec = sh(script);
    spec.timeouts.get_or_insert_default().inactivity = limit.try_into().ok();
    spec
}

async fn ends_inactive(client: &mut Client, run_id: &str) {
    let run = must("wait", client.ended(run_id).await);
    assert_eq!(run.state(), RunState::Failed, "{run:?}");
    let reason = run.end_reason.clone().and_then(|end| end.reason);
    let Some(Reason::DeadlineExceeded(exceeded)) = reason else {
        panic!("{run:?}")
    };
    assert_eq!(exceeded.which(), pb::Deadline::Inactivity);
}

#[tokio::test(flavor = "multi_thread")]
async fn inactivity_is_counted_by_every_server() {
    play_apart! {
        inactivity_is_neither_output_nor_input_nor_pause,
        inactivity_is_counted_across_server_deaths,
    };
}

async fn inactivity_is_neither_output_nor_input_nor_pause() {
    let kennel = Kennel::on_sqlite().await;
    play_at_once! {
        &kennel;
        silent_run_is_stopped_with_its_tree,
        output_and_pauses_are_no_inactivity,
        accepted_input_is_activity,
        limit_of_no_time_is_refused,
    };
}

// promise: TM-10
async fn silent_run_is_stopped_with_its_tree(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = limited("sleep 1000 & echo up; sleep 1000", LIMIT);
    let run = must("spawn", client.spawn(spec).await);
    ends_inactive(&mut client, &run.run_id).await;
    kennel_tests::Footprint::of_id(&run.run_id).assert_nothing_left();
}

// promise: TM-10a
async fn output_and_pauses_are_no_inactivity(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // The command writes for longer than the limit, then exits.
    let writes = limited(
        "for i in $(seq 24); do echo; sleep 0.1; done; exit 3",
        LIMIT,
    );
    let paused = limited("echo up; sleep 1000", LIMIT);
    let writes = must("spawn", client.spawn(writes).await);
    let paused = must("spawn", client.spawn(paused).await);
    client.hear_up(&paused.run_id).await;
    must("pause", client.pause(&paused.run_id).await);
    let run = must("wait", client.ended(&writes.run_id).await);
    assert_eq!(run.code(), Some(3), "{run:?}");
    let run = must("get", client.get(&paused.run_id).await);
    assert_eq!(run.state(), RunState::Paused, "{run:?}");
    must("resume", client.resume(&paused.run_id).await);
    ends_inactive(&mut client, &paused.run_id).await;
}

// promise: TM-10
async fn accepted_input_is_activity(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // `cat` reads all input and writes nothing.
    let spec = limited("cat >/dev/null; exit 3", LIMIT).open_input();
    let run = must("spawn", client.spawn(spec).await);
    for write in 0..12 {
        let id = write.to_string();
        must("write", client.write(&run.run_id, &id, None, b"x").await);
        tokio::time::sleep(LIMIT / 8).await;
    }
    must("close", client.close_input(&run.run_id, None).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(3), "{run:?}");
}

// promise: TM-10b
async fn inactivity_is_counted_across_server_deaths() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let silent = limited("echo up; sleep 1000", Duration::from_secs(3));
    let writes = limited("while :; do echo; sleep 0.1; done", Duration::from_secs(3));
    let silent = must("spawn", client.spawn(silent).await);
    let writes = must("spawn", client.spawn(writes).await);
    client.hear_up(&silent.run_id).await;
    // Each server lives for less than the limit, so none counts it fully.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The keeper delays the restart of a server that died early.
        eventually("a server", PATIENCE, || kennel.server()).await;
        kennel.kill_server();
        client = kennel.client().await;
    }
    ends_inactive(&mut client, &silent.run_id).await;
    let run = must("get", client.get(&writes.run_id).await);
    assert_eq!(run.state(), RunState::Running, "{run:?}");
    must("abort", client.abort(&writes.run_id).await);
}

// promise: TM-6
async fn limit_of_no_time_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let status = client
        .spawn(limited("true", Duration::ZERO))
        .await
        .expect_err("no time");
    let fields = complaint(&status).fields;
    assert_eq!(fields, ["spec.timeouts.inactivity"]);
}
