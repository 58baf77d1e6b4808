//! Very many short runs while server, keeper and shims are killed: each ends once with its own code, and the resources
//! of the service are afterwards what they were before.

use kennel_proto::pb::{self, AbortWait, RunState};
use kennel_tests::{
    Client, Kennel, PATIENCE, RunExt, SpecExt, argv, eventually,
    kennel::{kill_exactly, reap_orphans},
    new_run_id, node_log,
    procfs::{self, Proc},
    sh,
    wait::eventually_async,
};
use nix::sys::signal::Signal;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// Number of runs of the default test, and of `make soak`.
const FEW: u32 = 240;
const MANY: u32 = 100_000;
/// Clients at once.
const CLIENTS: u32 = 8;
/// Time between two faults: a server with such an uptime is replaced at once.
const CALM: Duration = Duration::from_millis(2_500);
/// Time between two checks for the end of a stage.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Permitted growth of a process's memory: caches and a page cache of the store grow for a while.
const MEMORY_MORE_MAX: u64 = 24 << 20;
/// Warm shims and connections come and go.
const DESCRIPTORS_MORE_MAX: usize = 64;

// promise: R-30
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_short_runs_under_faults_leave_nothing() {
    endure(FEW, 40).await;
}

// promise: R-30
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make soak` runs it"]
async fn hundred_thousand_runs_under_faults_leave_nothing() {
    endure(MANY, 2_000).await;
}

/// Victim of a repeated kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Server,
    Keeper,
    Shim,
}

/// Half of the runs meet every fault, a quarter those that spare the keeper, a quarter none but dead shims: the
/// resources of keeper and server are compared over the life of one process.
async fn endure(count: u32, warm_up: u32) {
    let began = Instant::now();
    let mut kennel = Kennel::on_sqlite().await;
    let counts = Arc::new(Tally::default());
    let all = [Fault::Server, Fault::Keeper, Fault::Shim];
    stage(&mut kennel, &counts, count / 2, &all).await;
    stage(&mut kennel, &counts, warm_up, &[]).await;
    let keeper = Holdings::of_keeper(&kennel).await;
    stage(
        &mut kennel,
        &counts,
        count / 4,
        &[Fault::Server, Fault::Shim],
    )
    .await;
    stage(&mut kennel, &counts, warm_up, &[]).await;
    let server = Holdings::of_server(&kennel).await;
    let rest = count - count / 2 - count / 4;
    stage(&mut kennel, &counts, rest, &[Fault::Shim]).await;
    let after = (
        Holdings::of_keeper(&kennel).await,
        Holdings::of_server(&kennel).await,
    );

    let tally = counts.tally();
    println!(
        "{} runs in {:.0?}: {tally}",
        counts.runs.load(SeqCst),
        began.elapsed()
    );
    println!("keeper before: {keeper:?}\nkeeper after:  {:?}", after.0);
    println!("server before: {server:?}\nserver after:  {:?}", after.1);
    println!("on disk: {}", disk(&kennel.data_dir()));
    after.0.assert_no_more_than(&keeper);
    after.1.assert_no_more_than(&server);
    let runs = fs::read_dir(kennel.data_dir().join("runs")).expect("a directory");
    for dir in runs.flatten() {
        let tmp = dir.path().join("tmp");
        assert!(!tmp.exists(), "{} is left", tmp.display());
    }
    assert_eq!(node_log::logged(&kennel.data_dir()).unfinished, 0);
    assert_eq!(kennel.terminate(PATIENCE).await.code(), Some(0));
}

/// Observations of a stage.
#[derive(Default)]
struct Tally {
    runs: AtomicU32,
    /// Faults so far, and those among them that kill more than the server.
    faults: AtomicU32,
    hard_faults: AtomicU32,
    ends: std::sync::Mutex<BTreeMap<String, u32>>,
}

impl Tally {
    fn count(&self, what: &str) {
        let mut ends = self.ends.lock().expect("no holder panics");
        *ends.entry(what.to_owned()).or_default() += 1;
    }

    fn tally(&self) -> String {
        let mut text = String::new();
        let ends = self.ends.lock().expect("no holder panics");
        for (what, count) in &*ends {
            write!(text, "{count} {what}, ").expect("a string grows");
        }
        text
    }

    fn seen(&self) -> (u32, u32) {
        (self.faults.load(SeqCst), self.hard_faults.load(SeqCst))
    }
}

/// Makes at least so many runs, while these are killed every few seconds, each at least once; then all is quiet.
async fn stage(kennel: &mut Kennel, counts: &Arc<Tally>, count: u32, faults: &[Fault]) {
    let until = counts.runs.load(SeqCst) + count;
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for first in 0..CLIENTS {
        let (socket, counts, over) = (kennel.socket(), Arc::clone(counts), Arc::clone(&over));
        clients.spawn(async move { work(&socket, &counts, &over, first).await });
    }
    let mut next = 0;
    while counts.runs.load(SeqCst) < until || next < faults.len() {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Some(fault) = faults.get(next % faults.len().max(1)) {
            next += 1;
            strike(kennel, counts, *fault).await;
            tokio::time::sleep(CALM).await;
        }
        if let Some(gone) = clients.try_join_next() {
            gone.expect("it works until all is over");
        }
    }
    over.store(true, SeqCst);
    clients.join_all().await;
}

async fn strike(kennel: &mut Kennel, counts: &Tally, fault: Fault) {
    counts.faults.fetch_add(1, SeqCst);
    if fault != Fault::Server {
        counts.hard_faults.fetch_add(1, SeqCst);
    }
    counts.count(&format!(
        "deaths of a {}",
        format!("{fault:?}").to_lowercase()
    ));
    match fault {
        Fault::Server => kennel.replace_server().await,
        Fault::Keeper => {
            kennel.kill_keeper();
            kennel.restart().await;
        }
        Fault::Shim => {
            // Any shim with a command; the shim may exit meanwhile.
            let busy = kennel.shims().into_iter().find(|shim| {
                let below = procfs::descendants(&procfs::all(), shim.pid);
                !below.is_empty()
            });
            if let Some(shim) = busy.filter(Proc::is_alive) {
                kill_exactly(&shim, Signal::SIGKILL);
            }
        }
    }
    reap_orphans();
    // Counted afterwards: runs that begin during the fault may be affected too.
    counts.faults.fetch_add(1, SeqCst);
    if fault != Fault::Server {
        counts.hard_faults.fetch_add(1, SeqCst);
    }
}

/// Purpose of a run.
struct Errand {
    spec: pb::RunSpec,
    code: Option<i32>,
}

fn errand(number: u32) -> Errand {
    let grace = Duration::from_millis(20);
    let (spec, code) = match number % 6 {
        0 => (argv(&["/bin/true"]), Some(0)),
        1 => (argv(&["/bin/false"]), Some(1)),
        2 => (sh("echo to stdout; echo to stderr >&2; exit 7"), Some(7)),
        3 => (sh("setsid sleep 600 & exit 3"), Some(3)),
        4 => (sh("trap '' TERM; sleep 600 & sleep 600"), None),
        _ => (argv(&["/bin/sleep", "600"]), None),
    };
    let spec = spec.grace(grace);
    Errand { spec, code }
}

async fn work(socket: &Path, counts: &Tally, over: &AtomicBool, first: u32) {
    let mut client = connect(socket).await;
    for number in first.. {
        if over.load(SeqCst) {
            return;
        }
        let before = counts.seen();
        let errand = errand(number);
        let id = new_run_id();
        let end = run_to_its_end(&mut client, socket, &id, &errand).await;
        let after = counts.seen();
        let calm = before.0 == after.0 && before.0.is_multiple_of(2);
        let soft = before.1 == after.1 && before.1.is_multiple_of(2);
        counts.runs.fetch_add(1, SeqCst);
        match end {
            Ok(run) => {
                assert_explained(&run, &errand, calm, soft);
                counts.count(run.reason());
            }
            Err(status) => {
                assert!(!calm, "{id}: {status:?}");
                counts.count(&format!("refused at a fault ({:?})", status.code()));
            }
        }
    }
}

/// Spawns under one key until it is answered, aborts a run that does not end by itself, and returns its end.
async fn run_to_its_end(
    client: &mut Client,
    socket: &Path,
    id: &str,
    errand: &Errand,
) -> Result<pb::Run, Status> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = async {
            client.spawn_as(id, errand.spec.clone()).await?;
            if errand.code.is_none() {
                client.abort_with(id, None, AbortWait::TreeEmpty).await?;
            }
            client.ended(id).await
        };
        match ended.await {
            Err(status) if is_away(&status) && Instant::now() < deadline => {
                *client = connect(socket).await;
            }
            other => return other,
        }
    }
}

/// Whether no server is available at present: the call is to be repeated.
fn is_away(status: &Status) -> bool {
    let broken = matches!(
        status.code(),
        Code::Unknown | Code::Internal | Code::Cancelled
    ) && std::error::Error::source(status).is_some();
    status.code() == Code::Unavailable || broken
}

async fn connect(socket: &Path) -> Client {
    eventually_async("a server answers", PATIENCE, || async {
        Client::connect(socket).await.ok()
    })
    .await
}

/// Asserts that nothing is invented: a code is the one that the command returned, and where nothing was killed there is
/// one.
fn assert_explained(run: &pb::Run, errand: &Errand, calm: bool, soft: bool) {
    assert_ne!(run.state(), RunState::Unspecified, "{run:?}");
    if let Some(pb::exit::Result::Code(code)) =
        run.attempt().exit.clone().and_then(|exit| exit.result)
    {
        // `sh` exits with its own code if its sleep is killed first.
        let own = errand.code.is_none() || Some(code) == errand.code;
        assert!(own, "{run:?}");
    }
    if calm {
        let wanted = if errand.code.is_some() {
            "exited"
        } else {
            "aborted"
        };
        assert_eq!(run.reason(), wanted, "{run:?}");
        assert!(run.tree_is_empty(), "{run:?}");
    } else if soft {
        // A child at its gate when the server died fails with start_failed.
        let known = ["exited", "aborted", "start_failed"];
        assert!(known.contains(&run.reason()), "{run:?}");
    }
}

/// Resources of a process and the service around it.
#[derive(Debug)]
struct Holdings {
    pid: i32,
    rss_bytes: u64,
    descriptors: usize,
    processes: usize,
    control_groups: usize,
}

impl Holdings {
    async fn of_keeper(kennel: &Kennel) -> Self {
        Self::of(kennel, kennel.keeper_pid()).await
    }

    async fn of_server(kennel: &Kennel) -> Self {
        Self::of(kennel, kennel.server().expect("a server runs").pid).await
    }

    /// Reads them when nothing runs any more.
    async fn of(kennel: &Kennel, pid: i32) -> Self {
        let mut client = kennel.client().await;
        let quiet = Instant::now() + PATIENCE;
        while !client
            .server_info()
            .await
            .is_some_and(|info| info.live_runs.is_empty())
        {
            assert!(Instant::now() < quiet, "a process still runs");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let idle = |kennel: &Kennel| {
            reap_orphans();
            let commands = kennel.shims().into_iter();
            let busy =
                commands.filter(|shim| !procfs::descendants(&procfs::all(), shim.pid).is_empty());
            busy.count() == 0
        };
        eventually("no command is left", PATIENCE, || {
            idle(kennel).then_some(())
        })
        .await;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = rss.and_then(|rss| rss.trim().trim_end_matches(" kB").parse::<u64>().ok());
        let groups = kennel.cgroup_bases().last();
        Self {
            pid,
            rss_bytes: kib.expect("a living process has memory") << 10,
            descriptors: entries(Path::new(&format!("/proc/{pid}/fd"))),
            processes: kennel.descendants().len(),
            control_groups: groups.map_or(0, |base| entries(base)),
        }
    }

    fn assert_no_more_than(&self, before: &Self) {
        assert_eq!(self.pid, before.pid, "it is the same process");
        let grown = self.rss_bytes.saturating_sub(before.rss_bytes);
        assert!(grown <= MEMORY_MORE_MAX, "{before:?}, then {self:?}");
        let more = self.descriptors.saturating_sub(before.descriptors);
        assert!(more <= DESCRIPTORS_MORE_MAX, "{before:?}, then {self:?}");
        let pool = 8;
        assert!(
            self.processes <= before.processes + pool,
            "{before:?}, then {self:?}"
        );
        assert!(
            self.control_groups <= before.control_groups + pool,
            "{before:?}, then {self:?}"
        );
    }
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

/// Counts the disk usage: outcomes and output stay, as there is no retention yet.
fn disk(data_dir: &Path) -> String {
    let runs = entries(&data_dir.join("runs"));
    let store = fs::metadata(data_dir.join("kennel.db")).map_or(0, |file| file.len());
    format!("{runs} directories of runs, {store} bytes of database")
}
