//! Output of a command in its grace while no server reads: the write does not kill the command, and the next server has
//! the output.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt, kennel::kill_exactly, must, sh,
};
use nix::sys::signal::Signal;
use std::{fs, time::Duration};

/// On a stop it writes lines, then more than a pipe holds, and exits with its own code.
const WRITES_LATE: &str = "trap 'for i in 1 2 3 4 5; do echo late $i; sleep 0.05; done; \
    head -c 300000 /dev/zero | tr \"\\0\" x; echo; echo done; echo said >&2; exit 7' TERM; \
    echo up; while :; do sleep 0.02; done";

/// A grace that is not needed.
const GRACE: Duration = Duration::from_secs(8);

// promise: R-2a, R-2b
#[tokio::test(flavor = "multi_thread")]
async fn grace_holds_when_keeper_and_server_are_killed() {
    let mut kennel = Kennel::on_sqlite().await;
    let run_id = up(&kennel).await;
    kennel.kill_service_after(|| {});
    kennel.wait_until_all_is_gone(PATIENCE).await;
    kennel.restart().await;
    let run = all_is_there(&kennel, &run_id).await;
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Lost, "service_lost")
    );
}

// promise: R-2b
#[tokio::test(flavor = "multi_thread")]
async fn output_is_saved_while_next_server_serves() {
    let mut kennel = Kennel::on_sqlite().await;
    let run_id = up(&kennel).await;
    let shims = kennel.shims();
    let all = |signal| shims.iter().for_each(|shim| kill_exactly(shim, signal));
    // The shims notice the service's death once the next one serves.
    kennel.kill_service_after(|| all(Signal::SIGSTOP));
    kennel.restart().await;
    all(Signal::SIGCONT);
    all_is_there(&kennel, &run_id).await;
}

// promise: R-2a
#[tokio::test(flavor = "multi_thread")]
async fn grace_holds_at_keeper_end_without_server() {
    let mut kennel = Kennel::start(Options::default().without_cgroup()).await;
    let run_id = up(&kennel).await;
    let lock = kennel.data_dir().join("server.lock");
    fs::remove_file(&lock).expect("it is there");
    fs::create_dir(&lock).expect("no server can lock a directory");
    kennel.kill_server();
    kennel.terminate(SHUTDOWN_LIMIT).await;
    fs::remove_dir(&lock).expect("own directory");
    kennel.restart().await;
    let run = all_is_there(&kennel, &run_id).await;
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "server_shutdown"),
        "the keeper ended in order"
    );
    let certificate = run.attempt().certificate.as_ref().expect("it has ended");
    let signals: Vec<&str> = certificate
        .steps
        .iter()
        .map(|s| s.signal.as_str())
        .collect();
    assert_eq!(signals.first(), Some(&"SIGTERM"), "{certificate:?}");
}

async fn up(kennel: &Kennel) -> String {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh(WRITES_LATE).grace(GRACE)).await);
    client.hear_up(&run.run_id).await;
    run.run_id
}

/// Checks that the exit is the command's own, and each byte is there, once.
async fn all_is_there(kennel: &Kennel, run_id: &str) -> pb::Run {
    let mut client = kennel.client().await;
    let run = must("wait", client.ended(run_id).await);
    assert_eq!(run.code(), Some(7), "{run:?}");
    let heard = must("stream", client.hear_all(run_id, 0).await);
    let output = |stream: pb::OutputStream| -> Vec<u8> {
        let parts = heard
            .events
            .iter()
            .filter_map(|(_, payload)| match payload {
                pb::event::Payload::Output(part) if part.stream() == stream => Some(&part.data[..]),
                _ => None,
            });
        parts.collect::<Vec<_>>().concat()
    };
    let mut wanted = b"up\n".to_vec();
    for line in 1..=5 {
        wanted.extend(format!("late {line}\n").into_bytes());
    }
    wanted.extend(std::iter::repeat_n(b'x', 300_000));
    wanted.extend(b"\ndone\n");
    let stdout = output(pb::OutputStream::Stdout);
    assert_eq!(stdout.len(), wanted.len());
    assert!(stdout == wanted, "each byte once and in order");
    // The shell may first report the exit of its child.
    let stderr = output(pb::OutputStream::Stderr);
    assert!(stderr.ends_with(b"said\n"), "{stderr:?}");
    let left = fs::read_dir(kennel.run_dir(run_id)).expect("it is there");
    let left = left.flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left
        .filter(|name| name.to_string_lossy().starts_with("saved"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    run
}
