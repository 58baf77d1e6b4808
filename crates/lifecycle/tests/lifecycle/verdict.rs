//! The verdict on a tree, for every kind of evidence together.

use crate::samples::assert_golden;
use kennel_lifecycle::{
    Proof, TreeVerdict,
    verdict::{GroupEvidence, ShimEvidence, TreeEvidence},
};
use std::fmt::Write as _;

fn shims() -> Vec<ShimEvidence> {
    let recorded = [
        TreeVerdict::Empty(Proof::Echild),
        TreeVerdict::Empty(Proof::CgroupAndEchild),
        TreeVerdict::Empty(Proof::PrivatePidns),
        TreeVerdict::Unverified("by the shim".into()),
        TreeVerdict::Survivors(vec![3]),
    ];
    let childless = [vec![], vec![4]].map(|elsewhere| ShimEvidence::Childless { elsewhere });
    let mut all = childless.to_vec();
    all.extend(recorded.map(ShimEvidence::Recorded));
    all.push(ShimEvidence::Lost);
    all
}

fn groups() -> [GroupEvidence; 5] {
    [
        GroupEvidence::Absent,
        GroupEvidence::Empty,
        GroupEvidence::Unrelated(vec![5]),
        GroupEvidence::Unreadable("EIO".into()),
        GroupEvidence::NotEmptied,
    ]
}

fn all() -> Vec<TreeEvidence> {
    let mut all = Vec::new();
    for shim in shims() {
        for group in groups() {
            for hints in [vec![], vec![6]] {
                for leader_unknown in [false, true] {
                    all.push(TreeEvidence {
                        hints: hints.clone(),
                        leader_unknown,
                        ..TreeEvidence::of(shim.clone(), group.clone())
                    });
                }
            }
        }
    }
    all
}

#[test]
fn tree_verdicts_match_golden_table() {
    let mut table = String::new();
    for evidence in all() {
        let seen = format!(
            "{:?} {:?} hints={:?} leader_unknown={}",
            evidence.shim, evidence.group, evidence.hints, evidence.leader_unknown
        );
        writeln!(table, "{seen:100} {:?}", evidence.verdict()).unwrap();
    }
    assert_golden("verdict.txt", &table);
}

#[test]
fn empty_verdict_always_has_a_proof() {
    for evidence in all() {
        let shim_proves = matches!(
            evidence.shim,
            ShimEvidence::Childless { .. } | ShimEvidence::Recorded(TreeVerdict::Empty(_))
        );
        let group_proves = evidence.group == GroupEvidence::Empty && evidence.hints.is_empty();
        if let TreeVerdict::Empty(proof) = evidence.clone().verdict() {
            assert!(shim_proves || group_proves, "{evidence:?}: {proof:?}");
            let not_emptied = evidence.group == GroupEvidence::NotEmptied;
            assert!(
                !not_emptied || proof == Proof::PrivatePidns,
                "{evidence:?}: {proof:?}"
            );
        }
    }
}

#[test]
fn closed_gate_and_ended_namespace_determine_verdict() {
    for evidence in all() {
        let never_ran = TreeEvidence {
            never_ran: true,
            namespace_ended: true,
            ..evidence.clone()
        };
        assert_eq!(never_ran.verdict(), TreeVerdict::NeverRan);
        let private = TreeEvidence {
            namespace_ended: true,
            ..evidence
        };
        assert_eq!(private.verdict(), TreeVerdict::Empty(Proof::PrivatePidns));
    }
}
