//! The phases of a spawn, by the spans of the server, beside the latency of the client.

use super::WARM_UP;
use crate::{counts::one_after_another, table::Times};
use kennel_tests::{
    Kennel, Options, PATIENCE, argv,
    collector::{Collector, Manner},
    eventually, must,
};
use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

/// Runs that are timed.
const TIMED: usize = 300;

/// Name of each span, and its phase.
const PHASES: [(&str, &str); 6] = [
    (
        "run.admit",
        "call read, key looked up, run entered, its task started",
    ),
    (
        "run.prepare",
        "server, keeper, shim, child at its gate, and back",
    ),
    ("run.commit", "row written and on the disk"),
    ("run.exec", "gate opened, execve proven"),
    (
        "run.drain",
        "from the leader's end to the end of its streams",
    ),
    (
        "run.reap",
        "from the leader's end to the proof that the tree is empty",
    ),
];

pub(super) async fn measure() -> Result<String, String> {
    let collector = Collector::start(Manner::Willing).await;
    let kennel = Kennel::start(Options {
        env: collector.env(),
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    one_after_another(&mut client, WARM_UP).await;
    let (mut spawn, mut wait) = (Times::default(), Times::default());
    for _ in 0..TIMED {
        let began = Instant::now();
        let run = must("spawn", client.spawn(argv(&["/bin/true"])).await);
        spawn.push(began.elapsed());
        must("wait", client.ended(&run.run_id).await);
        wait.push(began.elapsed());
    }
    let spans = eventually("all runs have sent their spans", PATIENCE, || {
        let spans = collector.spans();
        let runs = spans.iter().filter(|span| span.name == "run").count();
        (runs >= WARM_UP + TIMED).then_some(spans)
    })
    .await;
    let mut text = format!(
        "{:<14} {:>9} {:>9}  {}\n",
        "hop", "p50", "p99", "what it is"
    );
    let mut line = |name: &str, times: &Times, what: &str| {
        let _ = writeln!(
            text,
            "{name:<14} {:>9} {:>9}  {what}",
            times.p50(),
            times.p99()
        );
    };
    line(
        "client: Spawn",
        &spawn,
        "the call, to its answer: the command runs",
    );
    for (name, what) in PHASES {
        let mut times = Times::default();
        for span in spans.iter().filter(|span| span.name == name) {
            let nanos = span
                .end_time_unix_nano
                .saturating_sub(span.start_time_unix_nano);
            times.push(Duration::from_nanos(nanos));
        }
        line(name, &times, what);
    }
    line(
        "client: all",
        &wait,
        "Spawn and WaitRun, to the answer: nothing is left",
    );
    Ok(text)
}
