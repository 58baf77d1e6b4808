//! Restarted commands: across their own exits, and those of server, keeper and service.

use crate::with_and_without_cgroup;
use kennel_proto::pb::{self, RestartMode, RestartPreset, RunKind, RunState};
use kennel_tests::{
    Cgroup, Client, Footprint, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt,
    client::duration,
    complaint, eventually, eventually_async,
    kennel::kill_exactly,
    must,
    procfs::Proc,
    sh,
    shell::{run_to_end, text},
};
use nix::sys::signal::Signal;
use std::{fs, path::Path, time::Duration};

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_hours(1);

with_and_without_cgroup!(
    service_continues_over_every_death,
    a_restart_replaces_the_tree_once,
);

/// Secret and input are there each time; the database never contains them.
// promise: B-1, B-7
#[tokio::test(flavor = "multi_thread")]
async fn crashing_command_is_restarted_by_its_policy() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let ran = kennel.scratch().join("ran");
    let script = format!(
        "cat >> {0}; echo \" $SECRET\" >> {0}; echo out; exit 3",
        ran.display()
    );
    let mut spec = sh(&script).env("SECRET", "hush-hush").restart(agent());
    spec.initial_input = Some(b"input".to_vec().into());
    let run = must("spawn", client.spawn(spec).await);
    let kept = kennel.run_dir(&run.run_id).join("child");
    let run = must("wait", client.ended(&run.run_id).await);

    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Failed, "restarts_exhausted")
    );
    assert_eq!((run.attempt().number, run.code()), (4, Some(3)));
    assert_eq!(run.consecutive_restarts, 3);
    let before: Vec<u32> = run.previous_attempts.iter().map(|a| a.number).collect();
    assert_eq!(before, [1, 2, 3]);
    let mut pids: Vec<i32> = run.previous_attempts.iter().map(|a| a.pid).collect();
    pids.push(run.attempt().pid);
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 4, "each attempt is a process of its own");
    let lines = fs::read_to_string(&ran).expect("it ran");
    assert_eq!(lines, "input hush-hush\n".repeat(4));
    eventually("what attempts were made of is gone", PATIENCE, || {
        (!kept.exists()).then_some(())
    })
    .await;
    for file in fs::read_dir(kennel.data_dir())
        .expect("a directory")
        .flatten()
    {
        if file.path().is_file() {
            let bytes = fs::read(file.path()).expect("it is read");
            let found = bytes.windows(9).any(|part| part == b"hush-hush");
            assert!(!found, "{} has the secret", file.path().display());
        }
    }
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), "out\n".repeat(4));
    let ends = heard
        .stations()
        .iter()
        .filter(|s| **s == "attempt_ended")
        .count();
    assert_eq!(ends, 3, "{:?}", heard.stations());
    Footprint::of_run(&run).assert_nothing_left();
}

// promise: B-2, B-6
async fn a_restart_replaces_the_tree_once(options: Options) {
    let is_contained = options.cgroup != Cgroup::Off;
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let policy = pb::RestartPolicy {
        delay: Some(duration(LONG)),
        max_delay: Some(duration(LONG)),
        ..always()
    };
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let spec = sh(stubborn).grace(SHORT).restart(policy);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let first = Proc::read(run.attempt().pid).expect("it runs");

    let second = must("restart", client.restart(&run.run_id, Some(1)).await);
    assert!(!first.is_alive(), "two trees at once");
    assert_eq!(
        (second.state(), second.attempt().number),
        (RunState::Running, 2)
    );
    let ended = &second.previous_attempts[0];
    assert!(matches!(
        ended
            .end_reason
            .as_ref()
            .and_then(|end| end.reason.as_ref()),
        Some(pb::end_reason::Reason::Restarted(_))
    ));
    assert_eq!(ended.exit_signal(), Some("SIGKILL"));
    let same = must("restart", client.restart(&run.run_id, Some(1)).await);
    assert_eq!(same.attempt().pid, second.attempt().pid);
    // The CLI restarts a run that waits in backoff.
    let leader = Proc::read(second.attempt().pid).expect("it runs");
    kill_exactly(&leader, Signal::SIGKILL);
    in_state(&mut client, &run.run_id, RunState::Backoff).await;
    let listed = text(&run_to_end(kennel.cli(&["ps"]), PATIENCE).await);
    assert!(listed.contains("BACKOFF (next in "), "{listed}");
    let said = run_to_end(kennel.cli(&["restart", &run.run_id]), PATIENCE).await;
    assert!(said.status.success(), "{said:?}");
    let third = runs(&mut client, &run.run_id, 3).await;
    assert_eq!(third.consecutive_restarts, 0);

    let ended = must("abort", client.abort(&run.run_id).await);
    assert_eq!(ended.state(), RunState::Cancelled);
    // A Restart of an earlier attempt counts as done, even after the run ended.
    let seen = must("restart", client.restart(&run.run_id, Some(1)).await);
    assert_eq!(seen, ended);
    let never = must("spawn", client.spawn(sh("echo up; sleep 1000")).await);
    let refused = client
        .restart(&never.run_id, None)
        .await
        .expect_err("nothing is kept");
    assert_eq!(complaint(&refused).reason, "INVALID_STATE");
    must("abort", client.abort(&never.run_id).await);
    if !is_contained {
        assert_nothing_starts_beside_remains(&mut client).await;
    }
}

