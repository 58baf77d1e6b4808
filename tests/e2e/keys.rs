//! One key, one process: repeats, mismatches, fences.

use kennel_proto::pb::RunState;
use kennel_tests::{Kennel, PATIENCE, RunExt, complaint, must, new_run_id, sh};
use tonic::Code;

/// Repeats of one request at the same time.
const REPEATS: usize = 16;

// promise: K-1, K-2
#[tokio::test(flavor = "multi_thread")]
async fn repeated_spawn_with_one_id_starts_one_process() {
    let mut kennel = Kennel::on_sqlite().await;
    let ran = kennel.scratch().join("ran");
    let run_id = new_run_id();
    let spec = sh(&format!("echo $$ >> {}; exec sleep 300", ran.display()));
    let mut repeats = tokio::task::JoinSet::new();
    for _ in 0..REPEATS {
        let mut client = kennel.client().await;
        let (run_id, spec) = (run_id.clone(), spec.clone());
        repeats.spawn(async move { must("spawn", client.spawn_as(&run_id, spec).await) });
    }
    let answers = repeats.join_all().await;

    let pid = answers[0].0.attempt().pid;
    assert!(
        answers.iter().all(|(run, _)| run.attempt().pid == pid),
        "{answers:?}"
    );
    let first = answers.iter().filter(|(_, existing)| !existing).count();
    assert_eq!(first, 1, "one of them has started it");
    kennel_tests::eventually("it has run", PATIENCE, || {
        let text = std::fs::read_to_string(&ran).ok()?;
        text.ends_with('\n').then_some(())
    })
    .await;
    assert_eq!(
        std::fs::read_to_string(&ran).expect("it ran"),
        format!("{pid}\n")
    );

    let mut client = kennel.client().await;
    let refused = client
        .spawn_as(&run_id, sh("exit 1"))
        .await
        .expect_err("another spec");
    let complaint = complaint(&refused);
    assert_eq!(
        (complaint.code, complaint.reason.as_str()),
        (Code::AlreadyExists, "SPEC_MISMATCH")
    );
    must("abort", client.abort(&run_id).await);
    let (run, existing) = must("a late repeat", client.spawn_as(&run_id, spec).await);
    assert!(existing && run.state() == RunState::Cancelled, "{run:?}");
    assert_eq!(
        std::fs::read_to_string(&ran)
            .expect("it ran")
            .lines()
            .count(),
        1
    );
    assert_earlier_abort_fences(&mut kennel).await;
}

/// For good: also over the death of the service.
async fn assert_earlier_abort_fences(kennel: &mut Kennel) {
    let ran = kennel.scratch().join("fenced");
    let spec = sh(&format!("echo ran > {}", ran.display()));
    let run_id = new_run_id();
    let mut client = kennel.client().await;

    let fence = must("abort", client.abort(&run_id).await);
    assert_eq!(
        (fence.state(), fence.reason()),
        (RunState::Cancelled, "fenced")
    );
    let refused = client
        .spawn_as(&run_id, spec.clone())
        .await
        .expect_err("fenced");
    assert_eq!(
        (
            complaint(&refused).code,
            complaint(&refused).reason.as_str()
        ),
        (Code::FailedPrecondition, "RUN_FENCED")
    );
    kennel.kill_keeper();
    kennel.restart().await;
    let mut client = kennel.client().await;
    let refused = client
        .spawn_as(&run_id, spec)
        .await
        .expect_err("still fenced");
    assert_eq!(complaint(&refused).reason, "RUN_FENCED");
    assert!(!ran.exists());
}
