//! The command line at a real server: runs as child processes, and runs that are steered by their ids. What it prints
//! for given answers is checked without a server, in `crates/kennel/tests/answers.rs`.

use kennel_proto::pb::WaitCondition;
use kennel_tests::{
    Footprint, Kennel, PATIENCE, cases, eventually, must, new_run_id,
    procfs::Proc,
    sh,
    shell::{finish, run_to_end, text},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Output, Stdio},
};

cases! {
    fn command_line_starts_and_steers_runs(Kennel::on_sqlite().await);
    run_is_transparent_in_output_and_code,
    run_tells_start_failures_like_a_shell,
    input_and_environment_come_from_the_command_line,
    ctrl_c_interrupts_and_the_commands_answer_counts,
    a_second_ctrl_c_ends_the_whole_tree,
    a_run_can_be_steered_by_its_id,
    logs_are_raw_and_follow_to_the_end,
    signal_and_tree_speak_of_single_processes,
    signal_repeated_with_its_id_is_sent_once,
}

async fn kennel_cli(kennel: &Kennel, words: &[&str]) -> Output {
    run_to_end(kennel.cli(words), PATIENCE).await
}

/// Returns the words' answer on stdout; they must succeed.
async fn answer(kennel: &Kennel, words: &[&str]) -> String {
    let output = kennel_cli(kennel, words).await;
    assert!(output.status.success(), "{words:?}: {output:?}");
    text(&output)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

// promise: C-1
async fn run_is_transparent_in_output_and_code(kennel: &Kennel) {
    let output = kennel_cli(
        kennel,
        &["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"],
    )
    .await;
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    let output = kennel_cli(kennel, &["run", "true"]).await;
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    let output = kennel_cli(kennel, &["run", "--", "sh", "-c", "kill -KILL $$"]).await;
    assert_eq!(output.status.signal(), Some(9));
    let late = ["run", "--timeout", "100ms", "--", "sleep", "300"];
    let output = kennel_cli(kennel, &late).await;
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(stderr(&output).contains("exceeded its time limit"));
}

// promise: C-2
async fn run_tells_start_failures_like_a_shell(kennel: &Kennel) {
    let missing = kennel_cli(kennel, &["run", "--", "no-such-command-of-ours"]).await;
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).starts_with("error: "), "{missing:?}");
    let plain = kennel.scratch().join("plain");
    fs::write(&plain, "x").expect("written");
    let plain_text = plain.to_str().expect("UTF-8");
    let forbidden = kennel_cli(kennel, &["run", "--", plain_text]).await;
    assert_eq!(forbidden.status.code(), Some(126), "{forbidden:?}");
    fs::write(&plain, "#!/no/such/interpreter\n").expect("written");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o755)).expect("changed");
    let no_interpreter = kennel_cli(kennel, &["run", "--", plain_text]).await;
    assert!(
        matches!(no_interpreter.status.code(), Some(126 | 127)),
        "{no_interpreter:?}"
    );
    let bad_cwd = kennel_cli(kennel, &["run", "--cwd", "/no/such/dir", "--", "true"]).await;
    assert!(
        matches!(bad_cwd.status.code(), Some(125 | 126)),
        "{bad_cwd:?}"
    );
}

