//! The Spawns of one owner, alone and while another owner, who has as many live runs as its quota allows, spawns without
//! a pause.

use crate::{
    table::{Goal, Table, Times},
    tls::{spawn, spawns},
};
use kennel_client::Connection;
use kennel_proto::pb;
use kennel_tests::{argv, net::Net, new_run_id, sh};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

/// Rounds, each alone and beside the other owner.
const ROUNDS: usize = 5;
/// Callers of the other owner at once.
const CALLERS: usize = 4;
/// Longest time until the server reads a changed access file.
const READ_AGAIN: Duration = Duration::from_secs(3);

pub(crate) async fn measure(table: &mut Table) {
    let net = Net::start().await;
    net.change_access(|text| format!("{text}\n[quota.'spiffe://kennel/alice']\nlive_runs = 1\n"));
    tokio::time::sleep(READ_AGAIN).await;
    let owner = net.by_token("admin").await;
    let other = net.by_certificate("alice").await;
    spawn(&other, sh("sleep 1000")).await;
    spawns(&owner).await;
    let (mut alone, mut beside) = (Times::default(), Times::default());
    let refused = Arc::new(AtomicU64::new(0));
    for _ in 0..ROUNDS {
        alone.extend(spawns(&owner).await);
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let caller = net.by_certificate("alice").await;
            callers.spawn(refuse(caller, Arc::clone(&refused)));
        }
        beside.extend(spawns(&owner).await);
        callers.shutdown().await;
    }
    let latency = |times: &Times| format!("{} / {}", times.p50(), times.p99());
    table.fact("spawn of an owner, alone, p50 / p99", &latency(&alone));
    let ratio = beside.p99_us() / alone.p99_us();
    let refused = refused.load(Ordering::Relaxed);
    table.goal(
        "spawn of an owner, beside one at its quota, p50 / p99",
        &latency(&beside),
        &format!("{ratio:.1} x the p99, {refused} refused meanwhile"),
        Goal::at_most("2 x", 2.0).met_by(ratio),
    );
}

/// Spawns beyond the quota, for ever.
async fn refuse(caller: Connection, refused: Arc<AtomicU64>) {
    loop {
        let request = pb::SpawnRequest {
            run_id: new_run_id(),
            spec: Some(argv(&["/bin/true"])),
            ..pb::SpawnRequest::default()
        };
        let answer = caller.processes().spawn(request).await;
        answer.expect_err("it is beyond the quota");
        refused.fetch_add(1, Ordering::Relaxed);
    }
}
