//! Attempts of a run: the ones that follow, their times, and the pause between them.

use crate::{
    abort, event_names, name,
    world::{Lives, Nature, Stage, Temper, Weather, call, log, run_id, seen},
};
use kennel_keeper::client::{Fact, KeeperEvent};
use kennel_lifecycle::{
    EndReason, Exit, Proof, Refusal, RestartMode, RestartPolicy, RunKind, RunState, Signal,
    StartStage, Timestamp, TreeVerdict,
    ladder::StopPlan,
    recovery::{CgroupSeen, ExitRecord, Host, ProcessPresence},
};
use kennel_store::{Desired, StoredState};
use kennel_supervisor::{
    AbortCall, AbortWait, CallError, Condition, Payload, Position, RestartCall, RunView, SpawnCall,
};
use std::time::Duration;
use tokio::time::Instant;

const SHORT: Duration = Duration::from_millis(20);

fn restarting(policy: RestartPolicy) -> SpawnCall {
    let mut call = call(Some(run_id()));
    call.spec.policy.restart = policy;
    call
}

fn service() -> SpawnCall {
    let mut call = restarting(quick());
    call.spec.policy.kind = RunKind::Service;
    call
}

fn again(expected_attempt: Option<u32>) -> RestartCall {
    RestartCall {
        run: run_id(),
        grace: None,
        expected_attempt,
        by: "uid:0".into(),
        request_id: Some("r".into()),
    }
}

fn quick() -> RestartPolicy {
    RestartPolicy {
        mode: RestartMode::Always,
        delay: SHORT,
        max_delay: SHORT,
        ..RestartPolicy::default()
    }
}

fn in_an_hour() -> RestartPolicy {
    RestartPolicy {
        delay: Duration::from_hours(1),
        max_delay: Duration::from_hours(1),
        ..RestartPolicy::keepalive()
    }
}

fn crashing() -> Nature {
    Nature {
        exits_at_once: Some(1),
        output: b"out".to_vec(),
        ..Nature::default()
    }
}

// promise: B-1
#[tokio::test(start_paused = true)]
async fn crashing_agent_is_started_four_times_then_failed() {
    let stage = Stage::set(crashing()).await;
    let began = Instant::now();
    let spawned = stage.supervisor.spawn(restarting(RestartPolicy::agent()));
    spawned.await.unwrap();
    let ended = wait_for(&stage, Condition::Ended).await;
    let waited = began.elapsed();
    // Time that passes on the host's clock between a decision and its wait is not waited again.
    let seven = Duration::from_secs(7);
    assert!(waited > seven * 9 / 10 && waited < seven * 2, "{waited:?}");
    assert_eq!(ended.state, RunState::Failed);
    assert_eq!(ended.exit, Some(Exit::Code(1)));
    let reason = ended.outcome.clone().unwrap().reason;
    assert_eq!(reason, EndReason::RestartsExhausted { restarts: 3 });
    let before: Vec<u32> = ended.past.iter().map(|past| past.number).collect();
    assert_eq!((ended.attempt, before), (4, vec![1, 2, 3]));

    let recorded_events = recorded_events(&stage).await;
    for attempt in 1..=4 {
        let of_it: Vec<&str> = recorded_events
            .iter()
            .filter(|(of, name)| *of == attempt && name != "output")
            .map(|(_, name)| name.as_str())
            .collect();
        let last = if attempt < 4 {
            "attempt_ended"
        } else {
            "ended"
        };
        assert_eq!(of_it.first(), Some(&"recorded"));
        assert_eq!((of_it.len(), of_it.last()), (6, Some(&last)), "{of_it:?}");
    }
    assert_eq!(stage.kernel().executed.len(), 4);
    let kept = stage
        .data_dir
        .path()
        .join("runs")
        .join(run_id().to_string());
    while kept.join("child").exists() {
        tokio::time::sleep(SHORT).await;
    }
}

