//! Cost of telemetry to a spawn: without any, with metrics collected, with all sent, and with all sent to a collector
//! that refuses it.

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

/// Returns the setup of a usual service: the variables of its collector, without the short intervals of tests.
fn telling(collector: &Collector) -> Options {
    let env = collector.env().into_iter();
    Options {
        env: env.filter(|(name, _)| name.contains("OTLP")).collect(),
        ..Options::default()
    }
}

/// Compared setups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setup {
    Off,
    Metrics,
    Sent,
    Unheard,
}

/// Forward and back again: a machine that becomes slower meanwhile does so for all alike.
const ORDER: [Setup; 8] = [
    Setup::Off,
    Setup::Metrics,
    Setup::Sent,
    Setup::Unheard,
    Setup::Unheard,
    Setup::Sent,
    Setup::Metrics,
    Setup::Off,
];

/// Means of both measurements of a setup.
struct Cost {
    p50_us: f64,
    runs: f64,
    seen: Vec<String>,
}

impl Cost {
    fn of(setup: Setup, measured: &[(Setup, Rates)]) -> Self {
        let of_setup = || measured.iter().filter(|(of, _)| *of == setup);
        let mean = |value: fn(&Rates) -> f64| {
            let values: Vec<f64> = of_setup().map(|(_, rates)| value(rates)).collect();
            let count = u32::try_from(values.len()).map_or(f64::MAX, f64::from);
            values.iter().sum::<f64>() / count
        };
        Self {
            p50_us: mean(Rates::p50_us),
            runs: mean(Rates::sixteen),
            seen: of_setup().map(|(_, rates)| rates.latency()).collect(),
        }
    }
}

/// Measures each setup twice in one run.
pub(crate) async fn measure(table: &mut Table) {
    let willing = Collector::start(Manner::Willing).await;
    let silent = Collector::start(Manner::Silent).await;
    // Warm-up: the first measurement would start on an idle machine, unlike later ones.
    rates(Options::default()).await;
    let mut measured = Vec::new();
    for setup in ORDER {
        let options = match setup {
            Setup::Off => Options::default(),
            Setup::Metrics => Options {
                words: vec!["--metrics-listen", "127.0.0.1:0"],
                ..Options::default()
            },
            Setup::Sent => telling(&willing),
            Setup::Unheard => telling(&silent),
        };
        measured.push((setup, rates(options).await));
    }
    let came = format!(
        "spans, events and metrics sent ({} and {} came)",
        willing.spans().len(),
        willing.records().len()
    );
    let off = Cost::of(Setup::Off, &measured);
    for (setup, what) in [
        (Setup::Off, "telemetry off"),
        (Setup::Metrics, "metrics kept for Prometheus"),
        (Setup::Sent, came.as_str()),
        (Setup::Unheard, "to a collector that never answers"),
    ] {
        report(table, what, &Cost::of(setup, &measured), &off);
    }
}

fn report(table: &mut Table, what: &str, cost: &Cost, off: &Cost) {
    let (latency, rate) = (cost.p50_us / off.p50_us, cost.runs / off.runs);
    table.fact(
        &format!("{what}: spawn, p50 / p99"),
        &format!("{} ({latency:.2} x off)", cost.seen.join(" and ")),
    );
    table.fact(
        &format!("{what}: runs/s at 16 clients"),
        &format!("{:.0} ({rate:.2} x off)", cost.runs),
    );
}
