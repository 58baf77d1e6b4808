//! Readiness of a run: by a line, a port, an HTTP server, across deaths of the server and in restarts.

use crate::liveness::Server;
use kennel_proto::pb::{
    self, RestartMode, RunState, WaitCondition, end_reason::Reason, line_pattern::Pattern,
    readiness::Probe,
};
use kennel_tests::{
    Client, Kennel, PATIENCE, Postgres, RunExt, SpecExt, client::complaint, client::duration,
    eventually, eventually_async, must, postgres, programs, sh, shell::run_to_end,
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

fn tcp(port: u16) -> Probe {
    Probe::Tcp(pb::TcpProbe {
        port: u32::from(port),
    })
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

#[tokio::test(flavor = "multi_thread")]
async fn run_is_ready_at_its_line() {
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
}

#[tokio::test(flavor = "multi_thread")]
async fn run_that_ends_unready_never_becomes_ready() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let spec = with(sh("sleep 0.3; exit 3"), line("never"), None);
    let run = must("spawn", client.spawn(spec).await).run_id;
    let (run, reached) = must("wait", client.wait(&run, WaitCondition::Ready).await);
    assert!(!reached);
    assert_eq!(run.code(), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_not_ready_in_time_is_stopped() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let limit = Some(Duration::from_millis(500));
    let spec = with(sh("sleep 1000 & echo up; sleep 1000"), line("never"), limit);
    let run = must("spawn", client.spawn(spec).await).run_id;
    let ended = must("wait", client.ended(&run).await);
    assert_eq!(ended.state(), RunState::Failed);
    let reason = ended.end_reason.clone().and_then(|end| end.reason);
    assert!(matches!(reason, Some(Reason::NotReady(_))), "{ended:?}");
    kennel_tests::Footprint::of_id(&run).assert_nothing_left();
    let why = run_to_end(kennel.cli(&["why", &run]), PATIENCE).await;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(
        why.contains("not ready within its start timeout (500ms)"),
        "{why}"
    );
}

/// A run that becomes ready and dies is no crash loop; one that never becomes ready is.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_begins_the_restart_count_anew() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let policy = || pb::RestartPolicy {
        mode: RestartMode::Always.into(),
        delay: Some(duration(Duration::from_millis(10))),
        max_restarts: Some(2),
        min_uptime: Some(duration(Duration::from_millis(1))),
        ..pb::RestartPolicy::default()
    };
    let speaks = with(sh("echo ready; exit 1"), line("^ready$"), None).restart(policy());
    let speaks = must("spawn", client.spawn(speaks).await).run_id;
    let limit = Some(Duration::from_millis(300));
    let silent = with(sh("sleep 1000"), line("^ready$"), limit).restart(policy());
    let silent = must("spawn", client.spawn(silent).await).run_id;
    let ended = must("wait", client.ended(&silent).await);
    let reason = ended.end_reason.clone().and_then(|end| end.reason);
    assert!(
        matches!(reason, Some(Reason::RestartsExhausted(_))),
        "{ended:?}"
    );
    assert_eq!(ended.attempt().number, 3);
    let seen = eventually_async("six attempts", PATIENCE, async || {
        let run = client.clone().get(&speaks).await.ok()?;
        (run.attempt().number >= 6).then_some(run)
    });
    let seen = seen.await;
    assert!(!seen.state().as_str_name().contains("FAILED"), "{seen:?}");
    must("abort", client.abort(&speaks).await);
}

