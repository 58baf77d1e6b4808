//! A shim that exists and does not answer at its reconnect socket: its run is unchanged until it does.

use crate::{
    abort,
    world::{Lives, Nature, Stage, Weather, run_id, seen},
};
use kennel_keeper::client::KeeperEvent;
use kennel_lifecycle::{
    Exit, KeeperEpoch, RunState,
    recovery::{CgroupSeen, ProcessPresence},
};
use kennel_store::Desired;
use kennel_supervisor::{AbortCall, AbortWait, Condition};
use std::time::Duration;

/// Longer than any grace, and any wait for a working shim.
const LONG: Duration = Duration::from_hours(1);

/// Epoch of the keeper that the run has outlived.
const FORMER: u128 = 1;

/// Returns a run that has outlived its keeper, and whose shim does not answer.
fn slow() -> Lives {
    let lives = Lives::of(Nature::default());
    lives.begin();
    let mut rows = lives.world.store.rows.lock().unwrap();
    rows.get_mut(&run_id()).unwrap().new.keeper_epoch = KeeperEpoch::from_u128(FORMER);
    drop(rows);
    lives.world.late.lock().unwrap().push(run_id());
    let mut looks = seen(ProcessPresence::Same, CgroupSeen::Populated, None);
    looks.shim = ProcessPresence::Same;
    let mut state = lives.world.state.lock().unwrap();
    state.orphans.insert(run_id(), looks);
    drop(state);
    lives
}

async fn ended(stage: &Stage) -> kennel_supervisor::RunView {
    let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
    waited.unwrap().run
}

// promise: R-50a
#[test]
fn slow_shim_is_adopted_once_it_answers() {
    slow().live_long(async |stage| {
        tokio::time::sleep(LONG).await;
        let view = stage.supervisor.get(run_id()).await.unwrap();
        // The state is the row's: the start may or may not have been recorded.
        let open = [RunState::Starting, RunState::Running];
        assert!(open.contains(&view.state), "{view:?}");
        assert_eq!(view.desired, Desired::Run);
        let former = KeeperEpoch::from_u128(FORMER);
        let keeper_of_row = || stage.world.store.row(run_id()).unwrap().new.keeper_epoch;
        assert_eq!(keeper_of_row(), former);
        stage.world.opens_door(run_id());
        // The row shows other nodes that the run is supervised.
        while keeper_of_row() == former {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stage.exits(run_id(), 3);
        let view = ended(stage).await;
        assert_eq!(
            (view.state, view.exit),
            (RunState::Failed, Some(Exit::Code(3)))
        );
        assert!(stage.kernel().orphans_ended.is_empty());
    });
}

// promise: R-50a
#[test]
fn run_with_slow_shim_is_ended_on_request() {
    slow().live_long(async |stage| {
        let view = stage.supervisor.abort(abort(run_id())).await.unwrap();
        assert_eq!(view.desired, Desired::Stop);
        assert_eq!(stage.kernel().orphans_ended[0], run_id());
        let row = stage.world.store.row(run_id()).unwrap();
        assert!(row.stop.is_some() && row.outcome.is_some());
    });
}

// promise: R-50a
#[test]
fn run_with_dead_shim_is_recovered() {
    slow().live_long(async |stage| {
        let gone = seen(ProcessPresence::Gone, CgroupSeen::Empty, None);
        stage.kernel().orphans.insert(run_id(), gone);
        stage.send_event(KeeperEvent::ShimGone(run_id()));
        assert_eq!(ended(stage).await.state, RunState::Lost);
    });
}

// promise: R-50a
#[test]
fn abort_with_slow_shim_is_answered_without_store() {
    slow().live_long(async |stage| {
        stage.world.store.set(Weather::Away);
        let call = AbortCall {
            wait: AbortWait::None,
            ..abort(run_id())
        };
        let view = stage.supervisor.abort(call).await.unwrap();
        assert_eq!(view.desired, Desired::Stop);
        let row = stage.world.store.row(run_id()).unwrap();
        assert!(row.stop.is_none(), "it is kept beside the store");
        stage.world.store.set(Weather::Fair);
        ended(stage).await;
        let row = stage.world.store.row(run_id()).unwrap();
        assert!(row.stop.is_some() && row.outcome.is_some(), "{row:?}");
        assert_eq!(row.desired, Desired::Stop);
    });
}
