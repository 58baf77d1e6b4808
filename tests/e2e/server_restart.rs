//! The server dies and the keeper starts another: runs, ladders, deadlines and pauses continue, clients wait.

use crate::{play_apart, play_together, together::Together};
use kennel_proto::pb::{
    self, AbortWait, LeaderExitAction, RunState, ServerEndCause, SignalTarget, WaitCondition,
};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt,
    client::Heard,
    eventually, eventually_async,
    kennel::kill_exactly,
    must, naughty,
    procfs::{self, Proc},
    sh,
    shell::{finish, run_to_end, text},
};
use nix::sys::signal::Signal;
use std::{fs, io::Write as _, path::Path, process::Stdio, time::Duration};
use tonic::Code;

/// Waits until another server runs, which may not serve yet.
async fn another_server(kennel: &Kennel, before: &Proc) -> Proc {
    eventually("another server is started", PATIENCE, || {
        kennel.server().filter(|server| server.pid != before.pid)
    })
    .await
}

async fn lose_server(kennel: &Kennel) -> Proc {
    let server = kennel.server().expect("a server runs");
    kill_exactly(&server, Signal::SIGKILL);
    another_server(kennel, &server).await
}

/// Runs in every phase, and one death of the server.
#[tokio::test(flavor = "multi_thread")]
async fn runs_in_every_phase_survive_server_death() {
    let together = Together::new(Kennel::on_sqlite().await, 7);
    let events = async {
        // Grace periods begin once all scenes are up.
        together.happens(async |_| {}).await;
        let death = async |kennel: &mut Kennel| {
            let server = kennel.server().expect("a server runs");
            kill_exactly(&server, Signal::SIGSTOP);
            exit_unrecorded(kennel).await;
            kennel.kill_server();
        };
        together.happens(death).await;
    };
    let ((), left, ..) = play_together! {
        &together, events;
        shutdown_after_a_restart_ends_all_in_order,
        run_does_not_notice_server_death,
        grace_continues_without_a_server,
        a_pause_outlives_the_server,
        a_drain_outlives_the_server,
        signal_is_not_repeated_by_next_server,
        unrecorded_events_are_reported_by_next_server,
    };
    let mut kennel = together.into_kennel();
    let status = kennel.terminate(kennel_tests::SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(0), "{}", kennel.log());
    for print in &left {
        print.assert_nothing_left();
    }
}

