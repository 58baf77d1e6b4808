//! The server dies, and the keeper hands its runs over to the next one. Each scenario is run by all servers of its
//! keeper, one after the other: the first one makes a run and dies, the later ones check.

use crate::{
    deaths::stubborn,
    scenarios::{COUNTERS, Held, counting, counts, empty, kill, signals},
    stage::{Stage, drain, is_alive, pipes, until},
};
use kennel_keeper::client::{
    Fact, HeldPause, HeldRun, KeeperEvent, Kernel, Sent, SignalResult, SignalTarget,
};
use kennel_lifecycle::{
    Exit, LeaderExit, OnMaxPause, PausePolicy, RunId, Signal, StopAction, StopCommandEnd,
    StopPolicy, StopReason, TreeVerdict,
    ladder::{Action, StopPlan},
};
use std::{io::Write, path::Path, process::ExitCode, time::Duration};

/// Scenarios that end with 0: the last server ends in order.
pub(crate) const SCENARIOS: &[&str] = &[
    // promise: R-1
    "run_continues_while_its_server_is_replaced",
    // promise: R-7
    "ended_run_is_reported_until_acknowledged",
    // promise: R-8
    "unannounced_child_is_not_handed_over",
    // promise: R-8
    "child_at_gate_is_handed_over_and_unrun",
    // promise: R-7
    "awaited_verdict_is_reported_to_next_server",
    // promise: R-1
    "paused_run_stays_paused_for_next_server",
    // promise: R-1
    "pause_in_progress_continues_without_server",
    // promise: R-1
    "expired_pause_is_handed_over_as_expired",
    // promise: R-1
    "stop_in_its_grace_continues_without_server",
    // promise: RW-74a
    "command_before_a_stop_needs_no_server",
    // promise: R-1
    "drained_rest_is_drained_for_next_server",
    // promise: R-1
    "rest_is_detached_only_by_a_servers_order",
    // promise: T-15
    "signal_is_sent_once_whichever_server_asks",
    // promise: R-1
    "many_runs_are_handed_over_at_once",
    // promise: R-11a
    "crash_loop_of_servers_ends_no_run",
    // promise: R-11a
    "servers_that_never_serve_end_runs",
    // promise: R-11
    "run_over_orphan_ttl_ends_by_its_plan",
    // promise: W-9
    "drain_expires_without_server_and_detaches_later",
];

/// Returns how long runs continue without a server.
pub(crate) fn orphan_ttl(scenario: &str) -> Duration {
    match scenario {
        "drain_expires_without_server_and_detaches_later"
        | "run_over_orphan_ttl_ends_by_its_plan" => Duration::ZERO,
        // Shorter than the longest delay between two server starts.
        "crash_loop_of_servers_ends_no_run" | "servers_that_never_serve_end_runs" => {
            Duration::from_secs(3)
        }
        _ => Duration::from_mins(10),
    }
}

/// Runs the actions of a server before it is ready; returns an exit code where it is never ready.
pub(crate) async fn before_ready(name: &str, stage: &mut Stage) -> Option<u8> {
    match (name, stage.hello.restarts) {
        (_, 0) => None,
        ("lost_for_good", 1) => {
            terminate_after_this(stage.hello.keeper.pid);
            Some(3)
        }
        ("lost_for_good", _) => {
            make(stage, "started_again");
            Some(3)
        }
        ("a_hung_server_is_replaced", 1) => hang(),
        // Server starts that fail.
        ("servers_that_never_serve_end_runs", 1..=3)
        | ("run_over_orphan_ttl_ends_by_its_plan", 1) => Some(3),
        ("run_over_orphan_ttl_ends_by_its_plan" | "command_before_a_stop_needs_no_server", _) => {
            let pid = stage.held[0].identity.command.pid;
            until(|| (!is_alive(pid)).then_some(())).await;
            None
        }
        _ => None,
    }
}

