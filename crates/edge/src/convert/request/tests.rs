use super::*;
use crate::convert::token::Cursor;
use crate::pb::run_spec::Stdio;
use kennel_lifecycle::{RunKind, RunState, TerminalSize, TerminalSpec};
use kennel_supervisor::{Amount, Kinds, Reached, Tail};
use pb::stream_events_request;
use tonic::Code;
use tonic_types::StatusExt;

const RUN: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

#[test]
fn a_spawn_carries_what_identifies_it() {
    let trace = TraceContext {
        traceparent: Some("parent".to_owned()),
        tracestate: Some("state".to_owned()),
        baggage: None,
    };
    let request = pb::SpawnRequest {
        run_id: RUN.to_owned(),
        validate_only: true,
        spec: Some(argv(&["true"])),
    };
    let call = spawn(request, "uid:5".to_owned(), trace, &key()).expect("valid");
    assert_eq!(call.run.expect("given").to_string(), RUN);
    assert!(call.validate_only);
    assert_eq!(call.spec.command.argv, ["true"]);
    assert_eq!(call.spec_digest, key().of_spec(&call.spec));
    assert_eq!(call.spec_digest_version, SPEC_DIGEST_VERSION);
    assert_eq!(call.owner, "uid:5");
    assert_eq!(call.traceparent.as_deref(), Some("parent"));
    assert_eq!(call.tracestate.as_deref(), Some("state"));
}

#[test]
fn spawn_without_run_id_gets_one_from_server() {
    let request = pb::SpawnRequest {
        spec: Some(argv(&["true"])),
        ..pb::SpawnRequest::default()
    };
    let call = spawn(request, String::new(), TraceContext::default(), &key()).expect("valid");
    assert_eq!(call.run, None);
}

#[test]
fn bad_run_id_has_its_own_reason() {
    for bad in [
        "../../x",
        "01arz3ndektsv4rrffq69g5fav",
        "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
    ] {
        let request = pb::SpawnRequest {
            run_id: bad.to_owned(),
            validate_only: false,
            spec: Some(argv(&["true"])),
        };
        let refused = spawn(request, String::new(), TraceContext::default(), &key());
        assert_eq!(reason(&refused.expect_err("refused")), "INVALID_RUN_ID");
        assert_eq!(reason(&run_id(bad).expect_err("refused")), "INVALID_RUN_ID");
    }
    assert_eq!(reason(&run_id("").expect_err("refused")), "INVALID_RUN_ID");
}

#[test]
fn all_violations_of_a_spawn_are_reported_together() {
    let mut spec = pb::RunSpec {
        kind: 77,
        cwd: Some("here".to_owned()),
        ..argv(&["a\0b"])
    };
    spec.stop.get_or_insert_default().grace = Some(seconds(-1));
    let request = pb::SpawnRequest {
        run_id: "x".to_owned(),
        validate_only: false,
        spec: Some(spec),
    };
    let refused = spawn(request, String::new(), TraceContext::default(), &key());
    assert_eq!(
        fields(&refused.expect_err("refused")),
        [
            "run_id",
            "spec.argv.args[0]",
            "spec.cwd",
            "spec.kind",
            "spec.stop.grace"
        ]
    );
}

#[test]
fn write_id_is_plain_ascii() {
    let write = |id: &str| {
        write_input(pb::WriteInputRequest {
            run_id: RUN.to_owned(),
            data: b"a".as_slice().into(),
            write_id: id.to_owned(),
            ..pb::WriteInputRequest::default()
        })
    };
    let longest = "~".repeat(bounds::WRITE_ID_BYTES_MAX);
    for good in ["", "w 1", "{!}", longest.as_str()] {
        write(good).expect(good);
    }
    let too_long = longest + "x";
    for bad in ["\"", "\\", "\n", "\0", "\u{7f}", "\u{e4}", &too_long] {
        let refused = write(bad).expect_err(bad);
        assert!(refused.message().contains("write_id"), "{refused:?}");
    }
}

