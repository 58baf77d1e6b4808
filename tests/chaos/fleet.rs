//! Nodes of one Postgres under every fault, and a witness: three once, five again and again, and three that are replaced.

use kennel_tests::fleet::{Plan, Turns, prove};

const RUNS: usize = 2000;

// promise: I-94, I-94b, I-94a
#[tokio::test(flavor = "multi_thread")]
async fn fleet_of_three_nodes_gives_no_false_answer() {
    let tally = prove(Plan {
        nodes: 3,
        runs: 60,
        workers: 6,
        rounds: 1,
        seed: 1,
        turns: Turns::Faults,
        has_pooler: true,
    })
    .await;
    println!("{tally:?}");
    assert!(tally.ran >= 40 && tally.stopped >= 15, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "many minutes: make soak"]
async fn fleet_of_five_nodes_gives_no_false_answer() {
    let tally = prove(Plan {
        nodes: 5,
        runs: RUNS,
        workers: 16,
        rounds: 3,
        seed: 5,
        turns: Turns::Faults,
        has_pooler: true,
    })
    .await;
    println!("{tally:?}");
    assert!(
        tally.ran + tally.denied >= RUNS && tally.left > 0,
        "{tally:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "many minutes: make soak"]
async fn fleet_with_large_history_gives_no_false_answer() {
    grow_old(true, 11).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "many minutes: make soak"]
async fn fleet_without_pooler_gives_no_false_answer() {
    grow_old(false, 12).await;
}

/// Replaces a node of three twelve times among all faults.
async fn grow_old(has_pooler: bool, seed: u64) {
    let tally = prove(Plan {
        nodes: 3,
        runs: 400,
        workers: 6,
        rounds: 3,
        seed,
        turns: Turns::Age,
        has_pooler,
    })
    .await;
    println!("{tally:?}");
    assert!(tally.ran + tally.denied >= 400, "{tally:?}");
}