/// Sends SIGTERM to the keeper, as soon as it has reaped this process.
fn terminate_after_this(keeper: i32) {
    let text = "(while kill -0 $1; do sleep 0.01; done; kill -TERM $2) &";
    let own = std::process::id();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", text, "sh", &own.to_string(), &keeper.to_string()]);
    command.status().expect("sh starts");
}

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "run_continues_while_its_server_is_replaced" => run_continues(stage).await,
        "ended_run_is_reported_until_acknowledged" => ended(stage).await,
        "unannounced_child_is_not_handed_over" => unannounced(stage).await,
        "child_at_gate_is_handed_over_and_unrun" => at_gate(stage).await,
        "awaited_verdict_is_reported_to_next_server" => released(stage).await,
        "paused_run_stays_paused_for_next_server" => paused(stage).await,
        "pause_in_progress_continues_without_server" => pausing(stage).await,
        "expired_pause_is_handed_over_as_expired" => ran_out(stage).await,
        "stop_in_its_grace_continues_without_server" => stopping(stage).await,
        "command_before_a_stop_needs_no_server" => stop_command(stage).await,
        "drained_rest_is_drained_for_next_server" => drained(stage).await,
        "rest_is_detached_only_by_a_servers_order" => kept(stage).await,
        "signal_is_sent_once_whichever_server_asks" => signalled(stage).await,
        "many_runs_are_handed_over_at_once" => many(stage).await,
        "run_over_orphan_ttl_ends_by_its_plan" => abandoned(stage).await,
        "drain_expires_without_server_and_detaches_later" => {
            abandoned_rest(stage).await;
        }
        "crash_loop_of_servers_ends_no_run" => crash_loop(stage).await,
        "servers_that_never_serve_end_runs" => never_served(stage).await,
        "a_hung_server_is_replaced" => hung(stage).await,
        "lost_for_good" => lost_for_good(stage).await,
        other => panic!("no scenario {other}"),
    }
}

/// Ends this server.
async fn die() -> ! {
    kill(std::process::id().cast_signed());
    std::future::pending().await
}

/// Returns the only run that was handed over.
fn held(stage: &mut Stage) -> HeldRun {
    assert_eq!(stage.held.len(), 1, "{:?}", stage.held);
    stage.held.remove(0)
}

fn make(stage: &Stage, name: &str) {
    std::fs::write(stage.file(name), "made\n").expect("a file");
}

/// Waits for a file, then prints and exits with a code.
const WAITS: &str = "echo one; echo up > $0/up
    while ! test -e $0/go; do sleep 0.01; done
    echo two; echo err >&2; exit 3";

async fn run_continues(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) = stage.shell(WAITS);
        stage.start(run, &spec).await;
        stage.written("up").await;
        die().await;
    }
    let held = held(stage);
    assert!(held.released && !held.stopping);
    assert_eq!(held.pause, HeldPause::None);
    assert_eq!(held.identity.cgroup.is_some(), stage.has_cgroup());
    assert_eq!(
        held.policy.stop_plan(),
        StopPlan::abort(Duration::from_secs(2))
    );
    assert!(is_alive(held.identity.command.pid) && is_alive(held.identity.shim.pid));
    assert_eq!(stage.reports(held.run).await, [Fact::Executed {}]);
    make(stage, "go");
    let facts = stage.end(held.run).await;
    let expected = [
        Fact::Executed {},
        Fact::LeaderExited(Exit::Code(3)),
        empty(stage),
    ];
    assert_eq!(facts, expected);
    let (out, err) = pipes(held.outputs.expect("there is room"));
    assert_eq!(
        (drain(out), drain(err)),
        ("one\ntwo\n".into(), "err\n".into())
    );
}

async fn ended(stage: &mut Stage) {
    let is_over = |facts: &[Fact]| matches!(facts.last(), Some(Fact::TreeEnded(_)));
    match stage.hello.restarts {
        0 => {
            let (run, spec) = stage.shell("echo out; echo err >&2; exit 7");
            stage.start(run, &spec).await;
            stage.wait(run, is_over).await;
            die().await;
        }
        servers @ (1 | 2) => {
            let held = held(stage);
            assert!(held.released && !held.stopping);
            let expected = [
                Fact::Executed {},
                Fact::LeaderExited(Exit::Code(7)),
                empty(stage),
            ];
            assert_eq!(stage.reports(held.run).await, expected);
            if servers == 2 {
                let (out, err) = pipes(held.outputs.expect("there is room"));
                assert_eq!((drain(out), drain(err)), ("out\n".into(), "err\n".into()));
                stage.client.acknowledge(held.run);
            }
            die().await;
        }
        _ => {
            assert!(stage.held.is_empty(), "{:?}", stage.held);
            assert!(stage.all_reports().await.is_empty());
        }
    }
}

