//! Runs that exceed a time limit.

use crate::{
    abort,
    world::{Lives, Nature, Stage, Temper, Weather, call, run_id},
};
use kennel_keeper::client::Fact;
use kennel_lifecycle::{
    Deadline, EndReason, Entry, LinePattern, Readiness, ReadyProbe, Refusal, RestartMode,
    RestartPolicy, RunId, RunState, Timestamp, ladder::StopPlan,
};
use kennel_store::Desired;
use kennel_supervisor::{
    AbortCall, AbortWait, CallError, Condition, ExtendCall, Payload, Position, RunView, SpawnCall,
};
use std::time::Duration;

const MAX: Duration = Duration::from_mins(1);
const GRACE: Duration = Duration::from_secs(1);

fn limited() -> SpawnCall {
    let mut call = call(None);
    call.spec.policy.timeouts.max_runtime = Some(MAX);
    call
}

async fn running(temper: Temper) -> (Stage, RunView) {
    let nature = Nature {
        temper,
        ..Nature::default()
    };
    let stage = Stage::set(nature).await;
    let spawned = stage.supervisor.spawn(limited()).await.unwrap();
    (stage, spawned.run)
}

async fn ended(stage: &Stage, run: RunId) -> RunView {
    let waited = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    assert!(waited.reached);
    waited.run
}

/// Returns the reasons of the events `resumed`, `stopping` and `ended`.
async fn reasons(stage: &Stage, run: RunId) -> Vec<String> {
    let events = stage.supervisor.events(run, Position::Beginning).await;
    let (_, mut events) = events.unwrap();
    let mut reasons = Vec::new();
    while let Some(batch) = events.next(1 << 20).await.unwrap() {
        for event in batch {
            let Payload::Lifecycle(event) = event.payload else {
                continue;
            };
            match event {
                Entry::Resumed { reason } => reasons.push(reason.name().to_owned()),
                Entry::Stopping { order, .. } => {
                    reasons.push(order.reason.name().to_owned());
                }
                Entry::Ended(outcome) => reasons.push(outcome.reason.name().to_owned()),
                _ => {}
            }
        }
    }
    reasons
}

// promise: TM-1
#[tokio::test]
async fn run_over_its_max_runtime_fails_with_reason() {
    let (stage, run) = running(Temper::Obeys).await;
    stage.world.exceeds(run.run, &StopPlan::abort(GRACE));
    let view = ended(&stage, run.run).await;
    let reason = EndReason::DeadlineExceeded(Deadline::MaxRuntime);
    assert_eq!(view.outcome.clone().unwrap().reason, reason);
    assert_eq!(
        (view.state, view.desired),
        (RunState::Failed, Desired::Stop)
    );
    let row = stage.world.store.row(run.run).unwrap();
    assert_eq!(row.outcome.unwrap().reason, reason);
    assert_eq!(row.desired, Desired::Stop);
    // The keeper carried out the ladder itself: no plan followed its own.
    assert_eq!(stage.plans(run.run).len(), 1);
    let reasons = reasons(&stage, run.run).await;
    assert_eq!(reasons, ["max_runtime", "deadline_exceeded"]);
}

/// Returns a run that may be inactive for a minute, on a clock that runs ahead when there is no work.
async fn inactive_for_a_minute() -> (Stage, RunView) {
    let stage = Stage::set(Nature::default()).await;
    let mut call = call(None);
    call.spec.policy.timeouts.inactivity = Some(MAX);
    let spawned = stage.supervisor.spawn(call).await.unwrap();
    tokio::time::pause();
    (stage, spawned.run)
}

