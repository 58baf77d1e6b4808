//! Times that a server finds in rows and files of an earlier one, where the wall clock was set in between.

use crate::{
    abort,
    world::{Lives, Nature, Stage, Temper, call, run_id},
};
use kennel_lifecycle::{
    Deadline, LinePattern, Readiness, ReadyProbe, RestartMode, RestartPolicy, RetentionLimits,
    RunState, Timestamp, ladder::StopPlan,
};
use kennel_linux::clock;
use kennel_supervisor::{
    AbortCall, AbortWait, Condition, DrainAction, DrainCall, RunView, SpawnCall,
};
use std::time::Duration;
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_mins(1);
const HOUR_US: i64 = 3_600_000_000;

/// Runs a life in which `begin` is done, has the clock set by an hour either way, and runs two more lives: the second
/// finds the clock as the first did. Returns the times that `end` takes in the last one.
fn over_settings(
    nature: impl Fn() -> Nature,
    begin: &impl AsyncFn(&Stage),
    end: &impl AsyncFn(&Stage),
) -> Vec<Duration> {
    let took = [HOUR_US, -HOUR_US].into_iter().map(|ahead| {
        clock::AHEAD.set(0);
        let lives = Lives::of(nature());
        lives.live(begin);
        clock::AHEAD.set(ahead);
        lives.world.state.lock().unwrap().nature = Nature::default();
        lives.live(async |_| ());
        lives.live_long(async |stage| {
            let start = Instant::now();
            end(stage).await;
            start.elapsed()
        })
    });
    took.collect()
}

/// The clock of the test runs ahead by the whole limit, less the time that the host has taken so far.
fn assert_limit_took_its_time(took: &[Duration]) {
    let whole = LIMIT / 2..LIMIT + Duration::from_secs(5);
    assert!(took.iter().all(|took| whole.contains(took)), "{took:?}");
}

async fn spawn(stage: &Stage, call: SpawnCall) {
    stage.supervisor.spawn(call).await.unwrap();
}

async fn wait(stage: &Stage, condition: Condition) -> RunView {
    let waited = stage.supervisor.wait(run_id(), condition).await.unwrap();
    waited.run
}

