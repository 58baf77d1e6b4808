//! Runs that exceed a time limit.

use crate::{play_apart, play_at_once};
use kennel_proto::pb::{DesiredState, OnMaxPause, Run, RunState};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt,
    client::{Client, micros},
    eventually, eventually_async,
    kennel::kill_exactly,
    must, naughty, procfs, sh,
};
use nix::sys::signal::Signal;
use std::time::Duration;

/// Enough for a tree to stand, and not much more.
const MAX: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn time_limits_hold_without_a_server() {
    play_apart! {
        limits_of_runs_and_pauses_are_kept,
        a_deadline_is_kept_while_the_server_hangs,
    };
}

async fn limits_of_runs_and_pauses_are_kept() {
    let kennel = Kennel::on_sqlite().await;
    play_at_once! {
        &kennel;
        run_over_max_runtime_ends_completely,
        a_pause_moves_the_deadline,
        pause_ends_after_its_max_pause,
        run_paused_for_too_long_ends_completely,
    };
}

// promise: TM-1
async fn run_over_max_runtime_ends_completely(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = naughty(&["mixed-tree"]).max_runtime(MAX);
    let run = must("spawn", client.spawn(spec).await);
    let print = Footprint::of_run(&run);
    let started = run.attempt().start_time.as_ref().map(micros);
    let due = run.deadline_time.as_ref().map(micros);
    let max = i64::try_from(MAX.as_micros()).expect("it is short");
    assert_eq!(due, started.map(|at| at + max));

    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Failed, "deadline_exceeded")
    );
    assert_eq!(run.desired(), DesiredState::Stop);
    assert_eq!(run.deadline_time, None);
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    let [leader_exited, ..] = run.three_ends();
    // The limit's clock differs from that of recorded times, which may be slewed.
    let slew = max / 100;
    assert!(leader_exited + slew >= due.expect("a limit"), "{run:?}");
    print.assert_nothing_left();
}

// promise: TM-2
async fn a_deadline_is_kept_while_the_server_hangs() {
    let kennel = Kennel::start(Options::default().without_cgroup()).await;
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client
            .spawn(naughty(&["mixed-tree"]).max_runtime(MAX))
            .await,
    );
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let server = kennel.server().expect("a server");
    kill_exactly(&server, Signal::SIGSTOP);
    eventually("the tree is gone", PATIENCE, || {
        print.count().is_empty().then_some(())
    })
    .await;
    kill_exactly(&server, Signal::SIGCONT);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.reason(), "deadline_exceeded", "{run:?}");
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
}

// promise: TM-3
async fn a_pause_moves_the_deadline(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "while :; do sleep 1000; done";
    let run = must("spawn", client.spawn(sh(script).max_runtime(MAX)).await);
    let first = run.deadline_time.as_ref().map(micros).expect("a limit");
    let paused = must("pause", client.pause(&run.run_id).await);
    assert_eq!(paused.deadline_time, None);
    // Another run's lifetime passes during the pause.
    let other = must("spawn", client.spawn(sh("sleep 1")).await);
    must("wait", client.ended(&other.run_id).await);
    let resumed = must("resume", client.resume(&run.run_id).await);
    let second = resumed.deadline_time.as_ref().map(micros).expect("a limit");
    assert!(second >= first + 1_000_000, "{first} {second}");
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.reason(), "deadline_exceeded", "{run:?}");
    let [leader_exited, ..] = run.three_ends();
    assert!(leader_exited >= first + 1_000_000, "{run:?}");
}

/// Long enough to be seen.
const MAX_PAUSE: Duration = Duration::from_secs(1);

async fn paused(kennel: &Kennel, then: OnMaxPause) -> (Client, Run) {
    let mut client = kennel.client().await;
    let spec = naughty(&["mixed-tree"]).max_pause(MAX_PAUSE, then);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let run = must("pause", client.pause(&run.run_id).await);
    assert_eq!(run.state(), RunState::Paused);
    (client, run)
}

async fn continues(client: &Client, run: &Run) {
    eventually_async("it goes on", PATIENCE, async || {
        let run = must("get", client.clone().get(&run.run_id).await);
        (run.state() == RunState::Running).then_some(())
    })
    .await;
    let tree = procfs::descendants(&procfs::all(), run.attempt().shim_pid);
    assert!(tree.iter().all(|proc| proc.state != 'T'), "{tree:?}");
}

// promise: TM-7, TM-9
async fn pause_ends_after_its_max_pause(kennel: &Kennel) {
    let (mut client, run) = paused(kennel, OnMaxPause::Resume).await;
    let until = run.pause_expires_at.as_ref().map(micros);
    assert!(until > run.create_time.as_ref().map(micros), "{run:?}");
    continues(&client, &run).await;
    let resumed = must("get", client.get(&run.run_id).await);
    assert_eq!(resumed.pause_expires_at, None);
    let print = Footprint::of_run(&run);
    must("abort", client.abort(&run.run_id).await);
    print.assert_nothing_left();
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert!(heard.stations().contains(&"resumed"));
}

// promise: TM-8
async fn run_paused_for_too_long_ends_completely(kennel: &Kennel) {
    let (mut client, run) = paused(kennel, OnMaxPause::Abort).await;
    let print = Footprint::of_run(&run);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Failed, "deadline_exceeded")
    );
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    print.assert_nothing_left();
}
