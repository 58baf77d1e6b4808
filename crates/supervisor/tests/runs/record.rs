//! The node's record in place of the data that the store has lost, and with damage of its own.

use crate::{
    event_names,
    world::{Lives, Nature, Stage, Weather, call, run_id},
};
use kennel_lifecycle::{EndReason, Exit, Outcome, RunId, RunState, StopCertificate, TreeVerdict};
use kennel_store::StoredState;
use kennel_supervisor::{CallError, Condition, RunView};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Longer than any pause between two attempts.
const LONG: Duration = Duration::from_mins(1);
/// Number of ended runs that the record retains.
const KEPT: u128 = 1_024;

fn id(number: u128) -> RunId {
    RunId::from_u128(number)
}

async fn begin(stage: &Stage, run: RunId) {
    stage.supervisor.spawn(call(Some(run))).await.unwrap();
}

async fn end(stage: &Stage, run: RunId, code: i32) -> RunView {
    stage.exits(run, code);
    let waited = stage.supervisor.wait(run, Condition::Ended).await;
    waited.unwrap().run
}

#[test]
fn empty_store_is_refilled_from_node_log() {
    begin_with_empty_store(KEPT + 20, 8);
}

#[test]
#[ignore = "a minute: `make soak` runs it"]
fn empty_store_is_refilled_after_ten_thousand_runs() {
    begin_with_empty_store(10_000, 100);
}

/// So many runs end, so many live, and the next server finds an empty database in place of the earlier one.
fn begin_with_empty_store(ended_count: u128, live_count: u128) {
    let lives = Lives::of(Nature::default());
    let (ended, live) = lives.live(async |stage| {
        let mut ended = Vec::new();
        for number in 1..=ended_count {
            begin(stage, id(number)).await;
            ended.push(end(stage, id(number), i32::try_from(number % 100).unwrap()).await);
        }
        let mut live = Vec::new();
        for number in 1..=live_count {
            begin(stage, id(ended_count + number)).await;
            live.push(
                stage
                    .supervisor
                    .get(id(ended_count + number))
                    .await
                    .unwrap(),
            );
        }
        (ended, live)
    });
    lives.world.store.lose_all();
    lives.live(async |stage| {
        let get = |run| stage.supervisor.get(run);
        let oldest_kept = ended.len() - usize::try_from(KEPT).unwrap();
        for before in &ended[oldest_kept..] {
            let again = get(before.run).await.unwrap();
            assert_eq!((again.state, again.exit), (before.state, before.exit));
            assert_eq!(
                (&again.outcome, again.times),
                (&before.outcome, before.times)
            );
            assert_eq!(
                (&again.owner, &again.identity),
                (&before.owner, &before.identity)
            );
            assert_eq!(again.spec, before.spec);
        }
        let lost = get(ended[oldest_kept - 1].run).await;
        assert!(matches!(lost, Err(CallError::RunNotFound(_))), "{lost:?}");
        for before in &live {
            let again = get(before.run).await.unwrap();
            assert_eq!(again.state, RunState::Running);
            assert_eq!(
                (&again.owner, &again.identity),
                (&before.owner, &before.identity)
            );
            assert_eq!(again.spec, before.spec);
            assert!(stage.is_alive(before.run));
            let ended = end(stage, before.run, 3).await;
            assert_eq!(ended.exit, Some(Exit::Code(3)));
        }
    });
}

/// Returns all files of the log, with their bytes.
fn files(log: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let listing = fs::read_dir(log).unwrap().flatten();
    let files = listing.map(|entry| (entry.path(), fs::read(entry.path()).unwrap()));
    files.collect()
}

