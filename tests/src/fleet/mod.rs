//! Several nodes on one Postgres behind a pooler, faults that come over them, and a proof that no answer is false.
//!
//! The nodes know nothing of it: each reaches the pooler, and is reached by clients and other nodes, through a relay
//! that can be cut. Every answer of every node is compared with a [`Witness`] that reads the kernel alone.

mod check;
mod load;
mod three;

pub use check::Tally;
pub use three::ThreeNodes;

use crate::{
    Kennel, Options, PATIENCE, Postgres, eventually, eventually_async,
    kennel::kill_exactly,
    pgbouncer::PgBouncer,
    procfs::Proc,
    programs,
    relay::Relay,
    shell::{run_to_end, text},
    wall_clock::WallClock,
    witness::Witness,
};
use check::{BEHIND_MAX, Ledger};
use nix::sys::signal::Signal;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Lease of each node.
const LEASE: &str = "3s";
/// A fault lasts longer than the lease.
const LONGER: Duration = Duration::from_millis(4500);
/// Sessions of Postgres that all nodes share.
const SESSIONS: u32 = 12;

/// Size of a proof.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of runs.
    pub runs: usize,
    /// Clients that each spawn one run after the other.
    pub workers: usize,
    /// Number of rounds, each of which has every fault once.
    pub rounds: u64,
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// What comes over the nodes.
    pub turns: Turns,
    /// Whether a pooler is between the nodes and Postgres.
    pub has_pooler: bool,
}

/// What comes over the nodes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// Each fault once, at a node of chance.
    Faults,
    /// Another version, one node after the other, and back.
    Versions,
    /// The same, while clocks of nodes are set.
    VersionsAndClocks,
    /// Each fault once, while nodes are replaced and their clocks are set, beside 2,000 rows of dead nodes.
    Age,
}

impl Turns {
    /// Whether each node has a wall clock of its own.
    fn sets_clocks(self) -> bool {
        matches!(self, Self::VersionsAndClocks | Self::Age)
    }

    /// Whether nodes begin with the former version.
    fn begins_with_former(self) -> bool {
        matches!(self, Self::Versions | Self::VersionsAndClocks)
    }
}

/// A fault of one node, or of what all nodes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server is killed; its keeper starts another one.
    KillServer,
    /// Server and keeper are killed; a service manager starts both after a while.
    KillService,
    /// Server and keeper are halted for longer than the lease.
    Freeze,
    /// The node does not reach Postgres; clients reach the node.
    CutFromStore,
    /// No client and no other node reaches the node; the node reaches Postgres.
    CutFromClients,
    /// The pooler is killed.
    KillPooler,
    /// Postgres crashes and starts again.
    CrashPostgres,
    /// The server is replaced by one of this version.
    Upgrade(&'static str),
    /// Server and keeper are killed, and a service manager starts this version.
    Replace(&'static str),
    /// The wall clock of the node is set: so many seconds ahead of that of the host.
    SetClock(i64),
    /// The node is drained and stopped for good, and another one of its name takes its place, without its data.
    ReplaceStopped,
    /// The node dies with its data, another one of its name takes its place, and an operator removes the dead one.
    ReplaceDead,
}

const FAULTS: [Fault; 7] = [
    Fault::CutFromStore,
    Fault::KillService,
    Fault::Freeze,
    Fault::CutFromClients,
    Fault::KillServer,
    Fault::CrashPostgres,
    Fault::KillPooler,
];

/// The former version and the next one, as `.ci/versions` has built them.
const VERSIONS: [&str; 2] = ["former", "next"];

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;

impl Turns {
    /// Returns what comes over which node of so many, in order.
    fn of_round(self, nodes: usize, chance: &mut Chance) -> Vec<(Fault, usize)> {
        if self == Self::Faults {
            let faults = FAULTS.into_iter().enumerate();
            let at = |(turn, fault)| (fault, (turn + chance.index(nodes)) % nodes);
            return faults.map(at).collect();
        }
        if self == Self::Age {
            let replaced = [Fault::ReplaceStopped, Fault::ReplaceDead].repeat(2);
            let clocks = [MINUTE, -HOUR, HOUR, -MINUTE].map(Fault::SetClock);
            let pairs = clocks.into_iter().zip(replaced);
            let mut faults: Vec<Fault> = pairs.flat_map(|(clock, new)| [clock, new]).collect();
            for (turn, fault) in FAULTS.into_iter().enumerate() {
                faults.insert((turn * 2).min(faults.len()), fault);
            }
            let mut at = |fault| (fault, chance.index(nodes));
            return faults.into_iter().map(&mut at).collect();
        }
        let mut turns = Vec::new();
        let [former, next] = VERSIONS;
        for (version, clocks) in [(next, [HOUR, -HOUR, 0]), (former, [0, 0, -HOUR])] {
            for node in 0..nodes {
                turns.push((Fault::Upgrade(version), node));
                if self == Self::VersionsAndClocks {
                    turns.push((Fault::SetClock(clocks[node % clocks.len()]), node));
                }
            }
            // From here on this node's keeper has that version too, unlike the other two.
            turns.push((Fault::Replace(version), 1 % nodes));
        }
        turns
    }
}

/// A node with its two relays.
struct Node {
    id: String,
    kennel: Kennel,
    clock: Option<WallClock>,
    door: Relay,
    store: Relay,
    _dir: TempDir,
}

/// Chance, the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below this one.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or_default()
    }
}