/// The line is written while no server runs, and before and after: each is found once.
#[tokio::test(flavor = "multi_thread")]
async fn ready_line_survives_server_deaths() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut runs = Vec::new();
    for at in 0..4 {
        let script = format!(
            "echo up; sleep {}; echo ready; sleep 300",
            0.4 * f64::from(at)
        );
        let run = must(
            "spawn",
            client.spawn(with(sh(&script), line("^ready$"), None)).await,
        );
        runs.push(run.run_id);
    }
    for _ in 0..3 {
        eventually("a server", PATIENCE, || kennel.server()).await;
        kennel.kill_server();
        client = kennel.client().await;
    }
    for run in &runs {
        ready(&mut client, run).await;
        must("abort", client.abort(run).await);
        assert_eq!(ready_events(&mut client, run).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_continues_at_the_next_server() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let port = free_port();
    let spec = with(sh("echo up; sleep 300"), tcp(port), None);
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    kennel.kill_server();
    client = kennel.client().await;
    assert!(must("get", client.get(&run).await).ready_time.is_none());
    let _listener = TcpListener::bind(("127.0.0.1", port)).expect("it is free");
    assert_eq!(ready(&mut client, &run).await.ready_by, "tcp");
    must("abort", client.abort(&run).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn start_timeout_counts_over_server_deaths() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let spec = with(
        sh("echo up; sleep 300"),
        line("never"),
        Some(Duration::from_secs(2)),
    );
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    kennel.kill_server();
    client = kennel.client().await;
    let ended = must("wait", client.ended(&run).await);
    assert_eq!(ended.reason(), "not_ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_server_of_node_is_probed() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let port = free_port();
    let script = format!(
        "let n = 0; require('http').createServer((q, r) => {{ r.statusCode = ++n < 3 ? 503 : 204; \
         console.log(q.method, q.url, r.statusCode); r.end(); }}).listen({port}, '127.0.0.1')"
    );
    let node = kennel_tests::argv(&["/usr/bin/env", "node", "-e", &script]);
    let probe = Probe::Http(pb::HttpProbe {
        port: u32::from(port),
        path: "/health?a=b".into(),
    });
    let run = must("spawn", client.spawn(with(node, probe, None)).await).run_id;
    assert_eq!(ready(&mut client, &run).await.ready_by, "http");
    must("abort", client.abort(&run).await);
    let heard = must("hear", client.hear_all(&run, 0).await);
    let asked: Vec<String> = heard.text().lines().map(str::to_owned).collect();
    assert_eq!(
        asked.last().map(String::as_str),
        Some("GET /health?a=b 204")
    );
    assert_eq!(asked.len(), 3, "no probe follows readiness: {asked:?}");
}

/// Not after an interval: the server before it may have died just before it would have asked.
#[tokio::test(flavor = "multi_thread")]
async fn next_server_asks_at_once() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let server = Server::start();
    server.says(503);
    let hour = Some(duration(Duration::from_hours(1)));
    let mut spec = with(sh("exec sleep 1000"), Probe::Http(server.probe()), None);
    spec.readiness.as_mut().expect("it has one").interval = hour;
    let run = must("spawn", client.spawn(spec).await).run_id;
    server.is_asked_in_all(1).await;
    server.says(200);
    kennel.kill_server();
    client = kennel.client().await;
    assert_eq!(ready(&mut client, &run).await.ready_by, "http");
    must("abort", client.abort(&run).await);
}

/// A server of grpcio, without any code of Kennel.
const GRPC_SERVER: &str = r#"
import concurrent.futures, grpc, sys
serving = False
def check(request, context):
    return b"\x08\x01" if serving else b"\x08\x02"
handler = {"Check": grpc.unary_unary_rpc_method_handler(check)}
server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("grpc.health.v1.Health", handler)])
port = server.add_insecure_port("127.0.0.1:" + sys.argv[1])
server.start()
print("up", flush=True)
for line in sys.stdin:
    serving = line == "serve\n"
    print("done", line, end="", flush=True)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn health_of_python_grpc_server_is_probed() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let port = free_port();
    let python = programs::python().display().to_string();
    let server = [&python, "-c", GRPC_SERVER, &port.to_string()].map(str::to_owned);
    let probe = pb::GrpcProbe {
        port: port.into(),
        service: String::new(),
    };
    let mut spec = with(
        kennel_tests::argv(&server.each_ref().map(String::as_str)).open_input(),
        Probe::Grpc(probe.clone()),
        None,
    );
    spec.liveness = Some(pb::Liveness {
        probe: Some(pb::liveness::Probe::Grpc(probe)),
        interval: Some(duration(Duration::from_millis(50))),
        ..pb::Liveness::default()
    });
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    let unready = must("get", client.get(&run).await);
    assert!(unready.ready_time.is_none(), "it reports NOT_SERVING");
    must("write", client.write(&run, "1", None, b"serve\n").await);
    assert_eq!(ready(&mut client, &run).await.ready_by, "grpc");
    kennel.kill_server();
    client = kennel.client().await;
    must("write", client.write(&run, "2", None, b"rest\n").await);
    let ended = must("wait", client.ended(&run).await);
    assert_eq!(ended.reason(), "not_live");
}

/// Lines of a terminal are tested as text, without its sequences; JSON by its value.
#[tokio::test(flavor = "multi_thread")]
async fn lines_of_terminals_and_json_are_read() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
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
        assert_eq!(ready(&mut client, &run).await.ready_by, "readiness");
        must("abort", client.abort(&run).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_readiness_are_named() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = with(sh("true"), tcp(0), Some(Duration::ZERO));
    if let Some(readiness) = &mut spec.readiness {
        readiness.interval = Some(duration(Duration::from_millis(1)));
    }
    let status = client.spawn(spec).await.expect_err("three faults");
    let fields = complaint(&status).fields;
    assert_eq!(
        fields,
        [
            "spec.readiness.interval",
            "spec.readiness.start_timeout",
            "spec.readiness.tcp.port"
        ]
    );
    let spec = with(sh("true"), line("("), None);
    let status = client.spawn(spec).await.expect_err("no expression");
    assert_eq!(complaint(&status).fields, ["spec.readiness.line.regex"]);
}

/// A real Postgres, by its line and by its port.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_ready_by_line_and_port() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    // The cluster of the test's own server, which then has ended, is started as a run.
    let mut cluster = Postgres::start().await;
    cluster.crash().await;
    let port = free_port();
    let server = postgres::binaries().join("postgres");
    let words = [
        server.to_string_lossy().into_owned(),
        "-D".into(),
        cluster.data().to_string_lossy().into_owned(),
        "-h".into(),
        "127.0.0.1".into(),
        "-p".into(),
        port.to_string(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = postgres::as_its_user(&words);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for probe in [
        line("database system is ready to accept connections"),
        tcp(port),
    ] {
        let spec = with(
            kennel_tests::argv(&words),
            probe,
            Some(Duration::from_mins(1)),
        );
        let mut spec = spec;
        spec.stop.get_or_insert_default().signal = "SIGINT".into();
        let run = must("spawn", client.spawn(spec).await).run_id;
        ready(&mut client, &run).await;
        must("abort", client.abort(&run).await);
    }
}

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
