//! Clients of all nodes: workers that start and end runs, observers, and a reader of all events.

use super::{Chance, Doors, Plan, Turns, check::Ledger};
use crate::{
    Client, PATIENCE, SpecExt,
    client::Heard,
    complaint,
    crowd::{Crowd, LONG, labelled, try_open},
    eventually, eventually_async, naughty, new_run_id, run_id_of,
};
use kennel_client::Repeats;
use kennel_proto::pb::{self, AbortWait, RunFilter, RunKind, RunState};
use std::{
    error::Error as _,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};
use tokio::task::{JoinHandle, JoinSet};
use tonic::{Code, Status};

/// Value of the label `app` of all runs.
const APP: &str = "fleet";
/// Longest time that a client waits for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(6);
/// Time after which a call without an answer is repeated, at whichever node.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// More than any clock is set back.
const SET_MAX: Duration = Duration::from_hours(2);
/// Longest time until a call is answered, whatever comes.
const ANSWERED_MAX: Duration = Duration::from_mins(2);
/// Life of a command that ends upon a request.
const LIFE_MS: &str = "300000";
/// Messages of a stream until its reader goes to another node.
const MESSAGES_AT_ONE_NODE: u32 = 40;
/// Runs that an observer asks for in each turn.
const OBSERVED: usize = 12;

/// Clients at work.
pub(super) struct Load {
    shared: Shared,
    workers: JoinSet<()>,
    observers: JoinSet<()>,
    reader: JoinHandle<Crowd>,
}

/// What all clients share.
#[derive(Clone)]
struct Shared {
    plan: Plan,
    doors: Doors,
    ledger: Arc<Ledger>,
    /// Number of runs begun so far.
    begun: Arc<AtomicUsize>,
    /// Whether no more run is to begin.
    is_enough: Arc<AtomicBool>,
    /// Whether observers are to end.
    is_over: Arc<AtomicBool>,
}

/// Begins all clients.
pub(super) fn start(plan: Plan, doors: &Doors, ledger: &Arc<Ledger>) -> Load {
    let shared = Shared {
        plan,
        doors: doors.clone(),
        ledger: Arc::clone(ledger),
        begun: Arc::default(),
        is_enough: Arc::default(),
        is_over: Arc::default(),
    };
    let mut workers = JoinSet::new();
    for _ in 0..plan.workers {
        workers.spawn(shared.clone().work());
    }
    let mut observers = JoinSet::new();
    for node in 0..plan.nodes {
        observers.spawn(shared.clone().observe(node));
    }
    let reader = tokio::spawn(shared.clone().read());
    Load {
        shared,
        workers,
        observers,
        reader,
    }
}

impl Load {
    /// Whether all runs of the plan have begun.
    ///
    /// # Panics
    /// If a worker has panicked: it begins no more of them.
    pub(super) fn has_begun_all(&mut self) -> bool {
        while let Some(worker) = self.workers.try_join_next() {
            worker.expect("no worker panics");
        }
        self.shared.begun.load(Ordering::Relaxed) >= self.shared.plan.runs
    }

    /// Waits until so many more runs have begun.
    ///
    /// # Panics
    /// As [`Self::has_begun_all`].
    pub(super) async fn continues(&mut self, runs: usize) {
        let begun = Arc::clone(&self.shared.begun);
        let wanted = begun.load(Ordering::Relaxed) + runs;
        eventually("runs come and go", LONG, || {
            self.has_begun_all();
            (begun.load(Ordering::Relaxed) >= wanted).then_some(())
        })
        .await;
    }

    /// Begins no more runs, waits for the end of all, and compares what every node says of them.
    pub(super) async fn finish(mut self) {
        let shared = &self.shared;
        shared.is_enough.store(true, Ordering::Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.expect("no worker panics");
        }
        shared.all_nodes_agree().await;
        shared.is_over.store(true, Ordering::Relaxed);
        while let Some(observer) = self.observers.join_next().await {
            observer.expect("no observer panics");
        }
        let crowd = self.reader.await.expect("the reader does not panic");
        shared.ledger.heard(&crowd);
    }
}

/// Returns how many bytes a run would write, if it lives so long.
pub(super) fn bytes_of(run: &str) -> usize {
    match run.bytes().last().unwrap_or_default() % 4 {
        0 => 0,
        1 => 3000,
        2 => 30_000,
        _ => 120_000,
    }
}

/// Whether a status says nothing about a run.
fn says_nothing(status: &Status) -> bool {
    let code = status.code();
    let is_cut_off = code == Code::Unknown && status.source().is_some();
    matches!(
        code,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
    ) || is_cut_off
        || complaint(status).reason == "NODE_FENCED"
}

