//! Runs from spawn to end, over a kernel and a store that react only to calls.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as the tests do")]

#[path = "runs/adoption.rs"]
mod adoption;
#[path = "runs/audit.rs"]
mod audit;
#[path = "runs/busy.rs"]
mod busy;
#[path = "runs/children.rs"]
mod children;
#[path = "runs/clock.rs"]
mod clock;
#[path = "runs/damage.rs"]
mod damage;
#[path = "runs/deadlines.rs"]
mod deadlines;
#[path = "runs/drain.rs"]
mod drain;
#[path = "runs/facets.rs"]
mod facets;
#[path = "runs/faults.rs"]
mod faults;
#[path = "runs/full_disk.rs"]
mod full_disk;
#[path = "runs/history.rs"]
mod history;
#[path = "runs/late.rs"]
mod late;
#[path = "runs/lists.rs"]
mod lists;
#[path = "runs/many.rs"]
mod many;
#[path = "runs/members.rs"]
mod members;
#[path = "runs/memory.rs"]
mod memory;
#[path = "runs/names.rs"]
mod names;
#[path = "runs/outage.rs"]
mod outage;
#[path = "runs/pinned.rs"]
mod pinned;
#[path = "runs/record.rs"]
mod record;
#[path = "runs/rest.rs"]
mod rest;
#[path = "runs/restarts.rs"]
mod restarts;
#[path = "runs/retention.rs"]
mod retention;
#[path = "runs/rules.rs"]
mod rules;
#[path = "runs/silent.rs"]
mod silent;
#[path = "runs/simulation.rs"]
mod simulation;
#[path = "runs/story.rs"]
mod story;
#[path = "runs/stuck.rs"]
mod stuck;
#[path = "runs/turns.rs"]
mod turns;
mod world;

use kennel_journal::GapReason;
use kennel_keeper::client::KeeperEvent;
use kennel_lifecycle::{
    EndReason, Entry, Exit, RunId, RunState, StartFailure, StartStage,
    recovery::{CgroupSeen, ExitRecord, ProcessPresence},
};
use kennel_store::{NewRun, RunRow};
use kennel_supervisor::{
    AbortCall, AbortWait, CallError, Condition, IfUnknown, Payload, Position, Spawned,
};
use std::{collections::HashMap, time::Duration};
use tokio::task::JoinHandle;
use world::{Nature, Stage, Temper, Weather, call, new_run, seen};

#[tokio::test]
async fn run_is_recorded_and_ends_with_exit_code() {
    let stage = Stage::set(Nature {
        output: b"hello".to_vec(),
        ..Nature::default()
    })
    .await;
    let spawned = stage.supervisor.spawn(call(None)).await.unwrap();
    let run = spawned.run.run;
    assert!(!spawned.existing);
    assert_eq!(spawned.run.state, RunState::Running);
    stage.exits(run, 3);
    let waited = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    assert!(waited.reached);
    assert_eq!(waited.run.state, RunState::Failed);
    assert_eq!(waited.run.exit, Some(Exit::Code(3)));
    let row = stage.world.store.row(run).unwrap();
    assert_eq!(row.outcome.unwrap().reason, EndReason::Exited);
    assert!(row.times.leader_exited.is_some() && row.times.tree_empty.is_some());

    let names = event_names(&stage, run).await;
    assert_eq!(names[0], "recorded");
    assert_eq!(names.last().map(String::as_str), Some("ended"));
    let place = |name: &str| names.iter().position(|n| n == name).unwrap();
    assert!(place("started") < place("output"));
    assert!(place("started") < place("leader_exited"));
    assert!(place("leader_exited") < place("streams_closed"));
    assert!(place("output") < place("streams_closed"));
}

// promise: D-3
#[tokio::test]
async fn spawn_with_unavailable_store_frees_the_id() {
    let stage = Stage::set(Nature::default()).await;
    let run = RunId::from_u128(7);
    stage.world.store.set(Weather::Away);
    let refused = stage.supervisor.spawn(call(Some(run))).await;
    assert!(
        matches!(refused, Err(CallError::StoreUnavailable)),
        "{refused:?}"
    );
    assert!(stage.kernel().executed.is_empty());

    stage.world.store.set(Weather::Fair);
    while stage.world.state.lock().unwrap().acknowledged.is_empty() {
        tokio::task::yield_now().await;
    }
    let run_dir = stage.data_dir.path().join("runs").join(run.to_string());
    while run_dir.exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stage.supervisor.spawn(call(Some(run))).await.unwrap();
}