/// Traces these processes until they are released, also when the requesting process is dead by then.
async fn hold_on(stage: &Stage, pids: &[i32]) {
    let mut command = std::process::Command::new(std::env::current_exe().expect("own path"));
    command.arg("hold").arg(&stage.dir);
    command.args(pids.iter().map(ToString::to_string));
    let mut holder = command.spawn().expect("it starts");
    tokio::task::spawn_blocking(move || holder.wait());
    stage.written("held").await;
}

/// Command line: `hold DIR PID...`
pub(crate) fn hold(args: &[String]) -> ExitCode {
    let dir = Path::new(&args[0]);
    let pids = args[1..].iter().map(|pid| pid.parse().expect("a pid"));
    let held: Vec<Held> = pids.map(Held::at).collect();
    std::fs::write(dir.join("held"), "held\n").expect("a file");
    while dir.exists() && !dir.join("let_go").exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
    held.into_iter().for_each(Held::let_go);
    ExitCode::SUCCESS
}

async fn unannounced(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        // Stop all shims, so that none sends messages.
        let mut shims = Vec::new();
        until(|| {
            shims = shims_of(stage.hello.keeper.pid);
            (shims.len() == 2).then_some(())
        })
        .await;
        hold_on(stage, &shims).await;
        let text: Vec<String> = shims.iter().map(ToString::to_string).collect();
        std::fs::write(stage.file("shims"), text.join(" ") + "\n").expect("a file");
        let (run, spec) = stage.shell("echo ran > $0/ran");
        let client = stage.client.clone();
        tokio::spawn(async move { client.prepare(run, &spec).await });
        tokio::task::yield_now().await;
        die().await;
    }
    assert!(stage.held.is_empty(), "{:?}", stage.held);
    make(stage, "let_go");
    let shims = stage.written("shims").await;
    let shims = shims.split_whitespace().map(str::parse::<i32>);
    let shims: Vec<i32> = shims.map(|pid| pid.expect("a number")).collect();
    // The shim with the job exits, and its answer is dropped: new requests reuse the dead server's numbers.
    until(|| (shims.iter().filter(|pid| is_alive(**pid)).count() < shims.len()).then_some(()))
        .await;
    assert!(stage.all_reports().await.is_empty());
    assert!(!stage.file("ran").exists());
}

/// Returns the keeper's shims.
fn shims_of(keeper: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
    let children = children.unwrap_or_default();
    let pids = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    let is_shim = |pid: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name == "kennel-shim\n")
    };
    pids.filter(is_shim).collect()
}

async fn at_gate(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) = stage.shell("echo ran > $0/ran");
        let prepared = stage.prepare(run, &spec).await;
        prepared.expect("a child at its gate");
        die().await;
    }
    let held = held(stage);
    assert!(!held.released && !held.stopping);
    // This release comes too late.
    stage.client.release(held.run);
    let facts = stage.end(held.run).await;
    let expected = [Fact::NotReleased {}, Fact::TreeEnded(TreeVerdict::NeverRan)];
    assert_eq!(facts, expected);
    assert!(!is_alive(held.identity.command.pid));
    assert!(!stage.file("ran").exists());
}

async fn released(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) = stage.shell(WAITS);
        let prepared = stage.prepare(run, &spec).await;
        let prepared = prepared.expect("a child at its gate");
        hold_on(stage, &[prepared.identity.shim.pid]).await;
        // The dead server's last messages are obeyed.
        stage.client.release(run);
        die().await;
    }
    let held = held(stage);
    assert!(held.released);
    assert!(stage.reports(held.run).await.is_empty());
    stage.written("up").await;
    make(stage, "let_go");
    make(stage, "go");
    let facts = stage.end(held.run).await;
    let expected = [
        Fact::Executed {},
        Fact::LeaderExited(Exit::Code(3)),
        empty(stage),
    ];
    assert_eq!(facts, expected);
}

