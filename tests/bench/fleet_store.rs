//! One Postgres under the leases and spawns of very many nodes, and beside very many ended runs: the statements are the
//! product's own, through crate `store`; the nodes are simulated.

use crate::table::{Table, Times};
use kennel_lifecycle::{
    EndReason, Exit, HostIdentity, KeeperEpoch, NodeId, Outcome, OutputRemoval, ProcessIdentity,
    RemovalReason, RunId, RunIdentity, RunSpec, StopCertificate, StreamsEnd, Timestamp,
    TreeVerdict,
};
use kennel_store::{
    Change, Changed, Closure, ListFilter, NewRun, Opening, Store, StoreError, Times as RunTimes,
    open,
};
use kennel_tests::{Postgres, must};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Nodes of one database.
const NODES: [usize; 3] = [100, 1_000, 10_000];
/// Ended runs in the database.
const ENDED: [usize; 3] = [1_000, 30_000, 300_000];
/// Connections that renew leases, each for its share of the nodes, one lease after the other.
const RENEWERS: usize = 8;
/// Connections that spawn, one run after the other.
const SPAWNERS: usize = 2;
/// Time of each measurement.
const FOR: Duration = Duration::from_secs(10);
/// Time from one renewal of a node to the next: a third of the default lease.
const RENEWED_EVERY: Duration = Duration::from_secs(15);
/// Repetitions of a read.
const READS: usize = 20;
/// Calls that a figure of one write is of.
const WRITES: usize = 500;
/// Runs that one statement copies.
const COPIED_AT_ONCE: usize = 5_000;
/// The node of the ended runs, and that of the others.
const NODE: u128 = 1;

/// Measures leases and spawns beside ever more nodes.
pub(crate) async fn leases(table: &mut Table, sizes: &[usize]) {
    for nodes in NODES {
        if sizes.is_empty() || sizes.contains(&nodes) {
            with_nodes(table, nodes).await;
        }
    }
}

async fn with_nodes(table: &mut Table, nodes: usize) {
    let postgres = Postgres::start().await;
    let mut stores = Vec::new();
    for _ in 0..RENEWERS + SPAWNERS {
        stores.push(store(&postgres).await);
    }
    let spawners = stores.split_off(RENEWERS);
    let shares = shares(nodes);
    let began = Instant::now();
    let opening = stores.iter().cloned().zip(shares.clone());
    let opened: JoinSet<()> = opening
        .map(|(store, share)| async move {
            for node in share {
                must("open", store.open_node(&opening_of(node)).await);
            }
        })
        .collect();
    opened.join_all().await;
    for store in &spawners {
        must("open", store.open_node(&opening_of(NODE)).await);
    }
    let generation = must("open", spawners[0].open_node(&opening_of(NODE)).await);
    let name = |what: &str| format!("{nodes} nodes: {what}");
    table.fact(&name("nodes acquired"), &rate(nodes, began.elapsed()));

    // Renewals at the lease's pace, then as fast as possible.
    let (spawns, renewals) = beside(&stores, &shares, &spawners, generation, true).await;
    let paced = format!("{} of {}", rate(renewals, FOR), rate(nodes, RENEWED_EVERY));
    table.fact(&name("renewals at the pace of the lease"), &paced);
    let figures = format!("{} / {}", spawns.p50(), spawns.p99());
    table.fact(&name("INSERT while they renew, p50 / p99"), &figures);
    let (spawns, renewals) = beside(&stores, &shares, &spawners, generation, false).await;
    table.fact(&name("renewals as fast as possible"), &rate(renewals, FOR));
    let figures = format!("{} / {}", spawns.p50(), spawns.p99());
    table.fact(&name("INSERT meanwhile, p50 / p99"), &figures);
    postgres.psql("SELECT pg_stat_force_next_flush()").await;
    let hot = "SELECT round(100.0 * n_tup_hot_upd / greatest(n_tup_upd, 1), 1) || ' % of ' || n_tup_upd \
        || ', table ' || pg_size_pretty(pg_table_size(relid)) || ', indexes ' || pg_size_pretty(pg_indexes_size(relid)) \
        FROM pg_stat_user_tables WHERE relname = 'nodes'";
    table.fact(&name("HOT updates"), postgres.psql(hot).await.trim());
    let mut reads = Times::default();
    for _ in 0..READS {
        let began = Instant::now();
        let read = must("nodes", spawners[0].nodes(None).await);
        reads.push(began.elapsed());
        assert!(read.len() >= nodes, "all are read");
    }
    table.fact(&name("list of all nodes"), &reads.p50());
    for store in stores.iter().chain(&spawners) {
        store.finish().await;
    }
}