#[test]
fn signal_needs_a_name_and_defaults_to_leader() {
    let ask = |name: &str, target: i32| {
        signal(&pb::SignalRequest {
            run_id: RUN.to_owned(),
            request_id: "a".to_owned(),
            signal: name.to_owned(),
            target,
        })
    };
    let call = ask("SIGRTMIN+3", 0).expect("valid");
    assert_eq!(
        (call.signal.number(), call.target),
        (37, SignalTarget::Leader)
    );
    assert_eq!(call.request_id.as_deref(), Some("a"));
    let targets = [
        (pb::SignalTarget::Tree, SignalTarget::Tree),
        (pb::SignalTarget::Group, SignalTarget::Group),
        (pb::SignalTarget::Leader, SignalTarget::Leader),
        (
            pb::SignalTarget::TerminalForeground,
            SignalTarget::TerminalForeground,
        ),
    ];
    for (asked, target) in targets {
        let call = ask("SIGKILL", asked.into()).expect("valid");
        assert_eq!((call.signal, call.target), (Signal::KILL, target));
    }
    for bad in [
        "",
        "USR1",
        "sigusr1",
        "10",
        "SIGRTMIN+31",
        "SIGRTMIN-1",
        "SIGNAL",
    ] {
        assert_eq!(fields(&ask(bad, 1).expect_err(bad)), ["signal"]);
    }
    let stop = ask("SIGSTOP", 1).expect_err("refused");
    assert_eq!(fields(&stop), ["signal"]);
    assert!(stop.message().contains("Pause"), "{stop:?}");
    assert_eq!(
        fields(&ask("SIGFOO", 99).expect_err("refused")),
        ["signal", "target"]
    );
}

#[test]
fn missing_command_and_missing_spec_are_violations() {
    let ask = |spec| {
        let request = pb::SpawnRequest {
            spec,
            ..pb::SpawnRequest::default()
        };
        let refused = spawn(request, String::new(), TraceContext::default(), &key());
        fields(&refused.expect_err("refused"))
    };
    assert_eq!(ask(None), ["spec"]);
    assert_eq!(ask(Some(pb::RunSpec::default())), ["spec.argv.args"]);
}

#[test]
fn run_is_on_a_terminal_only_by_spec() {
    let of = |kind: pb::RunKind, stdio: Option<Stdio>| {
        let request = pb::SpawnRequest {
            spec: Some(pb::RunSpec {
                kind: kind.into(),
                stdio,
                ..argv(&["true"])
            }),
            ..pb::SpawnRequest::default()
        };
        let parsed = spawn(request, String::new(), TraceContext::default(), &key());
        let parsed = parsed.map(|call| (call.spec.policy.kind, call.spec.command.terminal));
        parsed.map_err(|status| status::violated(&status))
    };
    let terminal = |rows, cols, term: &str| {
        let term = term.to_owned();
        Some(Stdio::Terminal(pb::Terminal { rows, cols, term }))
    };
    let spec = |rows, cols, term: &str| TerminalSpec {
        term: term.into(),
        size: TerminalSize { rows, cols },
    };
    let (unspecified, wanted) = (pb::RunKind::Unspecified, pb::RunKind::Terminal);
    let default = Ok((RunKind::Terminal, Some(spec(40, 120, "xterm-256color"))));
    assert_eq!(of(wanted, None), default);
    assert_eq!(of(wanted, terminal(None, None, "")), default);
    assert_eq!(of(unspecified, terminal(None, None, "")), default);
    let largest = Ok((RunKind::Terminal, Some(spec(65_535, 1, "vt100"))));
    assert_eq!(
        of(wanted, terminal(Some(65_535), Some(1), "vt100")),
        largest
    );
    assert_eq!(of(unspecified, None), Ok((RunKind::Heartbeat, None)));

    let pipes = Some(Stdio::Pipes(pb::Pipes::default()));
    assert_eq!(of(wanted, pipes), Err(vec!["spec.pipes".into()]));
    let job = of(pb::RunKind::Job, terminal(None, None, ""));
    assert_eq!(job, Err(vec!["spec.terminal".into()]));
    let wrong = of(wanted, terminal(Some(0), Some(65_536), "a b"));
    let fields = ["rows", "cols", "term"].map(|side| format!("spec.terminal.{side}"));
    assert_eq!(wrong, Err(fields.into()));
}

#[test]
fn abort_waits_for_the_tree_by_default() {
    let ask = |wait: i32| {
        let request = pb::AbortRequest {
            run_id: RUN.to_owned(),
            request_id: "r".to_owned(),
            grace: Some(seconds(0)),
            wait,
            if_unknown: 0,
        };
        abort(&request, "uid:1".to_owned(), "uid:1".to_owned())
    };
    let call = ask(0).expect("valid");
    assert_eq!(call.wait, AbortWait::TreeEmpty);
    assert_eq!(call.if_unknown, IfUnknown::Fence);
    assert_eq!(call.grace, Some(Duration::ZERO));
    assert_eq!(call.request_id.as_deref(), Some("r"));
    assert_eq!(call.by, "uid:1");
    assert_eq!(ask(1).expect("valid").wait, AbortWait::None);
    assert_eq!(ask(2).expect("valid").wait, AbortWait::LeaderExited);
    assert_eq!(fields(&ask(9).expect_err("refused")), ["wait"]);
}

#[test]
fn an_abort_is_bounded_too() {
    let request = pb::AbortRequest {
        run_id: RUN.to_owned(),
        request_id: "\0".repeat(129),
        grace: Some(seconds(86_401)),
        wait: 0,
        if_unknown: 3,
    };
    let refused = abort(&request, String::new(), String::new()).expect_err("refused");
    assert_eq!(
        fields(&refused),
        ["grace", "if_unknown", "request_id", "request_id"]
    );
}

