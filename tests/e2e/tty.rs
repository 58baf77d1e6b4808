//! Commands on a terminal: their environment, input, output, and how they are stopped.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{self, InputEnd, InterruptMethod, LeaderExitAction, RunState, StreamsEnd};
use kennel_tests::{
    Client, Footprint, Heard, Kennel, Options, RunExt, SpecExt, argv, complaint, must, sh,
};
use std::{fs, time::Duration};
use tonic::Code;

with_and_without_cgroup!(terminal_is_as_its_spec_until_hangup);

fn tty(script: &str) -> pb::RunSpec {
    sh(script).on_terminal(pb::Terminal::default())
}

async fn ended(client: &mut Client, spec: pb::RunSpec) -> (pb::Run, Heard) {
    let run_id = must("spawn", client.spawn(spec).await).run_id;
    let run = must("ended", client.ended(&run_id).await);
    let heard = must("stream", client.hear_all(&run_id, 0).await);
    (run, heard)
}

/// Prints its surroundings: whether all three are a terminal, whether it controls one, its size, and variables.
const LOOK: &str = r#"
test -t 0 && test -t 1 && test -t 2 && echo all three
: < /dev/tty && echo controlled
stty size
echo "$TERM-${COLUMNS-}-${LINES-}"
"#;

async fn terminal_is_as_its_spec_until_hangup(options: Options) {
    let kennel = Kennel::start(options).await;
    play_scenes! {
        &kennel;
        command_is_on_terminal_of_its_spec,
        interactive_shell_is_stopped_by_hangup,
    }
}

// promise: P-1
async fn command_is_on_terminal_of_its_spec(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let (run, heard) = ended(&mut client, tty(LOOK)).await;
    assert_eq!((run.state(), run.code()), (RunState::Succeeded, Some(0)));
    assert_eq!(run.kind(), pb::RunKind::Terminal);
    let expected = "all three\r\ncontrolled\r\n40 120\r\nxterm-256color--\r\n";
    assert_eq!(heard.text(), expected);
    assert_eq!(heard.terminal_sizes(), [(40, 120)]);
    let stations = heard.stations();
    assert_eq!(stations[..3], ["recorded", "terminal_resized", "started"]);
    let attempt = run.current_attempt.clone().expect("it has run");
    assert_eq!(attempt.streams_end(), StreamsEnd::Eof);
    assert_eq!(run.terminal_size, None, "it has ended");
    Footprint::of_run(&run).assert_nothing_left();

    let terminal = pb::Terminal {
        rows: Some(1),
        cols: Some(65_535),
        term: "vt100".into(),
    };
    let script = r#"stty size; echo "$TERM""#;
    let (_, heard) = ended(&mut client, sh(script).on_terminal(terminal.clone())).await;
    assert_eq!(heard.text(), "1 65535\r\nvt100\r\n");
    // The caller's TERM wins.
    let own = sh(script).on_terminal(terminal).env("TERM", "dumb");
    assert_eq!(
        ended(&mut client, own).await.1.text(),
        "1 65535\r\ndumb\r\n"
    );
}

// promise: P-3
async fn typed_bytes_are_read_once(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = tty("stty -echo; echo up; cat; echo bye");
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run, "up\r\n").await;
    must("write", client.write(&run, "a", None, b"one\n").await);
    client.hear_text(&run, "one\r\n").await;
    let again = must("write", client.write(&run, "a", None, b"one\n").await);
    assert_eq!((again.start_offset, again.repeated_request), (0, true));
    // The next server has the same terminal and state.
    kennel.kill_server();
    let mut client = kennel.client().await;
    let again = must("write", client.write(&run, "a", None, b"one\n").await);
    assert!(again.repeated_request);
    must("write", client.write(&run, "", Some(4), b"two\n").await);
    let status = must("status", client.input(&run).await);
    assert_eq!(
        (status.accepted_offset, status.unread_bytes),
        (Some(8), None)
    );
    assert_eq!(status.closed_by(), InputEnd::Unspecified);

    let refused = client.close_input(&run, None).await;
    let refused = complaint(&refused.expect_err("a terminal has a key for that"));
    let refusal = (refused.code, refused.reason.as_str());
    assert_eq!(refusal, (Code::FailedPrecondition, "TERMINAL_INPUT"));
    must("the end", client.write(&run, "", None, b"\x04").await);
    let ended = must("ended", client.ended(&run).await);
    assert_eq!(
        (ended.state(), ended.code()),
        (RunState::Succeeded, Some(0))
    );
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "up\r\none\r\ntwo\r\nbye\r\n");
    let late = client.write(&run, "", None, b"x").await;
    assert_eq!(
        complaint(&late.expect_err("it has ended")).reason,
        "RUN_ENDED"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_carries_bytes_sizes_and_keys() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        all_output_before_the_end_is_read,
        reopened_terminal_continues,
        survivor_of_the_leader_keeps_writing,
        interrupt_is_the_key_on_a_terminal,
        raw_terminal_gets_the_key_and_no_signal,
        typed_bytes_are_read_once,
        new_size_reaches_the_command_and_events,
    }
}

