//! Runs about which a server decides nothing, since a later version has recorded what it does not know.

use crate::{
    abort,
    world::{Lives, Nature, Stage, Temper, call, new_run, run_id},
};
use kennel_keeper::client::{KeeperEvent, SignalTarget};
use kennel_lifecycle::{
    AnnotationChange, Deadline, EndReason, Entry, Exit, KeeperEpoch, NodeId, RestartMode,
    RestartPolicy, RunId, RunState, Signal, TerminalSize,
};
use kennel_store::{NewRun, RunRow};
use kennel_supervisor::{
    AbortCall, AbortWait, AnnotateCall, CallError, Condition, ExtendCall, Payload, Position,
    ResizeCall, RestartCall, RunView, SignalCall, SpawnCall, WriteCall,
};
use std::{sync::Arc, time::Duration};

const NEED: &str = "of_tomorrow";

fn restarting() -> SpawnCall {
    let mut call = call(Some(run_id()));
    call.spec.policy.restart = RestartPolicy {
        mode: RestartMode::Always,
        delay: Duration::from_millis(20),
        ..RestartPolicy::default()
    };
    call
}

/// Spawns a run, which a server of a later version has recorded then: its spec has these needs.
fn recorded_with(lives: &Lives, call: SpawnCall, needs: &[&str]) {
    let mut spec = call.spec.clone();
    lives.live(async |stage| {
        stage.supervisor.spawn(call).await.unwrap();
        seen(stage, |view| view.state == RunState::Running).await;
        stage.supervisor.end().await;
    });
    spec.policy.needs = needs.iter().map(|need| (*need).to_owned()).collect();
    need(lives, &spec.recorded());
}

/// Appends entries to the run's journal, as a server of a later version does.
fn append(lives: &Lives, entries: &[&str]) {
    let runs = lives.data_dir.path().join("runs");
    let boot = kennel_journal::Boot::of_id("boot");
    let now = kennel_lifecycle::Timestamp(1);
    let dir = runs.join(run_id().to_string());
    let (mut journal, _) = kennel_journal::Writer::reopen(&dir, boot, now).unwrap();
    for entry in entries {
        journal.lifecycle(entry.as_bytes(), now).unwrap();
    }
}

fn need(lives: &Lives, spec: &kennel_lifecycle::RecordedSpec) {
    let mut rows = lives.world.store.rows.lock().unwrap();
    rows.get_mut(&run_id()).unwrap().new.spec = Arc::new(spec.clone());
}

