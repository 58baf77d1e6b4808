//! Quotas of owners: an excessive call is refused with the time of the next try, and others are unaffected.

use crate::net::{Net, sleeper};
use kennel_client::Connection;
use kennel_proto::pb;
use kennel_tests::{PATIENCE, eventually, eventually_async, must, new_run_id};
use tonic::{Code, Status};
use tonic_types::StatusExt;

async fn spawn(connection: &Connection) -> Result<String, Status> {
    let run = new_run_id();
    let spawned = connection.processes().spawn(sleeper(&run, &[])).await;
    spawned.map(|_| run)
}

async fn abort(connection: &Connection, run: &str) {
    let request = pb::AbortRequest {
        run_id: run.to_owned(),
        ..pb::AbortRequest::default()
    };
    must("abort", connection.processes().abort(request).await);
}

/// Returns the quota that a call was refused for.
fn quota(refused: &Status) -> String {
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.get_details_retry_info().is_some(), "{refused:?}");
    let info = refused.get_details_error_info().expect("a reason");
    assert_eq!(info.reason, "QUOTA_EXCEEDED");
    info.metadata["quota"].clone()
}

/// Starts a server where Alice's quota is in force.
async fn with_quota(quota: &str) -> Net {
    let net = Net::start().await;
    net.change_access(|text| format!("{text}\n[quota.'spiffe://kennel/alice']\n{quota}\n"));
    // The file is read once a second, and the earlier rules hold until then.
    eventually("the file is read", PATIENCE, || {
        let log = net.kennel.log();
        log.contains("access file read again").then_some(())
    })
    .await;
    net
}

#[tokio::test(flavor = "multi_thread")]
async fn live_runs_of_an_owner_are_bounded() {
    let net = with_quota("live_runs = 2").await;
    let alice = net.by_certificate("alice").await;
    let first = must("first", spawn(&alice).await);
    must("second", spawn(&alice).await);
    let refused = spawn(&alice).await.expect_err("one too many");
    assert_eq!(quota(&refused), "live runs of this owner");
    let bob = net.by_certificate("bob").await;
    for _ in 0..3 {
        must("another owner's", spawn(&bob).await);
    }

    // The next server counts the runs that it adopts.
    net.kennel.kill_server();
    // A call on the broken connection fails in one of several ways.
    let refused = eventually_async("an answer of the next server", PATIENCE, async || {
        let status = spawn(&alice).await.expect_err("they live on");
        (status.code() == Code::ResourceExhausted).then_some(status)
    })
    .await;
    assert_eq!(quota(&refused), "live runs of this owner");
    abort(&alice, &first).await;
    must("one has ended", spawn(&alice).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn spawns_above_the_rate_are_refused() {
    let net = with_quota("spawns_per_second = 2").await;
    let alice = net.by_certificate("alice").await;
    let mut all = Vec::new();
    for _ in 0..40 {
        let alice = net.by_certificate("alice").await;
        all.push(tokio::spawn(async move { spawn(&alice).await }));
    }
    let mut refused = 0;
    for one in all {
        if let Err(status) = one.await.expect("no panic") {
            assert_eq!(quota(&status), "spawns a second of this owner");
            refused += 1;
        }
    }
    assert!(refused > 0, "40 at once");
    eventually_async("a client that tries again gets in", PATIENCE, async || {
        spawn(&alice).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_an_owner_are_bounded() {
    let net = with_quota("streams = 1").await;
    let alice = net.by_certificate("alice").await;
    let run = must("spawn", spawn(&alice).await);
    let request = || pb::StreamEventsRequest {
        run_id: run.clone(),
        ..pb::StreamEventsRequest::default()
    };
    let first = must("first", alice.processes().stream_events(request()).await);
    let refused = alice.processes().stream_events(request()).await;
    let refused = refused.map(|_| ()).expect_err("one too many");
    assert_eq!(quota(&refused), "open streams of this owner");
    let operator = net.by_token("operator").await;
    must(
        "another owner's",
        operator.processes().stream_events(request()).await,
    );
    drop(first);
    eventually_async("the first has ended", PATIENCE, async || {
        alice.processes().stream_events(request()).await.ok()
    })
    .await;
}