async fn paused(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) = stage.shell(COUNTERS);
        stage.start(run, &spec).await;
        counting(stage).await;
        let paused = stage.client.pause(run).await.expect("a keeper");
        assert_eq!(paused, SignalResult::Done);
        let (a, b) = counts(stage);
        std::fs::write(stage.file("counts"), format!("{a} {b}\n")).expect("a file");
        die().await;
    }
    let held = held(stage);
    assert_eq!(held.pause, HeldPause::Stopped);
    let (a, b) = counts(stage);
    assert_eq!(stage.written("counts").await, format!("{a} {b}\n"));
    resume_and_end(stage, held.run).await;
}

/// Records each signal that it gets.
const LISTENS: &str = "trap 'echo usr1 >> $0/got' USR1; trap 'echo int >> $0/got' INT
    echo up > $0/up; while :; do sleep 0.01; done";

async fn signalled(stage: &mut Stage) {
    let usr1 = "SIGUSR1".parse::<Signal>().expect("a signal");
    let send_to_each = async |stage: &Stage, run, target, id| {
        let sent = stage.client.signal(run, usr1, target, Some(id)).await;
        sent.expect("a keeper")
    };
    let reached =
        |sent: &Sent| matches!(sent, Sent::Now(signalled) if signalled.signalled.len() == 1);
    let got = async |stage: &Stage, count| {
        let read = || std::fs::read_to_string(stage.file("got")).unwrap_or_default();
        until(|| (read().lines().count() >= count).then(read)).await
    };
    if stage.hello.restarts == 0 {
        let (run, spec) = stage.shell(LISTENS);
        stage.start(run, &spec).await;
        stage.written("up").await;
        let sent = send_to_each(stage, run, SignalTarget::Leader, "a").await;
        assert!(reached(&sent), "{sent:?}");
        got(stage, 1).await;
        let sent = stage.client.interrupt(run, Some("b")).await;
        assert_eq!(sent.expect("a keeper").result, SignalResult::Done);
        got(stage, 2).await;
        // The run has no terminal: no process is reached.
        let sent = send_to_each(stage, run, SignalTarget::TerminalForeground, "c").await;
        assert!(matches!(&sent, Sent::Now(signalled) if signalled.no_terminal));
        die().await;
    }
    let run = held(stage).run;
    for (id, was_sent) in [("a", true), ("b", true), ("c", false), ("d", false)] {
        let answer = stage.client.was_sent(run, id).await;
        assert_eq!(answer.expect("a keeper"), was_sent, "{id}");
    }
    for id in ["a", "b"] {
        let sent = send_to_each(stage, run, SignalTarget::Leader, id).await;
        assert_eq!(sent, Sent::Before, "{id}");
        let sent = stage.client.interrupt(run, Some(id)).await;
        assert_eq!(sent.expect("a keeper").result, SignalResult::Done);
    }
    for (id, count) in [("c", 3), ("d", 4)] {
        let sent = send_to_each(stage, run, SignalTarget::Leader, id).await;
        assert!(reached(&sent), "{id}: {sent:?}");
        let signals = got(stage, count).await;
        let signals: Vec<&str> = signals.lines().collect();
        assert_eq!(signals, ["usr1", "int", "usr1", "usr1"][..count]);
    }
    let again = send_to_each(stage, run, SignalTarget::Leader, "d").await;
    assert_eq!(again, Sent::Before);
    stage.client.stop(run, &StopPlan::abort(Duration::ZERO));
    let facts = stage.end(run).await;
    let sent = |fact: &&Fact| matches!(fact, Fact::SignalSent { .. });
    assert_eq!(facts.iter().filter(sent).count(), 2, "{facts:?}");
}

