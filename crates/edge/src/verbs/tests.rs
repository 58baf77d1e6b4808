//! Requests parsed with all their violations, and what all verbs have in common.

use super::*;
use crate::convert::request::{self, EventsCall};
use crate::{
    convert::token::{Cursor, PageToken},
    pb::{self, for_each_run_request::Action, run_spec::Stdio, stream_events_request},
};
use kennel_lifecycle::{
    RunKind, RunState, Signal, TerminalSize, TerminalSpec, Timestamp, limits as bounds,
};
use kennel_supervisor::{
    AbortWait, Amount, Condition, IfUnknown, Kinds, PageStart, Position, Reached, SignalTarget,
    SpawnCall, Tail,
};
use prost::Message;
use prost_types::{FileDescriptorSet, method_options::IdempotencyLevel};
use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};
use tonic::Code;
use tonic_types::StatusExt;

const RUN: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

/// Time of the next call.
static NOW: AtomicI64 = AtomicI64::new(1);

/// Parses a request of this caller, which is traced so.
fn parsed_of<V: Verb>(
    request: V,
    caller: Caller,
    metadata: MetadataMap,
) -> Result<V::Call, Status> {
    let key = key();
    let context = Context {
        caller,
        metadata,
        extensions: Extensions::default(),
        asks_node: false,
        key: &key,
        own_node: NodeId::from_u128(1),
        node: None,
        now: Timestamp(NOW.fetch_add(1, Ordering::Relaxed)),
    };
    let mut found = Vec::new();
    let call = request.parse(&context, &mut found);
    status::no_violations(&found)?;
    Ok(call.expect("it has no violation"))
}

fn parsed<V: Verb>(request: V) -> Result<V::Call, Status> {
    let caller = Caller {
        principal: "uid:1".to_owned(),
        owner: "uid:5".to_owned(),
        ..Caller::default()
    };
    parsed_of(request, caller, MetadataMap::new())
}

fn spawn(request: pb::SpawnRequest) -> Result<SpawnCall, Status> {
    parsed(request).map(|call| call.spawn)
}

fn events(request: &pb::StreamEventsRequest) -> Result<EventsCall, Status> {
    let mut found = Vec::new();
    let call = request::events(request, &mut found);
    status::no_violations(&found)?;
    Ok(call.expect("it has no violation"))
}

#[test]
fn spawn_carries_run_id_owner_and_trace() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut metadata = MetadataMap::new();
    for (name, value) in [("traceparent", PARENT), ("tracestate", "a=b")] {
        metadata.insert(name, value.parse().expect("ASCII"));
    }
    let caller = Caller {
        owner: "uid:5".to_owned(),
        ..Caller::default()
    };
    let request = pb::SpawnRequest {
        run_id: RUN.to_owned(),
        validate_only: true,
        spec: Some(argv(&["true"])),
        ..pb::SpawnRequest::default()
    };
    let call = parsed_of(request, caller, metadata).expect("valid").spawn;
    assert_eq!(call.run.expect("given").to_string(), RUN);
    assert!(call.validate_only);
    assert_eq!(call.spec.command.argv, ["true"]);
    assert_eq!(*call.digest, key().of_spec(&call.spec));
    assert_eq!(call.owner, "uid:5");
    assert_eq!(call.traceparent.as_deref(), Some(PARENT));
    assert_eq!(call.tracestate.as_deref(), Some("a=b"));
}

#[test]
fn spawn_without_run_id_gets_one_from_server() {
    let request = pb::SpawnRequest {
        spec: Some(argv(&["true"])),
        ..pb::SpawnRequest::default()
    };
    let call = spawn(request).expect("valid");
    assert_eq!(call.run, None);
}

#[test]
fn invalid_run_id_has_its_own_reason() {
    let get = |run: &str| pb::GetRunRequest {
        run_id: run.to_owned(),
    };
    for bad in [
        "../../x",
        "01arz3ndektsv4rrffq69g5fav",
        "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
    ] {
        let request = pb::SpawnRequest {
            run_id: bad.to_owned(),
            validate_only: false,
            spec: Some(argv(&["true"])),
            ..pb::SpawnRequest::default()
        };
        let refused = spawn(request);
        assert_eq!(reason(&refused.expect_err("refused")), "INVALID_RUN_ID");
        let refused = parsed(get(bad)).expect_err("refused");
        assert_eq!(reason(&refused), "INVALID_RUN_ID");
    }
    let refused = parsed(get("")).expect_err("refused");
    assert_eq!(reason(&refused), "INVALID_RUN_ID");
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
        ..pb::SpawnRequest::default()
    };
    let refused = spawn(request);
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

