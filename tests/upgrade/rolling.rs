//! Three nodes of one Postgres that get another version one after the other, and the former one again, beside a witness
//! of what lives: no answer is false, and a reader of all runs that goes on at any node by its cursor misses none.

use kennel_tests::fleet::{Plan, Turns, prove};

async fn roll(turns: Turns, seed: u64) {
    let tally = prove(Plan {
        nodes: 3,
        runs: 120,
        workers: 6,
        rounds: 1,
        seed,
        turns,
        has_pooler: true,
    })
    .await;
    println!("{tally:?}");
    assert!(tally.ran >= 80 && tally.stopped >= 30, "{tally:?}");
}

// promise: R-24
#[tokio::test(flavor = "multi_thread")]
async fn rolling_upgrade_gives_no_false_answer() {
    roll(Turns::Versions, 2).await;
}

// promise: R-24
#[tokio::test(flavor = "multi_thread")]
async fn no_stream_misses_runs_under_set_clocks() {
    roll(Turns::VersionsAndClocks, 3).await;
}