/// Where the parts of a proof find the nodes.
#[derive(Clone, Debug)]
pub(crate) struct Doors(Arc<Vec<PathBuf>>);

impl Doors {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn of(&self, node: usize) -> &PathBuf {
        &self.0[node]
    }
}

/// Lets faults come over nodes while runs come and go, and checks every answer.
///
/// # Panics
/// If an answer was false, a process was signalled without a wish for its end, or anything is left.
pub async fn prove(plan: Plan) -> Tally {
    let began = Instant::now();
    let mut postgres = Postgres::start().await;
    let mut pooler = PgBouncer::with_sessions(&postgres, SESSIONS).await;
    let witness = Arc::new(Witness::start());
    let store = if plan.has_pooler {
        Store::of_pooler(&pooler)
    } else {
        Store::of_postgres(&postgres)
    };
    let ledger = Arc::new(Ledger::new(Arc::clone(&witness), plan.nodes));
    let mut nodes = Vec::new();
    for number in 0..plan.nodes {
        nodes.push(Node::start(number, plan.turns, &store, &ledger).await);
    }
    if plan.turns == Turns::Age {
        add_dead_nodes(&postgres).await;
    }
    let doors = Doors(Arc::new(
        nodes.iter().map(|node| node.door.path()).collect(),
    ));
    let mut load = load::start(plan, &doors, &ledger);
    let mut chance = Chance::new(plan.seed);
    let mut round = 0;
    while !load.has_begun_all() || round < plan.rounds {
        for (fault, at) in plan.turns.of_round(plan.nodes, &mut chance) {
            ledger.log(&format!("round {round}: {fault:?} at node {at}"));
            match fault {
                Fault::KillPooler if !plan.has_pooler => continue,
                Fault::ReplaceStopped | Fault::ReplaceDead => {
                    replace(fault, at, &mut nodes, &plan, &store, &ledger).await;
                }
                _ => befall(fault, at, &mut nodes, &mut postgres, &mut pooler, &ledger).await,
            }
            if plan.turns != Turns::Faults {
                load.continues(plan.workers).await;
            }
        }
        round += 1;
    }
    ledger.log("no more faults");
    load.finish().await;
    let open = "SELECT count(*) FROM runs WHERE end_reason IS NULL";
    let left = "SELECT count(*) FROM left_stops";
    for (what, count) in [("no row is open", open), ("no stop is left", left)] {
        eventually_async(what, PATIENCE * 2, async || {
            (postgres.psql(count).await.trim() == "0").then_some(())
        })
        .await;
    }
    eventually("no process is left", PATIENCE, || {
        (witness.living() == 0).then_some(())
    })
    .await;
    ledger.tally(began.elapsed())
}

