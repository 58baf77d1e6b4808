//! More clients than a server can serve, which spawn without a pause; and a caller beside them that aborts and queries.

use crate::{Client, Kennel, argv, client::complaint, must, procfs, sh};
use kennel_proto::pb::{self, AbortWait};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// Time between two aborts, and between two queries.
const ABORT_EVERY: Duration = Duration::from_millis(200);
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Time between two reads of the memory.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Results of an overload.
#[derive(Debug, Default)]
pub struct Overload {
    /// Calls of Spawn that were answered with a run.
    pub spawned: usize,
    /// Calls that were refused with a reason that clients may rely on.
    pub refused: BTreeMap<String, usize>,
    /// All other failures, in words.
    pub untyped: Vec<String>,
    /// Latencies of Abort.
    pub aborts: Vec<Duration>,
    /// Latencies of queries of the state of the server and of a run.
    pub questions: Vec<Duration>,
    /// Peak memory of keeper, server and shims together, in bytes of their own (PSS).
    pub memory_peak: u64,
    /// Peak memory of the server alone.
    pub server_peak: u64,
}

impl Overload {
    /// Lets so many clients spawn `/bin/true` for so long.
    pub async fn run(kennel: &Kennel, clients: usize, lasts: Duration) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let socket = kennel.socket();
        let mut workers = JoinSet::new();
        for _ in 0..clients {
            workers.spawn(spawn_all(socket.clone(), Arc::clone(&over)));
        }
        let aborting = tokio::spawn(abort_all(socket.clone(), Arc::clone(&over)));
        let asking = tokio::spawn(ask_all(socket, Arc::clone(&over)));
        let mut found = Self::default();
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            found.look(kennel);
            tokio::time::sleep(LOOK_EVERY).await;
        }
        over.store(true, Ordering::Relaxed);
        for one in workers.join_all().await {
            found.add(one);
        }
        found.add(must("the aborting caller", aborting.await));
        found.add(must("the asking caller", asking.await));
        found
    }

    fn look(&mut self, kennel: &Kennel) {
        let pss = |pid| procfs::memory_bytes(pid, "Pss").unwrap_or(0);
        let server = kennel.server().map_or(0, |server| pss(server.pid));
        let shims: u64 = kennel.shims().iter().map(|shim| pss(shim.pid)).sum();
        self.server_peak = self.server_peak.max(server);
        let all = server + shims + pss(kennel.keeper_pid());
        self.memory_peak = self.memory_peak.max(all);
    }

    fn add(&mut self, other: Self) {
        self.spawned += other.spawned;
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
        self.untyped.extend(other.untyped);
        self.aborts.extend(other.aborts);
        self.questions.extend(other.questions);
    }

    fn refuse(&mut self, what: &str, status: &Status) {
        let complaint = complaint(status);
        let is_typed = matches!(complaint.code, Code::ResourceExhausted | Code::Unavailable)
            && !complaint.reason.is_empty();
        if is_typed {
            *self.refused.entry(complaint.reason).or_default() += 1;
        } else {
            self.untyped.push(format!("{what}: {status:?}"));
        }
    }
}

async fn spawn_all(socket: PathBuf, over: Arc<AtomicBool>) -> Overload {
    let mut found = Overload::default();
    let mut client = must("connect", Client::connect(&socket).await);
    while !over.load(Ordering::Relaxed) {
        match client.spawn(argv(&["/bin/true"])).await {
            Ok(_) => found.spawned += 1,
            Err(status) => found.refuse("Spawn", &status),
        }
    }
    found
}

/// Aborts endless runs, one after the other.
async fn abort_all(socket: PathBuf, over: Arc<AtomicBool>) -> Overload {
    let mut found = Overload::default();
    let mut client = must("connect", Client::connect(&socket).await);
    while !over.load(Ordering::Relaxed) {
        match client.spawn(sh("sleep 1000")).await {
            Ok(run) => {
                found.spawned += 1;
                let began = Instant::now();
                let durable = AbortWait::None;
                match client.abort_with(&run.run_id, None, durable).await {
                    Ok(_) => found.aborts.push(began.elapsed()),
                    Err(status) => found.refuse("Abort", &status),
                }
            }
            Err(status) => found.refuse("Spawn", &status),
        }
        tokio::time::sleep(ABORT_EVERY).await;
    }
    found
}

/// Queries the state of the server, and of one run.
async fn ask_all(socket: PathBuf, over: Arc<AtomicBool>) -> Overload {
    let mut found = Overload::default();
    let mut client = must("connect", Client::connect(&socket).await);
    let run: Option<pb::Run> = client.spawn(argv(&["/bin/true"])).await.ok();
    found.spawned += usize::from(run.is_some());
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        if client.server_info().await.is_none() {
            found.untyped.push("GetServerInfo: no answer".into());
        }
        found.questions.push(began.elapsed());
        if let Some(run) = &run {
            let began = Instant::now();
            match client.get(&run.run_id).await {
                Ok(_) => found.questions.push(began.elapsed()),
                Err(status) => found.refuse("GetRun", &status),
            }
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    found
}
