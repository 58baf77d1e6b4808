//! The store is unavailable: pending changes are durable before any caller gets the answer, and are written in order by
//! any later server.

use crate::{
    abort, event_names,
    world::{Lives, Nature, Stage, Temper, Weather, call, log},
};
use kennel_keeper::client::KeeperEvent;
use kennel_lifecycle::{EndReason, Exit, RestartPolicy, RunId, RunState};
use kennel_store::{Desired, RunRow, StoredState};
use kennel_supervisor::{AbortCall, AbortWait, CallError, Condition, ListFilter};
use std::time::Duration;

/// Upper bound for every step here, also on a busy machine.
const SOON: Duration = Duration::from_secs(20);

fn run_id() -> RunId {
    RunId::from_u128(7)
}

fn at_once(run: RunId) -> AbortCall {
    AbortCall {
        wait: AbortWait::None,
        ..abort(run)
    }
}

/// Waits until the store has all changes.
async fn wait_until_recorded(stage: &Stage, run: RunId) {
    let until = tokio::time::Instant::now() + SOON;
    while stage
        .world
        .store
        .row(run)
        .is_none_or(|row| row.outcome.is_none())
    {
        assert!(
            tokio::time::Instant::now() < until,
            "the store is not notified"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pending(stage: &Stage) -> usize {
    log::logged(&stage.data_dir).pending
}

// promise: D-9, D-9b
#[tokio::test]
async fn abort_and_end_survive_a_store_outage() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage
        .supervisor
        .spawn(call(Some(run_id())))
        .await
        .unwrap()
        .run
        .run;
    assert_eq!(pending(&stage), 0);
    stage.world.store.set(Weather::Away);
    let ended = tokio::time::timeout(SOON, stage.supervisor.abort(abort(run))).await;
    let ended = ended.expect("it is answered").unwrap();
    assert_eq!(ended.state, RunState::Cancelled);
    assert!(ended.times.ended.is_some());
    assert_eq!(event_names(&stage, run).await.last().unwrap(), "ended");
    // Repeated calls are answered without the store.
    assert_eq!(
        stage.supervisor.get(run).await.unwrap().state,
        RunState::Cancelled
    );
    assert!(
        stage
            .supervisor
            .wait(run, Condition::Ended)
            .await
            .unwrap()
            .reached
    );
    let row = stage.world.store.row(run).unwrap();
    assert_eq!((row.desired, row.outcome), (Desired::Run, None));
    assert_eq!(pending(&stage), 2);
    assert!(matches!(
        stage.supervisor.spawn(call(None)).await,
        Err(CallError::StoreUnavailable)
    ));
    stage.world.store.set(Weather::Fair);
    wait_until_recorded(&stage, run).await;
    let row = stage.world.store.row(run).unwrap();
    assert_eq!((row.desired, row.stop.is_some()), (Desired::Stop, true));
    assert!(matches!(
        row.outcome.unwrap().reason,
        EndReason::Aborted { .. }
    ));
    let until = tokio::time::Instant::now() + SOON;
    while pending(&stage) > 0 {
        assert!(
            tokio::time::Instant::now() < until,
            "it is pending for ever"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stage.supervisor.spawn(call(None)).await.unwrap();
}

// promise: D-9b
#[tokio::test]
async fn pause_is_durable_during_store_outage() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    stage.world.store.set(Weather::Away);
    assert_eq!(
        stage.supervisor.pause(run).await.unwrap().state,
        RunState::Paused
    );
    stage.world.store.set(Weather::Fair);
    let until = tokio::time::Instant::now() + SOON;
    while stage.world.store.row(run).unwrap().state != StoredState::Paused {
        assert!(
            tokio::time::Instant::now() < until,
            "the store is not notified"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// promise: D-9a
#[tokio::test]
async fn read_only_store_is_reported_unreachable() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    let other = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    stage.world.store.set(Weather::ReadOnly);
    stage.supervisor.abort(abort(run)).await.unwrap();
    let info = stage.supervisor.info().await;
    assert!(!info.store_reachable);
    assert_eq!(info.live.values().sum::<u32>(), 1, "{:?}", info.live);
    assert_eq!(stage.supervisor.drain_status().remaining, [other]);
    stage.world.store.set(Weather::Fair);
    wait_until_recorded(&stage, run).await;
    let until = tokio::time::Instant::now() + SOON;
    while !stage.supervisor.info().await.store_reachable {
        assert!(tokio::time::Instant::now() < until, "it is not there again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// promise: D-9b
#[tokio::test]
async fn hanging_store_does_not_delay_pause() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    stage.world.store.set(Weather::StatesHang);
    let paused = tokio::time::timeout(SOON, stage.supervisor.pause(run)).await;
    assert_eq!(
        paused.expect("it is answered").unwrap().state,
        RunState::Paused
    );
}

/// The servers die with the store unavailable; only the last one finds it again.
// promise: D-9b
#[test]
fn pending_writes_are_flushed_by_later_server() {
    let lives = Lives::of(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    });
    lives.begin();
    lives.live(async |stage| {
        stage.world.store.set(Weather::Away);
        let call = AbortCall {
            grace: Some(Duration::from_mins(1)),
            ..at_once(run_id())
        };
        let view = stage.supervisor.abort(call).await.unwrap();
        assert_eq!(view.state, RunState::Stopping);
    });
    let asked = lives.live(async |stage| {
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(
            (view.state, view.desired),
            (RunState::Stopping, Desired::Stop)
        );
        let shorter = AbortCall {
            grace: Some(Duration::ZERO),
            ..abort(run_id())
        };
        let view = stage.supervisor.abort(shorter).await.unwrap();
        assert!(matches!(
            view.outcome.clone().unwrap().reason,
            EndReason::Aborted { .. }
        ));
        view.stop_deadline
    });
    assert!(lives.world.store.row(run_id()).unwrap().outcome.is_none());
    lives.world.store.set(Weather::Fair);
    lives.live(async |stage| {
        let row = stage.world.store.row(run_id()).unwrap();
        assert!(matches!(
            row.outcome.unwrap().reason,
            EndReason::Aborted { .. }
        ));
        assert_eq!(row.stop_deadline, asked);
        let names = event_names(stage, run_id()).await;
        let ends = names.iter().filter(|name| *name == "ended").count();
        assert_eq!(ends, 1, "{names:?}");
    });
    assert_eq!(lives.world.store.closed.lock().unwrap().len(), 1);
}

// promise: D-9d
#[test]
fn end_reported_during_outage_never_changes() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    lives.live(async |stage| {
        stage.world.store.set(Weather::Away);
        stage.exits(run_id(), 3);
        let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
        assert_eq!(waited.unwrap().run.exit, Some(Exit::Code(3)));
    });
    // The next server, with only the pending changes, answers the same.
    lives.live(async |stage| {
        let supervisor = &stage.supervisor;
        let ended = (RunState::Failed, Some(Exit::Code(3)));
        let stored = supervisor.get(run_id()).await.unwrap();
        assert_eq!((stored.state, stored.exit), ended);
        assert_eq!(&*stored.owner, "uid:0");
        let waited = supervisor.wait(run_id(), Condition::Ended).await.unwrap();
        assert!(waited.reached);
        let aborted = supervisor.abort(abort(run_id())).await.unwrap();
        assert_eq!((aborted.state, aborted.exit), ended);
        let names = event_names(stage, run_id()).await;
        assert_eq!(names.last().unwrap(), "ended");
        // Nothing is reported of an unknown run.
        let other = supervisor.get(RunId::from_u128(8)).await;
        assert!(
            matches!(other, Err(CallError::StoreUnavailable)),
            "{other:?}"
        );
    });
    lives.world.store.set(Weather::Fair);
    lives.live(async |stage| {
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(
            (view.state, view.exit),
            (RunState::Failed, Some(Exit::Code(3)))
        );
    });
    assert_eq!(lives.world.store.closed.lock().unwrap().len(), 1);
}

/// It is not open any more, though the store has it open: not where a server reads that while it acquires the node
/// late.
// promise: D-9d
#[test]
fn run_with_pending_end_is_not_reopened() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    lives.world.store.set(Weather::Away);
    lives.live(async |stage| {
        let store = &stage.world.store;
        store.hold_inserts();
        store.set(Weather::Fair);
        // By then the open rows were read, but not handled.
        while store.open_rows_asked() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stage.exits(run_id(), 3);
        let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
        assert_eq!(waited.unwrap().run.exit, Some(Exit::Code(3)));
        stage.send_event(KeeperEvent::Shutdown {});
        let drained = stage.supervisor.serving();
        drained.until_closing().await;
        store.let_inserts_go();
        wait_until_recorded(stage, run_id()).await;
    });
    let outcome = lives.world.store.row(run_id()).unwrap().outcome.unwrap();
    assert_eq!(outcome.exit, Some(Exit::Code(3)));
    assert_eq!(outcome.reason, EndReason::Exited);
}

/// A file in its place: no error costs a run.
// promise: D-9e
#[test]
fn unreadable_node_log_is_set_aside_runs_continue() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    let log = lives.data_dir.path().join("log");
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::write(&log, "another file").unwrap();
    lives.live(async |stage| {
        // With the log gone, only the keeper reports the run.
        let started = stage.supervisor.wait(run_id(), Condition::Started).await;
        assert_eq!(started.unwrap().run.state, RunState::Running);
        stage.world.store.set(Weather::Away);
        stage.exits(run_id(), 3);
        let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
        assert_eq!(waited.unwrap().run.exit, Some(Exit::Code(3)));
    });
    assert!(log.is_dir() && log.with_extension("unread-1").is_file());
}

/// Aborts a run that only the store could know.
async fn undelivered(stage: &Stage, run: RunId) {
    let answer = stage.supervisor.abort(at_once(run)).await;
    let is_said = matches!(answer, Err(CallError::AbortUndelivered { .. }));
    assert!(is_said, "{answer:?}");
}

// promise: D-9c
#[tokio::test]
async fn abort_of_ended_run_is_answered_without_store() {
    let stage = Stage::set(Nature {
        exits_at_once: Some(3),
        ..Nature::default()
    })
    .await;
    stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
    wait_until_recorded(&stage, run_id()).await;
    stage
        .supervisor
        .wait(run_id(), Condition::Ended)
        .await
        .unwrap();
    stage.world.store.set(Weather::Away);
    let view = stage.supervisor.abort(at_once(run_id())).await.unwrap();
    assert_eq!(
        (view.state, view.exit),
        (RunState::Failed, Some(Exit::Code(3)))
    );
    assert_eq!(pending(&stage), 0);
}

// promise: D-9c
#[test]
fn abort_fences_unknown_id_during_store_outage() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        stage.world.store.set(Weather::Away);
        for _ in 0..2 {
            // Another node may start the run meanwhile: no answer confirms the abort.
            undelivered(stage, run_id()).await;
        }
        // A call that needs the run's state waits for the store.
        let waiting = tokio::spawn({
            let supervisor = stage.supervisor.clone();
            async move { supervisor.abort(abort(RunId::from_u128(8))).await }
        });
        tokio::task::yield_now().await;
        stage.world.store.set(Weather::Fair);
        let fenced = tokio::time::timeout(SOON, waiting).await;
        let fenced = fenced.expect("it is answered").unwrap().unwrap();
        assert!(matches!(
            fenced.row.outcome.unwrap().reason,
            EndReason::Fenced { .. }
        ));
        stage.world.store.set(Weather::Away);
        undelivered(stage, RunId::from_u128(9)).await;
    });
    lives.world.store.set(Weather::Fair);
    lives.live(async |stage| {
        for run in [7, 8, 9].map(RunId::from_u128) {
            let refused = stage.supervisor.spawn(call(Some(run))).await;
            assert!(
                matches!(refused, Err(CallError::RunFenced(_))),
                "{refused:?}"
            );
        }
    });
    assert!(lives.world.state.lock().unwrap().executed.is_empty());
}

