//! Draining a node, and undoing that.

use crate::world::{Lives, Nature, Stage, Temper, call, run_id};
use kennel_lifecycle::{EndReason, RunId, RunState};
use kennel_lifecycle::{RestartMode, RestartPolicy};
use kennel_supervisor::{CallError, Condition, DrainAction, DrainCall};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_mins(5);

fn finish(deadline: Option<Duration>) -> DrainCall {
    DrainCall {
        action: DrainAction::Finish,
        deadline,
        by: "uid:7".into(),
        request_id: Some("r".into()),
    }
}

async fn running() -> (Stage, RunId) {
    let stage = Stage::set(Nature {
        temper: Temper::Obeys,
        ..Nature::default()
    })
    .await;
    let run = RunId::from_u128(7);
    stage.supervisor.spawn(call(Some(run))).await.unwrap();
    (stage, run)
}

async fn state(stage: &Stage, run: RunId) -> RunState {
    stage.supervisor.get(run).await.unwrap().state
}

#[tokio::test(start_paused = true)]
async fn drained_node_refuses_only_new_runs() {
    let (stage, run) = running().await;
    let status = stage.supervisor.drain(finish(None)).await.unwrap();
    assert_eq!(status.remaining, [run]);
    let refused = stage.supervisor.spawn(call(None)).await;
    assert!(matches!(refused, Err(CallError::NodeDrained)));
    let again = stage.supervisor.spawn(call(Some(run))).await.unwrap();
    assert!(again.existing, "a repeat is no new run");
    tokio::time::advance(Duration::from_hours(24)).await;
    assert_eq!(state(&stage, run).await, RunState::Running);
    stage.exits(run, 0);
    stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    let again = stage.supervisor.spawn(call(Some(run))).await.unwrap();
    assert!(again.existing, "nor is the repeat of one that has ended");

    stage.supervisor.undrain().await.unwrap();
    assert!(stage.supervisor.spawn(call(None)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn drain_deadline_aborts_remaining_runs() {
    let (stage, run) = running().await;
    let status = stage.supervisor.drain(finish(Some(DEADLINE))).await;
    assert!(status.unwrap().drain.unwrap().deadline.is_some());
    // Before the deadline no run is ended.
    tokio::time::sleep(DEADLINE / 2).await;
    assert_eq!(state(&stage, run).await, RunState::Running);
    let ended = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    let expected = EndReason::Aborted {
        by: "uid:7".into(),
        request_id: Some("r".into()),
    };
    assert_eq!(ended.run.row.outcome.unwrap().reason, expected);
    let status = stage.supervisor.drain_status();
    assert_eq!(status.drain.unwrap().action, DrainAction::Abort);
    assert!(status.remaining.is_empty());
}

// promise: S-6
#[tokio::test(start_paused = true)]
async fn replaced_or_undone_drain_clears_its_deadline() {
    let (stage, run) = running().await;
    let supervisor = &stage.supervisor;
    supervisor.drain(finish(Some(DEADLINE))).await.unwrap();
    supervisor.drain(finish(None)).await.unwrap();
    tokio::time::sleep(DEADLINE * 2).await;
    assert_eq!(state(&stage, run).await, RunState::Running);

    supervisor.drain(finish(Some(DEADLINE))).await.unwrap();
    supervisor.undrain().await.unwrap();
    tokio::time::sleep(DEADLINE * 2).await;
    assert_eq!(state(&stage, run).await, RunState::Running);
}

#[tokio::test(start_paused = true)]
async fn drain_with_abort_ends_every_run() {
    let (stage, run) = running().await;
    let call = DrainCall {
        action: DrainAction::Abort,
        ..finish(None)
    };
    stage.supervisor.drain(call).await.unwrap();
    let ended = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    assert_eq!(ended.run.state, RunState::Cancelled);
}

fn lives() -> Lives {
    let lives = Lives::of(Nature {
        temper: Temper::Obeys,
        ..Nature::default()
    });
    lives.begin();
    lives
}

// promise: S-7
#[test]
fn drain_persists_for_next_server() {
    let lives = lives();
    let before = lives.live(async |stage| stage.supervisor.drain(finish(None)).await.unwrap());
    lives.live(async |stage| {
        assert_eq!(stage.supervisor.drain_status(), before);
        let refused = stage.supervisor.spawn(call(None)).await;
        assert!(matches!(refused, Err(CallError::NodeDrained)));
        assert_eq!(state(stage, run_id()).await, RunState::Running);
        stage.supervisor.undrain().await.unwrap();
    });
    lives.live(async |stage| {
        assert_eq!(stage.supervisor.drain_status().drain, None);
        assert!(stage.supervisor.spawn(call(None)).await.is_ok());
    });
}

// promise: S-7
#[test]
fn drain_deadline_passed_without_server_is_applied_later() {
    let lives = lives();
    lives.live(async |stage| {
        let soon = Duration::from_millis(1);
        // The server is gone before the deadline.
        drop(stage.supervisor.drain(finish(Some(soon))).await.unwrap());
    });
    lives.live(async |stage| {
        let ended = stage.supervisor.wait(run_id(), Condition::Ended).await;
        let expected = EndReason::Aborted {
            by: "uid:7".into(),
            request_id: Some("r".into()),
        };
        assert_eq!(ended.unwrap().run.row.outcome.unwrap().reason, expected);
        assert!(stage.supervisor.drain_status().drain.is_some());
    });
}

// promise: S-6
#[test]
fn waiting_run_is_ended_by_resumed_drain() {
    let lives = Lives::of(Nature {
        exits_at_once: Some(1),
        ..Nature::default()
    });
    lives.live(async |stage| {
        let mut call = call(Some(run_id()));
        call.spec.policy.restart = RestartPolicy {
            mode: RestartMode::Always,
            delay: Duration::from_hours(1),
            max_delay: Duration::from_hours(1),
            ..RestartPolicy::default()
        };
        stage.supervisor.spawn(call).await.unwrap();
        while state(stage, run_id()).await != RunState::Backoff {
            tokio::task::yield_now().await;
        }
        let drain = DrainCall {
            action: DrainAction::Abort,
            ..finish(None)
        };
        // The server dies before the run's task gets the order.
        stage.supervisor.drain(drain).await.unwrap();
    });
    let row = lives.world.store.row(run_id()).unwrap();
    assert!(row.outcome.is_none(), "{row:?}");
    lives.live(async |stage| {
        let ended = stage.supervisor.wait(run_id(), Condition::Ended);
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
        let ended = ended.expect("it is ended").unwrap();
        assert_eq!(ended.run.state, RunState::Cancelled);
    });
}