// promise: B-4
#[tokio::test(start_paused = true)]
async fn abort_ends_a_waiting_run_without_signals() {
    let stage = Stage::set(crashing()).await;
    let spawned = stage.supervisor.spawn(restarting(in_an_hour()));
    spawned.await.unwrap();
    let waiting = state(&stage, RunState::Backoff).await;
    assert!(waiting.next_restart.is_some() && waiting.outcome.is_none());
    assert_eq!((waiting.attempt, waiting.restarts), (1, 1));
    assert_eq!(waiting.exit, Some(Exit::Code(1)));
    let refused = stage.supervisor.interrupt(run_id(), None).await;
    assert!(
        matches!(refused, Err(CallError::Refused { .. })),
        "{refused:?}"
    );

    let began = Instant::now();
    let ended = stage.supervisor.abort(abort(run_id())).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(ended.state, RunState::Cancelled);
    assert_eq!(ended.exit, Some(Exit::Code(1)));
    assert_eq!((ended.attempt, ended.past.len()), (1, 0));
    assert_eq!(stage.kernel().executed, [(run_id(), 1)]);
    assert_eq!(stage.plans(run_id()), []);
    let names = event_names(&stage, run_id()).await;
    assert_eq!(names.last().map(String::as_str), Some("ended"));
}

// promise: B-2
#[tokio::test(start_paused = true)]
async fn no_restart_while_tree_has_survivors() {
    let stage = Stage::set(Nature::default()).await;
    stage.supervisor.spawn(restarting(quick())).await.unwrap();
    stage.kernel().children.get_mut(&run_id()).unwrap().alive = false;
    let left = TreeVerdict::Survivors(vec![99]);
    stage
        .world
        .report(run_id(), Fact::LeaderExited(Exit::Code(1)));
    stage.world.report(run_id(), Fact::TreeEnded(left.clone()));
    let ended = wait_for(&stage, Condition::Ended).await;
    let outcome = ended.outcome.clone().unwrap();
    assert_eq!((outcome.reason, outcome.tree), (EndReason::Exited, left));
    assert_eq!(ended.attempt, 1);
    let names = event_names(&stage, run_id()).await;
    assert!(names.iter().any(|name| name == "warning"), "{names:?}");
}

