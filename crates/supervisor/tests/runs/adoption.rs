//! A server dies, and the next one adopts the keeper's runs. Each life of it is a runtime of its own.

use crate::{
    abort, event_names,
    world::{
        Lives, Nature, Stage, Temper, Weather, call, fill_disk, log, make_room_on_disk, run_id,
    },
};
use kennel_keeper::client::{KeeperEvent, SignalTarget};
use kennel_lifecycle::{
    EndReason, Exit, Outcome, RunId, RunState, Signal, StopCertificate, StreamsEnd, Timestamp,
    TreeVerdict,
};
use kennel_store::{Desired, RunRow, StoredState, Times};
use kennel_supervisor::{
    AbortCall, AbortWait, CallError, Condition, Payload, Position, SignalCall,
};
use std::{io::Write as _, time::Duration};

// promise: T-15
#[test]
fn repeated_signal_is_sent_once_across_servers() {
    let lives = Lives::of(Nature::default());
    let hang_up = || SignalCall {
        run: run_id(),
        signal: Signal::HUP,
        target: SignalTarget::Leader,
        request_id: Some("a".into()),
    };
    lives.begin();
    for repeated in [false, true] {
        lives.live(async |stage| {
            let answered = stage.supervisor.signal(hang_up()).await.unwrap();
            assert_eq!(answered.repeated, repeated);
            let id = Some("a".into());
            stage.supervisor.interrupt(run_id(), id).await.unwrap();
        });
    }
    let state = lives.world.state.lock().unwrap();
    assert_eq!((state.signals.len(), state.interrupts), (1, 0));
}

/// A keeper on a copy of the data directory had the node, and took its runs for those of another boot.
// promise: I-67a
#[test]
fn row_closed_by_a_copied_node_is_repaired() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    let row = lives.world.store.row(run_id()).unwrap();
    let lost = RunRow {
        state: StoredState::Ended(RunState::Lost),
        times: Times {
            ended: Some(Timestamp(9)),
            ..row.times
        },
        outcome: Some(Outcome {
            reason: EndReason::Rebooted,
            exit: Some(Exit::Unknown),
            tree: TreeVerdict::Unverified("another boot".into()),
            streams: Some(StreamsEnd::Lost),
            certificate: StopCertificate::default(),
        }),
        ..row
    };
    lives
        .world
        .store
        .rows
        .lock()
        .unwrap()
        .insert(run_id(), lost);
    lives.live(async |stage| {
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(view.state, RunState::Running);
        assert!(stage.is_alive(run_id()));
        let row = stage.world.store.row(run_id()).unwrap();
        assert_eq!(row.outcome, None);
        stage.exits(run_id(), 3);
        let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
        assert_eq!(waited.unwrap().run.exit, Some(Exit::Code(3)));
        while stage.world.store.row(run_id()).unwrap().outcome.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let row = lives.world.store.row(run_id()).unwrap();
    assert_eq!(row.outcome.unwrap().exit, Some(Exit::Code(3)));
}

// promise: R-13
#[test]
fn adopted_run_keeps_its_exit_code_and_output() {
    let lives = Lives::of(Nature {
        output: b"before ".to_vec(),
        last_words: b"after".to_vec(),
        ..Nature::default()
    });
    lives.begin();
    lives.live(async |stage| {
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(view.state, RunState::Running);
        assert!(view.times.started.is_some());
        // A repeated call returns the same run.
        let again = stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        assert!(again.existing);
        stage.exits(run_id(), 3);
        let waited = stage
            .supervisor
            .wait(run_id(), Condition::Ended)
            .await
            .unwrap();
        assert_eq!(waited.run.exit, Some(Exit::Code(3)));
        let outcome = waited.run.row.outcome.unwrap();
        assert_eq!(outcome.reason, EndReason::Exited);
        let names = event_names(stage, run_id()).await;
        let lifecycle: Vec<_> = names.iter().filter(|name| *name != "output").collect();
        let all = [
            "recorded",
            "started",
            "leader_exited",
            "streams_closed",
            "tree_ended",
            "ended",
        ];
        assert_eq!(lifecycle.len(), all.len(), "{names:?}");
        assert!(all.iter().all(|name| names.iter().any(|n| n == name)));
        assert_eq!(output(stage).await, b"before after");
    });
    assert_eq!(lives.world.state.lock().unwrap().executed, [(run_id(), 1)]);
}

// promise: R-13
#[test]
fn run_ended_without_server_has_its_exit_code() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    lives.world.end(run_id(), Exit::Code(9));
    lives.live(async |stage| {
        let waited = stage
            .supervisor
            .wait(run_id(), Condition::Ended)
            .await
            .unwrap();
        assert_eq!(waited.run.exit, Some(Exit::Code(9)));
        assert_eq!(waited.run.state, RunState::Failed);
    });
}

