//! What the answers say beside what the witness has seen.

use crate::{
    RunExt,
    crowd::Crowd,
    pattern,
    witness::{Life, Witness},
};
use kennel_proto::pb::{self, NodeReachability, RunState, event::Payload, tree_verdict::Verdict};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Longest time for which an answer may be behind what lives, once every fault has passed: the lease, a renewal, the
/// write of a record, and the delay of a busy machine.
pub(super) const BEHIND_MAX: Duration = Duration::from_secs(10);
/// Most wrong answers that are listed.
const LISTED_MAX: usize = 20;

/// Faults that have passed, and the keepers of the nodes.
pub(crate) struct Weather(Mutex<Sky>);

struct Sky {
    nodes: Vec<NodeSky>,
    /// When the last fault of what all nodes share had passed.
    all_since: Instant,
}

#[derive(Clone)]
struct NodeSky {
    since: Instant,
    keepers: Vec<i32>,
    keeper_deaths: Vec<Instant>,
}

impl Weather {
    fn new(nodes: usize) -> Self {
        let node = NodeSky {
            since: Instant::now(),
            keepers: Vec::new(),
            keeper_deaths: Vec::new(),
        };
        Self(Mutex::new(Sky {
            nodes: vec![node; nodes],
            all_since: Instant::now(),
        }))
    }

    fn sky(&self) -> MutexGuard<'_, Sky> {
        self.0.lock().expect("no holder panics")
    }

    /// Notes that the fault of a node has passed.
    pub(crate) fn passed(&self, node: usize) {
        self.sky().nodes[node].since = Instant::now();
    }

    /// Notes that a fault of all nodes has passed.
    pub(crate) fn all_passed(&self) {
        self.sky().all_since = Instant::now();
    }

    /// Notes a keeper of a node.
    pub(crate) fn keeper(&self, node: usize, pid: i32) {
        self.sky().nodes[node].keepers.push(pid);
    }

    /// Notes that the keeper of a node is about to be killed.
    pub(crate) fn keeper_dies(&self, node: usize) {
        self.sky().nodes[node].keeper_deaths.push(Instant::now());
    }

    /// Returns since when no fault of this node has passed. A fault that lasts has not.
    fn calm_since(&self, node: usize) -> Instant {
        let sky = self.sky();
        sky.nodes[node].since.max(sky.all_since)
    }
}

/// The end of a run, as an answer had it.
#[derive(Clone, Debug, PartialEq)]
struct End {
    state: RunState,
    reason: &'static str,
    code: Option<i32>,
    signal: Option<String>,
    time: Option<prost_types::Timestamp>,
    pid: i32,
}

impl End {
    fn of(run: &pb::Run) -> Option<Self> {
        run.end_reason.as_ref()?;
        Some(Self {
            state: run.state(),
            reason: run.reason(),
            code: run.current_attempt.as_ref().and_then(|_| run.code()),
            signal: run.current_attempt.as_ref().and_then(|_| run.signal()),
            time: run.end_time,
            pid: run
                .current_attempt
                .as_ref()
                .map_or(0, |attempt| attempt.pid),
        })
    }
}

/// Requests for a run, and their answers.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an answer of its own, and any of them may come"
)]
struct Case {
    spawn_asked: Option<Instant>,
    spawn_answered: Option<Instant>,
    /// Number of the node that has it.
    home: Option<usize>,
    /// Id of that node, which others of its number replace.
    node: Option<String>,
    /// Whether anyone asked for its end.
    stop_asked: bool,
    /// Whether that was accepted: OK, or left for its node.
    stop_accepted: bool,
    is_left: bool,
    /// Whether an answer said that it never ran, or that its id is fenced.
    is_denied: bool,
    end: Option<(End, Instant)>,
}

/// Counts of a proof.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of runs that had a process.
    pub ran: usize,
    /// Number of ids for which no process was to live, and none did.
    pub denied: usize,
    /// Number of runs that ended by a stop.
    pub stopped: usize,
    /// Number of stops that were left for a node.
    pub left: usize,
    /// Number of runs that ended with a keeper.
    pub lost: usize,
    /// Number of answers that were compared.
    pub answers: usize,
    /// Number of calls without an answer about a run.
    pub unanswered: usize,
    /// How long it took.
    pub took: Duration,
}

