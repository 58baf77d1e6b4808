//! Metrics, as a collector and as Prometheus gets them; and what becomes of telemetry that nobody takes.

use kennel_edge::pb::RunState;
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt, argv,
    collector::{Collector, Manner},
    eventually, eventually_async, must, naughty, sh,
};
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

/// Makes a server serve them there.
fn listen(socket: &Path) -> (String, String) {
    let address = format!("unix:{}", socket.display());
    ("KENNEL_METRICS_LISTEN".to_owned(), address)
}

/// What Prometheus would read at this socket.
fn scrape(socket: &Path) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let request = "GET /metrics HTTP/1.1\r\nHost: kennel\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    Some(body.to_owned())
}

/// The value of the only series of this name with all these labels.
fn value(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let lines = text.lines().filter(|line| {
        let of_name = line.strip_prefix(name);
        of_name.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    });
    let values: Vec<f64> = lines
        .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
        .collect();
    match values[..] {
        [value] => Some(value),
        _ => None,
    }
}

async fn end(client: &mut Client, script: &str) {
    let run = must("spawn", client.spawn(sh(script)).await);
    must("end", client.ended(&run.run_id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_counted_by_how_they_have_ended() {
    let collector = Collector::start(Manner::Willing).await;
    let scratch = must("a directory", tempfile::tempdir());
    let socket = scratch.path().join("metrics.sock");
    let mut env = collector.env();
    env.push(listen(&socket));
    let kennel = Kennel::start(Options {
        env,
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    end(&mut client, "true").await;
    end(&mut client, "exit 3").await;
    end(&mut client, "exit 4").await;
    end(&mut client, "kill -9 $$").await;
    let aborted = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&aborted.run_id).await;
    must("abort", client.abort(&aborted.run_id).await);
    let missing = client.spawn(argv(&["/dev/null"])).await;
    missing.expect_err("it is no program");
    let lives = must(
        "spawn",
        client.spawn(sh("printf 12345; read x").open_input()).await,
    );
    client.hear_text(&lives.run_id, "12345").await;

    let ended = |outcome: &str, error: &str| {
        let mut labels = vec![("kennel.run.outcome", outcome)];
        labels.extend(Some(("error.type", error)).filter(|(_, error)| !error.is_empty()));
        collector.count("kennel.run.ended", &labels)
    };
    let calls = [
        ("rpc.method", "kennel.v1.ProcessService/Spawn"),
        ("rpc.response.status_code", "OK"),
    ];
    // What came last of each is told: all else was before it.
    eventually("all are counted", PATIENCE, || {
        let all = collector.count("kennel.run.ended", &[]) >= 5
            && collector.count("kennel.run.active", &[("kennel.run.state", "running")]) == 1
            && collector.count("kennel.output.io", &[("kennel.stream", "stdout")]) >= 5
            && collector.count("rpc.server.call.duration", &calls) >= 6;
        all.then_some(())
    })
    .await;
    assert_eq!(ended("succeeded", ""), 1);
    assert_eq!(ended("failed", "exit_nonzero"), 2);
    assert_eq!(ended("failed", "signal"), 1);
    assert_eq!(ended("cancelled", ""), 1);
    assert_eq!(collector.count("kennel.run.started", &[]), 6);
    assert_eq!(
        collector.count("kennel.run.active", &[("kennel.run.state", "running")]),
        1
    );
    assert_eq!(
        collector.count("kennel.stop.duration", &[("kennel.tree.verdict", "empty")]),
        1
    );
    let output = collector.count("kennel.output.io", &[("kennel.stream", "stdout")]);
    assert!(output >= 5, "{output}");
    for phase in ["prepare", "commit", "exec"] {
        let measured = collector.count("kennel.spawn.duration", &[("kennel.spawn.phase", phase)]);
        assert_eq!(measured, 6, "{phase}");
    }
    assert_eq!(collector.count("rpc.server.call.duration", &calls), 6);

    // The same by the other way, in the names that Prometheus has for it.
    let text = scrape(&socket).expect("it is served");
    let failed = [
        "kennel_run_outcome=\"failed\"",
        "error_type=\"exit_nonzero\"",
    ];
    assert_eq!(
        value(&text, "kennel_run_ended_total", &failed),
        Some(2.0),
        "{text}"
    );
    let running = ["kennel_run_state=\"running\""];
    assert_eq!(value(&text, "kennel_run_active", &running), Some(1.0));
    // Nothing that there is without bound: it would fill whoever stores it.
    for word in [
        lives.run_id.as_str(),
        "12345",
        "printf",
        &lives.attempt().pid.to_string(),
    ] {
        assert!(!text.contains(&format!("\"{word}\"")), "{word}");
    }
    let names: BTreeSet<String> = collector.metric_names();
    for name in &names {
        assert!(
            name.starts_with("kennel.") || name.starts_with("rpc."),
            "{name}"
        );
        assert!(
            !name.ends_with("_total") && !name.contains("seconds"),
            "{name}"
        );
    }

    must("abort", client.abort(&lives.run_id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_server_serves_metrics_at_the_same_place() {
    let scratch = must("a directory", tempfile::tempdir());
    let socket = scratch.path().join("metrics.sock");
    let kennel = Kennel::start(Options {
        env: vec![listen(&socket)],
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let lives = must("spawn", client.spawn(sh("read x").open_input()).await);
    eventually("metrics are served", PATIENCE, || scrape(&socket)).await;
    kennel.kill_server();
    eventually("metrics are served again", PATIENCE, || {
        let adopted = value(
            &scrape(&socket)?,
            "kennel_recovery_runs_total",
            &["adopted"],
        )?;
        (adopted >= 1.0).then_some(())
    })
    .await;
    let mut client = kennel.client().await;
    must("abort", client.abort(&lives.run_id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_run_notices_a_collector_that_takes_nothing() {
    let scratch = must("a directory", tempfile::tempdir());
    for (place, manner) in [("silent", Manner::Silent), ("refusing", Manner::Refusing)] {
        let collector = Collector::start(manner).await;
        let socket = scratch.path().join(place);
        let mut env = collector.env();
        env.push((
            "KENNEL_METRICS_LISTEN".to_owned(),
            format!("unix:{}", socket.display()),
        ));
        env.push(("OTEL_BSP_MAX_QUEUE_SIZE".to_owned(), "40".to_owned()));
        env.push(("OTEL_EXPORTER_OTLP_TIMEOUT".to_owned(), "300".to_owned()));
        let kennel = Kennel::start(Options {
            env,
            ..Options::default()
        })
        .await;
        let mut client = kennel.client().await;
        for _ in 0..20 {
            let run = must("spawn", client.spawn(sh("echo out; exit 7")).await);
            let run = must("end", client.ended(&run.run_id).await);
            assert_eq!((run.state(), run.code()), (RunState::Failed, Some(7)));
        }
        let lost = |text: &str| -> f64 {
            let lines = text
                .lines()
                .filter(|l| l.starts_with("kennel_telemetry_dropped_total{"));
            let traces = lines.filter(|line| line.contains("\"traces\""));
            traces
                .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
                .sum()
        };
        // Each run has nine spans and its calls two or three: whatever is not on its way is counted as lost.
        eventually("what is lost is counted", PATIENCE, || {
            scrape(&socket).filter(|text| lost(text) > 100.0)
        })
        .await;
        assert_eq!(collector.spans(), []);
        // It is told again as soon as it takes something.
        collector.behave(Manner::Willing);
        eventually_async("spans come again", PATIENCE, || {
            let mut client = client.clone();
            let collector = &collector;
            async move {
                end(&mut client, "true").await;
                (!collector.spans().is_empty()).then_some(())
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_in_time_without_its_collector() {
    let collector = Collector::start(Manner::Silent).await;
    let mut kennel = Kennel::start(Options {
        env: collector.env(),
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    end(&mut client, "true").await;
    let status = kennel.terminate(SHUTDOWN_LIMIT).await;
    assert!(status.success(), "{status}");
}
