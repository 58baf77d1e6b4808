//! A store that is stopped for a minute under load: exits, aborts and output continue, and acknowledged changes are
//! written in order.

use kennel_proto::pb::RunState;
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, Postgres, RunExt, STORE_PATIENCE,
    client::retry_after, complaint, eventually_async, load::Load, must, new_run_id, node_log, sh,
    within,
};
use std::time::{Duration, Instant};
use tonic::Code;

const WORKERS: usize = 8;
const SOME: usize = 100;
/// Runs that live when the store goes; half of them are aborted meanwhile, the others end by themselves.
const LIVE: usize = 40;

// promise: D-22
#[tokio::test(flavor = "multi_thread")]
#[ignore = "over a minute: make soak"]
async fn store_outage_of_a_minute_loses_nothing() {
    let mut postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let script = format!(
        "echo up; i=0; until [ -e {} ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 3",
        go.display()
    );
    let mut live = Vec::new();
    for _ in 0..LIVE {
        let run = must("spawn", client.spawn(sh(&script)).await);
        client.hear_up(&run.run_id).await;
        live.push(run);
    }
    let mut load = Load::start(&kennel, WORKERS).await;
    load.continues(SOME, STORE_PATIENCE).await;

    let before = load.refusals();
    postgres.crash().await;
    let stopped = Instant::now();
    load.is_refused_since(&before, STORE_PATIENCE).await;
    kennel.becomes_ready(false).await;
    let (to_abort, to_end) = live.split_at(LIVE / 2);
    let mut slowest = Duration::ZERO;
    let mut refused = 0;
    for (turn, run) in to_abort.iter().enumerate() {
        let asked = Instant::now();
        let aborted = within("abort", PATIENCE, client.abort(&run.run_id)).await;
        assert_eq!(must("abort", aborted).reason(), "aborted");
        slowest = slowest.max(asked.elapsed());
        refuses_a_spawn(&mut client).await;
        refused += 1;
        assert!(kennel.is_serving("liveness").await && !kennel.is_serving("readiness").await);
        // The outage must last its full time.
        let next = stopped + OUTAGE * u32::try_from(turn + 1).expect("few") / 20;
        tokio::time::sleep_until(next.into()).await;
    }
    for run in to_end {
        let seen = must("get", client.get(&run.run_id).await);
        assert_eq!(seen.state(), RunState::Running);
    }
    std::fs::write(&go, "").expect("written");
    for run in to_end {
        let ended = within("it ends", PATIENCE, client.ended(&run.run_id)).await;
        assert_eq!(must("wait", ended).code(), Some(3));
    }
    let pending = node_log::logged(&kennel.data_dir()).pending;
    let outage = stopped.elapsed();
    assert!(outage >= OUTAGE);
    postgres.run().await;
    let back = Instant::now();
    kennel.becomes_ready(true).await;
    let ready = back.elapsed();
    let written = "SELECT count(*) FROM runs WHERE end_reason = 'aborted'";
    eventually_async("all is written", STORE_PATIENCE, async || {
        (postgres.psql(written).await == (LIVE / 2).to_string()).then_some(())
    })
    .await;
    load.continues(SOME, STORE_PATIENCE).await;
    let tally = load.finish(&mut client).await;
    for run in &live {
        let heard = must("stream", client.hear_all(&run.run_id, 0).await);
        let text = heard.text();
        for (number, line) in (1..).zip(text.lines().skip(1)) {
            assert_eq!(line, format!("{number}"));
        }
        Footprint::of_run(run).assert_nothing_left();
    }
    let open = "SELECT count(*) FROM runs WHERE end_reason IS NULL";
    eventually_async("every row is closed", STORE_PATIENCE, async || {
        (postgres.psql(open).await == "0").then_some(())
    })
    .await;
    eprintln!(
        "stopped for {outage:?}: {} aborts (slowest {slowest:?}) and {} ends reported, {refused} spawns refused, {pending} changes pending, \
         ready {ready:?} after the store; {tally:?}",
        to_abort.len(),
        to_end.len(),
    );
}

/// Time for which it is stopped.
const OUTAGE: Duration = Duration::from_mins(1);

async fn refuses_a_spawn(client: &mut Client) {
    let refused = client.spawn_as(&new_run_id(), sh("exit 0")).await;
    let refused = refused.expect_err("the store is away");
    assert!(retry_after(&refused).is_some());
    let complaint_text = complaint(&refused);
    assert_eq!(
        (complaint_text.code, complaint_text.reason.as_str()),
        (Code::Unavailable, "STORE_UNAVAILABLE")
    );
}
