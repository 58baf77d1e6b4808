//! Spans at a collector: one trace from the caller through the run, across any deaths of the server.

use kennel_proto::pb::{self, RunKind, RunState};
use kennel_tests::{
    Client, Heard, Kennel, Options, PATIENCE, RunExt, SpecExt, argv,
    collector::{Collector, Manner, SpanRow, only},
    must, sh,
    shell::{run_to_end, text},
    within,
};
use std::{collections::BTreeMap, time::Duration};
use tonic::Request;

pub(crate) const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
const SPAWN: &str = "kennel.v1.ProcessService/Spawn";
const SERVER: i32 = 2;
const INTERNAL: i32 = 1;

pub(crate) fn with(collector: &Collector, options: Options) -> Options {
    Options {
        env: [collector.env(), options.env].concat(),
        ..options
    }
}

/// Returns the request of a caller within a trace.
pub(crate) fn in_trace(spec: pb::RunSpec, sampled: bool) -> Request<pb::SpawnRequest> {
    let mut request = Request::new(pb::SpawnRequest {
        run_id: String::new(),
        validate_only: false,
        spec: Some(spec),
        ..pb::SpawnRequest::default()
    });
    let parent = format!("00-{TRACE}-{CALLER}-{:02x}", u8::from(sampled));
    let metadata = request.metadata_mut();
    metadata.insert("traceparent", parent.parse().expect("ASCII"));
    metadata.insert("tracestate", "vendor=1".parse().expect("ASCII"));
    metadata.insert("baggage", "tenant=blue,secret=s3".parse().expect("ASCII"));
    request
}

pub(crate) async fn spawn_in_trace(
    client: &mut Client,
    spec: pb::RunSpec,
    sampled: bool,
) -> pb::Run {
    let answer = client.process.spawn(in_trace(spec, sampled)).await;
    must("spawn", answer).into_inner().run.expect("a run")
}

/// Returns the first line that a command has written, once it has.
async fn first_line(client: &mut Client, run: &str) -> String {
    let mut stream = must("stream", client.events_after(run, 0).await);
    let mut heard = Heard::default();
    while !heard.text().contains('\n') {
        let message = must("stream", within("a line", PATIENCE, stream.message()).await);
        heard.take(message.expect("it does not end before"));
    }
    heard.text().lines().next().expect("a line").to_owned()
}

fn has(spans: &[SpanRow], name: &str) -> bool {
    spans.iter().any(|span| span.name == name)
}

/// Prints the environment that Kennel has set.
const SAYS: &str =
    "echo \"$TRACEPARENT|$TRACESTATE|$BAGGAGE\"; trap '' TERM; while :; do sleep 0.05; done";

