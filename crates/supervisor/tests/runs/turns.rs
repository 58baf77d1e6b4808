//! Many starts at once: each waits for its turn, and none for a store that does not answer.

use crate::world::{Nature, Stage, call};
use kennel_lifecycle::{RestartPolicy, RunId};
use kennel_supervisor::{CallError, DrainAction, DrainCall, Spawned};
use std::{thread::available_parallelism, time::Duration};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// Upper bound for every step here, on a clock that advances when no task has work.
const LONG: Duration = Duration::from_mins(10);
const SHORT: Duration = Duration::from_millis(1);

fn processors() -> usize {
    available_parallelism().unwrap().get()
}

/// Calls at once, more than there are turns.
fn asked() -> usize {
    20 * processors()
}

/// Spawns them over a store that keeps each waiting.
async fn spawning() -> (Stage, JoinSet<Result<Spawned, CallError>>) {
    let stage = Stage::set(Nature::default()).await;
    stage.world.store.hold_inserts();
    let mut spawning = JoinSet::new();
    for run in 1..=asked() {
        let supervisor = stage.supervisor.clone();
        let call = call(Some(RunId::from_u128(run as u128)));
        spawning.spawn(async move { supervisor.spawn(call).await });
    }
    (stage, spawning)
}

/// Returns the number of commands that were made.
fn made(stage: &Stage) -> usize {
    let runs = (1..=asked()).map(|run| RunId::from_u128(run as u128));
    runs.filter(|run| stage.is_alive(*run)).count()
}

/// Waits until all commands are made: never more at once than there are turns.
async fn all_made(stage: &Stage) {
    let mut before = 0;
    let all_made = async {
        while before < asked() {
            sleep(SHORT).await;
            let now = made(stage);
            assert!(now - before <= 8 * processors(), "{before} to {now}");
            before = now;
        }
    };
    let all = timeout(LONG, all_made).await;
    all.expect("a start waits for others that the store holds");
}

// promise: I-105
#[tokio::test(start_paused = true)]
async fn starts_take_turns_despite_slow_store() {
    let (stage, spawning) = spawning().await;
    all_made(&stage).await;
    stage.world.store.let_inserts_go();
    for spawned in spawning.join_all().await {
        spawned.unwrap();
    }
}

// promise: I-105
#[tokio::test(start_paused = true)]
async fn restarts_take_turns_like_spawns() {
    let stage = Stage::set(Nature::default()).await;
    for run in 1..=asked() {
        let mut call = call(Some(RunId::from_u128(run as u128)));
        call.spec.policy.restart = RestartPolicy {
            delay: SHORT,
            max_delay: SHORT,
            ..RestartPolicy::keepalive()
        };
        stage.supervisor.spawn(call).await.unwrap();
    }
    stage.world.store.hold_inserts();
    for run in 1..=asked() {
        stage.exits(RunId::from_u128(run as u128), 1);
    }
    all_made(&stage).await;
    stage.world.store.let_inserts_go();
}

// promise: I-105a
#[tokio::test(start_paused = true)]
async fn drained_node_refuses_calls_that_wait() {
    let (stage, spawning) = spawning().await;
    while made(&stage) == 0 {
        sleep(SHORT).await;
    }
    let drain = DrainCall {
        action: DrainAction::Finish,
        deadline: None,
        by: "uid:7".into(),
        request_id: None,
    };
    stage.supervisor.drain(drain).await.unwrap();
    stage.world.store.let_inserts_go();
    let answers = spawning.join_all().await;
    let refused = answers
        .iter()
        .filter(|answer| matches!(answer, Err(CallError::NodeDrained)));
    let refused = refused.count();
    assert_ne!(refused, 0, "all had their turns before the drain");
    assert_eq!(refused + made(&stage), asked());
}