/// Starts a `kennel run` that is in no foreground, as a process group of its own.
fn start_run(kennel: &Kennel, script: &str) -> (Child, String) {
    let run_id = new_run_id();
    let mut command = kennel.cli(&["run", "--run-id", &run_id, "--", "sh", "-c", script]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    (command.spawn().expect("it starts"), run_id)
}

/// Waits for a file that the script makes when its traps are set.
async fn armed(file: &std::path::Path) {
    eventually("the command is ready", PATIENCE, || {
        file.exists().then_some(())
    })
    .await;
}

/// Waits for the start. The script may be ahead of the report that it was executed; until then Ctrl-C means that it
/// must not begin.
async fn started(kennel: &Kennel, run_id: &str) {
    let mut client = kennel.client().await;
    let started = client.wait(run_id, WaitCondition::Started).await;
    assert!(started.expect("it is known").1, "it started");
}

// promise: C-3
async fn ctrl_c_interrupts_and_the_commands_answer_counts(kennel: &Kennel) {
    let up = kennel.scratch().join("up");
    let script = format!(
        "trap 'exit 5' INT; : > {}; while :; do sleep 0.05; done",
        up.display()
    );
    let (child, run_id) = start_run(kennel, &script);
    armed(&up).await;
    started(kennel, &run_id).await;
    kill(
        Pid::from_raw(i32::try_from(child.id()).expect("small")),
        Signal::SIGINT,
    )
    .expect("own child");
    let output = finish(child, "kennel run", PATIENCE).await;
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    Footprint::of_id(&run_id).assert_nothing_left();
}

// promise: C-3
async fn a_second_ctrl_c_ends_the_whole_tree(kennel: &Kennel) {
    let up = kennel.scratch().join("up-twice");
    let ints = kennel.scratch().join("ints");
    let script = format!(
        "trap 'echo int >> {}' INT; sleep 300 & : > {}; while :; do sleep 0.05; done",
        ints.display(),
        up.display()
    );
    let (child, run_id) = start_run(kennel, &script);
    armed(&up).await;
    started(kennel, &run_id).await;
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("small"));
    kill(pid, Signal::SIGINT).expect("own child");
    armed(&ints).await;
    assert!(
        Proc::read(pid.as_raw()).is_some_and(|proc| proc.is_alive()),
        "the run goes on"
    );
    kill(pid, Signal::SIGINT).expect("own child");
    let output = finish(child, "kennel run", PATIENCE).await;
    assert_eq!(output.status.signal(), Some(2), "{output:?}");
    Footprint::of_id(&run_id).assert_nothing_left();
}

async fn a_run_can_be_steered_by_its_id(kennel: &Kennel) {
    let id = answer(
        kennel,
        &[
            "spawn",
            "--label",
            "who=me",
            "--",
            "sh",
            "-c",
            "echo hello; exec sleep 300",
        ],
    )
    .await;
    assert_eq!(id.len(), 26, "the id is printed bare: {id:?}");
    kennel.client().await.hear_text(&id, "hello\n").await;
    assert!(answer(kennel, &["ps"]).await.contains(&id));
    assert!(
        !answer(kennel, &["ps", "--label", "who=you"])
            .await
            .contains(&id)
    );
    let json: serde_json::Value =
        serde_json::from_str(&answer(kennel, &["get", &id, "-o", "json"]).await).expect("JSON");
    assert_eq!(json["state"], "RUN_STATE_RUNNING", "{json}");
    assert_eq!(json["runId"], id.as_str(), "{json}");
    let listed = answer(kennel, &["ps", "-o", "json"]).await;
    assert!(listed.contains(&id), "{listed}");

    answer(kennel, &["pause", &id]).await;
    let json: serde_json::Value =
        serde_json::from_str(&answer(kennel, &["get", &id, "-o", "json"]).await).expect("JSON");
    assert_eq!(json["state"], "RUN_STATE_PAUSED", "{json}");
    answer(kennel, &["resume", &id]).await;
    answer(kennel, &["abort", "--grace", "500ms", &id]).await;
    assert!(
        !answer(kennel, &["ps"]).await.contains(&id),
        "an ended run is not live"
    );
    assert!(answer(kennel, &["ps", "--all"]).await.contains(&id));
    let waited = kennel_cli(kennel, &["wait", &id]).await;
    assert_eq!(waited.status.code(), Some(143), "{waited:?}");
    assert_eq!(answer(kennel, &["logs", &id]).await, "hello");
    let events = answer(kennel, &["events", &id, "-o", "json"]).await;
    for line in events.lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("one JSON document a line");
    }
    Footprint::of_id(&id).assert_nothing_left();
    let refused = kennel_cli(kennel, &["interrupt", &id]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).starts_with("error: "), "{refused:?}");
}

