//! `kennel run` in scripts, as a child of the shell: pipes, signals, environment and exit codes.

use kennel_proto::pb::RunState;
use kennel_tests::{
    Footprint, Kennel, PATIENCE, cases, eventually_async, must, new_run_id, programs,
    shell::{run_to_end, text},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    os::unix::process::ExitStatusExt,
    process::{Command, Output, Stdio},
};

cases! {
    fn command_line_is_a_child_of_a_shell(Kennel::on_sqlite().await);
    abort_of_unknown_id_leaves_nothing_unless_fenced,
    pipe_is_standard_input_of_the_command,
    command_that_stops_reading_is_no_error,
    unreadable_input_is_an_end_of_input,
    output_that_cannot_be_written_ends_the_run,
    hangup_and_quit_end_the_run_unless_ignored,
    command_has_the_callers_environment,
    ended_run_is_restarted_with_inherited_environment,
    command_and_directory_may_be_any_bytes,
    wait_exits_as_the_command_did,
}

/// Returns a line of a shell in which `kennel` is the tested binary.
fn line(kennel: &Kennel, line: &str) -> Command {
    let mut command = Command::new("bash");
    let function = format!("kennel() {{ {} \"$@\"; }}; ", programs::kennel().display());
    command
        .args(["-c", &(function + line)])
        .env("KENNEL_SERVER", kennel.address());
    command
}

async fn shell(kennel: &Kennel, script: &str) -> Output {
    run_to_end(line(kennel, script), PATIENCE).await
}

// promise: C-32
async fn pipe_is_standard_input_of_the_command(kennel: &Kennel) {
    let output = shell(kennel, "echo x | kennel run -- cat; echo $?").await;
    assert_eq!(text(&output), "x\n0", "{output:?}");
    let file = kennel.scratch().join("in");
    let file = file.display();
    let script = format!(
        "printf 'a\\nb\\n' > {file}; kennel run -- sort -r < {file}; echo z | kennel run --no-stdin -- wc -c"
    );
    let output = shell(kennel, &script).await;
    assert_eq!(text(&output), "b\na\n0", "{output:?}");
}

