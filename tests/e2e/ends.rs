//! Children that do not exit in order: each run ends as the contract says, with three end times.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{self, AbortWait, RunState, WaitCondition};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, eventually, eventually_async,
    kennel::kill_exactly,
    must, naughty,
    procfs::{self, Proc},
    programs, sh, within,
};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

with_and_without_cgroup!(escapees_and_attackers_end_completely);

/// A grace that a polite child never needs.
const LONG_GRACE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn misbehaving_children_end_within_the_guarantees() {
    let kennel = Kennel::start(Options::default().without_cgroup()).await;
    play_scenes! {
        &kennel;
        child_that_ignores_term_is_killed_after_grace,
        a_child_that_is_stopped_takes_its_term,
        double_forked_process_ends_with_its_leader,
        grandchild_holding_the_pipe_delays_no_caller,
        worker_keeps_its_grace_after_the_shell,
        a_disguise_does_not_hide,
        a_second_abort_may_only_shorten_the_grace,
    }
}

// promise: T-1
async fn child_that_ignores_term_is_killed_after_grace(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let grace = Duration::from_millis(400);
    let script = format!(
        "trap '' TERM INT HUP; exec {} sleep",
        programs::naughty().display()
    );
    let run = must("spawn", client.spawn(sh(&script).grace(grace)).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);

    let began = Instant::now();
    let run = must("abort", client.abort(&run.run_id).await);
    let took = began.elapsed();

    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"));
    assert!(took >= grace && took < grace + PATIENCE / 2, "{took:?}");
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    run.three_ends();
    print.assert_nothing_left();
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let signals = heard.signals();
    assert_eq!(
        signals.first().map(String::as_str),
        Some("SIGTERM"),
        "{signals:?}"
    );
    assert!(
        signals.iter().any(|signal| signal == "SIGKILL"),
        "{signals:?}"
    );
}

// promise: T-2
async fn a_child_that_is_stopped_takes_its_term(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client
            .spawn(naughty(&["stop-self"]).grace(LONG_GRACE))
            .await,
    );
    let pid = run.attempt().pid;
    eventually("it has stopped itself", PATIENCE, || {
        Proc::read(pid).filter(|proc| proc.state == 'T')
    })
    .await;
    let print = Footprint::of_run(&run);

    let began = Instant::now();
    let run = must("abort", client.abort(&run.run_id).await);

    assert_eq!(
        run.signal().as_deref(),
        Some("SIGTERM"),
        "not by the last resort"
    );
    assert!(began.elapsed() < LONG_GRACE / 2, "{:?}", began.elapsed());
    run.three_ends();
    print.assert_nothing_left();
}

// promise: T-3, W-1
async fn double_forked_process_ends_with_its_leader(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["double-fork"])).await);
    let mut print = Footprint::of_run(&run);
    print.learn(run.attempt().shim_pid);

    let run = must(
        "wait",
        within("it ends by itself", PATIENCE, client.ended(&run.run_id)).await,
    );

    assert_eq!(
        (run.state(), run.reason(), run.code()),
        (RunState::Succeeded, "exited", Some(0))
    );
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    let [leader, _, tree] = run.three_ends();
    assert!(leader <= tree);
    print.assert_nothing_left();
}

// promise: E-3
async fn grandchild_holding_the_pipe_delays_no_caller(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // The grandchild ignores TERM: it lives until the test ends it.
    let script = format!("trap '' TERM; {} hold-pipe", programs::naughty().display());
    let run = must(
        "spawn",
        client
            .spawn(sh(&script).grace(Duration::from_hours(1)))
            .await,
    );
    let mut print = Footprint::of_run(&run);

    let waited = client.wait(&run.run_id, WaitCondition::LeaderExited);
    let (live, reached) = must(
        "wait",
        within("the leader's exit is reported", PATIENCE, waited).await,
    );
    assert!(reached);
    assert_eq!(
        live.code(),
        Some(0),
        "its exit is reported before the tree is empty"
    );
    assert!(
        live.end_time.is_none(),
        "and the run has not ended: {live:?}"
    );
    print.learn(run.attempt().shim_pid);
    let rest = print.count().alive();
    assert!(!rest.is_empty(), "the grandchild is still there");
    for process in &rest {
        kill_exactly(process, Signal::SIGKILL);
    }

    let run = must("wait", client.ended(&run.run_id).await);
    let [leader, streams, tree] = run.three_ends();
    assert!(tree > leader, "{leader} {tree}");
    assert!(streams >= leader);
    assert_eq!((run.state(), run.reason()), (RunState::Succeeded, "exited"));
    print.assert_nothing_left();
}

