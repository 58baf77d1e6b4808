//! cargo: a build script is a foreign program, and may leave a process running.

use super::{Work, abort_leaves_nothing, end_leaves_nothing};
use kennel_proto::pb::RunSpec;
use kennel_tests::{Options, SpecExt, argv};
use std::{env, fs, path::Path};

/// Variables with the paths of the tools, if these are not at the usual ones.
const TOOLCHAIN: [&str; 3] = ["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];

const MANIFEST: &str =
    "[package]\nname = \"tiny\"\nversion = \"1.0.0\"\nedition = \"2024\"\n[workspace]\n";

const BUILD_SCRIPT: &str = r#"
use std::process::{Command, Stdio};

fn main() {
    let left = Command::new("setsid").args(["sleep", "600"])
        .stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    left.expect("sleep starts");
    if std::env::var_os("STAYS").is_some() {
        let _ = Command::new("sh").args(["-c", "sleep 600; true"]).status();
    }
}
"#;

// promise: T-80e
#[tokio::test(flavor = "multi_thread")]
async fn aborted_build_leaves_no_process() {
    // Expected: cargo, the build script, a shell, two sleeps.
    abort_leaves_nothing(Options::default().without_cgroup(), build, "Compiling", 5).await;
}

// promise: T-80e
#[tokio::test(flavor = "multi_thread")]
async fn finished_build_leaves_no_process() {
    end_leaves_nothing(Options::default(), build).await;
}

fn build(scratch: &Path, work: Work) -> RunSpec {
    let dir = scratch.join("tiny");
    fs::create_dir_all(dir.join("src")).expect("made");
    for (file, text) in [
        ("Cargo.toml", MANIFEST),
        ("build.rs", BUILD_SCRIPT),
        ("src/main.rs", "fn main() {}\n"),
    ] {
        fs::write(dir.join(file), text).expect("written");
    }
    let mut spec = argv(&["cargo", "build", "--offline"]).env(
        "CARGO_TARGET_DIR",
        &dir.join("target").display().to_string(),
    );
    if work == Work::Stays {
        spec = spec.env("STAYS", "1");
    }
    for name in TOOLCHAIN {
        if let Ok(value) = env::var(name) {
            spec = spec.env(name, &value);
        }
    }
    spec.cwd = Some(dir.display().to_string());
    spec
}
