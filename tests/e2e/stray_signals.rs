//! Meaningless signals to processes of the service.

use kennel_tests::{
    Kennel, PATIENCE, RunExt, SHUTDOWN_LIMIT, eventually, kennel::kill_exactly, must, sh,
};
use nix::sys::signal::Signal;

const STRAY: [Signal; 8] = [
    Signal::SIGUSR1,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
    Signal::SIGXCPU,
    Signal::SIGSTKFLT,
];

// promise: R-60, R-60a
#[tokio::test(flavor = "multi_thread")]
async fn stray_signals_are_logged_and_end_no_run() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = "trap 'exit 12' TERM; echo up; while :; do sleep 0.05; done";
    let run = must("spawn", client.spawn(sh(script)).await);
    client.hear_up(&run.run_id).await;
    let server = kennel.server().expect("a server runs");
    for signal in STRAY {
        kennel.signal(signal);
        for part in kennel.shims().iter().chain([&server]) {
            kill_exactly(part, signal);
        }
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        kill_exactly(&server, signal);
    }
    for signal in STRAY {
        eventually("it is logged", PATIENCE, || {
            let log = kennel.log();
            let line =
                |line: &&str| line.contains("ignored a signal") && line.contains(signal.as_str());
            log.lines().find(line).map(drop)
        })
        .await;
    }
    assert!(server.is_alive(), "the server was ended");
    let run = must("abort", client.abort(&run.run_id).await);
    assert_eq!((run.reason(), run.code()), ("aborted", Some(12)));
}

// promise: R-60
#[tokio::test(flavor = "multi_thread")]
async fn sigquit_and_sigusr2_shut_down_gracefully() {
    for signal in [Signal::SIGQUIT, Signal::SIGUSR2] {
        let mut kennel = Kennel::on_sqlite().await;
        let mut client = kennel.client().await;
        let script = "trap 'exit 12' TERM INT; echo up; while :; do sleep 0.05; done";
        let run = must("spawn", client.spawn(sh(script)).await);
        client.hear_up(&run.run_id).await;
        kennel.signal(signal);
        let status = kennel.wait_for_exit(SHUTDOWN_LIMIT).await;
        assert_eq!(status.code(), Some(0), "{signal}: {}", kennel.log());
        kennel.restart().await;
        let run = must("get", kennel.client().await.get(&run.run_id).await);
        assert_eq!((run.reason(), run.code()), ("server_shutdown", Some(12)));
    }
}
