//! Shims that have one run after another, and those that must not.

use crate::stage::{Stage, is_alive, until};
use kennel_keeper::client::{ClientError, Kernel};
use kennel_lifecycle::ladder::StopPlan;
use std::{collections::BTreeSet, fs, time::Duration};

const SERVES_NEXT: &str = "shim_without_leftovers_serves_the_next_run";
const IS_CHANGED: &str = "changed_shim_serves_no_other_run";
/// A shim that its keeper cannot watch.
const UNWATCHED: &str = "unwatched";

/// Runs, one after another.
const RUNS: usize = 20;
/// Most shims for them: the idle ones, and one that is not back when the next run begins.
const SHIMS_MAX: usize = 6;
/// Descriptors of a shim without a run: its keeper, signals, standard error, the file of exit records.
const DESCRIPTORS: usize = 4;

pub(crate) fn plays(name: &str) -> bool {
    [SERVES_NEXT, IS_CHANGED, UNWATCHED].contains(&name)
}

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        SERVES_NEXT => serves_next(stage).await,
        UNWATCHED => unwatched(stage).await,
        _ => is_changed(stage).await,
    }
}

/// Returns the shim of a run that has ended by itself.
async fn shim_of(stage: &mut Stage, text: &str) -> i32 {
    let (run, spec) = stage.shell(text);
    let prepared = stage.start(run, &spec).await;
    stage.end(run).await;
    prepared.identity.shim.pid
}

async fn serves_next(stage: &mut Stage) {
    let mut shims = BTreeSet::new();
    for _ in 0..RUNS {
        shims.insert(shim_of(stage, "exit 0").await);
    }
    if stage.is_private() || !stage.has_cgroup() {
        // Only a control group without private namespace allows reuse of shims.
        assert_eq!(shims.len(), RUNS);
        return;
    }
    assert!(shims.len() <= SHIMS_MAX, "{shims:?}");
    for shim in shims {
        let holds = || fs::read_dir(format!("/proc/{shim}/fd")).map(Iterator::count);
        until(|| (holds().ok()? == DESCRIPTORS).then_some(())).await;
    }
}

async fn is_changed(stage: &mut Stage) {
    if stage.is_private() {
        // The shim has no pid in a private namespace.
        return;
    }
    let mut spent = BTreeSet::new();
    for change in [
        "renice -n 7 -p $PPID >&2",
        "prlimit --pid $PPID --nofile=500:500",
        "choom -n 900 -p $PPID >&2",
    ] {
        spent.insert(shim_of(stage, change).await);
    }
    let (run, spec) = stage.shell("sleep 600");
    let prepared = stage.start(run, &spec).await;
    stage.client.stop(run, &StopPlan::abort(Duration::ZERO));
    stage.end(run).await;
    spent.insert(prepared.identity.shim.pid);
    assert_eq!(spent.len(), 4, "each was spent");
    for _ in 0..RUNS {
        let shim = shim_of(stage, "exit 0").await;
        assert!(!spent.contains(&shim), "{shim} of {spent:?}");
    }
}

/// Most runs until a descriptor of the keeper cannot be watched.
const WATCHED_MAX: usize = 40;

/// A shim with a job would write to the exit slot that the keeper has freed.
async fn unwatched(stage: &mut Stage) {
    let keeper = stage.hello.keeper.pid;
    let children = || {
        let listed = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
        let listed = listed.expect("they are listed");
        let pids = listed.split_whitespace().map(str::parse);
        pids.collect::<Result<Vec<i32>, _>>().expect("numbers")
    };
    let mut watched = Vec::new();
    let (refused, before) = loop {
        assert!(watched.len() < WATCHED_MAX, "all are watched");
        let (run, spec) = stage.shell("exit 0");
        let before = children();
        match stage.prepare(run, &spec).await {
            Ok(prepared) => watched.push((run, prepared)),
            Err(ClientError::Start(failure)) => {
                assert_eq!(failure.errno, Some(libc::ENOSPC), "{failure}");
                break (run, before);
            }
            Err(other) => panic!("{other}"),
        }
    };
    until(|| before.iter().any(|pid| !is_alive(*pid)).then_some(())).await;
    let exits = fs::read_dir(stage.file("data/exits")).expect("a directory");
    for file in exits.flatten() {
        let bytes = fs::read(file.path()).expect("it is read");
        let id = refused.as_u128().to_le_bytes();
        assert!(!bytes.windows(id.len()).any(|part| part == id));
    }
    for (run, _) in watched {
        stage.client.shut_gate(run);
        stage.end(run).await;
    }
}
