//! Metrics at a collector and at Prometheus; and the handling of telemetry that no collector accepts.

use crate::{audit::Planted, readiness::by_line};
use kennel_proto::pb::{self, DrainAction, LeaderExitAction, LeakEvidence, ReapMode, RunState};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt, argv, cases,
    client::duration,
    collector::{Collector, Manner},
    eventually, eventually_async,
    kennel::{kill_exactly, reap_orphans},
    must, naughty,
    procfs::Proc,
    programs, sh,
    shell::run_to_end,
    within,
};
use nix::sys::signal::Signal;
use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

/// Connections without a complete request: as many as are served at a time.
const SILENT: usize = 16;

/// Returns the variable that makes a server serve them there.
fn listen(socket: &Path) -> (String, String) {
    let address = format!("unix:{}", socket.display());
    ("KENNEL_METRICS_LISTEN".to_owned(), address)
}

/// A server whose metrics are read in both ways: at a collector, and at a socket as by Prometheus.
struct Scene {
    collector: Collector,
    /// Directory of the socket.
    _scratch: TempDir,
    socket: PathBuf,
    kennel: Kennel,
}

impl Scene {
    async fn begin() -> Self {
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
        Self {
            collector,
            _scratch: scratch,
            socket,
            kennel,
        }
    }
}

// The first test counts all runs of the server. The second needs a server without leak check. The last two replace the
// server, whose counters restart at zero.
cases! {
    fn metrics_of_one_server(mut Scene::begin().await);
    runs_are_counted_by_how_they_have_ended,
    detached_process_is_counted_once_until_gone,
    escaped_processes_are_counted_once,
    detached_process_is_no_orphan,
    unread_stream_is_reported_as_lagging,
    runs_that_wait_are_counted_by_reason,
    metrics_socket_is_private_and_bounded,
    next_server_serves_metrics_at_same_place,
    process_found_at_start_is_counted_as_ended,
}

/// Returns what Prometheus would read at this socket.
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

/// Returns the value of the only series of this name with all these labels.
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

// promise: M-6
async fn runs_are_counted_by_how_they_have_ended(scene: &mut Scene) {
    let (collector, kennel) = (&scene.collector, &scene.kennel);
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
    // Wait for the last report of each metric: earlier ones precede it.
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

    // A scrape shows the same values under Prometheus names.
    let text = scrape(&scene.socket).expect("it is served");
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
    // No labels of unbounded cardinality: they would fill the storage.
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

// promise: RW-104
async fn runs_that_wait_are_counted_by_reason(scene: &mut Scene) {
    let (socket, kennel) = (&scene.socket, &scene.kennel);
    let mut client = kennel.client().await;
    let waiting = |ready: f64, input: f64, attempt: f64| {
        eventually("they are counted", PATIENCE, move || {
            let text = scrape(socket)?;
            let of = |reason: &str| {
                let label = format!("kennel_wait_reason=\"{reason}\"");
                value(&text, "kennel_run_waiting", &[&label])
            };
            let counted = ["ready", "input", "attempt", "restart"].map(of);
            (counted == [ready, input, attempt, 0.0].map(Some)).then_some(())
        })
    };
    waiting(0.0, 0.0, 0.0).await;
    let listed = async |shown: &str| {
        let listed = run_to_end(kennel.cli(&["ps"]), PATIENCE).await;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.contains(shown), "{listed}");
    };
    let plain = must("spawn", client.spawn(sh("exec sleep 1000")).await).run_id;
    let spec = by_line(sh("read x; echo up; exec sleep 1000").open_input(), "up");
    let run = must("spawn", client.spawn(spec).await).run_id;
    waiting(1.0, 0.0, 0.0).await;
    listed("RUNNING (not ready)").await;
    let doing = async |activity: &str| {
        let words = ["annotate", &run, "--activity", activity];
        let annotated = run_to_end(kennel.cli(&words), PATIENCE).await;
        assert!(annotated.status.success(), "{annotated:?}");
    };
    doing("awaiting-input").await;
    waiting(0.0, 1.0, 0.0).await;
    listed("RUNNING (awaiting input)").await;
    doing("working").await;
    waiting(1.0, 0.0, 0.0).await;
    must("write", client.write(&run, "1", None, b"go\n").await);
    waiting(0.0, 0.0, 0.0).await;
    let policy = pb::RestartPolicy {
        mode: pb::RestartMode::OnFailure.into(),
        delay: Some(duration(Duration::from_hours(1))),
        ..pb::RestartPolicy::default()
    };
    let fails = must("spawn", client.spawn(sh("exit 1").restart(policy)).await).run_id;
    waiting(0.0, 0.0, 1.0).await;
    listed("BACKOFF (next in ").await;
    for run in [&plain, &run, &fails] {
        must("abort", client.abort(run).await);
    }
    waiting(0.0, 0.0, 0.0).await;
}