#[test]
fn list_has_a_default_and_a_largest_page() {
    let ask = |page_size| {
        let request = pb::ListRunsRequest {
            page_size,
            ..pb::ListRunsRequest::default()
        };
        list(&request, None, None)
    };
    assert_eq!(ask(0).expect("valid").limit, 50);
    assert_eq!(ask(7).expect("valid").limit, 7);
    assert_eq!(ask(5000).expect("valid").limit, 1000);
    assert_eq!(fields(&ask(-1).expect_err("refused")), ["page_size"]);
}

#[test]
fn list_resumes_after_its_own_token() {
    let filter = pb::RunFilter {
        states: vec![pb::RunState::Running.into(), pb::RunState::Running.into()],
        kinds: vec![pb::RunKind::Job.into()],
        labels: [("a".to_owned(), "b".to_owned())].into(),
        label_selector: "c!=d,!e".to_owned(),
        run_id_part: "9g5fav".to_owned(),
        node: String::new(),
        parent_run_id: RUN.to_owned(),
    };
    let request = pb::ListRunsRequest {
        filter: Some(filter),
        ..pb::ListRunsRequest::default()
    };
    let first = list(&request, None, None).expect("valid");
    assert_eq!(first.filter.states, [RunState::Running]);
    assert_eq!(first.filter.kinds, [RunKind::Job]);
    assert_eq!(first.filter.labels.to_string(), "a in (b),c notin (d),!e");
    let part = first.filter.id_part.as_ref().expect("it is asked for");
    assert!(part.matches(RUN.parse().expect("an id")));
    assert_eq!(first.filter.parent, Some(RUN.parse().expect("an id")));
    assert_eq!(first.start, None);
    let start = PageStart {
        age: kennel_supervisor::Age(3),
        run: RUN.parse().expect("an id"),
    };
    let token = PageToken(start).encode(&first.filter);
    let next = pb::ListRunsRequest {
        page_token: token.clone(),
        ..request
    };
    assert_eq!(list(&next, None, None).expect("valid").start, Some(start));

    let other = pb::ListRunsRequest {
        filter: None,
        page_token: token,
        page_size: 0,
    };
    assert_eq!(
        fields(&list(&other, None, None).expect_err("refused")),
        ["page_token"]
    );
}

#[test]
fn a_filter_of_unknown_values_is_refused() {
    let request = pb::ListRunsRequest {
        filter: Some(pb::RunFilter {
            states: vec![0, 99],
            kinds: vec![0, 99],
            labels: [("\0".to_owned(), String::new())].into(),
            label_selector: "a=b=c".to_owned(),
            run_id_part: "U".to_owned(),
            node: String::new(),
            parent_run_id: "U".to_owned(),
        }),
        ..pb::ListRunsRequest::default()
    };
    assert_eq!(
        fields(&list(&request, None, None).expect_err("refused")),
        [
            "filter.kinds[0]",
            "filter.kinds[1]",
            "filter.label_selector",
            "filter.labels",
            "filter.parent_run_id",
            "filter.run_id_part",
            "filter.states[0]",
            "filter.states[1]"
        ]
    );
}

#[test]
fn wait_is_for_the_end_by_default() {
    let ask = |condition| {
        wait(&pb::WaitRunRequest {
            run_id: RUN.to_owned(),
            condition,
        })
    };
    assert_eq!(ask(0).expect("valid").1, Condition::Ended);
    assert_eq!(ask(1).expect("valid").1, Condition::Started);
    assert_eq!(fields(&ask(-1).expect_err("refused")), ["condition"]);
}

#[test]
fn a_stream_begins_where_asked() {
    use stream_events_request::Position as Asked;
    let ask = |position| {
        events(&pb::StreamEventsRequest {
            run_id: RUN.to_owned(),
            position,
            ..pb::StreamEventsRequest::default()
        })
        .map(|call| call.from)
    };
    let cursor = |run: u128, seq| {
        Asked::Cursor(
            Cursor {
                run: RunId::from_u128(run),
                at: Reached {
                    seq,
                    ..Reached::default()
                },
                form: None,
            }
            .encode(),
        )
    };
    let own = RUN.parse::<RunId>().expect("an id").as_u128();
    let beginning = Asked::Beginning(pb::FromBeginning {});
    for (asked, wanted) in [
        (None, Position::Beginning),
        (Some(beginning), Position::Beginning),
        (Some(Asked::AfterSeq(0)), Position::Beginning),
        (Some(Asked::AfterSeq(4)), after(4)),
        (Some(Asked::Live(pb::FromLive {})), Position::LiveOnly),
        (Some(cursor(own, 8)), after(8)),
        (Some(cursor(own, 0)), Position::Beginning),
    ] {
        assert_eq!(ask(asked).expect("valid"), wanted);
    }
    for bad in [
        cursor(own + 1, 8),
        Asked::Cursor(bytes::Bytes::from_static(b"?")),
    ] {
        assert_eq!(fields(&ask(Some(bad)).expect_err("refused")), ["cursor"]);
    }
}