// promise: B-3
#[tokio::test(start_paused = true)]
async fn attempt_with_unknown_record_never_runs() {
    for written in [true, false] {
        let stage = Stage::set(Nature::default()).await;
        stage.supervisor.spawn(restarting(quick())).await.unwrap();
        stage.world.store.set(Weather::InsertUnknown { written });
        stage.exits(run_id(), 1);
        let store = &stage.world.store;
        while store.row(run_id()).unwrap().past.len() < 2 {
            tokio::time::sleep(SHORT).await;
        }
        store.set(Weather::Fair);
        let running = state(&stage, RunState::Running).await;
        assert!(running.attempt >= 3, "{running:?}");
        let failed = &running.past[1].outcome;
        assert_eq!((failed.exit, &failed.tree), (None, &TreeVerdict::NeverRan));
        let EndReason::StartFailed(failure) = &failed.reason else {
            panic!("{failed:?}");
        };
        assert_eq!(failure.stage, StartStage::Record);
        let executed = stage.kernel().executed.clone();
        assert_eq!(executed, [(run_id(), 1), (run_id(), running.attempt)]);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_restart_is_retried_failed_spawn_is_reported() {
    let mut nature = Nature {
        exec_fails: Some(2),
        ..Nature::default()
    };
    let stage = Stage::set(nature.clone()).await;
    let refused = stage.supervisor.spawn(restarting(RestartPolicy::agent()));
    assert!(matches!(refused.await, Err(CallError::SpawnFailed { .. })));
    assert_eq!(stage.world.store.row(run_id()).unwrap().new.attempt, 1);

    let stage = Stage::set(crashing()).await;
    let spawned = stage.supervisor.spawn(restarting(RestartPolicy::agent()));
    spawned.await.unwrap();
    nature.exits_at_once = None;
    stage.kernel().nature = nature;
    let ended = wait_for(&stage, Condition::Ended).await;
    let outcome = ended.outcome.clone().unwrap();
    assert_eq!(outcome.reason, EndReason::RestartsExhausted { restarts: 3 });
    assert_eq!((ended.attempt, outcome.exit), (4, None));
    assert_eq!(ended.past[0].outcome.exit, Some(Exit::Code(1)));
}

// promise: B-5
#[tokio::test(start_paused = true)]
async fn shutdown_leaves_services_and_ends_other_runs() {
    for (spec, comes_back) in [(service(), true), (restarting(quick()), false)] {
        let stage = Stage::set(Nature::default()).await;
        stage.supervisor.spawn(spec).await.unwrap();
        stage.send_event(KeeperEvent::Shutdown {});
        let Stage { world, exit, .. } = stage;
        assert_eq!(exit.await.unwrap(), 0);
        let row = world.store.row(run_id()).unwrap();
        if comes_back {
            assert_eq!(
                (row.state, row.desired),
                (StoredState::Backoff, Desired::Run)
            );
            let last = row.past.last().unwrap();
            assert_eq!(last.outcome.reason, EndReason::ServerShutdown);
            assert_eq!(row.restarts, 0);
        } else {
            let outcome = row.outcome.unwrap();
            assert_eq!(outcome.reason, EndReason::ServerShutdown);
        }
        assert_eq!(world.state.lock().unwrap().executed, [(run_id(), 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn requested_restart_begins_after_old_tree_ends() {
    let stage = Stage::set(Nature::default()).await;
    let policy = RestartPolicy {
        delay: Duration::from_hours(1),
        max_delay: Duration::from_hours(1),
        ..RestartPolicy::agent()
    };
    stage.supervisor.spawn(restarting(policy)).await.unwrap();
    // A running attempt is stopped first.
    let second = stage.supervisor.restart(again(Some(1))).await.unwrap();
    assert_eq!((second.attempt, second.state), (2, RunState::Running));
    let EndReason::Restarted { by, request_id } = &second.past[0].outcome.reason else {
        panic!("{:?}", second.past);
    };
    assert_eq!((by.as_str(), request_id.as_deref()), ("uid:0", Some("r")));
    assert_eq!(
        stage.world.store.row(run_id()).unwrap().desired,
        Desired::Run
    );
    // The repeated request is fulfilled already.
    let same = stage.supervisor.restart(again(Some(1))).await.unwrap();
    assert_eq!(same.attempt, 2);
    // A run in backoff starts at once, and its restarts are counted anew.
    stage.exits(run_id(), 1);
    let waiting = state(&stage, RunState::Backoff).await;
    assert_eq!(waiting.restarts, 1);
    let third = stage.supervisor.restart(again(None)).await.unwrap();
    assert_eq!((third.attempt, third.restarts), (3, 0));
    let executed = stage.kernel().executed.clone();
    assert_eq!(executed, [1, 2, 3].map(|attempt| (run_id(), attempt)));

    stage.supervisor.abort(abort(run_id())).await.unwrap();
    let over = stage.supervisor.restart(again(None)).await;
    let Err(CallError::Refused { refusal, .. }) = over else {
        panic!("{over:?}");
    };
    assert_eq!(refusal, Refusal::Ended);
}

// promise: B-6a
#[tokio::test(start_paused = true)]
async fn aborted_or_unrepeatable_run_cannot_be_restarted() {
    let stage = Stage::set(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    })
    .await;
    stage.supervisor.spawn(restarting(quick())).await.unwrap();
    let aborted = AbortCall {
        wait: AbortWait::None,
        ..abort(run_id())
    };
    stage.supervisor.abort(aborted).await.unwrap();
    let refused = stage.supervisor.restart(again(None)).await;
    let refusal = |refused| match refused {
        Err(CallError::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(refused), Refusal::Stopping);

    let stage = Stage::set(Nature::default()).await;
    stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
    let refused = stage.supervisor.restart(again(None)).await;
    assert_eq!(refusal(refused), Refusal::NotRestartable);
    assert!(stage.is_alive(run_id()));
}

// promise: B-6a
#[tokio::test(start_paused = true)]
async fn run_over_its_max_runtime_gets_no_attempt() {
    let stage = Stage::set(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    })
    .await;
    stage.supervisor.spawn(restarting(quick())).await.unwrap();
    stage.world.exceeds(run_id(), &StopPlan::abort(SHORT * 100));
    state(&stage, RunState::Stopping).await;
    let refused = stage.supervisor.restart(again(None)).await;
    assert!(
        matches!(
            refused,
            Err(CallError::Refused {
                refusal: Refusal::Stopping,
                ..
            })
        ),
        "{refused:?}"
    );
    stage.exits(run_id(), 0);
    let ended = wait_for(&stage, Condition::Ended).await;
    assert_eq!((ended.attempt, ended.state), (1, RunState::Failed));
}

// promise: B-6
#[test]
fn next_server_completes_a_replacement() {
    let lives = Lives::of(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    });
    lives.live(async |stage| {
        begin_to_replace(stage).await;
    });
    lives.world.state.lock().unwrap().nature = Nature::default();
    let killed = Exit::Signal {
        signal: Signal::KILL,
        core_dumped: false,
    };
    lives.live(async |stage| {
        stage.world.end(run_id(), killed);
        let running = state(stage, RunState::Running).await;
        assert_eq!((running.attempt, running.restarts), (2, 0));
        let reason = &running.past[0].outcome.reason;
        assert!(matches!(reason, EndReason::Restarted { .. }), "{reason:?}");
        stage.supervisor.abort(abort(run_id())).await.unwrap();
    });
}

// promise: D-10
#[test]
fn abort_of_attempt_being_replaced_is_durable() {
    let lives = Lives::of(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    });
    lives.live(async |stage| {
        begin_to_replace(stage).await;
        let aborted = stage.supervisor.abort(AbortCall {
            wait: AbortWait::None,
            grace: Some(Duration::from_mins(1)),
            ..abort(run_id())
        });
        // The tree does not end: only the record is awaited.
        let aborted = tokio::time::timeout(Duration::from_secs(20), aborted).await;
        let view = aborted.expect("it is answered").unwrap();
        assert_eq!(
            (view.state, view.desired),
            (RunState::Stopping, Desired::Stop)
        );
    });
    lives.live(async |stage| {
        stage.world.end(run_id(), Exit::Code(0));
        let ended = wait_for(stage, Condition::Ended).await;
        assert_eq!((ended.attempt, ended.state), (1, RunState::Cancelled));
    });
    assert_eq!(lives.world.state.lock().unwrap().executed.len(), 1);
}

// promise: B-4
#[tokio::test(start_paused = true)]
async fn leaving_server_starts_no_attempt() {
    let stage = Stage::set(Nature::default()).await;
    stage.supervisor.spawn(restarting(quick())).await.unwrap();
    stage.send_event(KeeperEvent::Leave {});
    stage.exits(run_id(), 1);
    let waiting = state(&stage, RunState::Backoff).await;
    assert!(waiting.next_restart.is_some());
    let refused = stage.supervisor.restart(again(None)).await;
    assert!(matches!(refused, Err(CallError::Draining)), "{refused:?}");
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(stage.kernel().executed, [(run_id(), 1)]);
    assert_eq!(
        stage.supervisor.get(run_id()).await.unwrap().state,
        RunState::Backoff
    );
}

// promise: B-4
#[test]
fn waiting_run_is_resumed_by_next_server() {
    let lives = Lives::of(crashing());
    let policy = RestartPolicy {
        delay: Duration::from_millis(300),
        ..RestartPolicy::keepalive()
    };
    lives.live(async |stage| {
        let spawned = stage.supervisor.spawn(restarting(policy));
        spawned.await.unwrap();
        state(stage, RunState::Backoff).await;
    });
    lives.world.state.lock().unwrap().nature = Nature::default();
    lives.live(async |stage| {
        let waiting = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(waiting.state, RunState::Backoff);
        let running = state(stage, RunState::Running).await;
        assert_eq!((running.attempt, running.past.len()), (2, 1));
        stage.supervisor.abort(abort(run_id())).await.unwrap();
        let recorded_events = recorded_events(stage).await;
        let ends = recorded_events
            .iter()
            .filter(|(_, name)| name == "attempt_ended");
        assert_eq!(ends.count(), 1, "{recorded_events:?}");
        assert_eq!(recorded_events.last().unwrap(), &(2, "ended".to_owned()));
    });
    let executed = lives.world.state.lock().unwrap().executed.clone();
    assert_eq!(executed, [(run_id(), 1), (run_id(), 2)]);
}

/// A first attempt has ended, and its server has died after the report to the store and before that to the keeper.
fn lose_server_before_the_keeper_lets_go(lives: &Lives) {
    lives.world.state.lock().unwrap().holds_on = true;
    lives.live(async |stage| {
        let spawned = stage.supervisor.spawn(restarting(in_an_hour()));
        spawned.await.unwrap();
        state(stage, RunState::Backoff).await;
    });
    lives.world.state.lock().unwrap().holds_on = false;
}

/// Asserts that the end of an attempt is reported once, and before the next begins.
fn assert_recorded_once(recorded_events: &[(u32, String)]) {
    for station in ["started", "leader_exited", "tree_ended", "attempt_ended"] {
        for attempt in 1..=2 {
            let line = (attempt, station.to_owned());
            let times = recorded_events
                .iter()
                .filter(|recorded_events| **recorded_events == line)
                .count();
            assert!(times <= 1, "{line:?}: {recorded_events:?}");
        }
    }
    assert!(
        recorded_events.windows(2).all(|two| two[0].0 <= two[1].0),
        "{recorded_events:?}"
    );
}

// promise: B-2b
#[test]
fn repeated_reports_of_ended_attempt_are_ignored() {
    let lives = Lives::of(crashing());
    lose_server_before_the_keeper_lets_go(&lives);
    lives.world.state.lock().unwrap().nature = Nature::default();
    // The next attempt is due by now.
    let mut rows = lives.world.store.rows.lock().unwrap();
    rows.get_mut(&run_id()).unwrap().next_restart = Some(Timestamp(0));
    drop(rows);
    lives.world.tidings_held.send_replace(true);
    lives.live(async |stage| {
        // The next attempt is released before those reports arrive.
        while stage.kernel().executed.len() < 2 {
            tokio::time::sleep(SHORT).await;
        }
        stage.world.tidings_held.send_replace(false);
        let running = state(stage, RunState::Running);
        let running = tokio::time::timeout(Duration::from_secs(20), running).await;
        let running = running.expect("the next attempt runs");
        assert_eq!((running.attempt, running.exit), (2, None));
        stage.exits(run_id(), 3);
        let waiting = state(stage, RunState::Backoff).await;
        assert_eq!(waiting.past[1].outcome.exit, Some(Exit::Code(3)));
        stage.supervisor.abort(abort(run_id())).await.unwrap();
        assert_recorded_once(&recorded_events(stage).await);
    });
}

// promise: B-2b
#[test]
fn intended_next_attempt_is_not_counted_as_run() {
    let lives = Lives::of(crashing());
    lose_server_before_the_keeper_lets_go(&lives);
    let mut next = log::intended(&lives.data_dir, run_id());
    assert_eq!(next["attempt"], 1);
    next["attempt"] = 2.into();
    let next = serde_json::json!({ "intended": next });
    log::append(&lives.data_dir, run_id(), &next);
    lives.world.store.set(Weather::Away);
    lives.live(async |stage| {
        let present = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(present.attempt, 1);
        stage.world.store.set(Weather::Fair);
        let waiting = state(stage, RunState::Backoff).await;
        assert_eq!(waiting.attempt, 1);
        stage.supervisor.abort(abort(run_id())).await.unwrap();
        assert_recorded_once(&recorded_events(stage).await);
    });
}

// promise: B-2b
#[test]
fn unlogged_next_attempt_is_not_counted_as_run() {
    let lives = Lives::of(crashing());
    lives.live(async |stage| {
        let spawned = stage.supervisor.spawn(restarting(in_an_hour()));
        spawned.await.unwrap();
        state(stage, RunState::Backoff).await;
        stage.world.store.hold_inserts();
        let (supervisor, call) = (stage.supervisor.clone(), again(None));
        tokio::spawn(async move { drop(supervisor.restart(call).await) });
        while !stage.world.has_members(run_id()) {
            tokio::task::yield_now().await;
        }
    });
    lives.world.store.let_inserts_go();
    log::append(&lives.data_dir, run_id(), &"forgotten".into());
    lives.world.store.set(Weather::Away);
    lives.live(async |stage| {
        stage.world.store.set(Weather::Fair);
        let failed = async {
            loop {
                let view = stage.supervisor.get(run_id()).await;
                if let Some(view) = view.ok().filter(|view| view.past.len() == 2) {
                    return view;
                }
                tokio::time::sleep(SHORT).await;
            }
        };
        let failed = failed.await;
        let never = &failed.past[1].outcome;
        assert_eq!((never.exit, &never.tree), (None, &TreeVerdict::NeverRan));
        stage.supervisor.abort(abort(run_id())).await.unwrap();
        let recorded_events = recorded_events(stage).await;
        assert_recorded_once(&recorded_events);
        let end = (2, "attempt_ended".to_owned());
        assert!(recorded_events.contains(&end), "{recorded_events:?}");
    });
    assert_eq!(lives.world.state.lock().unwrap().executed, [(run_id(), 1)]);
}

// promise: B-5
#[test]
fn only_kind_service_restarts_after_keeper_loss() {
    for (spec, comes_back) in [(service(), true), (restarting(quick()), false)] {
        let lives = Lives::of(Nature::default());
        lives.live(async |stage| {
            stage.supervisor.spawn(spec).await.unwrap();
        });
        lives.keeper_dies();
        lives.live(async |stage| {
            if comes_back {
                let running = state(stage, RunState::Running).await;
                assert_eq!((running.attempt, running.restarts), (2, 0));
                let last = &running.past[0].outcome;
                assert_eq!(last.reason, EndReason::ServiceLost);
                stage.supervisor.abort(abort(run_id())).await.unwrap();
            } else {
                let ended = wait_for(stage, Condition::Ended).await;
                assert_eq!((ended.attempt, ended.state), (1, RunState::Lost));
            }
        });
    }
}

// promise: B-5
#[test]
fn service_restarts_after_reboot() {
    let other_boot = |mut seen: kennel_lifecycle::recovery::Observation| {
        seen.host = Host::Other;
        seen
    };
    let unproven = seen(ProcessPresence::Gone, CgroupSeen::None, None);
    for (seen, boot, comes_back) in [
        (other_boot(unproven.clone()), "an earlier one", true),
        (other_boot(unproven.clone()), "boot", false),
        (unproven, "boot", false),
    ] {
        let lives = Lives::of(Nature::default());
        lives.live(async |stage| {
            stage.supervisor.spawn(service()).await.unwrap();
        });
        lives.keeper_dies();
        lives
            .world
            .state
            .lock()
            .unwrap()
            .orphans
            .insert(run_id(), seen);
        {
            let mut rows = lives.world.store.rows.lock().unwrap();
            let identity = rows.get_mut(&run_id()).unwrap().new.identity.as_mut();
            identity.unwrap().host.boot_id = boot.into();
        }
        lives.live(async |stage| {
            if comes_back {
                let running = state(stage, RunState::Running).await;
                assert_eq!(running.attempt, 2);
                stage.supervisor.abort(abort(run_id())).await.unwrap();
            } else {
                let ended = wait_for(stage, Condition::Ended).await;
                assert_eq!((ended.attempt, ended.state), (1, RunState::Lost));
            }
        });
    }
}

/// Writes the exit record of its shim, before the service has recorded the exit.
fn ended_by_itself(lives: &Lives, exit: Exit) {
    lives.keeper_dies();
    let record = ExitRecord {
        exit: Some(exit),
        by_itself: Some(Timestamp(7)),
        tree: Some(TreeVerdict::Empty(Proof::CgroupAndEchild)),
        never_ran: false,
        steps: Vec::new(),
        census: None,
        shutdown: false,
    };
    let seen = seen(ProcessPresence::Gone, CgroupSeen::Empty, Some(record));
    let mut world = lives.world.state.lock().unwrap();
    world.orphans.insert(run_id(), seen);
}

// promise: B-5a
#[test]
fn exit_before_service_loss_is_judged_by_policy() {
    let on_failure = RestartPolicy {
        mode: RestartMode::OnFailure,
        max_restarts: Some(1),
        ..quick()
    };
    let mut spec = service();
    spec.spec.policy.restart = on_failure;
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        stage.supervisor.spawn(spec.clone()).await.unwrap();
    });
    ended_by_itself(&lives, Exit::Code(1));
    lives.live(async |stage| {
        let running = state(stage, RunState::Running).await;
        assert_eq!((running.attempt, running.restarts), (2, 1), "it counts");
        let past = &running.past[0];
        assert_eq!(past.outcome.reason, EndReason::Exited);
        assert_eq!(past.times.leader_exited, Some(Timestamp(7)));
    });
    ended_by_itself(&lives, Exit::Code(1));
    lives.live(async |stage| {
        let ended = wait_for(stage, Condition::Ended).await;
        assert_eq!((ended.attempt, ended.state), (2, RunState::Failed));
        let reason = ended.row.outcome.unwrap().reason;
        assert_eq!(reason, EndReason::RestartsExhausted { restarts: 1 });
    });

    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        stage.supervisor.spawn(spec).await.unwrap();
    });
    ended_by_itself(&lives, Exit::Code(0));
    lives.live(async |stage| {
        let ended = wait_for(stage, Condition::Ended).await;
        assert_eq!((ended.attempt, ended.state), (1, RunState::Succeeded));
        assert_eq!(ended.row.outcome.unwrap().reason, EndReason::Exited);
    });
}

