//! Output and exit codes of the command line for given answers of a server, as snapshots.
//!
//! After a change of output, `INSTA_UPDATE=always cargo nextest run -p kennel --test answers` writes them again; their
//! difference is read as a part of the change.

mod fake_server;

use fake_server::{FakeServer, bare};
use kennel_client::{REMEMBER_TERMINAL, Time, put_terminal_back};
use kennel_lifecycle::TerminalSize;
use kennel_linux::terminal::Terminal;
use kennel_proto::{
    pb::{
        self, Activity, OutputStream, RunKind, RunState,
        end_reason::{self, Reason as EndReason},
        event::Payload,
        exit,
        lifecycle::{self, Station},
        output_rule, tree_verdict,
    },
    reason::Reason,
};
use std::{fs::File, io::Read as _, path::Path};

const RUN: &str = "01JD0000000000000000000000";
const OTHER_RUN: &str = "01JD1111111111111111111111";
/// Later than any run of these tests, so that each is no second old: 2100-01-01.
const TIME: i64 = 4_102_444_800;
/// A name that would clear the screen, set a title, forge a line, and reverse the following text.
const HOSTILE: &str =
    "a\u{1b}[2J\u{1b}]0;b\u{7}\u{9b}1m\nstate           SUCCEEDED\rc\u{202e}d\u{2066}";

fn at(second: i64) -> Time {
    Time {
        seconds: TIME + second,
        nanos: 0,
    }
}

/// Returns a live run of this command.
fn live(run_id: &str, args: &[&str]) -> pb::Run {
    let command = pb::Argv {
        args: args.iter().map(ToString::to_string).collect(),
        ..pb::Argv::default()
    };
    pb::Run {
        run_id: run_id.to_owned(),
        owner: "uid:0".to_owned(),
        node_id: "node-a".to_owned(),
        spec: Some(pb::RunSpec {
            command: Some(pb::run_spec::Command::Argv(command)),
            ..pb::RunSpec::default()
        }),
        kind: RunKind::Job.into(),
        state: RunState::Running.into(),
        create_time: Some(at(0)),
        current_attempt: Some(pb::Attempt {
            number: 1,
            pid: 4711,
            process_group_id: 4711,
            session_id: 4711,
            shim_pid: 4710,
            start_time: Some(at(1)),
            ..pb::Attempt::default()
        }),
        ..pb::Run::default()
    }
}

/// Returns a run that has ended.
fn ended(run_id: &str, state: RunState, reason: EndReason, result: exit::Result) -> pb::Run {
    let mut run = live(run_id, &["sh", "-c", "exit"]);
    run.state = state.into();
    run.end_time = Some(at(9));
    run.end_reason = Some(pb::EndReason {
        reason: Some(reason),
    });
    run.tree_verdict = Some(pb::TreeVerdict {
        verdict: Some(tree_verdict::Verdict::Empty(tree_verdict::Empty {
            proof: pb::EmptyProof::Echild.into(),
        })),
    });
    let attempt = run.current_attempt.get_or_insert_default();
    attempt.exit = Some(pb::Exit {
        result: Some(result),
        ..pb::Exit::default()
    });
    run
}

fn killed() -> exit::Result {
    exit::Result::Signal(exit::Signal {
        name: "SIGKILL".to_owned(),
        number: 9,
    })
}

fn too_late() -> EndReason {
    EndReason::DeadlineExceeded(end_reason::DeadlineExceeded {
        which: pb::Deadline::MaxRuntime.into(),
    })
}

fn got(run: pb::Run) -> pb::GetRunResponse {
    pb::GetRunResponse { run: Some(run) }
}

fn listed(runs: &[pb::Run]) -> pb::ListRunsResponse {
    pb::ListRunsResponse {
        runs: runs.to_vec(),
        ..pb::ListRunsResponse::default()
    }
}

