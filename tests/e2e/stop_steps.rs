//! Actions of a stop before its first signal: input, its end, signals, waits; by the keeper, with or without a server.

use crate::play_scenes;
use kennel_proto::pb::{
    self, RunState,
    stop_action::{Action, CloseInput},
};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt, argv,
    client::{complaint, duration},
    must, sh,
    shell::run_to_end,
};
use std::{fs, time::Duration};

/// Reads lines until the end of its input, then prints the signals that it gets.
const LISTENS: &str = "trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM; echo up; \
    while read line; do echo got $line; done; echo eof; while :; do sleep 0.05; done";

const WAIT: Duration = Duration::from_millis(400);

fn step(action: Action, wait: Duration) -> pb::StopAction {
    pb::StopAction {
        action: Some(action),
        wait: Some(duration(wait)),
    }
}

fn input(text: &'static str) -> Action {
    Action::Input(text.into())
}

fn close() -> Action {
    Action::CloseInput(CloseInput {})
}

fn with(mut spec: pb::RunSpec, steps: Vec<pb::StopAction>) -> pb::RunSpec {
    spec.stop.get_or_insert_default().steps = steps;
    spec
}

fn signals(run: &pb::Run) -> Vec<&str> {
    let certificate = run.attempt().certificate.as_ref().expect("it has ended");
    let steps = certificate.steps.iter().map(|step| step.signal.as_str());
    steps.filter(|signal| *signal != "SIGCONT").collect()
}

/// Returns for each action at standard input: bytes to write, if it was no close, and bytes written.
fn inputs(run: &pb::Run) -> Vec<(Option<u32>, u32)> {
    let certificate = run.attempt().certificate.as_ref().expect("it has ended");
    let inputs = certificate.inputs.iter();
    inputs.map(|input| (input.bytes, input.written)).collect()
}

fn exec(script: &str) -> Action {
    Action::Exec(pb::stop_action::Exec {
        args: ["sh", "-c", script].map(str::to_owned).to_vec(),
    })
}

/// Returns for each command of the stop: exit code, if it exited.
fn commands(run: &pb::Run) -> Vec<Option<i32>> {
    let certificate = run.attempt().certificate.as_ref().expect("it has ended");
    let commands = certificate.commands.iter();
    let code = |command: &pb::StopCommand| match &command.end {
        Some(pb::stop_command::End::Exited(exit)) => match exit.result {
            Some(pb::exit::Result::Code(code)) => Some(code),
            _ => None,
        },
        _ => None,
    };
    commands.map(code).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_actions_precede_the_first_signal() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        actions_come_in_order_before_the_first_signal,
        command_that_obeys_an_action_gets_no_signal,
        terminal_gets_its_end_key_typed,
    }
}

// promise: RW-55
async fn actions_come_in_order_before_the_first_signal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let steps = vec![
        step(input("quit\n"), WAIT),
        step(close(), WAIT),
        step(Action::Signal("SIGUSR1".into()), WAIT),
    ];
    let spec = with(sh(LISTENS).open_input(), steps).grace(Duration::from_secs(20));
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    // Abort resumes a paused run for its first action.
    must("pause", client.pause(&run).await);
    let run = must("abort", client.abort(&run).await);
    assert_eq!(run.code(), Some(5), "{run:?}");
    assert_eq!(inputs(&run), [(Some(5), 5), (None, 0)]);
    assert_eq!(signals(&run), ["SIGUSR1", "SIGTERM"]);
    let heard = must("hear", client.hear_all(&run.run_id, 0).await).text();
    assert_eq!(heard, "up\ngot quit\neof\nusr1\nterm\n");
    let shown = run_to_end(kennel.cli(&["get", &run.run_id]), PATIENCE).await;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("5 of 5 bytes written"), "{shown}");
}

// promise: RW-55
async fn command_that_obeys_an_action_gets_no_signal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let steps = vec![step(close(), Duration::from_secs(4))];
    let spec = with(sh("echo up; cat; exit 6").open_input(), steps);
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    let run = must("abort", client.abort(&run).await);
    assert_eq!((run.reason(), run.code()), ("aborted", Some(6)));
    assert_eq!(signals(&run), [""; 0]);
    let status = client.write(&run.run_id, "1", None, b"late").await;
    assert!(status.is_err());
}

// promise: RW-55
async fn terminal_gets_its_end_key_typed(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let steps = vec![step(input("\u{4}"), Duration::from_secs(4))];
    let spec = argv(&["/bin/sh", "-c", "echo up; cat; exit 7"]);
    let spec = with(spec.on_terminal(pb::Terminal::default()), steps);
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run, "up").await;
    let run = must("abort", client.abort(&run).await);
    assert_eq!(run.code(), Some(7), "{run:?}");
    assert_eq!(signals(&run), [""; 0]);
}