// promise: M-22
async fn metrics_socket_is_private_and_bounded(scene: &mut Scene) {
    let socket = &scene.socket;
    eventually("the socket is there", PATIENCE, || {
        UnixStream::connect(socket).ok()
    })
    .await;
    let mode = fs::metadata(socket).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let silent: Vec<_> = (0..SILENT)
        .map(|_| {
            let mut stream = UnixStream::connect(socket).expect("it listens");
            stream.write_all(b"GET /metr").expect("sent");
            stream
        })
        .collect();
    let at = socket.clone();
    let scraping = tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(at).expect("it listens");
        let request = b"GET /metrics HTTP/1.1\r\nHost: kennel\r\n\r\n";
        stream.write_all(request).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    });
    let answer = within("a scrape beside them", PATIENCE, scraping).await;
    let answer = answer.expect("a scrape");
    assert!(answer.contains("kennel_connection_active"), "{answer}");
    let ends = tokio::task::spawn_blocking(move || {
        for mut stream in silent {
            // With or without a status, the connection ends.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    within("the end of requests without a head", PATIENCE, ends)
        .await
        .expect("they end");
}

// promise: M-8
async fn next_server_serves_metrics_at_same_place(scene: &mut Scene) {
    let (socket, kennel) = (&scene.socket, &scene.kennel);
    let mut client = kennel.client().await;
    let lives = must("spawn", client.spawn(sh("read x").open_input()).await);
    eventually("metrics are served", PATIENCE, || scrape(socket)).await;
    kennel.kill_server();
    eventually("metrics are served again", PATIENCE, || {
        let adopted = value(&scrape(socket)?, "kennel_recovery_runs_total", &["adopted"])?;
        (adopted >= 1.0).then_some(())
    })
    .await;
    let mut client = kennel.client().await;
    must("abort", client.abort(&lives.run_id).await);
}

// promise: M-7
#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_collector_does_not_affect_runs() {
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
        // Each run has nine spans plus two or three of its calls; spans not in flight count as lost.
        eventually("what is lost is counted", PATIENCE, || {
            scrape(&socket).filter(|text| lost(text) > 100.0)
        })
        .await;
        assert_eq!(collector.spans(), []);
        // Spans are reported again once the collector accepts them.
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

// promise: M-7
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

/// Starts a server with a collector for everything.
async fn observed(words: &[&'static str]) -> (Collector, Kennel) {
    let collector = Collector::start(Manner::Willing).await;
    let kennel = Kennel::start(Options {
        env: collector.env(),
        words: words.to_vec(),
        ..Options::default()
    })
    .await;
    (collector, kennel)
}

/// Waits until a metric has this value; over all its series, or that of this attribute.
async fn reads(collector: &Collector, metric: &str, attribute: Option<(&str, &str)>, value: u64) {
    let attributes: Vec<(&str, &str)> = attribute.into_iter().collect();
    eventually(&format!("{metric} reads {value}"), PATIENCE, || {
        let is_there = collector.metric_names().contains(metric);
        (is_there && collector.count(metric, &attributes) == value).then_some(())
    })
    .await;
}

// promise: M-14
async fn detached_process_is_counted_once_until_gone(scene: &mut Scene) {
    let (collector, kennel) = (&scene.collector, &scene.kennel);
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("true")).await);
    must("end", client.ended(&run.run_id).await);
    let marker = Some(("kennel.evidence", "marker"));
    reads(collector, "kennel.orphan.found", marker, 0).await;
    // Without a leak check the number of leaks is unknown.
    assert!(!collector.metric_names().contains("kennel.orphan.count"));
    let planted = Planted::marked(&run.run_id);
    for _ in 0..2 {
        must("audit", client.audit().await);
    }
    reads(collector, "kennel.orphan.count", None, 1).await;
    reads(collector, "kennel.orphan.found", marker, 1).await;
    let reaped = client.reap(pb::ReapLeaksRequest {
        mode: ReapMode::Execute.into(),
        run_ids: vec![run.run_id.clone()],
        evidence: vec![LeakEvidence::Marker.into()],
        ..pb::ReapLeaksRequest::default()
    });
    must("reap", reaped.await);
    reads(collector, "kennel.orphan.reaped", marker, 1).await;
    reads(collector, "kennel.orphan.count", None, 0).await;
    assert_eq!(collector.count("kennel.orphan.found", &[]), 1);
    drop(planted);
}

// promise: M-18
async fn escaped_processes_are_counted_once(scene: &mut Scene) {
    let (collector, kennel) = (&scene.collector, &scene.kennel);
    let mut client = kennel.client().await;
    let cancelled = Some(("kennel.run.outcome", "cancelled"));
    let ended = collector.count("kennel.run.ended", &[("kennel.run.outcome", "cancelled")]);
    // The run's background process stays in the session, in its own group.
    let stays = sh("set -m; sleep 1000 & echo up; wait");
    let stays = must("spawn", client.spawn(stays).await);
    client.hear_up(&stays.run_id).await;
    must("audit", client.audit().await);
    let run = sh("setsid sleep 1000 & echo up; wait");
    let run = must("spawn", client.spawn(run).await);
    let leader = run.attempt().pid;
    eventually_async("one has left", PATIENCE, || {
        let mut client = client.clone();
        let run = run.run_id.clone();
        async move {
            let tree = must("tree", client.tree(&run).await).processes;
            let has_left = tree
                .iter()
                .any(|m| m.session_id != leader && m.process_group_id != leader);
            has_left.then_some(())
        }
    })
    .await;
    let escaped = 1;
    for _ in 0..2 {
        must("audit", client.audit().await);
    }
    reads(collector, "kennel.tree.escapes", None, escaped).await;
    let by = must("get", client.get(&run.run_id).await).containment();
    let by = match by {
        pb::Containment::Cgroup => "cgroup",
        _ => "subreaper",
    };
    let by = ("kennel.containment", by);
    assert_eq!(collector.count("kennel.tree.escapes", &[by]), escaped);
    // Once a later metric is reported, no earlier one is in flight any more.
    must("abort", client.abort(&run.run_id).await);
    must("abort", client.abort(&stays.run_id).await);
    reads(collector, "kennel.run.ended", cancelled, ended + 2).await;
    assert_eq!(collector.count("kennel.tree.escapes", &[]), escaped);
}

// promise: M-14
async fn detached_process_is_no_orphan(scene: &mut Scene) {
    let (collector, kennel) = (&scene.collector, &scene.kennel);
    let mut client = kennel.client().await;
    let pid_file = kennel.scratch().join("kept");
    let script = format!("sleep 1000 & echo $! > {}", pid_file.display());
    let spec = sh(&script).on_leader_exit(LeaderExitAction::Keep, None);
    let run = must("spawn", client.spawn(spec).await);
    must("end", client.ended(&run.run_id).await);
    let kept = must("who is kept", fs::read_to_string(pid_file));
    let kept = Proc::read(kept.trim().parse().expect("a number")).expect("it lives");
    let found = collector.count("kennel.orphan.found", &[]);
    let seen = must("audit", client.audit().await);
    assert_eq!(seen.processes.len(), 1, "{seen:?}");
    reads(collector, "kennel.orphan.count", None, 0).await;
    reads(collector, "kennel.orphan.found", None, found).await;
    // No end-to-end test can create a process that keeper and shim do not reap: supervisor/src/registry/found.rs has a
    // unit test.
    reads(collector, "kennel.zombie.count", None, 0).await;
    kill_exactly(&kept, Signal::SIGKILL);
}

// promise: M-14
async fn process_found_at_start_is_counted_as_ended(scene: &mut Scene) {
    let (collector, kennel) = (&scene.collector, &mut scene.kennel);
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(argv(&["sleep", "1000"])).await);
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let shims = kennel.shims();
    kennel.kill_service_after(|| {
        for shim in shims {
            kill_exactly(&shim, Signal::SIGKILL);
        }
    });
    kennel.wait_for_exit(PATIENCE).await;
    assert!(leader.is_alive());
    kennel.restart().await;
    must("end", kennel.client().await.ended(&run.run_id).await);
    let recovery = Some(("kennel.evidence", "recovery"));
    reads(collector, "kennel.orphan.found", recovery, 1).await;
    reads(collector, "kennel.orphan.reaped", recovery, 1).await;
    reap_orphans();
}