/// Returns events of the run, a second after each other, below its snapshot.
fn events(payloads: Vec<Payload>) -> Vec<pb::StreamEventsResponse> {
    let snapshot = Payload::Snapshot(Box::new(pb::Snapshot {
        run: Some(live(RUN, &["true"])),
        head_seq: payloads.len() as u64,
        first_seq: 1,
    }));
    let event = |(seq, payload): (u64, Payload)| pb::Event {
        seq_delta: seq,
        time_delta: Some(
            std::time::Duration::from_secs(seq)
                .try_into()
                .expect("small"),
        ),
        payload: Some(payload),
    };
    let message = |events: Vec<pb::Event>| pb::StreamEventsResponse {
        run_events: vec![pb::RunEvents {
            run_id: RUN.to_owned(),
            attempt: 1,
            base_seq: 0,
            base_time: Some(at(0)),
            events,
        }],
        ..pb::StreamEventsResponse::default()
    };
    let numbered = (1..).zip(payloads).map(event).collect();
    vec![message(vec![event((0, snapshot))]), message(numbered)]
}

fn station(station: Station) -> Payload {
    Payload::Lifecycle(pb::Lifecycle {
        station: Some(station),
    })
}

fn output(stream: OutputStream, offset: u64, data: &'static [u8]) -> Payload {
    Payload::Output(pb::Output {
        stream: stream.into(),
        data: data.into(),
        offset,
    })
}

/// Returns the events of a run with this exit and this reason of its end.
fn story(outputs: Vec<Payload>, result: exit::Result, reason: &str) -> Vec<Payload> {
    let recorded = lifecycle::Recorded {
        pid: 4711,
        process_group_id: 4711,
        ..lifecycle::Recorded::default()
    };
    let exited = lifecycle::LeaderExited {
        exit: Some(pb::Exit {
            result: Some(result),
            ..pb::Exit::default()
        }),
    };
    let ended = lifecycle::Ended {
        state: RunState::Failed.into(),
        reason: reason.to_owned(),
    };
    let mut all = vec![
        station(Station::Recorded(recorded)),
        station(Station::Started(lifecycle::Started {})),
    ];
    all.extend(outputs);
    all.push(station(Station::LeaderExited(exited)));
    all.push(station(Station::Ended(ended)));
    all
}

#[test]
fn runs_are_listed_in_each_format() {
    let server = FakeServer::start();
    let mut service = live(RUN, &["sh", "-c", "exec sleep 300"]);
    service.kind = RunKind::Service.into();
    service.labels = [("app".to_owned(), "web".to_owned())].into();
    service.activity = Activity::Working.into();
    service.set_wait(pb::Wait::Ready);
    let ready = pb::OutputRule {
        action: Some(output_rule::Action::Ready(output_rule::Ready::default())),
        ..pb::OutputRule::default()
    };
    service.spec.get_or_insert_default().output_rules = vec![ready];
    let failed = ended(
        OTHER_RUN,
        RunState::Failed,
        EndReason::Exited(end_reason::Exited {}),
        exit::Result::Code(3),
    );
    server.answer("ListRuns", &listed(&[failed, service]));
    insta::assert_snapshot!(server.transcript(&[
        &["ps"],
        &["ps", "-o", "wide"],
        &["ps", "-q", "--reverse"],
        &["ps", "-o", "name", "--sort", "run"],
        &["ps", "-o", "json"],
    ]));
}

#[test]
fn ps_sends_state_and_label_filters() {
    let server = FakeServer::start();
    server.answer("ListRuns", &listed(&[]));
    let asked = |words: &[&str]| {
        let printed = server.transcript(&[words]);
        let request: pb::ListRunsRequest = server.last("ListRuns");
        let filter = request.filter.expect("a filter");
        let states = filter.states().map(|state| state.as_str_name());
        let states: Vec<&str> = states.map(|s| s.trim_start_matches("RUN_STATE_")).collect();
        format!("{printed}{}; {}\n", states.join(" "), filter.label_selector)
    };
    insta::assert_snapshot!(
        [
            asked(&["ps"]),
            asked(&["ps", "--all"]),
            asked(&["ps", "--label", "who=you"]),
            asked(&["ps", "--all", "--label", "who=you"]),
            asked(&["ps", "--state", "failed"]),
        ]
        .concat()
    );
}