async fn resume_and_end(stage: &mut Stage, run: RunId) {
    let resumed = stage.client.resume(run).await.expect("a keeper");
    assert_eq!(resumed, SignalResult::Done);
    counting(stage).await;
    stage
        .client
        .stop(run, &StopPlan::abort(Duration::from_secs(10)));
    let facts = stage.end(run).await;
    assert_eq!(facts[0], Fact::Executed {}, "{facts:?}");
    assert_eq!(facts.last(), Some(&empty(stage)));
}

async fn pausing(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) = stage.shell(COUNTERS);
        stage.start(run, &spec).await;
        counting(stage).await;
        let client = stage.client.clone();
        tokio::spawn(async move { client.pause(run).await });
        tokio::task::yield_now().await;
        die().await;
    }
    let held = held(stage);
    // The pause was obeyed, and the first scan may have been enough.
    let seen = held.pause;
    assert!(
        matches!(seen, HeldPause::Stopping | HeldPause::Stopped),
        "{seen:?}"
    );
    let paused = stage.client.pause(held.run).await.expect("a keeper");
    assert_eq!(paused, SignalResult::Done);
    resume_and_end(stage, held.run).await;
}

async fn ran_out(stage: &mut Stage) {
    match stage.hello.restarts {
        0 => {
            let (run, mut spec) = stage.shell(COUNTERS);
            spec.policy.pause = PausePolicy {
                max_pause: Some(Duration::from_millis(1)),
                on_max_pause: OnMaxPause::Resume,
            };
            stage.start(run, &spec).await;
            counting(stage).await;
            stage.client.pause(run).await.expect("a keeper");
            counting(stage).await;
            die().await;
        }
        1 => {
            let held = held(stage);
            assert_eq!(held.pause, HeldPause::Expired);
            assert_eq!(stage.reports(held.run).await, [Fact::Executed {}]);
            let resumed = stage.client.resume(held.run).await.expect("a keeper");
            assert_eq!(resumed, SignalResult::Done);
            die().await;
        }
        _ => {
            let held = held(stage);
            // The previous server resumed the run.
            assert_eq!(held.pause, HeldPause::None);
            resume_and_end(stage, held.run).await;
        }
    }
}

async fn stopping(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) =
            stage.shell("trap '' TERM; echo up > $0/up; while :; do sleep 1000; done");
        stage.start(run, &spec).await;
        stage.written("up").await;
        stage
            .client
            .stop(run, &StopPlan::abort(Duration::from_secs(3)));
        stage
            .wait(run, |facts| signals(facts) == [Signal::TERM])
            .await;
        die().await;
    }
    let held = held(stage);
    assert!(held.released && held.stopping);
    let facts = stage.end(held.run).await;
    // The ladder reaches its second rung without a further request.
    assert_eq!(signals(&facts), [Signal::TERM, Signal::KILL], "{facts:?}");
    assert_eq!(facts[0], Fact::Executed {}, "{facts:?}");
    assert_eq!(facts.last(), Some(&empty(stage)));
}

/// The command is over only when the server that ordered the stop is dead, and no other one serves before the run has ended.
async fn stop_command(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let ran = stage.file("ran").display().to_string();
        let text = format!(
            "echo x >> {ran}; while kill -0 {} 2>/dev/null; do sleep 0.01; done; echo y >> {ran}; exit 7",
            std::process::id()
        );
        let (run, mut spec) =
            stage.shell("trap 'exit 5' TERM; echo up > $0/up; while :; do sleep 0.01; done");
        let command = ["/bin/sh", "-c", &text].map(str::to_owned);
        spec.policy.stop = StopPolicy {
            steps: vec![StopAction {
                action: Action::Exec(command.to_vec()),
                wait: Duration::from_secs(3),
            }],
            ..StopPolicy::within(Duration::from_secs(6))
        };
        stage.start(run, &spec).await;
        stage.written("up").await;
        stage.client.stop(run, &spec.policy.stop_plan());
        stage.written("ran").await;
        die().await;
    }
    let held = held(stage);
    let facts = stage.end(held.run).await;
    assert_eq!(stage.written("ran").await, "x\ny\n");
    let ends = facts.iter().filter_map(|fact| match fact {
        Fact::StopCommand(command) => Some(command.end),
        _ => None,
    });
    let exited = StopCommandEnd::Exited(Exit::Code(7));
    assert_eq!(ends.collect::<Vec<_>>(), [exited], "{facts:?}");
    assert_eq!(signals(&facts), [Signal::TERM], "{facts:?}");
    assert!(
        facts.contains(&Fact::LeaderExited(Exit::Code(5))),
        "{facts:?}"
    );
    assert_eq!(facts.last(), Some(&empty(stage)));
}