// promise: TM-10
#[tokio::test]
async fn inactive_run_is_stopped_by_the_server() {
    let (stage, run) = inactive_for_a_minute().await;
    let view = ended(&stage, run.run).await;
    let reason = EndReason::DeadlineExceeded(Deadline::Inactivity);
    assert_eq!(view.row.outcome.unwrap().reason, reason);
    assert_eq!(view.state, RunState::Failed);
    // The keeper does not know this limit: the server sent the plan.
    assert_eq!(stage.plans(run.run).len(), 1);
    let reasons = reasons(&stage, run.run).await;
    assert_eq!(reasons, ["inactivity", "deadline_exceeded"]);
}

// promise: TM-10
#[tokio::test]
async fn output_resets_the_inactivity_limit() {
    let (stage, run) = inactive_for_a_minute().await;
    for _ in 0..4 {
        tokio::time::sleep(MAX / 2).await;
        stage.writes(run.run, b"x");
        // The pipe is ready at once, and is read before the clock advances.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let view = stage.supervisor.get(run.run).await.unwrap();
    assert_eq!(view.state, RunState::Running);
    let view = ended(&stage, run.run).await;
    assert_eq!(view.state, RunState::Failed);
}

fn extend(run: RunId, limits: &[Deadline], time: Duration) -> ExtendCall {
    ExtendCall {
        run,
        limits: limits.to_vec(),
        time,
        by: "x".to_owned(),
    }
}

// promise: RW-116
#[tokio::test]
async fn inactivity_ends_no_sooner_than_extended() {
    let (stage, run) = inactive_for_a_minute().await;
    let call = extend(run.run, &[], MAX * 3);
    let before = tokio::time::Instant::now();
    let view = stage.supervisor.extend(call).await.unwrap();
    assert!(view.limit_ends.contains_key(&Deadline::Inactivity));
    let view = ended(&stage, run.run).await;
    assert!(before.elapsed() >= MAX * 3, "on the clock of the test");
    let reason = EndReason::DeadlineExceeded(Deadline::Inactivity);
    assert_eq!(view.row.outcome.unwrap().reason, reason);
    let row = stage.world.store.row(run.run).unwrap();
    let recorded = row.facets.extensions.of(1, Deadline::Inactivity);
    assert!(recorded.total > MAX && recorded.total <= MAX * 3);
}

#[tokio::test]
async fn too_long_extension_of_inactivity_is_refused() {
    let (stage, run) = inactive_for_a_minute().await;
    let call = extend(run.run, &[], MAX * 1000);
    let refused = stage.supervisor.extend(call).await;
    assert!(matches!(refused, Err(CallError::ExtensionTooLong { .. })));
    let view = stage.supervisor.get(run.run).await.unwrap();
    let extensions = view.row.facets.extensions;
    assert!(extensions.of(1, Deadline::Inactivity).total.is_zero());
    stage.exits(run.run, 0);
}

// promise: RW-118
#[test]
fn inactivity_extension_survives_server_death() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        let mut call = call(Some(run_id()));
        call.spec.policy.timeouts.inactivity = Some(MAX);
        stage.supervisor.spawn(call).await.unwrap();
        let call = extend(run_id(), &[], MAX * 3);
        stage.supervisor.extend(call).await.unwrap();
    });
    lives.live_long(async |stage| {
        let before = tokio::time::Instant::now();
        let view = ended(stage, run_id()).await;
        // Host clock time since the extension counts against the limit.
        assert!(before.elapsed() >= MAX * 2, "on the clock of the test");
        let reason = EndReason::DeadlineExceeded(Deadline::Inactivity);
        assert_eq!(view.row.outcome.unwrap().reason, reason);
    });
}