#[test]
fn get_prints_all_details_of_a_run() {
    let server = FakeServer::start();
    let mut run = ended(RUN, RunState::Failed, too_late(), exit::Result::Code(0));
    let spec = run.spec.get_or_insert_default();
    spec.cwd = Some("/usr".to_owned());
    spec.timeouts = Some(pb::Timeouts {
        max_runtime: Some(seconds(3)),
        ..pb::Timeouts::default()
    });
    run.time_limits = vec![pb::TimeLimit {
        limit: pb::Deadline::MaxRuntime.into(),
        end_time: Some(at(3)),
        ..pb::TimeLimit::default()
    }];
    run.labels = [("app".to_owned(), "web".to_owned())].into();
    let attempt = run.current_attempt.get_or_insert_default();
    attempt.usage = Some(Box::new(pb::Usage {
        cpu_user_time: Some(seconds(2)),
        cpu_system_time: Some(seconds(1)),
        memory_peak_bytes: Some(5 << 20),
        ..pb::Usage::default()
    }));
    server.answer("GetRun", &got(run));
    insta::assert_snapshot!(server.transcript(&[
        &["get", RUN],
        &["get", RUN, "-o", "json"],
        &["get", RUN, "-o", "name"],
    ]));
}

fn seconds<T: TryFrom<std::time::Duration, Error: std::fmt::Debug>>(seconds: u64) -> T {
    std::time::Duration::from_secs(seconds)
        .try_into()
        .expect("small")
}

#[test]
fn status_prints_server_info() {
    let server = FakeServer::start();
    let capability = |name: &str, available| pb::Capability {
        name: name.to_owned(),
        available,
        why: "the host has no cgroup v2".to_owned(),
        instead: "the shim ends the tree".to_owned(),
    };
    let info = pb::ServerInfo {
        version: "1.2.3".to_owned(),
        node_id: "node-a".to_owned(),
        node_name: "alpha".to_owned(),
        generation: 7,
        start_time: Some(at(0)),
        keeper: Some(pb::Keeper {
            epoch: "epoch".to_owned(),
            pid: 42,
            version: "1.2.3".to_owned(),
            ..pb::Keeper::default()
        }),
        store: Some(pb::StoreInfo {
            kind: "sqlite".to_owned(),
            reachable: true,
        }),
        host: Some(pb::HostCapabilities {
            kernel: "6.18".to_owned(),
            cgroup_refused: "the host has no cgroup v2".to_owned(),
            capabilities: vec![capability("pidfd", true), capability("cgroup", false)],
            ..pb::HostCapabilities::default()
        }),
        live_runs: vec![pb::StateCount {
            state: RunState::Running.into(),
            count: 2,
        }],
        ..pb::ServerInfo::default()
    };
    server.answer(
        "GetServerInfo",
        &pb::GetServerInfoResponse { server: Some(info) },
    );
    insta::assert_snapshot!(server.transcript(&[&["status"], &["status", "-o", "json"]]));
}

fn process(pid: i32, parent_pid: i32, args: &[&str]) -> pb::TreeProcess {
    pb::TreeProcess {
        pid,
        parent_pid,
        process_group_id: 4711,
        session_id: 4711,
        state: "S".to_owned(),
        rss_bytes: 2 << 20,
        args: args.iter().map(ToString::to_string).collect(),
        held_by: vec![pb::ProcessHold::Shim.into()],
        ..pb::TreeProcess::default()
    }
}

