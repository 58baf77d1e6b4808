//! Recovery's decision on each possible row: all combinations, in a golden file.

use crate::samples::{assert_golden, stuck};
use kennel_lifecycle::{
    EndReason, Exit, HostIdentity, Leftover, Leftovers, Outcome, Proof, Stuck, Timestamp,
    TreeVerdict,
    recovery::{
        Before, CgroupSeen, Decision, ExitRecord, Host, Observation, ProcessPresence, decide,
    },
};
use std::fmt::Write as _;

const SEEN: [ProcessPresence; 3] = [
    ProcessPresence::Same,
    ProcessPresence::Gone,
    ProcessPresence::Unknown,
];
const CGROUPS: [CgroupSeen; 4] = [
    CgroupSeen::None,
    CgroupSeen::Empty,
    CgroupSeen::Populated,
    CgroupSeen::Unknown,
];
const HOSTS: [Host; 2] = [Host::Same, Host::Other];

#[test]
fn recovery_decisions_match_golden_table() {
    let mut text = String::new();
    for (seen, before) in combinations() {
        let record = match &seen.exit_record {
            None => "no-record",
            Some(r) if r.never_ran => "never-ran",
            Some(r) if matches!(r.tree, Some(TreeVerdict::Kept(_))) => "kept",
            Some(r) if r.tree == Some(TreeVerdict::Empty(Proof::PrivatePidns)) => "exit+ns",
            Some(r) if r.tree.is_some() => "exit+tree",
            Some(_) => "exit",
        };
        let after = match (before.terminated, before.stop_wanted) {
            (true, _) => "terminated",
            (false, true) => "stop-wanted",
            (false, false) => "first-look",
        };
        let hints = match (seen.stuck.is_empty(), seen.hints.is_empty()) {
            (false, _) => "stuck",
            (true, false) => "hints",
            (true, true) => "-",
        };
        writeln!(
            text,
            "host={:5} shim={:7} command={:7} cgroup={:9} {record:9} {hints:5} {after:11} {}",
            format!("{:?}", seen.host),
            format!("{:?}", seen.shim),
            format!("{:?}", seen.command),
            format!("{:?}", seen.cgroup),
            show(&decide(&seen, before)),
        )
        .unwrap();
    }
    assert_golden("recovery.txt", &text);
}

// promise: I-4
#[test]
fn other_boot_or_namespace_is_never_signalled() {
    for (seen, before) in combinations().filter(|(s, _)| s.host == Host::Other) {
        let decision = decide(&seen, before);
        assert!(
            matches!(&decision, Decision::Close(o) if o.reason == EndReason::Rebooted),
            "{seen:?}: {decision:?}"
        );
    }
}

// promise: E-5a
#[test]
fn run_ended_before_service_loss_counts_as_exited() {
    let record = |seen: &Observation| seen.exit_record.clone().filter(|r| r.exit.is_some());
    for (mut seen, before) in combinations().filter(|(seen, _)| record(seen).is_some()) {
        let lost = decide(&seen, before);
        seen.exit_record.as_mut().unwrap().by_itself = Some(Timestamp(5));
        let known = decide(&seen, before);
        match (lost, known) {
            (Decision::Close(lost), Decision::Close(known)) if before.stop_wanted => {
                assert_eq!(lost, known, "who has asked for its end is not asked here");
            }
            (Decision::Close(lost), Decision::Close(known)) => {
                assert_eq!(known.reason, EndReason::Exited);
                let reason = lost.reason.clone();
                assert_eq!(lost, Outcome { reason, ..known });
            }
            (lost, known) => assert_eq!(lost, known),
        }
    }
}

// promise: R-3a
#[test]
fn earlier_termination_attempt_sets_end_reason() {
    let mut begun = 0;
    for (mut seen, before) in combinations() {
        let lost = decide(&seen, before);
        seen.end_begun = true;
        let known = decide(&seen, before);
        match (lost, known) {
            (Decision::Close(lost), Decision::Close(known))
                if lost.reason == EndReason::ServiceLost
                    && !matches!(lost.tree, TreeVerdict::Kept(_)) =>
            {
                begun += 1;
                assert_eq!(known.reason, EndReason::OrphanTerminated);
                let reason = EndReason::ServiceLost;
                assert_eq!(lost, Outcome { reason, ..known });
            }
            (lost, known) => assert_eq!(lost, known),
        }
    }
    assert!(begun > 0);
}