// promise: M-1
#[tokio::test(flavor = "multi_thread")]
async fn one_trace_spans_caller_to_last_signal() {
    let collector = Collector::start(Manner::Willing).await;
    let mut options = with(&collector, Options::default());
    options.words = vec!["--trace-baggage", "tenant"];
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let spec = sh(SAYS).grace(Duration::from_millis(200));
    let run = spawn_in_trace(&mut client, spec, true).await;
    let said = first_line(&mut client, &run.run_id).await;
    must("pause", client.pause(&run.run_id).await);
    must("resume", client.resume(&run.run_id).await);
    let ended = must("abort", client.abort(&run.run_id).await);
    assert_eq!(ended.state(), RunState::Cancelled);

    let spans = collector.trace(TRACE, |spans| has(spans, "run")).await;
    let call = only(&spans, SPAWN);
    assert_eq!((call.parent.as_str(), call.kind), (CALLER, SERVER));
    assert_eq!(call.attribute("rpc.system.name"), Some("grpc"));
    assert_eq!(call.attribute("rpc.method"), Some(SPAWN));
    assert_eq!(call.attribute("rpc.response.status_code"), Some("OK"));
    assert_eq!(call.attribute("kennel.run.id"), Some(run.run_id.as_str()));
    assert_eq!(call.state, "vendor=1");
    let whole = only(&spans, "run");
    assert_eq!((&whole.parent, whole.kind), (&call.id, INTERNAL));
    assert_eq!(run.trace_parent, format!("00-{TRACE}-{}-01", call.id));

    // The command gets the run's span as parent, and only the entries to be passed on.
    let parent = format!("00-{TRACE}-{}-01", whole.id);
    assert_eq!(said, format!("{parent}|vendor=1|tenant=blue"));
    assert_eq!(
        must("get", client.get(&run.run_id).await).run_trace_parent,
        parent
    );

    let leader = run.attempt();
    for name in [
        "run.admit",
        "run.prepare",
        "run.commit",
        "run.exec",
        "run.pause",
        "run.stop",
        "run.reap",
        "run.drain",
    ] {
        let span = only(&spans, name);
        assert_eq!(span.parent, whole.id, "{name}");
        assert_eq!(span.attribute("kennel.run.id"), Some(run.run_id.as_str()));
        assert!(span.start <= span.end, "{name}");
        assert!(
            whole.start <= span.start && span.end <= whole.end,
            "{name}: {span:#?}\n{whole:#?}"
        );
    }
    let order = [
        "run.admit",
        "run.prepare",
        "run.commit",
        "run.exec",
        "run.pause",
        "run.stop",
    ];
    for pair in order.windows(2) {
        let (before, after) = (only(&spans, pair[0]), only(&spans, pair[1]));
        assert!(
            before.end <= after.end && before.start <= after.start,
            "{pair:?}"
        );
    }
    let exec = only(&spans, "run.exec");
    assert_eq!(
        exec.attribute("process.pid"),
        Some(leader.pid.to_string().as_str())
    );
    assert_eq!(exec.attribute("process.executable.name"), Some("sh"));
    assert!(
        exec.attribute("process.creation.time")
            .is_some_and(|at| at.ends_with('Z'))
    );

    check_stop(&spans);
    assert_eq!(whole.attribute("kennel.run.outcome"), Some("cancelled"));
    assert_eq!(whole.attribute("kennel.run.end_reason"), Some("aborted"));
    assert_eq!(whole.attribute("kennel.exit.signal"), Some("SIGKILL"));
    assert_eq!(whole.error, None, "the end was requested");
    // Spans omit private arguments.
    let everything = format!("{spans:?}");
    assert!(
        !everything.contains("while :"),
        "the command's text is recorded"
    );

    let resource = collector.resource();
    assert_eq!(
        resource.get("service.name").map(String::as_str),
        Some("kennel")
    );
    assert!(resource.contains_key("service.instance.id"));
    let urls: Vec<String> = collector.schema_urls().into_iter().collect();
    assert_eq!(urls, ["https://opentelemetry.io/schemas/1.42.0"]);
}

fn check_stop(spans: &[SpanRow]) {
    // SIGTERM does not suffice here: each signal round is a span under the stop.
    let stop = only(spans, "run.stop");
    assert_eq!(stop.attribute("kennel.tree.verdict"), Some("empty"));
    assert_eq!(stop.attribute("kennel.stop.escalated"), Some("true"));
    let steps: BTreeMap<u64, &SpanRow> = spans
        .iter()
        .filter(|span| span.name == "run.stop.step")
        .inspect(|span| assert_eq!(span.parent, stop.id))
        .map(|span| (span.start, span))
        .collect();
    let signals: Vec<_> = steps
        .values()
        .map(|step| step.attribute("kennel.stop.signal"))
        .collect();
    assert_eq!(signals.first(), Some(&Some("SIGTERM")), "{signals:?}");
    assert!(signals.contains(&Some("SIGKILL")), "{signals:?}");
}

// promise: M-2
#[tokio::test(flavor = "multi_thread")]
async fn spans_of_run_survive_server_death() {
    let collector = Collector::start(Manner::Willing).await;
    let kennel = Kennel::start(with(&collector, Options::default())).await;
    let instance = {
        let mut client = kennel.client().await;
        let run = spawn_in_trace(
            &mut client,
            sh("echo up; read x; exit 3").open_input(),
            true,
        )
        .await;
        let begun = collector.trace(TRACE, |spans| has(spans, "run.exec") && has(spans, SPAWN));
        let begun = begun.await;
        kennel.kill_server();
        let mut client = kennel.client().await;
        must("input", client.type_in(&run.run_id, "go\n").await);
        must("end", client.ended(&run.run_id).await);
        let spans = collector.trace(TRACE, |spans| has(spans, "run")).await;
        let whole = only(&spans, "run");
        assert_eq!(whole.parent, only(&begun, SPAWN).id);
        for name in ["run.prepare", "run.exec", "run.reap"] {
            assert_eq!(only(&spans, name).parent, whole.id, "{name}");
        }
        assert!(whole.start <= only(&spans, "run.prepare").start);
        assert_eq!(whole.attribute("process.exit.code"), Some("3"));
        assert_eq!(whole.attribute("error.type"), Some("exit_nonzero"));
        assert_eq!(whole.error.as_deref(), Some("exited"));
        let recovered = only(&spans, "run.recover");
        assert_eq!(recovered.parent, whole.id);
        collector.resource().get("service.instance.id").cloned()
    };
    let mut client = kennel.client().await;
    let node = client.server_info().await.expect("it answers").node_id;
    assert_eq!(instance, Some(node), "the same over restarts");
}