/// A leader that leaves a process behind that waits for a file.
const LEAVES: &str = "
    sh -c 'echo up > $0/up; while ! test -e $0/go; do sleep 0.01; done; echo late' $0 &
    while ! test -e $0/up; do sleep 0.01; done
    echo leader; exit 4";

async fn leave(stage: &mut Stage, policy: LeaderExit) {
    let (run, mut spec) = stage.shell(LEAVES);
    spec.policy.on_leader_exit = policy;
    stage.start(run, &spec).await;
    let left = |facts: &[Fact]| matches!(facts.last(), Some(Fact::LeftBehind(_)));
    stage.wait(run, left).await;
}

async fn drained(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        leave(stage, LeaderExit::Drain { timeout: None }).await;
        die().await;
    }
    let held = held(stage);
    assert!(held.released && !held.stopping);
    let reports = stage.reports(held.run).await;
    assert_eq!(reports.len(), 3, "{reports:?}");
    assert_eq!(reports[1], Fact::LeaderExited(Exit::Code(4)));
    make(stage, "go");
    let facts = stage.end(held.run).await;
    assert_eq!(facts[..3], reports);
    assert_eq!(facts[3..], [empty(stage)]);
    let (out, _) = pipes(held.outputs.expect("there is room"));
    assert_eq!(drain(out), "leader\nlate\n");
}

async fn kept(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        leave(stage, LeaderExit::Keep).await;
        die().await;
    }
    let held = held(stage);
    let reports = stage.reports(held.run).await;
    assert_eq!(reports[1], Fact::LeaderExited(Exit::Code(4)), "{reports:?}");
    assert_eq!(
        reports.len(),
        3,
        "the absence of a pending stop was not confirmed"
    );
    stage.client.keep_rest(held.run);
    let facts = stage.end(held.run).await;
    let last = facts.last();
    assert!(
        matches!(last, Some(Fact::TreeEnded(TreeVerdict::Kept(left))) if !left.is_empty()),
        "{facts:?}"
    );
    make(stage, "go");
}

/// More messages than a socket takes at once.
const MANY: i32 = 150;

async fn many(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        for i in 0..MANY {
            let (run, spec) = stage.shell(&format!("echo {i}; exit {}", i % 100));
            let prepared = stage.prepare(run, &spec).await;
            prepared.expect("a child at its gate");
            stage.client.release(run);
        }
        die().await;
    }
    let runs = std::mem::take(&mut stage.held);
    assert_eq!(runs.len(), usize::try_from(MANY).expect("a few"));
    for (i, held) in runs.into_iter().enumerate() {
        let facts = stage.end(held.run).await;
        let code = i32::try_from(i).expect("a few") % 100;
        let expected = [
            Fact::Executed {},
            Fact::LeaderExited(Exit::Code(code)),
            empty(stage),
        ];
        assert_eq!(facts, expected);
        let (out, _) = pipes(held.outputs.expect("there is room"));
        assert_eq!(drain(out), format!("{i}\n"));
    }
}

async fn abandoned(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) =
            stage.shell("trap 'exit 5' TERM; echo up > $0/up; while :; do sleep 0.01; done");
        stage.start(run, &spec).await;
        stage.written("up").await;
        die().await;
    }
    assert_eq!(stage.hello.restarts, 2);
    let held = held(stage);
    let facts = stage.end(held.run).await;
    let position_of = |fact: &Fact| facts.iter().position(|position_of| position_of == fact);
    assert!(
        position_of(&Fact::Stops(StopReason::Orphaned))
            < position_of(&Fact::LeaderExited(Exit::Code(5))),
        "{facts:?}"
    );
    assert!(
        position_of(&Fact::Stops(StopReason::Orphaned)).is_some(),
        "{facts:?}"
    );
    assert_eq!(signals(&facts), [Signal::TERM], "{facts:?}");
    assert!(
        facts.contains(&Fact::LeaderExited(Exit::Code(5))),
        "{facts:?}"
    );
    assert_eq!(facts.last(), Some(&empty(stage)));
    // The wait restarts with each lost server: this server serves, and starts its own run.
    let (run, spec) = stage.shell("exit 6");
    stage.start(run, &spec).await;
    let facts = stage.end(run).await;
    assert!(
        facts.contains(&Fact::LeaderExited(Exit::Code(6))),
        "{facts:?}"
    );
}

