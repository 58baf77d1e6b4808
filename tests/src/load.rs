//! A steady load of short runs, and the records of them: requests, answers, and commands that ran.

use crate::{
    Client, Kennel, PATIENCE, RunExt,
    client::{complaint, retry_after},
    eventually, must, new_run_id, sh,
};
use kennel_proto::pb::tree_verdict::Verdict;
use std::{
    collections::BTreeSet,
    error::Error as _,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tonic::Code;

/// Time after which a refused call is repeated: earlier than the server advises, since these are no real clients.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Workers that spawn one run after the other and wait for its end.
pub struct Load {
    ran: PathBuf,
    workers: JoinSet<Vec<Entry>>,
    over: Arc<AtomicBool>,
    counts: Arc<Vec<Counts>>,
}

/// Counters of one worker.
#[derive(Default)]
struct Counts {
    ended: AtomicUsize,
    refused: AtomicUsize,
}

/// Results of one key.
struct Entry {
    run_id: String,
    refusals: usize,
    /// Whether the first accepted call found that the run had never started.
    never_started: bool,
}

/// Results of a whole load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Number of requested keys.
    pub keys: usize,
    /// Number of those that were refused at least once.
    pub refused: usize,
    /// Number of those that were written without an answer: they never ran.
    pub never_started: usize,
}

impl Load {
    /// Starts the workers.
    pub async fn start(kennel: &Kennel, workers: usize) -> Self {
        // Each load has its own `ran` file.
        let ran = kennel.scratch().join(format!("ran-{}", new_run_id()));
        // It is there also where the load is over before its first command.
        must("a file", fs::write(&ran, ""));
        let over = Arc::new(AtomicBool::new(false));
        let counts: Vec<Counts> = (0..workers).map(|_| Counts::default()).collect();
        let mut load = Self {
            ran,
            workers: JoinSet::new(),
            over,
            counts: Arc::new(counts),
        };
        for number in 0..workers {
            let worker = Worker {
                client: kennel.client().await,
                ran: load.ran.clone(),
                over: Arc::clone(&load.over),
                counts: Arc::clone(&load.counts),
                number,
            };
            load.workers.spawn(worker.work());
        }
        load
    }

    /// Waits until so many more runs have ended, and at least one of each worker: no call is left without an answer.
    pub async fn continues(&mut self, runs: usize, limit: Duration) {
        let ended = |counts: &Counts| counts.ended.load(Ordering::Relaxed);
        let before: Vec<usize> = self.counts.iter().map(ended).collect();
        let wanted = before.iter().sum::<usize>() + runs;
        eventually("runs come and go", limit, || {
            self.look_for_failures();
            let each = self.counts.iter().map(ended).zip(&before);
            let each = each.fold(true, |all, (now, before)| all && now > *before);
            (each && self.ended() >= wanted).then_some(())
        })
        .await;
    }

    /// Returns how often each worker has been refused so far.
    #[must_use]
    pub fn refusals(&self) -> Vec<usize> {
        let each = self.counts.iter();
        each.map(|counts| counts.refused.load(Ordering::Relaxed))
            .collect()
    }

    /// Waits until each worker has been refused since then, at least once: a repeated spawn with an unknown result is
    /// answered when the store can report it.
    pub async fn is_refused_since(&mut self, before: &[usize], limit: Duration) {
        eventually("every worker is refused", limit, || {
            self.look_for_failures();
            let now = self.refusals().into_iter().zip(before);
            let mut now = now.map(|(now, before)| now > *before);
            now.all(|refused| refused).then_some(())
        })
        .await;
    }

    /// Returns how many runs have ended so far.
    #[must_use]
    pub fn ended(&self) -> usize {
        let each = self.counts.iter();
        each.map(|counts| counts.ended.load(Ordering::Relaxed))
            .sum()
    }

    /// Checks for workers that ended early, which only happens after a failure.
    fn look_for_failures(&mut self) {
        if let Some(result) = self.workers.try_join_next() {
            must("worker", result.map(|_| ()));
        }
    }