// promise: V-1a
#[test]
fn write_id_must_be_plain_ascii() {
    let write = |id: &str| {
        parsed(pb::WriteInputRequest {
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
        parsed(pb::SignalRequest {
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
        let refused = spawn(request);
        fields(&refused.expect_err("refused"))
    };
    assert_eq!(ask(None), ["spec"]);
    assert_eq!(ask(Some(pb::RunSpec::default())), ["spec.argv.args"]);
}

// promise: P-1
#[test]
fn terminal_comes_from_the_spec_only() {
    let of = |kind: pb::RunKind, stdio: Option<Stdio>| {
        let request = pb::SpawnRequest {
            spec: Some(pb::RunSpec {
                kind: kind.into(),
                stdio,
                ..argv(&["true"])
            }),
            ..pb::SpawnRequest::default()
        };
        let parsed = spawn(request);
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
        parsed(request).map(|call| call.0)
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
fn abort_violations_are_reported_together() {
    let request = pb::AbortRequest {
        run_id: RUN.to_owned(),
        request_id: "\0".repeat(129),
        grace: Some(seconds(86_401)),
        wait: 0,
        if_unknown: 3,
    };
    let refused = parsed(request).map(|call| call.0).expect_err("refused");
    assert_eq!(
        fields(&refused),
        ["grace", "if_unknown", "request_id", "request_id"]
    );
}

// promise: L-3
#[test]
fn list_page_size_has_default_and_maximum() {
    let ask = |page_size| {
        let request = pb::ListRunsRequest {
            page_size,
            ..pb::ListRunsRequest::default()
        };
        parsed(request)
    };
    assert_eq!(ask(0).expect("valid").limit, 50);
    assert_eq!(ask(7).expect("valid").limit, 7);
    assert_eq!(ask(5000).expect("valid").limit, 1000);
    assert_eq!(fields(&ask(-1).expect_err("refused")), ["page_size"]);
}

// promise: K-10
#[test]
fn list_resumes_after_its_own_token() {
    let filter = pb::RunFilter {
        states: vec![pb::RunState::Running.into(), pb::RunState::Running.into()],
        kinds: vec![pb::RunKind::Job.into()],
        labels: [("a".to_owned(), "b".to_owned())].into(),
        label_selector: "c!=d,!e".to_owned(),
        run_id_part: "9g5fav".to_owned(),
        parent_run_id: RUN.to_owned(),
        min_age: Some(prost_types::Duration {
            seconds: 3600,
            nanos: 0,
        }),
        names: vec!["web-*".to_owned()],
        ..pb::RunFilter::default()
    };
    let request = pb::ListRunsRequest {
        filter: Some(filter),
        ..pb::ListRunsRequest::default()
    };
    let first = parsed(request.clone()).expect("valid");
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
    // Ages count at the time of the first page, not of later calls.
    let next = parsed(next).expect("valid");
    assert_eq!((next.start, next.filter), (Some(start), first.filter));

    let other = pb::ListRunsRequest {
        filter: None,
        page_token: token,
        page_size: 0,
    };
    assert_eq!(fields(&parsed(other).expect_err("refused")), ["page_token"]);
}

#[test]
fn filter_with_unknown_values_is_refused() {
    let request = pb::ListRunsRequest {
        filter: Some(pb::RunFilter {
            states: vec![0, 99],
            kinds: vec![0, 99],
            labels: [("\0".to_owned(), String::new())].into(),
            label_selector: "a=b=c".to_owned(),
            run_id_part: "U".to_owned(),
            parent_run_id: "U".to_owned(),
            owners: vec![String::new(); 65],
            names: vec!["web*".to_owned(), "a b".to_owned()],
            activities: vec![0, 99],
            waits: vec![0, 99],
            annotations: vec![pb::AnnotationRequirement::default()],
            min_age: Some(prost_types::Duration {
                seconds: -1,
                nanos: 0,
            }),
            end_reasons: vec!["oom_killed".to_owned(), "bored".to_owned()],
            run_ids: vec!["U".to_owned()],
            below_run_id: "U".to_owned(),
            ..pb::RunFilter::default()
        }),
        ..pb::ListRunsRequest::default()
    };
    assert_eq!(
        fields(&parsed(request).expect_err("refused")),
        [
            "filter.activities[1]",
            "filter.annotations[0].values",
            "filter.below_run_id",
            "filter.end_reasons[1]",
            "filter.kinds[0]",
            "filter.kinds[1]",
            "filter.label_selector",
            "filter.labels",
            "filter.min_age",
            "filter.names[1]",
            "filter.owners",
            "filter.parent_run_id",
            "filter.run_id_part",
            "filter.run_ids[0]",
            "filter.states[0]",
            "filter.states[1]",
            "filter.waits[1]"
        ]
    );
}

#[test]
fn wait_condition_defaults_to_ended() {
    let ask = |condition| {
        let request = pb::WaitRunRequest {
            run_id: RUN.to_owned(),
            condition,
        };
        parsed(request).map(|call| call.condition)
    };
    assert_eq!(ask(0).expect("valid"), Condition::Ended);
    assert_eq!(ask(1).expect("valid"), Condition::Started);
    assert_eq!(fields(&ask(-1).expect_err("refused")), ["condition"]);
}

#[test]
fn stream_position_is_parsed() {
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
fn tail_covers_the_requested_streams() {
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

// promise: O-8
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

// promise: A-20
#[test]
fn excessive_counts_are_refused_before_parsing() {
    let spec = pb::RunSpec {
        labels: (0..1000)
            .map(|n| (n.to_string(), "x".repeat(5000)))
            .collect(),
        // An invalid value, which is not parsed.
        cwd: Some("relative".to_owned()),
        ..pb::RunSpec::default()
    };
    let request = pb::SpawnRequest {
        run_id: "no id".to_owned(),
        validate_only: false,
        spec: Some(spec),
        ..pb::SpawnRequest::default()
    };
    let refused = spawn(request);
    let fields = status::violated(&refused.expect_err("too many"));
    assert_eq!(fields, ["run_id", "spec.labels"]);
}

/// An rpc of the contract, as its verb has it.
struct Declared {
    rpc: &'static str,
    logs: Logs,
    to_its_end: bool,
    /// Bytes of its path's future.
    size: usize,
}

fn of<V: Verb>() -> Declared {
    fn size<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }
    Declared {
        rpc: path::rpc::<V>(),
        logs: V::HOW.logs,
        to_its_end: V::HOW.to_its_end,
        size: size(path::recorded::<V>),
    }
}

fn all() -> Vec<Declared> {
    macro_rules! verbs {
        ($($request:ident)*) => { vec![$(of::<pb::$request>()),*] };
    }
    verbs! {
        SpawnRequest AbortRequest InterruptRequest SignalRequest ResizeTerminalRequest PauseRequest ResumeRequest
        RestartRequest WriteInputRequest CloseInputRequest ResolveCommandRequest GetTreeRequest GetInputStatusRequest GetRunRequest
        ListRunsRequest WaitRunRequest WaitForOutputRequest AnnotateRunRequest ExtendTimeoutsRequest StreamEventsRequest
        AckEventsRequest GetConsumerRequest ListConsumersRequest DeleteConsumerRequest ReadScreenRequest
        ReadOutputRequest GetServerInfoRequest ListNodesRequest ForgetNodeRequest DrainRequest UndrainRequest
        UpgradeRequest AuditLeaksRequest ReapLeaksRequest StreamAuditRequest ForEachRunRequest
        RemoveRunRequest SweepRunDirectoriesRequest
    }
}

/// What the contract calls a read is neither recorded nor carried out without its caller, and all else is recorded.
// promise: A-7c
#[test]
fn audit_logs_every_rpc_with_side_effects() {
    let verbs = all();
    let set = FileDescriptorSet::decode(pb::FILE_DESCRIPTOR_SET).expect("our own");
    let services = set.file.into_iter().flat_map(|file| file.service);
    let services = services.filter(|service| !service.name().contains("Health"));
    let rpcs = services.flat_map(|service| service.method);
    // Attach is served by hand.
    let rpcs: Vec<_> = rpcs.filter(|rpc| rpc.name() != "Attach").collect();
    assert_eq!(rpcs.len(), verbs.len());
    for rpc in rpcs {
        let verb = verbs.iter().find(|verb| verb.rpc == rpc.name());
        let verb = verb.unwrap_or_else(|| panic!("{} has a verb", rpc.name()));
        let options = rpc.options.clone();
        let level = options.unwrap_or_default().idempotency_level();
        // StreamEvents registers a consumer, but only for its caller.
        let is_read = level == IdempotencyLevel::NoSideEffects || verb.rpc == "StreamEvents";
        assert_eq!(verb.logs == Logs::Nothing, is_read, "{}", verb.rpc);
        assert!(!(verb.to_its_end && is_read), "{}", verb.rpc);
    }
}

/// A call's future is kept for as long as the call lasts, and the most frequent one is to be small.
#[test]
fn futures_of_calls_are_small() {
    for Declared { rpc, size, .. } in all() {
        let most = if rpc == "GetRun" { 8 } else { 24 } * 1024;
        assert!(size <= most, "{rpc} has {size} bytes");
    }
}

// promise: K-9
#[test]
fn invalid_selection_is_reported_by_field() {
    let each = |labels: &str| pb::ForEachRunRequest {
        filter: Some(pb::RunFilter {
            label_selector: labels.to_owned(),
            ..pb::RunFilter::default()
        }),
        action: Some(Action::Abort(pb::AbortRequest::default())),
        ..pb::ForEachRunRequest::default()
    };
    let wrong = pb::ForEachRunRequest {
        action: Some(Action::Abort(pb::AbortRequest {
            run_id: RUN.to_owned(),
            ..pb::AbortRequest::default()
        })),
        at_most: 10_001,
        parallel: 257,
        selection: vec![1; 24].into(),
        ..each("a=b")
    };
    assert_eq!(
        fields(&parsed(wrong).err().expect("refused")),
        ["abort.run_id", "at_most", "parallel", "selection"]
    );
    let without = pb::ForEachRunRequest {
        action: None,
        ..each("a=b")
    };
    assert_eq!(fields(&parsed(without).err().expect("refused")), ["action"]);
}
