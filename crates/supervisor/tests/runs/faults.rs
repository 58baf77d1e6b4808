//! Faults at the worst moment.

use crate::{
    abort, event_names, name, spawn_to_the_gate,
    world::{Nature, Stage, Temper, Weather, call, new_run, seen},
};
use kennel_keeper::client::KeeperEvent;
use kennel_lifecycle::{
    CapabilitySet, Containment, Isolation, Network, RunId, RunState, Sandbox, Seccomp,
    recovery::{CgroupSeen, ProcessPresence},
};
use kennel_store::RunRow;
use kennel_supervisor::{
    CallError, Condition, EXIT_CLEAN, EXIT_FAULT, Events, ListFilter, Payload, Position,
};
use std::{collections::HashMap, time::Duration};

/// Upper bound for every step here, also on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// The keeper starts another server, which has all of its tasks.
#[tokio::test]
async fn panic_of_a_background_task_ends_the_server() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    stage.world.store.set(Weather::Broken);
    let code = tokio::time::timeout(SOON, stage.exit).await;
    assert_eq!(code.expect("it ends").unwrap(), EXIT_FAULT);
    // Runs are left to the next server: none was stopped.
    let world = stage.world.state.lock().unwrap();
    let child = &world.children[&run];
    assert!(child.alive && child.stop_plans.is_empty());
}

/// No other server would end its runs and record how.
#[tokio::test(start_paused = true)]
async fn panic_does_not_cut_a_shutdown_short() {
    let stage = Stage::set(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    })
    .await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    stage.send_event(KeeperEvent::Shutdown {});
    stage.world.store.set(Weather::Broken);
    // Long enough for several checks of the store.
    tokio::time::sleep(Duration::from_secs(3)).await;
    stage.world.store.set(Weather::Fair);
    stage.exits(run, 0);
    let code = tokio::time::timeout(SOON, stage.exit).await;
    assert_eq!(code.expect("it ends").unwrap(), EXIT_CLEAN);
    assert!(stage.world.store.row(run).unwrap().outcome.is_some());
}

#[tokio::test]
async fn output_written_just_before_exit_is_read() {
    let stage = Stage::set(Nature {
        output: b"first".to_vec(),
        last_words: b" and last".to_vec(),
        ..Nature::default()
    })
    .await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    let mut events = follow(&stage, run).await;
    assert_eq!(output(&mut events, 5).await, b"first");
    // The pipe was found empty; the runtime announces later bytes only after the end.
    stage.exits(run, 0);
    assert_eq!(output(&mut events, 9).await, b" and last");
    let names = event_names(&stage, run).await;
    assert_eq!(names.last().map(String::as_str), Some("ended"));
}