// promise: M-16
async fn unread_stream_is_reported_as_lagging(scene: &mut Scene) {
    let (collector, kennel) = (&scene.collector, &scene.kennel);
    let mut client = kennel.client().await;
    let script = format!(
        "echo up; read x; {} bytes 8000000; read x",
        programs::naughty().display()
    );
    let run = must("spawn", client.spawn(sh(&script).open_input()).await);
    client.hear_up(&run.run_id).await;
    reads(collector, "kennel.subscriber.active", None, 0).await;
    let deaf = must("stream", client.events_after(&run.run_id, 0).await);
    reads(collector, "kennel.subscriber.active", None, 1).await;
    reads(collector, "kennel.subscriber.lag", None, 0).await;
    must("input", client.type_in(&run.run_id, "go\n").await);
    eventually("it is behind", PATIENCE, || {
        (collector.count("kennel.subscriber.lag", &[]) > 5).then_some(())
    })
    .await;
    drop(deaf);
    reads(collector, "kennel.subscriber.active", None, 0).await;
    reads(collector, "kennel.subscriber.lag", None, 0).await;
    must("abort", client.abort(&run.run_id).await);
}

// promise: M-15
async fn refused_run_is_counted_by_reason((collector, kennel): &(Collector, Kennel)) {
    let mut client = kennel.client().await;
    let why = |reason: &'static str| Some(("kennel.reason", reason));
    reads(collector, "kennel.admission.rejected", None, 0).await;
    let mut held = sh("true");
    held.set_min_containment(pb::Containment::Cgroup);
    client.spawn(held).await.expect_err("there is none");
    reads(
        collector,
        "kennel.admission.rejected",
        why("CONTAINMENT_UNAVAILABLE"),
        1,
    )
    .await;
    let drain = pb::DrainRequest {
        action: DrainAction::Finish.into(),
        ..pb::DrainRequest::default()
    };
    must("drain", client.admin.drain(drain).await);
    client.spawn(sh("true")).await.expect_err("it is drained");
    reads(
        collector,
        "kennel.admission.rejected",
        why("NODE_DRAINING"),
        1,
    )
    .await;
    // Client errors do not count.
    client
        .spawn(argv(&[]))
        .await
        .expect_err("there is nothing to run");
    let dry = pb::SpawnRequest {
        run_id: String::new(),
        validate_only: true,
        spec: Some(sh("true")),
        ..pb::SpawnRequest::default()
    };
    client.process.spawn(dry).await.expect_err("it is drained");
    client.spawn(sh("true")).await.expect_err("it is drained");
    reads(
        collector,
        "kennel.admission.rejected",
        why("NODE_DRAINING"),
        2,
    )
    .await;
    assert_eq!(collector.count("kennel.admission.rejected", &[]), 3);
}

