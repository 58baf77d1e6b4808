//! Time from the request to the proof that nothing is left, for a leader with fifty children, five of them in sessions
//! of their own.

use crate::table::Times;
use kennel_proto::pb::AbortWait;
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, eventually, must, naughty, procfs,
};
use std::time::{Duration, Instant};

/// Trees, one after another.
pub(crate) const TREES: usize = 30;
pub(crate) const TREE_LEN: usize = 51;
/// The trick that makes such a tree.
pub(crate) const TRICK: [&str; 3] = ["tree", "45", "5"];

#[derive(Default)]
pub(crate) struct Found {
    pub(crate) took: Times,
    pub(crate) survivors: usize,
}

pub(crate) async fn measure(options: Options) -> Found {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let mut found = Found::default();
    for _ in 0..TREES {
        let run = must("spawn", client.spawn(naughty(&TRICK)).await);
        let shim = run.attempt().shim_pid;
        client.hear_up(&run.run_id).await;
        grown(shim, TREE_LEN).await;
        let print = Footprint::of_run(&run);
        let began = Instant::now();
        let aborted = client.abort_with(&run.run_id, Some(Duration::ZERO), AbortWait::TreeEmpty);
        must("abort", aborted.await);
        found.took.push(began.elapsed());
        found.survivors += print.count().ancestry.len();
    }
    found
}

/// Waits until there are so many processes below this one.
pub(crate) async fn grown(root: i32, len: usize) {
    eventually("the tree has grown", PATIENCE, || {
        (procfs::descendants(&procfs::all(), root).len() == len).then_some(())
    })
    .await;
}