// promise: C-9
#[test]
fn tree_has_processes_and_child_runs() {
    let server = FakeServer::start();
    let tree = pb::GetTreeResponse {
        run: Some(live(RUN, &["sh", "-c", "sleep 100 & wait"])),
        processes: vec![
            process(4711, 4710, &["sh", "-c", "sleep 100 & wait"]),
            process(4712, 4711, &["sleep", "100"]),
        ],
        unlisted_processes: 0,
    };
    let over = pb::GetTreeResponse {
        run: Some(ended(
            RUN,
            RunState::Failed,
            EndReason::Exited(end_reason::Exited {}),
            exit::Result::Code(5),
        )),
        ..pb::GetTreeResponse::default()
    };
    for answer in [&tree, &tree, &over] {
        server.answer("GetTree", answer);
    }
    server.answer("ListRuns", &listed(&[live(OTHER_RUN, &["make", "-j 2"])]));
    server.answer("ListRuns", &listed(&[]));
    insta::assert_snapshot!(server.transcript(&[
        &["tree", RUN],
        &["tree", "-o", "json", RUN],
        &["tree", RUN],
    ]));
    let request: pb::ListRunsRequest = server.last("ListRuns");
    assert_eq!(request.filter.expect("a filter").parent_run_id, RUN);
}

// promise: C-9
#[test]
fn signal_reports_each_process_or_its_refusal() {
    let server = FakeServer::start();
    let sent = |outcome: pb::SignalOutcome| pb::SignalResponse {
        run: Some(live(RUN, &["sleep", "300"])),
        targets: vec![pb::SignalledProcess {
            pid: 4711,
            start_ticks: 1,
            outcome: outcome.into(),
            error_number: None,
        }],
        ..pb::SignalResponse::default()
    };
    server.answer("Signal", &sent(pb::SignalOutcome::Delivered));
    server.answer("Signal", &sent(pb::SignalOutcome::Gone));
    let ended = format!("run {RUN} has ended");
    server.refuse("Signal", Reason::RunEnded, &ended, &[]);
    insta::assert_snapshot!(server.transcript(&[
        &["signal", "--request-id", "once", "usr1", RUN],
        &["signal", "usr1", RUN],
        &["signal", "--to", "tree", "SIGUSR1", RUN],
        &["signal", "--request-id", "", "usr1", RUN],
        &["signal", "--request-id", "once", "usr1", RUN, OTHER_RUN],
        &["signal", "nothing", RUN],
    ]));
    let request: pb::SignalRequest = server.last("Signal");
    assert_eq!(request.signal, "SIGUSR1");
    assert_eq!(request.target(), pb::SignalTarget::Tree);
}

// promise: C-35
#[test]
fn wait_exits_with_the_commands_exit_code() {
    let server = FakeServer::start();
    let exited = || EndReason::Exited(end_reason::Exited {});
    let code = exit::Result::Code;
    let unknown = || exit::Result::Unknown(exit::Unknown {});
    let answers = vec![
        (ended(RUN, RunState::Failed, exited(), code(5)), true),
        (ended(RUN, RunState::Succeeded, exited(), code(0)), true),
        (ended(RUN, RunState::Failed, exited(), killed()), true),
        // The command exited with code 0 when it was stopped, but too late.
        (ended(RUN, RunState::Failed, too_late(), code(0)), true),
        (ended(RUN, RunState::Lost, exited(), unknown()), true),
        (ended(RUN, RunState::Failed, exited(), code(5)), true),
        (ended(RUN, RunState::Failed, exited(), code(5)), false),
    ];
    for (run, reached) in answers {
        let run = Some(run);
        server.answer("WaitRun", &pb::WaitRunResponse { run, reached });
    }
    let missing = format!("no run {RUN}");
    server.refuse("WaitRun", Reason::RunNotFound, &missing, &[]);
    let (wait, leader) = (["wait", RUN], ["wait", "--for", "leader-exited", RUN]);
    let started = ["wait", "--for", "started", RUN];
    insta::assert_snapshot!(server.transcript(&[
        &wait, &wait, &wait, &wait, &wait, &leader, &started, &wait, &started,
    ]));
}

