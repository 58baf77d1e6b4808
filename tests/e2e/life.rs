//! A run from its spawn to its end, and calls on it meanwhile.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{self, RunState, WaitCondition};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt, argv, client::micros,
    complaint, must, naughty, new_run_id, procfs::Proc, sh, within,
};
use std::time::Duration;
use tonic::Code;

with_and_without_cgroup!(spawn_answers_with_a_process_that_runs);

// promise: O-6
async fn a_run_passes_its_stations_in_order(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client.spawn(sh("echo out; echo err >&2; exit 7")).await,
    );
    let print = Footprint::of_run(&run);

    let heard = within("its events end", PATIENCE, client.hear_all(&run.run_id, 0)).await;
    let heard = must("stream", heard);
    let run = must("wait", client.ended(&run.run_id).await);

    assert_eq!(run.state(), RunState::Failed);
    assert_eq!((run.code(), run.reason()), (Some(7), "exited"));
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    assert_eq!(run.attempt().streams_end(), pb::StreamsEnd::Eof);
    let [leader, streams, tree] = run.three_ends();
    let started = micros(run.attempt().start_time.as_ref().expect("it started"));
    let ended = micros(run.end_time.as_ref().expect("it ended"));
    assert!(
        started <= leader && leader <= tree && leader <= streams,
        "{run:?}"
    );
    assert!(streams <= ended && tree <= ended, "{run:?}");

    assert_eq!(heard.snapshots, 1);
    assert_eq!(
        (heard.stdout.as_slice(), heard.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    let stations = heard.stations();
    assert_eq!(stations[..3], ["recorded", "started", "leader_exited"]);
    assert!(stations.contains(&"streams_closed") && stations.contains(&"tree_empty"));
    assert!(heard.has_ended(), "{stations:?}");
    assert_eq!(heard.events[0].0, 1, "the first seq is 1");
    print.assert_nothing_left();
}

// promise: D-5
async fn spawn_answers_with_a_process_that_runs(options: Options) {
    let without_cgroup = options.cgroup == kennel_tests::Cgroup::Off;
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let spec = naughty(&["sleep"]).label("who", "me").env("COLOUR", "red");
    let run = must("spawn", client.spawn(spec).await);

    let attempt = run.attempt();
    let leader = Proc::read(attempt.pid).expect("it runs when spawn answers");
    assert!(
        leader.cmdline()[0].ends_with("naughty"),
        "exec has succeeded: {leader:?}"
    );
    assert_eq!(
        (leader.pgid, leader.sid),
        (attempt.process_group_id, attempt.session_id)
    );
    assert_eq!(leader.sid, leader.pid, "a session of its own");
    assert_eq!(leader.ppid, attempt.shim_pid, "below its shim");
    let identity = attempt.identity.as_ref().expect("an identity");
    assert_eq!(identity.start_ticks, leader.start_ticks);
    assert_eq!(
        leader.env("KENNEL_RUN_ID").as_deref(),
        Some(run.run_id.as_str())
    );
    assert_eq!(leader.env("COLOUR").as_deref(), Some("red"));
    let expected = if without_cgroup {
        pb::Containment::Subreaper
    } else {
        expected_containment()
    };
    assert_eq!(run.containment(), expected);
    assert_eq!(run.state(), RunState::Running);
    assert_eq!(
        must("get", client.get(&run.run_id).await).labels["who"],
        "me"
    );

    let print = Footprint::of_run(&run);
    let run = must("abort", client.abort(&run.run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert_eq!(run.signal().as_deref(), Some("SIGTERM"));
    print.assert_nothing_left();
    play_scenes! {
        &kennel;
        a_run_passes_its_stations_in_order,
    }
}

/// Returns what this host permits, determined without Kennel: a directory can be made among the control groups, or not.
fn expected_containment() -> pb::Containment {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else {
        return pb::Containment::Subreaper;
    };
    let root = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|words| words.get(2) == Some(&"cgroup2"))
        .map(|words| words[1].to_owned());
    let own =
        Proc::read(i32::try_from(std::process::id()).expect("small")).and_then(|own| own.cgroup());
    let (Some(root), Some(own)) = (root, own) else {
        return pb::Containment::Subreaper;
    };
    let probe = format!(
        "{root}{}/kennel-test-probe-{}",
        own.trim_end_matches('/'),
        new_run_id()
    );
    if std::fs::create_dir(&probe).is_ok() {
        std::fs::remove_dir(&probe).expect("the probe's own directory");
        pb::Containment::Cgroup
    } else {
        pb::Containment::Subreaper
    }
}

// promise: D-6
#[tokio::test(flavor = "multi_thread")]
async fn psql_shows_pid_and_group_of_run() {
    let postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    let (leader, group) = (run.attempt().pid, run.attempt().process_group_id);

    let row = postgres
        .psql(&format!(
            "SELECT process_pid, process_group_id, state IN ('starting', 'running') FROM runs WHERE run_id = '{}'",
            run.run_id
        ))
        .await;
    assert_eq!(row, format!("{leader}|{group}|t"));

    let print = Footprint::of_run(&run);
    let run = must("abort", client.abort(&run.run_id).await);
    print.assert_nothing_left();
    let row = postgres
        .psql(&format!(
            "SELECT end_reason, exit_kind, leader_exited_us IS NOT NULL, streams_closed_us IS NOT NULL, tree_empty_us IS NOT NULL, ended_us IS NOT NULL FROM runs WHERE run_id = '{}'",
            run.run_id
        ))
        .await;
    assert_eq!(row, "aborted|signal|t|t|t|t");
}

// promise: E-1
async fn success_and_deaths_by_signal_differ(kennel: &Kennel) {
    let mut client = kennel.client().await;
    for (script, state, code, signal) in [
        ("exit 0", RunState::Succeeded, Some(0), None),
        ("exit 255", RunState::Failed, Some(255), None),
        ("kill -SEGV $$", RunState::Failed, None, Some("SIGSEGV")),
        ("kill -KILL $$", RunState::Failed, None, Some("SIGKILL")),
        // A shell that exits with 143 was not killed by a signal.
        ("exit 143", RunState::Failed, Some(143), None),
    ] {
        let run = must("spawn", client.spawn(sh(script)).await);
        let run = must("wait", client.ended(&run.run_id).await);
        assert_eq!(run.state(), state, "{script}");
        assert_eq!(run.code(), code, "{script}");
        assert_eq!(run.signal().as_deref(), signal, "{script}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_on_a_run_match_the_specification() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        runs_are_listed_newest_first_and_by_filter,
        success_and_deaths_by_signal_differ,
        wait_ends_when_its_condition_becomes_impossible,
        wait_of_live_run_ends_at_callers_deadline,
        interrupt_is_sent_once_and_the_run_continues,
        unknown_run_is_found_by_no_read,
    }
}

// promise: A-9
async fn runs_are_listed_newest_first_and_by_filter(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spawned = Vec::new();
    for number in 0..7 {
        let parity = if number % 2 == 0 { "even" } else { "odd" };
        let run = must(
            "spawn",
            client.spawn(sh("exit 0").label("parity", parity)).await,
        );
        must("wait", client.ended(&run.run_id).await);
        spawned.insert(0, run.run_id);
    }
    let live = must("spawn", client.spawn(argv(&["/bin/sleep", "300"])).await);

    let ids = |runs: Vec<pb::Run>| runs.into_iter().map(|run| run.run_id).collect::<Vec<_>>();
    let ended = pb::RunFilter {
        states: vec![RunState::Succeeded.into()],
        ..pb::RunFilter::default()
    };
    assert_eq!(ids(must("list", client.list_all(ended, 3).await)), spawned);
    let odd = pb::RunFilter {
        labels: [("parity".to_owned(), "odd".to_owned())].into(),
        ..pb::RunFilter::default()
    };
    let odd_ids: Vec<String> = spawned.iter().skip(1).step_by(2).cloned().collect();
    assert_eq!(ids(must("list", client.list_all(odd, 2).await)), odd_ids);
    let running = pb::RunFilter {
        states: vec![RunState::Running.into(), RunState::Starting.into()],
        ..pb::RunFilter::default()
    };
    assert_eq!(
        ids(must("list", client.list_all(running, 0).await)),
        [live.run_id]
    );
    let all = must("list", client.list_all(pb::RunFilter::default(), 1).await);
    assert_eq!(all.len(), 8);
}

// promise: A-8
async fn wait_ends_when_its_condition_becomes_impossible(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exit 3")).await);
    let (_, reached) = must(
        "wait",
        client.wait(&run.run_id, WaitCondition::LeaderExited).await,
    );
    assert!(reached);
    let waited = client.wait(&run.run_id, WaitCondition::Paused);
    let (run, reached) = must("wait", within("it answers", PATIENCE, waited).await);
    assert!(!reached, "an ended run is never paused: {run:?}");
}

// promise: A-7
async fn wait_of_live_run_ends_at_callers_deadline(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["sleep"])).await);
    let mut request = tonic::Request::new(pb::WaitRunRequest {
        run_id: run.run_id.clone(),
        condition: WaitCondition::Ended.into(),
    });
    request.set_timeout(Duration::from_millis(200));
    let status = client.process.wait_run(request).await.expect_err("it runs");
    // tonic's own client returns CANCELLED for its own timeout.
    assert!(
        matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
        "{status:?}"
    );
    assert_eq!(
        must("get", client.get(&run.run_id).await).state(),
        RunState::Running
    );
}

