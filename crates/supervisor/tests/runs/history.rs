//! Rows of ended runs are removed, by the node's limits and by request: no removed run is ever made a second time.

use crate::{
    abort,
    world::{Lives, Nature, Stage, call},
};
use kennel_lifecycle::{LeaderExit, Refusal, RowLimits, RunId};
use kennel_store::{RowRemoval, Store as _};
use kennel_supervisor::{CallError, Condition};
use std::{fs, path::PathBuf, time::Duration};

/// Longer than the first two walks over the rows.
const WALKED: Duration = Duration::from_secs(5);

fn run(id: u128) -> RunId {
    RunId::from_u128(id)
}

fn lives(output: &[u8], limits: RowLimits) -> Lives {
    let lives = Lives::of(Nature {
        output: output.to_vec(),
        ..Nature::default()
    });
    *lives.world.row_limits.lock().unwrap() = limits;
    lives
}

async fn ran(stage: &Stage, id: u128) -> RunId {
    let run = run(id);
    stage.supervisor.spawn(call(Some(run))).await.unwrap();
    stage.exits(run, 0);
    stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    while stage.supervisor.input_progress(run).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    run
}

fn dir(stage: &Stage, run: RunId) -> PathBuf {
    stage.data_dir.path().join("runs").join(run.to_string())
}

async fn is_gone(stage: &Stage, run: RunId) -> bool {
    matches!(
        stage.supervisor.get(run).await,
        Err(CallError::RunNotFound(_))
    )
}

/// Removes the row as a server does that dies then: directory and node log stay as they are.
async fn remove_row_without_directory(stage: &Stage, run: RunId) {
    remove_rows(stage, vec![run], RunId::from_u128(0)).await;
}

async fn remove_rows(stage: &Stage, runs: Vec<RunId>, forgotten_before: RunId) {
    let count = runs.len();
    let removal = RowRemoval {
        node: stage.supervisor.node(),
        generation: Some(stage.world.store.generation()),
        runs,
        forgotten_before,
    };
    let removed = stage.world.store.remove_rows(&removal).await;
    assert_eq!(removed.unwrap().len(), count);
}

// promise: K-13a
#[test]
fn spawn_with_a_removed_id_is_refused() {
    let lives = lives(b"", RowLimits::NONE);
    lives.live(async |stage| {
        ran(stage, 2).await;
        remove_row_without_directory(stage, run(2)).await;
        // A server with a short horizon, or with a clock ahead, does this.
        remove_rows(stage, Vec::new(), run(3)).await;
        let executed = stage.kernel().executed.len();
        for id in [1, 2] {
            let refused = stage.supervisor.spawn(call(Some(run(id)))).await;
            assert!(
                matches!(refused, Err(CallError::RunIdExpired { .. })),
                "{refused:?}"
            );
        }
        assert_eq!(stage.kernel().executed.len(), executed);
        stage.supervisor.spawn(call(Some(run(3)))).await.unwrap();
    });
}

// promise: K-12
#[test]
fn rows_beyond_an_owners_limit_are_removed() {
    let limits = RowLimits {
        per_owner: Some(2),
        ..RowLimits::NONE
    };
    let lives = lives(b"", limits);
    lives.live_long(async |stage| {
        for id in 1..=5 {
            ran(stage, id).await;
        }
        // A live run does not count.
        stage.supervisor.spawn(call(Some(run(6)))).await.unwrap();
        tokio::time::sleep(Duration::from_mins(2)).await;
        for id in 1..=6 {
            assert_eq!(is_gone(stage, run(id)).await, id <= 3, "{id}");
        }
        let executed = stage.kernel().executed.len();
        for id in 1..=3 {
            let again = stage.supervisor.spawn(call(Some(run(id)))).await;
            assert!(matches!(again, Err(CallError::RunRemoved(_))), "{again:?}");
            let fenced = stage.supervisor.abort(abort(run(id))).await;
            assert!(
                matches!(fenced, Err(CallError::RunRemoved(_))),
                "{fenced:?}"
            );
        }
        let there = stage.supervisor.spawn(call(Some(run(4)))).await.unwrap();
        assert!(there.existing);
        assert_eq!(stage.kernel().executed.len(), executed);
    });
}

// promise: K-12
#[test]
fn row_is_kept_while_its_output_exists() {
    let limits = RowLimits {
        per_owner: Some(0),
        ..RowLimits::NONE
    };
    let lives = lives(b"output", limits);
    lives.live_long(async |stage| {
        let first = ran(stage, 1).await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert!(!is_gone(stage, first).await);
        // Only the mark is set: the directory still exists.
        let store = &stage.world.store;
        store
            .rows
            .lock()
            .unwrap()
            .get_mut(&first)
            .unwrap()
            .output_age = None;
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert!(!is_gone(stage, first).await);
        fs::remove_dir_all(dir(stage, first)).unwrap();
        tokio::time::sleep(Duration::from_mins(4)).await;
        assert!(is_gone(stage, first).await);
    });
}