// promise: C-10
#[test]
fn run_exits_like_timeout_after_max_runtime() {
    let server = FakeServer::start();
    server.answer(
        "Spawn",
        &pb::SpawnResponse {
            run: Some(live(RUN, &["sh"])),
            ..pb::SpawnResponse::default()
        },
    );
    let bye = vec![output(OutputStream::Stdout, 0, b"bye\n")];
    for (result, reason) in [
        (exit::Result::Code(0), "deadline_exceeded"),
        (exit::Result::Code(7), "exited"),
        (killed(), "exited"),
        (killed(), "oom_killed"),
    ] {
        server.stream("StreamEvents", &events(story(bye.clone(), result, reason)));
    }
    let run = ["run", "--run-id", RUN, "--timeout", "3s", "--", "sh"];
    insta::assert_snapshot!(server.transcript(&[&run, &run, &run, &run]));
    let request: pb::SpawnRequest = server.last("Spawn");
    let timeouts = request.spec.expect("a spec").timeouts;
    assert_eq!(timeouts.and_then(|t| t.max_runtime), Some(seconds(3)));
}

#[test]
fn run_exits_126_or_127_for_failed_starts() {
    let server = FakeServer::start();
    let missing = [("command", "no-such-command-of-ours")];
    let message = "command no-such-command-of-ours was not found in PATH";
    server.refuse("Spawn", Reason::CommandNotFound, message, &missing);
    let message = "cannot execute /tmp/plain: permission denied";
    let denied = [("stage", "EXEC"), ("errno", "13")];
    server.refuse("Spawn", Reason::SpawnFailed, message, &denied);
    let message = "cannot open /no/such/dir as working directory";
    let cwd = [("stage", "WORK_DIR"), ("errno", "2")];
    server.refuse("Spawn", Reason::SpawnFailed, message, &cwd);
    let message = "the run id is invalid";
    server.refuse("Spawn", Reason::InvalidRunId, message, &[]);
    let run = ["run", "--", "x"];
    insta::assert_snapshot!(server.transcript(&[&run, &run, &run, &run]));
}

#[test]
fn errors_of_the_server_have_hints() {
    let server = FakeServer::start();
    let missing = format!("no run {RUN}");
    server.refuse("GetRun", Reason::RunNotFound, &missing, &[]);
    server.refuse("Abort", Reason::RunNotFound, &missing, &[]);
    let message = "the run is SUCCEEDED";
    server.refuse("Interrupt", Reason::RunEnded, message, &[]);
    let allowed = [("allowed", "RESUME,ABORT")];
    server.refuse("Pause", Reason::InvalidState, "the run is PAUSED", &allowed);
    server.answer("ListRuns", &listed(&[]));
    insta::assert_snapshot!(server.transcript(&[
        &["get", RUN],
        &["get", "01JD"],
        &["get", "pods"],
        &["abort", RUN],
        &["interrupt", RUN],
        &["pause", RUN],
        &["resume", RUN],
    ]));
}

// promise: C-5
#[test]
fn logs_are_byte_exact_on_their_streams() {
    let server = FakeServer::start();
    let written = vec![
        output(OutputStream::Stdout, 0, b"a\0b\x1b[31m"),
        output(OutputStream::Stderr, 0, b"err\n"),
        output(OutputStream::Stdout, 8, b"late\xff\n"),
    ];
    let messages = events(story(written, exit::Result::Code(3), "exited"));
    server.stream("StreamEvents", &messages);
    for words in [&["logs", RUN][..], &["logs", "-f", RUN]] {
        let printed = server.run(words);
        assert_eq!(printed.stdout, b"a\0b\x1b[31mlate\xff\n", "{printed:?}");
        assert_eq!(printed.stderr, b"err\n");
        assert_eq!(printed.status.code(), Some(0));
    }
    let stderr = server.run(&["logs", "--stream", "stderr", RUN]);
    assert_eq!(
        (&*stderr.stdout, &*stderr.stderr),
        (&b""[..], &b"err\n"[..])
    );
    let request: pb::StreamEventsRequest = server.last("StreamEvents");
    let kinds: Vec<pb::EventKind> = request.kinds().collect();
    assert_eq!(kinds, [pb::EventKind::Lifecycle, pb::EventKind::Stderr]);
    let exited = EndReason::Exited(end_reason::Exited {});
    let run = ended(RUN, RunState::Failed, exited, exit::Result::Code(3));
    server.answer("GetRun", &got(run));
    insta::assert_snapshot!(server.transcript(&[
        &["events", RUN],
        &["events", "-o", "json", RUN],
        &["why", RUN],
    ]));
}

