//! `kennel doctor --prove`: the escape suite on the caller's host.

use kennel_tests::{
    PATIENCE, eventually,
    kennel::{bare_command, install},
    procfs, programs, shell,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

/// Upper bound for the proof on a busy machine.
const PROOF: std::time::Duration = std::time::Duration::from_secs(90);

/// Makes a directory for temporary files that is open to all.
fn temporary() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let all = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(directory.path(), all).expect("own directory");
    directory
}

fn doctor(mut command: Command, temporary: &Path) -> Command {
    command
        .args(["-o", "json", "doctor", "--prove"])
        .env("TMPDIR", temporary)
        .current_dir("/");
    command
}

async fn proof(command: Command, temporary: &Path) -> Value {
    let output: Output = shell::run_to_end(doctor(command, temporary), PROOF).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{said}{}",
        shell::text(&output)
    );
    assert_nothing_is_left(temporary);
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn assert_nothing_is_left(temporary: &Path) {
    let name = temporary.to_string_lossy().into_owned();
    let left: Vec<_> = procfs::all()
        .into_iter()
        .filter(|proc| proc.cmdline().iter().any(|word| word.contains(&name)))
        .collect();
    assert!(left.is_empty(), "{left:#?}");
    let files: Vec<_> = fs::read_dir(temporary)
        .expect("it is there")
        .flatten()
        .filter(|entry| entry.file_name() != "kennel")
        .collect();
    assert!(files.is_empty(), "{files:?}");
}

/// Asserts that a sandbox reaches nothing of Kennel, and a run without one everything but its socket.
fn assert_reaches_nothing(proof: &Value) {
    let sandbox = &proof["sandbox"];
    assert_eq!(sandbox["outcome"], "holds", "{sandbox}");
    let outside = sandbox["reachedWithoutSandbox"].as_str().expect("a text");
    assert!(outside.contains("the data directory"), "{sandbox}");
    assert!(outside.contains("by a signal"), "{sandbox}");
    assert!(!outside.contains("by its socket"), "{sandbox}");
}

/// Returns way, name and outcome of each program, and all that is said of it.
fn outcomes(proof: &Value) -> Vec<(String, String, String, &Value)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ways = proof["ways"].as_array().expect("ways");
    ways.iter()
        .flat_map(|way| {
            let programs = way["programs"].as_array().expect("programs");
            programs.iter().map(move |program| {
                let name = text(&program["program"]);
                (text(&way["way"]), name, text(&program["outcome"]), program)
            })
        })
        .collect()
}

// promise: C-20, C-20a
#[tokio::test(flavor = "multi_thread")]
async fn prove_as_root_leaves_no_process() {
    let temporary = temporary();
    let proof = proof(bare_command(&programs::kennel()), temporary.path()).await;
    assert_eq!(proof["holds"], true, "{proof}");
    let outcomes = outcomes(&proof);
    assert_eq!(outcomes.len(), 5 * kennel_naughty::PROGRAMS.len());
    assert_reaches_nothing(&proof);
    for (way, program, outcome, said) in outcomes {
        let expected = match program.as_str() {
            "setuid-root" => "notRun",
            _ => "empty",
        };
        assert_eq!(outcome, expected, "{program}, {way}: {said}");
    }
}

// promise: C-20
#[tokio::test(flavor = "multi_thread")]
async fn unprivileged_prove_lists_skipped_checks_and_gaps() {
    let temporary = temporary();
    let copy = temporary.path().join("kennel");
    install(&programs::kennel(), &copy, "0755");
    let mut command = bare_command(Path::new("setpriv"));
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(copy);
    let proof = proof(command, temporary.path()).await;
    assert_eq!(proof["holds"], true, "{proof}");
    assert_reaches_nothing(&proof);
    for (way, program, outcome, said) in outcomes(&proof) {
        let allowed: &[&str] = match program.as_str() {
            "setuid-root" | "leaves-cgroup" | "own-cgroup" => &["notRun"],
            "foreign-pid-namespace" => &["admitted"],
            // The program may lose the race: shim or keeper dies first.
            "kills-shim" => &["admitted", "empty"],
            _ => &["empty"],
        };
        assert!(
            allowed.contains(&outcome.as_str()),
            "{program}, {way}: {said}"
        );
    }
}

// promise: C-20a
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_prove_leaves_no_process() {
    let temporary = temporary();
    let mut command = doctor(bare_command(&programs::kennel()), temporary.path());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    eventually("programs run", PATIENCE, || {
        procfs::all()
            .iter()
            .any(|proc| {
                proc.env("KENNEL_RUN_DIR")
                    .is_some_and(|dir| Path::new(&dir).starts_with(temporary.path()))
            })
            .then_some(())
    })
    .await;
    let pid = i32::try_from(child.id()).expect("pids are small");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("own child");
    let output = shell::finish(child, "the proof ends", PROOF).await;
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty());
    assert_nothing_is_left(temporary.path());
}
