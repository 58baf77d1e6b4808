//! Latency of one durable insert: p50 and p99 with 1 and 16 clients, on both databases, and on Postgres behind a
//! PgBouncer in transaction mode.
//!
//! Run with `cargo run --release -p kennel-store --example insert_latency`.

#[path = "../tests/server/mod.rs"]
#[expect(dead_code, reason = "tests do more with it")]
mod server;

use kennel_lifecycle::{
    HostIdentity, KeeperEpoch, NodeId, ProcessIdentity, RunId, RunIdentity, RunSpec, Timestamp,
};
use kennel_store::{Change, NewRun, Opening, Store, open};
use server::PostgresServer;
use std::{
    collections::BTreeMap,
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

const INSERTS: u128 = 4_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir_in(".")?;
    let file = format!("sqlite:{}", dir.path().join("kennel.db").display());
    let server = PostgresServer::start_own().await?;
    let bouncer = server.bouncer("").await?;
    let pooled = server.database(&bouncer).await?;
    for url in [file, server.schema().await?, pooled] {
        let store = open(&url.parse()?).await?;
        store.open_node(&opening()).await?;
        for (number, clients) in (1..).zip([1, 1, 16]) {
            let (spent, each) = measure(&store, number, clients).await?;
            // The first round warms caches and prepared statements.
            if number > 1 {
                let at = |percent: usize| each[each.len() * percent / 100];
                let rate = u128::from(u32::try_from(each.len())?) * 1_000_000 / spent.as_micros();
                println!(
                    "{:42} {clients:2} clients: p50 {:?} p99 {:?} {rate}/s",
                    store.describe(),
                    at(50),
                    at(99),
                );
            }
        }
        store.finish().await;
    }
    Ok(())
}

async fn measure(
    store: &Arc<dyn Store>,
    number: u128,
    clients: u128,
) -> Result<(Duration, Vec<Duration>), Box<dyn Error>> {
    let begin = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut each = Vec::new();
                for n in 0..INSERTS / clients {
                    let new = new_run(number << 64 | client << 32 | n);
                    let run = new.run;
                    let begin = Instant::now();
                    let (by, inserted) = (new.generation, Change::Inserted(Box::new(new)));
                    store
                        .change(NodeId::from_u128(1), by, run, &inserted)
                        .await?;
                    each.push(begin.elapsed());
                }
                Ok::<_, kennel_store::StoreError>(each)
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    all.sort();
    Ok((begin.elapsed(), all))
}

fn opening() -> Opening {
    Opening {
        node: NodeId::from_u128(1),
        node_name: "bench".into(),
        address: String::new(),
        keeper_epoch: KeeperEpoch::from_u128(1),
        keeper: process(1),
        host: host(),
        held: Vec::new(),
        above: 0,
        lease: Duration::ZERO,
        gone: None,
        draining: None,
        now: Timestamp(1),
    }
}

fn new_run(id: u128) -> NewRun {
    let mut spec = RunSpec::default();
    spec.command.argv = vec!["true".into()];
    spec.labels = BTreeMap::from([("team".into(), "blue".into())]);
    NewRun {
        run: RunId::from_u128(id),
        owner: "uid:0".into(),
        attempt: 1,
        node: NodeId::from_u128(1),
        generation: 1,
        keeper_epoch: KeeperEpoch::from_u128(1),
        identity: Some(RunIdentity {
            command: process(2),
            shim: process(3),
            cgroup: None,
            host: host(),
        }),
        spec: Arc::new(spec.into()),
        spec_digest: vec![7; 32],
        spec_digest_version: 1,
        created: Timestamp(1),
        ..NewRun::default()
    }
}

fn process(pid: i32) -> ProcessIdentity {
    ProcessIdentity {
        pid,
        pgid: pid,
        sid: pid,
        start_ticks: 1,
        pidfs_handle: Some(1),
    }
}

fn host() -> HostIdentity {
    HostIdentity {
        boot_id: "8f4e2c52-5f0a-4a55-8a3a-6a7a1c2d3e4f".into(),
        pidns_inode: 1,
        init_start_ticks: Some(7),
    }
}