// promise: R-15
#[test]
fn pause_holds_until_next_server_resumes_it() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        stage.supervisor.pause(run_id()).await.unwrap();
    });
    lives.live(async |stage| {
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(view.state, RunState::Paused);
        let view = stage.supervisor.resume(run_id()).await.unwrap();
        assert_eq!(view.state, RunState::Running);
        stage.exits(run_id(), 0);
        stage
            .supervisor
            .wait(run_id(), Condition::Ended)
            .await
            .unwrap();
        let names = event_names(stage, run_id()).await;
        for once in ["paused", "resumed"] {
            assert_eq!(names.iter().filter(|name| *name == once).count(), 1);
        }
    });
}

// promise: R-14
#[test]
fn stop_keeps_caller_and_deadline_across_servers() {
    let lives = Lives::of(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    });
    let deadline = lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        let stop = AbortCall {
            wait: AbortWait::None,
            grace: Some(Duration::from_mins(1)),
            by: "uid:7".into(),
            owner: "uid:7".into(),
            request_id: Some("r".into()),
            ..abort(run_id())
        };
        let view = stage.supervisor.abort(stop).await.unwrap();
        view.stop_deadline.unwrap()
    });
    lives.live(async |stage| {
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(view.state, RunState::Stopping);
        assert_eq!(view.stop_deadline, Some(deadline));
        let at_once = AbortCall {
            grace: Some(Duration::ZERO),
            ..abort(run_id())
        };
        let view = stage.supervisor.abort(at_once).await.unwrap();
        let by = EndReason::Aborted {
            by: "uid:7".into(),
            request_id: Some("r".into()),
        };
        assert_eq!(view.row.outcome.unwrap().reason, by);
        let names = event_names(stage, run_id()).await;
        assert_eq!(names.iter().filter(|n| *n == "stopping").count(), 1);
    });
}

// promise: R-17
#[test]
fn row_lost_by_the_store_is_written_again() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    assert!(log::is_unfinished(&lives.data_dir, run_id()));
    let row = lives
        .world
        .store
        .rows
        .lock()
        .unwrap()
        .remove(&run_id())
        .unwrap();
    lives.live(async |stage| {
        let mut again = stage.world.store.row(run_id()).unwrap().new;
        again.generation = row.new.generation;
        assert_eq!(again, row.new);
        stage.exits(run_id(), 3);
        let waited = stage
            .supervisor
            .wait(run_id(), Condition::Ended)
            .await
            .unwrap();
        assert_eq!(waited.run.exit, Some(Exit::Code(3)));
        // No work remains once the end is reported.
        let gone = async {
            while log::is_unfinished(&lives.data_dir, run_id()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), gone)
            .await
            .unwrap();
    });
}