#[tokio::test]
async fn recorded_and_started_events_precede_output() {
    let stage = Stage::set(Nature {
        output: b"quick".to_vec(),
        verdict_held: true,
        cgroup_refused: Some("read-only".into()),
        ..Nature::default()
    })
    .await;
    let run = RunId::from_u128(7);
    let spawn = tokio::spawn({
        let supervisor = stage.supervisor.clone();
        async move { supervisor.spawn(call(Some(run))).await }
    });
    while stage.kernel().executed.is_empty() {
        tokio::task::yield_now().await;
    }
    // Enough yields to read the pipe.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    stage.reports_verdict(run);
    let spawned = spawn.await.unwrap().unwrap();
    assert!(spawned.run.times.started.is_some());
    stage.exits(run, 0);
    stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    let names = event_names(&stage, run).await;
    assert_eq!(names[..2], ["recorded", "warning"]);
    let place = |name: &str| names.iter().position(|n| n == name).unwrap();
    assert!(place("started") < place("output"), "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_behind_hanging_write() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    stage.world.store.set(Weather::StatesHang);
    // The change to `running` is in flight to a store that does not answer.
    tokio::time::sleep(Duration::from_secs(1)).await;
    tokio::spawn({
        let supervisor = stage.supervisor.clone();
        async move { supervisor.abort(abort(run)).await }
    });
    let began = tokio::time::Instant::now();
    while stage.is_alive(run) && began.elapsed() < SOON {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() < Duration::from_secs(3), "{began:?}");
}

#[tokio::test]
async fn unreadable_output_pipe_refuses_the_spawn() {
    let stage = Stage::set(Nature {
        unreadable: true,
        ..Nature::default()
    })
    .await;
    let run = RunId::from_u128(7);
    let refused = stage.supervisor.spawn(call(Some(run))).await;
    assert!(
        matches!(refused, Err(CallError::QuotaExceeded { .. })),
        "{refused:?}"
    );
    assert!(stage.kernel().executed.is_empty());
    let row = stage.world.store.row(run);
    assert!(row.is_none_or(|row| row.outcome.is_some()));
}

#[tokio::test(start_paused = true)]
async fn end_owned_by_another_generation_is_not_reported() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    let events = stage.supervisor.events(run, Position::Beginning).await;
    let (_, mut events) = events.unwrap();
    stage.world.store.set(Weather::Superseded);
    stage.exits(run, 0);
    let ended = stage.supervisor.wait(run, Condition::Ended);
    assert!(tokio::time::timeout(SOON, ended).await.is_err());
    let mut names = Vec::new();
    while let Ok(Ok(Some(batch))) = tokio::time::timeout(SOON, events.next(1 << 20)).await {
        for event in batch {
            if let Payload::Lifecycle(line) = event.payload {
                names.push(name(&line));
            }
        }
    }
    assert!(names.contains(&"started".to_owned()), "{names:?}");
    assert!(!names.contains(&"ended".to_owned()), "{names:?}");
}

#[tokio::test]
async fn wait_never_reports_withdrawn_run_as_ended() {
    let stage = Stage::set(Nature::default()).await;
    let run = RunId::from_u128(7);
    let spawn = spawn_to_the_gate(&stage, run).await;
    let wait = tokio::spawn({
        let supervisor = stage.supervisor.clone();
        async move { supervisor.wait(run, Condition::Ended).await }
    });
    tokio::task::yield_now().await;
    stage.world.store.set(Weather::Away);
    stage.world.store.let_inserts_go();
    spawn.await.unwrap().unwrap_err();
    stage.world.store.set(Weather::Fair);
    // The wait may have read while the store was unavailable, and then cannot answer either.
    let waited = wait.await.unwrap();
    assert!(
        matches!(
            waited,
            Err(CallError::RunNotFound(_) | CallError::StoreUnavailable)
        ),
        "{waited:?}"
    );
}

#[tokio::test]
async fn refused_interrupt_is_sent_when_repeated() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    stage.supervisor.pause(run).await.unwrap();
    let request = || Some("a".to_owned());
    stage
        .supervisor
        .interrupt(run, request())
        .await
        .unwrap_err();
    stage.supervisor.resume(run).await.unwrap();
    stage.supervisor.interrupt(run, request()).await.unwrap();
    assert_eq!(stage.kernel().interrupts, 1);
}

