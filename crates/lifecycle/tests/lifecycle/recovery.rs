//! What a restart does with each row it may find: all combinations, in a golden file.

use crate::samples::assert_golden;
use kennel_lifecycle::{
    EndReason, Exit, Outcome, Proof, Timestamp, TreeVerdict,
    recovery::{CgroupSeen, Decision, ExitRecord, Host, Observation, Seen, decide},
};
use std::fmt::Write as _;

const SEEN: [Seen; 3] = [Seen::Same, Seen::Gone, Seen::Unknown];
const CGROUPS: [CgroupSeen; 3] = [CgroupSeen::None, CgroupSeen::Empty, CgroupSeen::Populated];
const HOSTS: [Host; 2] = [Host::Same, Host::Other];

#[test]
fn every_combination_is_decided_as_agreed() {
    let mut text = String::new();
    for (seen, terminated) in combinations() {
        let record = match &seen.exit_record {
            None => "no-record",
            Some(r) if r.never_ran => "never-ran",
            Some(r) if r.tree.is_some() => "exit+tree",
            Some(_) => "exit",
        };
        let after = if terminated {
            "terminated"
        } else {
            "first-look"
        };
        let hints = if seen.hints.is_empty() { "-" } else { "hints" };
        writeln!(
            text,
            "host={:5} shim={:7} command={:7} cgroup={:9} {record:9} {hints:5} {after:10}  {}",
            format!("{:?}", seen.host),
            format!("{:?}", seen.shim),
            format!("{:?}", seen.command),
            format!("{:?}", seen.cgroup),
            show(&decide(&seen, terminated)),
        )
        .unwrap();
    }
    assert_golden("recovery.txt", &text);
}

#[test]
fn another_boot_or_namespace_is_never_waited_for_nor_signalled() {
    for (seen, terminated) in combinations().filter(|(s, _)| s.host == Host::Other) {
        let decision = decide(&seen, terminated);
        assert!(
            matches!(&decision, Decision::Close(o) if o.reason == EndReason::Rebooted),
            "{seen:?}: {decision:?}"
        );
    }
}

#[test]
fn only_a_certain_member_of_the_run_leads_to_a_signal() {
    for (seen, terminated) in combinations() {
        let certain = seen.command == Seen::Same || seen.cgroup == CgroupSeen::Populated;
        if decide(&seen, terminated) == Decision::Terminate {
            assert!(certain && seen.host == Host::Same, "{seen:?}");
        }
    }
}

#[test]
fn a_process_that_may_be_a_stranger_and_hints_alone_lead_to_no_signal() {
    for (seen, terminated) in combinations() {
        let vague = seen.command != Seen::Same && seen.cgroup != CgroupSeen::Populated;
        if vague && !seen.hints.is_empty() && seen.shim != Seen::Same {
            assert!(
                matches!(decide(&seen, terminated), Decision::Close(_)),
                "{seen:?}"
            );
        }
    }
}

#[test]
fn after_our_own_termination_a_row_is_always_closed() {
    for (seen, _) in combinations().filter(|(_, terminated)| *terminated) {
        assert!(
            matches!(decide(&seen, true), Decision::Close(_)),
            "{seen:?}"
        );
    }
}

#[test]
fn empty_is_said_only_with_a_proof() {
    for (seen, terminated) in combinations() {
        let Decision::Close(outcome) = decide(&seen, terminated) else {
            continue;
        };
        let echild = seen
            .exit_record
            .as_ref()
            .is_some_and(|r| matches!(r.tree, Some(TreeVerdict::Empty(_))));
        let empty = seen.cgroup == CgroupSeen::Empty;
        match outcome.tree {
            TreeVerdict::Empty(Proof::CgroupAndEchild) => assert!(echild && empty, "{seen:?}"),
            TreeVerdict::Empty(Proof::Echild) => {
                assert!(echild && seen.cgroup == CgroupSeen::None, "{seen:?}");
            }
            TreeVerdict::Empty(Proof::Cgroup) => assert!(empty, "{seen:?}"),
            TreeVerdict::NeverRan => assert!(seen.exit_record.is_some_and(|r| r.never_ran)),
            TreeVerdict::Survivors(_) => assert!(!seen.hints.is_empty(), "{seen:?}"),
            TreeVerdict::Unverified(_) | TreeVerdict::Kept(_) => {}
        }
    }
}

#[test]
fn a_run_whose_leader_is_still_there_is_not_called_empty() {
    for (seen, terminated) in combinations().filter(|(s, _)| s.command == Seen::Same) {
        if let Decision::Close(outcome) = decide(&seen, terminated) {
            assert!(!matches!(outcome.tree, TreeVerdict::Empty(_)), "{seen:?}");
        }
    }
}

#[test]
fn an_exit_is_known_from_the_record_or_not_at_all() {
    for (seen, terminated) in combinations() {
        let Decision::Close(outcome) = decide(&seen, terminated) else {
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

fn combinations() -> impl Iterator<Item = (Observation, bool)> {
    let exit = |tree| {
        Some(ExitRecord {
            exit: Some(Exit::Code(3)),
            tree,
            never_ran: false,
            steps: vec![],
            census: None,
        })
    };
    let never_ran = Some(ExitRecord {
        exit: None,
        tree: None,
        never_ran: true,
        steps: vec![],
        census: None,
    });
    let records = [
        None,
        exit(None),
        exit(Some(TreeVerdict::Empty(Proof::Echild))),
        never_ran,
    ];
    let mut all = Vec::new();
    for host in HOSTS {
        for shim in SEEN {
            for command in SEEN {
                for cgroup in CGROUPS {
                    for exit_record in &records {
                        for hints in [vec![], vec![77]] {
                            for terminated in [false, true] {
                                let exit_record = exit_record.clone();
                                let hints = hints.clone();
                                all.push((
                                    Observation {
                                        host,
                                        exit_record,
                                        shim,
                                        command,
                                        cgroup,
                                        hints,
                                        steps: vec![],
                                        at: Timestamp(9),
                                    },
                                    terminated,
                                ));
                            }
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
        Decision::Close(Outcome {
            reason,
            exit,
            tree,
            streams,
            ..
        }) => {
            let tree = match tree {
                TreeVerdict::Unverified(_) => "Unverified".to_owned(),
                told => format!("{told:?}"),
            };
            let streams = streams.map_or("-".to_owned(), |s| format!("{s:?}"));
            let exit = exit.map_or("-".to_owned(), |e| format!("{e:?}"));
            format!("close {reason:?} {exit} {tree} {streams}")
        }
    }
}