/// The shim has recorded the exit while no service was there.
// promise: RW-54
#[test]
fn recorded_success_exit_starts_no_attempt() {
    let mut spec = service();
    spec.spec.policy.restart.mode = RestartMode::OnFailure;
    spec.spec.policy.success_exit_codes = vec![143];
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        stage.supervisor.spawn(spec).await.unwrap();
    });
    ended_by_itself(&lives, Exit::Code(143));
    lives.live(async |stage| {
        let ended = wait_for(stage, Condition::Ended).await;
        assert_eq!((ended.attempt, ended.state), (1, RunState::Succeeded));
        assert_eq!(ended.exit, Some(Exit::Code(143)));
        assert_eq!(ended.row.outcome.unwrap().reason, EndReason::SuccessExit);
    });
}

#[test]
fn run_without_stored_spec_ends_at_restart() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        stage.supervisor.spawn(service()).await.unwrap();
    });
    lives.keeper_dies();
    let runs = lives.data_dir.path().join("runs");
    std::fs::remove_file(runs.join(run_id().to_string()).join("child")).unwrap();
    lives.live(async |stage| {
        let ended = wait_for(stage, Condition::Ended).await;
        let EndReason::StartFailed(failure) = ended.outcome.clone().unwrap().reason else {
            panic!("another reason");
        };
        assert_eq!(
            (failure.stage, failure.errno),
            (StartStage::Prepare, Some(2))
        );
        assert_eq!(ended.attempt, 1);
    });
}

