//! Restarts of ended runs.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, client::fact, complaint, must,
    new_run_id, sh, shell::run_to_end,
};
use nix::sys::signal::Signal;
use std::{fs, sync::LazyLock};
use tonic::Code;

static NEW: LazyLock<String> = LazyLock::new(new_run_id);

// promise: B-9
#[tokio::test(flavor = "multi_thread")]
async fn ended_run_is_run_again_as_new_run() {
    let mut kennel = Kennel::start(Options::default()).await;
    let mut client = kennel.client().await;
    let ran = kennel.scratch().join("ran");
    let script = format!("echo once >> {}; echo out; exit 3", ran.display());
    let spec = sh(&script).label("app", "web");
    let first = must("spawn", client.spawn(spec).await);
    let first = must("wait", client.ended(&first.run_id).await);

    let second = must("restart", client.restart_with(again(&first.run_id)).await);
    assert_eq!(second.run_id, *NEW);
    assert_eq!(second.restarted_from, first.run_id);
    assert_eq!((&second.spec, &second.labels), (&first.spec, &first.labels));
    // A repeated call returns the same run, also at the next server.
    kennel.kill_server();
    let mut client = kennel.client().await;
    let repeated = must("restart", client.restart_with(again(&first.run_id)).await);
    assert_eq!(repeated.run_id, *NEW);
    let second = must("wait", client.ended(&NEW).await);
    assert_eq!((second.state(), second.code()), (RunState::Failed, Some(3)));
    assert_eq!(must("get", client.get(&first.run_id).await), first);
    assert_eq!(
        fs::read_to_string(&ran).expect("it ran"),
        "once\n".repeat(2)
    );
    let heard = must("stream", client.hear_all(&NEW, 0).await);
    assert_eq!(heard.text(), "out\n");

    // Restarting another run under a used id is not a repeat.
    let refused = client
        .restart_with(again(&NEW))
        .await
        .expect_err("a taken id");
    assert_eq!(complaint(&refused).reason, "SPEC_MISMATCH");
    // The store keeps the new run's origin.
    kennel.signal(Signal::SIGTERM);
    kennel.restart().await;
    let mut client = kennel.client().await;
    let stored = must("get", client.get(&NEW).await);
    assert_eq!(stored.restarted_from, first.run_id);
    for run in [&first, &second] {
        Footprint::of_run(run).assert_nothing_left();
    }
}

// promise: B-9
#[tokio::test(flavor = "multi_thread")]
async fn run_again_needs_the_missing_secrets() {
    let kennel = Kennel::start(Options::default()).await;
    let mut client = kennel.client().await;
    let mut spec = sh("cat; echo $SECRET").env("SECRET", "first");
    spec.initial_input = Some(b"one ".to_vec().into());
    let run = must("spawn", client.spawn(spec).await);
    let ended = must("wait", client.ended(&run.run_id).await);
    let shown = ended.spec.as_ref().expect("a spec");
    assert_eq!(
        shown.initial_input.as_deref(),
        Some(&b""[..]),
        "that there was some is kept"
    );

    let refused = client.restart_with(again(&run.run_id)).await;
    let refused = refused.expect_err("nothing is made up");
    let refusal = complaint(&refused);
    assert_eq!(
        (refused.code(), refusal.reason.as_str()),
        (Code::FailedPrecondition, "SPEC_INCOMPLETE")
    );
    assert_eq!(fact(&refused, "missing"), "env.SECRET,initial_input");
    let missing = client.get(&NEW).await.expect_err("nothing was begun");
    assert_eq!(complaint(&missing).reason, "RUN_NOT_FOUND");

    let whole = pb::RestartRequest {
        env: [("SECRET".to_owned(), "second".to_owned())].into(),
        initial_input: Some(b"two ".to_vec().into()),
        ..again(&run.run_id)
    };
    must("restart", client.restart_with(whole).await);
    must("wait", client.ended(&NEW).await);
    let heard = must("stream", client.hear_all(&NEW, 0).await);
    assert_eq!(heard.text(), "two second\n");

    // A fence row has no spec.
    let unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAX";
    must("abort", client.abort(unknown).await);
    let refused = client.restart_with(again(unknown)).await;
    let refused = refused.expect_err("there is no command");
    let refusal = complaint(&refused);
    assert_eq!(
        (refusal.reason.as_str(), fact(&refused, "missing").as_str()),
        ("SPEC_INCOMPLETE", "spec")
    );
    assert_command_line_runs_again(&kennel).await;
}

async fn assert_command_line_runs_again(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client.spawn(sh("echo $WORD").env("WORD", "a")).await,
    );
    must("wait", client.ended(&run.run_id).await);
    let refused = run_to_end(kennel.cli(&["restart", &run.run_id]), PATIENCE).await;
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("env.WORD") && said.contains("--env"),
        "{said}"
    );
    let done = run_to_end(
        kennel.cli(&["restart", &run.run_id, "--env", "WORD=b"]),
        PATIENCE,
    )
    .await;
    assert!(done.status.success(), "{done:?}");
    let shown = run_to_end(kennel.cli(&["ps", "--all", "--output", "json"]), PATIENCE).await;
    let shown = String::from_utf8_lossy(&shown.stdout);
    let field = format!("\"restartedFrom\":\"{}\"", run.run_id);
    assert!(shown.replace(": ", ":").contains(&field), "{shown}");
}

fn again(run: &str) -> pb::RestartRequest {
    pb::RestartRequest {
        run_id: run.to_owned(),
        new_run_id: NEW.clone(),
        ..pb::RestartRequest::default()
    }
}
