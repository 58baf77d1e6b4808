//! Quotas of owners: an excessive call is refused with the time of the next try, and others are unaffected.

use crate::{
    net::{Net, sleeper},
    run_tokens::{Caller, spec as calling},
};
use kennel_client::Connection;
use kennel_proto::pb::{self, ApiAccess};
use kennel_tests::{
    Heard, Options, PATIENCE, cases, client::duration, eventually_async, must, new_run_id, pattern,
    sh, within,
};
use std::{
    fmt::Write as _,
    fs,
    time::{Duration, Instant},
};
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

/// Owners with a quota, each of one case.
const QUOTAS: [(&str, &str); 9] = [
    ("live", "live_runs = 2"),
    ("rate", "spawns_per_second = 2"),
    ("paced", "live_runs = 1"),
    ("streams", "streams = 1"),
    ("disk", "output_bytes = 300000"),
    ("slow", "output_bytes_per_second = 20000"),
    ("flight", "stream_bytes = 100000"),
    ("parent", "live_runs = 2"),
    ("rows", "record_bytes = 20000"),
];

/// Starts a server where each of them has a certificate, and its quota is in force.
async fn with_quotas() -> Net {
    let names = QUOTAS.map(|(name, _)| name);
    Net::start_prepared(Options::default(), &names, |mut text| {
        for (name, quota) in QUOTAS {
            let _ = write!(text, "\n[quota.'spiffe://kennel/{name}']\n{quota}\n");
        }
        text
    })
    .await
}

// The last four tests replace the server.
cases! {
    fn quotas_of_owners(mut with_quotas().await);
    spawns_above_the_rate_are_refused,
    refusals_without_pause_are_paced,
    streams_of_an_owner_are_bounded,
    bytes_in_flight_of_an_owner_are_bounded,
    children_count_for_the_owner_of_their_parent,
    records_of_an_owner_are_bounded,
    live_runs_of_an_owner_are_bounded,
    output_on_disk_of_an_owner_is_bounded,
    output_above_the_rate_waits_and_is_whole,
}

// promise: AC-12
async fn live_runs_of_an_owner_are_bounded(net: &mut Net) {
    let owner = net.by_certificate("live").await;
    let first = must("first", spawn(&owner).await);
    must("second", spawn(&owner).await);
    let refused = spawn(&owner).await.expect_err("one too many");
    assert_eq!(quota(&refused), "live runs of this owner");
    let bob = net.by_certificate("bob").await;
    for _ in 0..3 {
        must("another owner's", spawn(&bob).await);
    }

    // The next server counts the runs that it adopts.
    net.kennel.kill_server();
    // Calls on the broken connection fail in various ways.
    let refused = eventually_async("an answer of the next server", PATIENCE, async || {
        let status = spawn(&owner).await.expect_err("they live on");
        (status.code() == Code::ResourceExhausted).then_some(status)
    })
    .await;
    assert_eq!(quota(&refused), "live runs of this owner");
    abort(&owner, &first).await;
    must("one has ended", spawn(&owner).await);
}

// promise: AC-12, I-133
async fn spawns_above_the_rate_are_refused(net: &mut Net) {
    let owner = net.by_certificate("rate").await;
    let mut all = Vec::new();
    for _ in 0..40 {
        let owner = net.by_certificate("rate").await;
        all.push(tokio::spawn(async move { spawn(&owner).await }));
    }
    let mut refused = 0;
    for one in all {
        if let Err(status) = one.await.expect("no panic") {
            assert_eq!(quota(&status), "spawns a second of this owner");
            refused += 1;
        }
    }
    assert!(refused > 0, "40 at once");
    let run = eventually_async("a client that tries again gets in", PATIENCE, async || {
        spawn(&owner).await.ok()
    })
    .await;
    // Each attempt counts as a command.
    let refused = eventually_async("restarts above the rate", PATIENCE, async || {
        let request = pb::RestartRequest {
            run_id: run.clone(),
            grace: Some(duration(Duration::ZERO)),
            ..pb::RestartRequest::default()
        };
        let status = owner.processes().restart(request).await.err()?;
        (status.code() == Code::ResourceExhausted).then_some(status)
    })
    .await;
    assert_eq!(quota(&refused), "spawns a second of this owner");
}

