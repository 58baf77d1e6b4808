//! `ExtendTimeouts`, and `EXTEND_TIMEOUT_USEC` of a command: limits of time end later, up to a bound. In each scene a
//! run with the same limit, which was not extended, shows that the limit would be over.

use crate::{
    adopt::{adopted, lose_service},
    inactivity,
    notify::{Service, by_notice, service, watchdog},
    with_and_without_cgroup,
};
use kennel_proto::pb::{self, Deadline, RunState, WaitCondition};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt,
    client::{complaint, duration, micros},
    eventually_async, must, sh,
    shell::run_to_end,
};
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::StatusExt;

with_and_without_cgroup!(
    extension_outlasts_server_and_keeper,
    stopping_run_is_not_extended,
);

/// Long enough for the calls before its end on a busy host.
const LIMIT: Duration = Duration::from_secs(10);
const MORE: Duration = Duration::from_mins(10);
const SLEEPS: &str = "echo up; while :; do sleep 0.1; done";

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

fn refusal(answer: Result<pb::Run, Status>) -> (Code, String, Status) {
    let status = answer.expect_err("it is refused");
    (status.code(), complaint(&status).reason.clone(), status)
}

async fn extension_outlasts_server_and_keeper(options: Options) {
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let spec = adopted(sh(SLEEPS)).max_runtime(LIMIT);
    let late = spawn(&mut client, spec.clone()).await;
    let other = spawn(&mut client, spec).await;
    // One is extended by the server that began it, one by the next.
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
    lose_service(&mut kennel).await;
    // The test waits for time itself: nothing is there that counts it.
    tokio::time::sleep(LIMIT).await;
    kennel.restart().await;
    let mut client = kennel.client().await;
    // The limit of this one begins here, and is over: the adopting keeper enforces limits.
    let control = spawn(&mut client, sh(SLEEPS).max_runtime(LIMIT)).await;
    times_out(&mut client, &control, "deadline_exceeded").await;
    for run in [&late, &other] {
        let shown = still_runs(&mut client, run).await;
        let total = extended(&shown, Deadline::MaxRuntime).expect("it was extended");
        assert!(
            total > MORE.saturating_sub(LIMIT) && total <= MORE,
            "{total:?}"
        );
        assert_eq!(
            shown.deadline_time,
            limit(&shown, Deadline::MaxRuntime).unwrap().end_time
        );
        must("abort", client.abort(run).await);
    }
}

