//! Reused process ids: recovery finds unrelated processes under the very numbers that it has recorded.
//!
//! Runs in a private pid namespace, where the next number can be chosen. The test starts itself again inside.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Client, Footprint, Kennel, PATIENCE, RunExt, eventually,
    kennel::{kill_exactly, reap_orphans},
    must, naughty,
    procfs::{self, Proc},
    programs,
    shell::run_to_end,
};
use nix::sys::signal::Signal;
use std::{
    fs,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Set in the inner process.
const INSIDE: &str = "KENNEL_TESTS_INSIDE_PIDNS";
/// Rounds: one keeper, one run, one set of unrelated processes each.
const ROUNDS: u32 = 1;
/// Starts until the number is reused, where it cannot be chosen.
const STARTS_MAX: u32 = 70_000;

/// Last line of the inner test.
pub(crate) const UNTOUCHED: &str = "no stranger touched";

// promise: F-2, I-1
#[tokio::test(flavor = "multi_thread")]
async fn unrelated_process_under_recorded_pid_is_untouched() {
    if !is_inside() {
        let name = "recycle::unrelated_process_under_recorded_pid_is_untouched";
        return start_again_inside(name, Duration::from_mins(4)).await;
    }
    shorten_numbers();
    let mut reused = 0;
    for _ in 0..ROUNDS {
        reused += one_round().await;
    }
    assert!(reused >= ROUNDS, "only {reused} numbers came again");
    println!("{reused} numbers reused, {UNTOUCHED}");
}

/// Whether this is the inner process.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Limits the numbers of this namespace, where the kernel can do that for one namespace.
pub(crate) fn shorten_numbers() {
    assert_eq!(std::process::id(), 1, "the first of its namespace");
    // Optional: without it, `choose_next` sets the number, or pids wrap after many starts.
    let _ = fs::write("/proc/sys/kernel/pid_max", "400");
}

/// Chooses the next number, where the kernel permits it.
pub(crate) fn choose_next(pid: i32) {
    let _ = fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string());
}

/// Runs this test in a private pid namespace and prints its output.
pub(crate) async fn start_again_inside(name: &str, limit: Duration) {
    let mut unshare = Command::new("unshare");
    unshare
        .args([
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ])
        .arg(std::env::current_exe().expect("own executable"))
        .args([name, "--exact", "--nocapture", "--include-ignored"])
        .env(INSIDE, "1");
    let output = run_to_end(unshare, limit).await;
    let said = format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
    assert!(said.contains(UNTOUCHED), "{said}");
    println!("{said}");
}

/// Returns how many of the recorded numbers were reused.
async fn one_round() -> u32 {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&run.run_id).await;
    let shim = Proc::read(run.attempt().shim_pid).expect("it runs");
    let tree = procfs::descendants(&procfs::all(), shim.pid);
    let recorded = [run.attempt().pid, run.attempt().shim_pid];

    // Kill every process that could write an exit record.
    let server = kennel.server().expect("it runs");
    let others = kennel.shims();
    kennel.kill_service_after(|| {
        for proc in others.iter().chain([&shim]).chain(&tree) {
            kill_exactly(proc, Signal::SIGKILL);
        }
    });
    kennel.wait_for_exit(PATIENCE).await;
    eventually("all are gone", PATIENCE, || {
        reap_orphans();
        let gone = tree
            .iter()
            .chain(&others)
            .chain([&shim, &server])
            .all(|p| !p.is_still_there());
        gone.then_some(())
    })
    .await;

    let strangers: Vec<Child> = recorded
        .iter()
        .filter_map(|pid| stranger_with(*pid))
        .collect();
    kennel.restart().await;
    let run = must("wait", kennel.client().await.ended(&run.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "{run:?}");
    assert_eq!(
        run.reason(),
        "service_lost",
        "no process was there to end: {run:?}"
    );
    let reused = u32::try_from(strangers.len()).expect("two at most");
    leave_alone(&mut kennel.client().await, &strangers).await;
    for mut stranger in strangers {
        let pid = i32::try_from(stranger.id()).expect("small");
        let proc = Proc::read(pid).expect("it is there");
        assert!(
            proc.is_alive() && proc.state != 'T',
            "a stranger was signalled: {proc:?}"
        );
        stranger.kill().expect("own child");
        stranger.wait().expect("own child");
    }
    Footprint::of_id(&run.run_id).assert_nothing_left();
    reused
}

/// Checks that a leak check does not take them for the run's, and that a reap spares them on any evidence.
async fn leave_alone(client: &mut Client, strangers: &[Child]) {
    let pids: Vec<i32> = strangers.iter().map(|s| s.id().cast_signed()).collect();
    let is_stranger = |process: &Option<pb::ProcessRef>| {
        let process = process.as_ref();
        process.is_some_and(|process| pids.contains(&process.pid))
    };
    let seen = must("audit", client.audit().await);
    let taken = seen.processes.iter().find(|p| is_stranger(&p.process));
    assert_eq!(taken, None);
    let everything = pb::ReapLeaksRequest {
        mode: pb::ReapMode::Execute.into(),
        evidence: (1..=8).collect(),
        ..pb::ReapLeaksRequest::default()
    };
    let reaped = must("reap", client.reap(everything).await);
    let taken = reaped.processes.iter().find(|p| is_stranger(&p.process));
    assert_eq!(taken, None);
}

/// Starts a process that leads group and session of this number, as the recorded one did.
fn stranger_with(pid: i32) -> Option<Child> {
    with_number(pid, || {
        Command::new(programs::naughty())
            .arg("in-own-session")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts")
    })
}

/// Starts processes until one has this number.
pub(crate) fn with_number(pid: i32, start: impl Fn() -> Child) -> Option<Child> {
    for _ in 0..STARTS_MAX {
        choose_next(pid);
        let mut child = start();
        if i32::try_from(child.id()) == Ok(pid) {
            return Some(child);
        }
        child.kill().expect("own child");
        child.wait().expect("own child");
    }
    None
}
