//! `ExtendTimeouts`, and `EXTEND_TIMEOUT_USEC` of a command: limits of time end later, up to a bound. What the server
//! counts by itself, outages of the database and further attempts: `supervisor/tests/runs/deadlines.rs`.

use crate::{
    adopt::{adopted, lose_service},
    inactivity,
    notify::{Service, by_notice, service, watchdog},
};
use kennel_proto::pb::{self, Deadline, RunState, WaitCondition};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, SpecExt,
    client::{complaint, duration, micros},
    eventually, eventually_async, must, sh,
    shell::run_to_end,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Long enough for the calls before its end on a busy host.
const LIMIT: Duration = Duration::from_secs(4);
/// The same, with the death of a server among them.
const LONG_LIMIT: Duration = Duration::from_secs(8);
const MORE: Duration = Duration::from_mins(10);
const QUIET: &str = "echo up; exec sleep 1000";

async fn spawn(client: &mut Client, spec: pb::RunSpec) -> String {
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    run
}

fn limit(run: &pb::Run, of: Deadline) -> Option<pb::TimeLimit> {
    let limits = run.time_limits.iter();
    limits.copied().find(|limit| limit.limit() == of)
}

fn extended(run: &pb::Run, of: Deadline) -> Option<Duration> {
    let by = limit(run, of)?.extended?;
    by.try_into().ok()
}

fn end(run: &pb::Run, of: Deadline) -> i64 {
    let end = limit(run, of).and_then(|limit| limit.end_time);
    micros(end.as_ref().unwrap_or_else(|| panic!("no end: {run:?}")))
}

async fn times_out(client: &mut Client, run: &str, reason: &str) {
    let run = must("wait", client.ended(run).await);
    assert_eq!(run.reason(), reason, "{run:?}");
}

async fn still_runs(client: &mut Client, run: &str) -> pb::Run {
    let run = must("get", client.get(run).await);
    assert_eq!(run.state(), RunState::Running, "{run:?}");
    run
}

/// Waits until a limit would be reached that ended at this time, in microseconds of the host's clock.
async fn is_past(end: i64) {
    eventually("the first end of the limit", PATIENCE, || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        (now.as_micros() > u128::try_from(end).ok()?).then_some(())
    })
    .await;
}

fn refusal(answer: Result<pb::Run, Status>) -> (Code, String, Status) {
    let status = answer.expect_err("it is refused");
    (status.code(), complaint(&status).reason.clone(), status)
}

// promise: RW-118
#[tokio::test(flavor = "multi_thread")]
async fn extension_outlasts_server_and_keeper() {
    let mut kennel = Kennel::start(Options::default()).await;
    let mut client = kennel.client().await;
    let spec = adopted(sh(QUIET)).max_runtime(LONG_LIMIT);
    let late = spawn(&mut client, spec.clone()).await;
    let other = spawn(&mut client, spec).await;
    let begun = must("get", client.get(&other).await);
    let first_end = end(&begun, Deadline::MaxRuntime);
    // One run is extended by its first server, one by the next.
    let early = must("extend", client.extend(&other, &[], MORE).await);
    kennel.kill_server();
    let mut client = kennel.client().await;
    let shown = must("get", client.get(&other).await);
    assert_eq!(
        end(&shown, Deadline::MaxRuntime),
        end(&early, Deadline::MaxRuntime)
    );
    must(
        "extend",
        client.extend(&late, &[Deadline::MaxRuntime], MORE).await,
    );
    // No keeper counts when the original limit expires.
    lose_service(&mut kennel).await;
    is_past(first_end).await;
    kennel.restart().await;
    let mut client = kennel.client().await;
    // The adopting keeper enforces limits.
    let control = sh(QUIET).max_runtime(Duration::from_millis(300));
    let control = spawn(&mut client, control).await;
    times_out(&mut client, &control, "deadline_exceeded").await;
    for run in [&late, &other] {
        let shown = still_runs(&mut client, run).await;
        let total = extended(&shown, Deadline::MaxRuntime).expect("it was extended");
        assert!(
            total > MORE.saturating_sub(LONG_LIMIT) && total <= MORE,
            "{total:?}"
        );
        assert_eq!(
            shown.deadline_time,
            limit(&shown, Deadline::MaxRuntime).unwrap().end_time
        );
        must("abort", client.abort(run).await);
    }
}