// promise: K-13
#[test]
fn removing_a_run_removes_its_output() {
    let lives = lives(b"output", RowLimits::NONE);
    lives.live(async |stage| {
        let first = ran(stage, 1).await;
        stage.supervisor.spawn(call(Some(run(2)))).await.unwrap();
        assert!(dir(stage, first).exists());
        let live = stage.supervisor.remove_run(run(2)).await;
        let refused = matches!(
            live,
            Err(CallError::Refused {
                refusal: Refusal::NotEnded,
                ..
            })
        );
        assert!(refused, "{live:?}");
        stage.supervisor.remove_run(first).await.unwrap();
        assert!(is_gone(stage, first).await);
        assert!(!dir(stage, first).exists());
        let repeated = stage.supervisor.remove_run(first).await;
        assert!(
            matches!(repeated, Err(CallError::RunNotFound(_))),
            "{repeated:?}"
        );
        let again = stage.supervisor.spawn(call(Some(first))).await;
        assert!(matches!(again, Err(CallError::RunRemoved(_))), "{again:?}");
    });
    // The next server knows the removal too.
    lives.live(async |stage| {
        assert!(is_gone(stage, run(1)).await);
        let again = stage.supervisor.spawn(call(Some(run(1)))).await;
        assert!(matches!(again, Err(CallError::RunRemoved(_))), "{again:?}");
    });
}

// promise: K-12
#[test]
fn row_with_possible_survivors_is_kept() {
    let limits = RowLimits {
        per_owner: Some(0),
        ..RowLimits::NONE
    };
    let lives = Lives::of(Nature {
        leaves_rest: true,
        ..Nature::default()
    });
    *lives.world.row_limits.lock().unwrap() = limits;
    lives.live_long(async |stage| {
        let mut kept = call(Some(run(1)));
        kept.spec.policy.on_leader_exit = LeaderExit::Keep;
        stage.supervisor.spawn(kept).await.unwrap();
        stage.exits(run(1), 0);
        stage
            .supervisor
            .wait(run(1), Condition::Ended)
            .await
            .unwrap();
        let refused = stage.supervisor.remove_run(run(1)).await;
        let may_live = matches!(
            refused,
            Err(CallError::Refused {
                refusal: Refusal::MayLive,
                ..
            })
        );
        assert!(may_live, "{refused:?}");
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert!(!is_gone(stage, run(1)).await);
    });
}

// promise: K-13
#[test]
fn removed_run_is_not_rewritten_after_restart() {
    let lives = lives(b"", RowLimits::NONE);
    let (removed, kept) = (run(1), run(2));
    lives.live(async |stage| {
        for id in [1, 2] {
            ran(stage, id).await;
        }
        // A server that dies before logging the removal leaves the row in its log.
        remove_row_without_directory(stage, removed).await;
        stage.world.store.rows.lock().unwrap().remove(&kept);
        stage.world.store.go_back(0);
        while stage.world.store.row(kept).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(is_gone(stage, removed).await);
    });
}

/// A run that was removed after the copy was made comes back as it ended, and is never made again.
// promise: K-13a
#[test]
fn removed_run_is_restored_as_ended() {
    let lives = lives(b"", RowLimits::NONE);
    lives.live(async |stage| {
        let first = ran(stage, 1).await;
        stage.supervisor.remove_run(first).await.unwrap();
        stage.world.store.lose_all();
        while stage.world.store.row(first).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let again = stage.supervisor.spawn(call(Some(first))).await;
        assert!(again.unwrap().existing);
        assert_eq!(stage.kernel().executed.len(), 1);
    });
}

// promise: K-14
#[test]
fn directory_of_removed_run_is_deleted_next_start() {
    let lives = lives(b"output", RowLimits::NONE);
    lives.live(async |stage| {
        for id in [1, 2] {
            ran(stage, id).await;
        }
        remove_row_without_directory(stage, run(1)).await;
    });
    lives.live_long(async |stage| {
        tokio::time::sleep(WALKED).await;
        assert!(!dir(stage, run(1)).exists());
        // An unexplained directory stays, and is counted.
        fs::create_dir(dir(stage, run(3))).unwrap();
        let swept = stage.supervisor.sweep().await.unwrap();
        assert_eq!((swept.removed, swept.unknown), (0, 1));
        assert!(dir(stage, run(3)).exists() && dir(stage, run(2)).exists());
    });
}

// promise: K-13a
#[test]
fn spawn_with_expired_or_future_id_is_refused() {
    const HOUR_MS: u128 = 60 * 60 * 1000;
    let limits = RowLimits {
        ids: Duration::from_hours(1),
        ..RowLimits::NONE
    };
    let lives = lives(b"", limits);
    lives.live(async |stage| {
        let now = stage.supervisor.now().0;
        let now = u128::try_from(now / 1000).unwrap();
        let of = |ms: u128| RunId::from_u128(ms << 80);
        for made in [now - 2 * HOUR_MS, now + HOUR_MS] {
            let refused = stage.supervisor.spawn(call(Some(of(made)))).await;
            assert!(
                matches!(refused, Err(CallError::RunIdExpired { .. })),
                "{refused:?}"
            );
        }
        assert!(stage.kernel().executed.is_empty());
        let fresh = of(now - HOUR_MS / 2);
        stage.supervisor.spawn(call(Some(fresh))).await.unwrap();
        stage.exits(fresh, 0);
        stage
            .supervisor
            .wait(fresh, Condition::Ended)
            .await
            .unwrap();
        // An id with a row is answered, whatever its time.
        let row = stage.world.store.row(fresh).unwrap();
        let old = of(now - 2 * HOUR_MS);
        let mut known = row.clone();
        known.new.run = old;
        stage.world.store.rows.lock().unwrap().insert(old, known);
        let there = stage.supervisor.spawn(call(Some(old))).await.unwrap();
        assert!(there.existing);
        assert_eq!(stage.kernel().executed.len(), 1);
    });
}
