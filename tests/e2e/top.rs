//! `kennel top` on a terminal of another project.

use kennel_tests::{
    Kennel, Options, PATIENCE, SpecExt, cases, eventually, kennel::kill_exactly, must, procfs,
    programs, sh, shell::run_to_end, tmux::Tmux,
};
use nix::sys::signal::Signal;
use std::fs;

const SIZE: (u16, u16) = (24, 80);
/// As tmux writes cyan, by either of its names.
const CYAN: [&str; 2] = ["[36m", "[38;5;6m"];

cases! {
    fn top_works_on_a_terminal(Kennel::start(Options::default()).await);
    terminal_is_restored_and_uncoloured_as_asked,
    one_look_shows_readiness_and_activity,
    clicks_and_the_wheel_work_on_a_terminal,
    top_shows_usage_and_ends_after_confirmation,
    top_reports_lost_server_and_reconnects,
}

/// Returns a line that runs top, and then prints whether the terminal is restored.
fn line(kennel: &Kennel, before: &str) -> String {
    format!(
        "{before} {} --server {} top --every 500ms; echo code $?; stty -a | grep -o -e '-\\?icanon' -e '-\\?echo '",
        programs::kennel().display(),
        kennel.address()
    )
}

// promise: C-23, C-23a
async fn top_shows_usage_and_ends_after_confirmation(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let busy = "echo up; while :; do echo 0123456789; done";
    let busy = must("spawn", client.spawn(sh(busy).label("app", "busy")).await);
    let idle = must(
        "spawn",
        client.spawn(sh("echo idle words; exec sleep 1000")).await,
    );
    client.hear_up(&busy.run_id).await;
    let tmux = Tmux::start(kennel.scratch(), "top", SIZE, &line(kennel, ""));
    tmux.shows("2 RUNNING").await;
    let short = |run: &str| format!("~{}", &run[16..]);
    tmux.shows(&short(&busy.run_id)).await;

    // The busy run uses CPU and writes output; the idle run does neither.
    let figures = |run: &str| {
        let (shown, id) = (tmux.shown(), short(run));
        let line = shown.lines().find(|line| line.starts_with(&id))?;
        let cells: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Some((
            cells.get(4)?.clone(),
            cells.get(5)?.clone(),
            cells.get(6)?.clone(),
        ))
    };
    eventually("it is seen to be busy", PATIENCE, || {
        let (cpu, memory, output) = figures(&busy.run_id)?;
        let used: f64 = cpu.parse().ok()?;
        (used > 1.0 && memory != "-" && output.ends_with(['K', 'M'])).then_some(())
    })
    .await;
    eventually("the other is seen to be idle", PATIENCE, || {
        let (cpu, memory, output) = figures(&idle.run_id)?;
        (cpu == "0.0" && memory != "-" && output == "0").then_some(())
    })
    .await;

    // The label filter hides the idle run.
    tmux.keys(&["/", "app=busy", "Enter"]);
    eventually("the filter holds", PATIENCE, || {
        let shown = tmux.shown();
        (shown.contains(&short(&busy.run_id)) && !shown.contains(&short(&idle.run_id)))
            .then_some(())
    })
    .await;
    tmux.keys(&["Escape"]);
    tmux.shows(&short(&idle.run_id)).await;
    // The newest run is first and selected.
    tmux.keys(&["Enter"]);
    tmux.shows(&format!("tree of {}", idle.run_id)).await;
    tmux.shows("sleep 1000").await;
    tmux.keys(&["Escape"]);
    tmux.shows("q quit").await;
    tmux.keys(&["l"]);
    tmux.shows("idle words").await;
    tmux.keys(&["Escape"]);
    tmux.shows("q quit").await;
    tmux.keys(&["?"]);
    tmux.shows("leave; the runs continue").await;
    tmux.keys(&["Escape"]);

    for size in [(10, 40), (3, 10), (50, 200), SIZE] {
        tmux.resize(size);
        tmux.shows("kennel top").await;
    }

    tmux.keys(&["p"]);
    tmux.shows(&format!("pause {}?", idle.run_id)).await;
    tmux.keys(&["y"]);
    tmux.shows("1 PAUSED").await;
    tmux.keys(&["x"]);
    tmux.shows(&format!("end {} and its whole tree?", idle.run_id))
        .await;
    tmux.keys(&["n"]);
    tmux.shows("nothing was done").await;
    tmux.keys(&["x"]);
    tmux.shows("y: yes").await;
    tmux.keys(&["y"]);
    let ended = must("wait", client.ended(&idle.run_id).await);
    assert_eq!(kennel_tests::RunExt::reason(&ended), "aborted");
    eventually("it is gone from among the live ones", PATIENCE, || {
        (!tmux.shown().contains(&short(&idle.run_id))).then_some(())
    })
    .await;
    tmux.keys(&["q"]);
    put_back(&tmux, 0).await;
    must("abort", client.abort(&busy.run_id).await);
}