// promise: N-10a
#[test]
fn private_namespace_is_empty_without_its_init() {
    for (mut seen, before) in combinations().filter(|(s, _)| s.host == Host::Same) {
        let decided = decide(&seen, before);
        seen.namespace = Some(ProcessPresence::Unknown);
        assert_eq!(decide(&seen, before), decided);
        seen.namespace = Some(ProcessPresence::Gone);
        match (decided, decide(&seen, before)) {
            (Decision::Close(without), Decision::Close(with)) => {
                let says_more = !matches!(without.tree, TreeVerdict::NeverRan) && !was_kept(&seen);
                if says_more || with.tree != without.tree {
                    assert_eq!(with.tree, TreeVerdict::Empty(Proof::PrivatePidns));
                }
            }
            (without, with) => assert_eq!(with, without),
        }
        seen.namespace = Some(ProcessPresence::Same);
        let closed = matches!(decide(&seen, before), Decision::Close(_));
        assert!(!closed || was_kept(&seen), "{seen:?}");
    }
}

// promise: I-4
#[test]
fn pid_namespace_identity_includes_init_start_time() {
    let container = |began| HostIdentity {
        boot_id: "b".into(),
        pidns_inode: 4_026_532_178,
        init_start_ticks: began,
    };
    let (first, next) = (container(Some(100)), container(Some(200)));
    assert!(first.is_same_as(&first.clone()) && !first.is_same_as(&next));
    // An unreadable start time is ignored: the other fields decide.
    assert!(first.is_same_as(&container(None)) && container(None).is_same_as(&next));
    let other_boot = HostIdentity {
        boot_id: "c".into(),
        ..first.clone()
    };
    let other_inode = HostIdentity {
        pidns_inode: 1,
        ..first.clone()
    };
    assert!(!first.is_same_as(&other_boot) && !first.is_same_as(&other_inode));
}

// promise: I-3
#[test]
fn only_a_verified_member_is_signalled() {
    for (seen, before) in combinations() {
        let certain = seen.command == ProcessPresence::Same || seen.cgroup == CgroupSeen::Populated;
        if decide(&seen, before) == Decision::Terminate {
            assert!(certain && seen.host == Host::Same, "{seen:?}");
        }
    }
}

/// Whatever else is seen: no process that a pause has stopped is left stopped.
// promise: T-53
#[test]
fn processes_stopped_by_a_pause_are_ended() {
    for (mut seen, before) in combinations().filter(|(seen, _)| seen.host == Host::Same) {
        seen.held = vec![78];
        match decide(&seen, before) {
            Decision::AwaitShim => assert_eq!(seen.shim, ProcessPresence::Same),
            Decision::Terminate => assert!(!before.terminated),
            Decision::Watch(_) => assert!(before.terminated),
            Decision::Close(outcome) => panic!("{seen:?}: {outcome:?}"),
        }
    }
}

// promise: I-3
#[test]
fn doubtful_processes_and_hints_are_not_signalled() {
    for (seen, before) in combinations() {
        let vague = seen.command != ProcessPresence::Same && seen.cgroup != CgroupSeen::Populated;
        if vague && !seen.hints.is_empty() && seen.shim != ProcessPresence::Same {
            assert!(
                matches!(decide(&seen, before), Decision::Close(_)),
                "{seen:?}"
            );
        }
    }
}

// promise: T-28
#[test]
fn row_stays_open_while_a_member_lives() {
    let here = |(seen, _): &(Observation, Before)| seen.host == Host::Same;
    for (seen, before) in combinations().filter(here) {
        let kept = before == Before::default() && was_kept(&seen);
        if let Decision::Close(_) = decide(&seen, before) {
            assert!(kept || !seen.has_survivors(), "{seen:?}");
        }
    }
}

#[test]
fn survivors_of_recovery_termination_are_watched() {
    for (seen, before) in combinations().filter(|(_, before)| before.terminated) {
        match decide(&seen, before) {
            Decision::Close(_) => {}
            Decision::Watch(stuck) => {
                assert!(seen.has_survivors() && seen.host == Host::Same, "{seen:?}");
                assert_eq!(stuck, seen.stuck);
            }
            other => panic!("{seen:?}: {other:?}"),
        }
    }
}