// promise: T-6
async fn worker_keeps_its_grace_after_the_shell(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let (go, done) = (kennel.scratch().join("go"), kennel.scratch().join("done"));
    let worker = format!(
        "trap 'until [ -e {} ]; do sleep 0.05; done; echo finished >> {}; exit 0' TERM; echo up; while :; do sleep 0.05; done",
        go.display(),
        done.display()
    );
    let spec = sh("sh -c \"$WORKER\"; echo")
        .env("WORKER", &worker)
        .grace(LONG_GRACE);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);

    let stop = client.abort_with(&run.run_id, None, AbortWait::LeaderExited);
    let stopping = must("abort", stop.await);
    assert!(
        stopping.end_time.is_none(),
        "the worker works: {stopping:?}"
    );
    // The worker finishes some time after the shell has exited.
    std::fs::write(&go, "").expect("written");
    let run = must("wait", client.ended(&run.run_id).await);

    assert_eq!(
        std::fs::read_to_string(&done).unwrap_or_default(),
        "finished\n"
    );
    let [leader, _, tree] = run.three_ends();
    assert!(leader < tree, "{run:?}");
    assert_eq!(
        (run.reason(), run.signal().as_deref()),
        ("aborted", Some("SIGTERM"))
    );
    print.assert_nothing_left();
}

async fn escapees_and_attackers_end_completely(options: Options) {
    let kennel = Kennel::start(options).await;
    play_scenes! {
        &kennel;
        storm_of_sessions_ends_completely,
        daemons_without_environment_are_ended_too,
        command_that_kills_its_shim_ends_completely,
        command_that_stops_its_shim_is_proven_ended,
    }
}

// promise: T-4
async fn storm_of_sessions_ends_completely(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["storm"])).await);
    let shim = run.attempt().shim_pid;
    eventually("the storm has grown", PATIENCE, || {
        (procfs::descendants(&procfs::all(), shim).len() >= 255).then_some(())
    })
    .await;
    let mut print = Footprint::of_run(&run);
    print.learn(shim);

    let aborted = client.abort_with(&run.run_id, Some(Duration::ZERO), AbortWait::TreeEmpty);
    let run = must("abort", within("the storm ends", PATIENCE, aborted).await);

    assert!(print.seen_len() >= 255, "{}", print.seen_len());
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    run.three_ends();
    print.assert_nothing_left();
}

// promise: T-5
async fn daemons_without_environment_are_ended_too(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&run.run_id).await;
    let shim = run.attempt().shim_pid;
    // Four processes: the leader, a plain child, two orphans in their own sessions.
    let mut print = Footprint::of_run(&run);
    eventually("all four are there", PATIENCE, || {
        let all = procfs::descendants(&procfs::all(), shim);
        let sessions: std::collections::BTreeSet<i32> = all.iter().map(|proc| proc.sid).collect();
        (all.len() == 4 && sessions.len() == 3).then_some(())
    })
    .await;
    print.learn(shim);

    let run = must("abort", client.abort(&run.run_id).await);

    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    print.assert_nothing_left();
}

// promise: T-5
async fn a_disguise_does_not_hide(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["disguise"])).await);
    client.hear_text(&run.run_id, "up\n").await;
    let pid = run.attempt().pid;
    assert_eq!(
        Proc::read(pid).expect("it runs").cmdline()[0],
        "[kworker/0:1]"
    );
    let print = Footprint::of_run(&run);
    let run = must("abort", client.abort(&run.run_id).await);
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    print.assert_nothing_left();
}

