use super::*;
use crate::pb::{exit, tree_verdict};
use kennel_lifecycle::{
    CgroupIdentity, Deadline, Exit, Gap, Held, HostIdentity, KeeperEpoch, Leftover, Leftovers,
    Limit, MemoryKills, MemoryShortage, NodeId, Outcome, ProcessIdentity, Proof, RecordedSpec,
    RunId, RunSpec, Signal, SignalScope, SignalSender, StopCertificate, StopStep, Timestamp,
    TreeVerdict, Usage,
};
use kennel_supervisor::{Age, NewRun, RunRow};
use std::{sync::Arc, time::Duration};

#[test]
fn live_run_has_a_process_and_no_end() {
    let shown = run(live());
    assert_eq!(shown.run_id, RunId::from_u128(1).to_string());
    assert_eq!(shown.owner, "uid:0");
    assert_eq!(shown.state(), pb::RunState::Running);
    assert_eq!(shown.desired(), pb::DesiredState::Run);
    assert_eq!(shown.containment(), pb::Containment::Cgroup);
    let coverage = shown.coverage.as_ref().expect("it was prepared");
    assert_eq!(coverage.gaps.len(), 1);
    assert_eq!(
        shown.spec.as_ref().and_then(|s| s.cwd.as_deref()),
        Some("/tmp")
    );
    assert_eq!(shown.trace_parent, "trace");
    let expires = shown.pause_expires_at.as_ref().map(|at| at.seconds);
    assert_eq!(expires, Some(4));
    assert_eq!(
        (shown.end_reason, shown.tree_verdict, shown.end_time),
        (None, None, None)
    );
    let attempt = shown.current_attempt.expect("always there");
    assert_eq!(
        (attempt.pid, attempt.process_group_id, attempt.session_id),
        (11, 12, 13)
    );
    assert_eq!((attempt.number, attempt.shim_pid), (1, 21));
    assert_eq!(attempt.exit, None);
    assert_eq!(attempt.streams_end(), pb::StreamsEnd::Unspecified);
    assert_eq!(attempt.start_time.map(|t| t.seconds), Some(2));
    let identity = attempt.identity.expect("a process was made");
    assert_eq!(identity.cgroup_path.as_deref(), Some("/cg/run"));
    assert_eq!(
        (identity.start_ticks, identity.pidfs_handle),
        (14, Some(15))
    );
}

fn certificate() -> StopCertificate {
    let step = |signal, scope, sender| StopStep {
        at: Timestamp(5_000_000),
        signal,
        scope,
        sender,
        delivered: 3,
        gone: 2,
        refused: 1,
        errno: Some(1),
    };
    StopCertificate {
        steps: vec![
            step(Signal::TERM, SignalScope::Tree, SignalSender::Keeper),
            step(
                Signal::KILL,
                SignalScope::ControlGroup,
                SignalSender::Keeper,
            ),
            step(Signal::KILL, SignalScope::ShimChildren, SignalSender::Shim),
        ],
        steps_unlisted: 4,
        leftovers: Leftovers {
            processes: vec![Leftover {
                pid: 77,
                start_ticks: 8,
                name: "worker".to_owned(),
            }],
            unlisted: 1,
        },
        census: Some(Timestamp(6_000_000)),
        inputs: Vec::new(),
        commands: Vec::new(),
        usage: Some(Box::new(Usage {
            cpu_user_us: Some(1_500_000),
            memory_peak_bytes: Some(4096),
            io_read_bytes: Some(0),
            ..Usage::default()
        })),
    }
}