// promise: T-13
async fn interrupt_is_sent_once_and_the_run_continues(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let signals = kennel.scratch().join("signals");
    let spec = naughty(&["tell-signals", signals.to_str().expect("UTF-8")]);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;

    must("interrupt", client.interrupt(&run.run_id, "one").await);
    must("repeat", client.interrupt(&run.run_id, "one").await);
    let lines = || {
        std::fs::read_to_string(&signals)
            .unwrap_or_default()
            .lines()
            .count()
    };
    kennel_tests::eventually("the first signal has come", PATIENCE, || {
        (lines() == 1).then_some(())
    })
    .await;
    must("another", client.interrupt(&run.run_id, "two").await);
    kennel_tests::eventually("the second signal has come", PATIENCE, || {
        (lines() >= 2).then_some(())
    })
    .await;
    assert_eq!(
        std::fs::read_to_string(&signals).expect("the file of signals"),
        "SIGINT\nSIGINT\n"
    );
    assert_eq!(
        must("get", client.get(&run.run_id).await).state(),
        RunState::Running
    );

    let run = must(
        "abort",
        client
            .abort_with(&run.run_id, Some(Duration::ZERO), pb::AbortWait::TreeEmpty)
            .await,
    );
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"));
    let refused = client
        .interrupt(&run.run_id, "three")
        .await
        .expect_err("it is over");
    assert_eq!(
        (
            complaint(&refused).code,
            complaint(&refused).reason.as_str()
        ),
        (Code::FailedPrecondition, "RUN_ENDED")
    );
}

async fn unknown_run_is_found_by_no_read(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let unknown = new_run_id();
    let answers = [
        client.get(&unknown).await.expect_err("get"),
        client.interrupt(&unknown, "").await.expect_err("interrupt"),
        client.pause(&unknown).await.expect_err("pause"),
        client.resume(&unknown).await.expect_err("resume"),
        client
            .wait(&unknown, WaitCondition::Ended)
            .await
            .expect_err("wait"),
        client.hear_all(&unknown, 0).await.expect_err("stream"),
    ];
    for status in answers {
        let complaint = complaint(&status);
        assert_eq!(
            (complaint.code, complaint.reason.as_str()),
            (Code::NotFound, "RUN_NOT_FOUND")
        );
    }
}
