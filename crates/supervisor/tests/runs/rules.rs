//! Readiness, liveness and output rules of a run: each acts once, whichever server sees it. The servers that are probed
//! are helper commands of the fake kernel.

use crate::{
    abort, event_names,
    world::{Lives, Nature, Stage, call, run_id},
};
use kennel_keeper::client::HelperEnd;
use kennel_lifecycle::{
    EndReason, Exit, Facets, JsonPattern, LinePattern, LiveProbe, Liveness, OutputRule, Readiness,
    ReadyProbe, RestartMode, RestartPolicy, RuleAction, RuleOff, RunId, RunState, StateProbe,
};
use kennel_supervisor::{
    AbortWait, CallError, Condition, LineMatcher, OutputWait, RunView, SpawnCall,
};
use std::{sync::mpsc as std_mpsc, time::Duration};
use tokio::sync::oneshot;

/// A limit on the clock of the host, by which starts and results are counted.
const SHORT: Duration = Duration::from_millis(30);
const EVERY: Duration = Duration::from_secs(1);
/// Upper bound on a busy machine.
const SOON: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_hours(1);
const READY: &[u8] = b"ready\n";

fn ready_by(probe: ReadyProbe, start_timeout: Option<Duration>) -> SpawnCall {
    let mut call = call(Some(run_id()));
    call.spec.policy.readiness = Some(Box::new(Readiness {
        probe,
        interval: EVERY,
        timeout: EVERY,
        start_timeout,
    }));
    call
}

fn ready_by_line(start_timeout: Option<Duration>) -> SpawnCall {
    let line = ReadyProbe::Line(LinePattern::Regex("^ready$".into()));
    ready_by(line, start_timeout)
}

fn helper() -> StateProbe {
    StateProbe::Exec(vec!["probe".into()])
}

fn live_by_helper(mut call: SpawnCall, failure_threshold: u32) -> SpawnCall {
    call.spec.policy.liveness = Some(Box::new(Liveness {
        probe: LiveProbe::State(helper()),
        interval: EVERY,
        timeout: EVERY,
        failure_threshold,
    }));
    call
}

fn restarting(mut call: SpawnCall, max_restarts: u32) -> SpawnCall {
    call.spec.policy.restart = RestartPolicy {
        mode: RestartMode::Always,
        delay: Duration::from_millis(1),
        max_delay: Duration::from_millis(1),
        max_restarts: Some(max_restarts),
        // Without a readiness sign, uptime would reset the restart count.
        min_uptime: Duration::ZERO,
        ..RestartPolicy::default()
    };
    call
}

/// Returns a run whose line `result` gives it so much time to end by itself.
fn with_result(after: Duration) -> SpawnCall {
    let mut call = call(Some(run_id()));
    call.spec.policy.output_rules = vec![OutputRule {
        name: "done".into(),
        pattern: LinePattern::Literal("result".into()),
        streams: [true; 2],
        action: RuleAction::Result {
            after,
            grace: EVERY,
        },
    }];
    call
}

fn answers(stage: &Stage, code: i32) {
    stage.kernel().helper = HelperEnd::Exited(Exit::Code(code));
}

fn asked(stage: &Stage) -> usize {
    stage.kernel().helped
}

async fn wait_for(stage: &Stage, condition: Condition) -> RunView {
    let waited = stage.supervisor.wait(run_id(), condition).await.unwrap();
    assert!(waited.reached, "{waited:?}");
    waited.run
}

async fn ended(stage: &Stage) -> (RunView, EndReason) {
    let view = wait_for(stage, Condition::Ended).await;
    let reason = view.outcome.as_ref().unwrap().reason.clone();
    (view, reason)
}

async fn events_named(stage: &Stage, wanted: &str) -> usize {
    let names = event_names(stage, run_id()).await;
    names.iter().filter(|name| *name == wanted).count()
}