/// The keeper and the node log have it, and the next server writes it.
// promise: RW-118
#[test]
fn extension_is_durable_during_store_outage() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        let mut call = limited();
        call.run = Some(run_id());
        stage.supervisor.spawn(call).await.unwrap();
        stage.world.store.set(Weather::Away);
        let call = extend(run_id(), &[], MAX * 3);
        let view = stage.supervisor.extend(call).await.unwrap();
        let extensions = view.row.facets.extensions;
        assert_eq!(extensions.of(1, Deadline::MaxRuntime).total, MAX * 3);
        let row = stage.world.store.row(run_id()).unwrap();
        assert_eq!(row.facets.revision, 0, "the store lacks it");
    });
    lives.world.store.set(Weather::Fair);
    lives.live(async |stage| {
        let row = || stage.world.store.row(run_id()).unwrap();
        let total = || row().facets.extensions.of(1, Deadline::MaxRuntime).total;
        while total().is_zero() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(total(), MAX * 3);
        stage.exits(run_id(), 0);
        ended(stage, run_id()).await;
    });
}

/// A start that is probed is counted by the server, on the clock of the host.
// promise: RW-116
#[tokio::test]
async fn start_timeout_ends_no_sooner_than_extended() {
    const START: Duration = Duration::from_millis(100);
    let stage = Stage::set(Nature::default()).await;
    let mut call = call(None);
    call.spec.policy.readiness = Some(Box::new(Readiness {
        probe: ReadyProbe::Line(LinePattern::Literal("ready".into())),
        interval: Duration::ZERO,
        timeout: Duration::ZERO,
        start_timeout: Some(MAX),
    }));
    let long = stage.supervisor.spawn(call.clone()).await.unwrap().run.run;
    let readiness = call.spec.policy.readiness.as_mut().unwrap();
    readiness.start_timeout = Some(START * 4);
    let ready = stage.supervisor.spawn(call.clone()).await.unwrap().run.run;
    stage.writes(ready, b"ready\n");
    stage
        .supervisor
        .wait(ready, Condition::Ready)
        .await
        .unwrap();
    let readiness = call.spec.policy.readiness.as_mut().unwrap();
    readiness.start_timeout = Some(START);
    let run = stage.supervisor.spawn(call).await.unwrap().run.run;
    let before = tokio::time::Instant::now();
    let extended = extend(run, &[Deadline::StartTimeout], START * 5);
    let view = stage.supervisor.extend(extended).await.unwrap();
    assert!(view.limit_ends.contains_key(&Deadline::StartTimeout));
    let view = ended(&stage, run).await;
    assert_eq!(view.row.outcome.unwrap().reason, EndReason::NotReady);
    assert!(before.elapsed() >= START * 5);
    // A ready run has no start timeout.
    let view = stage.supervisor.get(ready).await.unwrap();
    assert_eq!(view.state, RunState::Running);
    stage.exits(ready, 0);
    stage.writes(long, b"ready\n");
    stage.supervisor.wait(long, Condition::Ready).await.unwrap();
    let late = stage.supervisor.extend(extend(long, &[], MAX)).await;
    assert!(
        matches!(late, Err(CallError::NoTimeLimit { .. })),
        "{late:?}"
    );
    stage.exits(long, 0);
}