/// All requests with their answers, and all that was wrong.
pub(crate) struct Ledger {
    pub(crate) weather: Weather,
    witness: Arc<Witness>,
    nodes: Mutex<BTreeMap<String, usize>>,
    /// Nodes that were replaced, by their ids.
    gone: Mutex<BTreeSet<String>>,
    doors: TempDir,
    cases: Mutex<BTreeMap<String, Case>>,
    wrong: Mutex<Vec<String>>,
    answers: AtomicUsize,
    unanswered: AtomicUsize,
    began: Instant,
}

impl Ledger {
    pub(crate) fn new(witness: Arc<Witness>, nodes: usize) -> Self {
        Self {
            weather: Weather::new(nodes),
            witness,
            nodes: Mutex::default(),
            gone: Mutex::default(),
            doors: tempfile::tempdir().expect("a temporary directory can be made"),
            cases: Mutex::default(),
            wrong: Mutex::default(),
            answers: AtomicUsize::default(),
            unanswered: AtomicUsize::default(),
            began: Instant::now(),
        }
    }

    /// Returns the socket to which commands report.
    pub(crate) fn socket(&self) -> String {
        self.witness.socket().display().to_string()
    }

    /// Notes the id of a node.
    pub(crate) fn is_node(&self, node: usize, id: &str) {
        let mut nodes = self.nodes.lock().expect("no holder panics");
        nodes.insert(id.to_owned(), node);
    }

    /// Returns the path at which clients and other nodes reach a node, and the one that replaces it.
    pub(super) fn door(&self, node: usize) -> PathBuf {
        self.doors.path().join(format!("{node}.sock"))
    }

    /// Notes that a node ends for good: events of its runs may have Gaps, and what was not read of them is with it.
    pub(super) fn is_gone(&self, id: &str) {
        let mut gone = self.gone.lock().expect("no holder panics");
        gone.insert(id.to_owned());
    }

    /// Whether the node of a run has ended for good.
    pub(super) fn has_lost_node(&self, run: &str) -> bool {
        let node = self.cases().get(run).and_then(|case| case.node.clone());
        let gone = self.gone.lock().expect("no holder panics");
        node.is_some_and(|node| gone.contains(&node))
    }

    fn home_of(&self, run: &pb::Run) -> Option<usize> {
        let nodes = self.nodes.lock().expect("no holder panics");
        nodes.get(&run.node_id).copied()
    }