/// Names of runs cannot act on the terminal of an operator, or forge a line of output. JSON is exact.
// promise: C-36
#[test]
fn hostile_run_names_are_escaped() {
    let server = FakeServer::start();
    let run = live(RUN, &["sh", "-c", "sleep 300", HOSTILE]);
    server.answer("GetRun", &got(run.clone()));
    server.answer("ListRuns", &listed(std::slice::from_ref(&run)));
    server.answer(
        "GetTree",
        &pb::GetTreeResponse {
            run: Some(run),
            processes: vec![process(4711, 4710, &["sh", "-c", "sleep 300", HOSTILE])],
            unlisted_processes: 0,
        },
    );
    let warning = Payload::Warning(pb::Warning {
        message: HOSTILE.to_owned(),
    });
    let written = vec![
        output(OutputStream::Stdout, 0, b"\xe2\x80\xae \x1b[2J\x1b]0;b\x07"),
        warning,
    ];
    let messages = events(story(written, exit::Result::Code(0), "exited"));
    server.stream("StreamEvents", &messages);
    let record = pb::AuditRecord {
        seq: 1,
        time: Some(at(0)),
        run_id: HOSTILE.to_owned(),
        record: Some(pb::audit_record::Record::Request(pb::AuditRequest {
            rpc: "Spawn".to_owned(),
            by: HOSTILE.to_owned(),
            code: "OK".to_owned(),
            ..pb::AuditRequest::default()
        })),
    };
    let records = pb::StreamAuditResponse {
        records: vec![record],
    };
    server.answer("StreamAudit", &records);
    // The message as the server writes it.
    let message = format!("command {HOSTILE:?} was not found in PATH");
    let facts = [("command", HOSTILE)];
    server.refuse("Spawn", Reason::CommandNotFound, &message, &facts);

    let refused = format!("01JD{HOSTILE}");
    let lines: [&[&str]; 9] = [
        &["get", RUN],
        &["ps"],
        &["tree", RUN],
        &["why", RUN],
        &["events", RUN],
        &["audit", RUN],
        &["abort", &refused],
        &["get", &refused],
        &["run", "--", HOSTILE],
    ];
    for words in lines {
        let printed = server.run(words);
        for stream in [printed.stdout, printed.stderr] {
            let shown = String::from_utf8(stream).expect("text");
            let acts = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{2066}".contains(c);
            assert!(!shown.contains(acts), "{words:?}: {shown:?}");
            let is_forged = shown.contains("\nstate           SUCC");
            assert!(!is_forged, "{words:?}: {shown:?}");
        }
    }
    insta::assert_snapshot!(server.transcript(&lines));

    let json = server.run(&["get", "-o", "json", RUN]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["spec"]["argv"]["args"][3], HOSTILE);
    let logs = server.run(&["logs", RUN]);
    assert_eq!(logs.stdout, b"\xe2\x80\xae \x1b[2J\x1b]0;b\x07");
}

