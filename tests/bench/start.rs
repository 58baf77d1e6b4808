//! Cost of installation and start: the size of the binary, the start of a service, one call of the command line.

use crate::table::{Goal, Table, Times};
use kennel_tests::{Kennel, must, programs};
use std::{
    process::{Command, Stdio},
    time::Instant,
};

/// Starts of a service on an empty directory.
const STARTS: usize = 10;
/// Calls of the command line.
const CALLS: usize = 50;

#[expect(clippy::cast_precision_loss, reason = "a binary is small")]
pub(crate) async fn measure(table: &mut Table) {
    let size = must("the binary", std::fs::metadata(programs::kennel())).len() as f64 / 1e6;
    table.goal(
        "size of the binary",
        &format!("{size:.1} MB"),
        "",
        Goal::at_most("15 MB", 15.0).met_by(size),
    );
    let mut starts = Times::default();
    for _ in 0..STARTS {
        let began = Instant::now();
        let kennel = Kennel::on_sqlite().await;
        starts.push(began.elapsed());
        drop(kennel);
    }
    table.goal(
        "kennel serve, from its start to its first answer, p50 / p99",
        &format!("{} / {}", starts.p50(), starts.p99()),
        "asked every 5 ms",
        Goal::at_most("60 ms", 60.0).met_by(starts.p50_us() / 1000.0),
    );
    let kennel = Kennel::on_sqlite().await;
    let mut calls = Times::default();
    for _ in 0..CALLS {
        let began = Instant::now();
        let mut command = Command::new(programs::kennel());
        command.args(["--server", &kennel.address(), "ps", "-a"]);
        let status = command.stdout(Stdio::null()).status();
        assert!(must("kennel ps", status).success());
        calls.push(began.elapsed());
    }
    table.goal(
        "kennel ps, p50 / p99",
        &format!("{} / {}", calls.p50(), calls.p99()),
        "",
        Goal::at_most("8 ms", 8.0).met_by(calls.p50_us() / 1000.0),
    );
}
