//! Nodes of one Postgres behind a pooler under every fault, and a witness: three once, five again and again.

use kennel_tests::fleet::{Plan, Turns, prove};

const RUNS: usize = 2000;

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_of_a_fleet_is_false() {
    let tally = prove(Plan {
        nodes: 3,
        runs: 60,
        workers: 6,
        rounds: 1,
        seed: 1,
        turns: Turns::Faults,
    })
    .await;
    println!("{tally:?}");
    assert!(tally.ran >= 40 && tally.stopped >= 15, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "many minutes: make soak"]
async fn no_answer_of_five_nodes_is_false() {
    let tally = prove(Plan {
        nodes: 5,
        runs: RUNS,
        workers: 16,
        rounds: 3,
        seed: 5,
        turns: Turns::Faults,
    })
    .await;
    println!("{tally:?}");
    assert!(
        tally.ran + tally.denied >= RUNS && tally.left > 0,
        "{tally:?}"
    );
}
