//! Child runs: the effect of their parent's end, whichever server drives it.

use crate::{
    abort,
    world::{Lives, Nature, Stage, call, run_id},
};
use kennel_lifecycle::{
    EndReason, OnParentEnd, Parent, RestartMode, RestartPolicy, RunId, RunState,
};
use kennel_supervisor::{CallError, Condition, RunView, SpawnCall};
use std::time::Duration;

const HOUR: Duration = Duration::from_hours(1);

fn child_id() -> RunId {
    RunId::from_u128(8)
}

fn kept_id() -> RunId {
    RunId::from_u128(9)
}

fn below(parent: RunId, child: RunId, on_end: OnParentEnd) -> SpawnCall {
    let mut call = call(Some(child));
    call.spec.parent = Some(Parent {
        run: parent,
        on_end,
    });
    call
}

/// Returns a call of a run that begins again at once, or in an hour.
fn restarted(mut call: SpawnCall, delay: Duration) -> SpawnCall {
    call.spec.policy.restart = RestartPolicy {
        mode: RestartMode::Always,
        delay,
        max_delay: delay,
        ..RestartPolicy::default()
    };
    call
}

async fn ended(stage: &Stage, run: RunId) -> RunView {
    let waited = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    assert!(waited.reached);
    waited.run
}

fn assert_ended_with_parent(view: &RunView) {
    assert_eq!(view.state, RunState::Cancelled, "{view:?}");
    let reason = view.outcome.as_ref().map(|outcome| &outcome.reason);
    assert_eq!(reason, Some(&EndReason::ParentEnded));
}

async fn state(stage: &Stage, run: RunId, wanted: RunState) -> RunView {
    loop {
        let view = stage.supervisor.get(run).await.unwrap();
        if view.state == wanted {
            return view;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

// promise: RW-80
#[tokio::test]
async fn children_end_with_the_last_attempt() {
    let stage = Stage::set(Nature::default()).await;
    let quick = Duration::from_millis(10);
    let parent = restarted(call(Some(run_id())), quick);
    stage.supervisor.spawn(parent).await.unwrap();
    let child = restarted(below(run_id(), child_id(), OnParentEnd::End), quick);
    stage.supervisor.spawn(child).await.unwrap();
    let kept = below(run_id(), kept_id(), OnParentEnd::Keep);
    stage.supervisor.spawn(kept).await.unwrap();
    // Another attempt of the parent ends no child.
    stage.exits(run_id(), 1);
    while state(&stage, run_id(), RunState::Running).await.attempt < 2 {
        tokio::time::sleep(quick).await;
    }
    assert_eq!(stage.plans(child_id()), []);
    stage.supervisor.abort(abort(run_id())).await.unwrap();
    assert_ended_with_parent(&ended(&stage, child_id()).await);
    assert_eq!(stage.plans(child_id()).len(), 1);
    assert!(stage.is_alive(kept_id()));
    stage.supervisor.abort(abort(kept_id())).await.unwrap();
}

// promise: RW-81
#[test]
fn waiting_child_ends_under_the_next_server() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        let child = restarted(below(run_id(), child_id(), OnParentEnd::End), HOUR);
        stage.supervisor.spawn(child).await.unwrap();
        stage.exits(child_id(), 1);
        state(stage, child_id(), RunState::Backoff).await;
    });
    lives.live(async |stage| {
        stage.supervisor.abort(abort(run_id())).await.unwrap();
        let child = ended(stage, child_id()).await;
        assert_ended_with_parent(&child);
        assert_eq!(child.attempt, 1);
    });
}

// promise: RW-82, RW-82a
#[tokio::test]
async fn parent_must_be_live_at_first_spawn() {
    let stage = Stage::set(Nature::default()).await;
    let child = || below(run_id(), child_id(), OnParentEnd::End);
    let refused = stage.supervisor.spawn(child()).await;
    assert!(
        matches!(refused, Err(CallError::RunNotFound(run)) if run == run_id()),
        "{refused:?}"
    );
    stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
    stage.supervisor.spawn(child()).await.unwrap();
    stage.supervisor.abort(abort(run_id())).await.unwrap();
    assert_ended_with_parent(&ended(&stage, child_id()).await);
    // A repeated call is answered, another child is refused.
    assert!(stage.supervisor.spawn(child()).await.unwrap().existing);
    let late = below(run_id(), kept_id(), OnParentEnd::Keep);
    let refused = stage.supervisor.spawn(late).await;
    assert!(
        matches!(
            refused,
            Err(CallError::Refused { run, .. }) if run == run_id()
        ),
        "{refused:?}"
    );
}
