//! Clients in other languages, from stubs that their own tools generate from `proto/`, against the real binary.

mod conformance;
mod kubernetes;
mod pages;
mod retry;
mod typescript;

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, argv, eventually, must, programs, sh,
    shell::{run_to_end, text},
};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Generating stubs and importing grpc takes seconds on a busy machine.
const CLIENT_PATIENCE: Duration = Duration::from_mins(2);

/// Returns the path of a program of these tests.
fn script(name: &str) -> PathBuf {
    programs::repository()
        .join("tests/clients/python")
        .join(name)
}

/// Makes stubs for Python, by its own tools.
async fn stubs(kennel: &Kennel) -> PathBuf {
    let stubs = kennel.scratch().join("stubs");
    std::fs::create_dir(&stubs).expect("a directory can be made");
    let repository = programs::repository();
    let mut generate = Command::new(programs::python());
    generate
        .args(["-m", "grpc_tools.protoc"])
        .arg(format!("-I{}", repository.join("proto").display()))
        .arg(format!("--python_out={}", stubs.display()))
        .arg(format!("--grpc_python_out={}", stubs.display()));
    let files =
        std::fs::read_dir(repository.join("proto/kennel/v1")).expect("the contract is there");
    for file in files {
        let name = file.expect("an entry").file_name();
        if name.to_string_lossy().ends_with(".proto") {
            generate.arg(format!("kennel/v1/{}", name.to_string_lossy()));
        }
    }
    let generated = run_to_end(generate, CLIENT_PATIENCE).await;
    assert!(
        generated.status.success(),
        "{}",
        String::from_utf8_lossy(&generated.stderr)
    );
    stubs
}

// promise: O-10
#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_spawns_streams_resumes_and_aborts() {
    let kennel = Kennel::on_sqlite().await;
    let stubs = stubs(&kennel).await;
    let mut client = Command::new(programs::python());
    client
        .arg(script("client.py"))
        .arg(kennel.address())
        .env("PYTHONPATH", &stubs);
    let output = run_to_end(client, CLIENT_PATIENCE).await;
    assert!(
        output.status.success(),
        "{}\n{}",
        text(&output),
        String::from_utf8_lossy(&output.stderr)
    );

    let run_id = text(&output)
        .lines()
        .last()
        .expect("it prints the run's id")
        .to_owned();
    let mut client = kennel.client().await;
    let run = must("get", client.get(&run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert_eq!(
        must("list", client.list_all(pb::RunFilter::default(), 0).await).len(),
        2
    );
    Footprint::of_id(&run_id).assert_nothing_left();
}

/// A receiver whose messages are written by another project. It ends with its input.
struct Receiver {
    process: Child,
    endpoint: String,
    spans: PathBuf,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // The receiver exits on EOF; its status adds nothing to a test failure.
        let _ = self.process.wait();
    }
}

impl Receiver {
    fn start(dir: &Path) -> Self {
        let spans = dir.join("spans");
        let mut command = Command::new(programs::python());
        command.arg(script("receiver.py")).arg(&spans);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = must("a receiver", command.spawn());
        let mut port = String::new();
        let output = process.stdout.take().expect("it is a pipe");
        must("its port", BufReader::new(output).read_line(&mut port));
        Self {
            process,
            endpoint: format!("http://127.0.0.1:{}", port.trim()),
            spans,
        }
    }

    /// Returns all spans so far.
    fn spans(&self) -> Vec<Value> {
        let lines = fs::read_to_string(&self.spans).unwrap_or_default();
        // The last line may be partial.
        let spans = lines
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        spans.collect()
    }

