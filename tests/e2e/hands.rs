//! Habits of other command lines: short ids, several runs, selectors, output formats, values as typed.

use kennel_tests::{
    Kennel, PATIENCE, SpecExt, argv, cases, must, sh,
    shell::{finish, run_to_end, text},
};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    process::{Output, Stdio},
};

cases! {
    fn habits_of_other_command_lines(Bench::start().await);
    output_forms_match_kubectl_and_docker,
    one_command_acts_on_several_runs,
    signals_have_names_numbers_and_either_order,
    refusals_are_in_words_of_the_command_line,
    run_has_the_flags_of_docker,
    logs_are_bounded_by_lines_and_times,
    wait_takes_conditions_of_kubectl,
    several_runs_are_restarted_at_once,
    wait_gives_up_after_its_timeout,
    version_names_commit_and_build,
    which_names_the_file_and_each_place,
    last_events_of_a_run_are_printed,
    restarts_are_limited_as_in_docker,
}

struct Bench(Kennel);

impl Bench {
    async fn start() -> Self {
        Self(Kennel::on_sqlite().await)
    }

    async fn says(&self, words: &[&str]) -> Output {
        run_to_end(self.0.cli(words), PATIENCE).await
    }

    /// Returns its output; it must succeed.
    async fn answer(&self, words: &[&str]) -> String {
        let output = self.says(words).await;
        assert!(output.status.success(), "{words:?}: {output:?}");
        text(&output)
    }

    /// Returns exit code and standard error.
    async fn refusal(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = self.says(words).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    }

    /// Starts a run that sleeps, with this label.
    async fn sleeper(&self, key: &str, value: &str) -> String {
        let mut client = self.0.client().await;
        let spec = argv(&["sleep", "600"]).label(key, value);
        must("spawn", client.spawn(spec).await).run_id
    }
}

// promise: RW-110, C-40
#[tokio::test(flavor = "multi_thread")]
async fn unique_part_of_an_id_selects_run() {
    let bench = Bench::start().await;
    let (one, other) = (bench.sleeper("n", "1").await, bench.sleeper("n", "2").await);
    for part in [
        one.to_lowercase(),
        one[10..].to_lowercase(),
        one[20..].to_owned(),
        one[..25].to_owned(),
    ] {
        let id = bench.answer(&["get", &part, "-o", "name"]).await;
        assert_eq!(id, one, "{part}");
    }
    let (code, said) = bench.refusal(&["get", &one[..4]]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&one) && said.contains(&other), "{said}");
    // Shorter id parts would match a run by chance, like pueue's `stop 3`.
    for length in 1..4 {
        let (code, said) = bench.refusal(&["stop", &one[26 - length..]]).await;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("at least 4 characters"), "{said}");
    }
    let (_, said) = bench.refusal(&["stop", ""]).await;
    assert!(said.contains("the id of the run is empty"), "{said}");
    let live = bench.answer(&["ps", "-q"]).await;
    assert_eq!(live.lines().count(), 2, "{live}");
    for nothing in ["nope", "0000", "x y"] {
        let (code, said) = bench.refusal(&["stop", nothing]).await;
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("begins or ends with") && said.contains("kennel ps --all"),
            "{said}"
        );
    }
}

