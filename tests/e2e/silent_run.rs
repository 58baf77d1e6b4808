//! What a run of `/bin/true` that writes nothing makes, removes and syncs: counted, so that one more of anything is seen.

use kennel_tests::{
    Kennel, PATIENCE, argv, eventually_async, must,
    strace::{self, Changes, Strace},
};
use nix::unistd::Uid;
use std::path::PathBuf;

/// Runs, one after another.
const RUNS: usize = 20;
/// Files and directories that a silent run makes in the data directory: its directory, `tmp`, and the index with its lifecycle
/// lines.
const MADE: usize = 3;
/// Those that it removes: `tmp`.
const REMOVED: usize = 1;
/// Commits that it waits for: of its row, and of its end.
const SYNCS: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn silent_run_makes_and_syncs_no_more_than_counted() {
    if !Uid::effective().is_root() {
        eprintln!("only root can trace keeper and server: not counted");
        return;
    }
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    // What is made once for all runs is there after the first.
    let first = must("spawn", client.spawn(argv(&["/bin/true"])).await);
    must("wait", client.ended(&first.run_id).await);

    let data = kennel.data_dir();
    let before = strace::listing(&data);
    let strace = must("attach", Strace::attach(&kennel));
    for _ in 0..RUNS {
        let run = must("spawn", client.spawn(argv(&["/bin/true"])).await);
        must("wait", client.ended(&run.run_id).await);
    }
    // A run is tidied up behind its end.
    let is_tidy = async || {
        let left = strace::listing(&data);
        let mut left = left.iter().filter(|path| !before.contains(*path));
        let is_left = |path: &PathBuf| path.ends_with("tmp");
        (!left.any(is_left)).then_some(())
    };
    eventually_async("all runs are tidied up", PATIENCE, is_tidy).await;
    let calls = strace.detach();
    let changes = Changes::below(&data, &before, &calls);
    let of_runs = |paths: &[PathBuf]| {
        let in_run = |path: &&PathBuf| path.starts_with(data.join("runs"));
        paths.iter().filter(in_run).count()
    };
    assert_eq!(of_runs(&changes.made), MADE * RUNS, "{:#?}", changes.made);
    assert_eq!(
        of_runs(&changes.removed),
        REMOVED * RUNS,
        "{:#?}",
        changes.removed
    );
    // Nothing else in the data directory is made for each run.
    assert!(
        changes.made.len() < MADE * RUNS + RUNS,
        "{:#?}",
        changes.made
    );
    let syncs = calls.iter().filter(|call| call.is_sync()).count();
    assert!(
        (SYNCS * RUNS..SYNCS * RUNS + RUNS / 2).contains(&syncs),
        "{syncs} syncs of {RUNS} runs"
    );
}