// promise: C-5
async fn logs_are_raw_and_follow_to_the_end(kennel: &Kennel) {
    let go = kennel.scratch().join("go");
    let script = format!(
        "printf 'a\\000b\\033[31m'; echo err >&2; while [ ! -e {} ]; do sleep 0.02; done; echo late",
        go.display()
    );
    let id = answer(kennel, &["spawn", "--", "sh", "-c", &script]).await;
    let mut follow = kennel.cli(&["logs", "-f", &id]);
    follow
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let follow = follow.spawn().expect("it starts");
    fs::write(&go, "").expect("written");
    let followed = finish(follow, "kennel logs -f", PATIENCE).await;
    assert_eq!(followed.stdout, b"a\0b\x1b[31mlate\n", "{followed:?}");
    assert_eq!(followed.stderr, b"err\n");
    let later = kennel_cli(kennel, &["logs", &id]).await;
    assert_eq!(
        (later.stdout, later.stderr),
        (followed.stdout, followed.stderr)
    );
}

async fn input_and_environment_come_from_the_command_line(kennel: &Kennel) {
    let file = kennel.scratch().join("input");
    fs::write(&file, "from a file").expect("written");
    let words = [
        "run",
        "--input",
        file.to_str().expect("UTF-8"),
        "--env",
        "COLOUR=red",
        "--cwd",
        "/usr",
        "--",
        "sh",
        "-c",
        "cat; echo \" $COLOUR $PWD\"",
    ];
    assert_eq!(answer(kennel, &words).await, "from a file red /usr");
    let refused = kennel_cli(kennel, &["run", "--run-id", "../../x", "--", "true"]).await;
    assert!(
        matches!(refused.status.code(), Some(125 | 2)),
        "{refused:?}"
    );
}

// promise: C-9
async fn signal_and_tree_speak_of_single_processes(kennel: &Kennel) {
    let script = "trap 'exit 5' USR1; echo up; while :; do sleep 0.02; done";
    let run = answer(kennel, &["spawn", "--", "sh", "-c", script]).await;
    let mut client = kennel.client().await;
    client.hear_up(&run).await;

    let tree = answer(kennel, &["tree", &run]).await;
    let mut lines = tree.lines();
    assert_eq!(
        lines.next(),
        Some(format!("{run} RUNNING").as_str()),
        "{tree}"
    );
    let leader = lines.next().expect("the leader");
    assert!(
        leader.contains(" session ") && leader.contains("shim]"),
        "{tree}"
    );
    assert!(leader.contains(" sh -c "), "{tree}");
    let json = answer(kennel, &["tree", "-o", "json", &run]).await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let pid = json["processes"][0]["pid"].as_i64().expect("a pid");
    assert!(leader.starts_with(&format!("{pid} ")), "{tree}");

    let refused = kennel_cli(kennel, &["signal", "STOP", &run]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("Pause"), "{refused:?}");
    let sent = answer(kennel, &["signal", "usr1", &run]).await;
    assert!(sent.ends_with(&format!("{pid} delivered")), "{sent}");
    let ended = kennel_cli(kennel, &["wait", &run]).await;
    assert!(text(&ended).contains("FAILED"), "{ended:?}");
    let tree = answer(kennel, &["tree", &run]).await;
    assert_eq!(tree.lines().count(), 1, "{tree}");
    let over = kennel_cli(kennel, &["signal", "--to", "tree", "SIGUSR1", &run]).await;
    assert_eq!(over.status.code(), Some(1));
}

// promise: C-22
async fn signal_repeated_with_its_id_is_sent_once(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "trap 'echo hit' USR1; trap 'echo over; exit 0' USR2; echo up; while :; do sleep 0.02; done";
    let run = must("spawn", client.spawn(sh(script)).await).run_id;
    client.hear_up(&run).await;
    let once = ["signal", "--request-id", "once", "usr1", &run];
    let sent = answer(kennel, &once).await;
    assert!(sent.ends_with("delivered"), "{sent}");
    client.hear_text(&run, "hit\n").await;
    let again = answer(kennel, &once).await;
    assert!(!again.contains("gone"), "{again}");
    answer(kennel, &["signal", "usr2", &run]).await;
    must("wait", client.ended(&run).await);
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "up\nhit\nover\n");
    let nameless = kennel_cli(kennel, &["signal", "--request-id", "", "usr1", &run]).await;
    assert_eq!(nameless.status.code(), Some(2), "{nameless:?}");
}