    /// Whether there is a line for each of these names.
    fn has_received(&self, what: &str, names: &[&str]) -> bool {
        let lines = self.spans();
        let mut names = names.iter();
        names.all(|name| lines.iter().any(|line| line[what] == *name))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_caller_command_and_run_share_a_trace() {
    let dir = must("a directory", tempfile::tempdir());
    let receiver = Receiver::start(dir.path());
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint.clone());
    let kennel = Kennel::start(Options {
        env: vec![
            (endpoint.0.to_owned(), endpoint.1.clone()),
            ("OTEL_BSP_SCHEDULE_DELAY".to_owned(), "50".to_owned()),
            ("OTEL_BLRP_SCHEDULE_DELAY".to_owned(), "50".to_owned()),
        ],
        ..Options::default()
    })
    .await;
    let mut caller = Command::new(programs::python());
    caller
        .arg(script("traced.py"))
        .args(["call", &kennel.address()])
        .env("PYTHONPATH", stubs(&kennel).await)
        .env(endpoint.0, &endpoint.1);
    let output = run_to_end(caller, CLIENT_PATIENCE).await;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let trace = text(&output).trim().to_owned();

    let has_received = eventually("the whole trace is there", PATIENCE, || {
        let spans = receiver.spans().into_iter();
        let spans: Vec<Value> = spans
            .filter(|span| span["trace"] == trace.as_str())
            .collect();
        let is_there =
            |what: &str, name: &str| spans.iter().any(|has_received| has_received[what] == name);
        (is_there("name", "run") && is_there("event", "kennel.run.ended")).then_some(spans)
    })
    .await;
    let of = |name: &str| {
        let named: Vec<&Value> = has_received
            .iter()
            .filter(|span| span["name"] == name)
            .collect();
        assert_eq!(named.len(), 1, "{name}: {has_received:#?}");
        named[0]
    };
    let chain = ["turn", "kennel.v1.ProcessService/Spawn", "run", "work"];
    let services = ["caller", "kennel", "kennel", "command"];
    for (name, service) in chain.iter().zip(services) {
        assert_eq!(of(name)["service"], service, "{name}");
    }
    for pair in chain.windows(2) {
        assert_eq!(of(pair[1])["parent"], of(pair[0])["id"], "{pair:?}");
    }
    for name in [
        "run.admit",
        "run.prepare",
        "run.commit",
        "run.exec",
        "run.reap",
        "run.drain",
    ] {
        assert_eq!(of(name)["parent"], of("run")["id"], "{name}");
    }
    for event in has_received
        .iter()
        .filter(|has_received| has_received["event"].is_string())
    {
        assert_eq!(event["id"], of("run")["id"], "{event}");
    }
    let time = |name: &str, which: &str| of(name)[which].as_u64().expect("a time");
    assert!(time("run.exec", "start") <= time("work", "start"));
    assert!(time("work", "end") <= time("run", "end"));
}

/// Waits until at least one item of each kind has come.
async fn all_has_come(receiver: &Receiver) {
    eventually("all events have come", PATIENCE, || {
        let spans = [
            "run",
            "run.stop.step",
            "run.attempt",
            "run.recover",
            "run.pause",
        ];
        let metrics = [
            "kennel.orphan.count",
            "kennel.output.io",
            "kennel.recovery.runs",
            "kennel.run.duration",
            "kennel.run.ended",
            "kennel.stop.duration",
            "kennel.store.operation.duration",
            "kennel.telemetry.exported",
            "rpc.server.call.duration",
        ];
        let events = [
            "kennel.run.recorded",
            "kennel.run.started",
            "kennel.run.paused",
            "kennel.run.stopping",
            "kennel.run.leader_exited",
            "kennel.run.tree_ended",
            "kennel.run.attempt_ended",
            "kennel.run.recovered",
            "kennel.run.ended",
        ];
        let whole = receiver.has_received("name", &spans)
            && receiver.has_received("metric", &metrics)
            && receiver.has_received("event", &events);
        whole.then_some(())
    })
    .await;
}

/// Names are Kennel's own, or those of the stated conventions, as another project has recorded them.
// promise: M-17
#[tokio::test(flavor = "multi_thread")]
async fn telemetry_names_follow_the_conventions() {
    let dir = must("a directory", tempfile::tempdir());
    let receiver = Receiver::start(dir.path());
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "200"),
        ("K8S_POD_NAME", "pod"),
        ("K8S_POD_UID", "uid"),
        ("K8S_NAMESPACE_NAME", "namespace"),
        ("K8S_NODE_NAME", "node"),
        ("K8S_CONTAINER_NAME", "container"),
    ];
    let kennel = Kennel::start(Options {
        env: env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        words: vec!["--retain-bytes", "1G"],
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let escalates = sh("trap '' TERM; echo up; while :; do sleep 0.05; done");
    let run = must(
        "spawn",
        client
            .spawn(escalates.grace(Duration::from_millis(50)))
            .await,
    );
    client.hear_up(&run.run_id).await;
    must("pause", client.pause(&run.run_id).await);
    must("resume", client.resume(&run.run_id).await);
    must("abort", client.abort(&run.run_id).await);
    let fails = sh("sleep 1000 & exit 3").restart(pb::RestartPolicy {
        mode: pb::RestartMode::OnFailure.into(),
        delay: Duration::from_millis(10).try_into().ok(),
        max_restarts: Some(1),
        ..pb::RestartPolicy::default()
    });
    let run = must("spawn", client.spawn(fails).await);
    must("end", client.ended(&run.run_id).await);
    client.get("nonsense").await.expect_err("it is no run id");
    let lives = must("spawn", client.spawn(argv(&["sleep", "1000"])).await);
    // A killed server loses unsent telemetry, and the next one sees no pause, second attempt or output.
    eventually("the first server's telemetry", PATIENCE, || {
        let whole = receiver.has_received("name", &["run.attempt", "run.stop.step", "run.pause"])
            && receiver.has_received("metric", &["kennel.output.io"])
            && receiver.has_received("event", &["kennel.run.paused", "kennel.run.attempt_ended"]);
        whole.then_some(())
    })
    .await;
    kennel.kill_server();
    let mut client = kennel.client().await;
    must("audit", client.audit().await);
    must("abort", client.abort(&lives.run_id).await);
    must("fence", client.abort(&kennel_tests::new_run_id()).await);
    all_has_come(&receiver).await;
    let mut compare = Command::new(programs::python());
    compare.arg(script("conventions.py")).arg(&receiver.spans);
    let compared = run_to_end(compare, CLIENT_PATIENCE).await;
    let errors = String::from_utf8_lossy(&compared.stderr).into_owned();
    assert!(compared.status.success(), "{}{errors}", text(&compared));
    println!("{}", text(&compared));
    for line in receiver.spans() {
        assert_eq!(
            line["schemas"][0], "https://opentelemetry.io/schemas/1.42.0",
            "{line}"
        );
    }
}
