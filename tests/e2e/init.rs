//! `kennel serve -- COMMAND`: the first process of a container.

use kennel_tests::{
    PATIENCE, census, eventually,
    kennel::{assert_refused, bare_command, detached_call, kill_exactly},
    must,
    procfs::{self, Proc},
    programs,
    shell::{kennel_in, run_to_end},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

fn scratch() -> TempDir {
    must(
        "a directory",
        tempfile::Builder::new().prefix("kennel-init-").tempdir(),
    )
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("s/kennel.sock")
}

/// Starts a service, with the first process in a pid namespace of its own where `contained`.
fn serve(dir: &Path, contained: bool, script: &str) -> Command {
    let mut command = if contained {
        let mut command = bare_command(Path::new("/usr/bin/unshare"));
        let words = ["--pid", "--fork", "--mount-proc", "--kill-child"];
        command.args(words).arg(programs::kennel());
        command
    } else {
        bare_command(&programs::kennel())
    };
    command.args(["serve", "--config=", "--cgroup", "off", "--data-dir"]);
    command.arg(dir.join("data")).arg("--listen");
    command.arg(format!("unix:{}", socket(dir).display()));
    command.args(["--", "sh", "-c", script]);
    command
}

async fn nothing_is_left(dir: &Path) {
    let name = dir.display().to_string();
    eventually("nothing is left", PATIENCE, || {
        census::of_data_dir(&name).is_empty().then_some(())
    })
    .await;
}

// promise: S-22
#[tokio::test(flavor = "multi_thread")]
async fn service_ends_with_its_command_and_its_code() {
    for contained in [false, true] {
        let dir = scratch();
        let script = "echo out; echo err >&2; (setsid sleep 1000 &); exit 7";
        let output = run_to_end(serve(dir.path(), contained, script), PATIENCE).await;
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("err\n"), "{said}");
        nothing_is_left(dir.path()).await;
    }
}

// promise: S-22
#[tokio::test(flavor = "multi_thread")]
async fn init_command_end_ends_other_runs() {
    let dir = scratch();
    let go = dir.path().join("go");
    let script = format!(
        "echo up; while [ ! -e {} ]; do sleep 0.05; done; exit 3",
        go.display()
    );
    let mut first = serve(dir.path(), false, &script);
    let first = must(
        "start",
        first.stdout(Stdio::piped()).stderr(Stdio::null()).spawn(),
    );
    let server = format!("unix:{}", socket(dir.path()).display());
    eventually("it listens", PATIENCE, || {
        socket(dir.path()).exists().then_some(())
    })
    .await;
    let words = ["--server", server.as_str(), "spawn", "--", "sleep", "1000"];
    let spawned = kennel_in(dir.path(), &words).await;
    assert!(spawned.status.success(), "{spawned:?}");
    must("write", fs::write(go, ""));
    let output = must("wait", first.wait_with_output());
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "up\n");
    nothing_is_left(dir.path()).await;
}

/// A process that its run has detached calls in the place of a client: by hand, without anything of the run.
// promise: W-11a
#[tokio::test(flavor = "multi_thread")]
async fn detached_process_below_process_1_may_not_call() {
    let dir = scratch();
    let go = dir.path().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    let mut first = serve(dir.path(), true, &script);
    let first = must("start", first.stderr(Stdio::null()).spawn());
    let server = format!("unix:{}", socket(dir.path()).display());
    eventually("it listens", PATIENCE, || {
        socket(dir.path()).exists().then_some(())
    })
    .await;
    let said = dir.path().join("said");
    let call = detached_call(&server, &go_of(dir.path()), &said);
    let words = ["--server", &server, "run", "--on-leader-exit", "keep", "--"];
    let words: Vec<&str> = words.into_iter().chain(["sh", "-c", &call]).collect();
    let spawned = kennel_in(dir.path(), &words).await;
    assert!(spawned.status.success(), "{spawned:?}");
    must("write", fs::write(go_of(dir.path()), ""));
    assert_refused(&said).await;
    must("write", fs::write(go, ""));
    must("wait", first.wait_with_output());
    nothing_is_left(dir.path()).await;
}

fn go_of(dir: &Path) -> PathBuf {
    dir.join("go-detached")
}

// promise: S-22
#[tokio::test(flavor = "multi_thread")]
async fn stop_of_the_container_stops_its_command() {
    let dir = scratch();
    let said = dir.path().join("said");
    let script = format!(
        "trap 'echo ended > {0}.end; exit 0' TERM; echo > {0}; while :; do sleep 0.05; done",
        said.display()
    );
    let mut first = serve(dir.path(), false, &script);
    let mut first = must(
        "start",
        first.stdout(Stdio::null()).stderr(Stdio::null()).spawn(),
    );
    eventually("it is up", PATIENCE, || said.exists().then_some(())).await;
    let pid = Pid::from_raw(i32::try_from(first.id()).expect("pids are small"));
    must("signal", kill(pid, Signal::SIGTERM));
    let status = must("wait", first.wait());
    assert_eq!(status.code(), Some(0), "the command had its time");
    assert!(dir.path().join("said.end").exists());
    nothing_is_left(dir.path()).await;
}

// promise: S-22
#[tokio::test(flavor = "multi_thread")]
async fn command_survives_death_of_its_server() {
    let dir = scratch();
    let up = dir.path().join("up");
    let script = format!(
        "echo > {}; i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.05; done; exit 5",
        up.display()
    );
    let mut first = serve(dir.path(), false, &script);
    let first = must(
        "start",
        first.stdout(Stdio::piped()).stderr(Stdio::null()).spawn(),
    );
    eventually("it is up", PATIENCE, || up.exists().then_some(())).await;
    let name = dir.path().display().to_string();
    let is_server = |proc: &Proc| {
        let words = proc.cmdline();
        words.get(1).is_some_and(|word| word == "server")
            && words.iter().any(|word| word.contains(&name))
    };
    for _ in 0..2 {
        let server = eventually("a server", PATIENCE, || {
            procfs::all().into_iter().find(is_server)
        })
        .await;
        kill_exactly(&server, Signal::SIGKILL);
        eventually("it is gone", PATIENCE, || {
            (!server.is_still_there()).then_some(())
        })
        .await;
    }
    let output = must("wait", first.wait_with_output());
    assert_eq!(output.status.code(), Some(5));
    let lines: Vec<String> = (0..60).map(|i: i32| i.to_string()).collect();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim_end(),
        lines.join("\n")
    );
    nothing_is_left(dir.path()).await;
}

// promise: S-22
#[tokio::test(flavor = "multi_thread")]
async fn failed_start_of_the_command_is_reported() {
    let dir = scratch();
    let mut absent = bare_command(&programs::kennel());
    absent.args(["serve", "--config=", "--cgroup", "off", "--data-dir"]);
    absent.arg(dir.path().join("data")).arg("--listen");
    absent.arg(format!("unix:{}", socket(dir.path()).display()));
    absent.args(["--", "/no/such/command"]);
    let output = run_to_end(absent, PATIENCE).await;
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let file = dir.path().join("file");
    must("write", fs::write(&file, ""));
    let mut wrong = bare_command(&programs::kennel());
    wrong.args(["serve", "--config=", "--data-dir"]).arg(&file);
    wrong.args(["--", "true"]);
    let output = run_to_end(wrong, PATIENCE).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    nothing_is_left(dir.path()).await;
}
