//! Keeper and server die, and a run continues: the next service on the same data directory adopts it.

use crate::{play_together, together::Together, with_and_without_cgroup};
use kennel_proto::pb::{self, LeaderExitAction, RunState};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt,
    client::Heard,
    eventually,
    kennel::{kill_exactly, reap_orphans},
    must, naughty,
    procfs::{self, Proc},
    sh,
};
use nix::sys::signal::Signal;
use std::{fs, io::Write as _, path::Path, time::Duration};

with_and_without_cgroup!(runs_outlive_two_services_and_end_completely);

pub(crate) fn adopted(mut spec: pb::RunSpec) -> pb::RunSpec {
    spec.set_recovery(pb::RecoveryPolicy::Adopt);
    spec
}

/// Kills keeper and server, and waits until both are gone.
pub(crate) async fn lose_service(kennel: &mut Kennel) {
    kennel.kill_service_after(|| {});
    kennel.wait_for_exit(PATIENCE).await;
}

/// Returns the shim of a run whose keeper is gone.
fn shim_of(run: &pb::Run) -> Proc {
    Proc::read(run.attempt().shim_pid).expect("it waits")
}

/// Waits until no process is below the shim.
async fn alone(what: &str, shim: &Proc) {
    eventually(what, PATIENCE, || {
        let left = procfs::descendants(&procfs::all(), shim.pid);
        left.is_empty().then_some(())
    })
    .await;
    assert!(shim.is_alive(), "it waits");
}

async fn gone(what: &str, proc: &Proc) {
    eventually(what, PATIENCE, || {
        reap_orphans();
        (!proc.is_alive()).then_some(())
    })
    .await;
}

/// More than a pipe holds: then the command waits, and continues.
const LINES: usize = 100_000;

/// Enough for the service to be lost before it is over, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(4);

async fn runs_outlive_two_services_and_end_completely(options: Options) {
    let together = Together::new(Kennel::start(options).await, 3);
    let events = async {
        for _ in 0..2 {
            together.happens(lose_service).await;
            together.happens(Kennel::restart).await;
        }
    };
    play_together! {
        &together, events;
        adopted_run_is_ended_by_next_service,
        a_pause_outlives_the_service,
        shim_death_after_adoption_is_noticed,
    };
}