// promise: R-17, R-17a
#[test]
fn run_without_records_is_rebuilt_from_its_keeper() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    let row = lives.world.store.rows.lock().unwrap().remove(&run_id());
    let row = row.unwrap().new;
    std::fs::remove_dir_all(lives.data_dir.path().join("log")).unwrap();
    lives.live(async |stage| {
        // With the log gone, only the keeper reports the run.
        let started = stage.supervisor.wait(run_id(), Condition::Started).await;
        let view = started.unwrap().run;
        assert_eq!(view.state, RunState::Running);
        assert_eq!(
            (&view.identity, view.policy().grace()),
            (&row.identity, row.policy().grace())
        );
        assert_eq!((&*view.owner, view.spec.is_described()), ("", false));
        assert!(stage.is_alive(run_id()) && stage.plans(run_id()).is_empty());
        // As far as known, the recorded run is not the requested one.
        let again = stage.supervisor.spawn(call(Some(run_id()))).await;
        assert!(
            matches!(again, Err(CallError::SpecMismatch { .. })),
            "{again:?}"
        );
        let ended = stage.supervisor.abort(abort(run_id())).await.unwrap();
        assert_eq!(ended.state, RunState::Cancelled);
        assert!(!stage.is_alive(run_id()));
    });
}

// promise: R-16
#[test]
fn child_at_gate_never_ran_and_can_respawn() {
    for recorded in [false, true] {
        let lives = Lives::of(Nature::default());
        lives.live(async |stage| {
            stage.world.store.hold_inserts();
            let supervisor = stage.supervisor.clone();
            tokio::spawn(async move { supervisor.spawn(call(Some(run_id()))).await });
            while !stage.is_alive(run_id()) {
                tokio::task::yield_now().await;
            }
        });
        lives.world.store.let_inserts_go();
        if recorded {
            let (held, _) = lives.world.hand_over();
            let mut new = crate::world::new_run(run_id());
            new.identity = Some(held[0].identity.clone());
            let row = RunRow::open(new);
            lives.world.store.rows.lock().unwrap().insert(run_id(), row);
        }
        lives.live(async |stage| {
            let again = stage.supervisor.spawn(call(Some(run_id()))).await;
            assert!(!again.unwrap().existing);
            assert_eq!(stage.kernel().executed, [(run_id(), 1)]);
        });
    }
}

// promise: R-13
#[test]
fn written_outcome_is_reported_and_acknowledged() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    lives.live(async |stage| {
        stage.exits(run_id(), 4);
        stage
            .supervisor
            .wait(run_id(), Condition::Ended)
            .await
            .unwrap();
    });
    // Simulates a server death between the row and the last reports.
    {
        let mut state = lives.world.state.lock().unwrap();
        state.acknowledged.clear();
        state.children.get_mut(&run_id()).unwrap().acknowledged = false;
    }
    let dir = lives
        .data_dir
        .path()
        .join("runs")
        .join(run_id().to_string());
    let index = std::fs::OpenOptions::new()
        .write(true)
        .open(dir.join("index"))
        .unwrap();
    let len = index.metadata().unwrap().len();
    index.set_len(len - 36).unwrap();
    lives.live(async |stage| {
        while stage.kernel().acknowledged.is_empty() {
            tokio::task::yield_now().await;
        }
        let names = event_names(stage, run_id()).await;
        assert_eq!(names.iter().filter(|n| *n == "ended").count(), 1);
        assert_eq!(names.last().map(String::as_str), Some("ended"));
    });
}

// promise: R-14
#[test]
fn unrecorded_stop_is_carried_out_after_adoption() {
    let lives = Lives::of(Nature {
        temper: Temper::Ignores,
        ..Nature::default()
    });
    lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        stage.world.store.set(Weather::Away);
        let supervisor = stage.supervisor.clone();
        tokio::spawn(async move { supervisor.abort(abort(run_id())).await });
        while stage.plans(run_id()).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    lives.world.store.set(Weather::Fair);
    lives.live(async |stage| {
        while stage.plans(run_id()).len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let row = stage.world.store.row(run_id()).unwrap();
        assert_eq!(row.desired, Desired::Stop);
        stage.world.end(run_id(), Exit::Code(0));
        let waited = stage
            .supervisor
            .wait(run_id(), Condition::Ended)
            .await
            .unwrap();
        assert_eq!(waited.run.state, RunState::Cancelled);
    });
}

