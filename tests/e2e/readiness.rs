//! Readiness of a run, seen by calls and at the command line. Across deaths of the server: `rules_in_bad_weather`; its
//! limits, and its effect on restarts: `supervisor/tests/runs/rules.rs`.

use crate::liveness::Server;
use kennel_proto::pb::{self, RunState, WaitCondition, line_pattern::Pattern, readiness::Probe};
use kennel_tests::{
    Client, Kennel, PATIENCE, SpecExt, client::duration, eventually_async, must, sh,
    shell::run_to_end,
};
use std::{
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

fn line(text: &str) -> Probe {
    Probe::Line(pb::LinePattern {
        pattern: Some(Pattern::Regex(text.to_owned())),
    })
}

pub(crate) fn by_line(spec: pb::RunSpec, text: &str) -> pb::RunSpec {
    with(spec, line(text), None)
}

pub(crate) fn with(
    mut spec: pb::RunSpec,
    probe: Probe,
    start_timeout: Option<Duration>,
) -> pb::RunSpec {
    spec.readiness = Some(Box::new(pb::Readiness {
        probe: Some(probe),
        interval: Some(duration(Duration::from_millis(50))),
        start_timeout: start_timeout.map(duration),
        ..pb::Readiness::default()
    }));
    spec
}

async fn ready(client: &mut Client, run_id: &str) -> pb::Run {
    let (run, reached) = must("wait", client.wait(run_id, WaitCondition::Ready).await);
    assert!(reached, "{run:?}");
    run
}

/// Returns a port that is free, another one at each call, and below those that the kernel gives to others meanwhile.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + u16::try_from(std::process::id() % 20_000).expect("it is small");
    let ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    let mut ports = ports.take(1000);
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("a port")
}

async fn ready_events(client: &mut Client, run_id: &str) -> usize {
    let heard = must("hear", client.hear_all(run_id, 0).await);
    let stations = heard.stations();
    stations.iter().filter(|name| **name == "ready").count()
}

// promise: RW-7, RW-7a, RW-106
#[tokio::test(flavor = "multi_thread")]
async fn run_is_ready_by_line_or_server() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = "echo up; read x; printf 'now re'; sleep 0.2; echo ady >&1; sleep 300";
    let spec = with(sh(script).open_input(), line("^now ready$"), None);
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    let before = must("get", client.get(&run).await);
    assert!(before.ready_time.is_none());
    must("write", client.write(&run, "1", None, b"go\n").await);
    let run_seen = ready(&mut client, &run).await;
    assert_eq!(run_seen.state(), RunState::Running);
    assert_eq!(run_seen.ready_by, "readiness");
    // A run without readiness is ready once it runs.
    let plain = must("spawn", client.spawn(sh("sleep 300")).await).run_id;
    assert!(ready(&mut client, &plain).await.ready_time.is_none());
    for run in [&run, &plain] {
        must("abort", client.abort(run).await);
    }
    assert_eq!(ready_events(&mut client, &run).await, 1);
    let (_, reached) = must("wait", client.wait(&run, WaitCondition::Ready).await);
    assert!(reached, "it was ready");
    assert_server_is_probed(&mut client).await;
    assert_lines_of_terminals_and_json_are_read(&mut client).await;
}

async fn assert_server_is_probed(client: &mut Client) {
    let server = Server::start();
    server.says(503);
    let spec = with(
        server.sh("exec sleep 1000"),
        Probe::Http(server.probe()),
        None,
    );
    let run = must("spawn", client.spawn(spec).await).run_id;
    server.is_asked_in_all(2).await;
    let unready = must("get", client.get(&run).await);
    assert!(unready.ready_time.is_none());
    server.says(204);
    assert_eq!(ready(client, &run).await.ready_by, "http");
    must("abort", client.abort(&run).await);
}

/// A command that fails because its port is taken is not ready by the server that has it.
// promise: RW-160
#[tokio::test(flavor = "multi_thread")]
async fn listener_of_another_process_makes_no_run_ready() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let server = Server::start();
    let tcp = Probe::Tcp(pb::TcpProbe {
        port: server.probe().port,
    });
    for probe in [tcp, Probe::Http(server.probe())] {
        let spec = with(sh("echo up; exec sleep 1000"), probe.clone(), None);
        let run = must("spawn", client.spawn(spec).await).run_id;
        let warned = "is no process of this run";
        let has_warned = || async {
            let events = kennel.cli(&["events", &run]);
            let output = run_to_end(events, PATIENCE).await;
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            shown.contains(warned).then_some(())
        };
        eventually_async("a warning", PATIENCE, has_warned).await;
        let unready = must("get", client.get(&run).await);
        assert!(unready.ready_time.is_none(), "{unready:?}");
        must("abort", client.abort(&run).await);
        // An inherited listener is accepted.
        let spec = with(server.sh("exec sleep 1000"), probe, None);
        let run = must("spawn", client.spawn(spec).await).run_id;
        ready(&mut client, &run).await;
        must("abort", client.abort(&run).await);
    }
}

/// Lines of a terminal are tested as text, without its sequences; JSON by its value.
async fn assert_lines_of_terminals_and_json_are_read(client: &mut Client) {
    let shown = "printf '\\033[1;32mready\\033[0m> \\033]0;title\\007\\n'; exec sleep 1000";
    let on_terminal = sh(shown).on_terminal(pb::Terminal::default());
    let written = r#"echo '{"a":{"state":"no"}}'; echo '{"a":{"state":"up"}}'; exec sleep 1000"#;
    let json = Probe::Line(pb::LinePattern {
        pattern: Some(Pattern::Json(pb::JsonPattern {
            pointer: "/a/state".into(),
            equals: "\"up\"".into(),
            ..pb::JsonPattern::default()
        })),
    });
    for spec in [
        by_line(on_terminal, "^ready> $"),
        with(sh(written), json, None),
    ] {
        let run = must("spawn", client.spawn(spec).await).run_id;
        assert_eq!(ready(client, &run).await.ready_by, "readiness");
        must("abort", client.abort(&run).await);
    }
}

// promise: RW-14
#[tokio::test(flavor = "multi_thread")]
async fn command_line_shows_and_awaits_readiness() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let output = async |words: &[&str]| {
        let output = run_to_end(kennel.cli(words), PATIENCE).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let words = [
        "spawn",
        "--ready-line",
        "^up$",
        "--start-timeout",
        "30s",
        "--",
        "sh",
        "-c",
        "sleep 0.3; echo up; sleep 300",
    ];
    let run = output(&words).await.trim().to_owned();
    output(&["wait", "--for", "ready", "--timeout", "20s", &run]).await;
    assert!(output(&["get", &run]).await.contains("ready by"));
    let listed = output(&["ps", "-o", "wide"]).await;
    let mut lines = listed.lines();
    assert!(
        lines
            .next()
            .is_some_and(|heading| heading.contains("READY"))
    );
    assert!(
        lines.next().is_some_and(|row| row.contains(" yes ")),
        "{listed}"
    );
    assert!(output(&["why", &run]).await.contains("ready since"));
    must("abort", client.abort(&run).await);
}