/// The line is written while a server lives, or while none does.
// promise: RW-10
#[test]
fn ready_line_is_matched_once_across_server_deaths() {
    for is_written_alone in [true, false] {
        for found_by in 0..3 {
            let lives = Lives::of(Nature::default());
            lives.live(async |stage| {
                let spawned = stage.supervisor.spawn(ready_by_line(None)).await;
                assert!(spawned.unwrap().run.facets.ready.is_none());
            });
            for life in 0..3 {
                if life == found_by && is_written_alone {
                    lives.world.writes(run_id(), READY);
                }
                lives.live(async |stage| {
                    if life == found_by {
                        if !is_written_alone {
                            stage.writes(run_id(), READY);
                        }
                        let view = wait_for(stage, Condition::Ready).await;
                        assert_eq!(view.state, RunState::Running);
                    }
                    let view = stage.supervisor.get(run_id()).await.unwrap();
                    assert_eq!(view.facets.ready.is_some(), life >= found_by);
                });
            }
            lives.live(async |stage| {
                stage.supervisor.abort(abort(run_id())).await.unwrap();
                assert_eq!(events_named(stage, "ready").await, 1);
                wait_for(stage, Condition::Ready).await;
            });
        }
    }
}

// promise: RW-7a
#[tokio::test]
async fn wait_for_ready_ends_with_unready_run() {
    let stage = Stage::set(Nature::default()).await;
    stage.supervisor.spawn(ready_by_line(None)).await.unwrap();
    stage.exits(run_id(), 3);
    let waited = stage.supervisor.wait(run_id(), Condition::Ready).await;
    let waited = waited.unwrap();
    assert!(!waited.reached);
    assert_eq!(waited.run.exit, Some(Exit::Code(3)));
}

// promise: RW-8
#[test]
fn start_timeout_keeps_counting_across_server_deaths() {
    for deaths in 0..2 {
        let lives = Lives::of(Nature::default());
        let spec = ready_by_line(Some(SHORT));
        let begun = lives.live(async |stage| {
            stage.supervisor.spawn(spec).await.unwrap();
            if deaths == 0 {
                return Some(ended(stage).await);
            }
            None
        });
        // Reading the written output takes time on the runtime's clock.
        let (view, reason) =
            begun.unwrap_or_else(|| lives.live_long(async |stage| ended(stage).await));
        assert_eq!(
            (view.state, reason),
            (RunState::Failed, EndReason::NotReady)
        );
        let plans = &lives.world.state.lock().unwrap().children[&run_id()].stop_plans;
        assert_eq!(plans.len(), 1);
    }
}

/// A run that becomes ready and dies is no crash loop; one that never becomes ready is, whatever its uptime.
// promise: RW-9
#[tokio::test]
async fn readiness_resets_the_restart_count() {
    let nature = |output: &[u8]| Nature {
        exits_at_once: Some(1),
        output: output.to_vec(),
        ..Nature::default()
    };
    let stage = Stage::set(nature(b"up\n")).await;
    let spec = restarting(ready_by_line(None), 2);
    stage.supervisor.spawn(spec.clone()).await.unwrap();
    let (view, reason) = ended(&stage).await;
    let exhausted = EndReason::RestartsExhausted { restarts: 2 };
    assert_eq!((view.attempt, reason), (3, exhausted));

    let stage = Stage::set(nature(READY)).await;
    stage.supervisor.spawn(spec).await.unwrap();
    let attempt = async || {
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert!(view.outcome.is_none(), "{view:?}");
        view.attempt
    };
    while attempt().await < 6 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // This attempt does not exit by itself: earlier ones may have exited before the abort.
    stage.kernel().nature.exits_at_once = None;
    let stays = |attempt| {
        let kernel = stage.kernel();
        let nature = kernel.ran.get(&(run_id(), attempt));
        nature.is_some_and(|nature| nature.exits_at_once.is_none())
    };
    while !stays(attempt().await) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stage.supervisor.abort(abort(run_id())).await.unwrap();
    let (_, reason) = ended(&stage).await;
    assert!(matches!(reason, EndReason::Aborted { .. }), "{reason:?}");
}

// promise: RW-7
#[tokio::test(start_paused = true)]
async fn readiness_is_probed_until_it_succeeds() {
    let stage = Stage::set(Nature::default()).await;
    answers(&stage, 1);
    let spec = ready_by(ReadyProbe::State(helper()), None);
    stage.supervisor.spawn(spec).await.unwrap();
    while asked(&stage) < 3 {
        tokio::time::sleep(EVERY).await;
    }
    let view = stage.supervisor.get(run_id()).await.unwrap();
    assert!(view.facets.ready.is_none());
    answers(&stage, 0);
    let view = wait_for(&stage, Condition::Ready).await;
    assert_eq!(view.row.facets.ready.unwrap().by, "exec");
    let before = asked(&stage);
    tokio::time::sleep(HOUR).await;
    assert_eq!(asked(&stage), before, "no probe follows readiness");
    stage.supervisor.abort(abort(run_id())).await.unwrap();
    assert_eq!(events_named(&stage, "ready").await, 1);
}