// promise: R-50
async fn adopted_run_is_ended_by_next_service(together: &Together) {
    let mut client = together.client().await;
    let (run, print) = a_whole_tree(&mut client).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");

    // Two rounds: the second keeper parents no run.
    for _ in 0..2 {
        together.event().await;
        assert!(leader.is_alive());
        together.event().await;
        let again = must("get", together.client().await.get(&run.run_id).await);
        assert_eq!(again.state(), RunState::Running, "{again:?}");
        assert_eq!(again.lasting(), run.lasting());
        assert!(leader.is_alive());
    }
    let doors = together.kennel().await.data_dir().join("adoptable");
    let door = doors.join(&run.run_id);
    assert!(door.exists());

    let mut client = together.client().await;
    let run = must("abort", client.abort(&run.run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    print.until_nothing_is_left().await;
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    for station in [
        "recorded",
        "started",
        "stopping",
        "leader_exited",
        "tree_empty",
        "ended",
    ] {
        let count = heard.stations().iter().filter(|s| **s == station).count();
        assert_eq!(count, 1, "{station}: {:?}", heard.stations());
    }
    assert!(!door.exists());
}

// promise: R-50c
async fn a_pause_outlives_the_service(together: &Together) {
    let mut client = together.client().await;
    let script = "echo up; while :; do date +%N > $KENNEL_RUN_DIR/tick; sleep 0.01; done";
    let run = must("spawn", client.spawn(adopted(sh(script))).await);
    client.hear_up(&run.run_id).await;
    must("pause", client.pause(&run.run_id).await);
    let tick = together
        .kennel()
        .await
        .run_dir(&run.run_id)
        .join("tmp/tick");
    let before = fs::read(&tick).unwrap_or_default();
    for _ in 0..4 {
        together.event().await;
    }

    let mut client = together.client().await;
    let paused = must("get", client.get(&run.run_id).await);
    assert_eq!(paused.state(), RunState::Paused, "{paused:?}");
    assert_eq!(fs::read(&tick).unwrap_or_default(), before);
    must("resume", client.resume(&run.run_id).await);
    eventually("it runs again", PATIENCE, || {
        (fs::read(&tick).unwrap_or_default() != before).then_some(())
    })
    .await;
    let run = must("abort", client.abort(&run.run_id).await);
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
}

// promise: R-52
async fn shim_death_after_adoption_is_noticed(together: &Together) {
    let has_cgroup = !together.kennel().await.cgroup_bases().is_empty();
    let mut client = together.client().await;
    let (run, print) = a_whole_tree(&mut client).await;
    let shim = shim_of(&run);
    for _ in 0..4 {
        together.event().await;
    }
    kill_exactly(&shim, Signal::SIGKILL);
    let reaping = async {
        loop {
            reap_orphans();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut client = together.client().await;
    let run = tokio::select! {
        run = client.ended(&run.run_id) => must("wait", run),
        () = reaping => unreachable!("it goes on for ever"),
    };
    assert_eq!(run.tree_is_empty(), has_cgroup, "{:?}", run.tree_verdict);
    if has_cgroup {
        print.until_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adopted_runs_continue_by_their_specs() {
    let together = Together::new(Kennel::on_sqlite().await, 9);
    let events = async {
        // Time limits begin once all scenes are up.
        together.happens(async |_| {}).await;
        together.happens(lose_service).await;
        together.happens(Kennel::restart).await;
    };
    let ((), left, ..) = play_together! {
        &together, events;
        a_shutdown_in_order_ends_it,
        output_and_end_without_service_are_not_lost,
        run_beside_an_adopted_one_ends_normally,
        expired_time_limit_acts_at_once,
        rest_is_stopped_or_drained_without_service,
        stop_in_progress_is_carried_out,
        unreachable_shim_is_awaited,
        dead_shim_leaves_its_run_to_recovery,
        service_is_adopted_by_default,
    };
    let (run, print) = left;
    let mut kennel = together.into_kennel();
    let status = kennel.terminate(kennel_tests::SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(0));
    print.until_nothing_is_left().await;
    kennel.restart().await;
    let run = must("wait", kennel.client().await.ended(&run).await);
    assert_eq!(run.reason(), "server_shutdown", "{run:?}");
}

/// Returns a tree that lives when the next service is ended in order.
// promise: R-51
async fn a_shutdown_in_order_ends_it(together: &Together) -> (String, Footprint) {
    let mut client = together.client().await;
    let (run, print) = a_whole_tree(&mut client).await;
    for _ in 0..3 {
        together.event().await;
    }
    (run.run_id, print)
}

// promise: R-50
async fn output_and_end_without_service_are_not_lost(together: &Together) {
    let mut client = together.client().await;
    let gate = together.kennel().await.scratch().join("output-go");
    let script = format!(
        "echo up; until [ -e {} ]; do sleep 0.02; done; seq 1 {LINES}; echo err >&2; exit 7",
        gate.display()
    );
    let long = must("spawn", client.spawn(adopted(sh(&script))).await);
    let script = format!(
        "echo up; until [ -e {} ]; do sleep 0.02; done; echo last words; exit 5",
        gate.display()
    );
    let short = must("spawn", client.spawn(adopted(sh(&script))).await);
    for run in [&long, &short] {
        client.hear_up(&run.run_id).await;
    }
    let leader = Proc::read(short.attempt().pid).expect("it runs");
    together.event().await;
    together.event().await;
    fs::write(&gate, "").expect("a file");
    // The leader exits and its shim reaps it while neither keeper nor server runs.
    gone("the short one has ended", &leader).await;
    together.event().await;

    let mut client = together.client().await;
    let mut wanted = b"up\n".to_vec();
    for line in 1..=LINES {
        writeln!(wanted, "{line}").expect("memory takes it");
    }
    let heard: Heard = must("stream", client.hear_all(&long.run_id, 0).await);
    assert!(heard.stdout == wanted, "{} bytes", heard.stdout.len());
    assert_eq!(heard.stderr, b"err\n");
    let run = must("wait", client.ended(&long.run_id).await);
    assert_eq!((run.state(), run.code()), (RunState::Failed, Some(7)));
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);

    let heard = must("stream", client.hear_all(&short.run_id, 0).await);
    assert_eq!(heard.text(), "up\nlast words\n");
    let run = must("wait", client.ended(&short.run_id).await);
    assert_eq!((run.state(), run.code()), (RunState::Failed, Some(5)));
    assert_eq!(run.reason(), "exited", "{run:?}");
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
}

// promise: R-51
async fn run_beside_an_adopted_one_ends_normally(together: &Together) {
    let mut client = together.client().await;
    let script = "trap 'exit 17' TERM; echo up; while :; do sleep 0.05; done";
    let ends = must("spawn", client.spawn(sh(script)).await);
    let stays = must("spawn", client.spawn(adopted(sh(script))).await);
    for run in [&ends, &stays] {
        client.hear_up(&run.run_id).await;
    }
    let leader = Proc::read(ends.attempt().pid).expect("it runs");
    together.event().await;
    together.event().await;
    gone("its shim has ended it", &leader).await;
    together.event().await;
    let mut client = together.client().await;
    let ends = must("wait", client.ended(&ends.run_id).await);
    assert_eq!(
        (ends.state(), ends.reason()),
        (RunState::Lost, "service_lost")
    );
    assert!(ends.tree_is_empty(), "{:?}", ends.tree_verdict);
    let stays = must("get", client.get(&stays.run_id).await);
    assert_eq!(stays.state(), RunState::Running);
    let stays = must("abort", client.abort(&stays.run_id).await);
    assert_eq!(
        (stays.state(), stays.code()),
        (RunState::Cancelled, Some(17))
    );
}

// promise: R-50c
async fn expired_time_limit_acts_at_once(together: &Together) {
    let mut client = together.client().await;
    together.event().await;
    let spec = adopted(sh("echo up; while :; do sleep 0.05; done"));
    let run = must("spawn", client.spawn(spec.max_runtime(LIMIT)).await);
    client.hear_up(&run.run_id).await;
    together.event().await;
    // The limit expires while no keeper runs.
    tokio::time::sleep(LIMIT).await;
    let leader = Proc::read(run.attempt().pid).expect("it is alive");
    assert!(leader.is_alive());
    together.event().await;
    let run = must("wait", together.client().await.ended(&run.run_id).await);
    assert_eq!(run.reason(), "deadline_exceeded", "{run:?}");
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
}

// promise: R-51
async fn rest_is_stopped_or_drained_without_service(together: &Together) {
    let mut client = together.client().await;
    let go = together.kennel().await.scratch().join("rest-go");
    let done = together.kennel().await.scratch().join("rest-done");
    let wait =
        |file: &std::path::Path| format!("until [ -e {} ]; do sleep 0.02; done", file.display());
    let script = format!(
        "(echo up; {}; echo rest) & echo up; {}; exit 6",
        wait(&done),
        wait(&go)
    );
    let mut drained = adopted(sh(&script));
    drained.on_leader_exit = Some(pb::LeaderExitPolicy {
        action: LeaderExitAction::Drain.into(),
        drain_timeout: None,
    });
    let drained = must("spawn", client.spawn(drained).await);
    let stopped = must("spawn", client.spawn(adopted(sh(&script))).await);
    for run in [&drained, &stopped] {
        client.hear_up(&run.run_id).await;
    }
    let leaders = [&drained, &stopped].map(|run| Proc::read(run.attempt().pid).expect("it runs"));
    let shim = shim_of(&stopped);
    together.event().await;
    together.event().await;
    fs::write(&go, "").expect("a file");
    for leader in &leaders {
        gone("the leader has ended", leader).await;
    }
    alone("the shim has ended what was left", &shim).await;
    together.event().await;
    let mut client = together.client().await;
    let stopped = must("wait", client.ended(&stopped.run_id).await);
    assert_eq!((stopped.reason(), stopped.code()), ("exited", Some(6)));
    let certificate = stopped.attempt().certificate.as_ref();
    let rounds = certificate.map_or(0, |certificate| certificate.steps.len());
    assert!(rounds > 0, "the shim's rounds are recorded: {stopped:?}");
    assert!(stopped.tree_is_empty(), "{:?}", stopped.tree_verdict);
    let still = must("get", client.get(&drained.run_id).await);
    assert_eq!(still.reason(), "none", "{still:?}");
    fs::write(&done, "").expect("a file");
    let run = must("wait", client.ended(&drained.run_id).await);
    assert_eq!(
        (run.state(), run.code()),
        (RunState::Failed, Some(6)),
        "{run:?}"
    );
    let heard = must("stream", client.hear_all(&drained.run_id, 0).await);
    assert!(heard.text().ends_with("rest\n"), "{}", heard.text());
}

// promise: R-51
async fn stop_in_progress_is_carried_out(together: &Together) {
    let mut client = together.client().await;
    let script = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done";
    let spec = adopted(sh(script)).grace(Duration::from_secs(4));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let shim = shim_of(&run);
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    together.event().await;
    let order = client
        .abort_with(&run.run_id, None, pb::AbortWait::None)
        .await;
    must("abort", order);
    // The shim owns the plan only after SIGTERM.
    client.hear_text(&run.run_id, "asked\n").await;
    together.event().await;
    gone("its own plan is carried out", &leader).await;
    alone("no other process is left", &shim).await;
    together.event().await;
    let run = must("wait", together.client().await.ended(&run.run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"), "{run:?}");
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
}

// promise: R-50a
async fn unreachable_shim_is_awaited(together: &Together) {
    let mut client = together.client().await;
    let gate = together.kennel().await.scratch().join("late-go");
    let script = format!(
        "echo up; until [ -e {} ]; do sleep 0.02; done; echo done; exit 7",
        gate.display()
    );
    let runs = [
        must("spawn", client.spawn(adopted(sh(&script))).await),
        must("spawn", client.spawn(adopted(sh(&script))).await),
    ];
    for run in &runs {
        client.hear_up(&run.run_id).await;
    }
    let shims = runs.each_ref().map(shim_of);
    together.event().await;
    together.event().await;
    for shim in &shims {
        kill_exactly(shim, Signal::SIGSTOP);
    }
    together.event().await;
    let mut client = together.client().await;
    for run in &runs {
        let run = must("get", client.get(&run.run_id).await);
        // Before adoption, reads return the row's state.
        let open = [RunState::Starting, RunState::Running];
        assert!(open.contains(&run.state()), "{run:?}");
    }
    // Abort works while the shim is stopped.
    let aborted = must("abort", client.abort(&runs[0].run_id).await);
    assert!(aborted.tree_is_empty(), "{aborted:?}");
    kill_exactly(&shims[1], Signal::SIGCONT);
    fs::write(&gate, b"").expect("a file");
    let ended = must("wait", client.ended(&runs[1].run_id).await);
    assert_eq!(ended.code(), Some(7), "{ended:?}");
    let heard = must("stream", client.hear_all(&runs[1].run_id, 0).await);
    assert_eq!(heard.text(), "up\ndone\n");
}

// promise: R-52
async fn dead_shim_leaves_its_run_to_recovery(together: &Together) {
    let mut client = together.client().await;
    let (run, print) = a_whole_tree(&mut client).await;
    let shim = shim_of(&run);
    together.event().await;
    together.event().await;
    kill_exactly(&shim, Signal::SIGKILL);
    gone("the shim is gone", &shim).await;
    together.event().await;
    let run = must("wait", together.client().await.ended(&run.run_id).await);
    assert_eq!(run.state(), RunState::Lost, "{run:?}");
    assert_eq!(run.reason(), "orphan_terminated", "{run:?}");
    print.until_nothing_is_left().await;
}

// promise: R-50b
async fn service_is_adopted_by_default(together: &Together) {
    let mut client = together.client().await;
    let script = "echo up; while :; do sleep 0.05; done";
    let service = sh(script).kind_of(pb::RunKind::Service);
    let service = must("spawn", client.spawn(service).await);
    let job = must(
        "spawn",
        client.spawn(sh(script).kind_of(pb::RunKind::Job)).await,
    );
    for run in [&service, &job] {
        client.hear_up(&run.run_id).await;
    }
    together.event().await;
    together.event().await;
    together.event().await;
    let mut client = together.client().await;
    let job = must("wait", client.ended(&job.run_id).await);
    assert_eq!(job.state(), RunState::Lost, "{job:?}");
    let again = must("get", client.get(&service.run_id).await);
    assert_eq!(again.state(), RunState::Running, "{again:?}");
    assert_eq!(again.attempt().pid, service.attempt().pid);
    must("abort", client.abort(&service.run_id).await);
}

// promise: R-50
#[tokio::test(flavor = "multi_thread")]
async fn adopted_run_outlives_death_of_its_keeper() {
    let mut kennel = Kennel::start(Options::default().without_cgroup()).await;
    let mut client = kennel.client().await;
    let script = "i=0; while [ $i -lt 100 ]; do echo $i; i=$((i + 1)); sleep 0.01; done; exit 3";
    let run = must("spawn", client.spawn(adopted(sh(script))).await);
    let server = kennel.server().expect("a server");
    kennel.kill_keeper();
    gone("the server ends after its keeper", &server).await;
    kennel.restart().await;

    let mut client = kennel.client().await;
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(
        (run.state(), run.code()),
        (RunState::Failed, Some(3)),
        "{run:?}"
    );
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let heard = heard.text();
    assert!(heard.lines().eq((0..100).map(|i| i.to_string())), "{heard}");
}

/// Starts a run of many generations, groups and sessions.
async fn a_whole_tree(client: &mut Client) -> (pb::Run, Footprint) {
    let run = client.spawn(adopted(naughty(&["mixed-tree"]))).await;
    let run = must("spawn", run);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    (run, print)
}

async fn one_that_is_up(client: &mut Client) -> pb::Run {
    let spec = adopted(sh("echo up; sleep 1000"));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    run
}

// promise: R-50a
#[tokio::test(flavor = "multi_thread")]
async fn failing_server_start_leaves_run_for_next_service() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let run = one_that_is_up(&mut client).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    lose_service(&mut kennel).await;
    let key = kennel.data_dir().join("digest-key");
    let put_back = take_away(&kennel, &key);
    kennel.launch_again().await;
    let status = kennel.wait_for_exit(PATIENCE).await;
    assert_ne!(status.code(), Some(0));
    assert!(leader.is_alive());
    put_back();
    kennel.restart().await;
    let mut client = kennel.client().await;
    let again = must("get", client.get(&run.run_id).await);
    assert_eq!(again.state(), RunState::Running, "{again:?}");
    must("abort", client.abort(&run.run_id).await);
    assert!(!leader.is_alive());
}

/// Puts a directory in place of the file, until the result is called.
fn take_away(kennel: &Kennel, file: &Path) -> impl FnOnce() + use<> {
    let (file, aside) = (file.to_owned(), kennel.scratch().join("aside"));
    fs::rename(&file, &aside).expect("it is there");
    fs::create_dir(&file).expect("something else takes its place");
    move || {
        fs::remove_dir(&file).expect("own directory");
        fs::rename(&aside, &file).expect("own file");
    }
}

// promise: R-50a
#[tokio::test(flavor = "multi_thread")]
async fn runs_are_adopted_without_the_store() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut runs = Vec::new();
    for _ in 0..2 {
        runs.push(one_that_is_up(&mut client).await);
    }
    lose_service(&mut kennel).await;
    let put_back = take_away(&kennel, &kennel.data_dir().join("kennel.db"));
    kennel.restart().await;
    let mut client = kennel.client().await;
    let info = client.server_info().await.expect("it answers");
    assert_eq!(info.generation, 0);
    for run in &runs {
        let again = must("get", client.get(&run.run_id).await);
        assert_eq!(again.attempt().pid, run.attempt().pid, "{again:?}");
    }
    let ended = must("abort", client.abort(&runs[0].run_id).await);
    assert_eq!(ended.reason(), "aborted");
    put_back();
    client.has_node_after(0).await;
    // A later keeper finds both outcomes in the store.
    kennel.terminate(PATIENCE).await;
    kennel.restart().await;
    let mut client = kennel.client().await;
    let first = must("get", client.get(&runs[0].run_id).await);
    assert_eq!(first.reason(), "aborted", "{first:?}");
    let second = must("get", client.get(&runs[1].run_id).await);
    assert_eq!(second.reason(), "server_shutdown", "{second:?}");
}

// promise: R-52
#[tokio::test(flavor = "multi_thread")]
async fn adoption_ignores_a_foreign_socket() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let run = one_that_is_up(&mut client).await;
    lose_service(&mut kennel).await;
    let doors = kennel.data_dir().join("adoptable");
    // One socket that sends nothing, and one regular file.
    let mute = doors.join("01ARZ3NDEKTSV4RRFFQ69G5FAV");
    let listener = std::os::unix::net::UnixListener::bind(&mute).expect("a socket");
    fs::write(doors.join("01ARZ3NDEKTSV4RRFFQ69G5FAW"), "").expect("a file");
    kennel.restart().await;
    let mut client = kennel.client().await;
    let again = must("get", client.get(&run.run_id).await);
    assert_eq!(again.state(), RunState::Running, "{again:?}");
    must("abort", client.abort(&run.run_id).await);
    drop(listener);
}
