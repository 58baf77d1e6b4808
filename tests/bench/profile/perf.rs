//! Samples of perf(1), where it is installed and allowed.

use super::WARM_UP;
use crate::counts::one_after_another;
use kennel_tests::Kennel;
use std::{
    path::Path,
    process::{Command, Stdio},
};

/// Runs that are sampled.
const SAMPLED: usize = 300;
/// Samples per second; no multiple of a timer's.
const RATE: &str = "1999";
/// Lines of a report.
const LINES: usize = 20;

pub(super) async fn measure() -> Result<String, String> {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    one_after_another(&mut client, WARM_UP).await;
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let data = dir.path().join("perf.data");
    let pids = [Some(kennel.keeper_pid()), kennel.server().map(|s| s.pid)];
    let pids: Vec<String> = pids
        .into_iter()
        .flatten()
        .map(|pid| pid.to_string())
        .collect();
    let mut perf = Command::new("perf");
    perf.args([
        "record",
        "--quiet",
        "--inherit",
        "-F",
        RATE,
        "-p",
        &pids.join(","),
    ]);
    perf.arg("-o")
        .arg(&data)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // perf samples until its command `cat` exits, that is, until stdin closes.
    perf.args(["--", "cat"]).stdin(Stdio::piped());
    let mut perf = perf
        .spawn()
        .map_err(|error| format!("perf(1): {error}; everything above does without it"))?;
    one_after_another(&mut client, SAMPLED).await;
    drop(perf.stdin.take());
    let _ = perf.wait();
    let mut text = report(&data, "comm,dso")?;
    text.push('\n');
    text.push_str(&report(&data, "comm,symbol")?);
    Ok(text)
}

/// Returns the heaviest lines of one order.
fn report(data: &Path, by: &str) -> Result<String, String> {
    let mut perf = Command::new("perf");
    perf.args(["report", "--stdio", "-g", "none", "--sort", by, "-i"])
        .arg(data);
    let output = perf
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.map(words).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.take(LINES).collect();
    if lines.is_empty() {
        return Err("perf(1) took no sample: it may not be allowed to".into());
    }
    Ok(lines.join("\n") + "\n")
}

/// Removes the spaces with which perf fills its columns.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