/// The keeper carries them out, and the next server requests the same stop: nothing is written twice.
// promise: RW-149, RW-56
#[tokio::test(flavor = "multi_thread")]
async fn stop_steps_continue_after_server_death() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let steps = vec![
        step(input("a\n"), Duration::from_secs(1)),
        step(input("b\n"), Duration::from_secs(1)),
        step(close(), WAIT),
    ];
    let long = with_long_steps(&mut client).await;
    let spec = with(sh(LISTENS).open_input(), steps).grace(Duration::from_secs(20));
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    let asked = client.abort_with(&run, None, pb::AbortWait::None).await;
    must("abort", asked);
    client.hear_text(&run, "got a\n").await;
    kennel.kill_server();
    let mut client = kennel.client().await;
    let live = must("get", client.get(&long).await);
    assert_eq!(live.state(), RunState::Running);
    let run = must("wait", client.ended(&run).await);
    assert_eq!((run.reason(), run.code()), ("aborted", Some(5)));
    let heard = must("hear", client.hear_all(&run.run_id, 0).await).text();
    assert_eq!(heard, "up\ngot a\ngot b\neof\nterm\n");
    assert_eq!(inputs(&run), [(Some(2), 2), (Some(2), 2), (None, 0)]);
    let at_once = Some(Duration::ZERO);
    let aborted = client.abort_with(&long, at_once, pb::AbortWait::None);
    must("abort", aborted.await);
    let ended = must("wait", client.ended(&long).await);
    assert_eq!(ended.reason(), "aborted");
}

/// Returns a run whose steps are longer than one message: its policy is handed over in a file.
async fn with_long_steps(client: &mut Client) -> String {
    let command = pb::stop_action::Exec {
        args: vec!["true".into(), "x".repeat(4092)],
    };
    let steps = vec![step(Action::Exec(command), Duration::from_millis(1)); 16];
    let spec = with(argv(&["sleep", "600"]), steps);
    must("spawn", client.spawn(spec).await).run_id
}

/// The shim carries out the signals, waits and commands of its plan; the standard input of its run ended with the keeper.
// promise: RW-56, RW-74a
#[tokio::test(flavor = "multi_thread")]
async fn shim_carries_out_stop_actions_without_keeper() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let sent = kennel.scratch().join("signals");
    let script = format!(
        "exec 3>>{}; trap 'echo usr1 >&3' USR1; trap 'echo term >&3; exit 5' TERM; echo up; \
         while :; do sleep 0.05; done",
        sent.display()
    );
    let steps = vec![
        step(input("never\n"), Duration::ZERO),
        step(Action::Signal("SIGUSR1".into()), WAIT),
    ];
    let signalled = with(sh(&script).open_input(), steps);
    let said = kennel.scratch().join("said");
    let steps = vec![pb::StopAction {
        action: Some(exec(&format!("echo x >> {}", said.display()))),
        wait: None,
    }];
    let commanded = with(sh(LISTENS), steps);
    let mut runs = Vec::new();
    for spec in [signalled, commanded] {
        let run = must("spawn", client.spawn(spec).await);
        client.hear_up(&run.run_id).await;
        runs.push((Footprint::of_run(&run), run.run_id));
    }
    kennel.kill_service_after(|| {});
    kennel.wait_until_all_is_gone(PATIENCE).await;
    for (print, _) in &runs {
        print.assert_nothing_left();
    }
    assert_eq!(
        fs::read_to_string(&sent).expect("it is written"),
        "usr1\nterm\n"
    );
    assert_eq!(fs::read_to_string(&said).expect("it was written"), "x\n");
    kennel.restart().await;
    let ended = must("wait", kennel.client().await.ended(&runs[1].1).await);
    assert_eq!(signals(&ended), ["SIGTERM"]);
}

