//! Termination of very many trees at once, all of which ignore polite signals: the time from the end of the grace until
//! each is gone.

use crate::table::{Table, Times};
use kennel_proto::pb::AbortWait;
use kennel_tests::{
    Client, Kennel, Options, RunExt, client::micros, must, procfs, sh, wait::eventually,
};
use std::time::Duration;
use tokio::task::JoinSet;

/// Processes of each tree.
const TREE_LEN: usize = 20;
/// Longest time for the trees to grow, and to go.
const FLEET_PATIENCE: Duration = Duration::from_mins(5);
/// The grace: long enough for all orders to be given before the first ends.
const GRACE: Duration = Duration::from_secs(10);
/// Requests in flight at once on one connection.
const BY_EACH: usize = 100;

/// A leader and nineteen children, which ignore SIGTERM.
const STUBBORN: &str =
    "trap '' TERM; i=0; while [ $i -lt 19 ]; do sleep 900 & i=$((i+1)); done; echo up; wait";

pub(crate) async fn measure(table: &mut Table, trees: usize) {
    let kennel = Kennel::start(Options::default()).await;
    let mut client = kennel.client().await;
    let mut runs = Vec::new();
    for number in 0..trees {
        match client.spawn(sh(STUBBORN)).await {
            Ok(run) => runs.push(run),
            Err(status) => {
                let why = format!("run {number} was refused: {}", status.message());
                return table.not_measured(&what(trees), &why);
            }
        }
    }
    // Tree processes, excluding the keeper, the server and shims.
    let wanted = trees * TREE_LEN;
    let family = eventually("all trees have grown", FLEET_PATIENCE, || {
        let below = procfs::descendants(&procfs::all(), kennel.keeper_pid());
        (below.len() >= wanted + trees).then_some(below)
    })
    .await;

    let mut aborts = JoinSet::new();
    for some in runs.chunks(BY_EACH) {
        let client = must("connect", Client::connect(&kennel.socket()).await);
        for run in some {
            let (mut client, run_id) = (client.clone(), run.run_id.clone());
            aborts.spawn(async move {
                let aborted = client.abort_with(&run_id, Some(GRACE), AbortWait::TreeEmpty);
                must("abort", aborted.await)
            });
        }
    }
    let mut late = Times::default();
    let mut unproved = 0;
    let grace_us = i64::try_from(GRACE.as_micros()).expect("short");
    for run in aborts.join_all().await {
        let certificate = run.attempt().certificate.as_ref();
        let first = certificate.and_then(|c| c.steps.first()?.time);
        let due = micros(&first.expect("it was stopped")) + grace_us;
        let empty = run
            .attempt()
            .tree_empty_time
            .as_ref()
            .map_or(i64::MAX, micros);
        late.push(Duration::from_micros(
            u64::try_from(empty - due).unwrap_or(0),
        ));
        unproved += usize::from(!run.tree_is_empty());
    }
    let spared = [
        Some(kennel.keeper_pid()),
        kennel.server().map(|server| server.pid),
    ];
    let survivors = family
        .iter()
        .filter(|proc| proc.comm == "sleep" || proc.comm == "sh")
        .filter(|proc| !spared.contains(&Some(proc.pid)) && proc.is_still_there())
        .count();
    table.fact(
        &what(trees),
        &format!(
            "{} / {}: {survivors} survive, {unproved} without proof",
            late.p50(),
            late.p99()
        ),
    );
}

fn what(trees: usize) -> String {
    format!("{trees} trees of {TREE_LEN} aborted at once, end of grace to empty, p50 / p99")
}
