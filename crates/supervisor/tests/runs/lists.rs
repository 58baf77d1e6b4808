//! The state in a list of a run whose row lags.

use super::{Nature, Stage, call, new_run, seen};
use kennel_lifecycle::{
    KeeperEpoch, NodeId, RunId, RunState,
    recovery::{CgroupSeen, ProcessPresence},
};
use kennel_store::{NewRun, RunRow, StoredState};
use kennel_supervisor::{Condition, ListFilter};
use std::time::Duration;

/// The row of a running run is written late, and the run may end between the read of that row and the answer.
// promise: E-3c
#[tokio::test]
async fn list_reports_running_once_spawn_has_answered() {
    let stage = Stage::set(Nature::default()).await;
    let spawned = stage.supervisor.spawn(call(None)).await.unwrap();
    assert_eq!(spawned.run.state, RunState::Running);
    let run = spawned.run.run;
    let store = &stage.world.store;
    store.hold_inserts();
    let listed = stage.supervisor.list(ListFilter::default(), None, 10);
    tokio::pin!(listed);
    let read = async {
        while store.lists_read() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        _ = &mut listed => panic!("it is held"),
        () = read => {}
    }
    stage.exits(run, 0);
    stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    while stage.supervisor.info().await.live.values().sum::<u32>() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    store.let_inserts_go();
    let page = listed.await.unwrap();
    let states: Vec<RunState> = page.runs.iter().map(|view| view.state).collect();
    assert_eq!(states, [RunState::Succeeded]);
}

/// A node that comes back has its lease before it has looked at the runs of its former keeper.
// promise: I-72a
#[tokio::test]
async fn run_of_replaced_keeper_is_marked_until_examined() {
    let stage = Stage::set(Nature::default()).await;
    let (node, run) = (NodeId::from_u128(2), RunId::from_u128(7));
    let [former, present] = [5, 6].map(KeeperEpoch::from_u128);
    let store = &stage.world.store;
    store.add_node(node, present, true);
    let recorded = |keeper_epoch, state| {
        let row = RunRow::open(NewRun {
            node,
            keeper_epoch,
            ..new_run(run)
        });
        store
            .rows
            .lock()
            .unwrap()
            .insert(run, RunRow { state, ..row });
    };
    for (keeper, state, is_examined) in [
        (former, StoredState::Running, false),
        // A run in backoff has no process to examine.
        (former, StoredState::Backoff, true),
        (present, StoredState::Running, true),
    ] {
        recorded(keeper, state);
        let got = stage.supervisor.get(run).await.unwrap();
        let page = stage.supervisor.list(ListFilter::default(), None, 10).await;
        for view in [got, page.unwrap().runs.remove(0)] {
            let other = view.elsewhere.unwrap();
            assert_eq!((other.is_reachable, other.has_run), (true, is_examined));
        }
    }
}

/// The same at the node itself, where a store that was away comes back with rows of a former keeper.
// promise: I-72a
#[tokio::test]
async fn open_row_without_task_is_not_running() {
    let stage = Stage::set(Nature::default()).await;
    let runs = [7, 8].map(RunId::from_u128);
    for run in runs {
        let row = RunRow {
            state: StoredState::Running,
            ..RunRow::open(NewRun {
                keeper_epoch: KeeperEpoch::from_u128(5),
                ..new_run(run)
            })
        };
        stage.world.store.rows.lock().unwrap().insert(run, row);
        let gone = seen(ProcessPresence::Gone, CgroupSeen::Empty, None);
        stage.kernel().orphans.insert(run, gone);
    }
    let got = stage.supervisor.get(runs[0]).await.unwrap();
    assert_eq!(got.state, RunState::Stopping);
    let page = stage.supervisor.list(ListFilter::default(), None, 10).await;
    for view in page.unwrap().runs {
        assert_ne!(view.state, RunState::Running, "{view:?}");
    }
    for run in runs {
        let ended = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
        assert_eq!(ended.run.state, RunState::Lost);
    }
}