// promise: R-13
#[test]
fn shutdown_after_a_restart_ends_all_in_order() {
    let lives = Lives::of(Nature::default());
    let runs = [1, 2, 3].map(RunId::from_u128);
    lives.live(async |stage| {
        for run in runs {
            stage.supervisor.spawn(call(Some(run))).await.unwrap();
        }
    });
    lives.live(async |stage| {
        stage.send_event(KeeperEvent::Shutdown {});
        while runs.iter().any(|run| {
            let row = stage.world.store.row(*run).unwrap();
            row.outcome.is_none()
        }) {
            tokio::task::yield_now().await;
        }
        for run in runs {
            let outcome = stage.world.store.row(run).unwrap().outcome.unwrap();
            assert_eq!(outcome.reason, EndReason::ServerShutdown);
        }
    });
}

async fn output(stage: &Stage) -> Vec<u8> {
    first_output(stage, usize::MAX).await
}

/// Returns at least so many bytes of it, unless it ends before.
async fn first_output(stage: &Stage, bytes_min: usize) -> Vec<u8> {
    let events = stage.supervisor.events(run_id(), Position::Beginning).await;
    let mut events = events.unwrap().1;
    let mut bytes = Vec::new();
    while let Some(batch) = events.next(1 << 20).await.unwrap() {
        for event in batch {
            if let Payload::Output { data, .. } = event.payload {
                bytes.extend(data);
            }
        }
        if bytes.len() >= bytes_min {
            break;
        }
    }
    bytes
}

#[test]
fn server_death_on_full_disk_loses_no_output() {
    let lives = Lives::of(Nature {
        output: b"before ".to_vec(),
        last_words: b"after".to_vec(),
        ..Nature::default()
    });
    lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        assert_eq!(first_output(stage, 7).await, b"before ");
    });
    let runs = lives.data_dir.path().join("runs");
    let journal = runs.join(run_id().to_string());
    // The previous server moved more bytes into the file than it recorded.
    let mut stdout = std::fs::OpenOptions::new();
    let mut stdout = stdout.append(true).open(journal.join("stdout")).unwrap();
    stdout.write_all(b"unnamed ").unwrap();
    fill_disk(std::fs::metadata(journal.join("index")).unwrap().len());
    lives.live(async |stage| {
        // All existing bytes can be read.
        assert_eq!(first_output(stage, 7).await, b"before ");
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(view.state, RunState::Running);
    });
    lives.live(async |stage| {
        assert_eq!(first_output(stage, 7).await, b"before ");
        make_room_on_disk();
        stage.exits(run_id(), 0);
        let condition = Condition::Ended;
        stage.supervisor.wait(run_id(), condition).await.unwrap();
        assert_eq!(output(stage).await, b"before unnamed after");
        assert_eq!(event_names(stage, run_id()).await.last().unwrap(), "ended");
    });
}

#[test]
fn readers_of_unopenable_journal_get_an_error() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    let runs = lives.data_dir.path().join("runs");
    let index = runs.join(run_id().to_string()).join("index");
    // Without output the run's journal was not created.
    assert!(!index.exists());
    std::fs::write(&index, "somebody's own list of things").unwrap();
    lives.live(async |stage| {
        let answered = stage.supervisor.events(run_id(), Position::Beginning);
        let answered = answered.await.map(|_| ());
        assert!(
            matches!(answered, Err(CallError::JournalUnreadable { .. })),
            "{answered:?}"
        );
        let aborted = stage.supervisor.abort(abort(run_id())).await.unwrap();
        assert_eq!(aborted.state, RunState::Cancelled);
        assert!(log::is_unfinished(&lives.data_dir, run_id()));
    });
    std::fs::remove_file(&index).unwrap();
    lives.live(async |stage| {
        let names = event_names(stage, run_id()).await;
        assert_eq!(names[..2], ["recorded", "started"]);
        assert_eq!(names.last().unwrap(), "ended");
        assert!(!log::is_unfinished(&lives.data_dir, run_id()));
    });
}
