//! SIGTERM to `kennel serve`: every run gets a polite signal, all are gone within ten seconds, and the rows have the
//! reason.

use crate::play_apart;
use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt, eventually,
    eventually_async, must, naughty, sh,
};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use tonic::Code;

// promise: S-3
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_ends_at_once() {
    let mut kennel = Kennel::on_sqlite().await;
    let family = kennel.descendants();
    assert!(
        family.len() >= 2,
        "a server and a shim at least: {family:?}"
    );
    let began = Instant::now();
    let status = kennel.terminate(SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(0), "{}", kennel.log());
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert!(family.iter().all(|proc| !proc.is_alive()), "{family:?}");
    assert!(!kennel.socket().exists(), "the socket is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_runs_with_or_without_groups() {
    play_apart! {
        a_shutdown_says_int_then_term_then_kills,
        a_shutdown_without_control_groups_does_the_same,
    };
}

// promise: S-1
async fn a_shutdown_says_int_then_term_then_kills() {
    Box::pin(shutdown(Options::default())).await;
}

// promise: S-1
async fn a_shutdown_without_control_groups_does_the_same() {
    Box::pin(shutdown(Options::default().without_cgroup())).await;
}

async fn shutdown(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let signals = kennel.scratch().join("signals");
    let stubborn = naughty(&["tell-signals", signals.to_str().expect("UTF-8")]);
    let stubborn = must(
        "spawn",
        client.spawn(stubborn.grace(Duration::from_secs(3))).await,
    );
    let tree = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    let polite = must(
        "spawn",
        client
            .spawn(sh(
                "trap 'exit 9' INT; echo up; while :; do sleep 0.05; done",
            ))
            .await,
    );
    for run in [&stubborn, &tree, &polite] {
        client.hear_up(&run.run_id).await;
    }
    let prints: Vec<_> = [&stubborn, &tree, &polite].map(Footprint::of_run).into();

    let began = Instant::now();
    let status = kennel.terminate(SHUTDOWN_LIMIT).await;

    assert_eq!(status.code(), Some(0), "{}", kennel.log());
    assert!(
        began.elapsed() >= Duration::from_secs(2),
        "the grace was kept"
    );
    for print in &prints {
        print.assert_nothing_left();
    }
    assert_eq!(
        std::fs::read_to_string(&signals).expect("the file of signals"),
        "SIGINT\nSIGTERM\n"
    );

    kennel.restart().await;
    let mut client = kennel.client().await;
    for run in [&stubborn, &tree, &polite] {
        let run = must("get", client.get(&run.run_id).await);
        assert_eq!(
            (run.state(), run.reason()),
            (RunState::Cancelled, "server_shutdown"),
            "{run:?}"
        );
        assert!(run.tree_is_empty(), "{run:?}");
        run.three_ends();
    }
    let run = must("get", client.get(&stubborn.run_id).await);
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"));
    let run = must("get", client.get(&polite.run_id).await);
    assert_eq!(run.code(), Some(9), "INT came first");
}

// promise: S-1a, S-1b
#[tokio::test(flavor = "multi_thread")]
async fn node_sets_time_signals_and_code_of_shutdown() {
    let mut words = vec!["--shutdown-timeout", "2s", "--exit-code-on-signal", "143"];
    words.extend([
        "--shutdown-signal",
        "HUP",
        "--shutdown-signal",
        "terminal=INT",
    ]);
    let mut kennel = Kennel::start(Options {
        words,
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let signals = kennel.scratch().join("signals");
    let stubborn = naughty(&["tell-signals", signals.to_str().expect("UTF-8")]);
    let stubborn = stubborn.grace(Duration::from_mins(1));
    let mut own = sh("trap 'exit 7' USR1; echo up; while :; do sleep 0.05; done");
    own.stop.get_or_insert_default().signal = "SIGUSR1".to_owned();
    let typed = sh("trap 'exit 8' INT; echo up; while :; do sleep 0.05; done");
    let typed = typed.on_terminal(pb::Terminal::default());
    let mut runs = Vec::new();
    for spec in [stubborn, own, typed] {
        runs.push(must("spawn", client.spawn(spec).await).run_id);
    }
    for (run, up) in runs.iter().zip(["up\n", "up\n", "up\r\n"]) {
        client.hear_text(run, up).await;
    }

    let status = kennel.terminate(SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(143), "{}", kennel.log());
    let signalled = std::fs::read_to_string(&signals).expect("the file of signals");
    assert_eq!(signalled, "SIGHUP\nSIGTERM\n");
    let log = kennel.log();
    assert!(
        log.contains("grace periods are cut by --shutdown-timeout runs=3"),
        "{log}"
    );

    kennel.restart().await;
    let mut client = kennel.client().await;
    let mut codes = Vec::new();
    for run in &runs {
        let run = must("get", client.get(run).await);
        assert_eq!(run.reason(), "server_shutdown", "{run:?}");
        codes.push(run.code());
    }
    assert_eq!(codes, [None, Some(7), Some(8)]);
    let heard = must("events", client.hear_all(&runs[0], 0).await);
    let cut = "--shutdown-timeout cuts the grace period from 60 s to 1.6 s";
    assert_eq!(heard.warnings(), [cut]);
}

// promise: S-2
#[tokio::test(flavor = "multi_thread")]
async fn second_shutdown_signal_kills_at_once() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let signals = kennel.scratch().join("signals");
    let spec =
        naughty(&["tell-signals", signals.to_str().expect("UTF-8")]).grace(Duration::from_mins(1));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let mut other = kennel.client().await;

    kennel.signal(Signal::SIGTERM);
    eventually("the child got the signal", PATIENCE, || {
        signals.exists().then_some(())
    })
    .await;
    let refused = eventually_async("new work is refused", PATIENCE, || {
        let mut other = other.clone();
        async move { other.spawn(sh("exit 0")).await.err() }
    })
    .await;
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    let began = Instant::now();
    kennel.signal(Signal::SIGTERM);
    let status = kennel.wait_for_exit(SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(0), "{}", kennel.log());
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    print.assert_nothing_left();
    assert!(other.server_info().await.is_none());
}

// promise: S-4
#[tokio::test(flavor = "multi_thread")]
async fn silent_client_does_not_delay_shutdown() {
    let mut kennel = Kennel::on_sqlite().await;
    let silent = std::os::unix::net::UnixStream::connect(kennel.socket()).expect("it listens");
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["sleep"])).await);
    let stream = must("stream", client.events_after(&run.run_id, 0).await);
    let began = Instant::now();
    let status = kennel.terminate(SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(0), "{}", kennel.log());
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    drop((silent, stream));
}
