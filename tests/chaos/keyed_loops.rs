//! Loops of the guide, run from their pages: a worker and a clock with a key for each job and each tick.

use kennel_tests::{
    Kennel, Options, PATIENCE, Postgres, eventually, must, programs, shell::run_to_end,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output},
    time::Duration,
};
use tokio::task::{JoinHandle, JoinSet};

/// Services whose clocks run at the same time, and deaths of each one's server, one in each tick.
const SERVICES: u32 = 4;
const KILLS: u32 = 5;
/// Uptime of a server after which its keeper starts the next one at once.
const SERVES: Duration = Duration::from_millis(2_100);
/// Hosts on which the clock of a service runs.
const CLOCKS: usize = 3;
const JOBS: u32 = 12;
/// Longest time of a loop.
const LOOP_MAX: Duration = Duration::from_mins(3);

/// Jobs that stay in the queue until one is done: each is delivered to every worker. Work that is found by its relative
/// path, and takes a moment.
const QUEUE: &str = r#"
echo $$ >pid
next_job() { ls ../queue | head -1 | grep .; }
done_job() { rm -f "../queue/$1"; }
printf '#!/bin/sh\necho "$1" >>../ran; sleep 0.1\n' >work; chmod +x work
"#;

/// A clock that the test sets, and sleep until it is set again.
const TIME: &str = r#"
date() { case "$*" in *%s*) echo 0;; *) cat ../now;; esac; }
sleep() {
  touch "slept-$tick"
  while [ "$(cat ../now)" = "$tick" ]; do [ -e ../stop ] && exit 0; command sleep 0.02; done
}
printf '#!/bin/sh\necho "$1" >>../ran\n' >backup; chmod +x backup
"#;

/// Returns the block of code of a page that begins with this line.
fn block(page: &str, first: &str) -> String {
    let path = programs::repository().join("docs/guide/how-to").join(page);
    let text = must("the page", fs::read_to_string(path));
    let mut blocks = text.split("```");
    let block =
        blocks.find_map(|block| block.strip_prefix("sh\n").filter(|b| b.starts_with(first)));
    block.expect("the page has it").to_owned()
}

/// Starts a loop in a directory and with an environment of its own.
fn start(kennel: &Kennel, dir: &Path, script: &str) -> JoinHandle<Output> {
    must("a directory", fs::create_dir(dir));
    let function = format!("kennel() {{ {} \"$@\"; }}", programs::kennel().display());
    let mut command = Command::new("bash");
    command
        .args(["-c", &format!("{function}{script}")])
        .env("KENNEL_SERVER", kennel.address())
        .env("OF_SHELL", dir)
        .current_dir(dir);
    tokio::spawn(run_to_end(command, LOOP_MAX))
}

async fn succeeds(one: JoinHandle<Output>) {
    let output = must("it is run", one.await);
    assert!(output.status.success(), "{output:?}");
}

/// Returns how often each job or tick was run.
fn counts(dir: &Path) -> BTreeMap<u32, u32> {
    let text = fs::read_to_string(dir.join("ran")).unwrap_or_default();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        *counts.entry(line.parse().expect("a number")).or_default() += 1;
    }
    counts
}

fn each_once(count: u32) -> BTreeMap<u32, u32> {
    (0..count).map(|number| (number, 1)).collect()
}

// promise: K-16
#[tokio::test(flavor = "multi_thread")]
async fn worker_of_guide_runs_each_job_once() {
    let postgres = Postgres::start().await;
    let one = Kennel::start(Options::on(&postgres.url())).await;
    let two = Kennel::start(Options::on(&postgres.url())).await;
    let dir = one.scratch();
    must("a directory", fs::create_dir(dir.join("queue")));
    for job in 0..JOBS {
        must("a job", fs::write(dir.join(format!("queue/{job}")), ""));
    }
    let script = QUEUE.to_owned() + &block("placement.md", "while job=$(next_job)");
    let first = start(&one, &dir.join("first"), &script);
    let second = start(&two, &dir.join("second"), &script);
    eventually("some jobs", PATIENCE, || {
        (counts(dir).len() > 2).then_some(())
    })
    .await;
    // The first worker dies holding a job that the queue redelivers.
    let pid = must("its pid", fs::read_to_string(dir.join("first/pid")));
    let pid = Pid::from_raw(pid.trim().parse().expect("a pid"));
    must("a signal", kill(pid, Signal::SIGKILL));
    let third = start(&one, &dir.join("third"), &script);
    succeeds(second).await;
    succeeds(third).await;
    assert!(!must("it is run", first.await).status.success());
    assert_eq!(counts(dir), each_once(JOBS));
}

// promise: K-16
#[tokio::test(flavor = "multi_thread")]
async fn clock_of_the_guide_runs_each_tick_once() {
    let mut services = JoinSet::new();
    for number in 0..SERVICES {
        services.spawn(run_clocks(Duration::from_millis(10) * number));
    }
    services.join_all().await;
}

/// Kills the server in each tick, this much later than in the one before.
async fn run_clocks(step: Duration) {
    let mut kennel = Kennel::on_sqlite().await;
    let dir = &kennel.scratch().to_owned();
    let set = |tick: u32| {
        must("the time", fs::write(dir.join("next"), tick.to_string()));
        must("the time", fs::rename(dir.join("next"), dir.join("now")));
    };
    let script = TIME.to_owned() + &block("recurring-runs.md", "while :; do");
    set(0);
    let clocks: Vec<_> = (0..CLOCKS)
        .map(|clock| start(&kennel, &dir.join(clock.to_string()), &script))
        .collect();
    for tick in 0..KILLS {
        tokio::time::sleep(SERVES).await;
        set(tick);
        tokio::time::sleep(step * tick).await;
        kennel.replace_server().await;
        let is_past = |clock| dir.join(format!("{clock}/slept-{tick}")).exists();
        let have_passed = || (0..CLOCKS).all(is_past).then_some(());
        eventually("each clock has passed the tick", PATIENCE, have_passed).await;
    }
    must("the end", fs::write(dir.join("stop"), ""));
    for clock in clocks {
        succeeds(clock).await;
    }
    assert_eq!(counts(dir), each_once(KILLS));
}
