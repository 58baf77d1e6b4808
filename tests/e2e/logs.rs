//! The log, on the server's standard error, and at a collector.

use crate::traces::{TRACE, spawn_in_trace, with};
use kennel_proto::pb;
use kennel_tests::{
    Kennel, Options, PATIENCE, RunExt, SpecExt, argv,
    collector::{Collector, Manner, Record, only},
    eventually, must, sh,
};
use serde_json::Value;

fn events(records: &[Record]) -> Vec<&str> {
    let records = records.iter().filter(|record| !record.event.is_empty());
    records.map(|record| record.event.as_str()).collect()
}

fn ended(records: &[Record]) -> bool {
    events(records).contains(&"kennel.run.ended")
        && records.iter().any(|record| record.body == "run ended")
}

// promise: M-19, M-20
#[tokio::test(flavor = "multi_thread")]
async fn run_events_are_emitted_once_across_servers() {
    let collector = Collector::start(Manner::Willing).await;
    let kennel = Kennel::start(with(&collector, Options::default())).await;
    let mut client = kennel.client().await;
    let spec = sh("read x; exit 3").open_input();
    let run = spawn_in_trace(&mut client, spec, true).await;
    let begun = |records: &[Record]| events(records).len() >= 2;
    collector.records_of(&run.run_id, begun).await;
    must("pause", client.pause(&run.run_id).await);
    must("resume", client.resume(&run.run_id).await);
    let paused = |records: &[Record]| events(records).contains(&"kennel.run.resumed");
    collector.records_of(&run.run_id, paused).await;
    kennel.kill_server();
    let mut client = kennel.client().await;
    must("input", client.type_in(&run.run_id, "go\n").await);
    must("end", client.ended(&run.run_id).await);

    let records = collector.records_of(&run.run_id, ended).await;
    let mut emitted = events(&records);
    // Tree and streams end in any order.
    emitted[6..].sort_unstable();
    assert_eq!(
        emitted,
        [
            "kennel.run.recorded",
            "kennel.run.started",
            "kennel.run.paused",
            "kennel.run.resumed",
            "kennel.run.recovered",
            "kennel.run.leader_exited",
            "kennel.run.ended",
            "kennel.run.streams_closed",
            "kennel.run.tree_ended",
        ]
    );
    let spans = collector
        .trace(TRACE, |spans| spans.iter().any(|span| span.name == "run"))
        .await;
    let whole = only(&spans, "run");
    for record in &records {
        assert_eq!(record.trace, TRACE, "{record:#?}");
        assert_eq!(record.span, whole.id, "{record:#?}");
    }
    let of = |name: &str| {
        let is = |record: &&Record| record.event == name || record.body == name;
        records.iter().find(is).expect(name)
    };
    let end = of("kennel.run.ended");
    assert_eq!(end.severity, "INFO");
    assert_eq!(end.attribute("kennel.run.end_reason"), Some("exited"));
    assert_eq!(end.attribute("kennel.run.outcome"), Some("failed"));
    assert_eq!(end.attribute("process.exit.code"), Some("3"));
    let pid = run.attempt().pid.to_string();
    for name in [
        "kennel.run.started",
        "kennel.run.recovered",
        "kennel.run.ended",
    ] {
        assert_eq!(
            of(name).attribute("process.pid"),
            Some(pid.as_str()),
            "{name}"
        );
    }
    assert!(whole.start <= of("kennel.run.started").at);
    assert_eq!(of("run ended").severity, "INFO");
    // Each line on standard error names run and trace once.
    for line in lines_of(&kennel, &run.run_id).await {
        for mark in [
            format!(" run_id={}", run.run_id),
            format!(" trace_id={TRACE}"),
        ] {
            assert_eq!(line.matches(&mark).count(), 1, "{mark} in {line}");
        }
    }
}

/// Returns the lines about a run on standard error.
async fn lines_of(kennel: &Kennel, run: &str) -> Vec<String> {
    eventually("the end is logged", PATIENCE, || {
        let log = kennel.log();
        let lines = log.lines().filter(|line| line.contains(run));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        Some(lines).filter(|lines| lines.iter().any(|line| line.contains("run ended")))
    })
    .await
}