/// A third of them hangs: each has its time and no more.
// promise: RW-56, RW-74a
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_carries_out_actions_of_100_runs() {
    let mut kennel = Kennel::on_sqlite().await;
    let client = kennel.client().await;
    let said = kennel.scratch().join("said");
    let spawns = (0..100).map(|at| {
        let mut client = client.clone();
        let hang = if at % 3 == 0 { "; sleep 1000" } else { "" };
        let script = format!("echo x >> {}{hang}", said.display());
        let steps = vec![pb::StopAction {
            action: Some(exec(&script)),
            wait: None,
        }];
        let spec = with(
            sh("trap 'exit 5' TERM INT; echo up; while :; do sleep 0.2; done"),
            steps,
        );
        async move {
            let run = must("spawn", client.spawn(spec).await).run_id;
            client.hear_up(&run).await;
            run
        }
    });
    let mut runs = Vec::new();
    for spawn in spawns {
        runs.push(spawn.await);
    }
    let with_input = with_input(&mut kennel.client().await).await;
    let status = kennel.terminate(SHUTDOWN_LIMIT).await;
    assert!(status.success(), "{status:?}");
    let text = fs::read_to_string(&said).expect("it was written");
    assert_eq!(text.lines().count(), 100);
    for run in &runs {
        Footprint::of_id(run).assert_nothing_left();
    }
    kennel.restart().await;
    let mut client = kennel.client().await;
    let mut ended = 0;
    for (at, run) in runs.iter().enumerate() {
        let run = must("get", client.get(run).await);
        ended += usize::from(commands(&run) == [(at % 3 != 0).then_some(0)]);
        assert_eq!(run.code(), Some(5), "{run:?}");
        let certificate = run.attempt().certificate.as_ref().expect("it has ended");
        let begun = certificate.commands[0].time;
        let first = certificate
            .steps
            .iter()
            .find(|step| step.signal != "SIGCONT");
        let signalled = first.expect("a signal").time;
        let in_order = |time: Option<prost_types::Timestamp>| time.map(|t| (t.seconds, t.nanos));
        assert!(in_order(begun) <= in_order(signalled), "{certificate:?}");
    }
    assert_eq!(ended, 100);
    input_was_written(&mut client, &with_input).await;
}

/// Starts runs with actions at standard input; a third of them ends by SIGKILL alone.
async fn with_input(client: &mut Client) -> Vec<pb::Run> {
    const RUNS: usize = 6;
    let steps = || vec![step(input("quit\n"), WAIT), step(close(), WAIT)];
    let hangs = "trap '' INT TERM; echo up; while :; do sleep 1; done";
    let obeys = "echo up; read line; exit 4";
    let mut runs = Vec::new();
    for at in 0..RUNS {
        let script = if at % 3 == 0 { hangs } else { obeys };
        let spec = with(sh(script).open_input(), steps()).grace(Duration::from_secs(3));
        let run = must("spawn", client.spawn(spec).await);
        client.hear_up(&run.run_id).await;
        runs.push(run);
    }
    runs
}