impl Shared {
    /// Makes a call at a node. `None`: no answer came.
    async fn call<T, F: Future<Output = Result<T, Status>>>(
        &self,
        at: usize,
        call: impl FnOnce(Client) -> F,
    ) -> Option<Result<T, Status>> {
        let made = async {
            let client = Client::connect(self.doors.of(at)).await.ok()?;
            Some(call(client).await)
        };
        let answer = tokio::time::timeout(ANSWER_MAX, made).await.ok().flatten();
        let answer = answer.filter(|answer| match answer {
            Ok(_) => true,
            Err(status) => !says_nothing(status),
        });
        if answer.is_none() {
            self.ledger.unanswered();
        }
        answer
    }

    /// Repeats a call at nodes of chance until one answers.
    async fn until_answered<T, F: Future<Output = Result<T, Status>>>(
        &self,
        what: &str,
        chance: &mut Chance,
        call: impl Fn(Client) -> F,
    ) -> Option<(usize, Result<T, Status>)> {
        let until = Instant::now() + ANSWERED_MAX;
        while Instant::now() < until {
            let at = chance.index(self.doors.len());
            if let Some(answer) = self.call(at, &call).await {
                return Some((at, answer));
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        let nothing = format!("no node answers: {what}");
        self.ledger.is_wrong(nothing);
        None
    }

    /// Returns a key for a run. No node takes one that is much ahead of its clock.
    fn new_run_id(&self) -> String {
        match self.plan.turns {
            Turns::VersionsAndClocks | Turns::Age => run_id_of(SystemTime::now() - SET_MAX),
            Turns::Faults | Turns::Versions => new_run_id(),
        }
    }

    async fn work(self) {
        loop {
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            let is_last = number >= self.plan.runs && self.is_enough.load(Ordering::Relaxed);
            if is_last {
                return;
            }
            let mut chance = Chance::new(self.plan.seed + number as u64 * 7919);
            let run = self.new_run_id();
            match number % 12 {
                0 => self.fence_then_spawn(&run, &mut chance).await,
                1..=4 => self.let_end(&run, &mut chance).await,
                5 | 6 => {
                    let spec = self.spec(&run, LIFE_MS, 0).kind_of(RunKind::Service);
                    self.end(&run, spec, AbortWait::None, &mut chance).await;
                }
                7..=9 => {
                    let spec = self.spec(&run, LIFE_MS, 0);
                    self.end(&run, spec, AbortWait::TreeEmpty, &mut chance)
                        .await;
                }
                _ => {
                    let spec = self.spec(&run, LIFE_MS, 0);
                    self.end(&run, spec, AbortWait::None, &mut chance).await;
                }
            }
        }
    }

    fn spec(&self, run: &str, millis: &str, code: u64) -> pb::RunSpec {
        let (code, bytes) = (code.to_string(), bytes_of(run).to_string());
        let socket = self.ledger.socket();
        naughty(&["witnessed", &socket, millis, &code, &bytes]).label("app", APP)
    }

    /// Lets a run end by itself.
    async fn let_end(&self, run: &str, chance: &mut Chance) {
        let millis = (20 + chance.below(3000)).to_string();
        let spec = self.spec(run, &millis, chance.below(4));
        if self.spawn(run, &spec, chance).await {
            self.wait_for_end(run, chance).await;
        }
    }

    /// Ends a run after a while.
    async fn end(&self, run: &str, spec: pb::RunSpec, wait: AbortWait, chance: &mut Chance) {
        if !self.spawn(run, &spec, chance).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(chance.below(3000))).await;
        if self.abort(run, wait, chance).await {
            self.wait_for_end(run, chance).await;
        }
    }

    /// Fences an id, which is spawned all the same. A node without a store has accepted a fence that another one does
    /// not know yet: the run ends then.
    async fn fence_then_spawn(&self, run: &str, chance: &mut Chance) {
        let spec = self.spec(run, LIFE_MS, 0);
        if self.abort(run, AbortWait::None, chance).await && self.spawn(run, &spec, chance).await {
            self.wait_for_end(run, chance).await;
        }
    }

    /// Spawns; `false`: the run does not start, and never will.
    async fn spawn(&self, run: &str, spec: &pb::RunSpec, chance: &mut Chance) -> bool {
        self.ledger.spawn_asked(run);
        let call = |mut client: Client| async move {
            let spawned = client.spawn_as(run, spec.clone()).await;
            spawned.map(|(run, _)| run)
        };
        match self.until_answered("spawn", chance, call).await {
            Some((at, Ok(run))) => {
                self.ledger.spawn_answered(at, &run);
                true
            }
            Some((at, Err(status))) => {
                match complaint(&status).reason.as_str() {
                    "SPAWN_FAILED" | "RUN_FENCED" | "RUN_STOPPED" => self.ledger.is_denied(run),
                    _ => self
                        .ledger
                        .is_wrong(format!("spawn of {run} at {at}: {status:?}")),
                }
                false
            }
            None => false,
        }
    }

    /// Asks for the end of a run; `false`: the run does not exist.
    async fn abort(&self, run: &str, wait: AbortWait, chance: &mut Chance) -> bool {
        self.ledger.stop_asked(run);
        let call = |mut client: Client| async move { client.abort_with(run, None, wait).await };
        match self.until_answered("abort", chance, call).await {
            Some((at, Ok(view))) => {
                self.ledger.stop_accepted(run, false);
                self.ledger.saw(at, &view);
                if wait == AbortWait::TreeEmpty && view.end_reason.is_none() {
                    self.ledger
                        .is_wrong(format!("node {at}: abort of {run} without its end"));
                }
                true
            }
            Some((_, Err(status))) if complaint(&status).reason == "ABORT_QUEUED" => {
                self.ledger.stop_accepted(run, true);
                true
            }
            Some((at, Err(status))) => {
                self.ledger
                    .is_wrong(format!("abort of {run} at {at}: {status:?}"));
                true
            }
            None => true,
        }
    }

    async fn wait_for_end(&self, run: &str, chance: &mut Chance) {
        let call = |mut client: Client| async move { client.ended(run).await };
        match self.until_answered("wait", chance, call).await {
            Some((at, Ok(view))) => self.ledger.saw(at, &view),
            Some((at, Err(status))) => {
                self.ledger
                    .is_wrong(format!("wait for {run} at {at}: {status:?}"));
            }
            None => {}
        }
    }

    /// Asks a node for what lives, and for the newest runs.
    async fn observe(self, at: usize) {
        while !self.is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(AGAIN_AFTER * 2).await;
            let live = RunFilter {
                states: [RunState::Running, RunState::Stopping, RunState::Starting]
                    .map(i32::from)
                    .into(),
                ..labelled(APP)
            };
            let list = |mut client: Client| async move { client.list_all(live, 1000).await };
            match self.call(at, list).await {
                Some(Ok(runs)) => runs.iter().for_each(|run| self.ledger.saw(at, run)),
                Some(Err(status)) => self.ledger.is_wrong(format!("list at {at}: {status:?}")),
                None => continue,
            }
            for run in self.ledger.newest(OBSERVED) {
                self.look(at, &run).await;
            }
        }
    }

