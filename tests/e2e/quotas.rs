//! Quotas of owners: an excessive call is refused with the time of the next try, and others are unaffected.

use crate::net::{Net, sleeper};
use kennel_client::Connection;
use kennel_proto::pb;
use kennel_tests::{
    Heard, PATIENCE, eventually, eventually_async, must, new_run_id, pattern, sh, within,
};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::{Code, Status};
use tonic_types::StatusExt;

async fn spawn(connection: &Connection) -> Result<String, Status> {
    let run = new_run_id();
    let spawned = connection.processes().spawn(sleeper(&run, &[])).await;
    spawned.map(|_| run)
}

async fn spawn_script(connection: &Connection, script: &str) -> Result<String, Status> {
    let run = new_run_id();
    let request = pb::SpawnRequest {
        run_id: run.clone(),
        spec: Some(sh(script)),
        ..pb::SpawnRequest::default()
    };
    let spawned = connection.processes().spawn(request).await;
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
async fn refusals_without_pause_are_paced() {
    /// Refusals that are answered at once, and then in each second.
    const A_SECOND: u32 = 20;
    const CALLERS: u32 = 8;
    const EACH: u32 = 10;
    let net = with_quota("live_runs = 1").await;
    let alice = net.by_certificate("alice").await;
    must("the only one", spawn(&alice).await);
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let alice = alice.clone();
        callers.spawn(async move {
            for _ in 0..EACH {
                let refused = spawn(&alice).await.expect_err("it is beyond the quota");
                assert_eq!(quota(&refused), "live runs of this owner");
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.expect("each is refused with its reason");
    }
    // A slow machine takes longer, none takes less.
    let waiting = Duration::from_secs(1) / A_SECOND * (CALLERS * EACH - A_SECOND);
    assert!(begun.elapsed() >= waiting, "{:?}", begun.elapsed());
    let bob = net.by_certificate("bob").await;
    must("another owner's", spawn(&bob).await);
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

#[tokio::test(flavor = "multi_thread")]
async fn output_on_disk_of_an_owner_is_bounded() {
    let net = with_quota("output_bytes = 300000").await;
    let alice = net.by_certificate("alice").await;
    let mut client = net.kennel.client().await;
    let write = "head -c 200000 /dev/zero";
    let ended = must("first", spawn_script(&alice, write).await);
    must("end", client.ended(&ended).await);
    let live = spawn_script(&alice, &format!("{write}; echo up >&2; exec sleep 300")).await;
    let live = must("second", live);
    eventually_async("it has written", PATIENCE, async || {
        let heard = client.clone().hear_now(&live).await;
        (heard.stderr == b"up\n").then_some(())
    })
    .await;
    let full = "bytes of output on disk of this owner";
    // The sum may be a second old.
    let refused = eventually_async("beyond the quota", PATIENCE, async || {
        spawn(&alice).await.err()
    })
    .await;
    assert_eq!(quota(&refused), full);
    let bob = net.by_certificate("bob").await;
    must("another owner's", spawn(&bob).await);

    // A repeat is answered with the run that is there.
    let repeat = pb::SpawnRequest {
        run_id: ended.clone(),
        spec: Some(sh(write)),
        ..pb::SpawnRequest::default()
    };
    let repeated = must("repeat", alice.processes().spawn(repeat).await);
    assert!(repeated.into_inner().existing);

    // Live or ended, and for the next server, it is the same output.
    abort(&alice, &live).await;
    let refused = spawn(&alice).await.expect_err("it is still there");
    assert_eq!(quota(&refused), full);
    net.kennel.kill_server();
    let refused = eventually_async("an answer of the next server", PATIENCE, async || {
        let status = spawn(&alice).await.expect_err("it is still there");
        (status.code() == Code::ResourceExhausted).then_some(status)
    })
    .await;
    assert_eq!(quota(&refused), full);
    net.change_access(|text| text.replace("output_bytes = 300000", "output_bytes = 900000"));
    eventually_async("more is permitted", PATIENCE, async || {
        spawn(&alice).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_above_the_rate_waits_and_is_whole() {
    const RATE: usize = 20_000;
    let mut net = with_quota(&format!("output_bytes_per_second = {RATE}")).await;
    let bytes = pattern(200 * RATE);
    let file = net.file("bytes");
    std::fs::write(&file, &bytes).expect("own directory");
    let alice = net.by_certificate("alice").await;
    let slow = must(
        "alice's",
        spawn_script(&alice, &format!("cat {}", file.display())).await,
    );
    let slowed = |heard: &Heard| {
        heard.events.iter().any(|(_, payload)| {
            matches!(payload, pb::event::Payload::Warning(warning) if warning.message.contains("20000 bytes a second"))
        })
    };
    let mut client = net.kennel.client().await;
    eventually_async("it is slowed", PATIENCE, async || {
        slowed(&client.clone().hear_now(&slow).await).then_some(())
    })
    .await;

    // Another owner's output is ten times as much, and all of it is read before alice's.
    let bob = net.by_certificate("bob").await;
    let much = 10 * bytes.len();
    let fast = must(
        "bob's",
        spawn_script(&bob, &format!("head -c {much} /dev/zero")).await,
    );
    let heard = must("bob's events", client.hear_all(&fast, 0).await);
    assert!(heard.has_ended() && !slowed(&heard));
    assert_eq!(heard.stdout.len(), much);
    let part = client.clone().hear_now(&slow).await;
    assert!(part.stdout.len() < bytes.len(), "{}", part.stdout.len());

    // What waits in the pipe survives the server.
    net.kennel.replace_server().await;
    net.change_access(|text| text.replace("output_bytes_per_second", "# "));
    let mut client = net.kennel.client().await;
    let heard = must("alice's events", client.hear_all(&slow, 0).await);
    assert!(heard.has_ended());
    assert!(heard.stdout == bytes, "{} bytes", heard.stdout.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_in_flight_of_an_owner_are_bounded() {
    const BYTES: usize = 8_000_000;
    let net = with_quota("stream_bytes = 100000").await;
    let alice = net.by_certificate("alice").await;
    let script = format!("head -c {BYTES} /dev/zero");
    let run = must("spawn", spawn_script(&alice, &script).await);
    must("end", net.kennel.client().await.ended(&run).await);
    let request = || pb::StreamEventsRequest {
        run_id: run.clone(),
        ..pb::StreamEventsRequest::default()
    };
    let first = must("first", alice.processes().stream_events(request()).await);
    let refused = eventually_async("the first is full", PATIENCE, async || {
        let opened = alice.processes().stream_events(request()).await;
        opened.map(drop).err()
    })
    .await;
    assert_eq!(quota(&refused), "bytes in flight of this owner");
    // Calls are answered all the same, by a connection that no unread stream fills, and another owner's stream is read
    // to its end.
    let get = pb::GetRunRequest {
        run_id: run.clone(),
    };
    let mut calls = net.by_certificate("alice").await.processes();
    let got = within("an answer", PATIENCE, calls.get_run(get)).await;
    must("get", got);
    let whole = async |mut events: tonic::Streaming<pb::StreamEventsResponse>| {
        let mut heard = Heard::default();
        while let Some(message) = must(
            "stream",
            within("a message", PATIENCE, events.message()).await,
        ) {
            heard.take(message);
        }
        heard.stdout.len()
    };
    let operator = net.by_token("operator").await;
    let other = operator.processes().stream_events(request()).await;
    assert_eq!(whole(must("another", other).into_inner()).await, BYTES);

    assert_eq!(whole(first.into_inner()).await, BYTES);
    eventually_async("the first was read", PATIENCE, async || {
        alice.processes().stream_events(request()).await.ok()
    })
    .await;
}
