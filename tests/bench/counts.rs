//! Cost of one silent run, counted: `/bin/true`, which writes nothing, spawned and waited for one after another.
//!
//! System calls come from strace(1) on a server that is traced for nothing else. Context switches, page faults and
//! processor time come from rusage of two lives of a server, with and without the runs: the cost of a life itself
//! cancels out.

use crate::{
    floor::Bare,
    table::{Goal, Table},
};
use kennel_tests::{
    Client, Kennel, SHUTDOWN_LIMIT, argv, must,
    strace::{self, Call, Changes, Role, Strace},
};
use nix::sys::{
    resource::{Usage, UsageWho, getrusage},
    time::TimeValLike,
};
use std::path::Path;
use tokio::task::JoinSet;

/// Runs before anything is counted.
const WARM_UP: usize = 50;
/// Runs that are traced.
const TRACED: usize = 100;
/// Runs of a life that is compared with one of none.
const LIVED: usize = 800;
/// Clients at once, if more than one.
const CLIENTS: usize = 16;

pub(crate) async fn measure(table: &mut Table) {
    match traced().await {
        Ok(counts) => counts.report(table),
        Err(why) => table.not_measured("silent run: system calls", &why),
    }
    let one = Costs::of_kennel(1).await;
    let many = Costs::of_kennel(CLIENTS).await;
    let bare = Costs::of_bare(1).await;
    let bare_many = Costs::of_bare(CLIENTS).await;
    let switches = |costs: &Costs, limit: f64| {
        Goal::at_most(&format!("{limit}"), limit).met_by(costs.switches)
    };
    table.goal(
        "silent run: context switches, client included, alone",
        &format!("{:.0}", one.switches),
        &format!("bare {:.0}", bare.switches),
        switches(&one, 80.0),
    );
    table.goal(
        &format!("silent run: context switches, client included, {CLIENTS} clients"),
        &format!("{:.0}", many.switches),
        &format!("bare {:.0}", bare_many.switches),
        switches(&many, 40.0),
    );
    table.goal(
        "silent run: page faults",
        &format!("{:.0}", one.faults),
        &format!("bare {:.0}", bare.faults),
        Goal::at_most("150", 150.0).met_by(one.faults),
    );
    table.goal(
        "silent run: processor time, client included",
        &format!("{:.2} ms", one.cpu_ms),
        &format!(
            "{:.1} x bare, {:.2} ms",
            one.cpu_ms / bare.cpu_ms,
            bare.cpu_ms
        ),
        Goal::at_most("2 x bare", 2.0).met_by(one.cpu_ms / bare.cpu_ms),
    );
}

/// System calls of one run.
#[derive(Default)]
struct Counts {
    made: f64,
    removed: f64,
    renamed: f64,
    groups: f64,
    syncs: f64,
    pwrites: f64,
    pwrites_to_database: f64,
    futex: f64,
    epoll: f64,
    keeper: f64,
    shim: f64,
    server: f64,
}

impl Counts {
    fn report(&self, table: &mut Table) {
        let both = |first: f64, second: f64, most: [f64; 2]| {
            let worse = (first - most[0]).max(second - most[1]);
            let (says, _) = Goal::at_most(&format!("{} / {}", most[0], most[1]), 0.0).met_by(0.0);
            (says, worse <= 0.0)
        };
        table.goal(
            "silent run: files and directories made / removed",
            &format!("{:.2} / {:.2}", self.made, self.removed),
            &format!(
                "{:.2} renamed, {:.2} control groups",
                self.renamed, self.groups
            ),
            both(self.made, self.removed, [2.0, 2.0]),
        );
        table.goal(
            "silent run: fsync and fdatasync",
            &format!("{:.2}", self.syncs),
            "",
            Goal::at_most("2", 2.05).met_by(self.syncs),
        );
        table.goal(
            "silent run: pwrite64 / to the database",
            &format!("{:.1} / {:.1}", self.pwrites, self.pwrites_to_database),
            "",
            both(self.pwrites, self.pwrites_to_database, [21.0, 14.0]),
        );
        let waits = self.futex + self.epoll;
        table.goal(
            "silent run: futex + epoll_wait of the server",
            &format!("{waits:.1}"),
            &format!("{:.1} + {:.1}", self.futex, self.epoll),
            Goal::at_most("20", 20.0).met_by(waits),
        );
        let ours = self.keeper + self.shim;
        table.goal(
            "silent run: system calls of keeper and shim",
            &format!("{ours:.0}"),
            &format!("{:.0} + {:.0}", self.keeper, self.shim),
            Goal::at_most("120", 120.0).met_by(ours),
        );
        table.fact(
            "silent run: system calls of the server",
            &format!("{:.0}", self.server),
        );
    }
}

