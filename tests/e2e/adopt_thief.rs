//! A run that tries to take over another one: all processes of a user can reach the sockets at which shims wait.

use crate::with_and_without_cgroup;
use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Kennel, Options, PATIENCE, RunExt, eventually, must, naughty, procfs::Proc, sh,
};
use std::fs;

with_and_without_cgroup!(foreign_member_is_not_given_a_run);

fn adopted(mut spec: pb::RunSpec) -> pb::RunSpec {
    spec.set_recovery(pb::RecoveryPolicy::Adopt);
    spec
}

// promise: R-62
async fn foreign_member_is_not_given_a_run(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let script = "trap 'exit 12' TERM; echo up; while :; do sleep 0.05; done";
    let run = must("spawn", client.spawn(adopted(sh(script))).await);
    client.hear_up(&run.run_id).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let report = kennel.scratch().join("report");
    let thief = naughty(&[
        "take-run",
        &kennel.data_dir().to_string_lossy(),
        &run.run_id,
        &kennel.keeper_pid().to_string(),
        &report.to_string_lossy(),
    ]);
    let thief = must("spawn", client.spawn(adopted(thief)).await);
    client.hear_up(&thief.run_id).await;
    fs::write(report.with_extension("go"), "").expect("own directory");
    kennel.wait_for_exit(PATIENCE).await;
    let report = eventually("the thief has tried", PATIENCE, || {
        fs::read_to_string(&report).ok()
    })
    .await;
    assert!(report.starts_with("refused "), "{report}");
    assert!(
        report.contains("locked=true"),
        "it did not try all: {report}"
    );
    assert!(leader.is_alive(), "the run has ended of it");

    kennel.restart().await;
    let mut client = kennel.client().await;
    let again = must("get", client.get(&run.run_id).await);
    assert_eq!(again.state(), RunState::Running, "{again:?}");
    assert_eq!(again.lasting(), run.lasting());
    let run = must("abort", client.abort(&run.run_id).await);
    assert_eq!((run.reason(), run.code()), ("aborted", Some(12)));
    let thief = must("wait", client.ended(&thief.run_id).await);
    assert_eq!(thief.code(), Some(0), "{thief:?}");
}
