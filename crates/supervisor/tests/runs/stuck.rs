//! Processes that SIGKILL of a start does not end: watched, shown, and the run closed when they are gone, over any
//! number of crashes.

use crate::{
    event_names_behind_loss,
    simulation::Dice,
    world::{Nature, Stage, held, new_run, seen},
};
use kennel_keeper::client::KeeperEvent;
use kennel_lifecycle::{
    EndReason, Exit, Proof, RunId, RunState, TreeVerdict,
    recovery::{CgroupSeen, Observation, ProcessPresence},
};
use kennel_store::RunRow;
use kennel_supervisor::{Condition, Position, RunView};
use std::{collections::HashMap, time::Duration};
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_mins(10);
/// Seeds of every change.
const SEEDS: u64 = 8;
/// And of `make soak`.
const MANY_SEEDS: u64 = 60;

// promise: T-28
#[tokio::test(start_paused = true)]
async fn start_watches_survivors_of_sigkill_until_gone() {
    let (stage, run) = one_that_is_stuck().await;
    let view = stuck_view(&stage, run).await;
    assert_eq!((view.state, view.row.outcome), (RunState::Stopping, None));
    assert_eq!(view.stuck, Some(held()));
    // Readers are served while the tree is stuck.
    let events = stage.supervisor.events(run, Position::Beginning).await;
    let lines = events.unwrap().1.next(1 << 20).await.unwrap().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");

    sleep(LONG).await;
    let asked = stage.kernel().orphans_ended.len();
    assert!((600..2_000).contains(&asked), "{asked}");
    assert!(stage.world.store.row(run).unwrap().outcome.is_none());
    stage.comes_loose(run);
    let waited = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    let outcome = waited.run.row.outcome.unwrap();
    assert_eq!(outcome.reason, EndReason::OrphanTerminated);
    assert_eq!(outcome.tree, TreeVerdict::Empty(Proof::Cgroup));
    assert_eq!(waited.run.stuck, None);
    let names = event_names_behind_loss(&stage, run).await;
    let stuck = names.iter().filter(|name| *name == "stuck").count();
    assert_eq!((stuck, names.last().unwrap().as_str()), (1, "ended"));
}

// promise: T-27
#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_watched_trees() {
    let (stage, run) = one_that_is_stuck().await;
    stuck_view(&stage, run).await;
    stage.send_event(KeeperEvent::Shutdown {});
    let ended = timeout(LONG, stage.exit).await;
    assert_eq!(ended.expect("it is bounded").unwrap(), 1);
    let row = stage.world.store.row(run).unwrap();
    assert!(row.outcome.is_none(), "{row:?}");
}

/// Each life is a runtime of its own: a crash may interrupt at any point.
// promise: T-28
#[test]
fn row_is_closed_once_after_its_tree_ended() {
    watch_and_die(SEEDS);
}

#[test]
#[ignore = "half a minute: `make soak` runs it"]
fn row_is_closed_once_over_many_lives() {
    watch_and_die(MANY_SEEDS);
}

fn watch_and_die(seeds: u64) {
    for seed in 1..=seeds {
        let dice = Dice::new(seed);
        let runs: Vec<RunId> = (1..=6).map(RunId::from_u128).collect();
        let mut rows: Vec<RunRow> = runs.iter().map(|run| RunRow::open(new_run(*run))).collect();
        let mut orphans: HashMap<RunId, Observation> = HashMap::new();
        for run in &runs {
            let mut look = seen(ProcessPresence::Same, CgroupSeen::Populated, None);
            if dice.percent(70) {
                look.stuck = held();
            }
            orphans.insert(*run, look);
        }
        let lives = 1 + dice.roll(5);
        for life in 1..=lives {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .unwrap();
            let last = life == lives;
            (rows, orphans) = runtime.block_on(live(&dice, rows, orphans, last));
        }
        for row in rows {
            let outcome = row.outcome.expect("no row is open");
            assert_eq!(outcome.reason, EndReason::OrphanTerminated, "seed {seed}");
            assert_eq!(outcome.exit, Some(Exit::Unknown), "seed {seed}");
        }
    }
}

async fn live(
    dice: &Dice,
    rows: Vec<RunRow>,
    orphans: HashMap<RunId, Observation>,
    last: bool,
) -> (Vec<RunRow>, HashMap<RunId, Observation>) {
    let before = rows.clone();
    let stage = Stage::with_rows(Nature::default(), rows, orphans).await;
    let mut runs: Vec<RunId> = before.iter().map(|row| row.new.run).collect();
    runs.sort_unstable();
    for _ in 0..dice.roll(6) {
        dice.rest(5_000).await;
        check(&stage, &runs);
        let run = runs[usize::try_from(dice.roll(6)).unwrap()];
        if dice.percent(40) {
            stage.comes_loose(run);
        }
    }
    if last {
        for run in &runs {
            stage.comes_loose(*run);
        }
        for run in &runs {
            let ended = stage.supervisor.wait(*run, Condition::Ended);
            timeout(LONG, ended).await.expect("it ends").unwrap();
        }
    } else if dice.percent(50) {
        let stuck = check(&stage, &runs);
        stage.send_event(KeeperEvent::Shutdown {});
        let code = timeout(LONG, stage.exit).await.expect("it is bounded");
        assert!(code.unwrap() == 1 || stuck == 0);
    }
    let closed = stage.world.store.closed.lock().unwrap().clone();
    for row in before.iter().filter(|row| row.outcome.is_some()) {
        assert!(closed.iter().all(|(run, _)| *run != row.new.run), "{row:?}");
    }
    for run in &runs {
        assert!(closed.iter().filter(|(of, _)| of == run).count() <= 1);
    }
    let rows = stage.world.store.rows.lock().unwrap();
    let orphans = stage.world.state.lock().unwrap();
    (rows.values().cloned().collect(), orphans.orphans.clone())
}

/// Returns how many are stuck.
fn check(stage: &Stage, runs: &[RunId]) -> usize {
    let kernel = stage.kernel();
    let stuck = |run: &&RunId| !kernel.orphans[*run].stuck.is_empty();
    let stuck = runs.iter().filter(stuck);
    let open = |run: &RunId| stage.world.store.row(*run).unwrap().outcome.is_none();
    stuck.inspect(|run| assert!(open(run), "{run}")).count()
}

async fn one_that_is_stuck() -> (Stage, RunId) {
    let run = RunId::from_u128(1);
    let mut look = seen(ProcessPresence::Same, CgroupSeen::Populated, None);
    look.stuck = held();
    let rows = vec![RunRow::open(new_run(run))];
    let stage = Stage::with_rows(Nature::default(), rows, HashMap::from([(run, look)])).await;
    (stage, run)
}

async fn stuck_view(stage: &Stage, run: RunId) -> RunView {
    timeout(LONG, async {
        loop {
            let view = stage.supervisor.get(run).await.unwrap();
            if view.stuck.is_some() {
                return view;
            }
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the event is recorded")
}
