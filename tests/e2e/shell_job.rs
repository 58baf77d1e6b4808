//! `kennel run` as a job of an interactive shell on a terminal: keys, job control, and the window that is closed.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Client, Footprint, Kennel, PATIENCE, SpecExt, argv, cases, eventually, eventually_async, must,
    procfs, programs, shell::run_to_end, tmux::Tmux,
};
use std::fs;

const SIZE: (u16, u16) = (24, 100);

cases! {
    fn command_line_is_a_job_of_a_shell(Kennel::on_sqlite().await);
    keys_act_as_on_a_shells_child,
    suspended_job_is_a_paused_run,
    background_job_reads_terminal_once_in_foreground,
    closed_window_ends_its_runs,
    text_of_runs_cannot_act_on_a_terminal,
}

// promise: C-1, C-30
async fn keys_act_as_on_a_shells_child(kennel: &Kennel) {
    let shell = Shell::start(kennel, "keys").await;

    // Ctrl-C interrupts the run; the shell sees the code of a SIGINT death.
    shell.types("kennel run -l job=int -- sh -c 'echo up; exec sleep 300'");
    shell.shows("up").await;
    let run = shell.run_in("int", RunState::Running).await;
    shell.tmux.keys(&["C-c"]);
    shell.code(130).await;
    Footprint::of_run(&run).assert_nothing_left();

    // Ctrl-\ ends the whole tree by the stop policy.
    shell.clear().await;
    shell.types("kennel run -l job=quit -- sh -c 'sleep 300 & echo up; wait'");
    shell.shows("up").await;
    let run = shell.run_in("quit", RunState::Running).await;
    shell.tmux.keys(&["C-\\"]);
    shell.code(131).await;
    assert_eq!(shell.ended(&run).await.state(), RunState::Cancelled);
    Footprint::of_run(&run).assert_nothing_left();

    // One Ctrl-C ends a shell loop, also if the command has a terminal.
    for flag in ["", "--tty"] {
        shell.clear().await;
        shell.types(&format!(
            "for i in 1 2 3; do {} run {flag} -- sh -c 'echo up; exec sleep 300'; done",
            // A shell function instead of the binary would not end the loop.
            programs::kennel().display()
        ));
        shell.shows("up").await;
        shell.tmux.keys(&["C-c"]);
        shell.code(130).await;
    }

    // Ctrl-D ends standard input.
    shell.clear().await;
    shell.types(
        "kennel run -l job=eof -- sh -c 'echo up; while read x; do echo got-$x; done; exit 3'",
    );
    shell.shows("up").await;
    shell.types("typed");
    shell.shows("got-typed").await;
    shell.tmux.keys(&["C-d"]);
    shell.code(3).await;
}

// promise: C-30
async fn suspended_job_is_a_paused_run(kennel: &Kennel) {
    let shell = Shell::start(kennel, "suspend").await;
    shell.types("kennel run -l job=suspend -- sh -c 'echo up; while :; do sleep 0.05; done'");
    shell.shows("up").await;
    let run = shell.run_in("suspend", RunState::Running).await;
    shell.suspends("suspend").await;
    shell.run_in("suspend", RunState::Paused).await;
    shell.types("bg");
    shell.run_in("suspend", RunState::Running).await;
    shell.clear().await;
    shell.types("fg");
    shell.suspends("suspend").await;
    shell.run_in("suspend", RunState::Paused).await;
    shell.types("fg");
    shell.run_in("suspend", RunState::Running).await;
    shell.tmux.keys(&["C-c"]);
    shell.code(130).await;
    shell.ended(&run).await;
}

// promise: C-30
async fn background_job_reads_terminal_once_in_foreground(kennel: &Kennel) {
    let shell = Shell::start(kennel, "background").await;
    shell.types("kennel run -l job=reads -- sh -c 'echo up; read x; echo got-$x' &");
    shell.shows("up").await;
    shell.run_in("reads", RunState::Running).await;
    // The shell gets typed keys, and the background job is not stopped for reading.
    shell.types("echo mine-$((1+1)); jobs");
    shell.shows("mine-2").await;
    let shown = shell.shows("Running").await;
    assert!(!shown.contains("Stopped"), "{shown}");
    shell.types("fg");
    // Wait: a line typed before `fg` restores the terminal would stay unterminated.
    eventually("the job is named again", PATIENCE, || {
        let shown = shell.tmux.shown();
        (shown.matches("-l job=reads").count() == 3).then_some(())
    })
    .await;
    shell.types("word");
    shell.shows("got-word").await;
}

// promise: C-30
async fn closed_window_ends_its_runs(kennel: &Kennel) {
    for (name, flag) in [("plain", ""), ("terminal", "--tty")] {
        let shell = Shell::start(kennel, name).await;
        shell.types(&format!(
            "kennel run {flag} -l job={name} -- sh -c 'echo up; while :; do sleep 0.05; done'"
        ));
        shell.shows("up").await;
        let run = shell.run_in(name, RunState::Running).await;
        shell.tmux.close();
        assert_eq!(shell.ended(&run).await.state(), RunState::Cancelled);
        Footprint::of_run(&run).assert_nothing_left();
        let client = format!("job={name}");
        eventually("no client is left", PATIENCE, || {
            let is_client = |proc: &procfs::Proc| proc.cmdline().contains(&client);
            (!procfs::all().iter().any(is_client)).then_some(())
        })
        .await;
    }
}

