//! Exit codes that count as success beside 0: the run succeeds, and its code stays.

use kennel_proto::pb::{self, RestartMode, RunState};
use kennel_tests::{
    Kennel, PATIENCE, RunExt, SpecExt, client::duration, must, sh, shell::run_to_end,
};
use std::time::Duration;

fn succeeds_with(script: &str, codes: &[u32]) -> pb::RunSpec {
    let mut spec = sh(script);
    spec.success_exit_codes = codes.to_vec();
    spec
}

// promise: RW-54
#[tokio::test(flavor = "multi_thread")]
async fn listed_exit_code_counts_as_success() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let restart = || pb::RestartPolicy {
        mode: RestartMode::OnFailure.into(),
        delay: Some(duration(Duration::from_millis(10))),
        max_restarts: Some(1),
        ..pb::RestartPolicy::default()
    };
    for (script, state, reason, code) in [
        ("exit 143", RunState::Succeeded, "success_exit", 143),
        ("exit 0", RunState::Succeeded, "exited", 0),
        ("exit 3", RunState::Failed, "restarts_exhausted", 3),
    ] {
        let spec = succeeds_with(script, &[143, 7]).restart(restart());
        let run = must("spawn", client.spawn(spec).await).run_id;
        let ended = must("wait", client.ended(&run).await);
        let seen = (ended.state(), ended.reason(), ended.code());
        assert_eq!(seen, (state, reason, Some(code)), "{ended:?}");
    }
    // A stop has its own reason, whatever the code.
    let script = "trap 'exit 143' TERM; echo up; while :; do sleep 0.05; done";
    let run = must("spawn", client.spawn(succeeds_with(script, &[143])).await);
    client.hear_up(&run.run_id).await;
    must("abort", client.abort(&run.run_id).await);
    let ended = must("wait", client.ended(&run.run_id).await);
    let seen = (ended.state(), ended.reason(), ended.code());
    assert_eq!(seen, (RunState::Cancelled, "aborted", Some(143)));
    assert_command_line_has_codes_of_success(&kennel).await;
}

async fn assert_command_line_has_codes_of_success(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let words = [
        "run",
        "--success-exit-code",
        "143",
        "--success-exit-code",
        "7",
        "--",
        "sh",
        "-c",
        "exit 7",
    ];
    let output = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert_eq!(output.status.code(), Some(7), "the command's own code");
    let all = client.list_all(pb::RunFilter::default(), 0).await;
    let runs = must("list", all);
    let spec = runs[0].spec.as_ref().expect("it is shown");
    assert_eq!(spec.success_exit_codes, [143, 7]);
    assert_eq!(runs[0].state(), RunState::Succeeded);
}
