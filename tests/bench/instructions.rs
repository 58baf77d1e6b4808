//! User instructions of the server for one silent run, as callgrind counts them: unlike times, they are the same on a busy
//! machine. Neither keeper nor shim runs under it.

use crate::{counts::one_after_another, table::Table};
use kennel_tests::{
    Kennel, Options, PATIENCE, eventually_async, must, programs, shell::run_to_end,
};
use std::{fs, path::Path, process::Command};

/// Runs before anything is counted.
const WARM_UP: usize = 50;
/// Runs that are counted.
const COUNTED: usize = 200;

pub(crate) async fn measure(table: &mut Table) {
    const WHAT: &str = "silent run: user instructions of the server";
    match counted().await {
        Ok(each) => table.fact(WHAT, &format!("{:.0} k", each / 1000.0)),
        Err(why) => table.not_measured(WHAT, &why),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below")]
async fn counted() -> Result<f64, String> {
    let there = Command::new("valgrind").arg("--version").output();
    there.map_err(|error| format!("valgrind: {error}"))?;
    let real = programs::kennel();
    let kennel = Kennel::start(Options {
        own_binary: Some(real.clone()),
        ..Options::default()
    })
    .await;
    let out = kennel.scratch().join("counted");
    kennel.install_script(&format!(
        "#!/bin/sh\n[ \"$1\" = server ] && exec valgrind --tool=callgrind --callgrind-out-file={} {real} \"$@\"\nexec {real} \"$@\"\n",
        out.display(),
        real = real.display(),
    ));
    let upgraded = run_to_end(kennel.cli(&["upgrade"]), PATIENCE * 4).await;
    if !upgraded.status.success() {
        return Err(String::from_utf8_lossy(&upgraded.stderr).into_owned());
    }
    let server = kennel.server().ok_or("no server")?.pid.to_string();
    let mut client = kennel.client().await;
    one_after_another(&mut client, WARM_UP).await;
    let control = async |word: &str| {
        let mut control = Command::new("callgrind_control");
        control.args([word, &server]);
        let done = run_to_end(control, PATIENCE).await;
        assert!(done.status.success(), "callgrind_control {word}: {done:?}");
    };
    control("--zero").await;
    one_after_another(&mut client, COUNTED).await;
    control("--dump=counted").await;
    let total = eventually_async("it is written", PATIENCE, async || total(kennel.scratch())).await;
    Ok(total as f64 / COUNTED as f64)
}

/// Returns the sum of the first dump.
fn total(dir: &Path) -> Option<u64> {
    let dumps = must("dir", fs::read_dir(dir)).flatten();
    let mut dumps = dumps.filter(|file| file.file_name().to_string_lossy().starts_with("counted."));
    let text = fs::read_to_string(dumps.next()?.path()).ok()?;
    let mut sums = text.lines().filter_map(|line| {
        line.strip_prefix("summary: ")
            .or(line.strip_prefix("totals: "))
    });
    sums.next()?.trim().parse().ok()
}