/// Adds rows of 2,000 nodes that ended long ago: one half in order, the other half without.
async fn add_dead_nodes(postgres: &Postgres) {
    let node = "'01ARZ3NDEKTSV4RRFFQ' || to_char(i, 'FM0000000')";
    let values = [
        ("node", node),
        ("name", "'dead' || i"),
        ("address", "'unix:/nowhere/kennel.sock'"),
        ("lease_us", "r.lease_us * (i % 2)"),
        ("heard_us", "r.heard_us - 3600000000"),
    ];
    postgres.copy_rows("nodes", "name = 'node0'", &values).await;
}

/// Ends a node for good, and starts another one of its name in its place.
async fn replace(
    fault: Fault,
    at: usize,
    nodes: &mut Vec<Node>,
    plan: &Plan,
    store: &Store,
    ledger: &Ledger,
) {
    let mut former = nodes.remove(at);
    let id = former.id.clone();
    ledger.is_gone(&id);
    if fault == Fault::ReplaceStopped {
        let drained = run_to_end(former.kennel.cli(&["drain"]), PATIENCE).await;
        if !drained.status.success() {
            ledger.is_wrong(format!("node {at} is not drained: {drained:?}"));
        }
        // A drained node begins no more runs.
        ledger.weather.keeper_dies(at);
        former.kennel.terminate(PATIENCE).await;
    }
    // Dropping the node kills all its processes, like a host crash.
    drop(former);
    ledger.weather.keeper_dies(at);
    nodes.insert(at, Node::start(at, plan.turns, store, ledger).await);
    ledger.weather.passed(at);
    if fault == Fault::ReplaceStopped {
        return;
    }
    let other = &nodes[(at + 1) % nodes.len()];
    eventually_async("the dead node is removed", PATIENCE, async || {
        let words = ["node", "forget", "--remove", &id];
        let removed = run_to_end(other.kennel.cli(&words), PATIENCE).await;
        removed.status.success().then_some(())
    })
    .await;
    ledger.weather.passed(at);
}

