//! What telemetry costs a spawn: nothing told, metrics kept, spans sent, and spans that nobody takes.

use crate::{
    spawn::{self, Rates},
    table::Table,
};
use kennel_tests::{
    Kennel, Options,
    collector::{Collector, Manner},
};

async fn rates(options: Options) -> Rates {
    let kennel = Kennel::start(options).await;
    spawn::measure(&kennel.socket()).await
}

/// As a service would be set up: the variables of its collector, but for the haste of tests.
fn telling(collector: &Collector) -> Options {
    let env = collector.env().into_iter();
    Options {
        env: env.filter(|(name, _)| name.contains("OTLP")).collect(),
        ..Options::default()
    }
}

/// All in one run, with a second look at the first at the end: how much the machine itself varies.
pub(crate) async fn measure(table: &mut Table) {
    let off = rates(Options::default()).await;
    table.fact("telemetry off: spawn, p50 / p99", &off.latency());
    table.fact(
        "telemetry off: runs/s at 16 clients",
        &format!("{:.0}", off.sixteen),
    );
    let scraped = Options {
        words: vec!["--metrics-listen", "127.0.0.1:0"],
        ..Options::default()
    };
    report(
        table,
        "metrics kept for Prometheus",
        &rates(scraped).await,
        &off,
    );
    let collector = Collector::start(Manner::Willing).await;
    let told = rates(telling(&collector)).await;
    let spans = collector.spans().len();
    report(
        table,
        &format!("spans and metrics sent ({spans} spans came)"),
        &told,
        &off,
    );
    let silent = Collector::start(Manner::Silent).await;
    let lost = rates(telling(&silent)).await;
    report(table, "to a collector that never answers", &lost, &off);
    report(
        table,
        "telemetry off, once more",
        &rates(Options::default()).await,
        &off,
    );
}

fn report(table: &mut Table, what: &str, rates: &Rates, off: &Rates) {
    let (latency, rate) = (rates.p50_us() / off.p50_us(), rates.sixteen / off.sixteen);
    table.fact(
        &format!("{what}: spawn, p50 / p99"),
        &format!("{} ({latency:.2} x off)", rates.latency()),
    );
    table.fact(
        &format!("{what}: runs/s at 16 clients"),
        &format!("{:.0} ({rate:.2} x off)", rates.sixteen),
    );
}