/// Asserts that each line about a run, at the level of operators, names it and its trace, and returns their number.
fn assert_run_and_trace_are_named(lines: &[String], run: &str) -> usize {
    let lines = lines.iter().map(|line| serde_json::from_str(line));
    let lines: Vec<Value> = lines.map(|line| must("a line", line)).collect();
    let details = |line: &&Value| line["level"] == "DEBUG" || line["level"] == "TRACE";
    let shown: Vec<_> = lines.iter().filter(|line| !details(line)).collect();
    for line in &shown {
        assert_eq!(line["run_id"], run, "{line}");
        assert_eq!(line["trace_id"], TRACE, "{line}");
        assert_eq!(line["level"], "INFO", "{line}");
        assert!(line["timestamp"].is_string(), "{line}");
        assert!(line["target"].is_string(), "{line}");
    }
    shown.len()
}

/// Whatever is logged, it contains none of a client's private data: arguments, environment, input and output.
// promise: M-20, M-21
#[tokio::test(flavor = "multi_thread")]
async fn no_line_has_private_values_of_clients() {
    let collector = Collector::start(Manner::Willing).await;
    let mut options = with(&collector, Options::default());
    options
        .env
        .push(("KENNEL_LOG".to_owned(), "trace".to_owned()));
    options.words = vec!["--log-format", "json"];
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let script = "read x; echo \"out-$x\"; echo \"err-$TOKEN\" >&2; exit 3";
    let spec = argv(&["sh", "-c", script, "arg-s3cret"])
        .open_input()
        .env("TOKEN", "env-s3cret");
    let run = spawn_in_trace(&mut client, spec, true).await;
    must("input", client.type_in(&run.run_id, "input-s3cret\n").await);
    must("end", client.ended(&run.run_id).await);
    // The failure of a missing command is reported in detail.
    let missing = argv(&["/no/such/program", "arg-s3cret"]);
    let missing = client.spawn(missing).await.expect_err("it is not there");
    assert_eq!(missing.code(), tonic::Code::NotFound);
    let request = pb::ListRunsRequest::default();
    must("list", client.process.list_runs(request).await);
    let lines = lines_of(&kennel, &run.run_id).await;
    assert!(assert_run_and_trace_are_named(&lines, &run.run_id) >= 1);
    // A killed server loses unsent records.
    collector.records_of(&run.run_id, ended).await;
    // The next server reads the run's row and journal again.
    kennel.kill_server();
    let mut client = kennel.client().await;
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert!(heard.text().contains("out-input-s3cret"));

    let log = kennel.log();
    assert!(log.contains(r#""level":"TRACE""#), "{log}");
    let leaks: Vec<&str> = log.lines().filter(|line| line.contains("s3cret")).collect();
    assert_eq!(leaks, Vec::<&str>::new());
    let exported = collector.records();
    assert!(ended(&exported));
    let exported = exported
        .iter()
        .filter(|r| format!("{r:?}").contains("s3cret"));
    assert_eq!(exported.count(), 0);
}

// promise: M-20
#[tokio::test(flavor = "multi_thread")]
async fn log_levels_are_set_per_module() {
    let mut options = Options::default();
    let filter = "error,kennel_supervisor::run=info".to_owned();
    options.env.push(("KENNEL_LOG".to_owned(), filter));
    options.words = vec!["--log-format", "json"];
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    // Without recorded spans, the trace is the caller's.
    let run = spawn_in_trace(&mut client, sh("exit 3"), true).await;
    must("end", client.ended(&run.run_id).await);
    let lines = lines_of(&kennel, &run.run_id).await;
    assert!(assert_run_and_trace_are_named(&lines, &run.run_id) >= 1);
    let log = kennel.log();
    let lines = log.lines().filter_map(|l| serde_json::from_str(l).ok());
    let lines: Vec<Value> = lines.collect();
    let others = lines.iter().filter(|line| {
        let target = line["target"].as_str().unwrap_or_default();
        line["level"] != "ERROR" && !target.starts_with("kennel_supervisor::run")
    });
    assert_eq!(others.count(), 0, "{log}");
}