// promise: M-3
#[tokio::test(flavor = "multi_thread")]
async fn service_has_own_trace_linked_to_callers() {
    let collector = Collector::start(Manner::Willing).await;
    let kennel = Kennel::start(with(&collector, Options::default())).await;
    let mut client = kennel.client().await;
    let mut spec = sh("echo $TRACEPARENT$TRACESTATE");
    spec.kind = RunKind::Job.into();
    let run = spawn_in_trace(&mut client, spec, true).await;
    let said = first_line(&mut client, &run.run_id).await;
    let own = said.split('-').nth(1).expect("a traceparent").to_owned();
    let said = said.trim().to_owned();
    assert_ne!(own, TRACE);
    let spans = collector.trace(&own, |spans| has(spans, "run")).await;
    let whole = only(&spans, "run");
    assert_eq!(said, format!("00-{own}-{}-01", whole.id));
    assert_eq!(whole.parent, "");
    let calls = collector.trace(TRACE, |spans| has(spans, SPAWN)).await;
    let call = only(&calls, SPAWN);
    assert_eq!(whole.links, [(TRACE.to_owned(), call.id.clone())]);

    // GetRun returns the span ids of the run and of its caller.
    let stored = must("get", client.get(&run.run_id).await);
    assert_eq!(stored.run_trace_parent, said);
    assert_eq!(stored.trace_parent, format!("00-{TRACE}-{}-01", call.id));
    let why = run_to_end(kennel.cli(&["why", &run.run_id]), PATIENCE).await;
    let why = text(&why);
    for words in [&["trace", &own][..], &["caller", "trace", TRACE]] {
        let says = |line: &str| line.split_whitespace().eq(words.iter().copied());
        assert!(why.lines().any(says), "{why}");
    }
}

// promise: M-4
#[tokio::test(flavor = "multi_thread")]
async fn unsampled_traces_are_not_exported() {
    let collector = Collector::start(Manner::Willing).await;
    let kennel = Kennel::start(with(&collector, Options::default())).await;
    let mut client = kennel.client().await;
    let run = spawn_in_trace(&mut client, sh("echo $TRACEPARENT"), false).await;
    let said = first_line(&mut client, &run.run_id).await;
    assert!(
        said.starts_with(&format!("00-{TRACE}-")) && said.ends_with("-00"),
        "{said}"
    );
    must("end", client.ended(&run.run_id).await);
    let stored = must("get", client.get(&run.run_id).await);
    assert_eq!(stored.run_trace_parent, "", "nothing is to be found there");
    // Once a later call's span is reported, earlier spans are not in flight any more.
    let later = must("spawn", client.spawn(sh("true")).await);
    must("end", client.ended(&later.run_id).await);
    let later = later
        .trace_parent
        .split('-')
        .nth(1)
        .expect("a trace")
        .to_owned();
    collector.trace(&later, |spans| has(spans, "run")).await;
    assert!(
        collector
            .spans()
            .into_iter()
            .map(SpanRow::from)
            .all(|span| span.trace != TRACE)
    );
}

// promise: M-5
#[tokio::test(flavor = "multi_thread")]
async fn caller_error_is_not_a_server_error_span() {
    let collector = Collector::start(Manner::Willing).await;
    let kennel = Kennel::start(with(&collector, Options::default())).await;
    let mut client = kennel.client().await;
    client
        .get(&kennel_tests::new_run_id())
        .await
        .expect_err("there is none");
    let missing = argv(&["/nonexistent/program"]);
    let refused = client.process.spawn(in_trace(missing, true)).await;
    refused.expect_err("there is no such program");
    let spans = collector.trace(TRACE, |spans| has(spans, SPAWN)).await;
    let call = only(&spans, SPAWN);
    assert_eq!(
        call.attribute("rpc.response.status_code"),
        Some("NOT_FOUND")
    );
    assert_eq!(
        (call.attribute("error.type"), call.error.as_deref()),
        (None, None)
    );
}
