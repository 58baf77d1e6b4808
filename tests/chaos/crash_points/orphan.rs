//! Rows in which a parent has ended: after any crash, its child and the child of that end with it.

use super::{
    row::{Row, arm, await_death},
    service::Service,
};
use kennel_proto::pb::{self, RunState};
use kennel_tests::{PATIENCE, RunExt, eventually_async, must, sh};

/// A run that outlives the service, below another one.
fn child_of(parent: &str) -> pb::RunSpec {
    let mut spec = sh("exec sleep 1000");
    spec.recovery = pb::RecoveryPolicy::Adopt.into();
    spec.parent = Some(pb::Parent {
        run_id: parent.to_owned(),
        ..pb::Parent::default()
    });
    spec
}

pub(crate) async fn play(row: Row, service: &mut Service) {
    let mut client = service.kennel.client().await;
    let parent = must("spawn", client.spawn(sh("exec sleep 1000")).await).run_id;
    let child = must("spawn", client.spawn(child_of(&parent)).await).run_id;
    let grandchild = must("spawn", client.spawn(child_of(&child)).await).run_id;
    arm(service.points(), &row);
    // The server may die before it can answer.
    let _ = client.abort(&parent).await;
    await_death(service.points(), &row).await;
    service.kennel.serve_again().await;

    for run_id in [child, grandchild] {
        let ended = eventually_async("it ends with its parent", PATIENCE, async || {
            let run = service.kennel.client().await.get(&run_id).await.ok()?;
            run.end_time.is_some().then_some(run)
        });
        let run = ended.await;
        assert_eq!(run.state(), RunState::Cancelled, "{run:?}");
        assert_eq!(run.reason(), "parent_ended");
    }
}
