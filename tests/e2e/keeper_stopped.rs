//! A keeper that is stopped, or gone: the server and the command line notice it.

use crate::{play_apart, play_scenes};
use kennel_proto::pb::{self, SignalTarget};
use kennel_tests::{
    Kennel, PATIENCE, RunExt, complaint, eventually,
    kennel::bare_command,
    must, new_run_id, programs, sh,
    shell::{finish, run_to_end, text},
};
use nix::sys::signal::Signal;
use std::{
    fs,
    os::unix::net::UnixListener,
    process::Stdio,
    time::{Duration, Instant},
};
use tonic::{Code, Status};

/// The promise is ten seconds; the rest is for a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(15);
/// Without a check whether anything listens, a client tries for about 15 s.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(8);

fn is_unresponsive(refused: Result<impl std::fmt::Debug, Status>) {
    let status = refused.expect_err("the keeper is needed");
    let complaint = complaint(&status);
    assert_eq!(
        (complaint.code, complaint.reason.as_str()),
        (Code::Unavailable, "KEEPER_UNRESPONSIVE"),
        "{status:?}"
    );
    assert!(kennel_tests::client::retry_after(&status).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_keeper_or_server_is_detected() {
    play_apart! {
        stopped_keeper_is_noticed_and_acts_once,
        command_line_gives_up_on_a_silent_server,
    };
}

async fn stopped_keeper_is_noticed_and_acts_once() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        stopped_keeper_is_noticed_until_it_is_continued,
        calls_to_a_stopped_keeper_act_once,
    }
}

// promise: R-63, R-63a
async fn stopped_keeper_is_noticed_until_it_is_continued(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "trap 'exit 12' TERM; echo up; while :; do sleep 0.05; done";
    let run = must("spawn", client.spawn(sh(script)).await);
    client.hear_up(&run.run_id).await;
    let ran = kennel.scratch().join("ran");
    let (id, once) = (new_run_id(), sh(&format!("echo x >> {}", ran.display())));

    kennel.signal(Signal::SIGSTOP);
    kennel.becomes_ready(false).await;
    assert!(kennel.is_serving("liveness").await);
    is_unresponsive(client.abort(&run.run_id).await);
    is_unresponsive(client.pause(&run.run_id).await);
    is_unresponsive(client.tree(&run.run_id).await);
    is_unresponsive(client.spawn_as(&id, once.clone()).await);
    let get = must("get", client.get(&run.run_id).await);
    assert_eq!(get.state(), pb::RunState::Running, "nothing was done");
    let info = client.server_info().await.expect("it serves");
    let keeper = info.keeper.expect("it has one");
    assert!(keeper.unresponsive_since.is_some());
    let status = run_to_end(kennel.cli(&["status"]), PATIENCE).await;
    assert!(status.status.success(), "{status:?}");
    assert!(text(&status).contains("does NOT answer"), "{status:?}");
    let begun = Instant::now();
    let abort = run_to_end(kennel.cli(&["abort", &run.run_id]), PATIENCE).await;
    let said = String::from_utf8_lossy(&abort.stderr).into_owned();
    assert_eq!(abort.status.code(), Some(1), "{said}");
    assert!(said.contains("kill -CONT"), "{said}");
    assert!(begun.elapsed() < NOTICED_WITHIN);

    kennel.signal(Signal::SIGCONT);
    kennel.becomes_ready(true).await;
    let info = client.server_info().await.expect("it serves");
    assert!(info.keeper.is_some_and(|k| k.unresponsive_since.is_none()));
    must("spawn", client.spawn_as(&id, once).await);
    must("wait", client.ended(&id).await);
    assert_eq!(fs::read_to_string(&ran).expect("it ran"), "x\n");
    let run = must("abort", client.abort(&run.run_id).await);
    assert_eq!((run.reason(), run.code()), ("aborted", Some(12)));
    kennel.logs("the keeper does not answer", 1).await;
}

// promise: R-63a
async fn calls_to_a_stopped_keeper_act_once(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let got = kennel.scratch().join("got");
    let script = format!(
        "trap 'echo usr1 >> {}' USR1; echo up; while :; do sleep 0.05; done",
        got.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    client.hear_up(&run.run_id).await;
    let ran = kennel.scratch().join("ran-once");
    let (id, once) = (new_run_id(), sh(&format!("echo x >> {}", ran.display())));

    kennel.signal(Signal::SIGSTOP);
    let (mut first, mut second) = (client.clone(), client.clone());
    let begun = Instant::now();
    let (signalled, spawned) = tokio::join!(
        first.signal(&run.run_id, "SIGUSR1", SignalTarget::Leader, "a"),
        second.spawn_as(&id, once.clone()),
    );
    is_unresponsive(signalled);
    is_unresponsive(spawned);
    assert!(begun.elapsed() < NOTICED_WITHIN);

    kennel.signal(Signal::SIGCONT);
    kennel.becomes_ready(true).await;
    let leader = SignalTarget::Leader;
    must(
        "signal",
        client.signal(&run.run_id, "SIGUSR1", leader, "a").await,
    );
    must("spawn", client.spawn_as(&id, once).await);
    must("wait", client.ended(&id).await);
    assert_eq!(fs::read_to_string(&ran).expect("it ran"), "x\n");
    eventually("the signal has come", PATIENCE, || {
        fs::read_to_string(&got)
            .ok()
            .filter(|text| !text.is_empty())
    })
    .await;
    must("abort", client.abort(&run.run_id).await);
    assert_eq!(fs::read_to_string(&got).expect("it came"), "usr1\n");
}

// promise: R-64
#[tokio::test(flavor = "multi_thread")]
async fn run_command_notices_a_dead_keeper() {
    let mut kennel = Kennel::on_sqlite().await;
    let up = kennel.scratch().join("up");
    let script = format!("touch {}; exec sleep 1000", up.display());
    let mut command = kennel.cli(&["run", "--", "sh", "-c", &script]);
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    eventually("it runs", PATIENCE, || up.exists().then_some(())).await;
    kennel.kill_keeper();
    let begun = Instant::now();
    let output = finish(child, "kennel run", PATIENCE).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("the service has ended"), "{said}");
    assert!(begun.elapsed() < GIVEN_UP_WITHIN, "{:?}", begun.elapsed());
}

// promise: R-64a
async fn command_line_gives_up_on_a_silent_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("kennel.sock");
    let _silent = UnixListener::bind(&path).expect("it is bound");
    let mut command = bare_command(&programs::kennel());
    command.args(["--server", &format!("unix:{}", path.display()), "status"]);
    let output = run_to_end(command, PATIENCE).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("did not answer in time"), "{said}");
}
