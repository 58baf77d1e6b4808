//! The process that forks the shims: what its loss costs.

use kennel_tests::{
    Kennel, PATIENCE, RunExt, argv, eventually, kennel::kill_exactly, must, procfs::Proc,
};
use nix::sys::signal::Signal;

/// More than the keeper has ahead.
const RUNS: usize = 12;

async fn spawn_all(kennel: &Kennel) -> Vec<i32> {
    let mut client = kennel.client().await;
    let mut pids = Vec::new();
    for _ in 0..RUNS {
        let run = must("spawn", client.spawn(argv(&["/bin/sleep", "600"])).await);
        pids.push(run.attempt().pid);
    }
    pids
}

async fn await_zygote(kennel: &Kennel) -> Proc {
    eventually("a zygote", PATIENCE, || kennel.zygote()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn shims_are_forked_by_the_zygote() {
    let kennel = Kennel::on_sqlite().await;
    let zygote = await_zygote(&kennel).await;
    spawn_all(&kennel).await;
    let shims = kennel.shims();
    assert!(shims.len() >= RUNS);
    let of_zygote = shims
        .iter()
        .filter(|shim| shim.cmdline() == zygote.cmdline());
    // The keeper itself forked shims requested before the zygote began.
    assert!(of_zygote.count() >= RUNS - 2, "{shims:?}");
    for shim in shims {
        assert_eq!(shim.ppid, kennel.keeper_pid());
    }
}

// promise: RW-115
#[tokio::test(flavor = "multi_thread")]
async fn killed_zygote_costs_no_run() {
    let mut kennel = Kennel::on_sqlite().await;
    let zygote = await_zygote(&kennel).await;
    let before = spawn_all(&kennel).await;
    kill_exactly(&zygote, Signal::SIGKILL);
    let after = spawn_all(&kennel).await;
    for pid in before.iter().chain(&after) {
        assert!(Proc::read(*pid).is_some_and(|run| run.is_alive()));
    }
    let next = await_zygote(&kennel).await;
    assert_ne!(next.pid, zygote.pid);
    kennel.kill_keeper();
    eventually("it ends with its keeper", PATIENCE, || {
        (!next.is_alive()).then_some(())
    })
    .await;
    kennel.restart().await;
}

// promise: RW-115
#[tokio::test(flavor = "multi_thread")]
async fn stopped_zygote_delays_no_spawn_for_long() {
    let kennel = Kennel::on_sqlite().await;
    let zygote = await_zygote(&kennel).await;
    kill_exactly(&zygote, Signal::SIGSTOP);
    spawn_all(&kennel).await;
    eventually("a zygote at work", PATIENCE, || {
        kennel.zygote().filter(|zygote| zygote.state != 'T')
    })
    .await;
}