// promise: RW-116, RW-117
#[tokio::test(flavor = "multi_thread")]
async fn extension_has_a_bound_and_needs_a_limit() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = sh(QUIET).max_runtime(Duration::from_mins(10));
    spec.timeouts.get_or_insert_default().extension_max = Some(duration(Duration::from_mins(5)));
    let run = spawn(&mut client, spec).await;
    let all = [Deadline::MaxRuntime];
    let (code, reason, status) = refusal(client.extend(&run, &all, Duration::from_mins(16)).await);
    assert_eq!((code, &*reason), (Code::OutOfRange, "EXTENSION_TOO_LONG"));
    let details = status.get_error_details();
    let info = details.error_info().expect("its reason");
    let possible: u64 = info.metadata["possible_seconds"].parse().expect("a number");
    assert!((14 * 60..=15 * 60).contains(&possible), "{possible}");
    let seen = must("get", client.get(&run).await);
    assert_eq!(
        extended(&seen, Deadline::MaxRuntime),
        None,
        "nothing was changed"
    );
    // The 30 seconds leave time for the call itself.
    let less = Duration::from_secs(possible - 30);
    let seen = must("extend", client.extend(&run, &all, less).await);
    let first = end(&seen, Deadline::MaxRuntime);
    // An extension shorter than the remaining time changes nothing.
    let seen = must(
        "extend",
        client.extend(&run, &[], Duration::from_secs(1)).await,
    );
    assert_eq!(end(&seen, Deadline::MaxRuntime), first);
    for named in [Deadline::Inactivity, Deadline::StartTimeout] {
        let (code, reason, _) = refusal(
            client
                .extend(&run, &[Deadline::MaxRuntime, named], MORE)
                .await,
        );
        assert_eq!(
            (code, &*reason),
            (Code::FailedPrecondition, "NO_TIME_LIMIT")
        );
    }
    let free = spawn(&mut client, sh(QUIET)).await;
    assert_eq!(
        refusal(client.extend(&free, &[], MORE).await).1,
        "NO_TIME_LIMIT"
    );
    for (limits, time, field) in [
        (vec![Deadline::MaxPause], MORE, "limits[0]"),
        (vec![Deadline::MaxRuntime; 2], MORE, "limits[1]"),
        (vec![], Duration::ZERO, "duration"),
    ] {
        let (code, _, status) = refusal(client.extend(&run, &limits, time).await);
        assert_eq!(code, Code::InvalidArgument);
        assert_eq!(complaint(&status).fields, [field]);
    }
    for run in [run, free] {
        must("abort", client.abort(&run).await);
        let (_, reason, _) = refusal(client.extend(&run, &[], MORE).await);
        assert_eq!(reason, "RUN_ENDED");
    }
    assert_stopping_run_is_not_extended(&mut client).await;
    assert_paused_time_uses_no_extension(&mut client).await;
}

/// The keeper stops it, and refuses.
async fn assert_stopping_run_is_not_extended(client: &mut Client) {
    let spec = sh("trap '' TERM; echo up; while :; do sleep 0.1; done");
    let spec = spec
        .max_runtime(Duration::from_millis(300))
        .grace(Duration::from_mins(1));
    let run = spawn(client, spec).await;
    eventually_async("its stop", PATIENCE, async || {
        let run = client.clone().get(&run).await.ok()?;
        (run.state() == RunState::Stopping).then_some(())
    })
    .await;
    let (code, reason, _) = refusal(client.extend(&run, &[], MORE).await);
    assert_eq!(
        (code, &*reason),
        (Code::FailedPrecondition, "INVALID_STATE")
    );
    let at_once = client.abort_with(&run, Some(Duration::ZERO), pb::AbortWait::TreeEmpty);
    let ended = must("abort", at_once.await);
    assert_eq!(ended.reason(), "deadline_exceeded", "{ended:?}");
    assert_eq!(extended(&ended, Deadline::MaxRuntime), None);
}

async fn assert_paused_time_uses_no_extension(client: &mut Client) {
    let spec = inactivity::limited(QUIET, LONG_LIMIT).max_runtime(LONG_LIMIT);
    let run = spawn(client, spec).await;
    must("pause", client.pause(&run).await);
    let seen = must("extend", client.extend(&run, &[], MORE).await);
    for of in [Deadline::MaxRuntime, Deadline::Inactivity] {
        assert_eq!(
            limit(&seen, of).and_then(|l| l.end_time),
            None,
            "it is not counted: {seen:?}"
        );
        assert!(extended(&seen, of).is_some(), "{seen:?}");
    }
    // Another run's lifetime passes during the pause.
    let other = spawn(client, sh("echo up; sleep 1")).await;
    must("wait", client.ended(&other).await);
    let before = must("get", client.get(&other).await).end_time;
    let resumed = must("resume", client.resume(&run).await);
    let least = micros(&before.expect("it has ended")) + i64::try_from(MORE.as_micros()).unwrap();
    for of in [Deadline::MaxRuntime, Deadline::Inactivity] {
        // The keeper's clock differs from that of recorded times.
        assert!(end(&resumed, of) + 500_000 >= least, "{resumed:?}");
    }
    must("abort", client.abort(&run).await);
}