// promise: D-9e
#[test]
fn damaged_node_log_does_not_end_runs() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        for number in 1..=3 {
            begin(stage, id(number)).await;
        }
        end(stage, id(3), 5).await;
    });
    let log = lives.data_dir.path().join("log");
    let whole = files(&log);
    let written = whole.iter().map(|(_, bytes)| {
        let last = bytes.iter().rposition(|byte| *byte != 0);
        last.map_or(0, |last| last + 1)
    });
    let written = written.max().unwrap();
    for (turn, at) in (0..written).step_by(written / 24).enumerate() {
        fs::remove_dir_all(&log).unwrap();
        fs::create_dir(&log).unwrap();
        for (path, bytes) in &whole {
            let mut bytes = bytes.clone();
            match bytes.get_mut(at) {
                Some(byte) if turn % 2 == 0 => *byte ^= 0x40,
                _ => bytes.truncate(at),
            }
            fs::write(path, bytes).unwrap();
        }
        let is_away = turn % 3 == 0;
        if is_away {
            lives.world.store.set(Weather::Away);
        }
        lives.live(async |stage| {
            for number in 1..=2 {
                // If the log lost entries, the keeper reports the running run.
                let started = stage.supervisor.wait(id(number), Condition::Started).await;
                let run = started.unwrap().run;
                assert_eq!(run.state, RunState::Running, "at {at}");
                assert!(stage.is_alive(id(number)) && stage.plans(id(number)).is_empty());
            }
            stage.world.store.set(Weather::Fair);
            let ended = loop {
                match stage.supervisor.get(id(3)).await {
                    Ok(run) => break run,
                    Err(error) => assert!(matches!(error, CallError::StoreUnavailable), "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            assert_eq!(ended.exit, Some(Exit::Code(5)), "at {at}");
        });
        assert_eq!(lives.world.store.rows.lock().unwrap().len(), 3, "at {at}");
    }
    lives.live(async |stage| {
        for number in 1..=2 {
            let ended = end(stage, id(number), 7).await;
            assert_eq!(ended.exit, Some(Exit::Code(7)));
        }
    });
    assert_eq!(lives.world.store.closed.lock().unwrap().len(), 3);
}

/// A store that went back has the open row of an earlier run, while the keeper holds a child under its key that was
/// never released.
// promise: R-53b
#[test]
fn open_row_of_earlier_child_is_recovered() {
    for weather in [Weather::Away, Weather::Fair] {
        let lives = Lives::of(Nature::default());
        let store = &lives.world.store;
        lives.begin();
        let earlier = store.row(run_id()).unwrap();
        lives.keeper_dies();
        store.rows.lock().unwrap().clear();
        fs::remove_dir_all(lives.data_dir.path()).unwrap();
        fs::create_dir(lives.data_dir.path()).unwrap();
        lives.live(async |stage| {
            store.hold_inserts();
            let again = stage.supervisor.clone();
            tokio::spawn(async move { again.spawn(call(Some(run_id()))).await });
            while stage.kernel().children[&run_id()].acknowledged {
                tokio::task::yield_now().await;
            }
        });
        store.let_inserts_go();
        store.rows.lock().unwrap().insert(run_id(), earlier);
        store.set(weather);
        lives.live_long(async |_| {
            tokio::time::sleep(LONG).await;
            store.set(Weather::Fair);
            tokio::time::sleep(LONG).await;
        });
        let row = store.row(run_id()).unwrap();
        let reason = row.outcome.map(|outcome| outcome.reason);
        assert_eq!(reason, Some(EndReason::ServiceLost), "{weather:?}");
        assert_eq!(lives.world.state.lock().unwrap().executed.len(), 1);
    }
}

/// The write of an earlier server arrives while this one tries to record another end of a run that never ran.
// promise: E-5
#[test]
fn first_recorded_end_is_final() {
    let lives = Lives::of(Nature::default());
    let store = &lives.world.store;
    let first = Outcome {
        reason: EndReason::Aborted {
            by: "uid:0".into(),
            request_id: None,
        },
        exit: None,
        tree: TreeVerdict::NeverRan,
        streams: None,
        certificate: StopCertificate::default(),
    };
    lives.live_long(async |stage| {
        store.set(Weather::InsertLast);
        let again = stage.supervisor.clone();
        tokio::spawn(async move { again.spawn(call(Some(run_id()))).await });
        tokio::time::sleep(LONG).await;
        {
            let mut rows = store.rows.lock().unwrap();
            let row = rows.get_mut(&run_id()).unwrap();
            assert_eq!(row.outcome, None);
            row.state = StoredState::Ended(first.state());
            row.outcome = Some(first.clone());
        }
        store.set(Weather::Fair);
        let ended = stage.supervisor.wait(run_id(), Condition::Ended).await;
        assert_eq!(ended.unwrap().run.outcome, Some(first));
        while lives.world.state.lock().unwrap().acknowledged.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(event_names(stage, run_id()).await, ["ended"]);
    });
}

/// Its server died after it had recorded the end, and before the keeper heard of that.
// promise: D-9d
#[test]
fn run_with_logged_end_is_not_live_again() {
    let lives = Lives::of(Nature::default());
    let (store, world) = (&lives.world.store, &lives.world);
    world.state.lock().unwrap().holds_on = true;
    lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        stage.exits(run_id(), 3);
        let ended = stage.supervisor.wait(run_id(), Condition::Ended).await;
        ended.unwrap();
    });
    world.state.lock().unwrap().holds_on = false;
    store.set(Weather::Away);
    lives.live_long(async |stage| {
        let get = || stage.supervisor.get(run_id());
        // The run's row is not read here; while the keeper answers, the run has a task.
        if let Ok(view) = get().await {
            assert_eq!(view.state, RunState::Failed, "{view:?}");
        }
        store.set(Weather::Fair);
        let view = loop {
            match get().await {
                Ok(view) => break view,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert_eq!(
            (view.owner.as_str(), view.exit),
            ("uid:0", Some(Exit::Code(3)))
        );
        while world.state.lock().unwrap().acknowledged.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(event_names(stage, run_id()).await.last().unwrap(), "ended");
    });
}