// promise: RW-160
#[tokio::test]
async fn tcp_probe_ignores_listener_of_another_process() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let probe = || StateProbe::Tcp(listener.local_addr().unwrap().port());
    let inode = nix::sys::stat::fstat(&listener).unwrap().st_ino;
    let stage = Stage::set(Nature::default()).await;
    let mut spec = ready_by(ReadyProbe::State(probe()), None);
    spec.spec.policy.readiness.as_mut().unwrap().interval = Duration::from_millis(10);
    stage.supervisor.spawn(spec.clone()).await.unwrap();
    // Before the third probe the first two have failed.
    for _ in 0..3 {
        listener.accept().await.unwrap();
    }
    let view = stage.supervisor.get(run_id()).await.unwrap();
    assert!(view.facets.ready.is_none());
    stage.kernel().sockets.0 = vec![1, inode];
    wait_for(&stage, Condition::Ready).await;
    stage.supervisor.abort(abort(run_id())).await.unwrap();
    assert_eq!(events_named(&stage, "warning").await, 1);

    // A socket that cannot be seen counts, with a warning; liveness fails like readiness.
    let stage = Stage::set(Nature::default()).await;
    stage.kernel().sockets.1 = true;
    spec.spec.policy.liveness = Some(Box::new(Liveness {
        probe: LiveProbe::State(probe()),
        interval: Duration::from_millis(10),
        timeout: SOON,
        failure_threshold: 2,
    }));
    stage.supervisor.spawn(spec).await.unwrap();
    wait_for(&stage, Condition::Ready).await;
    stage.kernel().sockets.1 = false;
    let (_, reason) = ended(&stage).await;
    let EndReason::NotLive { error, .. } = &reason else {
        panic!("{reason:?}");
    };
    assert!(error.contains("no process of this run"), "{error}");
    assert_eq!(events_named(&stage, "warning").await, 2);
}

/// Not after an interval: the server before it may have died just before it would have asked.
// promise: RW-105
#[test]
fn next_server_probes_readiness_at_once() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        answers(stage, 1);
        let mut spec = ready_by(ReadyProbe::State(helper()), None);
        spec.spec.policy.readiness.as_mut().unwrap().interval = HOUR;
        stage.supervisor.spawn(spec).await.unwrap();
        while asked(stage) < 1 {
            tokio::task::yield_now().await;
        }
    });
    lives.world.state.lock().unwrap().helper = HelperEnd::Exited(Exit::Code(0));
    // `live` uses a clock that does not run ahead.
    lives.live(async |stage| {
        let ready = tokio::time::timeout(SOON, wait_for(stage, Condition::Ready));
        ready.await.expect("it is asked at once");
    });
}

// promise: RW-57
#[tokio::test(start_paused = true)]
async fn ready_run_ends_after_failures_in_a_row() {
    let stage = Stage::set(Nature::default()).await;
    answers(&stage, 1);
    let spec = live_by_helper(ready_by_line(None), 3);
    stage.supervisor.spawn(spec).await.unwrap();
    tokio::time::sleep(HOUR).await;
    assert_eq!(asked(&stage), 0, "it is not ready yet");
    stage.writes(run_id(), READY);
    wait_for(&stage, Condition::Ready).await;
    // Two failures between successes are not three in a row.
    for code in [1, 1, 0, 1, 1, 0, 1, 1, 0] {
        answers(&stage, code);
        let before = asked(&stage);
        while asked(&stage) == before {
            tokio::time::sleep(EVERY / 10).await;
        }
    }
    let view = stage.supervisor.get(run_id()).await.unwrap();
    assert_eq!(view.state, RunState::Running);
    answers(&stage, 1);
    let (view, reason) = ended(&stage).await;
    assert_eq!(view.state, RunState::Failed);
    let EndReason::NotLive { failures, error } = reason else {
        panic!("{reason:?}");
    };
    assert_eq!((failures, &*error), (3, "the command exited with code 1"));
}