    /// Asks a node for a run.
    async fn look(&self, at: usize, run: &str) -> Option<pb::Run> {
        let asked = Instant::now();
        let get = |mut client: Client| async move { client.get(run).await };
        match self.call(at, get).await? {
            Ok(view) => {
                self.ledger.saw(at, &view);
                Some(view)
            }
            Err(status) if complaint(&status).reason == "RUN_NOT_FOUND" => {
                self.ledger.not_found(at, run, asked);
                None
            }
            Err(status) => {
                self.ledger
                    .is_wrong(format!("get of {run} at {at}: {status:?}"));
                None
            }
        }
    }

    /// Waits until every node shows the end of every run.
    async fn all_nodes_agree(&self) {
        for run in self.ledger.started() {
            for at in 0..self.doors.len() {
                let what = format!("node {at} shows the end of {run}");
                eventually_async(&what, PATIENCE, async || {
                    let view = self.look(at, &run).await?;
                    let node = view.other_node.as_ref();
                    let is_reached = node
                        .is_none_or(|node| node.reachability() == pb::NodeReachability::Reachable);
                    let may_agree = is_reached || self.ledger.has_lost_node(&run);
                    (view.end_reason.is_some() && may_agree).then_some(())
                })
                .await;
            }
        }
    }

    /// Reads the events of all runs to their ends, at one node after the other.
    async fn read(self) -> Crowd {
        let mut crowd = Crowd::default();
        // Events after the last cursor are delivered again.
        let mut repeats = Repeats::default();
        let mut at = 0;
        let mut until = None;
        loop {
            if self.is_over.load(Ordering::Relaxed) {
                let until = *until.get_or_insert_with(|| Instant::now() + LONG);
                let mut started = self.ledger.started().into_iter();
                let is_whole = started.all(|run| {
                    self.ledger.has_lost_node(&run)
                        || crowd.runs.get(&run).is_some_and(Heard::has_ended)
                });
                if is_whole || Instant::now() > until {
                    return crowd;
                }
            }
            at = (at + 1) % self.doors.len();
            let read = self.read_at(at, &mut crowd, &mut repeats);
            let _ = tokio::time::timeout(ANSWER_MAX, read).await;
        }
    }

    async fn read_at(&self, at: usize, crowd: &mut Crowd, repeats: &mut Repeats) {
        let Ok(mut client) = Client::connect(self.doors.of(at)).await else {
            return tokio::time::sleep(AGAIN_AFTER).await;
        };
        let position = crowd.position();
        let Ok(mut stream) = try_open(&mut client, labelled(APP), position).await else {
            return tokio::time::sleep(AGAIN_AFTER).await;
        };
        repeats.begin_anew();
        for _ in 0..MESSAGES_AT_ONE_NODE {
            match stream.message().await {
                Ok(Some(mut message)) => {
                    repeats.drop_from(&mut message);
                    let is_covered = !message.cursor.is_empty();
                    crowd.take(message);
                    if is_covered {
                        repeats.cover();
                    }
                }
                Ok(None) | Err(_) => return,
            }
        }
    }
}