// promise: D-4
#[tokio::test(start_paused = true)]
async fn insert_of_unknown_fate_is_withdrawn() {
    for written in [true, false] {
        let stage = Stage::set(Nature::default()).await;
        let run = RunId::from_u128(7);
        let store = &stage.world.store;
        store.set(Weather::InsertUnknown { written });
        let refused = stage.supervisor.spawn(call(Some(run))).await;
        let is_away = matches!(refused, Err(CallError::StoreUnavailable));
        assert!(is_away, "{refused:?}");
        store.set(Weather::Fair);
        // A get of that id waits until the store has no row.
        let got = stage.supervisor.get(run).await;
        assert!(matches!(got, Err(CallError::RunNotFound(_))), "{got:?}");
        assert_eq!(store.row(run), None);
        assert!(stage.kernel().executed.is_empty());
        let again = stage.supervisor.spawn(call(Some(run))).await.unwrap();
        assert!(!again.existing);
        assert_eq!(stage.kernel().executed, [(run, 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn stop_before_the_withdrawal_is_recorded() {
    let stage = Stage::set(Nature::default()).await;
    let run = RunId::from_u128(7);
    stage.world.store.set(Weather::InsertLast);
    let refused = stage.supervisor.spawn(call(Some(run))).await;
    assert!(refused.is_err(), "{refused:?}");
    let supervisor = stage.supervisor.clone();
    let stop = tokio::spawn(async move { supervisor.abort(abort(run)).await });
    tokio::task::yield_now().await;
    stage.world.store.set(Weather::Fair);
    assert_eq!(stop.await.unwrap().unwrap().state, RunState::Cancelled);
    let again = stage.supervisor.spawn(call(Some(run))).await.unwrap();
    assert_eq!(
        (again.existing, again.run.state),
        (true, RunState::Cancelled)
    );
    assert!(stage.kernel().executed.is_empty());
}

/// The database begins an INSERT after the server has given it up and withdrawn the record.
// promise: D-4
#[tokio::test]
async fn late_insert_is_withdrawn_when_found() {
    let stage = Stage::set(Nature::default()).await;
    let run = RunId::from_u128(7);
    let (store, generation) = (&stage.world.store, stage.world.store.generation());
    let row = RunRow::open(NewRun {
        generation,
        ..new_run(run)
    });
    store.rows.lock().unwrap().insert(run, row);
    let refused = stage.supervisor.spawn(call(Some(run))).await;
    let is_away = matches!(refused, Err(CallError::StoreUnavailable));
    assert!(is_away, "{refused:?}");
    while let Some(row) = store.row(run) {
        assert_eq!(row.outcome, None);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let again = stage.supervisor.spawn(call(Some(run))).await.unwrap();
    assert!(!again.existing);
    assert_eq!(stage.kernel().executed, [(run, 1)]);
    assert!(store.closed.lock().unwrap().is_empty());
}

// promise: K-1
#[tokio::test]
async fn concurrent_duplicate_spawn_waits_for_the_first() {
    let stage = Stage::set(Nature::default()).await;
    let run = RunId::from_u128(7);
    stage.world.store.hold_inserts();
    let (one, two) = (stage.supervisor.clone(), stage.supervisor.clone());
    let one = tokio::spawn(async move { one.spawn(call(Some(run))).await });
    let two = tokio::spawn(async move { two.spawn(call(Some(run))).await });
    tokio::task::yield_now().await;
    stage.world.store.let_inserts_go();
    let (one, two) = (one.await.unwrap().unwrap(), two.await.unwrap().unwrap());
    assert_ne!(one.existing, two.existing);
    assert_eq!(stage.kernel().executed, [(run, 1)]);

    let mut other = call(Some(run));
    other.digest.whole = [2; 32];
    other.digest.parts[1] = [2; 16];
    let refused = stage.supervisor.spawn(other).await;
    assert!(
        matches!(refused, Err(CallError::SpecMismatch { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn ended_run_answers_repeated_spawn_from_its_row() {
    let stage = Stage::set(Nature {
        exits_at_once: Some(0),
        ..Nature::default()
    })
    .await;
    let run = RunId::from_u128(7);
    stage.supervisor.spawn(call(Some(run))).await.unwrap();
    stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    let again = stage.supervisor.spawn(call(Some(run))).await.unwrap();
    assert!(again.existing);
    assert_eq!(again.run.state, RunState::Succeeded);
    assert_eq!(stage.kernel().executed, [(run, 1)]);
}

#[tokio::test]
async fn exec_failure_is_typed_and_repeatable() {
    let stage = Stage::set(Nature {
        exec_fails: Some(2),
        ..Nature::default()
    })
    .await;
    let run = RunId::from_u128(7);
    for _ in 0..2 {
        match stage.supervisor.spawn(call(Some(run))).await {
            Err(CallError::SpawnFailed { failure, .. }) => {
                assert_eq!((failure.stage, failure.errno), (StartStage::Exec, Some(2)));
            }
            other => panic!("{other:?}"),
        }
    }
    let row = stage.world.store.row(run).unwrap();
    assert_eq!(row.outcome.unwrap().exit, None);
}

#[tokio::test]
async fn start_failed_before_gate_leaves_no_row() {
    let failure = StartFailure {
        stage: StartStage::WorkDir,
        errno: Some(20),
        path: Some("/x".into()),
    };
    let stage = Stage::set(Nature {
        prepare_fails: Some(failure.clone()),
        ..Nature::default()
    })
    .await;
    let run = RunId::from_u128(7);
    match stage.supervisor.spawn(call(Some(run))).await {
        Err(CallError::SpawnFailed {
            failure: reported, ..
        }) => assert_eq!(reported, failure),
        other => panic!("{other:?}"),
    }
    assert_eq!(stage.world.store.row(run), None);
    assert!(matches!(
        stage.supervisor.get(run).await,
        Err(CallError::RunNotFound(_))
    ));
}

// promise: K-2
#[tokio::test]
async fn abort_of_unknown_id_fences_it_for_good() {
    let stage = Stage::set(Nature::default()).await;
    let run = RunId::from_u128(7);
    let view = stage.supervisor.abort(abort(run)).await.unwrap();
    assert_eq!(view.state, RunState::Cancelled);
    let refused = stage.supervisor.spawn(call(Some(run))).await;
    assert!(
        matches!(refused, Err(CallError::RunFenced(_))),
        "{refused:?}"
    );
    assert!(stage.kernel().executed.is_empty());
    // A repeated abort gets this answer too.
    let view = stage.supervisor.abort(abort(run)).await.unwrap();
    assert_eq!(view.state, RunState::Cancelled);
}

// promise: K-4
#[tokio::test]
async fn abort_at_the_gate_prevents_exec() {
    let stage = Stage::set(Nature::default()).await;
    let run = RunId::from_u128(7);
    let spawn = spawn_to_the_gate(&stage, run).await;
    let stop = tokio::spawn({
        let supervisor = stage.supervisor.clone();
        async move { supervisor.abort(abort(run)).await }
    });
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    stage.world.store.let_inserts_go();
    let view = stop.await.unwrap().unwrap();
    assert_eq!(view.state, RunState::Cancelled);
    assert_eq!(view.exit, None);
    let refused = spawn.await.unwrap();
    assert!(
        matches!(refused, Err(CallError::StoppedFirst(_))),
        "{refused:?}"
    );
    assert!(stage.kernel().executed.is_empty());
}

#[tokio::test]
async fn stop_is_recorded_before_signals_and_only_shortened() {
    let stage = Stage::set(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    })
    .await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    let none = AbortCall {
        wait: AbortWait::None,
        ..abort(run)
    };
    let view = stage.supervisor.abort(none.clone()).await.unwrap();
    assert_eq!(view.state, RunState::Stopping);
    let first = view.stop_deadline.unwrap();
    let longer = AbortCall {
        grace: Some(Duration::from_mins(1)),
        ..none
    };
    assert_eq!(
        stage.supervisor.abort(longer).await.unwrap().stop_deadline,
        Some(first)
    );
    let at_once = AbortCall {
        grace: Some(Duration::ZERO),
        ..abort(run)
    };
    let view = stage.supervisor.abort(at_once).await.unwrap();
    assert!(view.stop_deadline.unwrap() < first);
    assert_eq!(view.state, RunState::Cancelled);
    assert_eq!(stage.plans(run).len(), 2);
}

#[tokio::test]
async fn pause_resume_and_interrupt_are_answered_when_done() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    assert_eq!(
        stage.supervisor.pause(run).await.unwrap().state,
        RunState::Paused
    );
    assert_eq!(
        stage.supervisor.pause(run).await.unwrap().state,
        RunState::Paused
    );
    let refused = stage.supervisor.interrupt(run, None).await;
    assert!(
        matches!(refused, Err(CallError::Refused { .. })),
        "{refused:?}"
    );
    assert_eq!(
        stage.supervisor.resume(run).await.unwrap().state,
        RunState::Running
    );
    for _ in 0..3 {
        stage
            .supervisor
            .interrupt(run, Some("a".into()))
            .await
            .unwrap();
    }
    assert_eq!(stage.kernel().interrupts, 1);
    stage.supervisor.abort(abort(run)).await.unwrap();
    let refused = stage.supervisor.pause(run).await;
    assert!(
        matches!(refused, Err(CallError::Refused { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn shutdown_stops_every_run_and_exits_zero() {
    let stage = Stage::set(Nature::default()).await;
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(stage.supervisor.spawn(call(None)).await.unwrap().run.run);
    }
    stage.send_event(KeeperEvent::Shutdown {});
    assert_eq!(stage.exit.await.unwrap(), 0);
    for run in runs {
        let outcome = stage.world.store.row(run).unwrap().outcome.unwrap();
        assert_eq!(outcome.reason, EndReason::ServerShutdown);
    }
    let refused = stage.supervisor.spawn(call(None)).await;
    assert!(matches!(refused, Err(CallError::Draining)), "{refused:?}");
}

// promise: S-1a
#[tokio::test]
async fn grace_cut_by_shutdown_is_reported_to_run() {
    let stage = Stage::set(Nature::default()).await;
    let mut patient = call(None);
    patient.spec.policy.stop.grace = Some(Duration::from_mins(1));
    let patient = stage.supervisor.spawn(patient).await.unwrap().run.run;
    let other = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    let mut warned = Vec::new();
    for run in [patient, other] {
        warned.push(
            stage
                .supervisor
                .events(run, Position::Beginning)
                .await
                .unwrap()
                .1,
        );
    }
    stage.send_event(KeeperEvent::Shutdown {});
    let mut warnings = Vec::new();
    for events in &mut warned {
        while let Some(batch) = events.next(1 << 20).await.unwrap() {
            warnings.extend(batch.into_iter().filter_map(|event| match event.payload {
                Payload::Lifecycle(Entry::Warning { message }) => Some(message),
                _ => None,
            }));
        }
    }
    let words = "--shutdown-timeout cuts the grace period from 60 s to 8 s";
    assert_eq!(warnings, [words]);
    let kill_after = |run| stage.plans(run).last().unwrap().kill_after;
    let seconds = Duration::from_secs;
    assert_eq!(
        [kill_after(patient), kill_after(other)],
        [seconds(8), seconds(1)]
    );
    assert_eq!(stage.exit.await.unwrap(), 0);
}

// promise: S-4
#[tokio::test(start_paused = true)]
async fn unkillable_run_does_not_delay_shutdown() {
    let stage = Stage::set(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    })
    .await;
    stage.supervisor.spawn(call(None)).await.unwrap();
    stage.send_event(KeeperEvent::Shutdown {});
    assert_eq!(stage.exit.await.unwrap(), 1);
}

#[tokio::test]
async fn server_start_closes_ended_and_terminates_live_runs() {
    let (gone, alive, recorded) = (
        RunId::from_u128(1),
        RunId::from_u128(2),
        RunId::from_u128(3),
    );
    let record = ExitRecord {
        exit: Some(Exit::Code(4)),
        by_itself: None,
        tree: None,
        never_ran: false,
        steps: vec![],
        census: None,
        shutdown: false,
    };
    let orphans = HashMap::from([
        (gone, seen(ProcessPresence::Gone, CgroupSeen::Empty, None)),
        (
            alive,
            seen(ProcessPresence::Same, CgroupSeen::Populated, None),
        ),
        (
            recorded,
            seen(ProcessPresence::Gone, CgroupSeen::None, Some(record)),
        ),
    ]);
    let rows = [gone, alive, recorded].map(|run| RunRow::open(new_run(run)));
    let stage = Stage::with_rows(Nature::default(), rows.into(), orphans).await;
    let end = async |run| {
        let waited = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
        assert!(waited.reached);
        waited.run
    };
    let view = end(gone).await;
    assert_eq!(view.state, RunState::Lost);
    assert_eq!(view.row.outcome.unwrap().reason, EndReason::ServiceLost);
    assert_eq!(view.exit, Some(Exit::Unknown));
    assert_eq!(
        end(alive).await.row.outcome.unwrap().reason,
        EndReason::OrphanTerminated
    );
    assert_eq!(end(recorded).await.exit, Some(Exit::Code(4)));
    assert_eq!(stage.kernel().orphans_ended, [alive]);
    let names = event_names_behind_loss(&stage, alive).await;
    assert_eq!(names.last().map(String::as_str), Some("ended"));
}

/// Spawns a run whose child waits at its gate, because its record is held.
async fn spawn_to_the_gate(stage: &Stage, run: RunId) -> JoinHandle<Result<Spawned, CallError>> {
    stage.world.store.hold_inserts();
    let spawn = tokio::spawn({
        let supervisor = stage.supervisor.clone();
        async move { supervisor.spawn(call(Some(run))).await }
    });
    while !stage.is_alive(run) {
        tokio::task::yield_now().await;
    }
    spawn
}

async fn event_names(stage: &Stage, run: RunId) -> Vec<String> {
    names_behind(stage, run, 0).await
}

/// Returns the events of a run that the node log does not have: readers may have got entries that were lost with it, so
/// it continues above the mark, after a gap.
async fn event_names_behind_loss(stage: &Stage, run: RunId) -> Vec<String> {
    let (_, mut events) = stage
        .supervisor
        .events(run, Position::Beginning)
        .await
        .unwrap();
    let first = events.next(1 << 20).await.unwrap().unwrap().remove(0);
    let Payload::Gap(gap) = &first.payload else {
        panic!("it begins with a gap: {first:?}");
    };
    assert_eq!((gap.reason, gap.first_seq), (GapReason::HostLost, 1));
    names_behind(stage, run, first.seq).await
}

/// Returns the names after this seq.
async fn names_behind(stage: &Stage, run: RunId, seq: u64) -> Vec<String> {
    let (_, mut events) = stage
        .supervisor
        .events(run, Position::Beginning)
        .await
        .unwrap();
    let mut names = Vec::new();
    let mut last = seq;
    while let Some(batch) = events.next(1 << 20).await.unwrap() {
        for event in batch {
            if event.seq <= seq {
                continue;
            }
            assert_eq!(event.seq, last + 1, "a hole or a repeat");
            last = event.seq;
            names.push(match event.payload {
                Payload::Output { .. } => "output".to_owned(),
                Payload::Lifecycle(line) => name(&line),
                Payload::Gap(gap) => panic!("nothing is missing: {gap:?}"),
                Payload::Line { .. } => panic!("no lines were requested"),
            });
        }
    }
    names
}

fn name(line: &Entry) -> String {
    match serde_json::to_value(line).unwrap() {
        serde_json::Value::String(name) => name,
        with_data => with_data
            .as_object()
            .unwrap()
            .keys()
            .next()
            .unwrap()
            .clone(),
    }
}

fn abort(run: RunId) -> AbortCall {
    AbortCall {
        run,
        grace: None,
        wait: AbortWait::TreeEmpty,
        if_unknown: IfUnknown::Fence,
        by: "uid:0".into(),
        owner: "uid:0".into(),
        request_id: None,
    }
}