// promise: RW-57
#[tokio::test(start_paused = true)]
async fn loss_of_liveness_leads_to_a_restart() {
    let stage = Stage::set(Nature::default()).await;
    answers(&stage, 1);
    let mut spec = restarting(live_by_helper(call(Some(run_id())), 2), 1);
    spec.spec.policy.restart.mode = RestartMode::OnFailure;
    spec.spec.policy.restart.min_uptime = HOUR;
    stage.supervisor.spawn(spec).await.unwrap();
    let (view, reason) = ended(&stage).await;
    let exhausted = EndReason::RestartsExhausted { restarts: 1 };
    assert_eq!((view.attempt, reason), (2, exhausted));
    let first = &view.past[0].outcome.reason;
    assert!(
        matches!(first, EndReason::NotLive { failures: 2, .. }),
        "{first:?}"
    );
}

/// A paused run cannot answer, and earlier failures do not count afterwards.
// promise: RW-57a
#[tokio::test(start_paused = true)]
async fn paused_run_is_not_probed() {
    let stage = Stage::set(Nature::default()).await;
    answers(&stage, 1);
    let spec = live_by_helper(call(Some(run_id())), 3);
    stage.supervisor.spawn(spec).await.unwrap();
    while asked(&stage) < 2 {
        tokio::time::sleep(EVERY / 10).await;
    }
    stage.supervisor.pause(run_id()).await.unwrap();
    let before = asked(&stage);
    tokio::time::sleep(HOUR).await;
    assert_eq!(asked(&stage), before);
    let view = stage.supervisor.get(run_id()).await.unwrap();
    assert_eq!(view.state, RunState::Paused);
    stage.supervisor.resume(run_id()).await.unwrap();
    let (_, reason) = ended(&stage).await;
    assert!(
        matches!(reason, EndReason::NotLive { failures: 3, .. }),
        "{reason:?}"
    );
    assert_eq!(asked(&stage), before + 3);
}

// promise: RW-57a
#[test]
fn next_server_counts_failures_from_zero() {
    let lives = Lives::of(Nature::default());
    lives.live_long(async |stage| {
        answers(stage, 1);
        let spec = live_by_helper(call(Some(run_id())), 3);
        stage.supervisor.spawn(spec).await.unwrap();
        while asked(stage) < 2 {
            tokio::time::sleep(EVERY / 10).await;
        }
    });
    lives.live_long(async |stage| {
        let before = asked(stage);
        let (_, reason) = ended(stage).await;
        assert!(
            matches!(reason, EndReason::NotLive { failures: 3, .. }),
            "{reason:?}"
        );
        assert_eq!(asked(stage), before + 3);
    });
}

// promise: RW-13
#[test]
fn run_may_finish_after_its_result_line() {
    // A run ends by itself or is stopped; the server that saw the line may die.
    for (exits, state, by_itself) in [
        (Some(0), RunState::Succeeded, true),
        (Some(3), RunState::Failed, true),
        (None, RunState::Succeeded, false),
    ] {
        for dies in [false, true] {
            let lives = Lives::of(Nature::default());
            let after = if by_itself { HOUR } else { SHORT };
            lives.live(async |stage| {
                stage.supervisor.spawn(with_result(after)).await.unwrap();
                // The first result counts.
                stage.writes(run_id(), b"result\nresult\n");
                let view = || stage.supervisor.get(run_id());
                while view().await.unwrap().facets.result.is_none() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if !dies {
                    end_after_result(stage, exits, state, by_itself).await;
                }
            });
            if dies {
                lives.live(async |stage| {
                    end_after_result(stage, exits, state, by_itself).await;
                });
            }
        }
    }
}

async fn end_after_result(stage: &Stage, code: Option<i32>, ended_as: RunState, by_itself: bool) {
    if let Some(code) = code {
        stage.exits(run_id(), code);
    }
    let (view, reason) = ended(stage).await;
    let wanted = if by_itself {
        EndReason::Exited
    } else {
        EndReason::Result {
            rule: "done".into(),
        }
    };
    assert_eq!((view.state, reason), (ended_as, wanted));
    assert_eq!(events_named(stage, "output_matched").await, 1);
}