// promise: P-2
async fn all_output_before_the_end_is_read(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let (run, heard) = ended(&mut client, tty("stty -opost; seq 1 175000")).await;
    let numbers: Vec<String> = (1..=175_000).map(|n| n.to_string()).collect();
    let wanted = numbers.join("\n") + "\n";
    assert!(wanted.len() > 1 << 20);
    assert_eq!((run.state(), run.code()), (RunState::Succeeded, Some(0)));
    assert!(heard.text() == wanted, "{} bytes", heard.text().len());
    let attempt = run.current_attempt.expect("it has run");
    assert_eq!(attempt.streams_end(), StreamsEnd::Eof);
}

// promise: P-2
async fn reopened_terminal_continues(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // For a moment no process of the run has the terminal open.
    let spec = tty(
        "echo one; exec 0<&- 1>&- 2>&-; sleep 0.1; exec 0</dev/tty 1>/dev/tty 2>&1; echo two; read x; echo $x",
    );
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run, "two\r\n").await;
    must("write", client.write(&run, "", None, b"three\n").await);
    must("ended", client.ended(&run).await);
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "one\r\ntwo\r\nthree\r\nthree\r\n");
}

// promise: P-2
async fn survivor_of_the_leader_keeps_writing(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let script = format!(
        "trap '' HUP; (while ! test -e {}; do sleep 0.02; done; echo late) & echo up",
        go.display()
    );
    let spec = tty(&script).on_leader_exit(LeaderExitAction::Drain, None);
    let run = must("spawn", client.spawn(spec).await).run_id;
    let condition = pb::WaitCondition::LeaderExited;
    must("wait", client.wait(&run, condition).await);
    fs::write(&go, "").expect("it can be written");
    let ended = must("ended", client.ended(&run).await);
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "up\r\nlate\r\n");
    let attempt = ended.current_attempt.expect("it has run");
    assert_eq!(attempt.streams_end(), StreamsEnd::Eof);
}

// promise: P-3, P-5
async fn new_size_reaches_the_command_and_events(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = tty("trap 'stty size' WINCH; echo up; while :; do sleep 0.02; done");
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run, "up\r\n").await;
    let size = |run: &pb::Run| run.terminal_size.map(|size| (size.rows, size.cols));
    assert_eq!(size(&must("get", client.get(&run).await)), Some((40, 120)));
    let resized = must("resize", client.resize(&run, 24, 80).await);
    assert_eq!(size(&resized), Some((24, 80)));
    client.hear_text(&run, "24 80\r\n").await;
    // Resizing to the same size changes nothing.
    must("resize", client.resize(&run, 24, 80).await);
    kennel.kill_server();
    let mut client = kennel.client().await;
    assert_eq!(size(&must("get", client.get(&run).await)), Some((24, 80)));
    must("resize", client.resize(&run, 50, 100).await);
    client.hear_text(&run, "50 100\r\n").await;
    for (rows, cols, fields) in [
        (0, 1, vec!["rows"]),
        (1, 65_536, vec!["cols"]),
        (65_536, 0, vec!["rows", "cols"]),
    ] {
        let refused = client.resize(&run, rows, cols).await;
        assert_eq!(complaint(&refused.expect_err("no size")).fields, fields);
    }
    must("abort", client.abort(&run).await);
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.terminal_sizes(), [(40, 120), (24, 80), (50, 100)]);
    let late = client.resize(&run, 1, 1).await;
    assert_eq!(
        complaint(&late.expect_err("it has ended")).reason,
        "RUN_ENDED"
    );

    let piped = must("spawn", client.spawn(sh("sleep 100")).await).run_id;
    let refused = client.resize(&piped, 1, 1).await;
    let refused = complaint(&refused.expect_err("it has no terminal"));
    let refusal = (refused.code, refused.reason.as_str());
    assert_eq!(refusal, (Code::FailedPrecondition, "NO_TERMINAL"));
}