// promise: R-18
async fn run_does_not_notice_server_death(together: &Together) {
    let mut client = together.client().await;
    let before = client.server_info().await.expect("it answers");
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let leader = Proc::read(run.attempt().pid).expect("it runs");

    together.event().await;
    together.event().await;
    // Calls between two servers are delayed, not refused.
    let mut client = together.client().await;
    let again = must("get", client.get(&run.run_id).await);

    assert_eq!(again.state(), RunState::Running);
    assert_eq!(again.lasting(), run.lasting());
    assert!(leader.is_alive());
    let after = client.server_info().await.expect("it answers");
    assert_eq!(after.generation, before.generation + 1);
    assert_eq!(after.keeper, before.keeper);
    let (same, existing) = must(
        "again",
        client.spawn_as(&run.run_id, naughty(&["mixed-tree"])).await,
    );
    assert!(existing && same.run_id == run.run_id);
    let run = must("abort", client.abort(&run.run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    print.assert_nothing_left();
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let once = [
        "recorded",
        "started",
        "stopping",
        "leader_exited",
        "tree_empty",
        "ended",
    ];
    for station in once {
        let count = heard.stations().iter().filter(|s| **s == station).count();
        assert_eq!(count, 1, "{station}: {:?}", heard.stations());
    }
}

// promise: R-18
async fn grace_continues_without_a_server(together: &Together) {
    let mut client = together.client().await;
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let spec = sh(script).grace(GRACE);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    together.event().await;
    let stopping = client.abort_with(&run.run_id, None, AbortWait::None).await;
    let stopping = must("abort", stopping);
    together.event().await;

    let mut client = together.client().await;
    let again = must("get", client.get(&run.run_id).await);
    assert_eq!(again.stop_deadline_time, stopping.stop_deadline_time);
    let run = must("wait", client.ended(&run.run_id).await);

    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"));
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let terms = heard
        .signals()
        .iter()
        .filter(|s| s.contains("TERM"))
        .count();
    assert_eq!(terms, 1, "{:?}", heard.signals());
}

// promise: R-18
async fn a_pause_outlives_the_server(together: &Together) {
    let mut client = together.client().await;
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&run.run_id).await;
    must("pause", client.pause(&run.run_id).await);
    together.event().await;
    together.event().await;

    let mut client = together.client().await;
    let paused = must("get", client.get(&run.run_id).await);
    assert_eq!(paused.state(), RunState::Paused);
    assert!(leader_stands_still(&run));
    let resumed = must("resume", client.resume(&run.run_id).await);
    assert_eq!(resumed.state(), RunState::Running);
    assert!(!leader_stands_still(&run));
    must("abort", client.abort(&run.run_id).await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let of_pause: Vec<_> = heard
        .stations()
        .into_iter()
        .filter(|station| ["paused", "resumed"].contains(station))
        .collect();
    assert_eq!(of_pause, ["paused", "resumed"]);
}

// promise: R-18
async fn a_drain_outlives_the_server(together: &Together) {
    let mut client = together.client().await;
    let go = together.kennel().await.scratch().join("go");
    let script = format!(
        "(while [ ! -e {} ]; do sleep 0.02; done; echo rest) & echo up; exit 6",
        go.display()
    );
    let spec = sh(&script).on_leader_exit(LeaderExitAction::Drain, None);
    let run = must("spawn", client.spawn(spec).await);
    let exited = client.wait(&run.run_id, WaitCondition::LeaderExited).await;
    assert!(must("wait", exited).1);
    together.event().await;
    together.event().await;

    let mut client = together.client().await;
    let draining = must("get", client.get(&run.run_id).await);
    assert_eq!(draining.state(), RunState::Stopping);
    assert_eq!(draining.code(), Some(6));
    fs::write(&go, "").expect("written");
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!((run.reason(), run.code()), ("exited", Some(6)));
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.stdout, b"up\nrest\n");
    assert!(heard.signals().is_empty(), "{:?}", heard.signals());
}

// promise: T-15
async fn signal_is_not_repeated_by_next_server(together: &Together) {
    let mut client = together.client().await;
    let file = together.kennel().await.scratch().join("signals");
    let script = format!(
        "trap 'echo usr1 >> {}' USR1; echo up; while :; do sleep 0.01; done",
        file.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    client.hear_up(&run.run_id).await;
    let read = || fs::read_to_string(&file).unwrap_or_default();
    let (usr1, leader) = ("SIGUSR1", SignalTarget::Leader);
    let sent = client.signal(&run.run_id, usr1, leader, "a").await;
    assert!(!must("signal", sent).repeated_request);
    eventually("the command got the signal", PATIENCE, || {
        (read() == "usr1\n").then_some(())
    })
    .await;
    together.event().await;
    together.event().await;

    let mut client = together.client().await;
    let again = must("again", client.signal(&run.run_id, usr1, leader, "a").await);
    assert!(again.repeated_request && again.targets.is_empty());
    must("interrupt", client.interrupt(&run.run_id, "a").await);
    // Earlier signals are delivered before later ones.
    let next = must("next", client.signal(&run.run_id, usr1, leader, "b").await);
    assert!(!next.repeated_request);
    eventually("the next command got the signal", PATIENCE, || {
        (read().len() > "usr1\n".len()).then_some(())
    })
    .await;
    must("abort", client.abort(&run.run_id).await);
    assert_eq!(read(), "usr1\nusr1\n");
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let signals = heard.signals();
    let sent = signals.iter().filter(|s| s.contains("USR1")).count();
    assert_eq!(sent, 2, "{signals:?}");
    assert!(!signals.iter().any(|s| s.contains("INT")), "{signals:?}");
}

/// Name of the file that lets the command exit while its server is halted, and of that with its pid.
const UNRECORDED: (&str, &str) = ("unrecorded-go", "unrecorded-pid");

// promise: R-18
async fn unrecorded_events_are_reported_by_next_server(together: &Together) {
    let mut client = together.client().await;
    let scratch = together.kennel().await.scratch().to_owned();
    let script = format!(
        "echo up; while [ ! -e {} ]; do sleep 0.02; done; echo last; exit 9",
        scratch.join(UNRECORDED.0).display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    client.hear_up(&run.run_id).await;
    let pid = run.attempt().pid.to_string();
    fs::write(scratch.join(UNRECORDED.1), pid).expect("written");
    together.event().await;
    together.event().await;

    let mut client = together.client().await;
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!((run.state(), run.code()), (RunState::Failed, Some(9)));
    assert_eq!(run.reason(), "exited");
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.stdout, b"up\nlast\n");
}

/// Lets that command exit. Its server does not hear of it.
async fn exit_unrecorded(kennel: &Kennel) {
    let pid = fs::read_to_string(kennel.scratch().join(UNRECORDED.1)).expect("written");
    let leader = Proc::read(pid.parse().expect("a pid")).expect("it runs");
    fs::write(kennel.scratch().join(UNRECORDED.0), "").expect("written");
    eventually("the leader has ended", PATIENCE, || {
        (!leader.is_alive()).then_some(())
    })
    .await;
}

/// Returns trees that live when the next server is ended in order.
// promise: R-18
async fn shutdown_after_a_restart_ends_all_in_order(together: &Together) -> Vec<Footprint> {
    let mut client = together.client().await;
    let mut prints = Vec::new();
    for _ in 0..3 {
        let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
        client.hear_up(&run.run_id).await;
        prints.push(Footprint::of_run(&run));
    }
    together.event().await;
    together.event().await;
    prints
}

/// Lines of the writer, and after how many of their bytes the server dies.
const LINES: usize = 1_000_000;
const DEATHS: [usize; 3] = [1_000_000, 2_500_000, 4_500_000];

// promise: R-18
#[tokio::test(flavor = "multi_thread")]
async fn resumed_reader_has_each_byte_once_in_order() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = "i=0; while [ $i -lt 100 ]; do seq $((i * 10000 + 1)) $((i * 10000 + 10000)); i=$((i + 1)); sleep 0.02; done; exit 4";
    let run = must("spawn", client.spawn(sh(script)).await);
    let mut heard = Heard::default();
    let mut deaths = DEATHS.iter().peekable();
    while !heard.has_ended() {
        let Ok(mut stream) = client.events_after(&run.run_id, heard.last_seq()).await else {
            client = kennel.client().await;
            continue;
        };
        // A broken stream is resumed at the break. Messages before it are read to the end: that server cannot die
        // again.
        let mut lives = true;
        while let Ok(Some(message)) = stream.message().await {
            heard.take(message);
            let bytes = heard.stdout.len();
            if lives && deaths.next_if(|at| bytes >= **at).is_some() {
                kennel.kill_server();
                lives = false;
            }
        }
    }
    assert!(deaths.next().is_none(), "it died as often as it should");
    let mut wanted = Vec::new();
    for line in 1..=LINES {
        writeln!(wanted, "{line}").expect("memory takes it");
    }
    assert!(heard.stdout == wanted, "{} bytes", heard.stdout.len());
    let run = must("wait", kennel.client().await.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(4));
}

/// Enough for another server to come within it, also on a busy machine.
const GRACE: Duration = Duration::from_secs(6);

fn leader_stands_still(run: &pb::Run) -> bool {
    let identity = run.attempt().identity.as_ref().expect("an identity");
    if let Some(cgroup) = &identity.cgroup_path {
        let events = fs::read_to_string(Path::new(cgroup).join("cgroup.events"));
        return events
            .expect("it lives")
            .lines()
            .any(|line| line == "frozen 1");
    }
    Proc::read(run.attempt().pid).expect("it lives").state == 'T'
}

/// Number of deaths in a row.
const IN_A_ROW: usize = 5;
/// Uptime after which a server is replaced at once.
const STEADY: Duration = Duration::from_millis(2_100);

#[tokio::test(flavor = "multi_thread")]
async fn lost_and_hung_servers_are_replaced() {
    play_apart! {
        a_run_outlives_many_servers,
        a_server_that_hangs_is_replaced,
        a_server_whose_main_task_panics_is_replaced,
        waiting_command_line_survives_server_death,
    };
}

// promise: R-18
async fn a_run_outlives_many_servers() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = "trap 'exit 12' TERM; echo up; while :; do sleep 0.05; done";
    let run = must("spawn", client.spawn(sh(script)).await);
    client.hear_up(&run.run_id).await;
    for _ in 0..IN_A_ROW {
        kennel
            .client()
            .await
            .server_info()
            .await
            .expect("it serves");
        // The keeper measures how long the server served.
        tokio::time::sleep(STEADY).await;
        lose_server(&kennel).await;
    }
    let run = must("abort", kennel.client().await.abort(&run.run_id).await);
    assert_eq!((run.reason(), run.code()), ("aborted", Some(12)));
}