// promise: RW-116
#[tokio::test]
async fn stopping_or_ended_run_is_not_extended() {
    let (stage, run) = running(Temper::Ignores).await;
    stage.world.exceeds(run.run, &StopPlan::abort(GRACE));
    while stage.supervisor.get(run.run).await.unwrap().state != RunState::Stopping {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for wanted in [Refusal::Stopping, Refusal::Ended] {
        let refused = stage.supervisor.extend(extend(run.run, &[], MAX)).await;
        assert!(
            matches!(&refused, Err(CallError::Refused { refusal, .. }) if *refusal == wanted),
            "{refused:?}"
        );
        stage.exits(run.run, 0);
        let view = ended(&stage, run.run).await;
        let reason = EndReason::DeadlineExceeded(Deadline::MaxRuntime);
        assert_eq!(view.row.outcome.unwrap().reason, reason);
        let extensions = view.row.facets.extensions;
        assert!(extensions.of(1, Deadline::MaxRuntime).total.is_zero());
    }
}

// promise: RW-117
#[tokio::test]
async fn next_attempt_begins_without_extensions() {
    let stage = Stage::set(Nature::default()).await;
    let mut call = call(None);
    call.spec.policy.timeouts.inactivity = Some(MAX);
    call.spec.policy.timeouts.max_runtime = Some(MAX * 100);
    call.spec.policy.restart = RestartPolicy {
        mode: RestartMode::Always,
        ..RestartPolicy::default()
    };
    let run = stage.supervisor.spawn(call).await.unwrap().run.run;
    tokio::time::pause();
    let call = extend(run, &[], MAX * 30);
    let view = stage.supervisor.extend(call).await.unwrap();
    let total = |view: &RunView, attempt| {
        let extensions = &view.facets.extensions;
        extensions.of(attempt, Deadline::MaxRuntime).total
    };
    assert!(!total(&view, 1).is_zero());
    let before = tokio::time::Instant::now();
    stage.exits(run, 1);
    let view = ended(&stage, run).await;
    let reason = EndReason::DeadlineExceeded(Deadline::Inactivity);
    assert!(total(&view, 2).is_zero());
    assert_eq!(
        (view.attempt, view.row.outcome.unwrap().reason),
        (2, reason)
    );
    let passed = before.elapsed();
    assert!(passed >= MAX && passed < MAX * 2, "{passed:?}");
}

/// The keeper has heard that the run is ready, and its server has not yet.
#[tokio::test]
async fn extending_ended_start_timeout_spares_other_limits() {
    let stage = Stage::set(Nature::default()).await;
    let mut call = limited();
    call.spec.policy.readiness = Some(Box::new(Readiness {
        probe: ReadyProbe::Notify,
        interval: Duration::ZERO,
        timeout: Duration::ZERO,
        start_timeout: Some(MAX),
    }));
    let run = stage.supervisor.spawn(call).await.unwrap().run.run;
    let start = extend(run, &[Deadline::StartTimeout], MAX);
    let limit = Some(Deadline::StartTimeout);
    let refused = stage.supervisor.extend(start).await;
    assert!(matches!(refused, Err(CallError::NoTimeLimit { limit: l, .. }) if l == limit));
    let view = stage.supervisor.extend(extend(run, &[], MAX)).await;
    let extensions = view.unwrap().row.facets.extensions;
    assert_eq!(extensions.of(1, Deadline::MaxRuntime).total, MAX);
    stage.exits(run, 0);
}

#[tokio::test]
async fn extension_is_recorded_or_refused_entirely() {
    let (stage, run) = running(Temper::Obeys).await;
    let view = stage.supervisor.extend(extend(run.run, &[], MAX)).await;
    let first = due(&run).unwrap();
    assert_eq!(due(&view.unwrap()), Some(first.plus(MAX)));
    let row = stage.world.store.row(run.run).unwrap();
    let recorded = row.facets.extensions.of(1, Deadline::MaxRuntime);
    assert_eq!((recorded.total, recorded.end), (MAX, MAX * 2));
    let both = [Deadline::MaxRuntime, Deadline::Inactivity];
    let refused = stage
        .supervisor
        .extend(extend(run.run, &both, MAX * 2))
        .await;
    let limit = Some(Deadline::Inactivity);
    assert!(matches!(refused, Err(CallError::NoTimeLimit { limit: l, .. }) if l == limit));
    let refused = stage
        .supervisor
        .extend(extend(run.run, &[], MAX * 61))
        .await;
    assert!(
        matches!(refused, Err(CallError::ExtensionTooLong { possible, .. }) if possible == MAX * 60)
    );
    stage.exits(run.run, 0);
    let view = ended(&stage, run.run).await;
    let recorded = view.facets.extensions.of(1, Deadline::MaxRuntime);
    assert_eq!(recorded.total, MAX);
}

// promise: TM-4
#[tokio::test]
async fn first_stop_determines_the_end_reason() {
    let (stage, run) = running(Temper::Ignores).await;
    let call = AbortCall {
        wait: AbortWait::None,
        ..abort(run.run)
    };
    stage.supervisor.abort(call).await.unwrap();
    stage.world.exceeds(run.run, &StopPlan::abort(GRACE));
    let at_once = AbortCall {
        grace: Some(Duration::ZERO),
        ..abort(run.run)
    };
    let view = stage.supervisor.abort(at_once).await.unwrap();
    let reason = view.row.outcome.unwrap().reason;
    assert!(matches!(reason, EndReason::Aborted { .. }), "{reason:?}");
}

// promise: TM-4
#[tokio::test]
async fn abort_shortens_deadline_stop_but_keeps_reason() {
    let (stage, run) = running(Temper::Ignores).await;
    stage.world.exceeds(run.run, &StopPlan::abort(GRACE));
    let at_once = AbortCall {
        grace: Some(Duration::ZERO),
        ..abort(run.run)
    };
    let view = stage.supervisor.abort(at_once).await.unwrap();
    let reason = EndReason::DeadlineExceeded(Deadline::MaxRuntime);
    assert_eq!(view.row.outcome.unwrap().reason, reason);
    assert_eq!(stage.plans(run.run).len(), 2);
}

// promise: TM-7
#[tokio::test]
async fn expired_pause_resumes_with_its_reason() {
    let (stage, run) = running(Temper::Obeys).await;
    let paused = stage.supervisor.pause(run.run).await.unwrap();
    assert_eq!(paused.state, RunState::Paused);
    stage.world.report(run.run, Fact::PauseExpired {});
    while stage.supervisor.get(run.run).await.unwrap().state != RunState::Running {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stage.exits(run.run, 0);
    assert_eq!(ended(&stage, run.run).await.state, RunState::Succeeded);
    assert_eq!(reasons(&stage, run.run).await, ["max_pause", "exited"]);
}

// promise: TM-9
#[tokio::test]
async fn paused_run_reports_end_of_its_pause() {
    let stage = Stage::set(Nature::default()).await;
    let mut wanted = call(None);
    wanted.spec.policy.pause.max_pause = Some(MAX);
    let run = stage.supervisor.spawn(wanted).await.unwrap().run;
    assert_eq!(run.pause_expires, None);
    let mut last = run.created.plus(MAX);
    for _ in 0..2 {
        let paused = stage.supervisor.pause(run.run).await.unwrap();
        // Each pause has its own expiry.
        let expires = paused.pause_expires.expect("it has a limit");
        assert!(expires > last);
        last = expires;
        let resumed = stage.supervisor.resume(run.run).await.unwrap();
        assert_eq!(resumed.pause_expires, None);
    }
    stage.exits(run.run, 0);
    assert_eq!(ended(&stage, run.run).await.pause_expires, None);
}

fn due(run: &RunView) -> Option<Timestamp> {
    run.limit_ends.get(&Deadline::MaxRuntime).copied()
}

// promise: TM-5
#[tokio::test]
async fn run_reports_deadline_only_while_counting() {
    let (stage, run) = running(Temper::Obeys).await;
    let first = run.times.started.unwrap().plus(MAX);
    assert_eq!(due(&run), Some(first));
    let paused = stage.supervisor.pause(run.run).await.unwrap();
    assert_eq!((paused.state, due(&paused)), (RunState::Paused, None));
    // Longer than the difference between two clocks read in succession.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let resumed = stage.supervisor.resume(run.run).await.unwrap();
    assert!(due(&resumed).unwrap() > first);
    stage.exits(run.run, 0);
    assert_eq!(due(&ended(&stage, run.run).await), None);

    // Without `max_pause` a pause has no limit.
    assert_eq!(paused.pause_expires, None);
    let unlimited = stage.supervisor.spawn(call(None)).await.unwrap().run;
    assert_eq!(due(&unlimited), None);
    stage.exits(unlimited.run, 0);
}
