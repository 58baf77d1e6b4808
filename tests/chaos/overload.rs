//! More clients than can be served: the answers to them, that all of their runs are accounted for, and the memory used.
//!
//! Counts alone; `make bench` has the times.

use kennel_proto::pb::{Run, RunFilter, RunState};
use kennel_tests::{Kennel, Overload, PATIENCE, eventually_async, must};
use std::time::Duration;

/// Clients at once.
const CLIENTS: usize = 200;
/// Most memory of a server that serves so many, and of all processes together.
const SERVER_BYTES_MAX: u64 = 256 << 20;
const ALL_BYTES_MAX: u64 = 512 << 20;

// promise: A-21
#[tokio::test(flavor = "multi_thread")]
async fn overload_is_refused_with_reasons_and_runs_end() {
    overload(Duration::from_secs(3)).await;
}

// promise: A-21
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute of load: `make soak` runs it"]
async fn overload_for_a_minute_takes_bounded_memory() {
    overload(Duration::from_mins(1)).await;
}

async fn overload(lasts: Duration) {
    let kennel = Kennel::on_sqlite().await;
    let found = Overload::run(&kennel, CLIENTS, lasts).await;
    eprintln!(
        "{} spawned, refused {:?}, {} aborts, server {} MiB, all {} MiB at most",
        found.spawned,
        found.refused,
        found.aborts.len(),
        found.server_peak >> 20,
        found.memory_peak >> 20
    );
    assert_eq!(found.untyped, Vec::<String>::new());
    let refused: usize = found.refused.values().sum();
    assert!(found.spawned + refused >= CLIENTS, "{found:?}");
    assert!(!found.aborts.is_empty(), "{found:?}");
    assert!(
        found.server_peak < SERVER_BYTES_MAX,
        "{} bytes",
        found.server_peak
    );
    assert!(
        found.memory_peak < ALL_BYTES_MAX,
        "{} bytes",
        found.memory_peak
    );
    let runs = eventually_async("every run has ended", PATIENCE, || async {
        let mut client = kennel.client().await;
        let runs = must("list", client.list_all(RunFilter::default(), 1000).await);
        runs.iter().all(is_over).then_some(runs)
    })
    .await;
    assert_eq!(
        runs.len(),
        found.spawned,
        "a run is missing, or was made twice"
    );
    let aborted = runs
        .iter()
        .filter(|run| run.state == RunState::Cancelled as i32);
    assert_eq!(aborted.count(), found.aborts.len());
}

fn is_over(run: &Run) -> bool {
    let over = [RunState::Succeeded, RunState::Failed, RunState::Cancelled];
    over.iter().any(|over| *over as i32 == run.state)
}