/// Without a control group, what a lost shim has left cannot be known.
async fn assert_nothing_starts_beside_remains(client: &mut Client) {
    let spec = sh("echo up; sleep 1000").restart(always());
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let shim = Proc::read(run.attempt().shim_pid).expect("it runs");
    kill_exactly(&shim, Signal::SIGKILL);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.attempt().number, 1, "{run:?}");
    assert!(!run.tree_is_empty(), "{:?}", run.tree_verdict);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert!(!heard.stations().contains(&"attempt_ended"));
}

// promise: B-5
async fn service_continues_over_every_death(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let ran = kennel.scratch().join("starts");
    let script = format!(
        "echo $KENNEL_RUN_ID >> {}; echo up; while :; do sleep 0.05; done",
        ran.display()
    );
    let mut spec = sh(&script).kind_of(RunKind::Service).restart(always());
    // Only a run that ends with its keeper is restarted.
    spec.set_recovery(pb::RecoveryPolicy::Terminate);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;

    // The leader dies.
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    kill_exactly(&leader, Signal::SIGKILL);
    let second = runs(&mut client, &run.run_id, 2).await;
    assert_eq!(second.previous_attempts[0].exit_signal(), Some("SIGKILL"));
    // The server dies: the run is unaffected.
    kennel.kill_server();
    let mut client = kennel.client().await;
    let same = must("get", client.get(&run.run_id).await);
    assert_eq!(same.attempt().pid, second.attempt().pid);
    // The keeper dies.
    kennel.kill_keeper();
    kennel.wait_until_all_is_gone(PATIENCE).await;
    kennel.restart().await;
    let mut client = kennel.client().await;
    let third = runs(&mut client, &run.run_id, 3).await;
    let lost = third.previous_attempts.last().expect("one before");
    assert!(matches!(
        lost.end_reason.as_ref().and_then(|end| end.reason.as_ref()),
        Some(pb::end_reason::Reason::ServiceLost(_))
    ));
    // The service shuts down in order.
    let code = kennel.terminate(SHUTDOWN_LIMIT).await.code();
    assert_eq!(code, Some(0));
    kennel.restart().await;
    let mut client = kennel.client().await;
    let fourth = runs(&mut client, &run.run_id, 4).await;
    assert_eq!(fourth.previous_attempts.len(), 3);
    assert_eq!(starts(&ran), 4, "each attempt ran once");

    let ended = must("abort", client.abort(&run.run_id).await);
    assert_eq!(
        (ended.state(), ended.attempt().number),
        (RunState::Cancelled, 4)
    );
    kennel.kill_keeper();
    kennel.wait_until_all_is_gone(PATIENCE).await;
    kennel.restart().await;
    let mut client = kennel.client().await;
    let over = must("get", client.get(&run.run_id).await);
    assert_eq!(over.state(), RunState::Cancelled);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let ends = heard
        .stations()
        .iter()
        .filter(|s| **s == "attempt_ended")
        .count();
    assert_eq!(ends, 3, "{:?}", heard.stations());
    assert_eq!(starts(&ran), 4);
}

// promise: B-5a
#[tokio::test(flavor = "multi_thread")]
async fn run_ended_before_the_service_stays_ended() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let (go, ran) = (kennel.scratch().join("go"), kennel.scratch().join("ran"));
    let script = format!(
        "echo x >> {}; echo up; until [ -e {} ]; do sleep 0.02; done",
        ran.display(),
        go.display()
    );
    let policy = pb::RestartPolicy {
        mode: RestartMode::OnFailure.into(),
        ..always()
    };
    let mut spec = sh(&script).kind_of(RunKind::Service).restart(policy);
    spec.set_recovery(pb::RecoveryPolicy::Terminate);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    // Only the shim sees the exit.
    let server = kennel.server().expect("a server runs");
    let keeper = Proc::read(kennel.keeper_pid()).expect("own child");
    kill_exactly(&keeper, Signal::SIGSTOP);
    kill_exactly(&server, Signal::SIGSTOP);
    fs::write(&go, b"").expect("a file");
    let leader = run.attempt().pid;
    eventually("the leader is reaped", PATIENCE, || {
        Proc::read(leader).is_none().then_some(())
    })
    .await;
    kill_exactly(&server, Signal::SIGKILL);
    kennel.kill_keeper();
    kennel.restart().await;
    let mut client = kennel.client().await;
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(
        (run.state(), run.reason(), run.code()),
        (RunState::Succeeded, "exited", Some(0))
    );
    assert_eq!((run.attempt().number, starts(&ran)), (1, 1));
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
}