async fn input_was_written(client: &mut Client, runs: &[pb::Run]) {
    for (at, run) in runs.iter().enumerate() {
        let run = must("get", client.get(&run.run_id).await);
        assert_eq!(run.state(), RunState::Cancelled, "{run:?}");
        assert_eq!(run.reason(), "server_shutdown");
        assert!(run.tree_is_empty(), "{run:?}");
        if at % 3 == 0 {
            assert_eq!(run.signal().as_deref(), Some("SIGKILL"));
            assert_eq!(inputs(&run), [(Some(5), 5), (None, 0)]);
            let sent = signals(&run);
            assert_eq!(sent[..2], ["SIGINT", "SIGTERM"], "{sent:?}");
        } else {
            assert_eq!(run.code(), Some(4), "{run:?}");
            assert_eq!(signals(&run), [""; 0]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_actions_are_accepted_or_refused_by_name() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        command_line_has_actions_of_a_stop,
        command_line_has_a_command_of_a_stop,
        faults_of_stop_actions_are_named,
    }
}

// promise: RW-55
async fn command_line_has_actions_of_a_stop(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let typed = [
        "input:bye\\n",
        "wait:1s",
        "close-stdin",
        "signal:usr1",
        "wait:500ms",
    ];
    let mut words = vec!["spawn", "--stdin"];
    words.extend(typed.iter().flat_map(|step| ["--stop-step", step]));
    words.extend(["--", "sh", "-c", "echo up; read line; echo got $line"]);
    let spawned = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert!(spawned.status.success(), "{spawned:?}");
    let run = String::from_utf8_lossy(&spawned.stdout).trim().to_owned();
    client.hear_up(&run).await;
    let aborted = must("abort", client.abort(&run).await);
    let spec = aborted.spec.clone().expect("it is shown");
    let wanted = vec![
        step(input("bye\n"), Duration::from_secs(1)),
        pb::StopAction {
            wait: None,
            ..step(close(), Duration::ZERO)
        },
        step(Action::Signal("SIGUSR1".into()), Duration::from_millis(500)),
    ];
    assert_eq!(spec.stop.expect("it is shown").steps, wanted);
    let heard = must("hear", client.hear_all(&run, 0).await).text();
    assert_eq!(heard, "up\ngot bye\n");
    let words = ["spawn", "--stop-step", "wait:1s", "--", "true"];
    let refused = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

// promise: RW-74
async fn command_line_has_a_command_of_a_stop(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let words = [
        "spawn",
        "--grace=9s",
        "--pre-stop",
        "exit 3",
        "--stop-step",
        "exec:exit 4",
    ];
    let words = [&words[..], &["--", "sh", "-c", LISTENS]].concat();
    let spawned = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert!(spawned.status.success(), "{spawned:?}");
    let run = String::from_utf8_lossy(&spawned.stdout).trim().to_owned();
    client.hear_up(&run).await;
    let run = must("abort", client.abort(&run).await);
    assert_eq!(commands(&run), [Some(3), Some(4)]);
    let why = run_to_end(kennel.cli(&["why", &run.run_id]), PATIENCE).await;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    for action in ["stop step: /bin/sh: code 3", "stop step: /bin/sh: code 4"] {
        assert!(why.contains(action), "{why}");
    }
    let steps = vec![
        step(exec("true"), Duration::from_secs(4)),
        step(Action::Exec(pb::stop_action::Exec::default()), WAIT),
    ];
    let mut spec = with(sh("true"), steps).grace(Duration::from_mins(1));
    spec.set_pid_namespace(pb::PidNamespace::Private);
    let fields = complaint(&client.spawn(spec).await.expect_err("faults")).fields;
    let expected = [
        "spec.stop.steps",
        "spec.stop.steps[0]",
        "spec.stop.steps[1]",
    ];
    let mut fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, expected);
}

// promise: RW-55
async fn faults_of_stop_actions_are_named(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let long = Duration::from_secs(5);
    let all = "spec.stop.steps";
    let on_terminal = |spec: pb::RunSpec| spec.on_terminal(pb::Terminal::default());
    let cases = [
        (with(sh("true"), vec![step(close(), WAIT)]), all),
        (with(sh("true"), vec![step(input("a"), WAIT)]), all),
        (
            with(on_terminal(sh("true")), vec![step(close(), WAIT)]),
            all,
        ),
        (
            with(sh("true").open_input(), vec![step(close(), long)]),
            all,
        ),
        (
            with(
                sh("true"),
                vec![step(Action::Signal("SIGKILL".into()), WAIT)],
            ),
            "spec.stop.steps[0]",
        ),
        (
            with(sh("true"), vec![step(Action::Signal("NOPE".into()), WAIT)]),
            "spec.stop.steps[0].signal",
        ),
        (
            with(sh("true").open_input(), vec![step(input(""), WAIT)]),
            "spec.stop.steps[0]",
        ),
        (
            with(sh("true"), vec![pb::StopAction::default()]),
            "spec.stop.steps[0]",
        ),
        (
            with(
                sh("true").open_input(),
                vec![step(close(), Duration::ZERO); 17],
            ),
            all,
        ),
    ];
    for (spec, field) in cases {
        let refused = client.spawn(spec.clone()).await;
        let fields = complaint(&refused.expect_err(field)).fields;
        assert_eq!(fields, [field], "{spec:?}");
    }
}

/// The signal follows when it exits; a command that hangs has its time, and is gone with all of its session before the
/// signal.
// promise: RW-74
#[tokio::test(flavor = "multi_thread")]
async fn stop_command_runs_before_the_first_signal() {
    let kennel = Kennel::start(Options::default().without_cgroup()).await;
    let mut client = kennel.client().await;
    let said = kennel.scratch().join("said");
    let script = format!("echo $KENNEL_RUN_ID stops >> {}; exit 7", said.display());
    let steps = vec![pb::StopAction {
        action: Some(exec(&script)),
        wait: None,
    }];
    let spec = with(sh(LISTENS).open_input(), steps).grace(Duration::from_hours(1));
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    must("pause", client.pause(&run).await);
    let run = must("abort", client.abort(&run).await);
    assert_eq!(
        (run.code(), commands(&run)),
        (Some(5), vec![Some(7)]),
        "{run:?}"
    );
    let text = fs::read_to_string(&said).expect("it was written");
    assert_eq!(text, format!("{} stops\n", run.run_id));

    let script = format!(
        "sleep 1000 & sleep 1000 & echo x >> {}; sleep 1000",
        said.display()
    );
    let steps = vec![step(exec(&script), WAIT)];
    let spec = with(sh(LISTENS).open_input(), steps).grace(Duration::from_secs(20));
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    let run = must("abort", client.abort(&run).await);
    assert_eq!(
        (run.code(), commands(&run)),
        (Some(5), vec![None]),
        "{run:?}"
    );
    assert_eq!(signals(&run), ["SIGTERM"]);
    Footprint::of_id(&run.run_id).assert_nothing_left();
    let shown = run_to_end(kennel.cli(&["get", &run.run_id]), PATIENCE).await;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("sh: took too long, and was ended"),
        "{shown}"
    );
}