// promise: C-41
async fn one_command_acts_on_several_runs(bench: &Bench) {
    let mut ids = Vec::new();
    for n in ["1", "2", "3"] {
        ids.push(bench.sleeper("n", n).await);
    }
    let [a, b, c] = [&ids[0], &ids[1], &ids[2]].map(String::as_str);
    assert_eq!(
        bench.answer(&["inspect", "-o", "name", c, a, b]).await,
        [c, a, b].join("\n")
    );
    let paused = bench.answer(&["pause", a, b]).await;
    assert_eq!(paused.matches("PAUSED").count(), 2, "{paused}");
    bench.answer(&["resume", a, b]).await;
    // A missing run blocks no signal to others, but sets the exit code.
    let output = bench.says(&["kill", "-USR1", a, "nope", b]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(text(&output).matches("delivered").count(), 2, "{output:?}");
    assert_eq!(
        bench.says(&["wait", a, b]).await.status.code(),
        Some(128 + 10)
    );
    let stopped = bench.answer(&["stop", "-t", "5", c]).await;
    assert!(stopped.contains("CANCELLED"), "{stopped}");
}

// promise: C-42
async fn signals_have_names_numbers_and_either_order(bench: &Bench) {
    let script = "trap 'echo got' USR1; echo ready; while :; do sleep 0.02; done";
    let mut client = bench.0.client().await;
    let run = must("spawn", client.spawn(sh(script)).await).run_id;
    client.hear_text(&run, "ready").await;
    for words in [
        &["signal", "usr1", &run][..],
        &["signal", &run, "10"],
        &["signal", "SIGUSR1", &run],
        &["kill", "-s", "USR1", &run],
        &["kill", "-10", &run],
    ] {
        let said = bench.answer(words).await;
        assert!(said.contains("delivered"), "{words:?}: {said}");
    }
    let (code, said) = bench.refusal(&["signal", "nosignal", &run]).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(bench.answer(&["kill", "-l"]).await.contains("15  SIGTERM"));
    let killed = bench.answer(&["kill", &run]).await;
    assert!(killed.contains("CANCELLED"), "{killed}");
}

// promise: C-43
#[tokio::test(flavor = "multi_thread")]
async fn selectors_select_in_lists_and_streams() {
    let bench = Bench::start().await;
    let mut client = bench.0.client().await;
    let mut ids = Vec::new();
    for (app, tier) in [("web", "front"), ("db", "back"), ("web", "back")] {
        let spec = sh(&format!("echo {app}-{tier}"))
            .label("app", app)
            .label("tier", tier);
        let run = must("spawn", client.spawn(spec).await).run_id;
        bench.answer(&["wait", &run]).await;
        ids.push(run);
    }
    for (selector, found) in [
        ("app=web", &[0, 2][..]),
        ("app==web,tier!=front", &[2]),
        ("app in (web,db), tier=back", &[1, 2]),
        ("app notin (web)", &[1]),
        ("tier,!zone", &[0, 1, 2]),
        ("zone", &[]),
    ] {
        let listed = bench
            .answer(&["ls", "-a", "-q", "--sort", "run", "-l", selector])
            .await;
        let expected: Vec<&str> = found.iter().map(|n| ids[*n].as_str()).collect();
        assert_eq!(listed.lines().collect::<Vec<_>>(), expected, "{selector}");
        let logs = bench.answer(&["logs", "--selector", selector]).await;
        assert_eq!(logs.lines().count(), found.len(), "{selector}: {logs}");
    }
    let nothing = bench.says(&["ls", "-l", "zone"]).await;
    let note = String::from_utf8_lossy(&nothing.stderr).into_owned();
    assert!(
        note.contains("no run has these labels; with --all"),
        "{note}"
    );
    let (code, said) = bench.refusal(&["ps", "-l", "app in web"]).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("KEY in (A,B)"), "{said}");
    let (code, said) = bench.refusal(&["run", "-l", "a b=c", "--", "true"]).await;
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("--label"), "{said}");
}