/// A pattern that is given up on a line of [`dear_line`], and whose other part would match `hello`.
const DEAR: &str = "[a-h][a-p]{500}[0-9]|hello";

/// Shorter than a pipe is large: no test reads while it writes.
fn dear_line() -> Vec<u8> {
    let mut seed = 1_u32;
    let letter = |_| {
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
        b'a' + u8::try_from(seed >> 16 & 15).unwrap()
    };
    let mut line: Vec<u8> = (0..48 * 1024).map(letter).collect();
    line.push(b'\n');
    line
}

/// Returns a run with a rule that is switched off at a dear line, and one that matches `the end`.
fn with_dear_rule() -> SpawnCall {
    let rule = |name: &str, pattern| OutputRule {
        name: name.into(),
        pattern,
        streams: [true; 2],
        action: RuleAction::Event,
    };
    let mut call = call(Some(run_id()));
    call.spec.policy.output_rules = vec![
        rule("dear", LinePattern::Regex(DEAR.into())),
        rule("end", LinePattern::Literal("the end".into())),
    ];
    call
}

/// Starts work of the runs' owner that lasts until the sender is dropped: no rule of theirs has a turn meanwhile.
async fn slow_owner(stage: &Stage) -> std_mpsc::Sender<()> {
    let (begin, is_begun) = oneshot::channel();
    let (end, ended) = std_mpsc::channel();
    let supervisor = stage.supervisor.clone();
    tokio::spawn(async move {
        let owner = call(None).owner.as_str().into();
        let wait = move |_: &mut _| {
            begin.send(()).unwrap();
            ended.recv().unwrap_err();
        };
        supervisor.owner_turn(&owner, wait).await.unwrap();
    });
    is_begun.await.unwrap();
    end
}

/// Spawns a run whose rules lag, with a line that matches.
async fn lagging(stage: &Stage) -> std_mpsc::Sender<()> {
    let end = slow_owner(stage).await;
    stage.supervisor.spawn(with_dear_rule()).await.unwrap();
    stage.writes(run_id(), b"the end\n");
    // The test clock advances when no task has work.
    tokio::time::sleep(HOUR).await;
    assert_eq!(facets(stage).await.matched.events, 0, "tested by a task");
    end
}

async fn facets(stage: &Stage) -> Facets {
    stage.supervisor.get(run_id()).await.unwrap().row.facets
}

