//! `make bench`: Kennel beside its floors, in one run on one machine, with the targets of PERFORMANCE.md.
//!
//! Ratios are the result; absolute values belong to the machine. What could not be measured and what is not reached is
//! printed like the rest. `bench spawn`, `bench counts`, `bench tree`, `bench fleet`, `bench restart`, `bench output`,
//! `bench idle` and `bench telemetry` measure a part; `bench fleet 100` takes a hundred trees. `bench profile` is `make profile`.
//!
//! All of it runs in a pid namespace, so that nothing is left even when it is killed.

mod counts;
mod fleet;
mod floor;
mod idle;
mod inside;
mod output;
mod peers;
mod profile;
mod restart;
mod spawn;
mod table;
mod telemetry;
mod tree;

use kennel_tests::{Kennel, Options, Postgres};
use std::path::Path;
use table::{Goal, Table};

/// Trees that are aborted at once where no number is named.
const FLEET: usize = 1000;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let serves = words.first().is_some_and(|word| word == floor::WORD);
    // Before the runtime has threads, so that all of them leave the signals alone.
    if !serves && inside::start_again(&words) {
        return;
    }
    measure(&words);
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
        let bare = floors(&mut table).await;
        spawns(&mut table, &bare).await;
    }
    if wanted("counts") {
        counts::measure(&mut table).await;
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
    if wanted("idle") {
        idle::measure(&mut table).await;
    }
    if wanted("telemetry") {
        telemetry::measure(&mut table).await;
    }
    table.print();
}

/// What the same machine gives without gate, store, tree and journal.
async fn floors(table: &mut Table) -> spawn::Rates {
    let raw = floor::posix_spawn();
    table.fact(
        "raw posix_spawn, p50 / p99",
        &format!("{} / {}", raw.p50(), raw.p99()),
    );
    let bare = floor::Bare::start().await;
    let rates = spawn::measure(bare.socket()).await;
    table.fact("bare tonic spawner, 1 client, p50 / p99", &rates.latency());
    table.fact(
        "bare tonic spawner, runs/s at 1 client",
        &format!("{:.0}", rates.one),
    );
    table.fact(
        "bare tonic spawner, runs/s at 16 clients",
        &format!("{:.0}", rates.sixteen),
    );
    rates
}

async fn spawns(table: &mut Table, bare: &spawn::Rates) {
    let kennel = Kennel::on_sqlite().await;
    report(
        table,
        "SQLite",
        &spawn::measure(&kennel.socket()).await,
        bare,
    );
    drop(kennel);
    let postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    report(
        table,
        "Postgres",
        &spawn::measure(&kennel.socket()).await,
        bare,
    );
    drop((kennel, postgres));
    match Postgres::start_with_slow_flush().await {
        Ok(postgres) => {
            let kennel = Kennel::start(Options::on(&postgres.url())).await;
            let rates = spawn::measure(&kennel.socket()).await;
            report(table, "Postgres, +1 ms a flush", &rates, bare);
        }
        Err(why) => table.not_measured("Postgres, +1 ms a flush", &why),
    }
    table.not_measured(
        "SQLite, +1 ms a flush",
        "nothing delays the flushes of a process that forbids to be traced",
    );
}

fn report(table: &mut Table, store: &str, rates: &spawn::Rates, bare: &spawn::Rates) {
    let ratio = rates.p50_us() / bare.p50_us();
    table.goal(
        &format!("{store}: spawn, 1 client, p50 / p99"),
        &rates.latency(),
        &format!("{ratio:.1} x bare"),
        Goal::at_most("5 x bare", 5.0).met_by(ratio),
    );
    table.fact(
        &format!("{store}: runs/s at 1 client"),
        &format!("{:.0}", rates.one),
    );
    let ratio = rates.sixteen / bare.sixteen;
    table.goal(
        &format!("{store}: runs/s at 16 clients"),
        &format!("{:.0}", rates.sixteen),
        &format!("{ratio:.2} x bare"),
        Goal::at_least("0.4 x bare", 0.4).met_by(ratio),
    );
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

/// Of all its trees.
fn survivors(found: &tree::Found) -> String {
    format!(
        "{} of {} survive",
        found.survivors,
        tree::TREES * tree::TREE_LEN
    )
}