async fn traced() -> Result<Counts, String> {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    one_after_another(&mut client, WARM_UP).await;
    let data = kennel.data_dir();
    let before = strace::listing(&data);
    let strace = Strace::attach(&kennel)?;
    one_after_another(&mut client, TRACED).await;
    let calls = strace.detach();
    let changes = Changes::below(&data, &before, &calls);
    let groups = Changes::below(Path::new("/sys/fs/cgroup"), &before, &calls);
    let of = |wanted: &dyn Fn(&Call) -> bool| per_run(calls.iter().filter(|c| wanted(c)).count());
    let server = |name: &'static str| move |c: &Call| c.role == Role::Server && c.name() == name;
    Ok(Counts {
        made: per_run(changes.made.len()),
        removed: per_run(changes.removed.len()),
        renamed: per_run(changes.renamed.len()),
        groups: per_run(groups.made.len()),
        syncs: of(&Call::is_sync),
        pwrites: of(&|c| c.name() == "pwrite64"),
        pwrites_to_database: of(&|c| c.name() == "pwrite64" && c.line.contains("/kennel.db")),
        futex: of(&server("futex")),
        epoll: of(&server("epoll_wait")),
        keeper: of(&|c| c.role == Role::Keeper),
        shim: of(&|c| c.role == Role::Shim),
        server: of(&|c| c.role == Role::Server),
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn per_run(count: usize) -> f64 {
    count as f64 / TRACED as f64
}

/// Cost of one run to all processes: client, server, keeper, shim, command.
struct Costs {
    switches: f64,
    faults: f64,
    cpu_ms: f64,
}

impl Costs {
    async fn of_kennel(clients: usize) -> Self {
        Self::between(
            &kennel_life(clients, 0).await,
            &kennel_life(clients, LIVED).await,
        )
    }

    async fn of_bare(clients: usize) -> Self {
        Self::between(
            &bare_life(clients, 0).await,
            &bare_life(clients, LIVED).await,
        )
    }

    /// Returns the difference of two lives.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn between(without: &Life, with: &Life) -> Self {
        let per_run =
            |figure: fn(&Life) -> i64| (figure(with) - figure(without)) as f64 / LIVED as f64;
        Self {
            switches: per_run(|life| life.switches),
            faults: per_run(|life| life.faults),
            cpu_ms: per_run(|life| life.cpu_us) / 1000.0,
        }
    }
}

/// Resource usage of this process and those that it has waited for.
struct Life {
    switches: i64,
    faults: i64,
    cpu_us: i64,
}

impl Life {
    fn now() -> Self {
        let own = must("getrusage", getrusage(UsageWho::RUSAGE_SELF));
        let children = must("getrusage", getrusage(UsageWho::RUSAGE_CHILDREN));
        let both = |figure: fn(&Usage) -> i64| figure(&own) + figure(&children);
        Self {
            switches: both(|u| u.voluntary_context_switches() + u.involuntary_context_switches()),
            faults: both(|u| u.minor_page_faults() + u.major_page_faults()),
            cpu_us: both(|u| u.user_time().num_microseconds() + u.system_time().num_microseconds()),
        }
    }

    fn since(&self) -> Self {
        let now = Self::now();
        Self {
            switches: now.switches - self.switches,
            faults: now.faults - self.faults,
            cpu_us: now.cpu_us - self.cpu_us,
        }
    }
}

async fn kennel_life(clients: usize, runs: usize) -> Life {
    let began = Life::now();
    let mut kennel = Kennel::on_sqlite().await;
    at_once(&kennel.socket(), clients, runs).await;
    kennel.terminate(SHUTDOWN_LIMIT).await;
    began.since()
}

async fn bare_life(clients: usize, runs: usize) -> Life {
    let began = Life::now();
    let bare = Bare::start().await;
    at_once(bare.socket(), clients, runs).await;
    drop(bare);
    began.since()
}

/// Spawns so many runs beyond the warm-up, by all clients together.
async fn at_once(socket: &Path, clients: usize, runs: usize) {
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let mut client = must("connect", Client::connect(socket).await);
        let count = (WARM_UP + runs) / clients;
        tasks.spawn(async move {
            for _ in 0..count {
                let run = must("spawn", client.spawn(argv(&["/bin/true"])).await);
                must("wait", client.ended(&run.run_id).await);
            }
        });
    }
    tasks.join_all().await;
}

pub(crate) async fn one_after_another(client: &mut Client, count: usize) {
    for _ in 0..count {
        let run = must("spawn", client.spawn(argv(&["/bin/true"])).await);
        must("wait", client.ended(&run.run_id).await);
    }
}
