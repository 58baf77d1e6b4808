//! `make bench`: Kennel beside its floors, in one run on one machine, with the targets of PERFORMANCE.md.
//!
//! Ratios are the result; absolute values belong to the machine. What could not be measured and what is not reached is
//! printed like the rest, and left in `target/bench.json`. `bench spawn`, `bench overload`, `bench start`, `bench counts`, `bench instructions`, `bench tree`, `bench fleet`, `bench restart`, `bench output`,
//! `bench tls`, `bench quota`, `bench flood`, `bench idle` and `bench telemetry` measure a part; `bench fleet 100` takes a hundred trees, `bench tls 2` two rounds. `bench profile` is `make profile`, `bench growth` is
//! `make growth`. `bench fleet-store` simulates the leases and spawns of up to 10,000 nodes on one Postgres, `bench history`
//! fills a Postgres with up to 300,000 ended runs; a number takes that size alone. Neither is part of the whole.
//!
//! All of it runs in a pid namespace, so that nothing is left even when it is killed.

mod counts;
mod fleet;
mod fleet_store;
mod flood;
mod floor;
mod growth;
mod idle;
mod inside;
mod instructions;
mod output;
mod overload;
mod peers;
mod profile;
mod quota;
mod restart;
mod spawn;
mod start;
mod table;
mod telemetry;
mod tls;
mod tree;

use kennel_tests::{Kennel, Options, Postgres};
use nix::sys::resource::{Resource, setrlimit};
use spawn::{FLOWS, Flow};
use std::path::{Path, PathBuf};
use table::{Goal, Table};

/// Default number of trees that are aborted at once.
const FLEET: usize = 1000;

/// Returns the directory of results.
fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    target.map_or_else(|| "target".into(), PathBuf::from)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let serves = words.first().is_some_and(|word| word == floor::WORD);
    // Called before the runtime starts threads, so that all inherit the signal mask.
    if !serves && inside::start_again(&words) {
        return;
    }
    raise_open_files();
    measure(&words);
}

/// Raises the number of open files that servers may have, for 5,000 live runs. Where that is not permitted, runs are
/// refused, and the table says so.
fn raise_open_files() {
    const OPEN_FILES: u64 = 65_536;
    let _ = setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES);
}

#[tokio::main]
async fn measure(words: &[String]) {
    if let [word, socket] = words
        && word == floor::WORD
    {
        return floor::serve(Path::new(socket)).await;
    }
    if words == ["profile"] {
        return profile::measure().await;
    }
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    let mut table = Table::default();
    if wanted("spawn") {
        spawns(&mut table).await;
    }
    if wanted("overload") {
        overload::measure(&mut table).await;
    }
    if wanted("start") {
        start::measure(&mut table).await;
    }
    if wanted("counts") {
        counts::measure(&mut table).await;
    }
    if wanted("instructions") {
        instructions::measure(&mut table).await;
    }
    if wanted("tree") {
        trees(&mut table).await;
    }
    if wanted("fleet") {
        let trees = words.iter().find_map(|word| word.parse().ok());
        fleet::measure(&mut table, trees.unwrap_or(FLEET)).await;
    }
    if wanted("restart") {
        restart::measure(&mut table).await;
    }
    if wanted("output") {
        output::measure(&mut table).await;
    }
    if wanted("tls") {
        let rounds = words.iter().find_map(|word| word.parse().ok());
        tls::measure(&mut table, rounds).await;
    }
    if wanted("quota") {
        quota::measure(&mut table).await;
    }
    if wanted("flood") {
        flood::measure(&mut table).await;
    }
    if wanted("idle") {
        idle::measure(&mut table).await;
    }
    // Parts that take minutes or hours run only if named.
    let named = |part: &str| words.iter().any(|word| word == part);
    let sizes: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if named("growth") {
        growth::measure(&mut table, &sizes).await;
    }
    if named("fleet-store") {
        fleet_store::leases(&mut table, &sizes).await;
    }
    if named("history") {
        fleet_store::history(&mut table, &sizes).await;
    }
    if wanted("telemetry") {
        telemetry::measure(&mut table).await;
    }
    table.print();
}

