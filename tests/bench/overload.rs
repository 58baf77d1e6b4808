//! Two hundred clients that spawn without a pause, and the latency of other calls meanwhile.

use crate::table::{Goal, Table, Times};
use kennel_tests::{Kennel, Overload};
use std::time::Duration;

/// Clients at once.
const CLIENTS: usize = 200;
/// Duration of the load.
const LASTS: Duration = Duration::from_mins(1);
/// Target for the slowest hundredth of other calls.
const LATENCY_MS: f64 = 50.0;

#[expect(clippy::cast_precision_loss, reason = "counts and bytes are small")]
pub(crate) async fn measure(table: &mut Table) {
    let kennel = Kennel::on_sqlite().await;
    let found = Overload::run(&kennel, CLIENTS, LASTS).await;
    let name = format!("overload, {CLIENTS} clients");
    table.goal(
        &format!("{name}: failures without a typed reason"),
        &found.untyped.len().to_string(),
        &format!("of {} spawns, {:?} refused", found.spawned, found.refused),
        Goal::at_most("0", 0.0).met_by(found.untyped.len() as f64),
    );
    table.fact(
        &format!("{name}: runs/s"),
        &format!("{:.0}", found.spawned as f64 / LASTS.as_secs_f64()),
    );
    for (what, took) in [
        ("Abort", &found.aborts),
        ("GetServerInfo, GetRun", &found.questions),
    ] {
        let mut times = Times::default();
        for took in took {
            times.push(*took);
        }
        table.goal(
            &format!("{name}: {what} meanwhile, p50 / p99"),
            &format!("{} / {}", times.p50(), times.p99()),
            &format!("{} calls", took.len()),
            Goal::at_most(&format!("{LATENCY_MS} ms"), LATENCY_MS).met_by(times.p99_us() / 1000.0),
        );
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    table.fact(
        &format!("{name}: most memory, server / all"),
        &format!(
            "{:.0} / {:.0} MiB",
            mib(found.server_peak),
            mib(found.memory_peak)
        ),
    );
}