/// Each shell has a script; bash is installed, and completes words, runs and labels.
// promise: C-55
#[test]
fn every_shell_has_completion_instructions() {
    let server = FakeServer::start();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let printed = server.run(&["completions", shell]);
        let script = String::from_utf8(printed.stdout).expect("UTF-8");
        assert!(
            script.contains("kennel") && script.contains("KENNEL_COMPLETE"),
            "{shell}: {script}"
        );
    }
    let mut run = live(RUN, &["sleep", "600"]);
    run.labels = [("app".to_owned(), "web".to_owned())].into();
    server.answer("ListRuns", &listed(&[run]));
    let script = r#"PATH=$(dirname "$0"):$PATH; source <(kennel completions bash)
        complete_with() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _clap_complete_kennel kennel "${!#}"; echo "${COMPREPLY[@]}"; }
        complete_with kennel att; complete_with kennel stop "$1"; complete_with kennel ps -l ap
        complete_with kennel ext; complete_with kennel extend "$1" 10m --start"#;
    let mut bash = bare(Path::new("bash"));
    bash.args(["-c", script, env!("CARGO_BIN_EXE_kennel"), &RUN[..12]])
        .env("KENNEL_SERVER", server.address());
    let completed = bash.output().expect("bash runs");
    assert_eq!(
        String::from_utf8_lossy(&completed.stdout),
        format!("attach\n{RUN}\napp=web\nextend\n--start-timeout\n"),
        "{completed:?}"
    );
}

/// The terminal remembers its titles and colours before the command's first byte, and has them back after its last one.
// promise: P-11, P-14
#[test]
fn attach_repeats_modes_and_restores_the_terminal() {
    for untouched in [false, true] {
        let repaint = b"\x1b[2J\x1b]2;title\x07\x1b[?2004h\x1b[?25l";
        let text = b"\x1b]10;red\x07text";
        let opened = pb::AttachOpened {
            screen: Some(pb::Screen {
                repaint: repaint.to_vec().into(),
                untouched,
                ..pb::Screen::default()
            }),
            ..pb::AttachOpened::default()
        };
        let messages = events(vec![output(OutputStream::Stdout, 0, text)]).into_iter();
        let events = pb::AttachEvents {
            run_events: messages.flat_map(|message| message.run_events).collect(),
            ..pb::AttachEvents::default()
        };
        let reported = [
            pb::attach_response::Response::Opened(Box::new(opened)),
            pb::attach_response::Response::Events(events),
        ];
        let server = FakeServer::start();
        let reported = reported.map(|response| pb::AttachResponse {
            response: Some(response),
        });
        server.stream("Attach", &reported);
        let exited = ended(
            RUN,
            RunState::Succeeded,
            EndReason::Exited(end_reason::Exited {}),
            exit::Result::Code(0),
        );
        server.answer("GetRun", &got(exited));

        let size = TerminalSize { rows: 6, cols: 20 };
        let (mut terminal, command) = Terminal::open(size).expect("a call").expect("a terminal");
        let stdio = || command.try_clone().expect("a descriptor");
        let mut kennel = server.kennel(&["attach", RUN]);
        let kennel = kennel.stdin(stdio()).stdout(stdio()).status();
        assert!(kennel.expect("the binary runs").success());
        drop(command);
        terminal.leader_is_gone();
        let master = terminal.master().try_clone().expect("a descriptor");
        let mut shown = Vec::new();
        // Reading a terminal that no process has open ends with EIO.
        let _ = File::from(master).read_to_end(&mut shown);
        let repaint = if untouched { b"" } else { repaint.as_slice() };
        let before = REMEMBER_TERMINAL.as_bytes();
        let wanted = [before, repaint, text, put_terminal_back().as_bytes()].concat();
        assert_eq!(
            shown.escape_ascii().to_string(),
            wanted.escape_ascii().to_string()
        );
    }
}

