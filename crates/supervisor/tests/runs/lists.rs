//! The state in a list of a run whose row lags.

use super::{Nature, Stage, call};
use kennel_lifecycle::RunState;
use kennel_supervisor::{Condition, ListFilter};
use std::time::Duration;

/// The row of a running run is written late, and the run may end between the read of that row and the answer.
#[tokio::test]
async fn list_never_says_starting_after_spawn_answered() {
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