// promise: T-7
async fn command_that_kills_its_shim_ends_completely(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["kill-parent"])).await);
    let print = Footprint::of_run(&run);
    let shim = run.attempt().shim_pid;
    eventually("its shim is gone", PATIENCE, || {
        Proc::read(shim)
            .is_none_or(|proc| proc.is_zombie())
            .then_some(())
    })
    .await;

    let aborted = client.abort_with(
        &run.run_id,
        Some(Duration::from_millis(300)),
        AbortWait::TreeEmpty,
    );
    let run = must("abort", within("the run ends", PATIENCE, aborted).await);

    // The keeper reaps processes that the dead shim would have reaped.
    print.until_nothing_is_left().await;
    assert!(run.end_time.is_some(), "{run:?}");
    // A shim that is gone cannot report ECHILD.
    let verdict = run.tree_verdict.and_then(|tree| tree.verdict);
    match verdict {
        Some(pb::tree_verdict::Verdict::Unverified(_)) => {}
        Some(pb::tree_verdict::Verdict::Empty(empty)) => {
            assert_eq!(empty.proof(), pb::EmptyProof::Cgroup);
        }
        other => panic!("{other:?}"),
    }
    let after = must("spawn", client.spawn(sh("exit 0")).await);
    assert_eq!(
        must("wait", client.ended(&after.run_id).await).code(),
        Some(0),
        "the rest goes on"
    );
}

// promise: T-7a
async fn command_that_stops_its_shim_is_proven_ended(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // The command stops its shim once, or repeatedly.
    for script in [
        "kill -STOP $PPID; echo up; exec sleep 600",
        "trap '' TERM; echo up; while :; do kill -STOP $PPID; done",
    ] {
        let run = must("spawn", client.spawn(sh(script)).await);
        client.hear_up(&run.run_id).await;
        let print = Footprint::of_run(&run);

        let grace = Some(Duration::from_millis(100));
        let aborted = client.abort_with(&run.run_id, grace, AbortWait::TreeEmpty);
        let run = must("abort", within("the run ends", PATIENCE, aborted).await);

        print.assert_nothing_left();
        let verdict = run.tree_verdict.clone().and_then(|tree| tree.verdict);
        let Some(pb::tree_verdict::Verdict::Empty(empty)) = verdict else {
            panic!("{run:?}")
        };
        let identity = run.attempt().identity.as_ref().expect("it was recorded");
        let full = match identity.cgroup_path {
            Some(_) => pb::EmptyProof::CgroupAndEchild,
            None => pb::EmptyProof::Echild,
        };
        assert_eq!(empty.proof(), full, "{run:?}");
        run.three_ends();
    }
}

// promise: T-8
async fn a_second_abort_may_only_shorten_the_grace(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["storm-node", "1"])).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    let abort = |grace: u64| {
        let mut client = client.clone();
        let run_id = run.run_id.clone();
        async move {
            let grace = Some(Duration::from_secs(grace));
            must(
                "abort",
                client.abort_with(&run_id, grace, AbortWait::None).await,
            )
        }
    };
    let deadline = |run: &pb::Run| {
        run.stop_deadline_time
            .expect("a stop has a deadline")
            .seconds
    };

    let first = abort(60).await;
    assert_eq!(first.state(), RunState::Stopping);
    let longer = abort(600).await;
    assert_eq!(
        deadline(&longer),
        deadline(&first),
        "a longer grace changes nothing"
    );
    abort(20).await;
    let before = deadline(&first);
    let shortened = eventually_async("the deadline comes nearer", PATIENCE, || {
        let mut client = client.clone();
        let run_id = run.run_id.clone();
        async move {
            client
                .get(&run_id)
                .await
                .ok()
                .filter(|run| deadline(run) < before)
        }
    });
    shortened.await;
    let began = Instant::now();
    must(
        "abort",
        client
            .abort_with(&run.run_id, Some(Duration::ZERO), AbortWait::TreeEmpty)
            .await,
    );
    assert!(began.elapsed() < Duration::from_secs(10));
    print.assert_nothing_left();
    let again = must("abort", client.abort(&run.run_id).await);
    assert_eq!(again.reason(), "aborted", "Abort of an ended run is OK");
}