async fn seen(stage: &Stage, is_so: impl Fn(&RunView) -> bool) -> RunView {
    loop {
        let view = stage.supervisor.get(run_id()).await.unwrap();
        if is_so(&view) {
            return view;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Whether the attempt has ended, and its server knows it.
fn is_over(view: &RunView) -> bool {
    view.times.tree_empty.is_some() && view.times.streams_closed.is_some()
}

async fn assert_refuses_all_but_abort(stage: &Stage, need: &str) {
    let (run, supervisor) = (run_id(), &stage.supervisor);
    let signal = SignalCall {
        run,
        signal: Signal::HUP,
        target: SignalTarget::Leader,
        request_id: None,
    };
    let restart = RestartCall {
        run,
        grace: None,
        expected_attempt: None,
        by: "uid:0".into(),
        request_id: None,
    };
    let annotate = AnnotateCall {
        run,
        change: AnnotationChange::default(),
        activity: None,
        question: String::new(),
        by: "uid:0".into(),
    };
    let extend = ExtendCall {
        run,
        limits: Vec::new(),
        time: Duration::from_secs(1),
        by: "uid:0".into(),
    };
    let write = WriteCall {
        run,
        data: b"a".as_slice().into(),
        offset: None,
        write_id: None,
        expected_attempt: None,
        answers: None,
        by: String::new(),
    };
    let resize = ResizeCall {
        run,
        size: TerminalSize {
            rows: 40,
            cols: 120,
        },
        expected_attempt: None,
    };
    let refused = [
        supervisor.resize(resize).await.map(drop),
        supervisor.signal(signal).await.map(drop),
        supervisor.interrupt(run, None).await.map(drop),
        supervisor.pause(run).await.map(drop),
        supervisor.resume(run).await.map(drop),
        supervisor.restart(restart).await.map(drop),
        supervisor.annotate(annotate).await.map(drop),
        supervisor.extend(extend).await.map(drop),
        supervisor.write_input(write).await.map(drop),
    ];
    for answer in refused {
        let Err(CallError::Pinned { by, .. }) = &answer else {
            panic!("{answer:?}");
        };
        assert_eq!(by, need);
    }
}

// promise: A-22j
#[test]
fn pinned_run_takes_only_an_abort() {
    let lives = Lives::of(Nature::default());
    recorded_with(&lives, call(Some(run_id())), &["sandbox", NEED]);
    lives.live(async |stage| {
        let view = seen(stage, |view| view.pinned.is_some()).await;
        assert_eq!(view.state, RunState::Running);
        assert_eq!(view.pinned.unwrap().by, NEED);
        assert_refuses_all_but_abort(stage, NEED).await;
        let ended = stage.supervisor.abort(abort(run_id())).await.unwrap();
        assert_eq!(ended.state, RunState::Cancelled);
    });
    let state = lives.world.state.lock().unwrap();
    assert_eq!((state.signals.len(), state.interrupts), (0, 0));
}

// promise: A-22d, A-22k
#[test]
fn pinned_run_starts_no_attempt() {
    let lives = Lives::of(Nature::default());
    recorded_with(&lives, restarting(), &[NEED]);
    lives.live_long(async |stage| {
        seen(stage, |view| view.pinned.is_some()).await;
        stage.exits(run_id(), 3);
        let view = seen(stage, |view| view.state == RunState::Backoff).await;
        assert_eq!(
            view.past[0].outcome.exit,
            Some(Exit::Code(3)),
            "its end is on record"
        );
        tokio::time::sleep(Duration::from_hours(24)).await;
        assert_refuses_all_but_abort(stage, NEED).await;
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!((view.state, view.attempt), (RunState::Backoff, 1));
    });
    // The next server knows the need.
    need(&lives, &restarting().spec.recorded());
    lives.live(async |stage| {
        let view = seen(stage, |view| view.attempt == 2).await;
        assert_eq!(view.pinned, None);
        let ended = stage.supervisor.abort(abort(run_id())).await.unwrap();
        let reason = ended.row.outcome.unwrap().reason;
        assert!(matches!(reason, EndReason::Aborted { .. }), "{reason:?}");
    });
}

#[tokio::test]
async fn persisted_spec_names_its_required_features() {
    let stage = Stage::set(Nature::default()).await;
    let mut call = call(Some(run_id()));
    call.spec.policy.umask = Some(0o077);
    stage.supervisor.spawn(call).await.unwrap();
    let row = stage.world.store.row(run_id()).unwrap();
    assert_eq!(row.new.policy().needs, ["umask"]);
}

/// Whether it outlives its service is for a server to say that knows its policy.
#[test]
fn waiting_pinned_run_outlives_its_service() {
    let lives = Lives::of(Nature::default());
    recorded_with(&lives, restarting(), &[NEED]);
    lives.live_long(async |stage| {
        seen(stage, |view| view.pinned.is_some()).await;
        stage.exits(run_id(), 3);
        seen(stage, |view| view.state == RunState::Backoff).await;
        stage.supervisor.end().await;
    });
    let epoch = KeeperEpoch::from_u128(9);
    let change = |row: &mut RunRow| row.new.keeper_epoch = epoch;
    change(
        lives
            .world
            .store
            .rows
            .lock()
            .unwrap()
            .get_mut(&run_id())
            .unwrap(),
    );
    lives.live_long(async |stage| {
        let view = seen(stage, |view| {
            view.pinned.is_some() || view.state.is_terminal()
        })
        .await;
        assert_eq!(view.state, RunState::Backoff);
        stage.supervisor.end().await;
    });
    need(&lives, &restarting().spec.recorded());
    lives.live_long(async |stage| {
        let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
        assert_eq!(waited.unwrap().run.state, RunState::Lost);
    });
}

#[tokio::test(start_paused = true)]
async fn waiting_pinned_run_outlives_shutdown() {
    let stage = Stage::set(Nature::default()).await;
    stage.supervisor.spawn(restarting()).await.unwrap();
    let (run, by) = (run_id(), NEED.to_owned());
    stage.send_event(KeeperEvent::Pinned { run, by });
    seen(&stage, |view| view.pinned.is_some()).await;
    stage.exits(run, 3);
    seen(&stage, |view| view.state == RunState::Backoff).await;
    stage.send_event(KeeperEvent::Shutdown {});
    let Stage { world, exit, .. } = stage;
    assert_eq!(exit.await.unwrap(), 0);
    assert_eq!(world.store.row(run).unwrap().outcome, None);
}

/// A server that knows the need ends the run at its limit.
#[test]
fn pinned_run_is_not_stopped_at_its_limit() {
    let mut call = call(Some(run_id()));
    call.spec.policy.timeouts.inactivity = Some(Duration::from_mins(1));
    let lives = Lives::of(Nature::default());
    recorded_with(&lives, call.clone(), &[NEED]);
    lives.live_long(async |stage| {
        seen(stage, |view| view.pinned.is_some()).await;
        tokio::time::sleep(Duration::from_hours(24)).await;
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(view.state, RunState::Running);
        stage.supervisor.end().await;
    });
    need(&lives, &call.spec.recorded());
    lives.live_long(async |stage| {
        let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
        let reason = waited.unwrap().run.row.outcome.unwrap().reason;
        let inactivity = EndReason::DeadlineExceeded(Deadline::Inactivity);
        assert_eq!(reason, inactivity);
    });
}

// promise: A-22d
#[tokio::test]
async fn critical_message_pins_its_run() {
    let stage = Stage::set(Nature::default()).await;
    let spawned = stage.supervisor.spawn(call(Some(run_id()))).await;
    spawned.unwrap();
    let (run, by) = (run_id(), NEED.to_owned());
    stage.send_event(KeeperEvent::Pinned { run, by });
    seen(&stage, |view| view.pinned.is_some()).await;
    assert_refuses_all_but_abort(&stage, NEED).await;
    stage.exits(run_id(), 0);
    let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
    assert_eq!(waited.unwrap().run.state, RunState::Succeeded);
}

// promise: A-22e
#[test]
fn critical_entry_of_later_version_pins_run() {
    const LATER: &str = r#"{"of_tomorrow":{"b":1,"a":2}}"#;
    const CRITICAL: &str = r#"{"of_today_after":[],"critical":true}"#;
    let lives = Lives::of(Nature {
        output: b"made\n".to_vec(),
        ..Nature::default()
    });
    lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        seen(stage, |view| view.state == RunState::Running).await;
        let made = stage
            .data_dir
            .path()
            .join("runs")
            .join(run_id().to_string());
        while !kennel_journal::is_made(&made) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stage.supervisor.end().await;
    });
    append(&lives, &[LATER]);
    lives.live(async |stage| {
        let view = seen(stage, |view| view.state == RunState::Running).await;
        assert_eq!(view.pinned, None);
        stage.supervisor.end().await;
    });
    append(&lives, &[CRITICAL]);
    lives.live(async |stage| {
        seen(stage, |view| view.pinned.is_some()).await;
        assert_refuses_all_but_abort(stage, "of_today_after").await;
        stage.exits(run_id(), 0);
        let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
        assert_eq!(waited.unwrap().run.state, RunState::Succeeded);
        let from = Position::Beginning;
        let (_, mut events) = stage.supervisor.events(run_id(), from).await.unwrap();
        let mut read = Vec::new();
        while let Some(more) = events.next(1 << 20).await.unwrap() {
            read.extend(more.into_iter().filter_map(|event| match event.payload {
                Payload::Lifecycle(entry @ Entry::Later(_)) => serde_json::to_string(&entry).ok(),
                _ => None,
            }));
        }
        assert_eq!(read, [LATER, CRITICAL]);
    });
    let rows = lives.world.store.rows.lock().unwrap();
    let entries = rows[&run_id()].entries.as_ref().unwrap();
    assert!(entries.as_str().contains(LATER) && entries.as_str().contains(CRITICAL));
}

// promise: A-22l
#[test]
fn unknown_value_in_spec_pins_run() {
    let text = r#"{"command":{"argv":["sh"]},"policy":{"pause":{"on_max_pause":"of_tomorrow"}}}"#;
    let lives = Lives::of(Nature::default());
    recorded_with(&lives, call(Some(run_id())), &[]);
    need(&lives, &serde_json::from_str(text).unwrap());
    lives.live(async |stage| {
        seen(stage, |view| view.pinned.is_some()).await;
        assert_refuses_all_but_abort(stage, "policy.pause").await;
        let ended = stage.supervisor.abort(abort(run_id())).await.unwrap();
        assert_eq!(ended.state, RunState::Cancelled);
    });
    let rows = lives.world.store.rows.lock().unwrap();
    assert_eq!(kennel_store::spec_text(&rows[&run_id()].new.spec), text);
}

// promise: D-31a
#[test]
fn run_with_unreadable_row_is_pinned() {
    let lives = Lives::of(Nature::default());
    recorded_with(&lives, call(Some(run_id())), &[]);
    lives.world.store.unread.lock().unwrap().insert(run_id());
    lives.live(async |stage| {
        let view = seen(stage, |view| view.pinned.is_some()).await;
        assert_eq!((view.state, view.attempt), (RunState::Running, 1));
        assert_refuses_all_but_abort(stage, "state: of_tomorrow").await;
        assert_eq!(stage.supervisor.info().await.unreadable_records, 1);
        serves_others(stage).await;
        let ended = stage.supervisor.abort(abort(run_id())).await.unwrap();
        assert_eq!(ended.state, RunState::Cancelled);
    });
    let row = lives.world.store.row(run_id()).unwrap();
    assert!(row.outcome.is_some(), "its end is on record");
}

/// Its row has the attempts before and the restarts: the end of this one waits for a server that can read it.
// promise: D-31b
#[test]
fn unreadable_row_keeps_attempts_and_state() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        stage.supervisor.spawn(restarting()).await.unwrap();
        seen(stage, |view| view.state == RunState::Running).await;
        stage.exits(run_id(), 3);
        seen(stage, |view| {
            view.attempt == 2 && view.state == RunState::Running
        })
        .await;
        stage.supervisor.end().await;
    });
    let before = lives.world.store.row(run_id()).unwrap();
    lives.world.store.unread.lock().unwrap().insert(run_id());
    for _ in 0..2 {
        lives.live_long(async |stage| {
            seen(stage, |view| view.pinned.is_some()).await;
            if stage.is_alive(run_id()) {
                stage.exits(run_id(), 4);
            }
            seen(stage, is_over).await;
            tokio::time::sleep(Duration::from_hours(1)).await;
            assert_refuses_all_but_abort(stage, "state: of_tomorrow").await;
            stage.supervisor.end().await;
        });
        assert_eq!(lives.world.store.row(run_id()).unwrap(), before);
    }
    lives.world.store.unread.lock().unwrap().clear();
    lives.live(async |stage| {
        let view = seen(stage, |view| view.attempt == 3).await;
        let codes = view.past.iter().map(|past| past.outcome.exit);
        let codes: Vec<_> = codes.collect();
        assert_eq!(codes, [3, 4].map(|code| Some(Exit::Code(code))));
        assert_eq!(view.restarts, 2);
    });
}