/// A stop of an unknown key that is promised while an earlier one is delivered does not prolong that delivery: callers
/// may promise more without a pause.
// promise: D-9b
#[test]
fn node_is_acquired_despite_new_pending_stops() {
    let lives = Lives::of(Nature::default());
    let store = &lives.world.store;
    lives.live(async |_| {});
    store.set(Weather::Away);
    lives.live_long(async |stage| {
        let stop = |number| undelivered(stage, RunId::from_u128(number));
        stop(1).await;
        store.reads_held.send_replace(true);
        store.set(Weather::Fair);
        while store.reads_waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop(2).await;
        // Each fence's delivery reads the row with its key.
        store.let_one_read_go();
        let list = || stage.supervisor.list(ListFilter::default(), None, 10);
        let listed = tokio::time::timeout(SOON, async {
            while list().await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        listed.await.expect("the node is acquired");
        store.reads_held.send_replace(false);
        wait_until_recorded(stage, RunId::from_u128(2)).await;
    });
}

// promise: R-53b
#[tokio::test]
async fn read_across_store_rollback_is_refused() {
    let stage = Stage::set(Nature {
        exits_at_once: Some(0),
        ..Nature::default()
    })
    .await;
    let store = &stage.world.store;
    store.keep_history(100);
    stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
    wait_until_recorded(&stage, run_id()).await;
    while !stage.supervisor.info().await.live.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.reads_held.send_replace(true);
    let supervisor = stage.supervisor.clone();
    let asked = tokio::spawn(async move { supervisor.get(run_id()).await });
    while store.reads_waiting() == 0 {
        tokio::task::yield_now().await;
    }
    store.hold_inserts();
    let before = store.generation();
    store.go_back(100);
    while store.generation() <= before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.reads_held.send_replace(false);
    let read = asked.await.unwrap();
    assert!(matches!(read, Err(CallError::StoreUnavailable)), "{read:?}");
    store.let_inserts_go();
    wait_until_recorded(&stage, run_id()).await;
}

#[tokio::test]
async fn restarted_store_gets_no_redundant_row_writes() {
    let stage = Stage::set(Nature::default()).await;
    let store = &stage.world.store;
    stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
    let row = || store.row(run_id()).unwrap();
    while row().state != StoredState::Running {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (known, before) = (row(), store.generation());
    store.go_back(0);
    while store.generation() <= before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stage.exits(run_id(), 0);
    wait_until_recorded(&stage, run_id()).await;
    // A row rewritten in full has the generation of that write.
    assert_eq!(row().new.generation, known.new.generation);
}

/// The store has returned the open runs, and the server has not adopted them yet.
// promise: D-9b
#[test]
fn abort_during_acquisition_ends_waiting_run() {
    let lives = Lives::of(Nature {
        exits_at_once: Some(1),
        ..Nature::default()
    });
    lives.live(async |stage| {
        let mut spawned = call(Some(run_id()));
        spawned.spec.policy.restart = RestartPolicy {
            delay: Duration::from_hours(1),
            max_delay: Duration::from_hours(1),
            ..RestartPolicy::keepalive()
        };
        stage.supervisor.spawn(spawned).await.unwrap();
        let waits = |row: RunRow| row.state == StoredState::Backoff;
        while !stage.world.store.row(run_id()).is_some_and(waits) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    lives.world.store.set(Weather::Away);
    lives.live(async |stage| {
        let store = &stage.world.store;
        let asked = store.open_rows_asked();
        store.hold_inserts();
        store.set(Weather::Fair);
        while store.open_rows_asked() == asked {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let aborted = stage.supervisor.abort(at_once(run_id())).await.unwrap();
        assert_eq!(aborted.desired, Desired::Stop);
        store.let_inserts_go();
        // No caller reads the run: a read would adopt it.
        wait_until_recorded(stage, run_id()).await;
    });
    let row = lives.world.store.row(run_id()).unwrap();
    let reason = row.outcome.unwrap().reason;
    assert!(matches!(reason, EndReason::Aborted { .. }), "{reason:?}");
    assert_eq!(lives.world.state.lock().unwrap().executed, [(run_id(), 1)]);
}

fn lose_server_and_store_at_the_gate(lives: &Lives) {
    lives.live(async |stage| {
        stage.world.store.hold_inserts();
        let supervisor = stage.supervisor.clone();
        tokio::spawn(async move { supervisor.spawn(call(Some(run_id()))).await });
        while !stage.world.has_members(run_id()) {
            tokio::task::yield_now().await;
        }
    });
    lives.world.store.let_inserts_go();
    lives.world.store.set(Weather::Away);
}

// promise: D-9
#[test]
fn child_at_gate_waits_for_the_store() {
    let lives = Lives::of(Nature::default());
    lose_server_and_store_at_the_gate(&lives);
    lives.live(async |stage| {
        let refused = stage
            .supervisor
            .spawn(call(Some(RunId::from_u128(8))))
            .await;
        assert!(
            matches!(refused, Err(CallError::StoreUnavailable)),
            "{refused:?}"
        );
        stage.world.store.set(Weather::Fair);
        // Without a row, the repeated call starts a new run.
        let until = tokio::time::Instant::now() + SOON;
        loop {
            match stage.supervisor.spawn(call(Some(run_id()))).await {
                Ok(spawned) => break assert!(!spawned.existing),
                Err(CallError::StoreUnavailable) => {}
                other => panic!("{other:?}"),
            }
            assert!(tokio::time::Instant::now() < until, "it cannot be spawned");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(lives.world.state.lock().unwrap().executed, [(run_id(), 1)]);
}

// promise: D-9
#[test]
fn shutdown_does_not_wait_for_child_at_gate() {
    let lives = Lives::of(Nature::default());
    lose_server_and_store_at_the_gate(&lives);
    lives.live(async |stage| {
        // More orders than the queue takes, and no caller waits.
        for _ in 0..100 {
            let abort = stage.supervisor.abort(at_once(run_id()));
            let soon = Duration::from_millis(1);
            drop(tokio::time::timeout(soon, abort).await);
        }
        stage.send_event(KeeperEvent::Shutdown {});
        let refusing = stage.supervisor.serving();
        tokio::time::timeout(SOON, refusing.until_refusing())
            .await
            .expect("it hears of the shutdown");
        let drained = stage.supervisor.serving();
        tokio::time::timeout(SOON / 4, drained.until_closing())
            .await
            .expect("nothing that never ran is waited for");
    });
    assert!(lives.world.state.lock().unwrap().executed.is_empty());
}
