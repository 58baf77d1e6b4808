//! The service dies and comes back: every row is closed truthfully, and no process is left unsupervised.

use crate::with_and_without_cgroup;
use kennel_proto::pb::RunState;
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, eventually,
    kennel::{kill_exactly, reap_orphans},
    must, naughty,
    procfs::Proc,
    sh,
};
use nix::sys::signal::Signal;
use std::time::Duration;

/// Longer than a start waits for.
const LONG: Duration = Duration::from_hours(1);

with_and_without_cgroup!(keeper_death_ends_runs_and_keeps_exits);

// promise: E-5, R-2, R-6
async fn keeper_death_ends_runs_and_keeps_exits(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let before = client.server_info().await.expect("it answers");
    let polite = sh("trap 'exit 17' TERM; echo up; while :; do sleep 0.05; done");
    let polite = must("spawn", client.spawn(polite).await);
    let stubborn = naughty(&["storm-node", "1"]).grace(Duration::from_millis(300));
    let stubborn = must("spawn", client.spawn(stubborn).await);
    let done = must("spawn", client.spawn(sh("exit 5")).await);
    must("wait", client.ended(&done.run_id).await);
    for run in [&polite, &stubborn] {
        client.hear_up(&run.run_id).await;
    }
    let prints = [&polite, &stubborn].map(Footprint::of_run);

    kennel.kill_keeper();
    kennel.wait_until_all_is_gone(PATIENCE).await;
    for print in &prints {
        print.assert_nothing_left();
    }
    kennel.restart().await;

    let mut client = kennel.client().await;
    let run = must("wait", client.ended(&polite.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "{run:?}");
    assert_eq!(run.code(), Some(17), "the shim has written it down");
    let run = must("wait", client.ended(&stubborn.run_id).await);
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"), "{run:?}");
    let run = must("wait", client.ended(&done.run_id).await);
    assert_eq!(
        (run.state(), run.code()),
        (RunState::Failed, Some(5)),
        "what was over stays as it was"
    );
    let after = client.server_info().await.expect("it answers");
    assert_eq!(after.generation, before.generation + 1);
    assert_eq!(after.node_id, before.node_id);
    let epochs = [before.keeper, after.keeper].map(|keeper| keeper.expect("a keeper").epoch);
    assert_ne!(epochs[0], epochs[1]);
}

// promise: R-3, R-3b
#[tokio::test(flavor = "multi_thread")]
async fn command_surviving_service_is_found_and_terminated() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let leader = Proc::read(run.attempt().pid).expect("it runs");

    let shims = kennel.shims();
    kennel.kill_service_after(|| {
        for shim in shims {
            kill_exactly(&shim, Signal::SIGKILL);
        }
    });
    kennel.wait_for_exit(PATIENCE).await;
    assert!(leader.is_alive(), "no process is left that could end it");
    kennel.restart().await;

    let run = must("wait", kennel.client().await.ended(&run.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "{run:?}");
    assert_eq!(run.reason(), "orphan_terminated", "{run:?}");
    print.until_nothing_is_left().await;
}

// promise: R-3a
#[tokio::test(flavor = "multi_thread")]
async fn next_start_resumes_interrupted_termination() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let (asked, go) = (kennel.scratch().join("asked"), kennel.scratch().join("go"));
    // The shell prints a message for a killed child, when stderr has no reader.
    let script = format!(
        "exec 2>/dev/null; trap 'echo x > {}' TERM; echo up; until [ -e {} ]; do sleep 0.02; done",
        asked.display(),
        go.display()
    );
    let run = must("spawn", client.spawn(sh(&script).grace(LONG)).await);
    client.hear_up(&run.run_id).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let shims = kennel.shims();
    kennel.kill_service_after(|| {
        for shim in shims {
            kill_exactly(&shim, Signal::SIGKILL);
        }
    });
    kennel.restart().await;
    eventually("it is asked to end", PATIENCE, || {
        asked.exists().then_some(())
    })
    .await;
    kennel.kill_service_after(|| ());
    std::fs::write(&go, b"").expect("a file");
    eventually("it has ended", PATIENCE, || {
        reap_orphans();
        (!leader.is_alive()).then_some(())
    })
    .await;
    kennel.restart().await;

    let run = must("wait", kennel.client().await.ended(&run.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "{run:?}");
    assert_eq!(run.reason(), "orphan_terminated", "{run:?}");
    let certificate = run.attempt().certificate.clone().expect("it has ended");
    let signals: Vec<&str> = certificate.steps.iter().map(|s| &*s.signal).collect();
    assert_eq!(signals.first(), Some(&"SIGTERM"), "{certificate:?}");
}
