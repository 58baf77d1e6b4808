//! Upgrade after upgrade under load: runs that write, streams that are read, continuous spawns.
//!
//! No run is affected, no byte is lost to a reader that resumes, and no call fails that a server has received.

use kennel_proto::pb::{self, AbortWait, RunState};
use kennel_tests::{
    Client, Heard, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, argv, complaint, eventually,
    must, new_run_id,
    procfs::Proc,
    programs, sh,
    shell::{run_to_end, text},
    within,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::{JoinHandle, JoinSet};
use tonic::{Code, Status};

/// Amount of load.
struct Load {
    upgrades: usize,
    /// Runs that live through all of it.
    runs: usize,
    /// Number of them whose events are read.
    streams: usize,
    /// Clients that spawn one after the other.
    spawners: usize,
    /// Time between two spawns of one.
    pause: Duration,
    /// Time between two lines of a run, as sleep(1) takes it.
    line_every: &'static str,
}

const MODEST: Load = Load {
    upgrades: 4,
    runs: 50,
    streams: 15,
    spawners: 2,
    pause: Duration::from_millis(50),
    line_every: "0.5",
};

const FULL: Load = Load {
    upgrades: 20,
    runs: 200,
    streams: 50,
    spawners: 8,
    pause: Duration::from_millis(80),
    line_every: "1",
};

// promise: R-27
#[tokio::test(flavor = "multi_thread")]
async fn upgrades_under_load_lose_nothing() {
    upgrade_under(&MODEST).await;
}

// promise: R-27
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make soak` runs it"]
async fn twenty_upgrades_under_full_load_lose_nothing() {
    upgrade_under(&FULL).await;
}

async fn upgrade_under(load: &Load) {
    let mut kennel = Kennel::start(Options {
        own_binary: Some(programs::kennel()),
        ..Options::default()
    })
    .await;
    let runs = start_runs(&kennel, load).await;
    let readers: Vec<Reader> = runs
        .iter()
        .take(load.streams)
        .map(|run| Reader::start(&kennel.socket(), &run.run_id))
        .collect();
    let spawning = Spawning::start(&kennel.socket(), load);
    let mut unanswered = Vec::new();
    for _ in 0..load.upgrades {
        let (read, answered) = (total_lines(&readers), spawning.answered());
        eventually("all go on", PATIENCE, || {
            let read_on = total_lines(&readers) > read + load.streams;
            (read_on && spawning.answered() > answered + load.spawners).then_some(())
        })
        .await;
        kennel.install(&programs::kennel());
        let upgraded = run_to_end(kennel.cli(&["upgrade", "-o", "json"]), PATIENCE).await;
        assert!(upgraded.status.success(), "{upgraded:?}");
        let answer: serde_json::Value = must("JSON", serde_json::from_str(&text(&upgraded)));
        unanswered.push(answer["unansweredSeconds"].as_f64().expect("a time"));
    }
    let spawned = spawning.finish(&kennel).await;
    look_at_the_living(&kennel, &runs).await;
    let broken = end_all(&kennel, &runs, readers).await;
    assert_eq!(broken, 0, "streams ended without a word");
    let status = kennel.terminate(SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(0), "{}", kennel.log());
    let log = kennel.log();
    assert!(!log.contains("ERROR"), "{log}");
    unanswered.sort_by(f64::total_cmp);
    println!(
        "{} upgrades under {} runs, {} streams and {spawned}: no server answered for {:.0} ms in the middle, {:.0} ms at most; {} warnings",
        load.upgrades,
        load.runs,
        load.streams,
        unanswered[unanswered.len() / 2] * 1e3,
        unanswered.last().expect("some") * 1e3,
        log.matches(" WARN ").count(),
    );
}

async fn start_runs(kennel: &Kennel, load: &Load) -> Vec<pb::Run> {
    let mut client = kennel.client().await;
    let mut runs = Vec::new();
    for _ in 0..load.runs {
        let script = format!(
            "trap 'exit 0' TERM; n=0; while :; do n=$((n + 1)); echo line $n; echo $n > {}/$KENNEL_RUN_ID; sleep {}; done",
            kennel.scratch().display(),
            load.line_every
        );
        runs.push(must("spawn", client.spawn(sh(&script)).await));
    }
    runs
}

fn total_lines(readers: &[Reader]) -> usize {
    let lines = readers.iter().map(|r| r.lines.load(Ordering::Relaxed));
    lines.sum()
}

/// Reads one run's events to their end, across any servers.
struct Reader {
    lines: Arc<AtomicUsize>,
    task: JoinHandle<(Heard, usize)>,
}

impl Reader {
    fn start(socket: &Path, run_id: &str) -> Self {
        let lines = Arc::new(AtomicUsize::new(0));
        let (socket, run_id) = (socket.to_owned(), run_id.to_owned());
        let task = tokio::spawn(read(socket, run_id, Arc::clone(&lines)));
        Self { lines, task }
    }
}

/// Returns everything received, and how often a stream broke without a status.
async fn read(socket: PathBuf, run_id: String, lines: Arc<AtomicUsize>) -> (Heard, usize) {
    let (mut heard, mut broken) = (Heard::default(), 0);
    loop {
        let mut client = must("connect", Client::connect(&socket).await);
        let mut stream = match client.events_after(&run_id, heard.last_seq()).await {
            Ok(stream) => stream,
            Err(status) => {
                broken += usize::from(!is_replaced(&status));
                continue;
            }
        };
        loop {
            match stream.message().await {
                Ok(Some(message)) => heard.take(message),
                Ok(None) => return (heard, broken),
                Err(status) => {
                    broken += usize::from(!is_replaced(&status));
                    break;
                }
            }
            lines.store(heard.text().lines().count(), Ordering::Relaxed);
        }
    }
}

fn is_replaced(status: &Status) -> bool {
    let answer = complaint(status);
    let by_server = answer.code == Code::Unavailable && answer.reason == "SERVER_REPLACED";
    by_server || is_of_library(status)
}

/// Clients that spawn without pause.
struct Spawning {
    over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: JoinSet<Spawned>,
    began: Instant,
}

/// Results of the spawns.
#[derive(Default)]
struct Spawned {
    ids: Vec<String>,
    /// Calls that no server had accepted when their connection ended.
    sent_again: usize,
    longest: Duration,
}

impl Spawning {
    fn start(socket: &Path, load: &Load) -> Self {
        let (over, answered) = (Arc::default(), Arc::default());
        let mut clients = JoinSet::new();
        for _ in 0..load.spawners {
            let (over, answered) = (Arc::clone(&over), Arc::clone(&answered));
            clients.spawn(spawn_on(socket.to_owned(), load.pause, over, answered));
        }
        Self {
            over,
            answered,
            clients,
            began: Instant::now(),
        }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Checks that every spawned run has run, once, to its end.
    async fn finish(self, kennel: &Kennel) -> String {
        self.over.store(true, Ordering::Relaxed);
        let took = self.began.elapsed();
        let mut all = Spawned::default();
        for one in self.clients.join_all().await {
            all.ids.extend(one.ids);
            all.sent_again += one.sent_again;
            all.longest = all.longest.max(one.longest);
        }
        let mut client = kennel.client().await;
        for id in &all.ids {
            let run = within("a short run ends", PATIENCE, client.ended(id)).await;
            let run = must("wait", run);
            assert_eq!((run.state(), run.code()), (RunState::Succeeded, Some(0)));
        }
        format!(
            "{} spawns (in {:.0?}, {} sent again, {:.0?} at most)",
            all.ids.len(),
            took,
            all.sent_again,
            all.longest
        )
    }
}

async fn spawn_on(
    socket: PathBuf,
    pause: Duration,
    over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
) -> Spawned {
    let mut spawned = Spawned::default();
    let mut client = must("connect", Client::connect(&socket).await);
    while !over.load(Ordering::Relaxed) {
        let id = new_run_id();
        let began = Instant::now();
        loop {
            match client.spawn_as(&id, argv(&["/bin/true"])).await {
                Ok((_, existing)) => {
                    assert!(!existing, "{id} was there before");
                    break;
                }
                Err(status) => {
                    assert!(is_of_library(&status), "a spawn failed: {status:?}");
                    spawned.sent_again += 1;
                }
            }
        }
        spawned.longest = spawned.longest.max(began.elapsed());
        spawned.ids.push(id);
        answered.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(pause).await;
    }
    spawned
}

/// Whether the status is the library's own, and from no server: the call was in its queue when the connection ended,
/// was sent after the last that the server would still accept (RFC 9113, 6.8), or met a closed connection. Had a server
/// accepted it, the repeated call would find the run.
fn is_of_library(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// Checks that the processes are the same.
async fn look_at_the_living(kennel: &Kennel, runs: &[pb::Run]) {
    let mut client = kennel.client().await;
    for run in runs {
        let now = must("get", client.get(&run.run_id).await);
        assert_eq!(now.state(), RunState::Running, "{now:?}");
        assert_eq!(now.lasting(), run.lasting());
        assert!(Proc::read(run.attempt().pid).is_some_and(|leader| leader.is_alive()));
    }
}

/// Ends all runs, and compares the received events with the written ones. Returns how many streams broke.
async fn end_all(kennel: &Kennel, runs: &[pb::Run], readers: Vec<Reader>) -> usize {
    let mut client = kennel.client().await;
    for run in runs {
        let aborted = client.abort_with(&run.run_id, None, AbortWait::None).await;
        must("abort", aborted);
    }
    let mut heard = BTreeMap::new();
    let mut broken = 0;
    for (run, reader) in runs.iter().zip(readers) {
        let read = within("a reader ends", PATIENCE, reader.task).await;
        let (all, times) = must("a reader", read);
        broken += times;
        heard.insert(&run.run_id, all);
    }
    for run in runs {
        let ended = must("wait", client.ended(&run.run_id).await);
        assert!(ended.tree_is_empty(), "{ended:?}");
        let fresh = must("stream", client.hear_all(&run.run_id, 0).await);
        verify_lines(kennel.scratch(), &run.run_id, &fresh);
        if let Some(resumed) = heard.get(&run.run_id) {
            assert_eq!(
                resumed.events, fresh.events,
                "what was read is what is there"
            );
        }
    }
    broken
}

fn verify_lines(scratch: &Path, run_id: &str, heard: &Heard) {
    let text = heard.text();
    for (index, line) in text.lines().enumerate() {
        assert_eq!(line, format!("line {}", index + 1), "lines in their order");
    }
    let count = text.lines().count();
    let tally = fs::read_to_string(scratch.join(run_id)).unwrap_or_default();
    // The command may die before or while it writes its tally.
    let written: usize = tally.trim().parse().unwrap_or(count);
    assert!(
        (written..=written + 1).contains(&count),
        "{count} of {written}"
    );
}
