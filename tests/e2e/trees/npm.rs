//! npm: its scripts are shells in shells, and an install script may leave a process running.

use super::{Work, abort_leaves_nothing, end_leaves_nothing};
use kennel_proto::pb::RunSpec;
use kennel_tests::{Options, SpecExt, argv};
use std::{fs, path::Path};

/// Leaves a process in a session of its own.
const LEAVE: &str = "setsid sleep 600 </dev/null >/dev/null 2>&1 &";

// promise: T-80
#[tokio::test(flavor = "multi_thread")]
async fn aborted_install_leaves_no_process() {
    // Expected: npm, the script's shell, an inner shell, two sleeps.
    abort_leaves_nothing(
        Options::default().without_cgroup(),
        install,
        "installing",
        5,
    )
    .await;
}

// promise: T-80
#[tokio::test(flavor = "multi_thread")]
async fn finished_install_leaves_no_process() {
    end_leaves_nothing(Options::default(), install).await;
}

// promise: T-80a
#[tokio::test(flavor = "multi_thread")]
async fn aborted_scripts_leave_no_process() {
    // Expected: two npms, and the shells and sleeps of both.
    abort_leaves_nothing(Options::default(), scripts, "working", 6).await;
}

// promise: T-80a
#[tokio::test(flavor = "multi_thread")]
async fn finished_scripts_leave_no_process() {
    end_leaves_nothing(Options::default().without_cgroup(), scripts).await;
}

/// Returns `npm install` of a local package, with an install script.
fn install(scratch: &Path, work: Work) -> RunSpec {
    let script = match work {
        Work::Stays => format!("{LEAVE} sh -c 'sh -c \"echo installing; sleep 600\"; true'"),
        Work::Ends => format!("{LEAVE} sh -c 'sh -c \"echo installing\"; true'"),
    };
    package(
        &scratch.join("part"),
        "part",
        &[("install", "sh ./install.sh")],
        "{}",
    );
    fs::write(scratch.join("part/install.sh"), script).expect("written");
    package(
        &scratch.join("app"),
        "app",
        &[],
        "{\"part\": \"file:../part\"}",
    );
    npm(
        scratch,
        &["install", "--install-links", "--foreground-scripts"],
    )
}

/// Returns `npm run` of a script that runs another one.
fn scripts(scratch: &Path, work: Work) -> RunSpec {
    let inner = match work {
        Work::Stays => "sh -c 'sleep 600 & echo working; sleep 600'",
        Work::Ends => "sh -c 'echo working'",
    };
    let outer = format!("{LEAVE} npm run inner");
    package(
        &scratch.join("app"),
        "app",
        &[("outer", &outer), ("inner", inner)],
        "{}",
    );
    npm(scratch, &["run", "outer"])
}

fn package(dir: &Path, name: &str, scripts: &[(&str, &str)], dependencies: &str) {
    fs::create_dir(dir).expect("made");
    let scripts: serde_json::Map<_, _> = scripts
        .iter()
        .map(|(name, script)| ((*name).to_owned(), (*script).into()))
        .collect();
    let dependencies: serde_json::Value = serde_json::from_str(dependencies).expect("JSON");
    let manifest = serde_json::json!({
        "name": name,
        "version": "1.0.0",
        "scripts": scripts,
        "dependencies": dependencies,
    });
    fs::write(dir.join("package.json"), manifest.to_string()).expect("written");
}

fn npm(scratch: &Path, words: &[&str]) -> RunSpec {
    let mut all = vec![
        "npm",
        "--offline",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
    ];
    all.extend_from_slice(words);
    let mut spec = argv(&all).env(
        "npm_config_cache",
        &scratch.join("cache").display().to_string(),
    );
    spec.cwd = Some(scratch.join("app").display().to_string());
    spec
}