// promise: C-23a
async fn top_reports_lost_server_and_reconnects(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exec sleep 1000")).await);
    let tmux = Tmux::start(kennel.scratch(), "top", SIZE, &line(kennel, ""));
    tmux.shows("1 RUNNING").await;
    let lock = kennel.data_dir().join("server.lock");
    fs::remove_file(&lock).expect("it is there");
    fs::create_dir(&lock).expect("no server can lock a directory");
    kennel.kill_server();
    tmux.shows("the server is lost").await;
    // Known values stay on the screen.
    assert!(tmux.shown().contains(&run.run_id[16..]), "{}", tmux.shown());
    fs::remove_dir(&lock).expect("own directory");
    tmux.shows("the server is back").await;
    tmux.keys(&["C-c"]);
    put_back(&tmux, 0).await;
    must("abort", kennel.client().await.abort(&run.run_id).await);
}

/// The first case: no run is live.
// promise: C-23a
async fn terminal_is_restored_and_uncoloured_as_asked(kennel: &Kennel) {
    let coloured = Tmux::start(kennel.scratch(), "colour", SIZE, &line(kennel, ""));
    coloured.shows("no live runs").await;
    let is_coloured = |shown: String| CYAN.iter().any(|cyan| shown.contains(cyan));
    let shown = coloured.shown_in_colour();
    assert!(is_coloured(shown.clone()), "{shown:?}");
    let plain = Tmux::start(kennel.scratch(), "plain", SIZE, &line(kennel, "NO_COLOR=1"));
    plain.shows("no live runs").await;
    assert!(!is_coloured(plain.shown_in_colour()));
    let address = kennel.address();
    let is_top = |proc: &procfs::Proc| {
        let words = proc.cmdline();
        let has = |word: &str| words.iter().any(|arg| arg == word);
        words
            .first()
            .is_some_and(|program| program.ends_with("kennel"))
            && has(&address)
            && has("top")
    };
    let mut tops = procfs::all();
    tops.retain(is_top);
    assert_eq!(tops.len(), 2, "{tops:?}");
    for (top, signal) in tops.iter().zip([Signal::SIGTERM, Signal::SIGINT]) {
        kill_exactly(top, signal);
    }
    put_back(&coloured, 0).await;
    put_back(&plain, 0).await;
    let no_terminal = kennel.cli(&["top"]).output().expect("it runs");
    assert_eq!(no_terminal.status.code(), Some(1));
    let why = String::from_utf8_lossy(&no_terminal.stderr);
    assert!(why.contains("must be a terminal"), "{why}");
}

/// Checks that the shell's lines are there again, and that its terminal takes lines and echoes.
async fn put_back(tmux: &Tmux, code: i32) {
    tmux.shows(&format!("code {code}")).await;
    let shown = tmux.shows("echo").await;
    let said: Vec<&str> = shown.lines().map(str::trim).collect();
    assert!(
        said.contains(&"icanon") && said.contains(&"echo"),
        "{shown}"
    );
}

// promise: C-54
async fn clicks_and_the_wheel_work_on_a_terminal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exec sleep 1000")).await);
    let tmux = Tmux::start(kennel.scratch(), "mouse", SIZE, &line(kennel, ""));
    tmux.shows(&run.run_id[16..]).await;
    // SGR sequences of a click on line 5, the first below the heading, and of the wheel.
    let send = |event: &str| tmux.keys(&["-l", &format!("\u{1b}[<{event}")]);
    send("65;2;5M");
    // The newest run is selected already.
    send("0;2;5M");
    tmux.shows(&format!("tree of {}", run.run_id)).await;
    tmux.keys(&["Escape"]);
    tmux.shows("q quit").await;
    tmux.keys(&["q"]);
    tmux.shows("code 0").await;
    // After exit, the shell gets no clicks.
    assert!(!tmux.mouse_is_captured(), "{}", tmux.shown());
    must("abort", client.abort(&run.run_id).await);
}

// promise: RW-73, RW-104
async fn one_look_shows_readiness_and_activity(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let words = [
        "spawn",
        "--ready-line",
        "never",
        "--",
        "sh",
        "-c",
        "echo up; sleep 1000",
    ];
    let spawned = run_to_end(kennel.cli(&words), PATIENCE).await;
    let run = String::from_utf8_lossy(&spawned.stdout).trim().to_owned();
    client.hear_up(&run).await;
    let set = ["annotate", &run, "--activity", "working"];
    assert!(
        run_to_end(kennel.cli(&set), PATIENCE)
            .await
            .status
            .success()
    );
    let look = run_to_end(kennel.cli(&["top", "--once"]), PATIENCE).await;
    let look = String::from_utf8_lossy(&look.stdout).into_owned();
    let row = look
        .lines()
        .find(|line| line.contains(&run))
        .expect("it is listed");
    let cells: Vec<&str> = row.split_whitespace().collect();
    let state = ["RUNNING", "(not", "ready)"];
    assert_eq!(cells[1..4], state, "{look}");
    assert_eq!(cells[4..6], ["no", "WORKING"], "{look}");
    let look = run_to_end(kennel.cli(&["top", "--once", "-o", "json"]), PATIENCE).await;
    let seen: serde_json::Value = serde_json::from_slice(&look.stdout).expect("one document");
    assert_eq!(seen["waitsFor"], "not ready", "{seen}");
    let tmux = Tmux::start(kennel.scratch(), "top", (24, 130), &line(kennel, ""));
    tmux.shows("READY ACTIVITY").await;
    tmux.shows("RUNNING (not ready)").await;
    tmux.shows("WORKING").await;
    tmux.keys(&["q"]);
    put_back(&tmux, 0).await;
    must("abort", client.abort(&run).await);
}
