use super::*;
use kennel_lifecycle::{labels, limits as bounds};
use std::{collections::BTreeMap, sync::Arc};

const RUN: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

#[test]
fn empty_request_dry_runs_on_proven_leaks() {
    let call = reap(
        &pb::ReapLeaksRequest::default(),
        "uid:5".into(),
        &mut Vec::new(),
    );
    assert!(!call.execute);
    assert_eq!(call.scope, Scope::default());
    assert_eq!((call.grace, call.by.as_str()), (GRACE_DEFAULT, "uid:5"));
}

#[test]
fn reap_request_scope_is_parsed_completely() {
    let request = pb::ReapLeaksRequest {
        mode: pb::ReapMode::Execute.into(),
        run_ids: vec![RUN.to_owned()],
        labels: BTreeMap::from([("team".to_owned(), "blue".to_owned())]),
        older_than: Some(time::duration(Duration::from_mins(10))),
        evidence: vec![pb::LeakEvidence::Marker.into()],
        processes: vec![pb::ProcessRef {
            pid: 7,
            start_ticks: 8,
            pidfs_inode: Some(9),
        }],
        grace: Some(time::duration(Duration::ZERO)),
        label_selector: "zone in (a,b)".to_owned(),
    };
    let call = reap(&request, String::new(), &mut Vec::new());
    assert!(call.execute && call.grace.is_zero());
    let scope = call.scope;
    assert_eq!(scope.runs, BTreeSet::from([RUN.parse().expect("a run id")]));
    assert_eq!(scope.labels.to_string(), "team in (blue),zone in (a,b)");
    assert_eq!(scope.older, Duration::from_mins(10));
    assert_eq!(scope.evidence, BTreeSet::from([Evidence::Marker]));
    let process = &scope.processes[0];
    assert_eq!(
        (process.pid, process.start_ticks, process.pidfs_handle),
        (7, 8, Some(9))
    );
}

#[test]
fn all_violations_of_a_reap_scope_are_reported() {
    let request = pb::ReapLeaksRequest {
        mode: 99,
        run_ids: vec![RUN.to_owned(), "x".to_owned()],
        older_than: Some(prost_types::Duration {
            seconds: -1,
            nanos: 0,
        }),
        evidence: vec![0, 99],
        processes: vec![pb::ProcessRef::default(); PROCESSES_MAX + 1],
        grace: Some(time::duration(GRACE_MAX + Duration::from_nanos(1))),
        ..pb::ReapLeaksRequest::default()
    };
    let mut found = Vec::new();
    reap(&request, String::new(), &mut found);
    let fields: Vec<_> = found.into_iter().map(|found| found.field).collect();
    for field in [
        "mode",
        "run_ids[1]",
        "older_than",
        "evidence[0]",
        "evidence[1]",
        "processes",
        "processes[0]",
        "grace",
    ] {
        assert!(fields.iter().any(|f| *f == field), "{field} in {fields:?}");
    }
}

fn a_finding(labels: BTreeMap<String, String>) -> AuditFinding {
    AuditFinding {
        finding: kennel_lifecycle::audit::Finding {
            process: ProcessIdentity {
                pid: 7,
                pgid: 6,
                sid: 5,
                start_ticks: 8,
                pidfs_handle: None,
            },
            ppid: 1,
            run: Some(RUN.parse().expect("a run id")),
            standing: Some(RunStatus::Ended),
            evidence: Evidence::ShimChild,
            certainty: Certainty::Proven,
            cgroup: None,
        },
        described: kennel_supervisor::Described {
            name: "n".into(),
            argv0: "a".into(),
            uid: 0,
            state: 'S',
            age: Duration::from_secs(3),
            cgroup: None,
        },
        labels: {
            let spec = kennel_lifecycle::RunSpec {
                labels,
                ..kennel_lifecycle::RunSpec::default()
            };
            Some(Arc::new(kennel_lifecycle::RecordedSpec::from(spec)).into())
        },
    }
}

#[test]
fn reap_results_and_spare_reasons_have_proto_values() {
    let spared = [
        (Spared::RunIsLive, pb::SpareReason::RunIsLive),
        (Spared::NotProven, pb::SpareReason::NotProven),
        (Spared::MarkerNotNamed, pb::SpareReason::MarkerNotNamed),
        (Spared::RunUnknown, pb::SpareReason::RunUnknown),
        (Spared::OtherUser, pb::SpareReason::OtherUser),
        (Spared::Kept, pb::SpareReason::Kept),
        (Spared::Stray, pb::SpareReason::Stray),
        (Spared::Zombie, pb::SpareReason::Zombie),
        (Spared::Shim, pb::SpareReason::Shim),
    ];
    let reported = |result| {
        let found = Some(a_finding(BTreeMap::new()));
        let process = found.as_ref().expect("it is there").finding.process;
        judged(Judged {
            process,
            found,
            result,
        })
    };
    for (why, reason) in spared {
        let reported = reported(ReapResult::Spared(why));
        assert_eq!(
            (reported.outcome(), reported.spare_reason()),
            (pb::ReapOutcome::Spared, reason)
        );
    }
    let ended = reported(ReapResult::Done(Fate::Ended(
        kennel_lifecycle::Signal::KILL,
    )));
    assert_eq!(
        (ended.outcome(), ended.signal.as_str()),
        (pb::ReapOutcome::Ended, "SIGKILL")
    );
    let failed = reported(ReapResult::Done(Fate::Failed(1)));
    assert_eq!(
        (failed.outcome(), failed.error_number),
        (pb::ReapOutcome::Failed, Some(1))
    );
    for (result, outcome) in [
        (ReapResult::Planned, pb::ReapOutcome::Planned),
        (ReapResult::NotFound, pb::ReapOutcome::NotFound),
        (ReapResult::Done(Fate::Gone), pb::ReapOutcome::Gone),
        (ReapResult::Done(Fate::Changed), pb::ReapOutcome::Changed),
        (ReapResult::Done(Fate::Survived), pb::ReapOutcome::Survived),
    ] {
        assert_eq!(reported(result).outcome(), outcome);
    }
}

#[test]
fn findings_beyond_response_size_are_omitted_and_counted() {
    let labels: BTreeMap<String, String> = (0..bounds::LABELS_MAX)
        .map(|i| {
            (
                format!("{}/{i}", "p".repeat(labels::LABEL_PREFIX_BYTES_MAX)),
                "x".repeat(63),
            )
        })
        .collect();
    let reported = audit(kennel_supervisor::Audit {
        findings: vec![a_finding(labels); 200],
        directories: Vec::new(),
        live_runs: 0,
        held: 0,
        foreign: 0,
        unattended: Vec::new(),
        unknown_run_dirs: 0,
        service: ServiceSeen {
            sockets: vec![("/s".into(), SocketSeen::Missing)],
            lock_is_ours: true,
            keeper_fds: None,
            server_fds: None,
            fds_max: None,
            host_is_same: true,
            clock_behind: None,
        },
        unverified: vec![Unverified::StoreAway("why".into())],
        labels: std::collections::HashMap::new(),
    });
    assert!(reported.encoded_len() <= LISTED_BYTES_MAX + 4096);
    let listed = reported.processes.len();
    assert!(listed > 0 && listed < 200);
    assert_eq!(reported.unlisted_processes as usize, 200 - listed);
    assert_eq!(reported.unverified[0].kind(), pb::UnverifiedKind::StoreAway);
}