async fn stopping_run_is_not_extended(options: Options) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let spec = sh("trap '' TERM; echo up; while :; do sleep 0.1; done");
    let spec = spec
        .max_runtime(Duration::from_secs(1))
        .grace(Duration::from_mins(1));
    let run = spawn(&mut client, spec).await;
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
    let ended = must(
        "abort",
        client
            .abort_with(&run, Some(Duration::ZERO), pb::AbortWait::TreeEmpty)
            .await,
    );
    assert_eq!(ended.reason(), "deadline_exceeded", "{ended:?}");
    assert_eq!(extended(&ended, Deadline::MaxRuntime), None);
    let (_, reason, _) = refusal(client.extend(&run, &[], MORE).await);
    assert_eq!(reason, "RUN_ENDED");
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_has_a_bound_and_needs_a_limit() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = sh(SLEEPS).max_runtime(Duration::from_mins(10));
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
    // A little is left for the time of the call itself.
    let less = Duration::from_secs(possible - 30);
    let seen = must("extend", client.extend(&run, &all, less).await);
    let first = end(&seen, Deadline::MaxRuntime);
    // Shorter than what is left: nothing is taken away.
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
    let free = spawn(&mut client, sh(SLEEPS)).await;
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
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inactivity_is_extended_across_server_deaths() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let spec = inactivity::limited("echo up; sleep 1000", LIMIT);
    let run = spawn(&mut client, spec.clone()).await;
    let seen = must("extend", client.extend(&run, &[], MORE).await);
    let until = end(&seen, Deadline::Inactivity);
    assert_eq!(extended(&seen, Deadline::MaxRuntime), None);
    kennel.kill_server();
    let mut client = kennel.client().await;
    let control = spawn(&mut client, spec).await;
    times_out(&mut client, &control, "deadline_exceeded").await;
    let seen = still_runs(&mut client, &run).await;
    assert_eq!(end(&seen, Deadline::Inactivity), until);
    must("abort", client.abort(&run).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_time_does_not_use_an_extension() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = sh(SLEEPS).max_runtime(LIMIT);
    spec.timeouts.get_or_insert_default().inactivity = Some(duration(LIMIT));
    let run = spawn(&mut client, spec).await;
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
    // Another run lives and ends meanwhile.
    let other = spawn(&mut client, sh("echo up; sleep 2")).await;
    must("wait", client.ended(&other).await);
    let before = must("get", client.get(&other).await).end_time;
    let resumed = must("resume", client.resume(&run).await);
    let least = micros(&before.expect("it has ended")) + i64::try_from(MORE.as_micros()).unwrap();
    for of in [Deadline::MaxRuntime, Deadline::Inactivity] {
        // The keeper counts by another clock than that of the recorded times.
        assert!(end(&resumed, of) + 500_000 >= least, "{resumed:?}");
    }
    must("abort", client.abort(&run).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_is_durable_while_store_is_away() {
    let mut postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = kennel.client().await;
    let run = spawn(&mut client, sh(SLEEPS).max_runtime(LIMIT)).await;
    let control = spawn(&mut client, sh(SLEEPS).max_runtime(LIMIT * 2)).await;
    postgres.crash().await;
    let seen = must("extend", client.extend(&run, &[], MORE).await);
    kennel.kill_server();
    postgres.run().await;
    let mut client = kennel.client().await;
    times_out(&mut client, &control, "deadline_exceeded").await;
    let shown = still_runs(&mut client, &run).await;
    let of = Deadline::MaxRuntime;
    assert_eq!(end(&shown, of), end(&seen, of));
    eventually_async("the row", Duration::from_mins(1), async || {
        let sql = "SELECT count(*) FROM runs WHERE facets::jsonb #>> '{extensions,limits,max_runtime}' <> ''";
        (postgres.psql(sql).await.trim() == "1").then_some(())
    })
    .await;
    must("abort", client.abort(&run).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn command_extends_every_limit_that_counts() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = service().max_runtime(LIMIT);
    spec.timeouts.get_or_insert_default().inactivity = Some(duration(LIMIT));
    spec.readiness = Some(by_notice(Some(LIMIT)));
    let mut run = Service::start(&mut client, spec.clone()).await;
    run.says(&mut client, "EXTEND_TIMEOUT_USEC=600000000").await;
    let all = [
        Deadline::MaxRuntime,
        Deadline::Inactivity,
        Deadline::StartTimeout,
    ];
    let is_extended = |run: &pb::Run| all.iter().all(|of| extended(run, *of).is_some());
    run.shows(&client, "its extensions", is_extended).await;
    // The start is over: its limit can be extended no more.
    run.says(&mut client, "READY=1").await;
    must("wait", client.wait(&run.run, WaitCondition::Ready).await);
    let late = client
        .extend(&run.run, &[Deadline::StartTimeout], MORE)
        .await;
    assert_eq!(refusal(late).1, "NO_TIME_LIMIT");
    let control = Service::start(&mut client, spec).await;
    let ended = must("wait", client.ended(&control.run).await);
    assert_eq!(ended.state(), RunState::Failed, "{ended:?}");
    still_runs(&mut client, &run.run).await;
    must("abort", client.abort(&run.run).await);
}

/// The server counts the start of a run that is probed; its command extends it at the socket of its watchdog.
#[tokio::test(flavor = "multi_thread")]
async fn start_that_is_probed_can_be_extended() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = service();
    let never = pb::readiness::Probe::Tcp(pb::TcpProbe { port: 1 });
    spec.readiness = Some(Box::new(pb::Readiness {
        probe: Some(never),
        start_timeout: Some(duration(LIMIT)),
        ..pb::Readiness::default()
    }));
    spec.liveness = Some(watchdog(Duration::from_hours(1)));
    let mut by_command = Service::start(&mut client, spec.clone()).await;
    by_command
        .says(&mut client, "EXTEND_TIMEOUT_USEC=600000000")
        .await;
    let by_caller = Service::start(&mut client, spec.clone()).await;
    let start = [Deadline::StartTimeout];
    must("extend", client.extend(&by_caller.run, &start, MORE).await);
    let control = Service::start(&mut client, spec).await;
    times_out(&mut client, &control.run, "not_ready").await;
    for run in [by_command.run, by_caller.run] {
        let seen = still_runs(&mut client, &run).await;
        assert!(
            extended(&seen, Deadline::StartTimeout).is_some(),
            "{seen:?}"
        );
        must("abort", client.abort(&run).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_of_extensions_ends_at_the_bound() {
    const BOUND: Duration = Duration::from_secs(2);
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = "import os, socket\n\
         s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
         s.connect(os.environ['NOTIFY_SOCKET'])\n\
         print('up', flush=True)\n\
         while True: s.send(b'EXTEND_TIMEOUT_USEC=1000000')";
    let mut spec = kennel_tests::argv(&["/usr/bin/env", "python3", "-c", script]);
    spec = spec.max_runtime(LIMIT);
    spec.timeouts.get_or_insert_default().extension_max = Some(duration(BOUND));
    spec.liveness = Some(watchdog(Duration::from_hours(1)));
    let run = must("spawn", client.spawn(spec).await).run_id;
    let ended = must("wait", client.ended(&run).await);
    assert_eq!(ended.reason(), "deadline_exceeded", "{ended:?}");
    assert_eq!(extended(&ended, Deadline::MaxRuntime), Some(BOUND));
    let heard = must("hear", client.hear_all(&run, 0).await);
    let times = heard
        .stations()
        .iter()
        .filter(|name| **name == "extended")
        .count();
    // At most one in 100 ms, of some thousand notices.
    assert!((1..=60).contains(&times), "{times}");
}

#[tokio::test(flavor = "multi_thread")]
async fn next_attempt_begins_without_extensions() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let script = format!(
        "echo up; until [ -e {0} ]; do sleep 0.05; done; rm {0}; exit 1",
        go.display()
    );
    let mut spec = sh(&script).max_runtime(LIMIT);
    spec.restart = Some(pb::RestartPolicy {
        mode: pb::RestartMode::OnFailure.into(),
        ..pb::RestartPolicy::default()
    });
    let run = spawn(&mut client, spec).await;
    let seen = must("extend", client.extend(&run, &[], MORE).await);
    assert!(extended(&seen, Deadline::MaxRuntime).is_some());
    std::fs::write(&go, "").expect("a file");
    let second = eventually_async("a second attempt", PATIENCE, async || {
        let run = client.clone().get(&run).await.ok()?;
        (run.attempt().number == 2 && run.state() == RunState::Running).then_some(run)
    })
    .await;
    assert_eq!(extended(&second, Deadline::MaxRuntime), None, "{second:?}");
    times_out(&mut client, &run, "deadline_exceeded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_extends_limits_and_shows_them() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let spec = inactivity::limited(SLEEPS, Duration::from_mins(5)).max_runtime(LIMIT * 40);
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