/// Spawns while leases are renewed; returns the times of the spawns, and the number of renewals. `is_paced`:
/// each node renews in time, and no earlier.
async fn beside(
    stores: &[Arc<dyn Store>],
    shares: &[Vec<u128>],
    spawners: &[Arc<dyn Store>],
    generation: i64,
    is_paced: bool,
) -> (Times, usize) {
    let until = Instant::now() + FOR;
    let mut renewing = JoinSet::new();
    for (store, share) in stores.iter().cloned().zip(shares.to_vec()) {
        renewing.spawn(renew(store, share, until, is_paced));
    }
    let mut spawning = JoinSet::new();
    for (number, store) in spawners.iter().cloned().enumerate() {
        spawning.spawn(async move {
            let mut times = Times::default();
            while Instant::now() < until {
                let new = new_run(ulid(number), generation);
                let began = Instant::now();
                must("insert", insert(&store, &new).await);
                times.push(began.elapsed());
            }
            times
        });
    }
    let mut times = Times::default();
    for some in spawning.join_all().await {
        times.extend(some);
    }
    (times, renewing.join_all().await.into_iter().sum())
}

async fn renew(store: Arc<dyn Store>, share: Vec<u128>, until: Instant, is_paced: bool) -> usize {
    let mut renewals = 0;
    let pause = RENEWED_EVERY / u32::try_from(share.len().max(1)).expect("few");
    let mut next = Instant::now();
    for node in share.iter().cycle() {
        if Instant::now() >= until {
            break;
        }
        if is_paced {
            tokio::time::sleep_until(next.into()).await;
            next += pause;
        }
        let renewed = store.renew(NodeId::from_u128(*node), 1, None).await;
        must("renew", renewed);
        renewals += 1;
    }
    renewals
}

/// Divides nodes among the connections.
fn shares(nodes: usize) -> Vec<Vec<u128>> {
    let mut shares = vec![Vec::new(); RENEWERS];
    for (number, node) in (2..).take(nodes).enumerate() {
        shares[number % RENEWERS].push(node);
    }
    shares
}

/// Measures a database with ever more ended runs.
pub(crate) async fn history(table: &mut Table, sizes: &[usize]) {
    let postgres = Postgres::start().await;
    let store = store(&postgres).await;
    let generation = must("open", store.open_node(&opening_of(NODE)).await);
    let template = new_run(ulid(0), generation);
    must("insert", insert(&store, &template).await);
    must("close", close(&store, &template).await);
    let mut stored = 1;
    for size in ENDED {
        if sizes.is_empty() || sizes.contains(&size) {
            copy(&postgres, template.run, stored, size).await;
            stored = size;
            with_ended(table, &postgres, &store, generation, size).await;
        }
    }
    let name = |what: &str| format!("{stored} ended runs: {what}");
    let tenth = stored / 10;
    let began = Instant::now();
    let delete = format!(
        "DELETE FROM runs WHERE run_id IN (SELECT run_id FROM runs WHERE end_reason IS NOT NULL \
         ORDER BY age LIMIT {tenth})"
    );
    postgres.psql(&delete).await;
    let deleted = rate(tenth, began.elapsed());
    table.fact(&name("rows deleted by one statement"), &deleted);
    let began = Instant::now();
    postgres.psql("VACUUM runs").await;
    let took = began.elapsed().as_secs_f64();
    table.fact(
        &name("VACUUM after a tenth was deleted"),
        &format!("{took:.2} s"),
    );
    store.finish().await;
}

/// Copies an ended run until there are so many, each with an id and a time of its own.
async fn copy(postgres: &Postgres, template: RunId, from: usize, to: usize) {
    for from in (from..to).step_by(COPIED_AT_ONCE) {
        let to = to.min(from + COPIED_AT_ONCE);
        copy_some(postgres, template, from, to).await;
    }
    postgres.psql("VACUUM ANALYZE runs").await;
}

async fn copy_some(postgres: &Postgres, template: RunId, from: usize, to: usize) {
    let copied = format!(
        "INSERT INTO runs SELECT (jsonb_populate_record(r, jsonb_build_object('run_id', \
         '00' || lpad(upper(to_hex(n)), 24, '0'), 'created_us', n, 'ended_us', n + 5, 'age', n, 'output_age', n + 5))).* \
         FROM runs r, generate_series({from}, {to} - 1) n WHERE r.run_id = '{template}'"
    );
    postgres.psql(&copied).await;
}

