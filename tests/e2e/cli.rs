//! The command line with the real binary: its output, and its exit codes.

use kennel_proto::pb::WaitCondition;
use kennel_tests::{
    Footprint, Kennel, PATIENCE, eventually,
    kennel::bare_command,
    must, new_run_id,
    procfs::Proc,
    programs, sh,
    shell::{finish, run_to_end, text},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Child, Output, Stdio},
};

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

#[tokio::test(flavor = "multi_thread")]
async fn run_is_transparent_in_output_and_code() {
    let kennel = Kennel::on_sqlite().await;
    let output = kennel_cli(
        &kennel,
        &["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"],
    )
    .await;
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    let output = kennel_cli(&kennel, &["run", "true"]).await;
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    let output = kennel_cli(&kennel, &["run", "--", "sh", "-c", "kill -KILL $$"]).await;
    assert_eq!(output.status.code(), Some(137));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_exits_like_timeout_after_max_runtime() {
    let kennel = Kennel::on_sqlite().await;
    let run_id = new_run_id();
    // It exits in order when it is stopped, and all the same it was too late.
    let words = [
        "run",
        "--run-id",
        &run_id,
        "--timeout",
        "3s",
        "--",
        "sh",
        "-c",
        "trap 'echo bye; exit 0' TERM; while :; do sleep 0.01; done",
    ];
    let output = kennel_cli(&kennel, &words).await;
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert_eq!(text(&output), "bye");
    assert!(stderr(&output).contains("exceeded its time limit"));
    let shown = answer(&kennel, &["get", &run_id]).await;
    assert!(
        shown.contains("max_runtime") && shown.contains("3s"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn run_tells_start_failures_like_a_shell() {
    let kennel = Kennel::on_sqlite().await;
    let missing = kennel_cli(&kennel, &["run", "--", "no-such-command-of-ours"]).await;
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).starts_with("error: "), "{missing:?}");
    let plain = kennel.scratch().join("plain");
    fs::write(&plain, "x").expect("written");
    let plain_text = plain.to_str().expect("UTF-8");
    let forbidden = kennel_cli(&kennel, &["run", "--", plain_text]).await;
    assert_eq!(forbidden.status.code(), Some(126), "{forbidden:?}");
    fs::write(&plain, "#!/no/such/interpreter\n").expect("written");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o755)).expect("changed");
    let no_interpreter = kennel_cli(&kennel, &["run", "--", plain_text]).await;
    assert!(
        matches!(no_interpreter.status.code(), Some(126 | 127)),
        "{no_interpreter:?}"
    );
    let bad_cwd = kennel_cli(&kennel, &["run", "--cwd", "/no/such/dir", "--", "true"]).await;
    assert!(
        matches!(bad_cwd.status.code(), Some(125 | 126)),
        "{bad_cwd:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hint_without_server_names_how_to_start_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let nowhere = format!("unix:{}", dir.path().join("none.sock").display());
    for (words, code) in [(&["run", "--", "true"][..], 125), (&["ps"][..], 1)] {
        let mut command = bare_command(&programs::kennel());
        command.args(["--server", &nowhere]).args(words);
        let output = run_to_end(command, PATIENCE).await;
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        let said = stderr(&output);
        assert!(
            said.starts_with("error: ") && said.contains("hint: "),
            "{said}"
        );
        assert!(said.contains("kennel serve"), "{said}");
        assert!(output.stdout.is_empty());
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_interrupts_and_the_commands_answer_counts() {
    let kennel = Kennel::on_sqlite().await;
    let up = kennel.scratch().join("up");
    let script = format!(
        "trap 'exit 5' INT; : > {}; while :; do sleep 0.05; done",
        up.display()
    );
    let (child, run_id) = start_run(&kennel, &script);
    armed(&up).await;
    started(&kennel, &run_id).await;
    kill(
        Pid::from_raw(i32::try_from(child.id()).expect("small")),
        Signal::SIGINT,
    )
    .expect("own child");
    let output = finish(child, "kennel run", PATIENCE).await;
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    Footprint::of_id(&run_id).assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_ctrl_c_ends_the_whole_tree() {
    let kennel = Kennel::on_sqlite().await;
    let up = kennel.scratch().join("up");
    let ints = kennel.scratch().join("ints");
    let script = format!(
        "trap 'echo int >> {}' INT; sleep 300 & : > {}; while :; do sleep 0.05; done",
        ints.display(),
        up.display()
    );
    let (child, run_id) = start_run(&kennel, &script);
    armed(&up).await;
    started(&kennel, &run_id).await;
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("small"));
    kill(pid, Signal::SIGINT).expect("own child");
    armed(&ints).await;
    assert!(
        Proc::read(pid.as_raw()).is_some_and(|proc| proc.is_alive()),
        "the run goes on"
    );
    kill(pid, Signal::SIGINT).expect("own child");
    let output = finish(child, "kennel run", PATIENCE).await;
    assert_eq!(output.status.code(), Some(128 + 15), "{output:?}");
    Footprint::of_id(&run_id).assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_can_be_steered_by_its_id() {
    let kennel = Kennel::on_sqlite().await;
    let id = answer(
        &kennel,
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
    assert!(answer(&kennel, &["ps"]).await.contains(&id));
    assert!(
        !answer(&kennel, &["ps", "--label", "who=you"])
            .await
            .contains(&id)
    );
    let json: serde_json::Value =
        serde_json::from_str(&answer(&kennel, &["get", &id, "-o", "json"]).await).expect("JSON");
    assert_eq!(json["state"], "RUN_STATE_RUNNING", "{json}");
    assert_eq!(json["runId"], id.as_str(), "{json}");
    let listed = answer(&kennel, &["ps", "-o", "json"]).await;
    assert!(listed.contains(&id), "{listed}");

    answer(&kennel, &["pause", &id]).await;
    let json: serde_json::Value =
        serde_json::from_str(&answer(&kennel, &["get", &id, "-o", "json"]).await).expect("JSON");
    assert_eq!(json["state"], "RUN_STATE_PAUSED", "{json}");
    answer(&kennel, &["resume", &id]).await;
    answer(&kennel, &["abort", "--grace", "500ms", &id]).await;
    assert!(
        !answer(&kennel, &["ps"]).await.contains(&id),
        "an ended run is not live"
    );
    assert!(answer(&kennel, &["ps", "--all"]).await.contains(&id));
    let waited = kennel_cli(&kennel, &["wait", &id]).await;
    assert_eq!(waited.status.code(), Some(143), "{waited:?}");
    assert_eq!(answer(&kennel, &["logs", &id]).await, "hello");
    let events = answer(&kennel, &["events", &id, "-o", "json"]).await;
    for line in events.lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("one JSON document a line");
    }
    Footprint::of_id(&id).assert_nothing_left();
    let refused = kennel_cli(&kennel, &["interrupt", &id]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).starts_with("error: "), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_raw_and_follow_to_the_end() {
    let kennel = Kennel::on_sqlite().await;
    let go = kennel.scratch().join("go");
    let script = format!(
        "printf 'a\\000b\\033[31m'; echo err >&2; while [ ! -e {} ]; do sleep 0.02; done; echo late",
        go.display()
    );
    let id = answer(&kennel, &["spawn", "--", "sh", "-c", &script]).await;
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
    let later = kennel_cli(&kennel, &["logs", &id]).await;
    assert_eq!(
        (later.stdout, later.stderr),
        (followed.stdout, followed.stderr)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn input_and_environment_come_from_the_command_line() {
    let kennel = Kennel::on_sqlite().await;
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
    assert_eq!(answer(&kennel, &words).await, "from a file red /usr");
    let refused = kennel_cli(&kennel, &["run", "--run-id", "../../x", "--", "true"]).await;
    assert!(
        matches!(refused.status.code(), Some(125 | 2)),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn status_says_what_the_server_is() {
    let kennel = Kennel::on_sqlite().await;
    let json: serde_json::Value =
        serde_json::from_str(&answer(&kennel, &["status", "-o", "json"]).await).expect("JSON");
    let said = json.to_string();
    assert!(
        said.contains("\"generation\"") && said.contains("sqlite"),
        "{said}"
    );
    assert!(!answer(&kennel, &["status"]).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_and_tree_speak_of_single_processes() {
    let kennel = Kennel::on_sqlite().await;
    let script = "trap 'exit 5' USR1; echo up; while :; do sleep 0.02; done";
    let run = answer(&kennel, &["spawn", "--", "sh", "-c", script]).await;
    let mut client = kennel.client().await;
    client.hear_up(&run).await;

    let tree = answer(&kennel, &["tree", &run]).await;
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
    let json = answer(&kennel, &["tree", "-o", "json", &run]).await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let pid = json["processes"][0]["pid"].as_i64().expect("a pid");
    assert!(leader.starts_with(&format!("{pid} ")), "{tree}");

    let refused = kennel_cli(&kennel, &["signal", "STOP", &run]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("Pause"), "{refused:?}");
    let sent = answer(&kennel, &["signal", "usr1", &run]).await;
    assert!(sent.ends_with(&format!("{pid} delivered")), "{sent}");
    let ended = kennel_cli(&kennel, &["wait", &run]).await;
    assert!(text(&ended).contains("FAILED"), "{ended:?}");
    let tree = answer(&kennel, &["tree", &run]).await;
    assert_eq!(tree.lines().count(), 1, "{tree}");
    let over = kennel_cli(&kennel, &["signal", "--to", "tree", "SIGUSR1", &run]).await;
    assert_eq!(over.status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_repeated_with_its_id_is_sent_once() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = "trap 'echo hit' USR1; trap 'echo over; exit 0' USR2; echo up; while :; do sleep 0.02; done";
    let run = must("spawn", client.spawn(sh(script)).await).run_id;
    client.hear_up(&run).await;
    let once = ["signal", "--request-id", "once", "usr1", &run];
    let sent = answer(&kennel, &once).await;
    assert!(sent.ends_with("delivered"), "{sent}");
    client.hear_text(&run, "hit\n").await;
    let again = answer(&kennel, &once).await;
    assert!(!again.contains("gone"), "{again}");
    answer(&kennel, &["signal", "usr2", &run]).await;
    must("wait", client.ended(&run).await);
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "up\nhit\nover\n");
    let nameless = kennel_cli(&kennel, &["signal", "--request-id", "", "usr1", &run]).await;
    assert_eq!(nameless.status.code(), Some(2), "{nameless:?}");
}

/// Each shell has a script; bash is installed, and completes words, runs and labels.
#[tokio::test(flavor = "multi_thread")]
async fn every_shell_has_completion_instructions() {
    let command = || bare_command(&programs::kennel());
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let mut completions = command();
        completions.args(["completions", shell]);
        let completion = text(&run_to_end(completions, PATIENCE).await);
        assert!(
            completion.contains("kennel") && completion.contains("KENNEL_COMPLETE"),
            "{shell}: {completion}"
        );
    }
    let mut bash = bare_command("bash".as_ref());
    let kennel = Kennel::on_sqlite().await;
    let run = answer(&kennel, &["spawn", "-l", "app=web", "--", "sleep", "600"]).await;
    let script = r#"PATH=$(dirname "$0"):$PATH; source <(kennel completions bash)
        complete_with() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _clap_complete_kennel kennel "${!#}"; echo "${COMPREPLY[@]}"; }
        complete_with kennel att; complete_with kennel stop "$1"; complete_with kennel ps -l ap
        complete_with kennel ext; complete_with kennel extend "$1" 10m --start"#;
    bash.args(["-c", script]).arg(programs::kennel());
    bash.arg(&run[..12]).env("KENNEL_SERVER", kennel.address());
    let completed = run_to_end(bash, PATIENCE).await;
    assert_eq!(
        text(&completed),
        format!("attach\n{run}\napp=web\nextend\n--start-timeout"),
        "{completed:?}"
    );
}