/// The run keeps its id, and no death of the service ends it or begins its next attempt.
// promise: B-4, RW-103, RW-104
#[tokio::test(flavor = "multi_thread")]
async fn exhausted_run_is_held_until_restart() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let script = format!("test -e {} || exit 3; exec sleep 1000", go.display());
    let spec = sh(&script).kind_of(RunKind::Service);
    let spec = spec.restart(pb::RestartPolicy {
        max_restarts: Some(1),
        hold: true,
        ..always()
    });
    let run = must("spawn", client.spawn(spec).await).run_id;
    let is_held = |run: &pb::Run| {
        run.state() == RunState::Backoff
            && run.attempt().number == 2
            && run.next_restart_time.is_none()
    };
    look(&mut client, &run, is_held).await;
    for (words, wanted) in [
        (vec!["ps"], "BACKOFF (held)"),
        (vec!["why", &run], "the next one begins at `kennel restart`"),
    ] {
        let shown = run_to_end(kennel.cli(&words), PATIENCE).await;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains(wanted), "{shown}");
    }
    kennel.kill_server();
    client = kennel.client().await;
    look(&mut client, &run, is_held).await;
    kennel.kill_keeper();
    kennel.wait_until_all_is_gone(PATIENCE).await;
    kennel.restart().await;
    client = kennel.client().await;
    look(&mut client, &run, is_held).await;

    fs::write(&go, "").expect("own directory");
    let restarted = must("restart", client.restart(&run, None).await);
    assert_eq!(restarted.run_id, run);
    assert_eq!(restarted.state(), RunState::Running, "{restarted:?}");
    assert_eq!(
        (restarted.attempt().number, restarted.consecutive_restarts),
        (3, 0)
    );
    must("abort", client.abort(&run).await);

    let words = ["--restart", "agent", "--restart-delay", "10ms"];
    let words = [
        &["spawn", "--restart-max", "1", "--restart-hold"],
        &words[..],
        &["--", "false"],
    ];
    let spawned = run_to_end(kennel.cli(&words.concat()), PATIENCE).await;
    let run = String::from_utf8_lossy(&spawned.stdout).trim().to_owned();
    look(&mut client, &run, is_held).await;
    // A held run delays no drain: no process runs or starts.
    let drained = run_to_end(kennel.cli(&["drain", "--wait"]), PATIENCE).await;
    assert!(drained.status.success(), "{drained:?}");
    let refused = client.pause(&run).await.expect_err("nothing runs");
    assert_eq!(complaint(&refused).reason, "INVALID_STATE");
    let ended = must("abort", client.abort(&run).await);
    assert_eq!(
        (ended.state(), ended.code()),
        (RunState::Cancelled, Some(1))
    );
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.signals(), [""; 0], "no process was signalled");
}

fn agent() -> pb::RestartPolicy {
    pb::RestartPolicy {
        preset: RestartPreset::Agent.into(),
        delay: Some(duration(SHORT)),
        ..pb::RestartPolicy::default()
    }
}

fn always() -> pb::RestartPolicy {
    pb::RestartPolicy {
        mode: RestartMode::Always.into(),
        delay: Some(duration(SHORT)),
        factor: Some(1),
        ..pb::RestartPolicy::default()
    }
}

fn starts(file: &Path) -> usize {
    fs::read_to_string(file).expect("it ran").lines().count()
}

async fn runs(client: &mut Client, run_id: &str, attempt: u32) -> pb::Run {
    let runs = |run: &pb::Run| run.state() == RunState::Running && run.attempt().number == attempt;
    look(client, run_id, runs).await
}

async fn in_state(client: &mut Client, run_id: &str, state: RunState) -> pb::Run {
    look(client, run_id, |run| run.state() == state).await
}

async fn look(client: &mut Client, run_id: &str, is_it: impl Fn(&pb::Run) -> bool) -> pb::Run {
    eventually_async("the run is there", PATIENCE, async || {
        let run = must("get", client.clone().get(run_id).await);
        is_it(&run).then_some(run)
    })
    .await
}

trait AttemptExt {
    fn exit_signal(&self) -> Option<&str>;
}

impl AttemptExt for pb::Attempt {
    fn exit_signal(&self) -> Option<&str> {
        match self.exit.as_ref()?.result.as_ref()? {
            pb::exit::Result::Signal(signal) => Some(&signal.name),
            _ => None,
        }
    }
}