// promise
async fn a_server_that_hangs_is_replaced() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&run.run_id).await;
    let server = kennel.server().expect("a server runs");
    kill_exactly(&server, Signal::SIGSTOP);
    let next = another_server(&kennel, &server).await;
    assert!(next.is_alive() && !server.is_alive());
    let info = kennel.client().await.server_info().await;
    let former = info
        .expect("it serves")
        .former_server
        .expect("there was one");
    assert_eq!(former.cause(), ServerEndCause::Hung);
    let run = must("abort", kennel.client().await.abort(&run.run_id).await);
    assert_eq!(run.reason(), "aborted");
}

/// The task that serves, and the one that obeys the keeper.
// promise: R-1
async fn a_server_whose_main_task_panics_is_replaced() {
    let points = must("a directory", tempfile::tempdir());
    let kennel = Kennel::start(Options::crashing(points.path())).await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&run.run_id).await;
    let arm = |point| fs::write(points.path().join(point), "panic").expect("own directory");
    for (point, code) in [("boot.ready", 101), ("leave.begun", 70)] {
        let before = kennel
            .client()
            .await
            .server_info()
            .await
            .expect("it serves");
        arm(point);
        let server = kennel.server().expect("a server runs");
        // The next server reaches `boot.ready`; an upgrade reaches the other point.
        if point == "boot.ready" {
            kill_exactly(&server, Signal::SIGKILL);
        } else {
            kennel.signal(Signal::SIGHUP);
        }
        let after = eventually_async("the next server serves", PATIENCE, async || {
            let info = kennel.client().await.server_info().await?;
            let dead = points.path().join(format!("{point}.fired")).exists();
            (dead && info.generation > before.generation).then_some(info)
        })
        .await;
        let former = after.former_server.expect("there was one");
        assert_eq!(former.cause(), ServerEndCause::ByItself);
        let exit = former.exit.and_then(|exit| exit.result);
        assert_eq!(exit, Some(pb::exit::Result::Code(code)));
        let again = must("get", kennel.client().await.get(&run.run_id).await);
        assert_eq!(
            (again.state(), again.lasting()),
            (RunState::Running, run.lasting())
        );
    }
    let log = kennel.log();
    assert_eq!(
        log.matches("a thread of the server has panicked").count(),
        2,
        "{log}"
    );
    let run = must("abort", kennel.client().await.abort(&run.run_id).await);
    assert_eq!(run.reason(), "aborted");
}