// promise: C-44
async fn output_forms_match_kubectl_and_docker(bench: &Bench) {
    let run = bench.sleeper("app", "web").await;
    for (words, shown) in [
        (&["ps", "-q"][..], run.clone()),
        (&["ps", "-o", "name"], run.clone()),
        (
            &["ps", "--format", "{{.ID}}\\t{{.labels.app}}"],
            format!("{run}\tweb"),
        ),
        (
            &["get", &run, "-o", "jsonpath={.run_id} {.state}"],
            format!("{run} RUN_STATE_RUNNING"),
        ),
        (&["ps", "-o", "go-template={{.runId}}"], run.clone()),
        (&["ps", "-o", "NAME"], run.clone()),
        (&["get", &run, "-o", "{{.metadata.name}}"], run.clone()),
    ] {
        assert_eq!(bench.answer(words).await, shown, "{words:?}");
    }
    let yaml = bench.answer(&["ps", "-o", "yaml"]).await;
    assert!(
        yaml.starts_with("---\n") && yaml.contains(&format!("runId: \"{run}\"")),
        "{yaml}"
    );
    let wide = bench.answer(&["ps", "-o", "wide"]).await;
    assert!(wide.contains("OWNER") && wide.contains("app=web"), "{wide}");
    let filtered = bench
        .answer(&[
            "ps",
            "-q",
            "-f",
            "label=app=web",
            "--filter",
            "status=running",
        ])
        .await;
    assert_eq!(filtered, run);
    let other = bench.sleeper("app", "db").await;
    assert_eq!(bench.answer(&["ps", "-q", "-n", "1"]).await, other);
    assert_eq!(
        bench.answer(&["ps", "-q", "--reverse"]).await,
        format!("{run}\n{other}")
    );
    bench.answer(&["stop", &other]).await;
    for ended in [&["--filter", "status=exited"][..], &["--state", "ended"]] {
        let listed = bench.answer(&[&["ps", "-q"], ended].concat()).await;
        assert_eq!(listed, other, "{ended:?}");
    }
    let once = bench.answer(&["top", "--once"]).await;
    assert!(once.contains("CPU%") && once.contains(&run), "{once}");
    let once = bench
        .answer(&["stats", "--no-stream", "--format", "{{.ID}} {{.processes}}"])
        .await;
    assert!(once.contains(&format!("{run} 1")), "{once}");
    let forced = {
        let mut command = bench.0.cli(&["ps"]);
        command.env("CLICOLOR_FORCE", "1");
        text(&run_to_end(command, PATIENCE).await)
    };
    assert!(forced.contains("\u{1b}[32mRUNNING\u{1b}[0m"), "{forced:?}");
    assert!(!bench.answer(&["ps"]).await.contains('\u{1b}'));
    bench.answer(&["stop", &run]).await;
}

// promise: C-52
async fn refusals_are_in_words_of_the_command_line(bench: &Bench) {
    let run = bench.sleeper("a", "b").await;
    for verb in ["screen", "attach"] {
        let (code, said) = bench.refusal(&[verb, &run]).await;
        assert_ne!(code, Some(0));
        assert!(
            said.contains("has no terminal") && said.contains("kennel run --tty"),
            "{said}"
        );
    }
    let (_, said) = bench
        .refusal(&["run", "-l", "a b=c", "--nice", "99", "--", "true"])
        .await;
    assert!(
        said.contains("--label") && said.contains("--nice"),
        "{said}"
    );
    assert!(!said.contains("spec."), "{said}");
}

// promise: C-45
async fn run_has_the_flags_of_docker(bench: &Bench) {
    let variables = bench.0.scratch().join("env");
    fs::write(&variables, "# comment\nA=1 \"x\"\n\nHOME\nB=2\n").expect("written");
    let file = variables.to_str().expect("UTF-8");
    let script = "echo $A-$B; test -n \"$HOME\"";
    let words = [
        "run",
        "--rm",
        "--env-file",
        file,
        "-e",
        "B=3",
        "--",
        "sh",
        "-c",
        script,
    ];
    assert_eq!(bench.answer(&words).await, "1 \"x\"-3");
    assert_eq!(
        bench.answer(&["run", "-w", "/tmp", "--", "pwd"]).await,
        "/tmp"
    );
    let words = [
        "run",
        "--timeout",
        "1h30m",
        "--stop-timeout",
        "90",
        "--stop-signal",
        "2",
        "-i",
        "--",
        "true",
    ];
    assert_eq!(bench.answer(&words).await, "");
    let id = bench
        .answer(&[
            "run",
            "-d",
            "--ulimit",
            "nofile=64:64",
            "--",
            "sleep",
            "600",
        ])
        .await;
    assert!(bench.answer(&["ls", "-q"]).await.contains(&id), "{id}");

    let mut cat = bench.0.cli(&["run", "--", "cat"]);
    cat.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut cat = cat.spawn().expect("it starts");
    cat.stdin
        .take()
        .expect("a pipe")
        .write_all(b"x\n")
        .expect("written");
    let output = finish(cat, "run cat", PATIENCE).await;
    assert_eq!(
        (output.status.code(), &*output.stdout),
        (Some(0), &b"x\n"[..]),
        "{output:?}"
    );
}