// promise: I-132, I-132a
async fn records_of_an_owner_are_bounded(net: &mut Net) {
    const FULL: &str = "bytes of records of this owner";
    let owner = net.by_certificate("rows").await;
    let script = format!("exec sleep 300 # {}", "x".repeat(9000));
    let first = must("first", spawn_script(&owner, &script).await);
    must("second", spawn_script(&owner, &script).await);
    let refused = spawn(&owner).await.expect_err("beyond the quota");
    assert_eq!(quota(&refused), FULL);
    let annotate = pb::AnnotateRunRequest {
        run_id: first.clone(),
        set: [("a".to_owned(), "b".to_owned())].into(),
        ..pb::AnnotateRunRequest::default()
    };
    let refused = owner.processes().annotate_run(annotate).await;
    assert_eq!(quota(&refused.expect_err("beyond the quota")), FULL);
    let fence = pb::AbortRequest {
        run_id: new_run_id(),
        ..pb::AbortRequest::default()
    };
    let refused = owner.processes().abort(fence).await;
    assert_eq!(quota(&refused.expect_err("beyond the quota")), FULL);
    let bob = net.by_certificate("bob").await;
    must("another owner's", spawn(&bob).await);

    // After the runs end, the next server counts stored rows.
    abort(&owner, &first).await;
    net.kennel.kill_server();
    eventually_async(
        "rows are counted by the next server",
        PATIENCE,
        async || {
            let status = spawn(&owner).await.err()?;
            (status.code() == Code::ResourceExhausted).then(|| assert_eq!(quota(&status), FULL))
        },
    )
    .await;
}

