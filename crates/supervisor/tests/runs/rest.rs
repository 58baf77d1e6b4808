//! The rest of a tree when its leader has exited by itself.

use crate::{
    abort,
    world::{Nature, Stage, call, daemon, new_run, seen},
};
use kennel_keeper::client::{KeeperEvent, SignalTarget};
use kennel_lifecycle::{
    EndReason, Exit, LeaderExit, Policy, Privileges, Refusal, RunId, RunState, RunUser, Signal,
    StreamsEnd, TreeVerdict,
    recovery::{CgroupSeen, ExitRecord, ProcessPresence},
};
use kennel_store::{Desired, RunRow};
use kennel_supervisor::{CallError, Condition, SignalCall};
use std::collections::HashMap;

const DRAIN: LeaderExit = LeaderExit::Drain { timeout: None };

/// Returns a run whose leader leaves a process behind that holds the output.
async fn leaving_one(policy: LeaderExit) -> (Stage, RunId) {
    let stage = Stage::set(Nature {
        output: b"said".to_vec(),
        leaves_rest: true,
        ..Nature::default()
    })
    .await;
    let mut call = call(None);
    call.spec.policy.on_leader_exit = policy;
    let run = stage.supervisor.spawn(call).await.unwrap().run.run;
    (stage, run)
}

async fn leader_exited(stage: &Stage, run: RunId) {
    stage.exits(run, 0);
    let waited = stage.supervisor.wait(run, Condition::LeaderExited).await;
    assert!(waited.unwrap().reached);
}

fn hang_up(run: RunId) -> SignalCall {
    SignalCall {
        run,
        signal: Signal::HUP,
        target: SignalTarget::Tree,
        request_id: None,
    }
}

// promise: W-4
#[tokio::test]
async fn draining_run_can_be_signalled_and_aborted() {
    let (stage, run) = leaving_one(DRAIN).await;
    leader_exited(&stage, run).await;
    let view = stage.supervisor.get(run).await.unwrap();
    assert_eq!(
        (view.state, view.exit),
        (RunState::Stopping, Some(Exit::Code(0)))
    );
    stage.supervisor.signal(hang_up(run)).await.unwrap();
    assert_eq!(stage.kernel().signals.len(), 1);
    let refused = stage.supervisor.pause(run).await;
    assert!(matches!(refused, Err(CallError::Refused { .. })));

    let view = stage.supervisor.abort(abort(run)).await.unwrap();
    let outcome = view.row.outcome.unwrap();
    assert!(matches!(outcome.reason, EndReason::Aborted { .. }));
    assert_eq!(outcome.exit, Some(Exit::Code(0)));
    assert!(matches!(outcome.tree, TreeVerdict::Empty(_)));
    assert_eq!(view.state, RunState::Cancelled);
}

#[tokio::test]
async fn a_shutdown_ends_a_drain() {
    let (stage, run) = leaving_one(DRAIN).await;
    leader_exited(&stage, run).await;
    stage.send_event(KeeperEvent::Shutdown {});
    assert_eq!(stage.exit.await.unwrap(), 0);
    let outcome = stage.world.store.row(run).unwrap().outcome.unwrap();
    assert_eq!(outcome.reason, EndReason::ServerShutdown);
    assert!(matches!(outcome.tree, TreeVerdict::Empty(_)));
}

#[tokio::test]
async fn run_with_detached_processes_ends_without_signals() {
    let (stage, run) = leaving_one(LeaderExit::Keep).await;
    stage.exits(run, 3);
    let waited = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    let outcome = waited.run.outcome.clone().unwrap();
    assert_eq!(outcome.reason, EndReason::Exited);
    assert_eq!(outcome.exit, Some(Exit::Code(3)));
    assert_eq!(outcome.tree, TreeVerdict::Kept(daemon()));
    // The detached process holds the streams open.
    assert_eq!(outcome.streams, Some(StreamsEnd::Cut));
    assert_eq!(waited.run.times.tree_empty, None);
    let row = stage.world.store.row(run).unwrap();
    assert_eq!(row.outcome.unwrap(), outcome);

    let again = stage.supervisor.abort(abort(run)).await.unwrap();
    assert_eq!(again.outcome, Some(outcome));
    let refused = stage.supervisor.signal(hang_up(run)).await;
    let Err(CallError::Refused { refusal, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(refusal, Refusal::Ended);
    assert!(stage.kernel().children[&run].rest, "it was left alone");
}

#[tokio::test]
async fn abort_ends_whole_tree_under_any_policy() {
    for policy in [DRAIN, LeaderExit::Keep] {
        let (stage, run) = leaving_one(policy).await;
        let view = stage.supervisor.abort(abort(run)).await.unwrap();
        let outcome = view.row.outcome.unwrap();
        assert!(matches!(outcome.reason, EndReason::Aborted { .. }));
        assert!(matches!(outcome.tree, TreeVerdict::Empty(_)), "{outcome:?}");
    }
}

// promise: W-9a
#[tokio::test]
async fn start_closes_detached_runs_and_ends_aborted_ones() {
    let (kept, stopped) = (RunId::from_u128(1), RunId::from_u128(2));
    let record = ExitRecord {
        exit: Some(Exit::Code(0)),
        by_itself: None,
        tree: Some(TreeVerdict::Kept(daemon())),
        never_ran: false,
        steps: Vec::new(),
        census: None,
        shutdown: false,
    };
    let look = || {
        seen(
            ProcessPresence::Gone,
            CgroupSeen::Populated,
            Some(record.clone()),
        )
    };
    let mut rows = [kept, stopped].map(|run| RunRow::open(new_run(run)));
    rows[1].desired = Desired::Stop;
    let orphans = HashMap::from([(kept, look()), (stopped, look())]);
    let stage = Stage::with_rows(Nature::default(), rows.into(), orphans).await;
    let end = async |run| {
        let waited = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
        waited.run.row.outcome.unwrap()
    };
    let outcome = end(kept).await;
    assert_eq!(outcome.tree, TreeVerdict::Kept(daemon()));
    assert_eq!(outcome.exit, Some(Exit::Code(0)));
    assert_eq!(end(stopped).await.reason, EndReason::OrphanTerminated);
    assert_eq!(stage.kernel().orphans_ended, [stopped]);
}

// promise: W-11b
#[tokio::test]
async fn detaching_for_own_user_needs_detached_identity() {
    let policy = |on_leader_exit, user: Option<u32>| Policy {
        on_leader_exit,
        privileges: Privileges {
            user: user.map(|uid| RunUser {
                uid,
                gid: 1,
                groups: Vec::new(),
            }),
            ..Privileges::default()
        },
        ..Policy::default()
    };
    let own = kennel_linux::effective_uid();
    let (keep, stop) = (LeaderExit::Keep, LeaderExit::Stop);
    // The simulated host has no capability.
    let stage = Stage::set(Nature::default()).await;
    let missing = |policy: Policy| stage.supervisor.no_detached_identity(&policy);
    for refused in [policy(keep, None), policy(keep, Some(own))] {
        let missing = missing(refused).expect("refused");
        assert_eq!(missing.field, "spec.on_leader_exit");
        assert!(missing.capability.starts_with("detached_identity"));
    }
    for allowed in [policy(stop, None), policy(keep, Some(own + 1))] {
        assert_eq!(missing(allowed), None);
    }
}