/// Measures Kennel on each store, and the same machine without gate, store, tree and journal.
async fn spawns(table: &mut Table) {
    let raw = floor::posix_spawn();
    table.fact(
        "raw posix_spawn, p50 / p99",
        &format!("{} / {}", raw.p50(), raw.p99()),
    );
    let bare = floor::Bare::start().await;
    let sqlite = Kennel::on_sqlite().await;
    let postgres = Postgres::start().await;
    let on_postgres = Kennel::start(Options::on(&postgres.url())).await;
    let mut servers = vec![
        bare.socket().to_owned(),
        sqlite.socket(),
        on_postgres.socket(),
    ];
    let slow = match Postgres::start_with_slow_flush().await {
        Ok(postgres) => {
            let kennel = Kennel::start(Options::on(&postgres.url())).await;
            servers.push(kennel.socket());
            Some((kennel, postgres))
        }
        Err(why) => {
            table.not_measured("Postgres, +1 ms a flush", &why);
            None
        }
    };
    for (flow, name) in FLOWS {
        let rates = spawn::in_turn(&servers, flow).await;
        let [bare, of_kennel @ ..] = &rates[..] else {
            return;
        };
        table.fact(
            &format!("{name}: bare tonic spawner, p50 / p99"),
            &bare.latency(),
        );
        table.fact(
            &format!("{name}: bare tonic spawner, runs/s at 1 / 16 clients"),
            &format!("{:.0} / {:.0}", bare.one(), bare.sixteen()),
        );
        for (rates, (store, limit)) in of_kennel.iter().zip([("SQLite", 3.0), ("Postgres", 3.5)]) {
            report(table, (flow, name, store), rates, bare, limit);
        }
        if let [_, prompt, slow] = of_kennel {
            let kept = slow.sixteen_to(prompt);
            table.goal(
                &format!("{name}: Postgres, +1 ms a flush, runs/s at 16 clients"),
                &format!("{:.0}", slow.sixteen()),
                &format!("{kept:.2} x without"),
                Goal::at_least("0.8 x without", 0.8).met_by(kept),
            );
        }
    }
    drop(slow);
    table.not_measured(
        "SQLite, +1 ms a flush",
        "nothing delays the flushes of a process that forbids to be traced",
    );
}

/// Reports the rates. The targets are those of a caller that waits; the other flow flatters, since its floor is slowed
/// by children that exit meanwhile.
fn report(
    table: &mut Table,
    (flow, name, store): (Flow, &str, &str),
    rates: &spawn::Rates,
    bare: &spawn::Rates,
    limit: f64,
) {
    let ratio = rates.p50_to(bare);
    let what = format!("{name}: {store}, Spawn by 1 client, p50 / p99");
    let ratios = format!("{ratio:.1} x bare");
    if flow == Flow::Wait {
        let goal = Goal::at_most(&format!("{limit} x bare"), limit).met_by(ratio);
        table.goal(&what, &rates.latency(), &ratios, goal);
        let tail = rates.tail();
        table.goal(
            &format!("{name}: {store}, p99 / p50"),
            &format!("{tail:.1}"),
            &format!("bare {:.1}", bare.tail()),
            Goal::at_most("4", 4.0).met_by(tail),
        );
    } else {
        table.compared(&what, &rates.latency(), &ratios);
    }
    let ratio = rates.sixteen_to(bare);
    let what = format!("{name}: {store}, runs/s at 1 / 16 clients");
    let (value, ratios) = (
        format!("{:.0} / {:.0}", rates.one(), rates.sixteen()),
        format!("{ratio:.2} x bare at 16"),
    );
    if flow == Flow::Wait {
        let goal = Goal::at_least("0.5 x bare", 0.5).met_by(ratio);
        table.goal(&what, &value, &ratios, goal);
    } else {
        table.compared(&what, &value, &ratios);
    }
}

async fn trees(table: &mut Table) {
    for (what, found) in [
        ("cgroup.kill alone", peers::cgroup_kill().await),
        ("a loop of killpg", Ok(peers::killpg_loop().await)),
        ("supervisord", peers::supervisord().await),
    ] {
        let what = format!("51-process tree, {what}, p50 / p99");
        match found {
            Ok(found) => table.compared(&what, &latency(&found), &survivors(&found)),
            Err(why) => table.not_measured(&what, &why),
        }
    }
    for (what, options, limit_ms) in [
        ("control group", Options::default(), 2.5),
        (
            "no control group",
            Options::default().without_cgroup(),
            10.0,
        ),
    ] {
        let found = tree::measure(options).await;
        table.goal(
            &format!("51-process tree, abort to ended, {what}, p50 / p99"),
            &latency(&found),
            &survivors(&found),
            Goal::at_most(&format!("{limit_ms} ms, 0 survive"), limit_ms).met_by(
                if found.survivors > 0 {
                    f64::INFINITY
                } else {
                    found.took.p50_us() / 1000.0
                },
            ),
        );
    }
}

fn latency(found: &tree::Found) -> String {
    format!("{} / {}", found.took.p50(), found.took.p99())
}

/// Returns the survivors of all its trees.
fn survivors(found: &tree::Found) -> String {
    format!(
        "{} of {} survive",
        found.survivors,
        tree::TREES * tree::TREE_LEN
    )
}