/// A stop that was accepted is carried out, and an abort ends the run whose attempt is over.
// promise: D-31b
#[test]
fn stop_of_unreadable_row_is_carried_out() {
    for is_late in [false, true] {
        let lives = Lives::of(Nature {
            temper: Temper::Ignores,
            ..Nature::default()
        });
        lives.live(async |stage| {
            stage.supervisor.spawn(restarting()).await.unwrap();
            seen(stage, |view| view.state == RunState::Running).await;
            if !is_late {
                let stop = AbortCall {
                    wait: AbortWait::None,
                    grace: Some(Duration::from_hours(1)),
                    ..abort(run_id())
                };
                stage.supervisor.abort(stop).await.unwrap();
            }
            stage.supervisor.end().await;
        });
        lives.world.store.unread.lock().unwrap().insert(run_id());
        lives.live(async |stage| {
            seen(stage, |view| view.pinned.is_some()).await;
            stage.exits(run_id(), 4);
            if is_late {
                seen(stage, is_over).await;
                let ended = stage.supervisor.abort(abort(run_id())).await.unwrap();
                assert_eq!(ended.state, RunState::Failed, "as its command has ended");
            }
            let outcome = loop {
                let row = lives.world.store.row(run_id()).unwrap();
                match row.outcome {
                    Some(outcome) => break outcome,
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            };
            assert_eq!(outcome.exit, Some(Exit::Code(4)));
            let is_aborted = matches!(outcome.reason, EndReason::Aborted { .. });
            assert_eq!(is_aborted, !is_late, "{outcome:?}");
        });
    }
}

// promise: D-31c
#[tokio::test]
async fn node_with_unreadable_row_is_not_removed() {
    let stage = Stage::set(Nature::default()).await;
    let (node, run) = (NodeId::from_u128(2), run_id());
    let store = &stage.world.store;
    store.add_node(node, KeeperEpoch::from_u128(5), false);
    let row = RunRow::open(NewRun {
        node,
        ..new_run(run)
    });
    store.rows.lock().unwrap().insert(run, row);
    let forget = async |removes| stage.supervisor.forget_node("two", "uid:0", removes).await;
    store.unread.lock().unwrap().insert(run);
    assert_eq!(forget(false).await.unwrap().1, 0);
    let refused = forget(true).await;
    assert!(
        matches!(&refused, Err(CallError::Pinned { run: of, state: None, .. }) if *of == run),
        "{refused:?}"
    );
    store.unread.lock().unwrap().clear();
    assert_eq!(forget(true).await.unwrap().1, 1);
}

// promise: D-31a
#[test]
fn unreadable_row_without_keeper_is_not_changed() {
    let lives = Lives::of(Nature::default());
    recorded_with(&lives, call(Some(run_id())), &[]);
    lives.world.store.unread.lock().unwrap().insert(run_id());
    lives.keeper_dies();
    lives.live(async |stage| {
        serves_others(stage).await;
        assert_eq!(stage.supervisor.info().await.unreadable_records, 1);
        stage.supervisor.get(run_id()).await.unwrap_err();
        let row = lives.world.store.row(run_id()).unwrap();
        assert_eq!(row.outcome, None);
        stage.supervisor.end().await;
    });
    // The next server can read the row.
    lives.world.store.unread.lock().unwrap().clear();
    lives.live(async |stage| {
        seen(stage, |view| view.outcome.is_some()).await;
        assert_eq!(stage.supervisor.info().await.unreadable_records, 0);
    });
}

async fn serves_others(stage: &Stage) {
    let other = call(Some(RunId::from_u128(77)));
    stage.supervisor.spawn(other).await.unwrap();
}