/// The server that answers next is that of another upgrade, which came right before or after this one, or that of another
/// keeper, which does not know this one.
// promise: R-26
#[test]
fn concurrent_upgrades_report_one_result() {
    use pb::UpgradeState::{Done, FellBack, Leaving};
    for (states, keepers, result) in [
        ([Leaving, Leaving, Done], ["a", "a", "a"], (0, true, "")),
        (
            [Leaving, Done, Done],
            ["a", "b", "b"],
            (
                1,
                false,
                "error: the service was restarted meanwhile: the result of the upgrade is not known\nhint: kennel status\n",
            ),
        ),
        (
            [Leaving, FellBack, FellBack],
            ["a", "a", "a"],
            (
                1,
                false,
                "error: fell back to kennel : it died\nhint: the service's log has what the new server said\n",
            ),
        ),
    ] {
        let server = FakeServer::start();
        for state in states {
            let upgrade = pb::Upgrade {
                state: state.into(),
                why: "it died".to_owned(),
                ..pb::Upgrade::default()
            };
            let upgrade = Some(upgrade);
            server.answer("Upgrade", &pb::UpgradeResponse { upgrade });
        }
        for (start, keeper) in (0..).zip(keepers) {
            let of_other = pb::Upgrade {
                request_id: "other".to_owned(),
                ..pb::Upgrade::default()
            };
            let info = pb::ServerInfo {
                start_time: Some(at(start)),
                keeper: Some(pb::Keeper {
                    epoch: keeper.to_owned(),
                    ..pb::Keeper::default()
                }),
                last_upgrade: Some(of_other),
                ..pb::ServerInfo::default()
            };
            let server_info = Some(info);
            let info = pb::GetServerInfoResponse {
                server: server_info,
            };
            server.answer("GetServerInfo", &info);
        }
        let printed = server.run(&["upgrade"]);
        let (code, prints, error) = result;
        assert_eq!(printed.status.code(), Some(code));
        assert_eq!(!printed.stdout.is_empty(), prints, "{printed:?}");
        assert_eq!(String::from_utf8_lossy(&printed.stderr), error);
    }
    // The server that answers the call is not the one that has the result.
    let server = FakeServer::start();
    let request = pb::AuditRequest {
        rpc: "Upgrade".to_owned(),
        by: "ada".to_owned(),
        code: "OK".to_owned(),
        ..pb::AuditRequest::default()
    };
    let record = pb::AuditRecord {
        time: Some(at(0)),
        record: Some(pb::audit_record::Record::Request(request)),
        ..pb::AuditRecord::default()
    };
    let records = vec![record];
    server.answer("StreamAudit", &pb::StreamAuditResponse { records });
    let printed = String::from_utf8(server.run(&["audit"]).stdout);
    let wanted = "2100-01-01T00:00:00Z node Upgrade by ada: begun\n";
    assert_eq!(printed.as_deref(), Ok(wanted));
}

/// A file that the run has as a whole, with more behind it, is written; its end is not that of the input.
// promise: V-8
#[test]
fn write_skips_bytes_already_accepted() {
    let server = FakeServer::start();
    let input = pb::InputStatus {
        attempt: 1,
        accepted_offset: Some(13),
        ..pb::InputStatus::default()
    };
    let input = Some(input);
    server.answer("GetInputStatus", &pb::GetInputStatusResponse { input });
    server.refuse("CloseInput", Reason::InputOffsetMismatch, "it has 13", &[]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "one two ").expect("own file");
    let path = file.path().to_str().expect("UTF-8");
    let words = ["write", RUN, path, "--offset", "0"];
    let skipped = server.run(&words);
    assert_eq!(skipped.status.code(), Some(0), "{skipped:?}");
    assert_eq!(String::from_utf8_lossy(&skipped.stdout), "13 open\n");
    let refused = server.run(&[&words[..], &["--close"]].concat());
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(
        server.last::<pb::CloseInputRequest>("CloseInput").offset,
        Some(8)
    );
}

#[test]
fn unimplemented_methods_are_reported() {
    let server = FakeServer::start();
    insta::assert_snapshot!(server.transcript(&[&["ps"], &["nodes"], &["get", RUN]]));
}
