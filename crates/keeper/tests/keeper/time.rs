//! Time limits of a run.

use crate::{
    pauses,
    scenarios::{empty, signals},
    stage::Stage,
};
use kennel_keeper::client::{Fact, Kernel, SignalResult};
use kennel_lifecycle::{Deadline, RunId, Signal, StopReason, ladder::StopPlan};
use std::time::{Duration, Instant};

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "run_over_max_runtime_ends_with_its_tree" => exceed(stage).await,
        "paused_time_does_not_count" => pause(stage).await,
        "deadline_does_not_touch_a_stopping_run" => stopped_first(stage).await,
        other => pauses::play(other, stage).await,
    }
}

const EXCEEDED: Fact = Fact::Stops(StopReason::DeadlineExceeded(Deadline::MaxRuntime));

/// Neither the leader nor a child in a session of its own takes SIGTERM.
const STUBBORN: &str = "
    trap '' TERM
    setsid sh -c 'echo up > $0/up; while :; do sleep 1000; done' $0 &
    while :; do sleep 1000; done";

async fn exceeded(stage: &mut Stage, run: RunId) {
    stage.wait(run, |facts| facts.contains(&EXCEEDED)).await;
}

/// The keeper counts whole milliseconds; one that has begun counts as passed.
const KEEPERS_TICK: Duration = Duration::from_millis(1);

async fn exceed(stage: &mut Stage) {
    // Long enough for both processes to ignore SIGTERM by then, even on a busy host.
    let max = Duration::from_secs(3);
    let (run, mut spec) = stage.shell(STUBBORN);
    spec.policy.stop.grace = Some(Duration::from_millis(200));
    spec.policy.timeouts.max_runtime = Some(max);
    let began = Instant::now();
    stage.start(run, &spec).await;
    exceeded(stage, run).await;
    assert!(began.elapsed() + KEEPERS_TICK >= max);
    let facts = stage.end(run).await;
    assert_eq!(signals(&facts), [Signal::TERM, Signal::KILL], "{facts:?}");
    // The reason is reported before the signals.
    assert_eq!(facts[..2], [Fact::Executed {}, EXCEEDED], "{facts:?}");
    assert_eq!(facts.last(), Some(&empty(stage)));
}

async fn pause(stage: &mut Stage) {
    let max = Duration::from_secs(3);
    let (run, mut spec) = stage.shell("while :; do sleep 1000; done");
    spec.policy.timeouts.max_runtime = Some(max);
    let began = Instant::now();
    stage.start(run, &spec).await;
    let paused = stage.client.pause(run).await.expect("a keeper");
    assert_eq!(paused, SignalResult::Done);
    let pause = Instant::now();
    // Another run starts and ends during the pause.
    let (other, spec) = stage.shell("sleep 1");
    stage.start(other, &spec).await;
    stage.end(other).await;
    let pause = pause.elapsed();
    let resumed = stage.client.resume(run).await.expect("a keeper");
    assert_eq!(resumed, SignalResult::Done);
    exceeded(stage, run).await;
    assert!(began.elapsed() + 2 * KEEPERS_TICK >= max + pause);
    stage.end(run).await;
}

/// Long enough for a stop to come before, also on a busy machine.
const MAX_RUNTIME: Duration = Duration::from_secs(2);

async fn stopped_first(stage: &mut Stage) {
    let (run, mut spec) = stage.shell("while :; do sleep 1000; done");
    spec.policy.timeouts.max_runtime = Some(MAX_RUNTIME);
    stage.start(run, &spec).await;
    let nothing_for_long = StopPlan {
        steps: Vec::new(),
        kill_after: Duration::from_mins(10),
    };
    stage.client.stop(run, &nothing_for_long);
    // A later deadline of another run passes meanwhile.
    let (other, mut spec) = stage.shell("while :; do sleep 1000; done");
    spec.policy.timeouts.max_runtime = Some(MAX_RUNTIME);
    stage.start(other, &spec).await;
    exceeded(stage, other).await;
    stage.end(other).await;
    stage.client.stop(run, &StopPlan::abort(Duration::ZERO));
    let facts = stage.end(run).await;
    assert!(!facts.contains(&EXCEEDED), "{facts:?}");
}
