//! From Abort to the answer that nothing is left, for a leader with fifty children.

use crate::table::Times;
use kennel_edge::pb::AbortWait;
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, eventually, must, naughty, procfs,
};
use std::time::{Duration, Instant};

/// Trees, one after another.
const TREES: usize = 30;
const TREE_LEN: usize = 51;

pub(crate) struct Found {
    pub(crate) took: Times,
    pub(crate) survivors: usize,
}

pub(crate) async fn measure(options: Options) -> Found {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let mut found = Found {
        took: Times::default(),
        survivors: 0,
    };
    for _ in 0..TREES {
        let run = must("spawn", client.spawn(naughty(&["tree", "50"])).await);
        let shim = run.attempt().shim_pid;
        client.hear_up(&run.run_id).await;
        eventually("the tree has grown", PATIENCE, || {
            (procfs::descendants(&procfs::all(), shim).len() == TREE_LEN).then_some(())
        })
        .await;
        let print = Footprint::of_run(&run);
        let began = Instant::now();
        let aborted = client.abort_with(&run.run_id, Some(Duration::ZERO), AbortWait::TreeEmpty);
        must("abort", aborted.await);
        found.took.push(began.elapsed());
        found.survivors += print.count().ancestry.len();
    }
    found
}