#[test]
fn certificate_lists_signal_rounds_and_survivors() {
    let mut view = live();
    view.row.outcome = Some(Outcome {
        reason: EndReason::Exited,
        exit: Some(Exit::Code(0)),
        tree: TreeVerdict::Empty(Proof::CgroupAndEchild),
        streams: Some(StreamsEnd::Eof),
        certificate: certificate(),
    });
    let shown = run(view);
    let shown_verdict = shown.tree_verdict;
    let attempt = shown.current_attempt.expect("it has one");
    let used = attempt.usage.expect("it was counted");
    let time = used.cpu_user_time.expect("it was counted");
    assert_eq!((time.seconds, time.nanos), (1, 500_000_000));
    // Uncounted values are absent, and zero is a count.
    assert_eq!((used.cpu_system_time, used.pids_peak), (None, None));
    assert_eq!(used.memory_peak_bytes, Some(4096));
    assert_eq!((used.io_read_bytes, used.io_written_bytes), (Some(0), None));
    let certificate = attempt.certificate.expect("the run has ended");
    let [term, killed, by_shim] = &certificate.steps[..] else {
        panic!("three steps: {certificate:?}");
    };
    assert_eq!(term.signal, "SIGTERM");
    assert_eq!(term.time.map(|t| t.seconds), Some(5));
    assert_eq!((term.delivered, term.gone, term.refused), (3, 2, 1));
    assert_eq!(term.error_number, Some(1));
    assert_eq!(term.scope(), pb::SignalScope::Tree);
    assert_eq!(term.sender(), pb::SignalSender::Keeper);
    assert_eq!(killed.scope(), pb::SignalScope::CgroupKill);
    assert_eq!(by_shim.scope(), pb::SignalScope::ShimChildren);
    assert_eq!(by_shim.sender(), pb::SignalSender::Shim);
    assert_eq!(certificate.steps_unlisted, 4);
    assert_eq!(certificate.containment(), pb::Containment::Cgroup);
    assert_eq!(certificate.leftovers.len(), 1);
    assert_eq!(certificate.leftovers[0].name, "worker");
    assert_eq!(certificate.leftovers_unlisted, 1);
    assert_eq!(certificate.census_time.map(|t| t.seconds), Some(6));
    assert_eq!(certificate.verdict, shown_verdict);
}

#[test]
fn ended_run_shows_its_reason_and_proof() {
    let mut view = live();
    view.state = RunState::Cancelled;
    view.exit = None;
    view.row.outcome = Some(Outcome {
        reason: EndReason::Aborted {
            by: "uid:7".to_owned(),
            request_id: None,
        },
        exit: Some(Exit::Signal {
            signal: Signal::KILL,
            core_dumped: true,
        }),
        tree: TreeVerdict::Empty(Proof::CgroupAndEchild),
        streams: Some(StreamsEnd::Cut),
        certificate: StopCertificate::default(),
    });
    let shown = run(view);
    assert_eq!(shown.state(), pb::RunState::Cancelled);
    let Some(end_reason::Reason::Aborted(aborted)) = shown.end_reason.and_then(|r| r.reason) else {
        panic!("aborted");
    };
    assert_eq!(
        (aborted.by.as_str(), aborted.request_id.as_str()),
        ("uid:7", "")
    );
    let Some(tree_verdict::Verdict::Empty(empty)) = shown.tree_verdict.and_then(|t| t.verdict)
    else {
        panic!("empty");
    };
    assert_eq!(empty.proof(), pb::EmptyProof::CgroupAndEchild);
    let attempt = shown.current_attempt.expect("always there");
    assert_eq!(attempt.streams_end(), pb::StreamsEnd::Cut);
    let exit = attempt.exit.expect("known");
    assert!(exit.core_dumped);
    let killed = exit::Signal {
        name: "SIGKILL".to_owned(),
        number: 9,
    };
    assert_eq!(exit.result, Some(exit::Result::Signal(killed)));
}

#[test]
fn fenced_run_has_no_process_and_no_spec() {
    let mut view = live();
    view.row.new.identity = None;
    view.row.new.spec = Arc::default();
    let shown = run(view);
    assert_eq!(shown.spec, None);
    assert_eq!(shown.containment(), pb::Containment::Unspecified);
    let attempt = shown.current_attempt.expect("always there");
    assert_eq!((attempt.pid, attempt.identity), (0, None));
}

