//! A server that dies and does not come back.

use kennel_tests::{Kennel, Options, PATIENCE, RunExt, eventually, must, procfs::Proc, sh};
use std::fs;

#[tokio::test(flavor = "multi_thread")]
async fn run_over_its_orphan_ttl_ends_recorded() {
    let kennel = Kennel::start(Options {
        words: vec!["--orphan-ttl", "100ms"],
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let script = "trap 'echo asked; exit 9' TERM; echo up; while :; do sleep 0.02; done";
    let run = must("spawn", client.spawn(sh(script)).await);
    client.hear_up(&run.run_id).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");

    let lock = kennel.data_dir().join("server.lock");
    fs::remove_file(&lock).expect("it is there");
    fs::create_dir(&lock).expect("no server can lock a directory");
    kennel.kill_server();
    eventually("the run is ended", PATIENCE, || {
        (!leader.is_alive()).then_some(())
    })
    .await;
    fs::remove_dir(&lock).expect("own directory");

    let mut client = kennel.client().await;
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(9), "{run:?}");
    assert_eq!(run.reason(), "orphan_terminated", "{run:?}");
    assert!(run.tree_is_empty(), "{run:?}");
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), "up\nasked\n");
}
