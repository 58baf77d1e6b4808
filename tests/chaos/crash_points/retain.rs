//! Rows in which an ended run loses something. Its output: after any crash, it is whole, or it is removed and every reader
//! gets a gap. All of it: after any crash, it is whole, or it is gone with its directory and its id makes no other run.

use super::{
    row::{Row, arm, await_death},
    service::Service,
};
use kennel_proto::pb::{self, event::Payload};
use kennel_tests::{complaint, eventually_async, kennel::kill_exactly, must, run_id_of, sh};
use nix::sys::signal::Signal;
use std::time::{Duration, SystemTime};

/// Longest wait for the removal: the check runs every ten seconds, and the machine may be busy.
const REMOVED_MAX: Duration = Duration::from_mins(1);

pub(crate) async fn play(row: Row, service: &mut Service) {
    let mut client = service.kennel.client().await;
    arm(service.points(), &row);
    let run = must("spawn", client.spawn(sh("seq 100000; exit 5")).await);
    let run_id = run.run_id;
    // The server may die before it answers.
    let _ = client.ended(&run_id).await;
    // The next server starts with a check, unless the current one's check fired the point.
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
        // Readers get each byte or a gap that reports it.
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

pub(crate) async fn play_removal(row: Row, service: &mut Service) {
    let mut client = service.kennel.client().await;
    let run_id = run_id_of(SystemTime::now());
    let spec = || sh("seq 100000; exit 5");
    must("spawn", client.spawn_as(&run_id, spec()).await);
    must("end", client.ended(&run_id).await);
    arm(service.points(), &row);
    let remove = pb::RemoveRunRequest {
        run_id: run_id.clone(),
        ..pb::RemoveRunRequest::default()
    };
    // The server dies before it answers RemoveRun.
    let _ = client.process.remove_run(remove.clone()).await;
    await_death(service.points(), &row).await;
    service.kennel.serve_again().await;

    let mut client = service.kennel.client().await;
    let is_whole = client.get(&run_id).await.is_ok();
    assert_eq!(is_whole, row.point == "history.remove");
    if is_whole {
        let heard = must("events", client.hear_all(&run_id, 0).await);
        assert_eq!(heard.stdout.len(), 588_895);
        must("removal", client.process.remove_run(remove).await);
    }
    let again = client.spawn_as(&run_id, spec()).await;
    let refused = again.expect_err("its id makes no other run");
    assert_eq!(complaint(&refused).reason, "RUN_REMOVED");
    let dir = service.kennel.data_dir().join("runs").join(&run_id);
    let gone = async || (!dir.exists()).then_some(());
    eventually_async("its directory is removed", REMOVED_MAX, gone).await;
}