#[test]
fn end_reason_name_matches_ended_event() {
    let failure = StartFailure {
        stage: StartStage::Exec,
        errno: Some(2),
        path: None,
    };
    let by = || "uid:0".to_owned();
    for (reason, name) in [
        (EndReason::Exited, "exited"),
        (
            EndReason::Aborted {
                by: by(),
                request_id: None,
            },
            "aborted",
        ),
        (EndReason::StartFailed(failure), "startFailed"),
        (EndReason::Fenced { by: by() }, "fenced"),
        (EndReason::ServerShutdown, "serverShutdown"),
        (EndReason::ParentEnded, "parentEnded"),
        (EndReason::Watchdog { triggered: true }, "watchdog"),
        (EndReason::ServiceLost, "serviceLost"),
        (EndReason::Rebooted, "rebooted"),
        (EndReason::OrphanTerminated, "orphanTerminated"),
        (EndReason::NodeForgotten { by: by() }, "nodeForgotten"),
        (EndReason::ShimLost, "shimLost"),
        (
            EndReason::DeadlineExceeded(Deadline::MaxRuntime),
            "deadlineExceeded",
        ),
        (EndReason::LimitExceeded(Limit::Disk), "limitExceeded"),
        (
            EndReason::MemoryReserve(MemoryShortage {
                limit: 3,
                used: 2,
                reserve: 1,
            }),
            "memoryReserve",
        ),
        (
            EndReason::OomKilled(MemoryKills {
                kills: 1,
                memory_max: None,
            }),
            "oomKilled",
        ),
    ] {
        let json = crate::json::to_string(&end_reason(&reason));
        assert!(json.starts_with(&format!("{{\"{name}\":")), "{json}");
    }
}

fn live() -> RunView {
    let process = |first: i32| ProcessIdentity {
        pid: first,
        pgid: first + 1,
        sid: first + 2,
        start_ticks: 14,
        pidfs_handle: Some(15),
    };
    let new = NewRun {
        run: RunId::from_u128(1),
        owner: "uid:0".to_owned(),
        node: NodeId::from_u128(2),
        keeper_epoch: KeeperEpoch::from_u128(3),
        identity: Some(RunIdentity {
            command: process(11),
            shim: process(21),
            cgroup: Some(CgroupIdentity {
                path: "/cg/run".to_owned(),
                inode: 99,
            }),
            host: HostIdentity {
                boot_id: "boot".to_owned(),
                pidns_inode: 4,
                init_start_ticks: Some(7),
            },
        }),
        held: Some(Held {
            by: Containment::Cgroup,
            gaps: vec![Gap::WorkHandedToDaemons],
        }),
        spec: spec(|spec| {
            spec.command.cwd = Some("/tmp".into());
            spec.policy.stop.grace = Some(Duration::from_secs(5));
        }),
        traceparent: Some("trace".to_owned()),
        created: Timestamp(1_000_000),
        ..NewRun::default()
    };
    let mut view = RunView::from(RunRow::open(new));
    view.state = RunState::Running;
    view.pause_expires = Some(Timestamp(4_000_000));
    view.row.times.started = Some(Timestamp(2_000_000));
    view
}

fn spec(edit: impl FnOnce(&mut RunSpec)) -> Arc<RecordedSpec> {
    let mut spec = RunSpec::default();
    spec.command.argv = vec!["true".into()];
    edit(&mut spec);
    Arc::new(spec.into())
}

/// Returns a run of this number with labels of this size, for pages.
pub(crate) fn of_size(number: u128, bytes: usize) -> RunView {
    let mut view = live();
    view.row.new.run = RunId::from_u128(number);
    view.row.new.age = i64::try_from(number).map_or(Age::NONE, Age);
    view.row.new.spec = spec(|spec| spec.labels = [("l".to_owned(), "x".repeat(bytes))].into());
    view
}