    /// Lets each worker finish its run, and checks every key: a command ran once or never, as its row and the answers
    /// state.
    pub async fn finish(mut self, client: &mut Client) -> Tally {
        self.over.store(true, Ordering::Relaxed);
        let mut entries = Vec::new();
        while let Some(result) = self.workers.join_next().await {
            entries.extend(must("worker", result));
        }
        let ran = ids_in(&self.ran);
        let mut tally = Tally::default();
        for entry in &entries {
            let run = must("get", client.get(&entry.run_id).await);
            let id = &entry.run_id;
            assert!(run.end_time.is_some(), "{run:?}");
            let verdict = run
                .tree_verdict
                .as_ref()
                .and_then(|tree| tree.verdict.as_ref());
            let denied =
                run.reason() == "start_failed" || matches!(verdict, Some(Verdict::NeverRan(_)));
            assert_eq!(denied, entry.never_started, "{run:?}");
            assert_eq!(ran.contains(id), !denied, "{id} ran, or did not: {run:?}");
            assert_eq!(run.code(), (!denied).then_some(0), "{run:?}");
            assert!(
                !denied || entry.refusals > 0,
                "answered and denied: {run:?}"
            );
            tally.keys += 1;
            tally.refused += usize::from(entry.refusals > 0);
            tally.never_started += usize::from(denied);
        }
        let asked: BTreeSet<&String> = entries.iter().map(|entry| &entry.run_id).collect();
        assert!(ran.iter().all(|id| asked.contains(id)), "a stranger ran");
        tally
    }
}

/// Spawns one run after the other and waits for its end.
struct Worker {
    client: Client,
    ran: PathBuf,
    over: Arc<AtomicBool>,
    counts: Arc<Vec<Counts>>,
    number: usize,
}

#[derive(Clone, Copy)]
enum Call {
    Spawn,
    WaitForEnd,
}

impl Worker {
    async fn work(mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            let run_id = new_run_id();
            let (started, refusals) = self.until_answered(&run_id, Call::Spawn).await;
            self.until_answered(&run_id, Call::WaitForEnd).await;
            self.counts().ended.fetch_add(1, Ordering::Relaxed);
            entries.push(Entry {
                run_id,
                refusals,
                never_started: !started,
            });
        }
        entries
    }

    /// Repeats a call as long as it is refused because of the store, or cut off with its server. `false`: this key's
    /// run has never started, and never will.
    async fn until_answered(&mut self, run_id: &str, call: Call) -> (bool, usize) {
        let deadline = Instant::now() + PATIENCE * 6;
        let mut refusals = 0;
        loop {
            let answer = match call {
                Call::Spawn => {
                    let script = format!("echo $KENNEL_RUN_ID >> {}", self.ran.display());
                    let spawned = self.client.spawn_as(run_id, sh(&script)).await;
                    spawned.map(|(run, _)| run)
                }
                Call::WaitForEnd => self.client.ended(run_id).await,
            };
            let Err(status) = answer else {
                return (true, refusals);
            };
            let refusal = complaint(&status);
            if refusal.reason == "SPAWN_FAILED" {
                return (false, refusals);
            }
            let is_library = matches!(status.code(), Code::Unknown | Code::Cancelled);
            let is_cut_off = is_library && status.source().is_some();
            assert!(
                refusal.code == Code::Unavailable || is_cut_off,
                "{run_id}: {status:?}"
            );
            if refusal.reason == "STORE_UNAVAILABLE" {
                assert!(retry_after(&status).is_some(), "{status:?}");
            }
            refusals += 1;
            self.counts().refused.fetch_add(1, Ordering::Relaxed);
            assert!(Instant::now() < deadline, "{status:?}");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    fn counts(&self) -> &Counts {
        &self.counts[self.number]
    }
}

/// Returns the keys that commands have written there, each once.
fn ids_in(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).expect("it is there");
    let ids: Vec<String> = text.lines().map(str::to_owned).collect();
    let set: BTreeSet<String> = ids.iter().cloned().collect();
    assert_eq!(ids.len(), set.len(), "a command ran twice");
    set
}