#[test]
fn tail_is_of_the_requested_output() {
    use pb::{EventKind, from_tail::Amount as Asked, stream_events_request::Position as From};
    let ask = |amount, kinds: &[EventKind]| {
        events(&pb::StreamEventsRequest {
            run_id: RUN.to_owned(),
            position: Some(From::Tail(pb::FromTail { amount })),
            kinds: kinds.iter().map(|kind| (*kind).into()).collect(),
            ..pb::StreamEventsRequest::default()
        })
    };
    let tail = |amount, streams| Position::Tail(Tail { amount, streams });
    let all = ask(Some(Asked::Lines(0)), &[]).expect("valid");
    assert_eq!(all.from, tail(Amount::Lines(0), [true; 2]));
    assert_eq!(all.kinds, Kinds::ALL);
    let stderr = ask(
        Some(Asked::Bytes(9)),
        &[EventKind::Stderr, EventKind::Warning],
    );
    let stderr = stderr.expect("valid");
    assert_eq!(stderr.from, tail(Amount::Bytes(9), [false, true]));
    let wanted = Kinds {
        output: [false, true],
        warnings: true,
        ..Kinds::NONE
    };
    assert_eq!(stderr.kinds, wanted);
    let none = ask(Some(Asked::Lines(1)), &[EventKind::Lifecycle]);
    assert_eq!(fields(&none.expect_err("refused")), ["tail"]);
    assert_eq!(fields(&ask(None, &[]).expect_err("refused")), ["tail"]);
    let unknown = ask(Some(Asked::Lines(1)), &[EventKind::Unspecified]);
    assert_eq!(fields(&unknown.expect_err("refused")), ["kinds[0]", "tail"]);
}

#[test]
fn heartbeat_is_between_one_second_and_five_minutes() {
    let ask = |seconds: Option<i64>| {
        events(&pb::StreamEventsRequest {
            run_id: RUN.to_owned(),
            heartbeat_interval: seconds.map(self::seconds),
            ..pb::StreamEventsRequest::default()
        })
        .map(|call| call.heartbeat.as_secs())
    };
    assert_eq!(ask(None).expect("valid"), 15);
    assert_eq!(ask(Some(1)).expect("valid"), 1);
    assert_eq!(ask(Some(300)).expect("valid"), 300);
    for bad in [-1, 0, 301] {
        assert_eq!(
            fields(&ask(Some(bad)).expect_err("refused")),
            ["heartbeat_interval"]
        );
    }
}

fn spawn(
    request: pb::SpawnRequest,
    owner: String,
    trace: TraceContext,
    key: &DigestKey,
) -> Result<SpawnCall, Status> {
    let (call, found) = super::spawn(request, owner, trace, key)?;
    no_violations(&found).map(|()| call)
}

fn key() -> DigestKey {
    DigestKey::new([3; 32])
}

fn argv(args: &[&str]) -> pb::RunSpec {
    pb::RunSpec {
        command: Some(pb::run_spec::Command::Argv(pb::Argv {
            args: args.iter().map(|a| (*a).to_owned()).collect(),
            ..pb::Argv::default()
        })),
        ..pb::RunSpec::default()
    }
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

fn reason(status: &Status) -> String {
    assert_eq!(status.code(), Code::InvalidArgument);
    let details = status.get_error_details();
    details.error_info().expect("ErrorInfo").reason.clone()
}

/// Returns the violated fields, sorted.
fn fields(status: &Status) -> Vec<String> {
    assert_eq!(status.code(), Code::InvalidArgument);
    let mut fields = status::violated(status);
    fields.sort();
    fields
}

fn after(seq: u64) -> Position {
    Position::After(Reached {
        seq,
        ..Reached::default()
    })
}

#[test]
fn excessive_counts_are_refused_first() {
    let spec = pb::RunSpec {
        labels: (0..1000)
            .map(|n| (n.to_string(), "x".repeat(5000)))
            .collect(),
        // It would be invalid, and is not parsed.
        cwd: Some("relative".to_owned()),
        ..pb::RunSpec::default()
    };
    let request = pb::SpawnRequest {
        run_id: "no id".to_owned(),
        validate_only: false,
        spec: Some(spec),
    };
    let trace = TraceContext::default();
    let refused = spawn(request, String::new(), trace, &key());
    let fields = status::violated(&refused.expect_err("too many"));
    assert_eq!(fields, ["run_id", "spec.labels"]);
}
