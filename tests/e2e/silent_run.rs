//! Files made and removed, and syncs, of a run of `/bin/true` that writes nothing: counted, so that any additional one
//! is noticed.

use kennel_tests::{
    Kennel, PATIENCE, RunExt, argv,
    client::micros,
    eventually_async, must, sh,
    strace::{self, Call, Changes, Role, Strace},
};
use nix::unistd::Uid;
use std::{path::PathBuf, time::Instant};

/// Runs, one after another.
const RUNS: usize = 20;
/// Runs before that: one-time files exist after them.
const WARM_UP: usize = 5;
/// Files that a silent run makes or removes in the data directory: none. Its entries are in the node log, and at its
/// end in its row, and its directory was an earlier run's and will be a later one's.
const MADE: usize = 0;
/// Renames of directories of runs: each is taken from an earlier run and given to a later one.
const RENAMED: usize = 1;
/// Runs that may begin before an earlier one has returned its directory.
const AHEAD: usize = 3;
/// System calls of keeper and shim together: 119, three of them to read the usage, and those of new shims. Closes do not
/// check first, as builds with debug assertions do.
const CALLS: usize = 130;
/// Those in a second of their timers and pings, of which a slow host has more for each run.
const CALLS_PER_SECOND: usize = 60;
/// Commits that it waits for: of its row, and of its end.
const SYNCS: usize = 2;
/// Calls of pwrite64 to the database: two for each page of its log. The state RUNNING of a slow run is recorded, with one
/// page and one sync more.
const DATABASE_WRITES: usize = 13;
/// Microseconds between start and end from which a run may count as slow: its state is recorded after 50 ms.
const SLOW_US: i64 = 40_000;
/// Calls of pwrite64 in the server, those of SQLite not counted: frames of the node log, and one more where a slow host has
/// the state RUNNING recorded.
const LOG_WRITES: usize = 9;

// promise: O-42, O-42b
#[tokio::test(flavor = "multi_thread")]
async fn silent_run_makes_bounded_files_and_syncs() {
    if !Uid::effective().is_root() {
        eprintln!("only root can trace keeper and server: not counted");
        return;
    }
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    for _ in 0..WARM_UP {
        let run = must("spawn", client.spawn(argv(&["/bin/true"])).await);
        must("wait", client.ended(&run.run_id).await);
    }
    let data = kennel.data_dir();
    let before = strace::listing(&data);
    let strace = must("attach", Strace::attach(&kennel));
    let began = Instant::now();
    let mut slow = 0;
    for _ in 0..RUNS {
        let run = must("spawn", client.spawn(argv(&["/bin/true"])).await);
        let run = must("wait", client.ended(&run.run_id).await);
        let started = run.attempt().start_time.expect("it has started");
        let ended = run.end_time.expect("it has ended");
        slow += usize::from(micros(&ended) - micros(&started) >= SLOW_US);
    }
    // Wait for cleanup, which follows a run's end.
    let is_tidy = async || {
        let left = strace::listing(&data);
        let mut left = left.iter().filter(|path| !before.contains(*path));
        let is_left = |path: &PathBuf| path.starts_with(data.join("runs"));
        (!left.any(is_left)).then_some(())
    };
    eventually_async("all runs are tidied up", PATIENCE, is_tidy).await;
    let seconds = usize::try_from(began.elapsed().as_secs()).expect("a few") + 1;
    let calls = strace.detach();
    let changes = Changes::below(&data, &before, &calls);
    let of_runs = |paths: &[PathBuf]| {
        let in_run = |path: &&PathBuf| path.starts_with(data.join("runs"));
        paths.iter().filter(in_run).count()
    };
    let made = of_runs(&changes.made);
    assert!(made <= MADE * RUNS + AHEAD, "{:#?}", changes.made);
    let removed = of_runs(&changes.removed);
    assert!(removed <= MADE * RUNS + AHEAD, "{:#?}", changes.removed);
    let renamed = of_runs(&changes.renamed);
    assert!(
        (RENAMED * (RUNS - AHEAD)..=RENAMED * (RUNS + AHEAD)).contains(&renamed),
        "{:#?}",
        changes.renamed
    );
    // No other file is created per run in the data directory.
    assert!(
        changes.made.len() < MADE * RUNS + RUNS,
        "{:#?}",
        changes.made
    );
    // A child shares its shim's address space: copying it costs more than the shim's other work.
    let begins = |call: &&Call| call.role == Role::Shim && call.name().starts_with("clone");
    let shares = |call: &Call| call.line.contains("CLONE_VM");
    assert!(calls.iter().filter(begins).all(shares));
    let is_ours = |call: &&Call| matches!(call.role, Role::Keeper | Role::Shim);
    let ours = calls.iter().filter(is_ours).count();
    assert!(
        ours <= CALLS * RUNS + CALLS_PER_SECOND * seconds,
        "{ours} system calls of keeper and shim in {RUNS} runs and {seconds} s"
    );
    let is_write = |call: &&Call| call.name() == "pwrite64" && call.role == Role::Server;
    let of_database = |call: &&Call| call.line.contains("/kennel.db");
    let of_server: Vec<_> = calls.iter().filter(is_write).collect();
    let writes = of_server.iter().filter(|call| !of_database(call)).count();
    let database_writes = of_server.len() - writes;
    assert!(
        database_writes <= DATABASE_WRITES * RUNS + RUNS / 2 + 2 * slow,
        "{database_writes} pwrite64 to the database, of {RUNS} runs, {slow} of them slow"
    );
    assert!(
        writes <= LOG_WRITES * RUNS + RUNS / 2 + slow,
        "{writes} pwrite64 beside the database, of {RUNS} runs, {slow} of them slow"
    );
    // A commit does not fsync the database log's inode (`.cargo/config.toml`).
    let of_inode = |call: &&Call| call.name() == "fsync" && of_database(call);
    assert_eq!(calls.iter().filter(of_inode).count(), 0);
    let syncs = calls.iter().filter(|call| call.is_sync()).count();
    assert!(
        (SYNCS * RUNS..SYNCS * RUNS + RUNS / 4 + slow).contains(&syncs),
        "{syncs} syncs of {RUNS} runs, {slow} of them slow"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn burst_of_runs_leaves_cgroups_in_use() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let before = must("spawn", client.spawn(sh("true")).await);
    for _ in 0..2 {
        // More runs than slots for waiting shims.
        let mut all = Vec::new();
        for _ in 0..40 {
            let mut client = client.clone();
            all.push(tokio::spawn(async move {
                let run = must("spawn", client.spawn(sh("sleep 0.1")).await);
                must("wait", client.ended(&run.run_id).await)
            }));
        }
        for one in all {
            assert!(one.await.expect("no panic").tree_is_empty());
        }
    }
    let after = must("spawn", client.spawn(sh("true")).await);
    assert_eq!(after.containment(), before.containment());
}