/// Names are checked without a server, in `crates/kennel/tests/answers.rs`.
// promise: C-36
async fn text_of_runs_cannot_act_on_a_terminal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "printf 'before \\342\\200\\256 \\033[2J\\033]0;b\\007\\033[31mafter\\033[0m\\n'; sleep 300";
    let spec = argv(&["sh", "-c", script]).env("NAME", "a\u{1b}[2J\u{202e}");
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run, "after").await;
    let hostile =
        "a\u{1b}[2J\u{1b}]0;b\u{7}\u{9b}1m\nstate           SUCCEEDED\rc\u{202e}d\u{2066}";
    let missing = run_to_end(kennel.cli(&["run", "--", hostile]), PATIENCE).await;
    let shown = String::from_utf8(missing.stderr).expect("UTF-8");
    let acts = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{2066}".contains(c);
    assert!(
        !shown.contains(acts) && !shown.contains("\nstate "),
        "{shown:?}"
    );
    // Output to a pipe is byte-exact.
    let logs = run_to_end(kennel.cli(&["logs", &run]), PATIENCE).await;
    let logs = String::from_utf8(logs.stdout).expect("UTF-8");
    assert!(logs.contains("\u{202e} \u{1b}[2J"), "{logs:?}");

    let line = |flag: &str| {
        let (address, kennel) = (kennel.address(), programs::kennel());
        format!(
            "KENNEL_SERVER={address} {} logs {flag} {run}",
            kennel.display()
        )
    };
    let safe = Tmux::start(kennel.scratch(), "safe", (10, 80), &line(""));
    let shown = safe.shows("after").await;
    assert!(shown.contains("before \\u{202e}"), "{shown}");
    assert!(!safe.shown_in_colour().contains("\u{1b}[31m"));
    let raw = Tmux::start(kennel.scratch(), "raw", (10, 80), &line("--raw"));
    let shown = raw.shows("after").await;
    assert!(!shown.contains("before"), "{shown}");
    must("abort", client.abort(&run).await);
}

/// An interactive shell whose `kennel` is the tested binary.
struct Shell<'a> {
    kennel: &'a Kennel,
    tmux: Tmux,
}

impl<'a> Shell<'a> {
    async fn start(kennel: &'a Kennel, name: &str) -> Self {
        let startup = kennel.scratch().join("rc");
        let text = format!(
            "PS1='ready> '\nHISTFILE=\nexport KENNEL_SERVER={}\nkennel() {{ {} \"$@\"; }}\n",
            kennel.address(),
            programs::kennel().display()
        );
        fs::write(&startup, text).expect("own directory");
        let line = format!("bash --noprofile --rcfile {} -i", startup.display());
        let tmux = Tmux::start(kennel.scratch(), name, SIZE, &line);
        tmux.shows("ready>").await;
        Self { kennel, tmux }
    }

    fn types(&self, line: &str) {
        self.tmux.keys(&["-l", line]);
        self.tmux.keys(&["Enter"]);
    }

    /// Waits until a line that was not typed here begins with this, or that of a job has it.
    async fn shows(&self, text: &str) -> String {
        let has = |line: &str| {
            let line = line.strip_prefix("ready> ").unwrap_or(line);
            line.starts_with(text) || (line.starts_with('[') && line.contains(text))
        };
        let shown = || Some(self.tmux.shown()).filter(|shown| shown.lines().any(has));
        eventually(&format!("{text:?} is shown"), PATIENCE, shown).await
    }

    /// Waits until the shell reads again, and has it print the exit code of its last command.
    async fn code(&self, code: u8) {
        let reads = || self.tmux.shown().ends_with("ready>").then_some(());
        eventually("the shell reads", PATIENCE, reads).await;
        self.types("echo code=$?");
        self.shows(&format!("code={code}")).await;
    }

    /// Types Ctrl-Z once the job is in the foreground, and waits until the shell reports it. Once: the kernel drops
    /// unread output with every such key, and with a second one that may be the shell's report.
    async fn suspends(&self, job: &str) {
        let mark = format!("job={job}");
        eventually("the job is in the foreground", PATIENCE, || {
            let all = procfs::all();
            let mut clients = all.iter().filter(|proc| proc.cmdline().contains(&mark));
            clients.any(procfs::Proc::is_in_foreground).then_some(())
        })
        .await;
        self.tmux.keys(&["C-z"]);
        self.shows("[1]+  Stopped").await;
    }

    async fn clear(&self) {
        self.types("clear; echo clean");
        let cleared = || (self.tmux.shown().lines().next() == Some("clean")).then_some(());
        eventually("the screen is clear", PATIENCE, cleared).await;
    }

    /// Returns the run with this label when it is in this state.
    async fn run_in(&self, job: &str, state: RunState) -> pb::Run {
        let filter = pb::RunFilter {
            labels: [("job".to_owned(), job.to_owned())].into(),
            ..pb::RunFilter::default()
        };
        let what = format!("the run is {}", state.as_str_name());
        eventually_async(&what, PATIENCE, async || {
            let mut client: Client = self.kennel.client().await;
            let runs = must("list", client.list_all(filter.clone(), 100).await);
            runs.into_iter().find(|run| run.state() == state)
        })
        .await
    }

    async fn ended(&self, run: &pb::Run) -> pb::Run {
        must("ended", self.kennel.client().await.ended(&run.run_id).await)
    }
}