// promise: C-47
async fn logs_are_bounded_by_lines_and_times(bench: &Bench) {
    let run = bench
        .answer(&["spawn", "--", "sh", "-c", "echo one; echo two; echo three"])
        .await;
    bench.answer(&["wait", &run]).await;
    assert_eq!(bench.answer(&["logs", "-n", "2", &run]).await, "two\nthree");
    assert_eq!(
        bench.answer(&["logs", "--tail", "all", &run]).await,
        "one\ntwo\nthree"
    );
    assert_eq!(
        bench.answer(&["logs", "--since", "5m ago", &run]).await,
        "one\ntwo\nthree"
    );
    assert_eq!(
        bench
            .answer(&["logs", "--until", "2020-01-01T00:00:00Z", &run])
            .await,
        ""
    );
    assert_eq!(
        bench.answer(&["logs", "--since", "2100-01-01", &run]).await,
        ""
    );
    let timed = bench.answer(&["logs", "-t", "-n", "1", &run]).await;
    let (time, line) = timed.split_once(' ').expect("a time and a line");
    assert!(
        time.starts_with("20") && time.ends_with('Z') && line == "three",
        "{timed}"
    );
    let other = bench.answer(&["spawn", "--", "echo", "four"]).await;
    bench.answer(&["wait", &other]).await;
    let both = bench.answer(&["logs", &run, &other]).await;
    assert_eq!(both.lines().count(), 4, "{both}");
    assert!(both.contains(&format!("{other} | four")), "{both}");
}

// promise: RW-112
async fn wait_takes_conditions_of_kubectl(bench: &Bench) {
    let run = bench.sleeper("a", "b").await;
    let ready = bench.says(&["wait", "--for=condition=Ready", &run]).await;
    assert_eq!(ready.status.code(), Some(0), "{ready:?}");
    bench.answer(&["stop", "--grace", "0", &run]).await;
    let ended = bench
        .says(&["wait", "--for=condition=complete", &run])
        .await;
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:?}");
}

// promise: RW-111
async fn several_runs_are_restarted_at_once(bench: &Bench) {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let run = bench
            .answer(&["run", "-d", "--", "sh", "-c", "exit 7"])
            .await;
        bench.says(&["wait", &run]).await;
        runs.push(run);
    }
    let code = bench
        .answer(&["inspect", "--format", "{{.State.ExitCode}}", &runs[0]])
        .await;
    assert_eq!(code, "7");
    // A missing run blocks no restart of others.
    let words = ["restart", "-t", "1", &runs[0], "nope", &runs[1]];
    let output = bench.says(&words).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let new: Vec<String> = text(&output)
        .lines()
        .filter_map(|line| Some(line.split_once(' ')?.0.to_owned()))
        .collect();
    assert_eq!(new.len(), 2, "{output:?}");
    for (new, old) in new.iter().zip(&runs) {
        let from = bench
            .answer(&["get", new, "-o", "{{.restartedFrom}}"])
            .await;
        assert_eq!(from, *old);
    }
}

// promise: C-48
async fn wait_gives_up_after_its_timeout(bench: &Bench) {
    let run = bench.sleeper("a", "b").await;
    let (code, said) = bench.refusal(&["wait", "--timeout", "200ms", &run]).await;
    assert_eq!(code, Some(124), "{said}");
    assert!(said.contains(&run), "{said}");
    assert!(said.contains("it has not ended"), "{said}");
    let wait = ["wait", "--for", "paused", "--timeout", "200ms", &run];
    let (code, said) = bench.refusal(&wait).await;
    assert_eq!(code, Some(124), "{said}");
    assert!(said.contains("it is not paused"), "{said}");
    assert!(bench.answer(&["ps", "-q"]).await.contains(&run));
}