// promise: T-10, N-10
#[test]
fn recovery_reports_empty_only_with_proof() {
    for (seen, before) in combinations() {
        let Decision::Close(outcome) = decide(&seen, before) else {
            continue;
        };
        let said = seen.exit_record.as_ref().and_then(|r| r.tree.as_ref());
        let echild = said == Some(&TreeVerdict::Empty(Proof::Echild));
        // Only a verified member of the run overrides this verdict.
        let private = said == Some(&TreeVerdict::Empty(Proof::PrivatePidns));
        let empty_now = matches!(outcome.tree, TreeVerdict::Empty(Proof::PrivatePidns));
        assert!(
            !private || seen.host == Host::Other || empty_now,
            "{seen:?}"
        );
        let empty = seen.cgroup == CgroupSeen::Empty;
        match outcome.tree {
            TreeVerdict::Empty(Proof::CgroupAndEchild) => assert!(echild && empty, "{seen:?}"),
            TreeVerdict::Empty(Proof::Echild) => {
                assert!(echild && seen.cgroup == CgroupSeen::None, "{seen:?}");
            }
            TreeVerdict::Empty(Proof::PrivatePidns) => assert!(private, "{seen:?}"),
            // A process that left the group but bears the marker is not ignored.
            TreeVerdict::Empty(Proof::Cgroup) => {
                assert!(empty && seen.hints.is_empty(), "{seen:?}");
            }
            TreeVerdict::NeverRan => assert!(seen.exit_record.is_some_and(|r| r.never_ran)),
            TreeVerdict::Survivors(_) => assert!(!seen.hints.is_empty(), "{seen:?}"),
            TreeVerdict::Kept(_) => assert_eq!(before, Before::default(), "{seen:?}"),
            TreeVerdict::Unverified(_) => {}
        }
    }
}

/// Such a group is not killed either; the shim's own scan of the group still counts.
// promise: T-10a
#[test]
fn unreadable_cgroup_is_not_reported_empty() {
    let unread = |(seen, _): &(Observation, Before)| seen.cgroup == CgroupSeen::Unknown;
    for (mut seen, before) in combinations().filter(unread) {
        if let Decision::Close(outcome) = decide(&seen, before) {
            // An ended pid namespace needs no control group scan.
            let proof = TreeVerdict::Empty(Proof::PrivatePidns);
            let empty = matches!(outcome.tree, TreeVerdict::Empty(_));
            assert!(!empty || outcome.tree == proof, "{seen:?}");
        }
        let word = TreeVerdict::Empty(Proof::CgroupAndEchild);
        if seen.host == Host::Other || was_kept(&seen) {
            continue;
        }
        if let Some(record) = seen.exit_record.as_mut().filter(|r| !r.never_ran) {
            record.tree = Some(word.clone());
            if let Decision::Close(outcome) = decide(&seen, before) {
                assert_eq!(outcome.tree, word, "{seen:?}");
            }
        }
    }
}

#[test]
fn run_with_a_live_leader_is_not_empty() {
    for (seen, before) in combinations().filter(|(s, _)| s.command == ProcessPresence::Same) {
        if let Decision::Close(outcome) = decide(&seen, before) {
            assert!(!matches!(outcome.tree, TreeVerdict::Empty(_)), "{seen:?}");
        }
    }
}

#[test]
fn detached_process_is_ended_only_by_a_stop() {
    for (seen, before) in combinations().filter(|(s, _)| was_kept(s) && s.host == Host::Same) {
        let alive = seen.command == ProcessPresence::Same || seen.cgroup == CgroupSeen::Populated;
        match decide(&seen, before) {
            Decision::Close(outcome) if before == Before::default() => {
                assert!(matches!(outcome.tree, TreeVerdict::Kept(_)), "{seen:?}");
                assert_eq!(outcome.exit, Some(Exit::Code(3)));
            }
            Decision::AwaitShim => {
                assert!(before.stop_wanted && seen.shim == ProcessPresence::Same);
            }
            Decision::Terminate => assert!(before.stop_wanted && alive),
            Decision::Watch(_) => assert!(before.terminated),
            Decision::Close(_) => {
                assert!(
                    before.terminated || before.stop_wanted && !alive,
                    "{seen:?}"
                );
            }
        }
    }
}