async fn abandoned_rest(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        leave(stage, LeaderExit::Keep).await;
        leave(stage, LeaderExit::Drain { timeout: None }).await;
        die().await;
    }
    let runs = std::mem::take(&mut stage.held);
    assert_eq!(runs.len(), 2, "{runs:?}");
    for held in runs {
        if held.policy.on_leader_exit == LeaderExit::Keep {
            // Repeats a recorded stop that the earlier server died before sending.
            stage.client.stop(held.run, &held.policy.stop_plan());
        }
        let facts = stage.end(held.run).await;
        assert_eq!(facts[1], Fact::LeaderExited(Exit::Code(4)), "{facts:?}");
        assert_eq!(facts.last(), Some(&empty(stage)));
        assert_eq!(signals(&facts), [Signal::TERM], "{facts:?}");
    }
    make(stage, "go");
}

/// Before the last of these the keeper waits longer than runs continue without a server.
const CRASHES: u32 = 4;

async fn crash_loop(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) = stage.shell(WAITS);
        stage.start(run, &spec).await;
    }
    if stage.hello.restarts < CRASHES {
        stage.written("up").await;
        die().await;
    }
    let held = held(stage);
    assert!(!held.stopping, "{held:?}");
    assert_eq!(stage.reports(held.run).await, [Fact::Executed {}]);
    make(stage, "go");
    let facts = stage.end(held.run).await;
    assert!(
        facts.contains(&Fact::LeaderExited(Exit::Code(3))),
        "{facts:?}"
    );
}

async fn never_served(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) = stage.shell(WAITS);
        stage.start(run, &spec).await;
        stage.written("up").await;
        die().await;
    }
    assert_eq!(stage.hello.restarts, 4);
    let held = held(stage);
    let facts = stage.end(held.run).await;
    assert!(
        facts.contains(&Fact::Stops(StopReason::Orphaned)),
        "{facts:?}"
    );
    assert_eq!(signals(&facts), [Signal::TERM], "{facts:?}");
}

fn hang() -> ! {
    // SAFETY: raise takes an integer.
    unsafe { libc::raise(libc::SIGSTOP) };
    panic!("a stopped server was continued");
}

async fn hung(stage: &mut Stage) {
    if stage.hello.restarts == 0 {
        let (run, spec) = stage.shell(WAITS);
        stage.start(run, &spec).await;
        hang();
    }
    assert_eq!(
        stage.hello.restarts, 2,
        "the second one hung before it served"
    );
    make(stage, "go");
    let held = held(stage);
    let facts = stage.end(held.run).await;
    assert!(
        facts.contains(&Fact::LeaderExited(Exit::Code(3))),
        "{facts:?}"
    );
}

async fn lost_for_good(stage: &mut Stage) {
    stubborn(stage).await;
    die().await;
}

/// Marks the failure of a server, which must not be followed by one that continues.
pub(crate) fn fail_for_good(dir: &Path) {
    let failed = dir.join("failed");
    let earlier = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        earlier(panic);
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&failed);
        let _ = file.and_then(|mut file| writeln!(file, "{panic}"));
    }));
}

/// Ends the service for a server that has failed.
pub(crate) async fn give_up(stage: &mut Stage) {
    // SAFETY: kill takes integers; the keeper is this process's parent.
    unsafe { libc::kill(stage.hello.keeper.pid, libc::SIGTERM) };
    while stage.event().await != (KeeperEvent::Shutdown {}) {}
}