// promise: C-32
async fn command_that_stops_reading_is_no_error(kennel: &Kennel) {
    for _ in 0..10 {
        let output = shell(kennel, "yes | kennel run -- head -c 10").await;
        assert_eq!(text(&output), "y\ny\ny\ny\ny");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

// promise: C-39
async fn unreadable_input_is_an_end_of_input(kennel: &Kennel) {
    let file = kennel.scratch().join("written");
    for (stdin, why) in [
        ("< /".to_owned(), "Is a directory"),
        (format!("0> {}", file.display()), "Bad file descriptor"),
    ] {
        let output = shell(kennel, &format!("kennel run -- cat {stdin}; echo $?")).await;
        assert_eq!(text(&output), "0", "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let wanted = format!("error: cannot read standard input: {why}");
        assert!(said.starts_with(&wanted), "{said}");
    }
}

// promise: C-33
async fn output_that_cannot_be_written_ends_the_run(kennel: &Kennel) {
    for (place, code, said) in [
        ("> /dev/full", 125, "error: cannot write to standard output"),
        ("| head -n 1 > /dev/null", 141, ""),
    ] {
        let run_id = new_run_id();
        let script =
            format!("kennel run --run-id {run_id} -- yes {place}; exit ${{PIPESTATUS[0]}}");
        let output = shell(kennel, &script).await;
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with(said), "{stderr}");
        let run = must("ended", kennel.client().await.ended(&run_id).await);
        assert_eq!(run.state(), RunState::Cancelled);
        Footprint::of_run(&run).assert_nothing_left();
    }
}

// promise: C-31
async fn hangup_and_quit_end_the_run_unless_ignored(kennel: &Kennel) {
    let mut client = kennel.client().await;
    for signal in [Signal::SIGHUP, Signal::SIGQUIT] {
        let run_id = new_run_id();
        let words = ["run", "--run-id", &run_id, "--", "sleep", "300"];
        let mut command = kennel.cli(&words);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        running(kennel, &run_id).await;
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("small"));
        kill(pid, signal).expect("own child");
        let run = must("ended", client.ended(&run_id).await);
        assert_eq!(run.state(), RunState::Cancelled);
        let status = child.wait().expect("own child");
        assert_eq!(status.signal(), Some(signal as i32));
    }
    // Like nohup(1), ignore SIGHUP.
    let run_id = new_run_id();
    let go = kennel.scratch().join("go");
    let go = go.display();
    let script = format!("trap '' HUP; kennel run --run-id {run_id} -- sh -c 'until [ -e {go} ]; do sleep 0.01; done; exit 4' & p=$!
        until kennel wait --for started {run_id} >/dev/null 2>&1; do :; done
        kill -HUP $p; kennel get {run_id} | grep -c RUNNING; touch {go}; wait $p");
    let output = shell(kennel, &script).await;
    assert_eq!(text(&output), "1", "{output:?}");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

// promise: C-34
async fn command_has_the_callers_environment(kennel: &Kennel) {
    let show = "sh -c 'echo ${MYVAR-unset} ${KENNEL_SERVER-unset}'";
    let script = format!(
        "export MYVAR=1
        kennel run -- {show}
        kennel run --env MYVAR=2 -- {show}
        kennel run --env-mode minimal -- {show}
        kennel run --env-mode minimal --env MYVAR -- {show}
        kennel run --env-mode none -- /usr/bin/env | grep -c -v -e ^KENNEL_ -e ^TRACEPARENT
        kennel run -- env | grep -c ^MYVAR=1$
        kennel logs -f $(kennel spawn -- {show})
        kennel logs -f $(kennel spawn --env-mode inherit -- {show})"
    );
    let output = shell(kennel, &script).await;
    let wanted = "1 unset\n2 unset\nunset unset\n1 unset\n0\n1\nunset unset\n1 unset";
    assert_eq!(text(&output), wanted, "{output:?}");
    assert!(!kennel.log().contains("MYVAR"), "values are never logged");
}

// promise: C-34
async fn ended_run_is_restarted_with_inherited_environment(kennel: &Kennel) {
    let run_id = new_run_id();
    let script = format!(
        "export MYVAR=1; kennel run --run-id {run_id} -- sh -c 'echo $MYVAR'; export MYVAR=2
        kennel restart {run_id} 2>/dev/null || echo refused
        kennel logs -f $(kennel restart --inherit-env {run_id} | cut -d ' ' -f 1)"
    );
    let output = shell(kennel, &script).await;
    assert_eq!(text(&output), "1\nrefused\n2", "{output:?}");
}

// promise: C-38
async fn command_and_directory_may_be_any_bytes(kennel: &Kennel) {
    let dir = kennel.scratch().display().to_string();
    let script = format!(
        "b=$(printf '\\377'); d={dir}/d$b; mkdir \"$d\"; cp /bin/pwd \"$d/p$b\"
        kennel run -- printf '%s\\n' \"a$b\"
        (cd \"$d\" && kennel run -- /bin/pwd -P && kennel run -- \"./p$b\" -P)
        kennel run --cwd \"$d\" --restart on-failure --restart-max 1 --restart-delay 10ms -- sh -c 'pwd -P; echo \"$1\"; exit 3' sh \"$b\"
        id=$(kennel spawn --cwd \"$d\" -- sh -c 'pwd -P; echo \"$1\"' sh \"$b\"); kennel wait $id >/dev/null
        kennel get $id | grep -e ^command -e ^cwd
        kennel logs -f $(kennel restart $id | cut -d ' ' -f 1)"
    );
    let output = shell(kennel, &script).await;
    let at = [dir.as_bytes(), b"/d\xff\n"].concat();
    let shown = format!(
        "{:15} sh -c 'pwd -P; echo \"$1\"' sh $'\\xff'\n{:15} {dir}/d\\xff\n",
        "command", "cwd"
    );
    let attempt = [&at[..], b"\xff\n"].concat();
    let wanted = [
        b"a\xff\n",
        &at[..],
        &at,
        &attempt,
        &attempt,
        shown.as_bytes(),
        &attempt,
    ]
    .concat();
    let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
    assert_eq!(show(&output.stdout), show(&wanted), "{output:?}");
}

// promise: C-35
async fn wait_exits_as_the_command_did(kennel: &Kennel) {
    let script = "
        code() { id=$(kennel spawn \"$@\"); kennel wait $id >/dev/null 2>&1; echo $?; }
        code -- sh -c 'exit 5'
        code -- true
        code -- sh -c 'kill -KILL $$'
        code --timeout 100ms -- sleep 300
        id=$(kennel spawn -- sh -c 'exit 5'); kennel wait --for leader-exited $id >/dev/null; echo $?
        kennel wait 01JD0000000000000000000000 2>/dev/null; echo $?
        kennel wait --for started 01JD0000000000000000000000 2>/dev/null; echo $?";
    let output = shell(kennel, script).await;
    assert_eq!(text(&output), "5\n0\n137\n124\n0\n125\n1", "{output:?}");
}

/// The first case: no run is listed.
// promise: C-37
async fn abort_of_unknown_id_leaves_nothing_unless_fenced(kennel: &Kennel) {
    let (mistyped, fenced) = (new_run_id(), new_run_id());
    let script = format!(
        "kennel abort {mistyped}; echo $?; kennel ps --all | wc -l; kennel run --run-id {mistyped} -- echo ran
        kennel abort --fence {fenced} | grep -c 'before it was spawned'; kennel run --run-id {fenced} -- echo ran; echo $?"
    );
    let output = shell(kennel, &script).await;
    assert_eq!(text(&output), "1\n1\nran\n1\n125", "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains(&mistyped) && stderr.contains("kennel ps --all"),
        "{stderr}"
    );
    // The API leaves a fence by default: the Spawn may still be on its way.
    let mut client = kennel.client().await;
    let run = must("abort", client.abort(&new_run_id()).await);
    assert_eq!(run.state(), RunState::Cancelled);
}

/// Waits until the command runs.
async fn running(kennel: &Kennel, run_id: &str) {
    eventually_async("it runs", PATIENCE, async || {
        let run = kennel.client().await.get(run_id).await.ok()?;
        (run.state() == RunState::Running).then_some(())
    })
    .await;
}
