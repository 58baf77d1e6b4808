//! Draining a node, and undoing that, with the real binary.

use crate::play_scenes;
use kennel_proto::pb::{self, DrainAction, RunState};
use kennel_tests::{
    Client, Footprint, Kennel, PATIENCE, RunExt, complaint, must, new_run_id, programs, sh,
    shell::{run_to_end, text},
    tmux::Tmux,
};
use std::time::Duration;
use tonic::{Code, Status};

/// Lives until it is ended.
const LONG: &str = "echo up; exec sleep 300";

async fn drain(
    client: &mut Client,
    action: DrainAction,
    deadline: Option<Duration>,
) -> Result<pb::DrainStatus, Status> {
    let request = pb::DrainRequest {
        action: action.into(),
        deadline: deadline.map(|wait| wait.try_into().expect("short")),
        request_id: "maintenance".into(),
    };
    let response = client.admin.drain(request).await?.into_inner();
    Ok(response.status.expect("a status is given"))
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_as_requested_and_is_undone() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        drained_node_refuses_new_runs_and_finishes_others,
        invalid_drain_is_refused,
        the_drain_command_waits_until_nothing_is_left,
        drain_deadline_ends_remaining_runs_with_reason,
        long_waits_show_their_progress_on_a_terminal,
    }
}

// promise: S-5
async fn drained_node_refuses_new_runs_and_finishes_others(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run_id = new_run_id();
    let go = kennel.scratch().join("go");
    let script = format!(
        "echo up; until [ -e {} ]; do sleep 0.05; done",
        go.display()
    );
    let (run, _) = must("spawn", client.spawn_as(&run_id, sh(&script)).await);
    client.hear_up(&run.run_id).await;
    assert!(kennel.is_serving("readiness").await);

    let status = must("drain", drain(&mut client, DrainAction::Finish, None).await);
    assert_eq!(status.run_ids, [run_id.as_str()]);
    let refused = client.spawn(sh("true")).await.expect_err("no new runs");
    let refusal = complaint(&refused);
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (Code::Unavailable, "NODE_DRAINING")
    );
    let (_, existing) = must("repeat", client.spawn_as(&run_id, sh(&script)).await);
    assert!(existing, "a repeat is no new run");
    kennel.becomes_ready(false).await;
    assert!(kennel.is_serving("liveness").await);

    must("go", std::fs::write(&go, ""));
    let ended = must("ended", client.ended(&run_id).await);
    assert_eq!(ended.state(), RunState::Succeeded);
    let server = client.server_info().await.expect("it answers");
    let left = server.drain.expect("a status is given");
    assert!(left.drain.is_some() && left.run_ids.is_empty(), "{left:?}");

    must("undrain", client.admin.undrain(pb::UndrainRequest {}).await);
    kennel.becomes_ready(true).await;
    must("spawn", client.spawn(sh("true")).await);
}

// promise: S-6
async fn drain_deadline_ends_remaining_runs_with_reason(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh(LONG)).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let wait = Duration::from_millis(300);
    let status = drain(&mut client, DrainAction::Finish, Some(wait)).await;
    assert!(
        must("drain", status)
            .drain
            .is_some_and(|d| d.deadline_time.is_some())
    );
    let ended = must("ended", client.ended(&run.run_id).await);
    assert_eq!(ended.reason(), "aborted");
    let reason = ended.end_reason.and_then(|end| end.reason);
    let Some(pb::end_reason::Reason::Aborted(aborted)) = reason else {
        panic!("{reason:?}");
    };
    assert_eq!(aborted.request_id, "maintenance");
    print.assert_nothing_left();
    must("undrain", client.admin.undrain(pb::UndrainRequest {}).await);
}

async fn invalid_drain_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let month = Duration::from_hours(24 * 31);
    for (action, deadline) in [
        (DrainAction::Abort, Duration::from_secs(1)),
        (DrainAction::Finish, month),
    ] {
        let refused = drain(&mut client, action, Some(deadline)).await;
        let refusal = complaint(&refused.expect_err("refused"));
        assert_eq!(refusal.fields, ["deadline"]);
    }
    must("it was not drained", client.spawn(sh("true")).await);
}

async fn the_drain_command_waits_until_nothing_is_left(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh(LONG)).await);
    client.hear_up(&run.run_id).await;
    let cli = async |words: &[&str]| {
        let output = run_to_end(kennel.cli(words), PATIENCE).await;
        assert!(output.status.success(), "{output:?}");
        text(&output)
    };
    assert!(cli(&["drain"]).await.contains(&run.run_id));
    assert!(cli(&["status"]).await.contains("no new runs"));
    let printed = cli(&["drain", "--abort", "--wait"]).await;
    assert!(printed.ends_with("no run is left"), "{printed}");
    assert!(cli(&["drain", "--undo"]).await.contains("accepts new runs"));
    must("spawn", client.spawn(sh("true")).await);
}

// promise: S-7
#[tokio::test(flavor = "multi_thread")]
async fn drain_survives_the_server_until_service_end() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh(LONG)).await);
    client.hear_up(&run.run_id).await;
    let wait = Some(Duration::from_hours(1));
    let drained = must("drain", drain(&mut client, DrainAction::Finish, wait).await);
    kennel.replace_server().await;

    let mut client = kennel.client().await;
    let server = client.server_info().await.expect("it answers");
    assert_eq!(server.drain, Some(drained));
    let refused = client.spawn(sh("true")).await.expect_err("no new runs");
    assert_eq!(complaint(&refused).reason, "NODE_DRAINING");
    assert!(!kennel.is_serving("readiness").await);
    must("abort", client.abort(&run.run_id).await);

    kennel.signal(nix::sys::signal::Signal::SIGTERM);
    kennel.restart().await;
    let mut client = kennel.client().await;
    must(
        "the next service takes runs",
        client.spawn(sh("true")).await,
    );
    assert!(!kennel.data_dir().join("drain").exists());
}

// promise: C-53
async fn long_waits_show_their_progress_on_a_terminal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh(LONG)).await).run_id;
    let line = format!(
        "{} --server {} drain --wait; echo code $?",
        programs::kennel().display(),
        kennel.address()
    );
    let tmux = Tmux::start(kennel.scratch(), "drain", (10, 80), &line);
    tmux.shows("waiting for runs to end (2s)").await;
    must("abort", client.abort(&run).await);
    let shown = tmux.shows("code 0").await;
    assert!(
        !shown.contains("waiting"),
        "the line is taken away: {shown}"
    );
}