// The last test drains the server.
cases! {
    fn usage_and_refusals_of_a_server(observed(&["--cgroup", "off", "--retain-bytes", "64M"]).await);
    server_usage_is_measured_beside_its_limits,
    refused_run_is_counted_by_reason,
}

/// Longest wait for the size of the journals, which is checked every ten seconds.
const LOOKED_WITHIN: Duration = Duration::from_mins(1);

// promise: M-16
async fn server_usage_is_measured_beside_its_limits((collector, kennel): &(Collector, Kennel)) {
    let mut client = kennel.client().await;
    reads(collector, "kennel.journal.limit", None, 64 << 20).await;
    let max = must("the limit", fs::read_to_string("/proc/sys/kernel/pty/max"));
    let max = max.trim().parse().expect("a number");
    reads(collector, "kennel.pty.limit", None, max).await;
    reads(collector, "kennel.pty.count", None, 0).await;
    let spec = sh("read x").on_terminal(pb::Terminal::default());
    let on_terminal = must("spawn", client.spawn(spec).await);
    reads(collector, "kennel.pty.count", None, 1).await;
    must("abort", client.abort(&on_terminal.run_id).await);
    reads(collector, "kennel.pty.count", None, 0).await;

    let server = kennel.server().expect("it lives");
    let open = || fs::read_dir(format!("/proc/{}/fd", server.pid)).expect("it lives");
    let fds = collector.count("kennel.fd.count", &[]);
    let seen = open().count() as u64;
    // The descriptor count varies between both readings.
    assert!(fds.abs_diff(seen) < 30, "{fds} {seen}");
    assert!(collector.count("kennel.fd.limit", &[]) > fds);

    let script = format!("{} bytes 3000000", programs::naughty().display());
    end(&mut client, &script).await;
    eventually("what it has written is measured", LOOKED_WITHIN, || {
        let bytes = collector.count("kennel.journal.usage", &[]);
        (3_000_000..6_000_000).contains(&bytes).then_some(())
    })
    .await;
}