/// Lets a fault come over a node, and pass.
async fn befall(
    fault: Fault,
    at: usize,
    nodes: &mut [Node],
    postgres: &mut Postgres,
    pooler: &mut PgBouncer,
    ledger: &Ledger,
) {
    let weather = &ledger.weather;
    let node = &mut nodes[at];
    match fault {
        Fault::KillServer => {
            node.kennel.replace_server().await;
            weather.passed(at);
        }
        Fault::KillService | Fault::Replace(_) => {
            weather.keeper_dies(at);
            node.kennel.kill_service_after(|| {});
            if let Fault::Replace(version) = fault {
                node.kennel.install(&programs::version(version));
            }
            // Wait until answers that still call this node's runs live would be false.
            tokio::time::sleep(BEHIND_MAX + LONGER).await;
            // From here on the node may regain its lease before its runs' ends are recorded.
            weather.passed(at);
            node.kennel.restart().await;
            weather.keeper(at, node.kennel.keeper_pid());
            weather.passed(at);
        }
        Fault::Upgrade(version) => {
            node.kennel.install(&programs::version(version));
            let upgraded = run_to_end(node.kennel.cli(&["upgrade"]), PATIENCE * 2).await;
            let (said, errors) = (text(&upgraded), String::from_utf8_lossy(&upgraded.stderr));
            if !upgraded.status.success() {
                ledger.is_wrong(format!("node {at} is not upgraded: {said}{errors}"));
            }
            weather.passed(at);
        }
        Fault::SetClock(ahead) => {
            let clock = node.clock.as_ref().expect("it has one");
            clock.set(ahead);
            weather.passed(at);
        }
        Fault::Freeze => {
            let server = node.kennel.server().expect("it serves");
            let keeper = Proc::read(node.kennel.keeper_pid()).expect("own child");
            // Stop the keeper first: it would replace a hung server.
            for process in [&keeper, &server] {
                kill_exactly(process, Signal::SIGSTOP);
            }
            tokio::time::sleep(LONGER).await;
            for process in [&server, &keeper] {
                kill_exactly(process, Signal::SIGCONT);
            }
            weather.passed(at);
        }
        Fault::CutFromStore => {
            node.store.cut();
            tokio::time::sleep(LONGER).await;
            node.store.mend();
            weather.passed(at);
        }
        Fault::CutFromClients => {
            node.door.cut();
            tokio::time::sleep(LONGER).await;
            node.door.mend();
            weather.passed(at);
        }
        Fault::KillPooler => {
            pooler.kill();
            tokio::time::sleep(LONGER / 2).await;
            pooler.run().await;
            weather.all_passed();
        }
        Fault::ReplaceStopped | Fault::ReplaceDead => unreachable!("not a fault that passes"),
        Fault::CrashPostgres => {
            postgres.crash().await;
            tokio::time::sleep(LONGER / 2).await;
            postgres.run().await;
            weather.all_passed();
        }
    }
}

/// Where nodes find their database.
struct Store {
    socket: PathBuf,
    /// Makes the `--store` value of a socket in another directory.
    url_in: fn(&Path) -> String,
}

impl Store {
    fn of_pooler(pooler: &PgBouncer) -> Self {
        Self {
            socket: pooler.socket(),
            url_in: PgBouncer::url_of,
        }
    }

    fn of_postgres(postgres: &Postgres) -> Self {
        Self {
            socket: postgres.socket_dir().join(".s.PGSQL.5432"),
            url_in: Postgres::url_of,
        }
    }
}

impl Node {
    /// Starts a node, and lets clients reach it when the ledger knows it.
    async fn start(number: usize, turns: Turns, to: &Store, ledger: &Ledger) -> Self {
        let dir = tempfile::Builder::new().prefix("kennel-relay-").tempdir();
        let dir = dir.expect("a temporary directory can be made");
        let name = to.socket.file_name().expect("it has one");
        let store = Relay::start(dir.path().join(name), to.socket.clone());
        let scratch = tempfile::Builder::new().prefix("kennel-test-").tempdir();
        let scratch = scratch.expect("a temporary directory can be made");
        let at = ledger.door(number);
        let advertised = format!("unix:{}", at.display());
        let words = [
            "--node-name".to_owned(),
            format!("node{number}"),
            "--node-lease".to_owned(),
            LEASE.to_owned(),
            "--advertise".to_owned(),
            advertised,
        ];
        let clock = turns.sets_clocks().then(|| WallClock::new(scratch.path()));
        let former = || programs::version(VERSIONS[0]);
        let options = Options {
            words: words.map(|word| &*word.leak()).into(),
            own_binary: turns.begins_with_former().then(former),
            env: clock.as_ref().map_or_else(Vec::new, WallClock::variables),
            ..Options::on(&(to.url_in)(dir.path()))
        };
        let target = Kennel::socket_in(scratch.path());
        let kennel = Kennel::start_in(scratch, options).await;
        let info = kennel.client().await.server_info().await;
        let id = info.expect("it serves").node_id;
        ledger.is_node(number, &id);
        ledger.weather.keeper(number, kennel.keeper_pid());
        // The previous node left this socket.
        let _ = fs::remove_file(&at);
        let door = Relay::start(at, target);
        Self {
            id,
            kennel,
            clock,
            door,
            store,
            _dir: dir,
        }
    }
}