async fn with_ended(
    table: &mut Table,
    postgres: &Postgres,
    store: &Arc<dyn Store>,
    generation: i64,
    size: usize,
) {
    let name = |what: &str| format!("{size} ended runs: {what}");
    let sizes = "SELECT 'table ' || pg_size_pretty(pg_table_size('runs')) || (SELECT string_agg(', ' || relname || ' ' \
        || pg_size_pretty(pg_relation_size(indexrelid)), '' ORDER BY relname) FROM pg_index JOIN pg_class c \
        ON c.oid = indexrelid WHERE indrelid = 'runs'::regclass)";
    table.fact(&name("size"), postgres.psql(sizes).await.trim());
    let (mut inserts, mut closes, mut removals) =
        (Times::default(), Times::default(), Times::default());
    for number in 0..WRITES {
        let new = new_run(ulid(number), generation);
        let mut began = Instant::now();
        must("insert", insert(store, &new).await);
        inserts.push(began.elapsed());
        began = Instant::now();
        must("close", close(store, &new).await);
        closes.push(began.elapsed());
        let removal = OutputRemoval {
            at: Timestamp(9),
            reason: RemovalReason::OwnerRuns,
            seq: 9,
            lens: [5, 0],
            counted: true,
        };
        began = Instant::now();
        let removed = Change::OutputRemoved(removal);
        let marked = store.change(new.node, generation, new.run, &removed).await;
        must("mark", marked);
        removals.push(began.elapsed());
    }
    for (what, times) in [
        ("INSERT, p50 / p99", inserts),
        ("close, p50 / p99", closes),
        ("output marked as removed, p50 / p99", removals),
    ] {
        table.fact(&name(what), &format!("{} / {}", times.p50(), times.p99()));
    }
    let (mut lists, mut opens) = (Times::default(), Times::default());
    for _ in 0..READS {
        let mut began = Instant::now();
        must("list", store.list(&ListFilter::default(), None, 100).await);
        lists.push(began.elapsed());
        began = Instant::now();
        must("open runs", store.open_runs(NodeId::from_u128(NODE)).await);
        opens.push(began.elapsed());
    }
    table.fact(&name("list of the 100 newest"), &lists.p50());
    table.fact(&name("open runs of the node"), &opens.p50());
    let began = Instant::now();
    postgres.psql("VACUUM runs").await;
    let took = began.elapsed().as_secs_f64();
    table.fact(&name("VACUUM after these writes"), &format!("{took:.2} s"));
}

#[expect(clippy::cast_precision_loss, reason = "a few digits are shown")]
fn rate(count: usize, took: Duration) -> String {
    format!("{:.0}/s", count as f64 / took.as_secs_f64())
}

async fn store(postgres: &Postgres) -> Arc<dyn Store> {
    let url = must("url", postgres.url().parse());
    must("store", open(&url).await)
}

async fn insert(store: &Arc<dyn Store>, new: &NewRun) -> Result<Changed, StoreError> {
    let inserted = Change::Inserted(Box::new(new.clone()));
    let made = store.change(new.node, new.generation, new.run, &inserted);
    made.await
}

async fn close(store: &Arc<dyn Store>, new: &NewRun) -> Result<Changed, StoreError> {
    let closed = Change::Closed(Box::new(new.clone()), Box::new(closure()));
    let made = store.change(new.node, new.generation, new.run, &closed);
    made.await
}

/// Returns a key that no other run has.
fn ulid(number: usize) -> RunId {
    let made = kennel_tests::new_run_id();
    let run: RunId = must("ulid", made.parse());
    RunId::from_u128(run.as_u128() ^ number as u128)
}

fn opening_of(node: u128) -> Opening {
    Opening {
        node: NodeId::from_u128(node),
        node_name: format!("node{node}"),
        address: format!("tcp://node{node}.example:7443"),
        keeper_epoch: KeeperEpoch::from_u128(node),
        keeper: process(1),
        host: host(),
        held: Vec::new(),
        above: 0,
        lease: RENEWED_EVERY * 3,
        gone: None,
        draining: None,
        now: Timestamp(1),
    }
}

fn new_run(run: RunId, generation: i64) -> NewRun {
    let mut spec = RunSpec::default();
    spec.command.argv = vec!["true".into()];
    spec.labels = BTreeMap::from([("team".into(), "blue".into())]);
    NewRun {
        run,
        owner: "uid:0".into(),
        node: NodeId::from_u128(NODE),
        generation,
        keeper_epoch: KeeperEpoch::from_u128(NODE),
        identity: Some(RunIdentity {
            command: process(2),
            shim: process(3),
            cgroup: None,
            host: host(),
        }),
        spec: Arc::new(spec.into()),
        spec_digest: vec![7; 32],
        spec_digest_version: 1,
        created: Timestamp(1 << 50),
        ..NewRun::default()
    }
}

fn closure() -> Closure {
    Closure {
        outcome: Outcome {
            reason: EndReason::Exited,
            exit: Some(Exit::Code(0)),
            tree: TreeVerdict::Unverified("simulated".into()),
            streams: Some(StreamsEnd::Eof),
            certificate: StopCertificate::default(),
        },
        times: RunTimes {
            ended: Some(Timestamp(2 << 50)),
            ..RunTimes::default()
        },
        entries: None,
        has_files: false,
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