// promise: E-4
#[test]
fn exit_is_known_only_from_the_record() {
    for (seen, before) in combinations() {
        let Decision::Close(outcome) = decide(&seen, before) else {
            continue;
        };
        let expected = match &seen.exit_record {
            Some(r) if r.never_ran => None,
            Some(r) => r.exit,
            None => Some(Exit::Unknown),
        };
        assert_eq!(outcome.exit, expected, "{seen:?}");
        assert_eq!(outcome.streams.is_none(), expected.is_none(), "{seen:?}");
    }
}

fn was_kept(seen: &Observation) -> bool {
    let record = seen.exit_record.as_ref();
    record.is_some_and(|r| matches!(r.tree, Some(TreeVerdict::Kept(_))))
}

fn combinations() -> impl Iterator<Item = (Observation, Before)> {
    let exit = |tree| {
        Some(ExitRecord {
            exit: Some(Exit::Code(3)),
            by_itself: None,
            tree,
            never_ran: false,
            steps: vec![],
            census: None,
            shutdown: false,
        })
    };
    let never_ran = Some(ExitRecord {
        exit: None,
        by_itself: None,
        tree: None,
        never_ran: true,
        steps: vec![],
        census: None,
        shutdown: false,
    });
    let records = [
        None,
        exit(None),
        exit(Some(TreeVerdict::Empty(Proof::Echild))),
        exit(Some(TreeVerdict::Empty(Proof::PrivatePidns))),
        never_ran,
        exit(Some(TreeVerdict::Kept(Leftovers {
            processes: vec![Leftover {
                pid: 77,
                start_ticks: 9,
                name: "kept".into(),
            }],
            unlisted: 0,
        }))),
    ];
    let looks = |record: &Option<ExitRecord>| {
        let mut looks = vec![
            Before::default(),
            Before {
                terminated: true,
                ..Before::default()
            },
        ];
        let tree = record.as_ref().and_then(|r| r.tree.as_ref());
        if let Some(TreeVerdict::Kept(_)) = tree {
            looks.push(Before {
                stop_wanted: true,
                ..Before::default()
            });
        }
        looks
    };
    let mut all = Vec::new();
    for host in HOSTS {
        for shim in SEEN {
            for command in SEEN {
                for cgroup in CGROUPS {
                    for exit_record in &records {
                        let seen = Observation {
                            host,
                            exit_record: exit_record.clone(),
                            shim,
                            command,
                            cgroup,
                            held: Vec::new(),
                            hints: vec![],
                            namespace: None,
                            end_begun: false,
                            steps: vec![],
                            stuck: Stuck::default(),
                            at: Timestamp(9),
                        };
                        for hints in [vec![], vec![77]] {
                            for before in looks(exit_record) {
                                let hints = hints.clone();
                                all.push((
                                    Observation {
                                        hints,
                                        ..seen.clone()
                                    },
                                    before,
                                ));
                            }
                        }
                        // Only this start's SIGKILL shows which processes are stuck.
                        for before in looks(exit_record).into_iter().filter(|b| b.terminated) {
                            let stuck = stuck();
                            all.push((
                                Observation {
                                    stuck,
                                    ..seen.clone()
                                },
                                before,
                            ));
                        }
                    }
                }
            }
        }
    }
    all.into_iter()
}

fn show(decision: &Decision) -> String {
    match decision {
        Decision::AwaitShim => "await shim".into(),
        Decision::Terminate => "TERMINATE".into(),
        Decision::Watch(stuck) => format!("watch {}", stuck.processes.len()),
        Decision::Close(Outcome {
            reason,
            exit,
            tree,
            streams,
            ..
        }) => {
            let tree = match tree {
                TreeVerdict::Unverified(_) => "Unverified".to_owned(),
                TreeVerdict::Kept(_) => "Kept".to_owned(),
                reported => format!("{reported:?}"),
            };
            let streams = streams.map_or("-".to_owned(), |s| format!("{s:?}"));
            let exit = exit.map_or("-".to_owned(), |e| format!("{e:?}"));
            format!("close {reason:?} {exit} {tree} {streams}")
        }
    }
}
