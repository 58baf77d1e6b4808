//! The bytes of messages, written down: a change of them is a change of version.

use super::{
    Answer, FromShim, LIST_BYTES_MAX, MEMBERS_TOLD_MAX, ToKeeper, ToServer, ToShim, VERSION,
    WireChild, WireHeldProcess, WireHello, WireListing, WireMember, WireResize, WireShots, decode,
    encode,
    mirror::{
        WireAim, WireCgroup, WireContainment, WireDeadline, WireExit, WireFact, WireFailure,
        WireHeld, WireHolds, WireHost, WireIdentity, WireInit, WireInterruptWay, WireLeader,
        WireLeaderExit, WireLeftover, WireLeftovers, WireLimits, WireMemoryKills, WireNoPty,
        WireNote, WireOnMaxPause, WirePidNamespace, WirePlan, WirePolicy, WirePowers, WireProcess,
        WireProof, WireRecord, WireRecovery, WireRlimit, WireShot, WireShotResult, WireStage,
        WireTarget, WireTerminalSize, WireTie, WireVerdict,
        adoption::{WireAdoptable, WireKeepsake, WireMemory},
        certificate::{WireScope, WireSender, WireStep, WireStuck, WireStuckProcess},
        former::{WireEndCause, WireFormer},
        handover::{WireHeldPause, WireHeldRun},
        held::WireGap,
        input::{
            WireBytes, WireInputClosed, WireInputNote, WireInputRefusal, WireInputSaid,
            WireInputState, WireInputWish, WireInputWrite, WireKnownWrite,
        },
        stray::WireStray,
        upgrade::{WireUpgrade, WireUpgradeRefusal, WireUpgradeState},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::{Debug, Write};

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, golden: &str) {
    let bytes = encode(message).expect("it can be encoded");
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    assert_eq!(hex, golden, "{message:?}");
    assert_eq!(&decode::<T>(&bytes).expect("it can be decoded"), message);
}

fn plan() -> WirePlan {
    WirePlan {
        steps: vec![(15, 0)],
        kill_after_ms: 5000,
    }
}

fn policy() -> WirePolicy {
    WirePolicy {
        stop: plan(),
        max_runtime_ms: Some(300),
        limits: WireLimits::default(),
        on_leader_exit: WireLeaderExit::Drain {
            timeout_ms: Some(300),
        },
        max_pause_ms: Some(300),
        on_max_pause: WireOnMaxPause::Abort,
        pid_namespace: WirePidNamespace::Private,
        recovery: WireRecovery::Adopt,
    }
}

fn step() -> WireStep {
    WireStep {
        at_us: 1000,
        number: 9,
        scope: WireScope::ControlGroup,
        sender: WireSender::Shim,
        delivered: 300,
        gone: 1,
        refused: 2,
        errno: Some(1),
    }
}

fn process(pid: i32) -> WireProcess {
    WireProcess {
        pid,
        pgid: pid,
        sid: pid,
        start_ticks: 300,
        pidfs_handle: Some(77),
    }
}

#[test]
fn requests_have_these_bytes() {
    check(&ToKeeper::Ready, "0200");
    let prepare = ToKeeper::Prepare {
        seq: 1,
        run: 0x0123_4567,
        run_dir: "/r".into(),
        policy: policy(),
        min_containment: Some(WireContainment::Cgroup),
        input: Some(3),
        terminal: Some(WireTerminalSize {
            rows: 40,
            cols: 120,
        }),
    };
    check(
        &prepare,
        "020101e78a8d09022f72011e00882701ac020000000000000000000101ac0201ac0201010101010103012878",
    );
    let files = WireRlimit {
        resource: super::mirror::limits::WireResource::OpenFiles,
        soft: 1,
        hard: u64::MAX,
    };
    let limits = WireLimits {
        rlimits: vec![files],
        nice: Some(-5),
        oom_score_adj: Some(300),
        pids_max: Some(2),
        ..WireLimits::default()
    };
    check(
        &limits,
        "02010601ffffffffffffffffff01010901d80400000001020000",
    );
    check(&ToKeeper::Release { run: 5 }, "020205");
    check(&ToKeeper::ShutGate { run: 5 }, "020305");
    let stop = ToKeeper::Stop {
        run: 5,
        plan: plan(),
    };
    check(&stop, "020405011e008827");
    let interrupt = |request| ToKeeper::Interrupt {
        seq: 2,
        run: 5,
        request,
    };
    check(&interrupt(None), "0205020500");
    check(&interrupt(Some("a".into())), "02050205010161");
    check(&ToKeeper::Acknowledge { run: 5 }, "020805");
    check(&ToKeeper::KeepRest { run: 5 }, "020e05");
    check(&WireLeaderExit::Stop, "0200");
    check(&WireLeaderExit::Keep, "0202");
    let signal = |request| ToKeeper::Signal {
        seq: 2,
        run: 5,
        number: 10,
        target: WireTarget::Leader,
        request,
    };
    check(&signal(None), "020c0205140200");
    check(&signal(Some("a".into())), "020c02051402010161");
    let asked = ToKeeper::WasSent {
        seq: 2,
        run: 5,
        request: "a".into(),
    };
    check(&asked, "021202050161");
    check(&ToKeeper::Tree { seq: 2, run: 5 }, "020d0205");
    check(&ToKeeper::Books { seq: 2 }, "020f02");
    let reap = ToKeeper::Reap {
        seq: 2,
        plan: plan(),
    };
    check(&reap, "021002011e008827");
}

#[test]
fn words_about_an_input_have_these_bytes() {
    let wish = |wish| ToKeeper::Input {
        seq: 2,
        run: 5,
        wish,
    };
    let write = WireInputWish::Write {
        attempt: 3,
        write: WireInputWrite {
            id: "w".into(),
            offset: Some(300),
            len: 4,
        },
        at: 1,
        data: WireBytes(vec![255, 0]),
    };
    check(&wish(write), "021402050003017701ac02040102ff00");
    check(&wish(WireInputWish::Leave), "0214020501");
    let close = WireInputWish::Close {
        attempt: 3,
        offset: None,
    };
    check(&wish(close), "02140205020300");
    check(&wish(WireInputWish::State { attempt: 3 }), "021402050303");
    let state = WireInputState {
        attempt: 3,
        accepted: 300,
        in_doubt: 1,
        closed: Some(WireInputClosed::Command),
        unread: Some(2),
    };
    let answer = |said| ToServer::Answer {
        seq: 2,
        answer: Answer::Input {
            state: state.clone(),
            said,
        },
    };
    check(&answer(WireInputSaid::Stands), "0201020e03ac02010101010200");
    let taken = WireInputSaid::Taken {
        start: 9,
        repeated: true,
    };
    check(&answer(taken), "0201020e03ac020101010102010901");
    let refused = |why| answer(WireInputSaid::Refused(why));
    check(
        &refused(WireInputRefusal::Unknown(300)),
        "0201020e03ac0201010101020203ac02",
    );
    check(
        &answer(WireInputSaid::Displaced),
        "0201020e03ac02010101010203",
    );
    let note = WireInputNote {
        attempt: 3,
        accepted: 300,
        in_doubt: 1,
        closed: None,
        writes: vec![WireKnownWrite {
            id: "w".into(),
            start: 1,
            len: 2,
        }],
    };
    check(&note, "0203ac0201000101770102");
}

fn upgrade() -> WireUpgrade {
    WireUpgrade {
        request: Some("r".into()),
        at_us: 300,
        from_version: "1".into(),
        to_version: "2".into(),
        state: WireUpgradeState::FellBack("w".into()),
    }
}

#[test]
fn words_of_an_upgrade_have_these_bytes() {
    let asked = ToKeeper::Upgrade {
        seq: 2,
        request: Some("r".into()),
    };
    check(&asked, "021302010172");
    let answer = |answer| ToServer::Answer {
        seq: 2,
        answer: Answer::Upgrade(answer),
    };
    check(&answer(Ok(upgrade())), "0201020d00010172d80401310132020177");
    let unfit = WireUpgradeRefusal::Unfit {
        binary: "b".into(),
        why: "w".into(),
        speaks: Some(300),
    };
    check(&answer(Err(unfit)), "0201020d01020162017701ac02");
    check(&ToServer::Leave, "0207");
    let refused = ToServer::NotUpgraded(WireUpgradeRefusal::ShuttingDown);
    check(&refused, "020801");
}

#[test]
fn questions_to_the_keeper_have_these_bytes() {
    check(&ToKeeper::Ping, "0216");
    check(&ToServer::Pong, "020b");
}

#[test]
fn stray_signal_has_these_bytes() {
    let stray = ToServer::Stray(WireStray {
        number: 10,
        pid: 300,
        uid: 7,
        count: 1,
    });
    check(&stray, "020a14d8040701");
}

#[test]
fn the_hello_has_these_bytes() {
    let hello = WireHello {
        epoch: "E".into(),
        version: "V".into(),
        keeper: process(100),
        host: WireHost {
            boot_id: "b".into(),
            pidns_inode: 300,
            init_start_ticks: Some(7),
        },
        cgroup_base: Ok("/c".into()),
        pidfs: true,
        powers: WirePowers {
            hard_max: Vec::new(),
            nice_min: -20,
            oom_score_adj_min: Some(-1000),
            knobs: Err("none".into()),
        },
        kernel: "k".into(),
        capabilities: Vec::new(),
        held: 300,
        late: vec![1],
        restarts: 2,
        former: Some(WireFormer {
            version: "V".into(),
            at_us: 300,
            served: true,
            exit: WireExit::Signal {
                number: 9,
                core_dumped: false,
            },
            cause: WireEndCause::Hung,
        }),
        upgrade: Some(upgrade()),
    };
    check(
        &ToServer::Hello(hello),
        "020001450156c801c801c801ac02014d0162ac02010700022f6301002701cf0f01046e6f6e65016b00ac02010102010156d804010112000101010172d80401310132020177",
    );
}

#[test]
fn whom_a_round_was_for_has_these_bytes() {
    let aim = WireAim {
        pid: 7,
        start_ticks: 9,
        tie: WireTie::Held(WireHolds {
            cgroup: true,
            shim: false,
            keeper: false,
        }),
        result: WireShotResult::Gone,
    };
    check(
        &ToServer::Report {
            run: 5,
            at_us: 1,
            fact: WireFact::Aimed(vec![aim]),
        },
        "020205020d010e090301000001",
    );
}

#[test]
fn answers_and_reports_have_these_bytes() {
    let identity = WireIdentity {
        command: process(200),
        shim: process(100),
        cgroup: Some(WireCgroup {
            path: "/g".into(),
            inode: 9,
        }),
        host: WireHost {
            boot_id: "b".into(),
            pidns_inode: 4,
            init_start_ticks: Some(7),
        },
    };
    let prepared = ToServer::Answer {
        seq: 1,
        answer: Answer::Prepared {
            identity,
            held: WireHeld {
                by: WireContainment::Cgroup,
                gaps: vec![WireGap::NoCgroup("n".into())],
            },
        },
    };
    check(
        &prepared,
        "02010100900390039003ac02014dc801c801c801ac02014d01022f67090162040107010100016e",
    );
    let failed = WireFact::ExecFailed(WireFailure {
        stage: WireStage::Exec,
        errno: Some(2),
        path: Some("/x".into()),
    });
    let report = ToServer::Report {
        run: 5,
        at_us: 1000,
        fact: failed,
    };
    check(&report, "020205d00f0208010401022f78");
    let ended = ToServer::Report {
        run: 5,
        at_us: -1,
        fact: WireFact::TreeEnded(WireVerdict::Empty(WireProof::Echild)),
    };
    check(&ended, "02020501050001");
    let left = WireLeftovers {
        processes: vec![WireLeftover {
            pid: 7,
            start_ticks: 300,
            name: "sh".into(),
        }],
        unlisted: 2,
    };
    let exceeded = ToServer::Report {
        run: 5,
        at_us: 1000,
        fact: WireFact::DeadlineExceeded(WireDeadline::MaxRuntime),
    };
    check(&exceeded, "020205d00f0600");
    check(&WireVerdict::Kept(left.clone()), "0204010eac0202736802");
    let fact = |fact| ToServer::Report {
        run: 5,
        at_us: 1,
        fact,
    };
    check(
        &fact(WireFact::StopStep(step())),
        "0202050207d00f120101ac0201020102",
    );
    check(
        &fact(WireFact::LeftBehind(left)),
        "0202050208010eac0202736802",
    );
    let stuck = WireStuck {
        processes: vec![WireStuckProcess {
            pid: 7,
            start_ticks: 300,
            state: 'D',
            why: "w".into(),
        }],
        unlisted: 2,
    };
    check(
        &fact(WireFact::TreeStuck(stuck)),
        "0202050209010eac020144017702",
    );
    let kills = WireMemoryKills {
        kills: 2,
        memory_max: Some(300),
    };
    check(&fact(WireFact::MemoryKills(kills)), "020205020a0201ac02");
    check(&fact(WireFact::Orphaned), "020205020c");
    check(&fact(WireFact::ShimLost), "020205020e");
    check(&ToServer::ShutdownNow, "0204");
    let answer = |answer| ToServer::Answer { seq: 1, answer };
    check(&answer(Answer::Signalled), "02010106");
    check(&answer(Answer::Listed), "02010107");
    check(&answer(Answer::Books), "02010108");
    check(&answer(Answer::Reaped), "02010109");
    check(&answer(Answer::SentBefore), "0201010b");
    check(&answer(Answer::NotSent), "0201010c");
}

#[test]
fn words_about_a_terminal_have_these_bytes() {
    let size = WireTerminalSize {
        rows: 40,
        cols: 120,
    };
    let resize = ToKeeper::Resize(WireResize {
        seq: 1,
        run: 5,
        attempt: 2,
        size,
    });
    check(&resize, "02150105022878");
    let answer = |answer| ToServer::Answer { seq: 1, answer };
    check(&answer(Answer::NoTerminal), "02010111");
    let way = WireInterruptWay::Foreground;
    check(&answer(Answer::Interrupted(way)), "0201011202");
    let exhausted = WireNoPty::Exhausted {
        current: Some(4),
        max: None,
    };
    check(&answer(Answer::NoPty(exhausted)), "0201011300010400");
    let unavailable = WireNoPty::Unavailable {
        why: "x".into(),
        errno: Some(2),
    };
    check(&answer(Answer::NoPty(unavailable)), "020101130101780104");
}

#[test]
fn what_is_handed_over_has_these_bytes() {
    let run = WireHeldRun {
        run: 5,
        identity: WireIdentity {
            command: process(200),
            shim: process(100),
            cgroup: None,
            host: WireHost {
                boot_id: "b".into(),
                pidns_inode: 4,
                init_start_ticks: Some(7),
            },
        },
        held: WireHeld {
            by: WireContainment::Subreaper,
            gaps: Vec::new(),
        },
        policy: policy(),
        released: true,
        pause: WireHeldPause::Expired,
        stopping: true,
        terminal: Some(WireTerminalSize {
            rows: 40,
            cols: 120,
        }),
    };
    check(
        &ToServer::Held(run),
        "020505900390039003ac02014dc801c801c801ac02014d0001620401070000011e00882701ac020000000000000000000101ac0201ac02010101010301012878",
    );
    check(&ToServer::Ping, "0206");
    check(&ToKeeper::Pong, "0211");
}

#[test]
fn words_of_and_to_shims_have_these_bytes() {
    check(&ToShim::KillAll, "0201");
    check(&ToShim::Stopping, "0202");
    let left = WireLeftovers {
        processes: Vec::new(),
        unlisted: 2,
    };
    check(&ToShim::Keep(left), "02030002");
    check(&ToShim::Discard, "0204");
    let memory = WireMemory {
        max_runtime: Some((300, Some(1))),
        paused_since: Some(2),
        pause_expired: true,
    };
    check(&ToShim::Remember(memory), "020501ac020101010201");
    check(&ToShim::Leave, "0206");
    check(&ToShim::CloseInput, "0207");
    check(&ToShim::ServiceEnds { in_order: true }, "020801");
    check(&FromShim::NotReleased, "0202");
    check(&FromShim::Executed, "0203");
    let exited = FromShim::Exited {
        at_us: 3,
        exit: WireExit::Signal {
            number: 9,
            core_dumped: false,
        },
        rest: true,
    };
    check(&exited, "02050601120001");
    check(&FromShim::Killed(step()), "0207d00f120101ac0201020102");
    let adoptable = WireAdoptable {
        run: 1,
        command: process(300),
        shim: process(2),
        init: Some(3),
        cgroup: None,
        policy: policy(),
        keepsake: WireKeepsake {
            held: WireHeld {
                by: WireContainment::Subreaper,
                gaps: Vec::new(),
            },
            host: WireHost {
                boot_id: "b".into(),
                pidns_inode: 1,
                init_start_ticks: Some(7),
            },
        },
        memory: WireMemory::default(),
        leader_left_at: Some(300),
        stopping_since: Some(1),
        input: true,
    };
    check(
        &FromShim::Adoptable(Box::new(adoptable)),
        "020801d804d804d804ac02014d040404ac02014d010600011e00882701ac020000000000000000000101ac0201ac020101010000016201010700000001ac02010101",
    );
}

#[test]
fn files_have_these_bytes() {
    let child = WireChild {
        executable: b"/bin/a".into(),
        argv: vec![b"a".into(), b"b".into()],
        env: vec![("K".into(), "v".into())],
        cwd: b"/".into(),
    };
    check(&child, "02062f62696e2f61020161016201014b0176012f");
    let record = WireRecord {
        exit: Some(WireExit::Code(7)),
        by_itself_us: Some(4),
        tree: Some(WireVerdict::NeverRan),
        never_ran: true,
        steps: vec![step()],
        census_us: Some(3),
        shutdown: true,
    };
    check(&record, "0201000e010801030101d00f120101ac0201020102010601");
    let leader = WireLeader {
        pid: 7,
        start_ticks: 300,
    };
    let note = WireNote {
        leader,
        steps: vec![step()],
    };
    check(&note, "020eac0201d00f120101ac0201020102");
    let init = WireHeldProcess {
        pid: 8,
        start_ticks: 300,
        pidfs_handle: Some(5),
    };
    check(&WireInit { leader, init }, "020eac0210ac020105");
    let shot = |pid, result| WireShot {
        pid,
        start_ticks: 300,
        result,
    };
    let shots = WireShots {
        shots: vec![
            shot(1, WireShotResult::Delivered),
            shot(2, WireShotResult::Gone),
            shot(3, WireShotResult::Failed(1)),
        ],
        unlisted: 4,
        no_terminal: true,
    };
    check(&shots, "020302ac020004ac020106ac0202020401");
    let member = WireMember {
        pid: 1,
        ppid: 2,
        pgid: 3,
        sid: 4,
        start_ticks: 300,
        holds: WireHolds {
            cgroup: true,
            shim: false,
            keeper: true,
        },
    };
    let listing = WireListing {
        members: vec![member],
        unlisted: 0,
    };
    check(&listing, "020102040608ac0201000100");
}

#[test]
fn the_longest_lists_fit_into_their_file() {
    let shot = WireShot {
        pid: i32::MIN,
        start_ticks: u64::MAX,
        result: WireShotResult::Failed(i32::MIN),
    };
    let shots = WireShots {
        shots: vec![shot; MEMBERS_TOLD_MAX],
        unlisted: u32::MAX,
        no_terminal: true,
    };
    let member = WireMember {
        pid: i32::MIN,
        ppid: i32::MIN,
        pgid: i32::MIN,
        sid: i32::MIN,
        start_ticks: u64::MAX,
        holds: WireHolds {
            cgroup: true,
            shim: true,
            keeper: true,
        },
    };
    let listing = WireListing {
        members: vec![member; MEMBERS_TOLD_MAX],
        unlisted: u32::MAX,
    };
    for bytes in [encode(&shots), encode(&listing)] {
        let bytes = bytes.expect("it can be encoded").len() as u64;
        assert!(bytes <= LIST_BYTES_MAX, "{bytes}");
    }
}

#[test]
fn another_version_is_refused() {
    assert!(decode::<ToKeeper>(&[VERSION + 1, 0]).is_err());
    assert!(decode::<ToKeeper>(&[]).is_err());
}