// promise: I-104
async fn refusals_without_pause_are_paced(net: &mut Net) {
    /// Refusals that are answered at once, and then in each second.
    const A_SECOND: u32 = 20;
    const CALLERS: u32 = 8;
    const EACH: u32 = 5;
    let owner = net.by_certificate("paced").await;
    must("the only one", spawn(&owner).await);
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let owner = owner.clone();
        callers.spawn(async move {
            for _ in 0..EACH {
                let refused = spawn(&owner).await.expect_err("it is beyond the quota");
                assert_eq!(quota(&refused), "live runs of this owner");
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.expect("each is refused with its reason");
    }
    // A machine can be slower, but never faster.
    let waiting = Duration::from_secs(1) / A_SECOND * (CALLERS * EACH - A_SECOND);
    assert!(begun.elapsed() >= waiting, "{:?}", begun.elapsed());
    let bob = net.by_certificate("bob").await;
    must("another owner's", spawn(&bob).await);
}

// promise: AC-12
async fn streams_of_an_owner_are_bounded(net: &mut Net) {
    let owner = net.by_certificate("streams").await;
    let run = must("spawn", spawn(&owner).await);
    let request = || pb::StreamEventsRequest {
        run_id: run.clone(),
        ..pb::StreamEventsRequest::default()
    };
    let first = must("first", owner.processes().stream_events(request()).await);
    let refused = owner.processes().stream_events(request()).await;
    let refused = refused.map(|_| ()).expect_err("one too many");
    assert_eq!(quota(&refused), "open streams of this owner");
    let operator = net.by_token("operator").await;
    must(
        "another owner's",
        operator.processes().stream_events(request()).await,
    );
    drop(first);
    eventually_async("the first has ended", PATIENCE, async || {
        owner.processes().stream_events(request()).await.ok()
    })
    .await;
}

// promise: I-99
async fn output_on_disk_of_an_owner_is_bounded(net: &mut Net) {
    let owner = net.by_certificate("disk").await;
    let mut client = net.kennel.client().await;
    let write = "head -c 200000 /dev/zero";
    let ended = must("first", spawn_script(&owner, write).await);
    must("end", client.ended(&ended).await);
    let live = spawn_script(&owner, &format!("{write}; echo up >&2; exec sleep 300")).await;
    let live = must("second", live);
    eventually_async("it has written", PATIENCE, async || {
        let heard = client.clone().hear_now(&live).await;
        (heard.stderr == b"up\n").then_some(())
    })
    .await;
    let full = "bytes of output on disk of this owner";
    // The usage sum may be a second old.
    let refused = eventually_async("beyond the quota", PATIENCE, async || {
        spawn(&owner).await.err()
    })
    .await;
    assert_eq!(quota(&refused), full);
    let bob = net.by_certificate("bob").await;
    must("another owner's", spawn(&bob).await);

    // A repeated Spawn returns the existing run despite the quota.
    let repeat = pb::SpawnRequest {
        run_id: ended.clone(),
        spec: Some(sh(write)),
        ..pb::SpawnRequest::default()
    };
    let repeated = must("repeat", owner.processes().spawn(repeat).await);
    assert!(repeated.into_inner().existing);

    // Output counts the same for live and ended runs and the next server.
    abort(&owner, &live).await;
    let refused = spawn(&owner).await.expect_err("it is still there");
    assert_eq!(quota(&refused), full);
    net.kennel.kill_server();
    let refused = eventually_async("an answer of the next server", PATIENCE, async || {
        let status = spawn(&owner).await.expect_err("it is still there");
        (status.code() == Code::ResourceExhausted).then_some(status)
    })
    .await;
    assert_eq!(quota(&refused), full);
    net.change_access(|text| text.replace("output_bytes = 300000", "output_bytes = 900000"));
    eventually_async("more is permitted", PATIENCE, async || {
        spawn(&owner).await.ok()
    })
    .await;
}

// promise: I-100
async fn output_above_the_rate_waits_and_is_whole(net: &mut Net) {
    const RATE: usize = 20_000;
    let bytes = pattern(40 * RATE);
    let file = net.file("bytes");
    fs::write(&file, &bytes).expect("own directory");
    let owner = net.by_certificate("slow").await;
    let slow = must(
        "the owner's",
        spawn_script(&owner, &format!("cat {}", file.display())).await,
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

    // Bob's output is ten times larger, yet fully read before the slowed owner's.
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

    // Output waiting in the pipe survives the server.
    net.kennel.replace_server().await;
    net.change_access(|text| text.replace("output_bytes_per_second", "# "));
    let mut client = net.kennel.client().await;
    let heard = must("the owner's events", client.hear_all(&slow, 0).await);
    assert!(heard.has_ended());
    assert!(heard.stdout == bytes, "{} bytes", heard.stdout.len());
}

// promise: I-101
async fn bytes_in_flight_of_an_owner_are_bounded(net: &mut Net) {
    const BYTES: usize = 8_000_000;
    let owner = net.by_certificate("flight").await;
    let script = format!("head -c {BYTES} /dev/zero");
    let run = must("spawn", spawn_script(&owner, &script).await);
    must("end", net.kennel.client().await.ended(&run).await);
    let request = || pb::StreamEventsRequest {
        run_id: run.clone(),
        ..pb::StreamEventsRequest::default()
    };
    let first = must("first", owner.processes().stream_events(request()).await);
    let refused = eventually_async("the first is full", PATIENCE, async || {
        let opened = owner.processes().stream_events(request()).await;
        opened.map(drop).err()
    })
    .await;
    assert_eq!(quota(&refused), "bytes in flight of this owner");
    // Calls on a connection without unread streams are still answered, and another owner's stream is read to its end.
    let get = pb::GetRunRequest {
        run_id: run.clone(),
    };
    let mut calls = net.by_certificate("flight").await.processes();
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
        owner.processes().stream_events(request()).await.ok()
    })
    .await;
}

// promise: RW-85
async fn children_count_for_the_owner_of_their_parent(net: &mut Net) {
    let owner = net.by_certificate("parent").await;
    let answers = net.kennel.scratch().join("answers");
    fs::create_dir(&answers).expect("own directory");
    let request = pb::SpawnRequest {
        spec: Some(calling(&answers, ApiAccess::Children)),
        ..pb::SpawnRequest::default()
    };
    let spawned = must("spawn", owner.processes().spawn(request).await).into_inner();
    let run_id = spawned.run.expect("a run").run_id;
    let mut run = Caller::of(net.kennel.client().await, run_id, answers);
    let child = run.gets("$K spawn -- sleep 1000").await;
    let seen = must("get", run.client.get(&child).await);
    assert_eq!(seen.owner, "spiffe://kennel/parent");
    let refused = run.is_refused("$K spawn -- sleep 1000").await;
    assert!(refused.contains("live runs of this owner"), "{refused}");
    run.gets(&format!("$K abort {child}")).await;
    run.gets("$K spawn -- sleep 1000").await;
}
