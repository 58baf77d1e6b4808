//! Trees of common programs: package managers, compilers, a server of tools, a database. Each is aborted in the middle
//! of its work, and each exits by itself while some of its processes still run; nothing is left either time.

mod cargo;
mod java;
mod mcp;
mod npm;
mod postgres;

use kennel_proto::pb::{RunSpec, RunState};
use kennel_tests::{Footprint, Heard, Kennel, Options, RunExt, eventually, must, procfs, within};
use std::{path::Path, time::Duration};

/// A compiler's or a database's first start on a busy machine.
const PROGRAM_PATIENCE: Duration = Duration::from_mins(2);
/// Time between two checks of a tree that ends by itself.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Whether a program works until it is ended, or exits by itself and leaves a process behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Stays,
    Ends,
}

/// Aborts the run of this spec once it has printed `up` and has so many processes.
async fn abort_leaves_nothing(
    options: Options,
    spec: fn(&Path, Work) -> RunSpec,
    up: &str,
    grown: usize,
) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let spec = spec(kennel.scratch(), Work::Stays);
    let run = must("spawn", client.spawn(spec).await);
    let mut stream = must("stream", client.events_after(&run.run_id, 0).await);
    let mut heard = Heard::default();
    while !says(&heard, up) {
        let message = within(up, PROGRAM_PATIENCE, stream.message()).await;
        let message = must("stream", message);
        heard.take(
            message.unwrap_or_else(|| panic!("it ended before {up:?}: {}", heard_text(&heard))),
        );
    }
    let shim = run.attempt().shim_pid;
    eventually("its tree has grown", PROGRAM_PATIENCE, || {
        (procfs::descendants(&procfs::all(), shim).len() >= grown).then_some(())
    })
    .await;
    let print = Footprint::of_run(&run);

    let aborting = client.abort(&run.run_id);
    let run = must("abort", within("it ends", PROGRAM_PATIENCE, aborting).await);

    assert_eq!(run.reason(), "aborted");
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    run.three_ends();
    print.assert_nothing_left();
}

/// Lets the run of this spec exit, which is a success and leaves a process in its tree.
async fn end_leaves_nothing(options: Options, spec: fn(&Path, Work) -> RunSpec) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let spec = spec(kennel.scratch(), Work::Ends);
    let run = must("spawn", client.spawn(spec).await);
    let mut print = Footprint::of_run(&run);
    let mut asking = kennel.client().await;
    let ended = asking.ended(&run.run_id);
    tokio::pin!(ended);
    let ended = async {
        loop {
            tokio::select! {
                ended = &mut ended => break ended,
                () = tokio::time::sleep(LOOK_EVERY) => print.learn(run.attempt().shim_pid),
            }
        }
    };
    let ended = must("wait", within("it ends", PROGRAM_PATIENCE, ended).await);

    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(ended.state(), RunState::Succeeded, "{}", heard_text(&heard));
    assert!(ended.tree_is_empty(), "{:?}", ended.tree_verdict);
    ended.three_ends();
    assert!(!heard.signals().is_empty(), "no process was left to end");
    print.assert_nothing_left();
}

fn says(heard: &Heard, text: &str) -> bool {
    [&heard.stdout, &heard.stderr]
        .iter()
        .any(|bytes| String::from_utf8_lossy(bytes).contains(text))
}

fn heard_text(heard: &Heard) -> String {
    [&heard.stdout, &heard.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .join("\n")
}