// promise: R-22
#[tokio::test(flavor = "multi_thread")]
async fn former_servers_end_is_reported_once() {
    let mut kennel = Kennel::on_sqlite().await;
    let first = kennel.client().await.server_info().await;
    assert_eq!(first.expect("it serves").former_server, None);
    kennel.replace_server().await;
    let info = kennel.client().await.server_info().await;
    let former = info
        .expect("it serves")
        .former_server
        .expect("there was one");
    assert!(former.served && former.end_time.is_some(), "{former:?}");
    assert_eq!(former.cause(), ServerEndCause::ByItself);
    let exit = former.exit.expect("it was waited for").result;
    let Some(pb::exit::Result::Signal(signal)) = exit else {
        panic!("{exit:?}");
    };
    assert_eq!(signal.name, "SIGKILL");
    let log = kennel.log();
    let mentions = log.matches("the previous server was killed by SIGKILL");
    assert_eq!(mentions.count(), 1, "{log}");
    let status = text(&run_to_end(kennel.cli(&["status"]), PATIENCE).await);
    assert!(status.contains("killed by SIGKILL"), "{status}");
}

// promise: R-23
async fn waiting_command_line_survives_server_death() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let spec = sh("trap '' TERM; echo up; while :; do sleep 0.05; done");
    let run = must("spawn", client.spawn(spec.grace(GRACE)).await);
    client.hear_up(&run.run_id).await;
    let start = |words: &[&str]| {
        let mut command = kennel.cli(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let waits = start(&["wait", &run.run_id]);
    eventually("it is connected", PATIENCE, || {
        has_a_socket(waits.id()).then_some(())
    })
    .await;
    let aborts = start(&["abort", &run.run_id]);
    let stopping = || {
        let (mut client, id) = (client.clone(), run.run_id.clone());
        async move {
            let run = client.get(&id).await.ok()?;
            (run.state() == RunState::Stopping).then_some(())
        }
    };
    eventually_async("the stop is recorded", PATIENCE, stopping).await;
    kennel.kill_server();
    // The command ignored SIGTERM: `wait` returns 137, the code of SIGKILL.
    for (child, what, code) in [(waits, "wait", 137), (aborts, "abort", 0)] {
        let output = finish(child, what, PATIENCE).await;
        assert_eq!(output.status.code(), Some(code), "{what}: {output:?}");
        assert!(text(&output).contains("CANCELLED"), "{what}: {output:?}");
    }
}

// promise: R-23a
#[tokio::test(flavor = "multi_thread")]
async fn spawn_command_is_repeated_after_server_death() {
    let points = tempfile::tempdir().expect("a directory");
    let kennel = Kennel::start(Options::crashing(points.path())).await;
    for verb in ["spawn", "run"] {
        let ran = kennel.scratch().join(verb);
        let script = format!("echo x >> {}; echo out; exit 7", ran.display());
        let begun = points.path().join("spawn.begun");
        fs::write(&begun, "server").expect("a file");
        let mut command = kennel.cli(&[verb, "--", "sh", "-c", &script]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = finish(command.spawn().expect("it starts"), verb, PATIENCE).await;
        assert!(!begun.exists(), "{verb}: the server did not die");
        if verb == "run" {
            assert_eq!(output.status.code(), Some(7), "{output:?}");
            assert_eq!(text(&output), "out");
        } else {
            assert!(output.status.success(), "{output:?}");
            let mut client = kennel.client().await;
            let run = must("wait", client.ended(text(&output).trim()).await);
            assert_eq!(run.code(), Some(7), "{run:?}");
        }
        assert_eq!(fs::read_to_string(&ran).expect("it ran"), "x\n");
    }
}

fn has_a_socket(pid: u32) -> bool {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("own child");
    fds.flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .any(|target| target.to_string_lossy().starts_with("socket:"))
}

/// Children that wait at their gates because the store is halted.
const GATED: usize = 4;

// promise: R-18
#[tokio::test(flavor = "multi_thread")]
async fn child_at_gate_never_runs_but_retry_does() {
    let postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    let ran = kennel.scratch().join("ran");
    fs::write(&ran, "").expect("written");
    let spec = || sh(&format!("echo $KENNEL_RUN_ID >> {}", ran.display()));
    postgres.halt();
    let ids: Vec<String> = (0..GATED).map(|_| kennel_tests::new_run_id()).collect();
    let mut spawns = tokio::task::JoinSet::new();
    for id in ids.clone() {
        let (mut client, spec) = (kennel.client().await, spec());
        spawns.spawn(async move { client.spawn_as(&id, spec).await.map(|_| ()) });
    }
    eventually("all wait at their gates", PATIENCE, || {
        let all = procfs::all();
        let at_gates = kennel
            .shims()
            .iter()
            .flat_map(|shim| procfs::descendants(&all, shim.pid))
            .count();
        (at_gates == GATED).then_some(())
    })
    .await;
    let server = kennel.server().expect("a server runs");
    kennel.kill_server();
    for answer in spawns.join_all().await {
        answer.expect_err("nothing was recorded");
    }
    another_server(&kennel, &server).await;
    postgres.go_on();
    let mut client = kennel.client().await;
    assert!(client.server_info().await.is_some());
    assert_eq!(fs::read_to_string(&ran).expect("it is there"), "");
    for id in &ids {
        // The caller does not know the first call's result and repeats it. A row written late records that the run
        // never ran.
        let answered = eventually_async("it is answered", PATIENCE, async || {
            let answer = client.clone().spawn_as(id, spec()).await;
            // The disk may be slow after the backlog of writes.
            let is_away = matches!(&answer, Err(status) if status.code() == Code::Unavailable);
            (!is_away).then_some(answer)
        });
        match answered.await {
            Ok(_) => drop(must("wait", client.ended(id).await)),
            Err(status) => {
                let run = must("get", client.get(id).await);
                assert_eq!(run.reason(), "start_failed", "{status:?}");
            }
        }
    }
    let text = fs::read_to_string(&ran).expect("it is there");
    let mut lines: Vec<&str> = text.lines().collect();
    let all = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), all, "a command ran twice");
}
