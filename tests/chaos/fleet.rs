//! Five nodes of one Postgres behind a pooler under every fault, again and again, and a witness.

use kennel_tests::fleet::{Plan, prove};

const RUNS: usize = 2000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "many minutes: make soak"]
async fn no_answer_of_five_nodes_is_false() {
    let tally = prove(Plan {
        nodes: 5,
        runs: RUNS,
        workers: 16,
        rounds: 3,
        seed: 5,
    })
    .await;
    println!("{tally:?}");
    assert!(
        tally.ran + tally.denied >= RUNS && tally.left > 0,
        "{tally:?}"
    );
}
