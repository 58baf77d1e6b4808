//! The leak check's comparison: one row for each way in which a process may lead to a run, and each way in which it
//! only seems to.

use kennel_lifecycle::{
    CgroupIdentity, HostIdentity, ProcessIdentity, RunId, RunIdentity,
    audit::{
        Certainty, Compared, Evidence, Finding, GroupSeen, HostInventory, KnownRun, RunStatus,
        ScannedProcess, compare,
        reap::{Candidate, Judgement, Scope, Spared, judge},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

const KEEPER: i32 = 10;
const SERVER: i32 = 11;
/// Start of the recorded leaders.
const BEGAN: u64 = 1000;

/// A run that has ended: leader 100, shim 99.
fn over() -> RunId {
    RunId::from_u128(1)
}

/// A run that lives: leader 200, shim 199.
fn live() -> RunId {
    RunId::from_u128(2)
}

/// A run without any record.
fn unknown() -> RunId {
    RunId::from_u128(3)
}

fn identity(pid: i32, start_ticks: u64) -> ProcessIdentity {
    ProcessIdentity {
        pid,
        pgid: pid,
        sid: pid,
        start_ticks,
        pidfs_handle: Some(start_ticks * 1_000_000 + u64::from(pid.unsigned_abs())),
    }
}

fn group(id: u64) -> CgroupIdentity {
    CgroupIdentity {
        path: format!("/g/{id}"),
        inode: id,
    }
}

fn recorded(leader: i32, cgroup: Option<CgroupIdentity>) -> RunIdentity {
    RunIdentity {
        command: identity(leader, BEGAN),
        shim: identity(leader - 1, BEGAN - 1),
        cgroup,
        host: HostIdentity {
            boot_id: "boot".into(),
            pidns_inode: 4,
            init_start_ticks: Some(7),
        },
    }
}

fn inventory() -> HostInventory {
    let known = |standing, leader, cgroup| KnownRun {
        standing,
        identity: Some(recorded(leader, cgroup)),
    };
    HostInventory {
        keeper: KEEPER,
        service: vec![SERVER],
        shims: HashMap::from([(199, live())]),
        runs: HashMap::from([
            (over(), known(RunStatus::Ended, 100, Some(group(1)))),
            (live(), known(RunStatus::Live, 200, Some(group(2)))),
        ]),
        rows_compared: true,
    }
}

/// A process that began after the recorded ones, alone in a session, whose parent is not seen.
fn alone(pid: i32) -> ScannedProcess {
    ScannedProcess {
        identity: identity(pid, BEGAN + 5),
        ppid: 1,
        has_ended: false,
        cgroup: None,
        marker: None,
    }
}

fn below(parent: i32, pid: i32) -> ScannedProcess {
    ScannedProcess {
        ppid: parent,
        ..alone(pid)
    }
}

fn in_group(
    pid: i32,
    run: RunId,
    identity: CgroupIdentity,
    of_this_keeper: bool,
) -> ScannedProcess {
    ScannedProcess {
        cgroup: Some(GroupSeen {
            run,
            identity,
            of_this_keeper,
        }),
        ..alone(pid)
    }
}

fn of_session(sid: i32, pid: i32) -> ScannedProcess {
    let mut seen = alone(pid);
    seen.identity.pgid = sid;
    seen.identity.sid = sid;
    seen
}

fn marked(mut seen: ScannedProcess, run: RunId) -> ScannedProcess {
    seen.marker = Some(run);
    seen
}

fn is(process: ProcessIdentity) -> ScannedProcess {
    ScannedProcess {
        identity: process,
        ..alone(process.pid)
    }
}

/// Finding on one process: run, evidence, certainty.
type Verdict = (Option<RunId>, Evidence, Certainty);

fn found(seen: &[ScannedProcess], inventory: &HostInventory, pid: i32) -> Option<Verdict> {
    let compared = compare(seen, inventory);
    let found = compared.findings.iter().find(|f| f.process.pid == pid);
    found.map(|f| (f.run, f.evidence, f.certainty))
}

fn reported(seen: &[ScannedProcess], inventory: &HostInventory, pid: i32) -> Verdict {
    found(seen, inventory, pid).unwrap_or_else(|| panic!("nothing is said of {pid}"))
}

fn proven(run: RunId, evidence: Evidence) -> Verdict {
    (Some(run), evidence, Certainty::Proven)
}

fn hint(run: RunId, evidence: Evidence) -> Verdict {
    (Some(run), evidence, Certainty::Hint)
}

#[test]
fn leak_check_ignores_keeper_server_and_shims() {
    let seen = [alone(KEEPER), below(KEEPER, SERVER), below(KEEPER, 199)];
    let compared = compare(&seen, &inventory());
    assert_eq!(compared.findings, []);
    assert_eq!(compared.held, 1, "the shim of a live run is part of it");
}

// promise: M-18
#[test]
fn leak_check_reports_escaped_process_not_shim() {
    let with = |pid: i32, pgid: i32, sid: i32| {
        let mut seen = below(199, pid);
        seen.identity.pgid = pgid;
        seen.identity.sid = sid;
        seen
    };
    let shim = is(identity(199, BEGAN - 1));
    let mut leader = is(identity(200, BEGAN));
    leader.ppid = 250;
    let seen = [
        shim,
        leader,
        with(250, 250, 250),
        with(300, 200, 200),
        with(301, 301, 200),
        with(302, 302, 302),
        with(303, 0, 0),
    ];
    let compared = compare(&seen, &inventory());
    assert_eq!(compared.findings, []);
    assert_eq!(compared.held, 7);
    let escaped: Vec<_> = compared
        .escaped
        .iter()
        .map(|(p, run)| (p.pid, *run))
        .collect();
    assert_eq!(escaped, [(302, live())]);
    // Without the leader, the owner of its group and session is unknown.
    let without: Vec<ScannedProcess> = seen.into_iter().filter(|p| p.identity.pid != 200).collect();
    assert_eq!(compare(&without, &inventory()).escaped, []);
}

// promise: F-2
#[test]
fn member_of_recorded_group_is_proven_by_inode() {
    let inventory = inventory();
    let at = |identity, ours| reported(&[in_group(300, over(), identity, ours)], &inventory, 300);
    assert_eq!(at(group(1), false), proven(over(), Evidence::LeakedCgroup));
    let remade = CgroupIdentity {
        inode: 77,
        ..group(1)
    };
    assert_eq!(at(remade, true), hint(over(), Evidence::LeakedCgroup));
    // Another control group of the run: this keeper's, or an unrecorded one.
    assert_eq!(at(group(9), true), proven(over(), Evidence::LeakedCgroup));
    assert_eq!(at(group(9), false), hint(over(), Evidence::LeakedCgroup));
    let unrecorded = [in_group(300, unknown(), group(9), true)];
    assert_eq!(
        reported(&unrecorded, &inventory, 300),
        proven(unknown(), Evidence::LeakedCgroup)
    );
}

#[test]
fn descendants_of_a_shim_belong_to_its_run() {
    let shim = is(identity(99, BEGAN - 1));
    let seen = [shim, below(99, 300), below(300, 301), below(301, 302)];
    let inventory = inventory();
    assert_eq!(
        reported(&seen, &inventory, 99),
        proven(over(), Evidence::Shim)
    );
    for pid in [300, 301, 302] {
        assert_eq!(
            reported(&seen, &inventory, pid),
            proven(over(), Evidence::ShimChild)
        );
    }
    // Another process with the shim's pid belongs to no run.
    let seen = [is(identity(99, BEGAN + 1)), below(99, 300)];
    assert_eq!(compare(&seen, &inventory).findings, []);
}

#[test]
fn group_membership_needs_leader_or_verified_member() {
    let inventory = inventory();
    let member = || of_session(100, 300);
    let leader = is(identity(100, BEGAN));
    let seen = [leader.clone(), member()];
    assert_eq!(
        reported(&seen, &inventory, 100),
        proven(over(), Evidence::RecordedGroup)
    );
    assert_eq!(
        reported(&seen, &inventory, 300),
        proven(over(), Evidence::RecordedGroup)
    );
    // A leader that exited unreaped still owns its pid.
    let zombie = ScannedProcess {
        has_ended: true,
        ..leader
    };
    assert_eq!(
        reported(&[zombie, member()], &inventory, 300),
        proven(over(), Evidence::RecordedGroup)
    );
    let mut held = in_group(301, over(), group(1), false);
    held.identity.sid = 100;
    assert_eq!(
        reported(&[held, member()], &inventory, 300),
        proven(over(), Evidence::RecordedGroup)
    );
    // Marker and session agree.
    let agreed = [marked(member(), over())];
    assert_eq!(
        reported(&agreed, &inventory, 300),
        proven(over(), Evidence::RecordedGroup)
    );
}

// promise: F-2
#[test]
fn reused_pid_is_no_evidence() {
    let inventory = inventory();
    let stranger = is(identity(100, BEGAN + 1));
    let seen = [stranger, of_session(100, 300)];
    assert_eq!(compare(&seen, &inventory), Compared::default());
    // Without a process of that pid, the session may belong to either.
    assert_eq!(
        reported(&[of_session(100, 300)], &inventory, 300),
        hint(over(), Evidence::RecordedGroup)
    );
    let mut older = of_session(100, 300);
    older.identity.start_ticks = BEGAN - 1;
    assert_eq!(compare(&[older], &inventory), Compared::default());
}

#[test]
fn environment_marker_is_only_a_hint() {
    let mut inventory = inventory();
    let at = |run, inventory: &HostInventory| reported(&[marked(alone(300), run)], inventory, 300);
    assert_eq!(at(over(), &inventory), hint(over(), Evidence::Marker));
    assert_eq!(at(live(), &inventory), hint(live(), Evidence::Marker));
    let foreign = compare(&[marked(alone(300), unknown())], &inventory);
    assert_eq!((foreign.findings.len(), foreign.foreign), (0, 1));
    let mut older = marked(alone(300), over());
    older.identity.start_ticks = BEGAN - 1;
    assert_eq!(compare(&[older], &inventory).foreign, 1);
    inventory.rows_compared = false;
    assert_eq!(at(unknown(), &inventory), hint(unknown(), Evidence::Marker));
}

// promise: F-1
#[test]
fn leak_check_ignores_members_of_live_runs() {
    let inventory = inventory();
    let seen = [
        below(KEEPER, 199),
        marked(below(199, 300), over()),
        in_group(301, live(), group(2), true),
        marked(of_session(100, 302), over()),
        // The shim is lost: the keeper contains processes with the run's marker.
        marked(below(KEEPER, 303), live()),
    ];
    let mut with_both = seen[3].clone();
    with_both.identity.pid = 304;
    with_both.cgroup.clone_from(&seen[2].cgroup);
    let mut seen = seen.to_vec();
    seen.push(with_both);
    let compared = compare(&seen, &inventory);
    let pids: Vec<i32> = compared.findings.iter().map(|f| f.process.pid).collect();
    assert_eq!(pids, [302], "a control: it is of the run that is over");
    assert_eq!(compared.held, 5);
}

#[test]
fn unknown_child_of_keeper_is_a_stray() {
    let seen = [
        below(KEEPER, 300),
        below(300, 301),
        marked(below(KEEPER, 302), unknown()),
    ];
    let inventory = inventory();
    for pid in [300, 301, 302] {
        assert_eq!(
            reported(&seen, &inventory, pid),
            (None, Evidence::Stray, Certainty::Hint)
        );
    }
    assert_eq!(compare(&[alone(300)], &inventory), Compared::default());
}

#[test]
fn only_our_zombies_count_as_unreaped() {
    let dead = |parent, pid| ScannedProcess {
        has_ended: true,
        ..below(parent, pid)
    };
    let shim = is(identity(99, BEGAN - 1));
    let seen = [
        shim,
        dead(99, 300),
        dead(KEEPER, 301),
        dead(199, 302),
        dead(1, 303),
    ];
    let inventory = inventory();
    assert_eq!(
        reported(&seen, &inventory, 300),
        proven(over(), Evidence::Zombie)
    );
    let of_keeper = reported(&seen, &inventory, 301);
    assert_eq!(of_keeper, (None, Evidence::Zombie, Certainty::Hint));
    assert_eq!(found(&seen, &inventory, 302), None);
    assert_eq!(found(&seen, &inventory, 303), None);
}

/// Every kind of evidence, both certainties, every status: the decisions of a default scope, and of one that names the
/// evidence.
// promise: F-3
#[test]
fn only_proven_or_named_leaks_may_be_ended() {
    use Evidence::{Kept, LeakedCgroup, Marker, RecordedGroup, Shim, ShimChild, Stray, Zombie};
    let all = [
        Kept,
        LeakedCgroup,
        Shim,
        ShimChild,
        RecordedGroup,
        Marker,
        Stray,
        Zombie,
    ];
    let standings = [
        None,
        Some(RunStatus::Live),
        Some(RunStatus::Open),
        Some(RunStatus::Ended),
    ];
    let mut reaped = Vec::new();
    for evidence in all {
        for certainty in [Certainty::Proven, Certainty::Hint] {
            for standing in standings {
                for named in [false, true] {
                    let finding = finding(evidence, certainty, standing);
                    let scope = Scope {
                        evidence: named.then_some(evidence).into_iter().collect(),
                        ..Scope::default()
                    };
                    match judge(&candidate(&finding), &scope) {
                        Judgement::Reap => reaped.push((evidence, certainty, standing, named)),
                        Judgement::Spared(_) => {}
                        Judgement::OutOfScope => panic!("it was asked for"),
                    }
                }
            }
        }
    }
    let mut expected = Vec::new();
    for standing in [None, Some(RunStatus::Ended)] {
        expected.push((Kept, Certainty::Proven, standing, true));
    }
    for evidence in [LeakedCgroup, ShimChild, RecordedGroup] {
        for standing in [None, Some(RunStatus::Ended)] {
            for named in [false, true] {
                expected.push((evidence, Certainty::Proven, standing, named));
            }
        }
    }
    for certainty in [Certainty::Proven, Certainty::Hint] {
        expected.push((Marker, certainty, Some(RunStatus::Ended), true));
    }
    assert_eq!(reaped, expected);
}

#[test]
fn detached_process_is_reaped_only_by_name() {
    let mut inventory = inventory();
    inventory.runs.get_mut(&over()).unwrap().standing = RunStatus::Kept;
    let seen = [
        in_group(300, over(), group(1), false),
        marked(alone(301), over()),
    ];
    assert_eq!(
        reported(&seen, &inventory, 300),
        proven(over(), Evidence::Kept)
    );
    assert_eq!(
        reported(&seen, &inventory, 301),
        hint(over(), Evidence::Marker)
    );
    let finding = compare(&seen, &inventory).findings.remove(0);
    let unnamed = judge(&candidate(&finding), &Scope::default());
    assert_eq!(unnamed, Judgement::Spared(Spared::Kept));
    let by_run = Scope {
        runs: BTreeSet::from([over()]),
        ..Scope::default()
    };
    assert_eq!(judge(&candidate(&finding), &by_run), Judgement::Reap);
}

// promise: F-10
#[test]
fn possibly_detached_process_needs_its_run_named() {
    for evidence in [Evidence::LeakedCgroup, Evidence::ShimChild] {
        let finding = finding(evidence, Certainty::Proven, None);
        let away = Candidate {
            rows_compared: false,
            ..candidate(&finding)
        };
        let any = Scope {
            evidence: BTreeSet::from([evidence]),
            ..Scope::default()
        };
        for unnamed in [&Scope::default(), &any] {
            let unknown = Judgement::Spared(Spared::RunUnknown);
            assert_eq!(judge(&away, unnamed), unknown);
        }
        let by_run = Scope {
            runs: BTreeSet::from([over()]),
            ..Scope::default()
        };
        assert_eq!(judge(&away, &by_run), Judgement::Reap);
    }
}

// promise: F-9
#[test]
fn leak_check_ignores_shim_of_detached_processes() {
    let mut inventory = inventory();
    inventory.runs.get_mut(&over()).unwrap().standing = RunStatus::Kept;
    inventory.shims.insert(99, over());
    let mut shim = below(KEEPER, 99);
    shim.identity = identity(99, BEGAN - 1);
    let kept = below(99, 300);
    let found = compare(&[shim.clone(), kept], &inventory).findings;
    let named: Vec<_> = found.iter().map(|f| (f.process.pid, f.evidence)).collect();
    assert_eq!(named, [(300, Evidence::Kept)]);
    assert_eq!(
        reported(&[shim], &inventory, 99),
        proven(over(), Evidence::Shim)
    );
}

#[test]
fn marked_process_of_another_user_is_spared() {
    let finding = finding(Evidence::Marker, Certainty::Hint, Some(RunStatus::Ended));
    let scope = Scope {
        evidence: BTreeSet::from([Evidence::Marker]),
        ..Scope::default()
    };
    let others = Candidate {
        own_user: false,
        ..candidate(&finding)
    };
    assert_eq!(judge(&others, &scope), Judgement::Spared(Spared::OtherUser));
    let unnamed = judge(&candidate(&finding), &Scope::default());
    assert_eq!(unnamed, Judgement::Spared(Spared::MarkerNotNamed));
}

// promise: F-5
#[test]
fn every_field_of_reap_scope_narrows_it() {
    let finding = finding(
        Evidence::ShimChild,
        Certainty::Proven,
        Some(RunStatus::Ended),
    );
    let labels = BTreeMap::from([("team".to_owned(), "blue".to_owned())]);
    let labelled = Candidate {
        labels: Some(&labels),
        ..candidate(&finding)
    };
    let judged = |scope: &Scope| judge(&labelled, scope);
    let of = |key: &str, value: &str| Scope {
        labels: format!("{key}={value}").parse().unwrap(),
        ..Scope::default()
    };
    assert_eq!(judged(&of("team", "blue")), Judgement::Reap);
    assert_eq!(judged(&of("team", "red")), Judgement::OutOfScope);
    assert_eq!(
        judge(&candidate(&finding), &of("team", "blue")),
        Judgement::Spared(Spared::RunUnknown)
    );
    let scopes = [
        Scope {
            runs: BTreeSet::from([unknown()]),
            ..Scope::default()
        },
        Scope {
            older: Duration::from_secs(61),
            ..Scope::default()
        },
        Scope {
            evidence: BTreeSet::from([Evidence::LeakedCgroup]),
            ..Scope::default()
        },
        Scope {
            processes: vec![identity(300, BEGAN + 6)],
            ..Scope::default()
        },
    ];
    for scope in scopes {
        assert_eq!(judged(&scope), Judgement::OutOfScope, "{scope:?}");
    }
    let all = Scope {
        runs: BTreeSet::from([over()]),
        older: Duration::from_mins(1),
        evidence: BTreeSet::from([Evidence::ShimChild]),
        processes: vec![identity(300, BEGAN + 5)],
        ..of("team", "blue")
    };
    assert_eq!(judged(&all), Judgement::Reap);
}

fn finding(evidence: Evidence, certainty: Certainty, standing: Option<RunStatus>) -> Finding {
    Finding {
        process: identity(300, BEGAN + 5),
        ppid: 1,
        run: Some(over()),
        standing,
        evidence,
        certainty,
        cgroup: None,
    }
}

fn candidate(finding: &Finding) -> Candidate<'_> {
    Candidate {
        finding,
        labels: None,
        age: Duration::from_mins(1),
        own_user: true,
        rows_compared: true,
    }
}
