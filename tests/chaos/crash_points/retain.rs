//! Rows in which the output of an ended run is removed: after any crash, it is whole, or it is removed and every reader
//! gets a gap.

use super::{
    row::{Row, arm, await_death},
    service::Service,
};
use kennel_proto::pb::{self, event::Payload};
use kennel_tests::{eventually_async, kennel::kill_exactly, must, sh};
use nix::sys::signal::Signal;
use std::time::Duration;

/// Longest wait for the removal: the check runs every ten seconds, and the machine may be busy.
const REMOVED_MAX: Duration = Duration::from_mins(1);

pub(crate) async fn play(row: Row, service: &mut Service) {
    let mut client = service.kennel.client().await;
    arm(service.points(), &row);
    let run = must("spawn", client.spawn(sh("seq 100000; exit 5")).await);
    let run_id = run.run_id;
    // Its server may die before it answers.
    let _ = client.ended(&run_id).await;
    // A server begins with a check; the point may be reached by that of the present one before.
    if let Some(server) = service.kennel.server() {
        kill_exactly(&server, Signal::SIGKILL);
    }
    await_death(service.points(), &row).await;
    service.kennel.serve_again().await;

    let kennel = &service.kennel;
    let removed = async || {
        let mut client = kennel.client().await;
        let run = client.get(&run_id).await.ok()?;
        let runs = kennel.data_dir().join("runs");
        let is_gone = !runs.join(&run_id).exists() && !runs.join("removed").exists();
        // In any state, each byte is read or reported to a reader.
        let heard = client.hear_all(&run_id, 0).await.ok()?;
        let missing = heard.events.iter().map(|(_, payload)| match payload {
            Payload::Gap(gap) => {
                assert_eq!(gap.reason(), pb::GapReason::Retention);
                let bytes = gap.missing.iter().map(|m| m.bytes.expect("counted"));
                bytes.sum::<u64>()
            }
            _ => 0,
        });
        let accounted = heard.stdout.len() as u64 + missing.sum::<u64>();
        assert_eq!(accounted, 588_895, "{:?}", heard.stations());
        assert!(heard.has_ended());
        assert_eq!(run.state(), pb::RunState::Failed);
        (run.output_removed.is_some() && is_gone).then_some(run)
    };
    let run = eventually_async("it is removed", REMOVED_MAX, removed).await;
    let removal = run.output_removed.expect("it is removed");
    assert_eq!((removal.stdout_bytes, removal.stderr_bytes), (588_895, 0));
}
