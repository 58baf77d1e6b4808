//! Many starts at once: each waits for its turn, and none for a store that does not answer.

use crate::world::{Nature, Stage, call};
use kennel_lifecycle::RunId;
use std::{thread::available_parallelism, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// Upper bound for every step here, on a clock that advances when no task has work.
const LONG: Duration = Duration::from_mins(10);

#[tokio::test(start_paused = true)]
async fn starts_take_turns_over_a_slow_store() {
    let stage = Stage::set(Nature::default()).await;
    stage.world.store.hold_inserts();
    let processors = available_parallelism().unwrap().get();
    let asked = 20 * processors as u128;
    let mut spawning = JoinSet::new();
    for run in 1..=asked {
        let supervisor = stage.supervisor.clone();
        let call = call(Some(RunId::from_u128(run)));
        spawning.spawn(async move { supervisor.spawn(call).await });
    }
    let made = || {
        (1..=asked)
            .filter(|run| stage.is_alive(RunId::from_u128(*run)))
            .count()
    };
    let mut before = 0;
    let all_made = async {
        while before < asked as usize {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = made();
            assert!(now - before <= 8 * processors, "{before} to {now}");
            before = now;
        }
    };
    let all = timeout(LONG, all_made).await;
    all.expect("a start waits for others that the store holds");
    stage.world.store.let_inserts_go();
    for spawned in spawning.join_all().await {
        spawned.unwrap();
    }
}