/// Waits until rules have emitted so many events.
async fn emitted(stage: &Stage, count: u32) -> Facets {
    loop {
        let facets = facets(stage).await;
        if facets.matched.events >= count {
            return facets;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

// promise: RW-5d
#[test]
fn expensive_rule_stays_switched_off() {
    let lives = Lives::of(Nature::default());
    let seen = lives.live(async |stage| {
        stage.supervisor.spawn(with_dear_rule()).await.unwrap();
        stage.writes(run_id(), &[&dear_line()[..], b"the end\n"].concat());
        emitted(stage, 1).await.switched_off
    });
    assert_eq!(seen["dear"].reason, RuleOff::GaveUp);
    for life in 2..4 {
        lives.live(async |stage| {
            let output = [b"hello\n", &dear_line()[..], b"the end\n"].concat();
            stage.writes(run_id(), &output);
            let facets = emitted(stage, life).await;
            assert_eq!(facets.switched_off, seen);
            assert_eq!(facets.matched.events, life, "`hello` matches nothing");
        });
    }
    lives.live(async |stage| {
        stage.supervisor.abort(abort(run_id())).await.unwrap();
        assert_eq!(events_named(stage, "rule_switched_off").await, 1);
        assert_eq!(events_named(stage, "warning").await, 1);
    });
}

// promise: RW-5a
#[tokio::test(start_paused = true)]
async fn slow_rules_do_not_block_calls() {
    let stage = Stage::set(Nature::default()).await;
    let end = lagging(&stage).await;
    let other = RunId::from_u128(8);
    stage.supervisor.spawn(call(Some(other))).await.unwrap();
    stage.supervisor.abort(abort(other)).await.unwrap();
    let ended = stage.supervisor.wait(other, Condition::Ended).await;
    assert!(ended.unwrap().reached);
    drop(end);
    emitted(&stage, 1).await;
}

/// A part of a value is another value.
// promise: RW-162
#[tokio::test]
async fn oversized_group_is_left_out_with_a_warning() {
    let stage = Stage::set(Nature::default()).await;
    let mut call = call(Some(run_id()));
    let captures = [("id", "/id"), ("list", "/list")];
    let captures = captures.map(|(name, at)| (name.to_owned(), at.to_owned()));
    let json = JsonPattern {
        pointer: "/id".into(),
        equals: None,
        captures: captures.into(),
    };
    let regex = r"(?P<id>[a-z]+) (?P<list>x+)";
    let patterns = [LinePattern::Json(json), LinePattern::Regex(regex.into())];
    let rule = |(at, pattern): (usize, LinePattern)| OutputRule {
        name: format!("rule-{at}"),
        pattern,
        streams: [true; 2],
        action: RuleAction::Annotate,
    };
    call.spec.policy.output_rules = patterns.into_iter().enumerate().map(rule).collect();
    stage.supervisor.spawn(call).await.unwrap();
    let long = "x".repeat(4094);
    let lines = [
        format!("{{\"id\":\"a\",\"list\":[\"{long}\"]}}\n"),
        format!("b {long}xxx\n").repeat(2),
    ];
    stage.writes(run_id(), lines.concat().as_bytes());
    while facets(&stage).await.annotations.pairs.get("id") != Some(&"b".to_owned()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stage.supervisor.abort(abort(run_id())).await.unwrap();
    assert_eq!(
        events_named(&stage, "warning").await,
        2,
        "one for each rule"
    );
    let pairs = facets(&stage).await.annotations.pairs;
    assert_eq!(pairs.keys().collect::<Vec<_>>(), ["id"]);
}

// promise: RW-5b
#[test]
fn abort_does_not_wait_for_lagging_rules() {
    for is_adopted in [false, true] {
        let lives = Lives::of(Nature::default());
        if is_adopted {
            lives.live(async |stage| {
                stage.supervisor.spawn(with_dear_rule()).await.unwrap();
            });
        }
        lives.live_long(async |stage| {
            let end = lagging(stage).await;
            let mut own = abort(run_id());
            own.wait = AbortWait::LeaderExited;
            stage.supervisor.abort(own).await.unwrap();
            assert_eq!(facets(stage).await.matched.events, 0);
            drop(end);
            let (_, reason) = ended(stage).await;
            assert!(matches!(reason, EndReason::Aborted { .. }), "{reason:?}");
        });
    }
}

/// On a clock that runs ahead while the tests are awaited.
// promise: RW-5b
#[tokio::test(start_paused = true)]
async fn end_does_not_wait_for_slow_rules() {
    let stage = Stage::set(Nature::default()).await;
    let _end = lagging(&stage).await;
    stage.exits(run_id(), 0);
    let (view, reason) = ended(&stage).await;
    assert_eq!(
        (view.state, reason),
        (RunState::Succeeded, EndReason::Exited)
    );
    assert_eq!(view.facets.matched.events, 0);
    assert_eq!(events_named(&stage, "warning").await, 1);
}

// promise: RW-5d
#[tokio::test]
async fn wait_for_an_expensive_pattern_is_refused() {
    let stage = Stage::set(Nature::default()).await;
    stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
    stage.writes(run_id(), &dear_line());
    let waited = async |pattern: &str| {
        let (supervisor, by) = (&stage.supervisor, "uid:1".into());
        let pattern = LinePattern::Regex(pattern.into());
        let compiled = supervisor.owner_turn(&by, move |memory| LineMatcher::new(&pattern, memory));
        let wait = OutputWait {
            run: run_id(),
            matcher: compiled.await.unwrap().unwrap(),
            streams: [true; 2],
            after_seq: 0,
            line_bytes_max: 1 << 16,
        };
        supervisor.wait_output(wait, by).await
    };
    let refused = waited(DEAR).await;
    assert!(
        matches!(refused, Err(CallError::PatternTooDear(run)) if run == run_id()),
        "{refused:?}"
    );
    let found = waited("[a-h]+").await.unwrap().found;
    assert_eq!(found.unwrap().line.offset, 0);
}