// promise: P-6
async fn interrupt_is_the_key_on_a_terminal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let waits = "trap 'echo got; exit 0' INT; echo up; while :; do sleep 0.02; done";
    for (settings, way, shown) in [
        ("", InterruptMethod::TerminalKey, "up\r\n^Cgot\r\n"),
        (
            "stty intr x;",
            InterruptMethod::TerminalKey,
            "up\r\nxgot\r\n",
        ),
        (
            "stty intr undef;",
            InterruptMethod::TerminalForeground,
            "up\r\ngot\r\n",
        ),
        (
            "stty -isig;",
            InterruptMethod::TerminalForeground,
            "up\r\ngot\r\n",
        ),
    ] {
        let spec = tty(&format!("{settings} {waits}"));
        let run = must("spawn", client.spawn(spec).await).run_id;
        client.hear_text(&run, "up\r\n").await;
        let method = must("interrupt", client.interrupted_by(&run, "a").await);
        assert_eq!(method, way, "{settings}");
        let again = client.interrupted_by(&run, "a").await;
        if let Ok(again) = again {
            assert_eq!(again, InterruptMethod::Unspecified, "{settings}");
        }
        let ended = must("ended", client.ended(&run).await);
        assert_eq!(
            (ended.state(), ended.code()),
            (RunState::Succeeded, Some(0))
        );
        let heard = must("stream", client.hear_all(&run, 0).await);
        assert_eq!(heard.text(), shown, "{settings}");
        assert_eq!(heard.signals(), ["SIGINT"], "{settings}");
    }
    let spec = sh(waits);
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run, "up\n").await;
    let method = must("interrupt", client.interrupted_by(&run, "").await);
    assert_eq!(method, InterruptMethod::ProcessGroup);
    must("ended", client.ended(&run).await);
}

// promise: P-6
async fn raw_terminal_gets_the_key_and_no_signal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let reads =
        "stty raw -echo; echo up; dd bs=1 count=1 2>/dev/null | od -An -tx1; stty sane; read x";
    let run = must("spawn", client.spawn(tty(reads)).await).run_id;
    client.hear_text(&run, "up\n").await;
    for way in [InterruptMethod::TerminalInput, InterruptMethod::Unspecified] {
        let method = must("interrupt", client.interrupted_by(&run, "a").await);
        assert_eq!(method, way, "typed once under its request id");
    }
    client.hear_text(&run, "up\n 03\n").await;
    let spec = tty("stty raw; echo up; exec sleep 300");
    let signalled = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&signalled, "up\n").await;
    let foreground = pb::SignalTarget::TerminalForeground;
    must(
        "signal",
        client.signal(&signalled, "SIGINT", foreground, "").await,
    );
    must("ended", client.ended(&signalled).await);
    must("abort", client.abort(&run).await);
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert!(!heard.signals().contains(&"SIGINT".to_owned()));
}

// promise: P-7
async fn interactive_shell_is_stopped_by_hangup(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let words = ["bash", "--norc", "-i"];
    // bash ignores SIGTERM, and this grace exceeds the test's time limit.
    let spec = argv(&words).on_terminal(pb::Terminal::default());
    let spec = spec.grace(Duration::from_hours(1));
    let run = must("spawn", client.spawn(spec).await).run_id;
    // Before exec, a child shares the shell's signal handling.
    let typed = b"trap '' TERM; sh -c 'echo o''ne; exec sleep 1000' & sh -c 'echo t''wo; exec sleep 1000'\n";
    must("write", client.write(&run, "", None, typed).await);
    for up in ["one\r\n", "two\r\n"] {
        client.hear_text(&run, up).await;
    }
    let ended = must("abort", client.abort(&run).await);
    assert_eq!(ended.state(), RunState::Cancelled);
    Footprint::of_run(&ended).assert_nothing_left();
    let heard = must("stream", client.hear_all(&run, 0).await);
    let signals = heard.signals();
    assert_eq!(signals.first().map(String::as_str), Some("SIGHUP"));
    assert!(
        !signals.iter().any(|s| s == "SIGTERM" || s == "SIGKILL"),
        "{signals:?}"
    );
}