// promise: R-14c
#[test]
fn restart_delay_ignores_clock_changes() {
    let crashing = || Nature {
        exits_at_once: Some(1),
        ..Nature::default()
    };
    let begin = async |stage: &Stage| {
        let mut call = call(Some(run_id()));
        call.spec.policy.restart = RestartPolicy {
            mode: RestartMode::Always,
            delay: LIMIT,
            ..RestartPolicy::default()
        };
        spawn(stage, call).await;
        while wait_state(stage).await != RunState::Backoff {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert_limit_took_its_time(&over_settings(crashing, &begin, &async |stage| {
        while wait_state(stage).await != RunState::Running {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }));
}

async fn wait_state(stage: &Stage) -> RunState {
    stage.supervisor.get(run_id()).await.unwrap().state
}

// promise: R-14b
#[test]
fn inactivity_limit_ignores_clock_changes() {
    let begin = async |stage: &Stage| {
        let mut call = call(Some(run_id()));
        call.spec.policy.timeouts.inactivity = Some(LIMIT);
        spawn(stage, call).await;
    };
    assert_limit_took_its_time(&over_settings(Nature::default, &begin, &async |stage| {
        wait(stage, Condition::Ended).await;
    }));
}

/// Shown ends of limits, pauses, graces and pauses between attempts are on the clock of their reader.
// promise: R-14c
#[test]
fn reported_deadlines_follow_clock_changes() {
    let stubborn = || Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    };
    let crashing = || Nature {
        exits_at_once: Some(1),
        ..Nature::default()
    };
    ends_on_the_readers_clock(Nature::default, &async |_| (), |run| {
        run.limit_ends.get(&Deadline::MaxRuntime).copied()
    });
    let pause = async |stage: &Stage| drop(stage.supervisor.pause(run_id()).await.unwrap());
    ends_on_the_readers_clock(Nature::default, &pause, |run| run.pause_expires);
    let stop = async |stage: &Stage| {
        let call = AbortCall {
            grace: Some(10 * LIMIT),
            wait: AbortWait::None,
            ..abort(run_id())
        };
        stage.supervisor.abort(call).await.unwrap();
    };
    ends_on_the_readers_clock(stubborn, &stop, |run| run.stop_deadline);
    let rest = async |stage: &Stage| {
        while wait_state(stage).await != RunState::Backoff {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    ends_on_the_readers_clock(crashing, &rest, |run| run.next_restart);
}

/// Checks that an end which begins with `begin`, ten limits later, is shown so.
fn ends_on_the_readers_clock(
    nature: impl Fn() -> Nature,
    begin: &impl AsyncFn(&Stage),
    shown: impl Fn(&RunView) -> Option<Timestamp>,
) {
    let begin = async |stage: &Stage| {
        let mut call = call(Some(run_id()));
        call.spec.policy.timeouts.max_runtime = Some(10 * LIMIT);
        call.spec.policy.pause.max_pause = Some(10 * LIMIT);
        call.spec.policy.restart = RestartPolicy {
            mode: RestartMode::Always,
            delay: 10 * LIMIT,
            max_delay: 10 * LIMIT,
            ..RestartPolicy::default()
        };
        spawn(stage, call).await;
        begin(stage).await;
    };
    over_settings(nature, &begin, &async |stage| {
        // Until the run's task exists, the row is shown as written.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let run = stage.supervisor.get(run_id()).await.unwrap();
        let end = shown(&run).unwrap();
        let left = end.since(clock::wall());
        assert!(
            9 * LIMIT < left && left <= 10 * LIMIT + LIMIT / 60,
            "{left:?}"
        );
    });
}

// promise: R-14b
#[test]
fn drain_deadline_ignores_clock_changes() {
    let begin = async |stage: &Stage| {
        spawn(stage, call(Some(run_id()))).await;
        let drain = DrainCall {
            action: DrainAction::Finish,
            deadline: Some(LIMIT),
            by: "uid:7".into(),
            request_id: None,
        };
        stage.supervisor.drain(drain).await.unwrap();
    };
    assert_limit_took_its_time(&over_settings(Nature::default, &begin, &async |stage| {
        wait(stage, Condition::Ended).await;
    }));
}

/// The start is counted by the clocks of the host, which do not run ahead: it is not over for a clock set forward.
// promise: R-14b
#[test]
fn start_timeout_ignores_clock_changes() {
    let begin = async |stage: &Stage| {
        let mut call = call(Some(run_id()));
        call.spec.policy.readiness = Some(Box::new(Readiness {
            probe: ReadyProbe::Line(LinePattern::Literal("ready".into())),
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            start_timeout: Some(LIMIT),
        }));
        spawn(stage, call).await;
    };
    over_settings(Nature::default, &begin, &async |stage| {
        tokio::time::sleep(LIMIT / 2).await;
        stage.writes(run_id(), b"ready\n");
        let run = wait(stage, Condition::Ready).await;
        assert_eq!(run.state, RunState::Running, "{run:?}");
    });
}

/// An attempt of less than the shortest time of success counts as a failed one.
// promise: R-14c
#[test]
fn restart_uptime_ignores_clock_changes() {
    let restarted = async |stage: &Stage, attempt: u32| {
        stage.exits(run_id(), 1);
        loop {
            let run = stage.supervisor.get(run_id()).await.unwrap();
            if (run.attempt, run.state) == (attempt, RunState::Running) {
                break run.restarts;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let begin = async |stage: &Stage| {
        let mut call = call(Some(run_id()));
        call.spec.policy.restart = RestartPolicy {
            mode: RestartMode::Always,
            delay: Duration::from_millis(1),
            ..RestartPolicy::default()
        };
        spawn(stage, call).await;
        assert_eq!(restarted(stage, 2).await, 1);
    };
    over_settings(Nature::default, &begin, &async |stage| {
        assert_eq!(restarted(stage, 3).await, 2);
    });
}

/// The plans that keepers of the run have got, once there are at least `count`.
async fn plans_from(stage: &Stage, count: usize) -> Vec<StopPlan> {
    loop {
        let plans = stage.plans(run_id());
        if plans.len() >= count {
            break plans;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

// promise: R-14b
#[test]
fn shortened_grace_ignores_clock_changes() {
    let stubborn = || Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    };
    let begin = async |stage: &Stage| {
        spawn(stage, call(Some(run_id()))).await;
        for grace in [2 * LIMIT, LIMIT] {
            let call = AbortCall {
                grace: Some(grace),
                wait: AbortWait::None,
                ..abort(run_id())
            };
            stage.supervisor.abort(call).await.unwrap();
        }
        plans_from(stage, 2).await;
    };
    over_settings(stubborn, &begin, &async |stage| {
        // Two plans of the first server and one of a later server: the second may end before sending one.
        let plans = plans_from(stage, 3).await;
        let left = plans.last().unwrap().kill_after;
        assert!(LIMIT / 2 < left && left <= LIMIT, "{left:?}");
    });
}

// promise: O-30b
#[test]
fn clock_change_expires_no_output() {
    for ahead in [HOUR_US, -HOUR_US] {
        clock::AHEAD.set(0);
        let lives = Lives::of(Nature {
            output: b"x".to_vec(),
            ..Nature::default()
        });
        *lives.world.retention.lock().unwrap() = RetentionLimits {
            at_most: Some(2 * LIMIT),
            ..RetentionLimits::NONE
        };
        lives.live_long(async |stage| {
            spawn(stage, call(Some(run_id()))).await;
            stage.exits(run_id(), 0);
            wait(stage, Condition::Ended).await;
        });
        clock::AHEAD.set(ahead);
        lives.live_long(async |stage| {
            tokio::time::sleep(LIMIT).await;
            let run = stage.supervisor.get(run_id()).await.unwrap();
            assert!(run.output_removed.is_none(), "{ahead}");
        });
    }
}