    fn cases(&self) -> MutexGuard<'_, BTreeMap<String, Case>> {
        self.cases.lock().expect("no holder panics")
    }

    fn case(&self, run: &str, change: impl FnOnce(&mut Case)) {
        change(self.cases().entry(run.to_owned()).or_default());
    }

    /// Prints a line of the story.
    pub(crate) fn log(&self, line: &str) {
        let at = self.began.elapsed().as_secs_f64();
        eprintln!("{at:8.3} {line}");
    }

    pub(crate) fn is_wrong(&self, what: String) {
        self.log(&format!("WRONG: {what}"));
        self.wrong.lock().expect("no holder panics").push(what);
    }

    pub(crate) fn unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn spawn_asked(&self, run: &str) {
        self.case(run, |case| {
            case.spawn_asked.get_or_insert_with(Instant::now);
        });
    }

    pub(crate) fn spawn_answered(&self, at: usize, run: &pb::Run) {
        let home = self.home_of(run);
        if home.is_none() {
            self.is_wrong(format!("{} is of no node: {run:?}", run.run_id));
        }
        self.case(&run.run_id, |case| {
            case.spawn_answered.get_or_insert_with(Instant::now);
            case.home = case.home.or(home);
            case.node.get_or_insert_with(|| run.node_id.clone());
        });
        self.saw(at, run);
    }

    pub(crate) fn is_denied(&self, run: &str) {
        self.case(run, |case| case.is_denied = true);
    }

    pub(crate) fn stop_asked(&self, run: &str) {
        self.case(run, |case| case.stop_asked = true);
    }

    pub(crate) fn stop_accepted(&self, run: &str, is_left: bool) {
        self.case(run, |case| {
            case.stop_accepted = true;
            case.is_left |= is_left;
        });
    }

    /// Returns runs that a Spawn was answered for, the newest first.
    pub(crate) fn newest(&self, most: usize) -> Vec<String> {
        let cases = self.cases();
        let answered = cases.iter().rev();
        let answered = answered.filter(|(_, case)| case.spawn_answered.is_some());
        answered.map(|(run, _)| run.clone()).take(most).collect()
    }

    /// Returns the runs of which a process has lived.
    pub(crate) fn started(&self) -> Vec<String> {
        self.witness.runs()
    }

    /// Checks an answer of a node that this run is not known.
    pub(crate) fn not_found(&self, at: usize, run: &str, asked: Instant) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let cases = self.cases();
        let answered = cases.get(run).and_then(|case| case.spawn_answered);
        let is_known = answered.is_some_and(|answered| answered < asked);
        drop(cases);
        if is_known {
            self.is_wrong(format!("node {at} does not know {run}"));
        }
    }

    /// Checks an answer of a node about a run.
    pub(crate) fn saw(&self, at: usize, run: &pb::Run) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let id = &run.run_id;
        let lives = self.witness.of_run(id);
        let Some(end) = End::of(run) else {
            return self.saw_open(at, run, &lives);
        };
        let verdict = run.tree_verdict.as_ref();
        let verdict = verdict.and_then(|tree| tree.verdict.as_ref());
        let is_empty = matches!(verdict, Some(Verdict::Empty(_) | Verdict::NeverRan(_)));
        for life in lives.iter().filter(|life| life.proc.is_alive()) {
            if life.is_leader || is_empty {
                self.is_wrong(format!(
                    "node {at}: {id} has ended, and lives: {life:?} {run:?}"
                ));
            }
        }
        let before = {
            let mut cases = self.cases();
            let case = cases.entry(id.clone()).or_default();
            let before = case.end.as_ref().map(|(end, _)| end.clone());
            case.end
                .get_or_insert_with(|| (end.clone(), Instant::now()));
            before
        };
        if let Some(before) = before.filter(|before| *before != end) {
            self.is_wrong(format!(
                "node {at}: {id} has another end: {before:?} {end:?}"
            ));
        }
    }

    /// Checks an answer that a run has not ended.
    fn saw_open(&self, at: usize, run: &pb::Run, lives: &[Life]) {
        let id = &run.run_id;
        let home = self.home_of(run).unwrap_or(at);
        let node = run.other_node.as_ref();
        let is_marked =
            node.is_some_and(|node| node.reachability() == NodeReachability::Unreachable);
        let calm = self
            .weather
            .calm_since(at)
            .max(self.weather.calm_since(home));
        let leader = lives.iter().rfind(|life| life.is_leader);
        let died = leader.and_then(|leader| leader.died);
        if let Some(died) = died.filter(|_| !is_marked)
            && died.max(calm).elapsed() > BEHIND_MAX
        {
            let state = run.state();
            let age = died.elapsed();
            self.is_wrong(format!(
                "node {at}: {id} of node {home} is {state:?}, dead for {age:?}"
            ));
        }
    }

    /// Checks the events of all runs.
    pub(crate) fn heard(&self, crowd: &Crowd) {
        for run in self.started() {
            if self.has_lost_node(&run) {
                continue;
            }
            let lives = self.witness.of_run(&run);
            let Some(leader) = lives.iter().find(|life| life.is_leader) else {
                continue;
            };
            let Some(heard) = crowd.runs.get(&run) else {
                self.is_wrong(format!("no event of {run}"));
                continue;
            };
            let (len, written) = (heard.stdout.len(), leader.written);
            // The witness may lack the last write.
            let is_whole = if leader.exit.is_some() {
                len == written
            } else {
                len >= written
            };
            let gaps = heard.events.iter();
            let gaps = gaps.filter(|(_, payload)| matches!(payload, Payload::Gap(_)));
            let is_prefix = pattern(super::load::bytes_of(&run)).starts_with(&heard.stdout);
            if !is_whole || !is_prefix || gaps.count() > 0 || !heard.has_ended() {
                let stations = heard.stations();
                self.is_wrong(format!(
                    "events of {run}: {len} of {written} bytes, prefix {is_prefix}: {stations:?}"
                ));
            }
        }
    }

    /// Checks what has become of each run, and panics if anything was wrong.
    pub(crate) fn tally(&self, took: Duration) -> Tally {
        let mut tally = Tally {
            answers: self.answers.load(Ordering::Relaxed),
            unanswered: self.unanswered.load(Ordering::Relaxed),
            took,
            ..Tally::default()
        };
        let cases = self.cases().clone();
        for run in self.started() {
            if !cases.contains_key(&run) {
                self.is_wrong(format!("{run} lived, and no client asked for it"));
            }
        }
        for (run, case) in &cases {
            self.settle(run, case, &mut tally);
        }
        let wrong = self.wrong.lock().expect("no holder panics");
        if !wrong.is_empty() {
            let count = wrong.len();
            let listed = wrong[..count.min(LISTED_MAX)].join("\n");
            panic!("{count} wrong:\n{listed}\n{tally:?}");
        }
        tally
    }

    fn settle(&self, run: &str, case: &Case, tally: &mut Tally) {
        let lives = self.witness.of_run(run);
        let leaders: Vec<&Life> = lives.iter().filter(|life| life.is_leader).collect();
        let wrong = |what: &str| self.is_wrong(format!("{run}: {what}: {case:?} {lives:?}"));
        tally.left += usize::from(case.is_left);
        if case.is_denied || leaders.is_empty() {
            tally.denied += 1;
            // It is unknown whether a run ran that was recorded but had not begun when its host ended. A run that a
            // signal ended before its report to the witness has run; later it would wait for signals.
            let has_no_report = case
                .end
                .as_ref()
                .is_some_and(|(end, _)| end.state == RunState::Lost || end.signal.is_some());
            let is_answered = case.spawn_answered.is_some() && !has_no_report;
            if !leaders.is_empty() || is_answered && !case.is_denied {
                wrong("it ran and was denied, or the other way round");
            }
            return;
        }
        tally.ran += 1;
        let ([leader], Some((end, seen)), Some(home)) = (&leaders[..], &case.end, case.home) else {
            return wrong("it ran twice, or has no end");
        };
        let deaths = self.weather.sky().nodes[home].clone();
        let asked = case.spawn_asked.unwrap_or(self.began);
        let mut deaths_in_life = deaths.keeper_deaths.iter();
        let has_lost_keeper = deaths_in_life.any(|death| *death >= asked && death <= seen);
        let terms = leader.count("SIGTERM");
        if end.pid != leader.proc.pid {
            wrong("the answer names another process");
        }
        let said = leader.exit;
        if end.code.is_some() && end.code != said {
            wrong("the answer has another exit code");
        }
        let is_asked = case.stop_asked || has_lost_keeper;
        if terms > 0 && !is_asked {
            wrong("it was signalled, and no client asked for it");
        }
        if terms > 1 && !has_lost_keeper {
            wrong("its end was requested twice");
        }
        match end.reason {
            "aborted" if case.stop_asked => tally.stopped += 1,
            _ if has_lost_keeper => tally.lost += 1,
            "exited" if terms > 0 => wrong("its stop is not its end"),
            "exited" if end.code.is_some() => {}
            "exited" => wrong("its exit code is lost"),
            _ => wrong("it has an end that no client asked for"),
        }
        let mut signals = lives.iter().flat_map(|life| &life.signals);
        let own = |sender: &i32| *sender == leader.proc.ppid || deaths.keepers.contains(sender);
        if signals.any(|(_, sender)| !own(sender)) {
            wrong("it was signalled by a process that is not its node's");
        }
    }
}