// promise: C-49
async fn version_names_commit_and_build(bench: &Bench) {
    let version = bench.answer(&["version", "-o", "json"]).await;
    let version: serde_json::Value = serde_json::from_str(&version).expect("JSON");
    assert_eq!(version["version"], version["serverVersion"]);
    for field in ["commit", "build"] {
        assert!(
            version[field].as_str().is_some_and(|text| !text.is_empty()),
            "{version}"
        );
    }
    assert!(bench.answer(&["--version"]).await.contains("commit "));
}

// promise: A-3a
async fn which_names_the_file_and_each_place(bench: &Bench) {
    let dir = bench.0.scratch();
    let (file, empty) = (dir.join("tool"), dir.join("empty"));
    fs::create_dir(&empty).expect("own directory");
    fs::write(&file, "#!/bin/sh\nexit 7\n").expect("own directory");
    let path = format!("PATH={}:{}", empty.display(), dir.display());
    let words = ["which", "--env", &path, "--", "tool"];
    let (code, said) = bench.refusal(&words).await;
    assert_eq!(code, Some(1), "{said}");
    let absent = format!("{}/tool: absent", empty.display());
    let refused = format!("{}: cannot be executed", file.display());
    assert!(said.contains(&absent) && said.contains(&refused), "{said}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("own file");
    assert_eq!(
        bench.answer(&words).await.trim(),
        file.display().to_string()
    );
    let ran = bench.says(&["run", "--env", &path, "--", "tool"]).await;
    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
    let runs = bench.answer(&["ps", "-a", "-o", "json"]).await;
    assert_eq!(
        runs.matches("\"tool\"").count(),
        1,
        "which starts nothing: {runs}"
    );
}

async fn last_events_of_a_run_are_printed(bench: &Bench) {
    let run = bench.sleeper("n", "1").await;
    bench.answer(&["stop", &run]).await;
    let all = bench.answer(&["events", &run]).await;
    let all: Vec<&str> = all.lines().collect();
    let last = bench.answer(&["events", "-n", "2", &run]).await;
    assert_eq!(last.lines().collect::<Vec<_>>(), all[all.len() - 2..]);
    assert_eq!(
        bench.answer(&["events", "-n", "all", &run]).await,
        all.join("\n")
    );
    let followed = bench.answer(&["events", "-f", "-n", "1", &run]).await;
    assert_eq!(followed.lines().collect::<Vec<_>>(), all[all.len() - 1..]);
    assert_eq!(
        bench.answer(&["events", "--since", "1h", &run]).await,
        all.join("\n")
    );
    assert_eq!(
        bench
            .answer(&["events", "--since", "2100-01-01", &run])
            .await,
        ""
    );
}

async fn restarts_are_limited_as_in_docker(bench: &Bench) {
    let words = [
        "run",
        "--restart",
        "on-failure:2",
        "--restart-delay",
        "10ms",
        "--",
        "false",
    ];
    let (code, _) = bench.refusal(&words).await;
    assert_eq!(code, Some(1));
    let run = bench.answer(&["ps", "-q", "-a", "-n", "1"]).await;
    let events = bench.answer(&["events", &run]).await;
    let starts = events.lines().filter(|line| line.ends_with(" started"));
    assert_eq!(starts.count(), 3, "{events}");
    for (when, said) in [
        (
            "sometimes",
            "write never, on-failure, always, agent or keepalive",
        ),
        ("always:3", "--restart-max limits the others"),
        ("on-failure:x", "write a number of restarts"),
    ] {
        let (_, refusal) = bench
            .refusal(&["run", "--restart", when, "--", "true"])
            .await;
        assert!(refusal.contains(said), "{refusal}");
    }
}