/// A start that is probed is counted by the server, any other one by the keeper.
// promise: RW-116, RW-117
#[tokio::test(flavor = "multi_thread")]
async fn notify_message_extends_every_active_limit() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = service().max_runtime(LIMIT);
    spec.timeouts.get_or_insert_default().inactivity = Some(duration(LIMIT));
    spec.readiness = Some(by_notice(Some(LIMIT)));
    let mut run = Service::start(&mut client, spec).await;
    run.says(&mut client, "EXTEND_TIMEOUT_USEC=600000000").await;
    let all = [
        Deadline::MaxRuntime,
        Deadline::Inactivity,
        Deadline::StartTimeout,
    ];
    let is_extended = |run: &pb::Run| all.iter().all(|of| extended(run, *of).is_some());
    run.shows(&client, "its extensions", is_extended).await;

    let never = pb::readiness::Probe::Tcp(pb::TcpProbe { port: 1 });
    let readiness = pb::Readiness {
        probe: Some(never),
        start_timeout: Some(duration(LIMIT)),
        ..pb::Readiness::default()
    };
    let mut spec = service();
    spec.readiness = Some(Box::new(readiness));
    spec.liveness = Some(watchdog(Duration::from_hours(1)));
    let mut probed = Service::start(&mut client, spec).await;
    probed
        .says(&mut client, "EXTEND_TIMEOUT_USEC=600000000")
        .await;
    let is_extended = |run: &pb::Run| extended(run, Deadline::StartTimeout).is_some();
    let seen = probed.shows(&client, "its extension", is_extended).await;
    // By then both runs' original limits are over.
    let begun = micros(seen.attempt().start_time.as_ref().expect("it runs"));
    is_past(begun + i64::try_from(LIMIT.as_micros()).unwrap()).await;
    for run in [&run.run, &probed.run] {
        still_runs(&mut client, run).await;
    }
    // A ready run's start limit cannot be extended any more.
    run.says(&mut client, "READY=1").await;
    must("wait", client.wait(&run.run, WaitCondition::Ready).await);
    let late = client
        .extend(&run.run, &[Deadline::StartTimeout], MORE)
        .await;
    assert_eq!(refusal(late).1, "NO_TIME_LIMIT");
    for run in [run.run, probed.run] {
        must("abort", client.abort(&run).await);
    }
    assert_flood_ends_at_the_bound(&mut client).await;
}

async fn assert_flood_ends_at_the_bound(client: &mut Client) {
    const BOUND: Duration = Duration::from_millis(500);
    let script = "import os, socket\n\
         s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
         s.connect(os.environ['NOTIFY_SOCKET'])\n\
         while True: s.send(b'EXTEND_TIMEOUT_USEC=2000000')";
    let mut spec = kennel_tests::argv(&["/usr/bin/env", "python3", "-c", script]);
    spec = spec.max_runtime(Duration::from_secs(2));
    spec.timeouts.get_or_insert_default().extension_max = Some(duration(BOUND));
    spec.liveness = Some(watchdog(Duration::from_hours(1)));
    let run = must("spawn", client.spawn(spec).await).run_id;
    let ended = must("wait", client.ended(&run).await);
    assert_eq!(ended.reason(), "deadline_exceeded", "{ended:?}");
    assert_eq!(extended(&ended, Deadline::MaxRuntime), Some(BOUND));
    let heard = must("hear", client.hear_all(&run, 0).await);
    let stations = heard.stations();
    let times = stations.iter().filter(|name| **name == "extended");
    // Thousands of notices yield at most one event per 100 ms.
    let times = times.count();
    assert!((1..=30).contains(&times), "{times}");
}

// promise: RW-118
#[tokio::test(flavor = "multi_thread")]
async fn command_line_extends_limits_and_shows_them() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let spec = inactivity::limited(QUIET, Duration::from_mins(5)).max_runtime(LIMIT * 100);
    let run = spawn(&mut client, spec).await;
    let says = async |words: &[&str]| {
        let output = run_to_end(kennel.cli(words), PATIENCE).await;
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    let (code, text) = says(&["extend", &run, "10m", "--timeout"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("max_runtime at ") && text.contains("extended by"),
        "{text}"
    );
    assert!(!text.contains("inactivity not before"), "{text}");
    let (_, text) = says(&["extend", &run, "10m"]).await;
    assert!(text.contains("inactivity not before "), "{text}");
    for words in [["get", &run], ["why", &run], ["events", &run]] {
        let (_, text) = says(&words).await;
        assert!(
            text.contains("max_runtime") && text.contains("extended"),
            "{text}"
        );
    }
    let (code, text) = says(&["extend", &run, "10h"]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("--extension-max") && text.contains("kennel extend RUN"),
        "{text}"
    );
    let (_, text) = says(&["audit", &run]).await;
    assert!(
        text.contains("ExtendTimeouts") && text.contains("EXTENSION_TOO_LONG"),
        "{text}"
    );
    must("abort", client.abort(&run).await);
}