/// Runs up to the point where the first attempt is being ended for the next one.
async fn begin_to_replace(stage: &Stage) {
    stage.supervisor.spawn(restarting(quick())).await.unwrap();
    let (supervisor, call) = (stage.supervisor.clone(), again(None));
    tokio::spawn(async move { drop(supervisor.restart(call).await) });
    while stage.plans(run_id()).is_empty() {
        tokio::time::sleep(SHORT).await;
    }
}

async fn wait_for(stage: &Stage, condition: Condition) -> RunView {
    let waited = stage.supervisor.wait(run_id(), condition).await.unwrap();
    assert!(waited.reached, "{waited:?}");
    waited.run
}

async fn state(stage: &Stage, wanted: RunState) -> RunView {
    loop {
        let view = stage.supervisor.get(run_id()).await.unwrap();
        if view.state == wanted {
            return view;
        }
        assert!(!view.state.is_terminal(), "{view:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns the events of the journal, with their attempts.
async fn recorded_events(stage: &Stage) -> Vec<(u32, String)> {
    let events = stage.supervisor.events(run_id(), Position::Beginning).await;
    let mut events = events.unwrap().1;
    let mut recorded_events = Vec::new();
    while let Some(batch) = events.next(1 << 20).await.unwrap() {
        for event in batch {
            let name = match &event.payload {
                Payload::Output { .. } => "output".to_owned(),
                Payload::Lifecycle(line) => name(line),
                Payload::Gap(gap) => panic!("nothing is missing: {gap:?}"),
                Payload::Line { .. } => panic!("no lines were requested"),
            };
            recorded_events.push((event.attempt, name));
        }
    }
    recorded_events
}
