use super::*;
use kennel_lifecycle::{Containment, NodeId, Refusal, RunState, StartFailure, StartStage};
use kennel_supervisor::{Elsewhere, Unstopped, UpgradeRefusal};
use std::collections::BTreeMap;

/// A kind of failure, with the code, the reason and the metadata of the contract.
type Row = (CallError, Code, Reason, Vec<(&'static str, String)>);

fn table() -> Vec<Row> {
    let mut rows = of_one_run();
    rows.extend(of_a_state());
    rows.extend(of_a_consumer());
    rows.extend(of_the_server());
    rows
}

fn fact(name: &'static str, value: &str) -> (&'static str, String) {
    (name, value.to_owned())
}

fn of_one_run() -> Vec<Row> {
    let run = RunId::from_u128(42);
    let id = ("run_id", run.to_string());
    let elsewhere = Elsewhere {
        node: NodeId::from_u128(7),
        name: "other".to_owned(),
        address: "unix:/run/other.sock".to_owned(),
        last_heard: None,
        unreachable_since: None,
        forgotten: None,
        draining: None,
        is_reachable: false,
        has_run: true,
    };
    vec![
        (
            CallError::RunElsewhere {
                run,
                elsewhere: Box::new(elsewhere.clone()),
            },
            Code::FailedPrecondition,
            Reason::RunOnOtherNode,
            vec![
                id.clone(),
                fact("node_id", &elsewhere.node.to_string()),
                fact("node_name", "other"),
                fact("address", "unix:/run/other.sock"),
                fact("reachable", "false"),
            ],
        ),
        (
            CallError::RunNotFound(run),
            Code::NotFound,
            Reason::RunNotFound,
            vec![id.clone()],
        ),
        (
            CallError::SpecMismatch { run, between: None },
            Code::AlreadyExists,
            Reason::SpecMismatch,
            vec![id.clone()],
        ),
        (
            CallError::RunFenced(run),
            Code::FailedPrecondition,
            Reason::RunFenced,
            vec![id.clone()],
        ),
        (
            CallError::RunRemoved(run),
            Code::FailedPrecondition,
            Reason::RunRemoved,
            vec![id.clone()],
        ),
        (
            CallError::RunIdExpired {
                run,
                time: "2026-01-01T00:06:00.000Z".to_owned(),
                oldest: "2025-12-25T00:00:00.000Z".to_owned(),
                newest: "2026-01-01T00:05:00.000Z".to_owned(),
            },
            Code::FailedPrecondition,
            Reason::RunIdExpired,
            vec![
                id.clone(),
                fact("id_time", "2026-01-01T00:06:00.000Z"),
                fact("oldest_time", "2025-12-25T00:00:00.000Z"),
                fact("newest_time", "2026-01-01T00:05:00.000Z"),
            ],
        ),
        (
            CallError::Pinned {
                run,
                by: "of_tomorrow".to_owned(),
                state: Some(RunState::Running),
            },
            Code::FailedPrecondition,
            Reason::InvalidState,
            vec![
                id.clone(),
                fact("state", "RUNNING"),
                fact("allowed", "Abort"),
                fact("pinned_by", "of_tomorrow"),
            ],
        ),
        (
            CallError::StoppedFirst(run),
            Code::FailedPrecondition,
            Reason::RunStopped,
            vec![id.clone()],
        ),
    ]
}

fn of_a_consumer() -> Vec<Row> {
    let run = RunId::from_u128(42);
    let id = ("run_id", run.to_string());
    vec![
        (
            CallError::ConsumerNotFound {
                run: Some(run),
                name: "indexer".to_owned(),
            },
            Code::NotFound,
            Reason::ConsumerNotFound,
            vec![id, fact("consumer", "indexer")],
        ),
        (
            CallError::ConsumerTakenOver {
                run: None,
                name: "indexer".to_owned(),
            },
            Code::FailedPrecondition,
            Reason::ConsumerTakenOver,
            vec![fact("run_id", ""), fact("consumer", "indexer")],
        ),
        (
            CallError::TooManyConsumers {
                what: "consumers of a run",
                limit: 16,
            },
            Code::ResourceExhausted,
            Reason::QuotaExceeded,
            vec![fact("quota", "consumers of a run"), fact("limit", "16")],
        ),
    ]
}

fn of_a_state() -> Vec<Row> {
    let run = RunId::from_u128(42);
    let id = ("run_id", run.to_string());
    vec![
        (
            CallError::Refused {
                run,
                refusal: Refusal::Ended,
                state: RunState::Failed,
            },
            Code::FailedPrecondition,
            Reason::RunEnded,
            vec![id.clone(), fact("state", "FAILED"), fact("allowed", "")],
        ),
        (
            CallError::Refused {
                run,
                refusal: Refusal::NotPaused,
                state: RunState::Running,
            },
            Code::FailedPrecondition,
            Reason::InvalidState,
            vec![
                id.clone(),
                fact("state", "RUNNING"),
                fact("allowed", "Abort,Interrupt,Pause,Restart,Signal"),
            ],
        ),
        (
            CallError::NotPaused {
                run,
                moving: [(3, "it waits"), (4, "it is refused"), (5, "")]
                    .map(|(pid, why)| Unstopped {
                        pid,
                        why: why.to_owned(),
                    })
                    .to_vec(),
            },
            Code::FailedPrecondition,
            Reason::PausePartial,
            vec![
                id.clone(),
                fact("pids", "3,4,5"),
                fact("why", "3: it waits; 4: it is refused"),
            ],
        ),
        (
            CallError::NoTerminal { run },
            Code::FailedPrecondition,
            Reason::NoTerminal,
            vec![id.clone()],
        ),
        (
            CallError::SignalFailed { run, errno: 1 },
            Code::Internal,
            Reason::SignalFailed,
            vec![id.clone(), fact("errno", "1")],
        ),
        (
            CallError::SignalFailed { run, errno: 28 },
            Code::ResourceExhausted,
            Reason::SignalFailed,
            vec![id.clone(), fact("errno", "28")],
        ),
        (
            CallError::CursorAhead {
                run,
                asked: 9,
                head: 3,
            },
            Code::OutOfRange,
            Reason::CursorAhead,
            vec![id.clone(), fact("asked_seq", "9"), fact("head_seq", "3")],
        ),
        (
            CallError::CursorExpired {
                run,
                first_seq: 2,
                last_seq: 7,
            },
            Code::OutOfRange,
            Reason::CursorExpired,
            vec![id.clone(), fact("first_seq", "2"), fact("last_seq", "7")],
        ),
        (
            CallError::JournalUnreadable {
                run,
                why: "torn".to_owned(),
            },
            Code::DataLoss,
            Reason::JournalUnreadable,
            vec![id.clone()],
        ),
    ]
}

fn of_the_server() -> Vec<Row> {
    vec![
        (
            CallError::CommandNotFound {
                command: "nope".to_owned(),
                looked_in: vec!["/bin".to_owned(), "/usr/bin".to_owned()],
            },
            Code::NotFound,
            Reason::CommandNotFound,
            vec![fact("command", "nope"), fact("looked_in", "/bin:/usr/bin")],
        ),
        (
            CallError::QuotaExceeded {
                what: "live runs".to_owned(),
                limit: 7,
            },
            Code::ResourceExhausted,
            Reason::QuotaExceeded,
            vec![fact("quota", "live runs"), fact("limit", "7")],
        ),
        (
            CallError::PatternTooDear(RunId::from_u128(42)),
            Code::ResourceExhausted,
            Reason::QuotaExceeded,
            vec![
                fact("quota", "processor time of a pattern"),
                ("run_id", RunId::from_u128(42).to_string()),
            ],
        ),
        (
            CallError::HostFull("EMFILE".to_owned()),
            Code::ResourceExhausted,
            Reason::QuotaExceeded,
            vec![fact("quota", "room of the host")],
        ),
        (
            CallError::ContainmentUnavailable {
                run: RunId::from_u128(9),
                wanted: Containment::Cgroup,
                reached: Containment::Subreaper,
                why: Some("read-only".into()),
            },
            Code::FailedPrecondition,
            Reason::ContainmentUnavailable,
            vec![
                fact("run_id", &RunId::from_u128(9).to_string()),
                fact("wanted", "CONTAINMENT_CGROUP"),
                fact("reached", "CONTAINMENT_SUBREAPER"),
                fact("why", "read-only"),
            ],
        ),
        (
            CallError::NotUpgraded(UpgradeRefusal::UnderWay),
            Code::FailedPrecondition,
            Reason::UpgradeUnderWay,
            vec![],
        ),
        (
            CallError::NotUpgraded(UpgradeRefusal::Unfit {
                binary: "/usr/bin/kennel".to_owned(),
                why: "it exited with code 1".to_owned(),
                speaks: Some(2),
            }),
            Code::FailedPrecondition,
            Reason::UpgradeRefused,
            vec![
                fact("binary", "/usr/bin/kennel"),
                fact("why", "it exited with code 1"),
                fact("protocol", "2"),
            ],
        ),
        (
            CallError::StoreUnavailable,
            Code::Unavailable,
            Reason::StoreUnavailable,
            vec![],
        ),
        (
            CallError::NodeDrained,
            Code::Unavailable,
            Reason::NodeDraining,
            vec![],
        ),
        (
            CallError::Draining,
            Code::Unavailable,
            Reason::NodeDraining,
            vec![],
        ),
        (
            CallError::Internal("oh".to_owned()),
            Code::Internal,
            Reason::Internal,
            vec![],
        ),
    ]
}

// promise: A-6
#[test]
fn each_error_has_code_reason_and_metadata() {
    for (error, code, reason, facts) in table() {
        let status = of(&error);
        assert_eq!(status.code(), code, "{error:?}");
        assert!(!status.message().is_empty(), "{error:?}");
        let details = status.get_error_details();
        let info = details.error_info().expect("ErrorInfo");
        assert_eq!(info.reason, reason.as_str(), "{error:?}");
        assert_eq!(info.domain, "kennel.v1");
        let found: BTreeMap<_, _> = info.metadata.clone().into_iter().collect();
        let wanted: BTreeMap<_, _> = facts.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        assert_eq!(found, wanted, "{error:?}");
    }
}

#[test]
fn errors_have_retry_precondition_and_quota_details() {
    for (error, code, ..) in table() {
        let details = of(&error).get_error_details();
        // A repeated call needs as much time for the pattern.
        let retry = matches!(code, Code::Unavailable | Code::ResourceExhausted)
            && !matches!(error, CallError::PatternTooDear(_));
        assert_eq!(details.retry_info().is_some(), retry, "{error:?}");
        let precondition = code == Code::FailedPrecondition;
        assert_eq!(
            details.precondition_failure().is_some(),
            precondition,
            "{error:?}"
        );
    }
    let full = CallError::QuotaExceeded {
        what: "live runs".to_owned(),
        limit: 7,
    };
    assert!(of(&full).get_error_details().quota_failure().is_some());
}

#[test]
fn failed_start_code_depends_on_errno() {
    let start = |stage, errno| {
        of(&CallError::SpawnFailed {
            run: RunId::from_u128(1),
            failure: StartFailure {
                stage,
                errno,
                path: Some("/x".to_owned()),
            },
        })
    };
    // ENOENT, E2BIG, ENOEXEC, EACCES, ENOTDIR; EAGAIN, ENOMEM, EMFILE, ETXTBSY, ENOSPC; EIO and no errno.
    for errno in [2, 7, 8, 13, 20] {
        let status = start(StartStage::Exec, Some(errno));
        assert_eq!(status.code(), Code::FailedPrecondition, "{errno}");
    }
    for errno in [11, 12, 24, 26, 28] {
        let status = start(StartStage::Fork, Some(errno));
        assert_eq!(status.code(), Code::ResourceExhausted, "{errno}");
        assert!(status.get_error_details().retry_info().is_some());
    }
    assert_eq!(start(StartStage::Exec, Some(5)).code(), Code::Internal);
    assert_eq!(start(StartStage::Prepare, None).code(), Code::Internal);
    assert_eq!(
        start(StartStage::Exec, None).code(),
        Code::FailedPrecondition
    );

    let status = start(StartStage::WorkDir, Some(2));
    assert_eq!(
        status.message(),
        "the command could not be started: entering its working directory failed on /x: \
         No such file or directory (os error 2)"
    );
    let details = status.get_error_details();
    let info = details.error_info().expect("ErrorInfo");
    assert_eq!(info.reason, "SPAWN_FAILED");
    assert_eq!(info.metadata["stage"], "WORK_DIR");
    assert_eq!(info.metadata["errno"], "2");
    assert_eq!(info.metadata["path"], "/x");
}

// promise: RW-166
#[test]
fn all_violations_are_reported_together() {
    let found = [
        Violation::new("spec.cwd", "must be an absolute path"),
        Violation::new("run_id", "is none"),
    ];
    let status = invalid(&found);
    assert_eq!(status.code(), Code::InvalidArgument);
    let details = status.get_error_details();
    assert_eq!(
        details.error_info().expect("ErrorInfo").reason,
        "INVALID_FIELD"
    );
    let request = details.bad_request().expect("BadRequest");
    assert_eq!(request.field_violations.len(), 2);
    assert_eq!(request.field_violations[0].field, "spec.cwd");
    assert!(status.message().ends_with("wrong: spec.cwd, run_id"));

    let details = invalid(&found[1..]).get_error_details();
    assert_eq!(
        details.error_info().expect("ErrorInfo").reason,
        "INVALID_RUN_ID"
    );
}

// promise: L-5
#[test]
fn hundred_thousand_violations_fit_into_the_header() {
    let found: Vec<Violation> = (0..100_000)
        .map(|i| Violation::new(format!("spec.env.vars[{i}]"), "must not contain a NUL byte"))
        .collect();
    let status = invalid(&found);
    assert!(status.details().len() <= 4096);
    let details = status.get_error_details();
    let request = details.bad_request().expect("BadRequest");
    assert!(request.field_violations.len() > 10);
    let info = details.error_info().expect("ErrorInfo");
    assert_eq!(info.metadata["violations"], "100000");
}

#[test]
fn long_command_is_cut_to_fit_the_header() {
    let status = of(&CallError::CommandNotFound {
        command: "é".repeat(60_000),
        looked_in: vec!["/some/where".to_owned(); 10_000],
    });
    assert!(status.message().len() <= 512, "{}", status.message().len());
    assert!(status.message().ends_with("..."));
    assert!(status.details().len() <= 4096, "{}", status.details().len());
}

// promise: A-6
#[test]
fn error_page_gives_the_code_of_its_reason() {
    let pages = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    for reason in Reason::ALL {
        let page = pages.join(format!("{}.md", reason.as_str()));
        let text = std::fs::read_to_string(&page).expect("the page can be read");
        let begins = match reason {
            Reason::NotWriter => "No status:".to_owned(),
            Reason::SpawnFailed => "Code: FAILED_PRECONDITION, ".to_owned(),
            Reason::SignalFailed => "Code: INTERNAL or ".to_owned(),
            reason => format!("Code: {}.", code_name(reason.code())),
        };
        let code = text.lines().nth(2).unwrap_or_default();
        assert!(code.starts_with(&begins), "{page:?}: {code}");
    }
}