#[tokio::test]
async fn open_rows_beyond_the_limit_are_recovered() {
    let runs: Vec<RunId> = (1..=150).map(RunId::from_u128).collect();
    let orphans = runs
        .iter()
        .map(|run| (*run, seen(ProcessPresence::Gone, CgroupSeen::Empty, None)));
    let orphans: HashMap<_, _> = orphans.collect();
    let rows = runs.iter().map(|run| RunRow::open(new_run(*run))).collect();
    let stage = Stage::with_rows(Nature::default(), rows, orphans).await;
    let until = tokio::time::Instant::now() + SOON;
    // No caller asks for these runs.
    while stage.world.store.closed.lock().unwrap().len() < runs.len() {
        assert!(tokio::time::Instant::now() < until, "rows are left open");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn pagination_of_live_runs_is_complete() {
    let stage = Stage::set(Nature::default()).await;
    let mut spawned = Vec::new();
    for _ in 0..7 {
        spawned.push(stage.supervisor.spawn(call(None)).await.unwrap().run.run);
    }
    let mut paused: Vec<RunId> = spawned.iter().step_by(2).copied().collect();
    for run in &paused {
        stage.supervisor.pause(*run).await.unwrap();
    }
    let mut listed = Vec::new();
    let mut start = None;
    for _ in 0..10 {
        let filter = ListFilter {
            states: vec![RunState::Paused],
            ..ListFilter::default()
        };
        let page = stage.supervisor.list(filter, start, 2).await.unwrap();
        listed.extend(page.runs.iter().map(|view| view.run));
        start = page.next;
        if start.is_none() {
            break;
        }
    }
    paused.reverse();
    assert_eq!((listed, start), (paused, None));
}

async fn follow(stage: &Stage, run: RunId) -> Events {
    let events = stage.supervisor.events(run, Position::Beginning);
    events.await.unwrap().1
}

/// Returns the next `len` bytes of output.
async fn output(events: &mut Events, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let batch = tokio::time::timeout(SOON, events.next(1 << 20)).await;
        let Some(batch) = batch.expect("an event in time").unwrap() else {
            break;
        };
        for event in batch {
            if let Payload::Output { data, .. } = event.payload {
                bytes.extend(data);
            }
        }
    }
    bytes
}

// promise: N-3
#[tokio::test]
async fn spawn_below_minimum_containment_is_refused() {
    // The host has control groups, and refuses one at the moment of the spawn.
    let stage = Stage::set(Nature {
        cgroup_refused: Some("budget".into()),
        ..Nature::default()
    })
    .await;
    let run = RunId::from_u128(7);
    let mut strict = call(Some(run));
    strict.spec.policy.min_containment = Some(Containment::Cgroup);
    let refused = stage.supervisor.spawn(strict.clone()).await;
    match refused {
        Err(CallError::ContainmentUnavailable {
            wanted,
            reached,
            why,
            ..
        }) => {
            assert_eq!(
                (wanted, reached),
                (Containment::Cgroup, Containment::Subreaper)
            );
            assert_eq!(why.as_deref(), Some("budget"));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        stage.supervisor.get(run).await,
        Err(CallError::RunNotFound(_))
    ));
    // The repeated call starts a new run.
    stage.kernel().nature.cgroup_refused = None;
    let spawned = stage.supervisor.spawn(strict).await.unwrap();
    assert!(!spawned.existing);
    assert_eq!(spawned.run.row.new.held.unwrap().by, Containment::Cgroup);
    stage.exits(run, 0);
    stage.supervisor.wait(run, Condition::Ended).await.unwrap();
}

// promise: AC-17a, AC-21a, AC-22
#[tokio::test]
async fn isolation_that_the_host_lacks_is_refused() {
    // The simulated host has none of the capabilities.
    let stage = Stage::set(Nature::default()).await;
    let mut strict = call(Some(RunId::from_u128(7)));
    let policy = &mut strict.spec.policy;
    policy.privileges.drop_capabilities = CapabilitySet::ALL;
    policy.privileges.sandbox = Some(Sandbox::default());
    policy.privileges.seccomp = Seccomp::Baseline;
    policy.privileges.network = Network::None;
    policy.min_isolation = Some(Isolation::Processes);
    let Err(CallError::CapabilityMissing(missing)) = stage.supervisor.spawn(strict).await else {
        panic!("it is not refused");
    };
    let fields: Vec<&str> = missing.iter().map(|m| m.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.privileges.drop_capabilities",
            "spec.privileges.sandbox",
            "spec.privileges.seccomp_profile",
            "spec.privileges.network",
            "spec.min_isolation",
            "spec.min_isolation"
        ]
    );
    let plain = stage.supervisor.spawn(call(None)).await;
    plain.expect("a run that asks for nothing starts");
}
