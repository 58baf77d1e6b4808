//! Golden bytes of messages: a change of them is a change of version.

use super::{
    Answer, FromShim, LIST_BYTES_MAX, MEMBERS_LISTED_MAX, PrepareRequest, ToKeeper, ToServer,
    ToShim, VERSION, WireExtend, WireListing, WireMember,
    adoption::{WireAdoptable, WireKeepsake, WireMemory, WireNotices},
    decode, encode,
    handover::WireHeldRun,
    input::{WireBytes, WireInputRequest},
    notes::{InitNote, InputNote, OrphanNote, WireLeader},
};
use crate::client::{
    EndCause, ExtendResult, Extended, Fact, FormerServer, HeldPause, HelperEnd, Holds, InputResult,
    InputState, InterruptWay, KeeperEvent, KeeperHello, KeeperReport, MembershipEvidence, NoPty,
    Notified, RoundTarget, SignalOutcome, SignalTarget, SignalledProcess, SignalledProcesses,
    StraySignal, Upgrade, UpgradeRefusal, UpgradeState,
};
use crate::held::HeldProcess;
use kennel_lifecycle::{
    Activity, CgroupIdentity, Containment, Countdown, Deadline, Exit, Gap, Held, HostIdentity,
    InputClosed, InputLedger, InputRefusal, InputWrite, KeeperEpoch, KnownWrite, LeaderExit,
    Leftover, Leftovers, LimitPowers, MemoryKills, OnMaxPause, PausePolicy, PidNamespace, Policy,
    ProcessIdentity, Proof, Recovery, Resource, RestartPolicy, Rlimit, RunId, RunIdentity, RunKind,
    RunLimits, SecretDelivery, SecretValue, Signal, SignalScope, SignalSender, StartFailure,
    StartStage, StatusText, StopCommand, StopCommandEnd, StopInput, StopPolicy, StopReason,
    StopStep, Stuck, StuckProcess, TerminalSize, Timestamp, TreeVerdict, Usage,
    ladder::{Action, Step, StopPlan},
    recovery::ExitRecord,
};
use kennel_linux::spawn::{ChildImage, ChildSecret};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt::{Debug, Write},
    time::Duration,
};

/// Checks the bytes after the version, which is the first of every message.
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, golden: &str) {
    let bytes = encode(message).expect("it can be encoded");
    assert_eq!(bytes[0], VERSION);
    let hex = bytes[1..].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    assert_eq!(hex, golden, "{message:?}");
    assert_eq!(&decode::<T>(&bytes).expect("it can be decoded"), message);
    kennel_mutations::each(&bytes, |wrong| {
        let read = decode::<T>(wrong).ok();
        let again = read.as_ref().and_then(|read| encode(read).ok());
        if let Some(again) = again {
            assert_eq!(decode::<T>(&again).ok(), read, "{wrong:02x?}");
        }
    });
}

fn run(number: u128) -> RunId {
    RunId::from_u128(number)
}

fn event(event: KeeperEvent) -> ToServer {
    ToServer::Event(event)
}

fn reported(at_us: i64, fact: Fact) -> ToServer {
    event(KeeperEvent::Report(KeeperReport {
        run: run(5),
        at: Timestamp(at_us),
        fact,
    }))
}

fn plan() -> StopPlan {
    StopPlan {
        steps: vec![Step {
            action: Action::Signal(Signal::TERM),
            after: Duration::ZERO,
        }],
        kill_after: Duration::from_secs(5),
    }
}

/// The bytes of [`policy`]. A change of them requires another [`super::VERSION`].
const POLICY: &str = "010105000000010080c6868f0100000000000000000000000001010080c6868f01010080c6868f01010101010101020100023c000001030a000000008080802000000000000000000000000000";

fn policy() -> Policy {
    let mut policy = Policy {
        kind: RunKind::Service,
        stop: StopPolicy::within(Duration::from_secs(5)),
        on_leader_exit: LeaderExit::Drain {
            timeout: Some(Duration::from_millis(300)),
        },
        pause: PausePolicy {
            max_pause: Some(Duration::from_millis(300)),
            on_max_pause: OnMaxPause::Abort,
        },
        min_containment: Some(Containment::Cgroup),
        pid_namespace: PidNamespace::Private,
        recovery: Some(Recovery::Adopt),
        restart: RestartPolicy::agent(),
        ..Policy::default()
    };
    policy.timeouts.max_runtime = Some(Duration::from_millis(300));
    policy
}

fn step() -> StopStep {
    StopStep {
        at: Timestamp(1000),
        signal: Signal::KILL,
        scope: SignalScope::ControlGroup,
        sender: SignalSender::Shim,
        delivered: 300,
        gone: 1,
        refused: 2,
        errno: Some(1),
    }
}

fn process(pid: i32) -> ProcessIdentity {
    ProcessIdentity {
        pid,
        pgid: pid,
        sid: pid,
        start_ticks: 300,
        pidfs_handle: Some(77),
    }
}

#[test]
fn requests_have_these_bytes() {
    check(&ToKeeper::Ready, "00");
    let prepare = ToKeeper::Prepare(Box::new(PrepareRequest {
        seq: 1,
        run: run(0x0123_4567),
        run_dir: "/r".into(),
        policy: policy(),
        input: Some(3),
        terminal: Some(TerminalSize {
            rows: 40,
            cols: 120,
        }),
    }));
    check(&prepare, &format!("0101e78a8d09022f72{POLICY}0103012878"));
    let files = Rlimit {
        resource: Resource::OpenFiles,
        soft: 1,
        hard: u64::MAX,
    };
    let limits = RunLimits {
        rlimits: vec![files],
        nice: Some(-5),
        oom_score_adj: Some(300),
        pids_max: Some(2),
        ..RunLimits::default()
    };
    check(
        &limits,
        "010601ffffffffffffffffff01010901d8040000000102000000",
    );
    check(&ToKeeper::Release { run: run(5) }, "0205");
    check(&ToKeeper::ShutGate { run: run(5) }, "0305");
    let stop = ToKeeper::Stop {
        run: run(5),
        plan: plan(),
    };
    check(&stop, "040501001e00000500");
    let interrupt = |request| ToKeeper::Interrupt {
        seq: 2,
        run: run(5),
        request,
    };
    check(&interrupt(None), "05020500");
    check(&interrupt(Some("a".into())), "050205010161");
    check(&ToKeeper::Acknowledge { run: run(5) }, "0805");
    check(&ToKeeper::KeepRest { run: run(5) }, "0e05");
    check(&LeaderExit::Stop, "00");
    check(&LeaderExit::Keep, "02");
    let signal = |request| ToKeeper::Signal {
        seq: 2,
        run: run(5),
        signal: Signal::from_number(10).expect("SIGUSR1"),
        target: SignalTarget::Leader,
        request,
    };
    check(&signal(None), "0c0205140200");
    check(&signal(Some("a".into())), "0c02051402010161");
    let asked = ToKeeper::WasSent {
        seq: 2,
        run: run(5),
        request: "a".into(),
    };
    check(&asked, "1202050161");
    check(
        &ToKeeper::Tree {
            seq: 2,
            run: run(5),
        },
        "0d0205",
    );
    check(&ToKeeper::Inventory { seq: 2 }, "0f02");
    let reap = ToKeeper::Reap {
        seq: 2,
        plan: plan(),
    };
    check(&reap, "100201001e00000500");
}

#[test]
fn words_about_an_input_have_these_bytes() {
    let request = |request| ToKeeper::Input {
        seq: 2,
        run: run(5),
        request,
    };
    let write = WireInputRequest::Write {
        attempt: 3,
        write: InputWrite {
            id: "w".into(),
            offset: Some(300),
            len: 4,
        },
        at: 1,
        data: WireBytes(vec![255, 0]),
    };
    check(&request(write), "1402050003017701ac02040102ff00");
    check(&request(WireInputRequest::Leave), "14020501");
    let close = WireInputRequest::Close {
        attempt: 3,
        offset: None,
    };
    check(&request(close), "140205020300");
    check(
        &request(WireInputRequest::State { attempt: 3 }),
        "1402050303",
    );
    let state = InputState {
        attempt: 3,
        accepted: 300,
        in_doubt: 1,
        closed: Some(InputClosed::Command),
        unread: Some(2),
    };
    let answer = |said| ToServer::Answer {
        seq: 2,
        answer: Answer::Input { state, said },
    };
    check(&answer(InputResult::Stands), "01020e03ac02010101010200");
    let taken = InputResult::Taken {
        start: 9,
        repeated: true,
    };
    check(&answer(taken), "01020e03ac020101010102010901");
    let refused = |why| answer(InputResult::Refused(why));
    check(
        &refused(InputRefusal::Unknown(300)),
        "01020e03ac0201010101020203ac02",
    );
    check(&answer(InputResult::Displaced), "01020e03ac02010101010203");
    let ledger = InputLedger {
        accepted: 300,
        in_doubt: 1,
        closed: None,
        writes: vec![KnownWrite {
            id: "w".into(),
            start: 1,
            len: 2,
        }],
    };
    check(&InputNote { attempt: 3, ledger }, "03ac0201000101770102");
}

fn upgrade() -> Upgrade {
    Upgrade {
        request_id: Some("r".into()),
        at: Timestamp(300),
        from_version: "1".into(),
        to_version: "2".into(),
        state: UpgradeState::FellBack("w".into()),
    }
}

#[test]
fn words_of_an_upgrade_have_these_bytes() {
    let asked = ToKeeper::Upgrade {
        seq: 2,
        request: Some("r".into()),
    };
    check(&asked, "1302010172");
    let answer = |answer| ToServer::Answer {
        seq: 2,
        answer: Answer::Upgrade(answer),
    };
    check(&answer(Ok(upgrade())), "01020d00010172d80401310132020177");
    let unfit = UpgradeRefusal::Unfit {
        binary: "b".into(),
        why: "w".into(),
        speaks: Some(300),
    };
    check(&answer(Err(unfit)), "01020d01020162017701ac02");
    check(&event(KeeperEvent::Leave), "0203");
    let refused = KeeperEvent::NotUpgraded(UpgradeRefusal::ShuttingDown);
    check(&event(refused), "020401");
}

#[test]
fn questions_to_the_keeper_have_these_bytes() {
    check(&ToKeeper::Ping, "16");
    let help = ToKeeper::Help {
        seq: 2,
        run: run(5),
        argv: vec!["a".into()],
        timeout_ms: 300,
    };
    check(&help, "170205010161ac02");
    let help = ToShim::Help {
        id: 2,
        argv: vec!["a".into()],
        timeout_ms: 300,
        stops: true,
    };
    check(&help, "0902010161ac0201");
    let helped = FromShim::Helped {
        id: 2,
        end: HelperEnd::TimedOut,
    };
    check(&helped, "0a0201");
    check(&ToServer::Pong, "05");
    check(&ToServer::Rebound(1), "0601");
}

#[test]
fn stray_signal_has_these_bytes() {
    let stray = KeeperEvent::Stray(StraySignal {
        number: 10,
        pid: 300,
        uid: 7,
        count: 1,
    });
    check(&event(stray), "020514d8040701");
}

#[test]
fn the_hello_has_these_bytes() {
    let hello = KeeperHello {
        epoch: KeeperEpoch::from_u128(5),
        version: "V".into(),
        keeper: process(100),
        host: HostIdentity {
            boot_id: "b".into(),
            pidns_inode: 300,
            init_start_ticks: Some(7),
        },
        cgroup_base: Ok("/c".into()),
        pidfs: true,
        powers: LimitPowers {
            hard_max: Vec::new(),
            nice_min: -20,
            oom_score_adj_min: Some(-1000),
            knobs: Err("none".into()),
        },
        kernel: "k".into(),
        capabilities: Vec::new(),
        late: vec![run(1)],
        restarts: 2,
        former: Some(FormerServer {
            version: "V".into(),
            at: Timestamp(300),
            served: true,
            exit: Exit::Signal {
                signal: Signal::KILL,
                core_dumped: false,
            },
            cause: EndCause::Hung,
        }),
        upgrade: Some(upgrade()),
    };
    let hello = ToServer::Hello {
        held: 300,
        hello: Box::new(hello),
    };
    check(
        &hello,
        "00ac02050156c801c801c801ac02014d0162ac02010700022f6301002701cf0f01046e6f6e65016b00010102010156d804010112000101010172d80401310132020177",
    );
}

#[test]
fn targets_of_a_round_have_these_bytes() {
    let target = RoundTarget {
        pid: 7,
        start_ticks: 9,
        evidence: MembershipEvidence::Held(Holds {
            cgroup: true,
            shim: false,
            keeper: false,
        }),
        result: SignalOutcome::Gone,
    };
    check(
        &reported(1, Fact::RoundTargets(vec![target])),
        "0200050206010e090301000001",
    );
}

#[test]
fn answers_and_reports_have_these_bytes() {
    let identity = RunIdentity {
        command: process(200),
        shim: process(100),
        cgroup: Some(CgroupIdentity {
            path: "/g".into(),
            inode: 9,
        }),
        host: HostIdentity {
            boot_id: "b".into(),
            pidns_inode: 4,
            init_start_ticks: Some(7),
        },
    };
    let prepared = ToServer::Answer {
        seq: 1,
        answer: Answer::Prepared {
            identity,
            held: Held {
                by: Containment::Cgroup,
                gaps: vec![Gap::NoCgroup("n".into())],
            },
        },
    };
    check(
        &prepared,
        "010100900390039003ac02014dc801c801c801ac02014d01022f67090162040107010100016e",
    );
    let failed = Fact::ExecFailed(StartFailure {
        stage: StartStage::Exec,
        errno: Some(2),
        path: Some("/x".into()),
    });
    let failed = reported(1000, failed);
    check(&failed, "020005d00f0209010401022f78");
    let ended = reported(-1, Fact::TreeEnded(TreeVerdict::Empty(Proof::Echild)));
    check(&ended, "020005010a0001");
    let left = Leftovers {
        processes: vec![Leftover {
            pid: 7,
            start_ticks: 300,
            name: "sh".into(),
        }],
        unlisted: 2,
    };
    let exceeded = reported(
        1000,
        Fact::Stops(StopReason::DeadlineExceeded(Deadline::MaxRuntime)),
    );
    check(&exceeded, "020005d00f0b0300");
    check(&TreeVerdict::Kept(left.clone()), "04010eac0202736802");
    let fact = |fact| reported(1, fact);
    check(
        &fact(Fact::StopStep(step())),
        "0200050205d00f120101ac0201020102",
    );
    check(&fact(Fact::LeftBehind(left)), "0200050207010eac0202736802");
    let stuck = Stuck {
        processes: vec![StuckProcess {
            pid: 7,
            start_ticks: 300,
            state: 'D',
            why: "w".into(),
        }],
        unlisted: 2,
    };
    check(
        &fact(Fact::TreeStuck(stuck)),
        "0200050208010eac020144017702",
    );
    let kills = MemoryKills {
        kills: 2,
        memory_max: Some(300),
    };
    check(&fact(Fact::MemoryKills(kills)), "02000502090201ac02");
    let usage = Usage {
        cpu_user_us: Some(300),
        pids_peak: Some(2),
        ..Usage::default()
    };
    let used = fact(Fact::Usage(Box::new(usage)));
    check(&used, "020005021101ac02000000000102000000");
    check(&fact(Fact::Stops(StopReason::Orphaned)), "020005020b04");
    check(&fact(Fact::Stops(StopReason::ShimLost)), "020005020b05");
    let done = StopInput {
        at: Timestamp(1000),
        bytes: Some(3),
        written: 2,
    };
    check(&fact(Fact::StopInput(done)), "020005020dd00f010302");
    check(&event(KeeperEvent::ShutdownNow), "0202");
    check(&event(KeeperEvent::ShimGone(run(5))), "020705");
    let answer = |answer| ToServer::Answer { seq: 1, answer };
    check(&answer(Answer::Signalled), "010106");
    check(&answer(Answer::Listed), "010107");
    check(&answer(Answer::Inventory), "010108");
    check(&answer(Answer::Reaped), "010109");
    check(&answer(Answer::SentBefore), "01010b");
    check(&answer(Answer::NotSent), "01010c");
}

#[test]
fn stop_commands_have_these_bytes() {
    let fact = |fact| reported(1, fact);
    let done = StopCommand {
        at: Timestamp(1000),
        name: "x".into(),
        end: StopCommandEnd::NotStarted(Some(2)),
    };
    check(&fact(Fact::StopCommand(done)), "020005020ed00f0178020104");
}

#[test]
fn notices_have_these_bytes() {
    let notified = |said| reported(1, Fact::Notified(said));
    check(&notified(Notified::Ready), "020005020f00");
    let status = StatusText {
        text: "x".into(),
        stopping: true,
    };
    check(&notified(Notified::Status(status)), "020005020f01017801");
    check(
        &notified(Notified::Activity(Activity::Idle)),
        "020005020f0202",
    );
    let refused = Notified::Refused {
        pid: 7,
        uid: 300,
        ended: true,
    };
    check(&notified(refused), "020005020f030eac0201");
    let extends = Notified::Extends(Duration::from_secs(3));
    check(&notified(extends), "020005020f040300");
}

#[test]
fn extensions_have_these_bytes() {
    let extend = WireExtend {
        seq: 1,
        run: run(5),
        limits: vec![Deadline::MaxRuntime, Deadline::StartTimeout],
        time: Duration::from_secs(3),
        by: "x".into(),
    };
    check(&ToKeeper::Extend(extend), "18010502000303000178");
    let answer = |result| ToServer::Answer {
        seq: 1,
        answer: Answer::Extended(result),
    };
    let totals = Extended {
        start: Duration::from_secs(3),
        max_runtime: Duration::from_secs(4),
    };
    check(&answer(ExtendResult::Done(totals)), "0101150003000400");
    let too_long = ExtendResult::TooLong {
        limit: Deadline::MaxRuntime,
        possible: Duration::from_secs(3),
    };
    check(&answer(too_long), "01011501000300");
    check(
        &answer(ExtendResult::NoLimit(Deadline::StartTimeout)),
        "0101150203",
    );
    check(&answer(ExtendResult::Gone), "01011503");
    let extended = reported(
        1,
        Fact::Extended {
            limit: Deadline::MaxRuntime,
            total: Duration::from_secs(3),
            by: "x".into(),
        },
    );
    check(&extended, "02000502100003000178");
}

#[test]
fn words_about_a_terminal_have_these_bytes() {
    let size = TerminalSize {
        rows: 40,
        cols: 120,
    };
    let resize = ToKeeper::Resize {
        seq: 1,
        run: run(5),
        attempt: 2,
        size,
    };
    check(&resize, "150105022878");
    let answer = |answer| ToServer::Answer { seq: 1, answer };
    check(&answer(Answer::NoTerminal), "010111");
    let way = InterruptWay::Foreground;
    check(&answer(Answer::Interrupted(way)), "01011202");
    let exhausted = NoPty::Exhausted {
        current: Some(4),
        max: None,
    };
    check(&answer(Answer::NoPty(exhausted)), "01011300010400");
    let unavailable = NoPty::Unavailable {
        why: "x".into(),
        errno: Some(2),
    };
    check(&answer(Answer::NoPty(unavailable)), "0101130101780104");
}

#[test]
fn handed_over_state_has_these_bytes() {
    let run = WireHeldRun {
        run: run(5),
        identity: RunIdentity {
            command: process(200),
            shim: process(100),
            cgroup: None,
            host: HostIdentity {
                boot_id: "b".into(),
                pidns_inode: 4,
                init_start_ticks: Some(7),
            },
        },
        held: Held {
            by: Containment::Subreaper,
            gaps: Vec::new(),
        },
        policy: policy(),
        released: true,
        pause: HeldPause::Expired,
        stopping: true,
        terminal: Some(TerminalSize {
            rows: 40,
            cols: 120,
        }),
    };
    check(
        &ToServer::Held(Box::new(run)),
        &format!(
            "0305900390039003ac02014dc801c801c801ac02014d0001620401070000{POLICY}010301012878"
        ),
    );
    check(&ToServer::Ping, "04");
    check(&ToKeeper::Pong, "11");
}

#[test]
fn words_of_and_to_shims_have_these_bytes() {
    check(&ToShim::KillAll, "01");
    check(&ToShim::Stopping, "02");
    let left = Leftovers {
        processes: Vec::new(),
        unlisted: 2,
    };
    check(&ToShim::Keep(left), "030002");
    check(&ToShim::Discard, "04");
    let left = |since: Option<u64>| {
        let mut left = Countdown::new(Duration::from_millis(300));
        since.into_iter().for_each(|since| left.run(since));
        left
    };
    let memory = WireMemory {
        max_runtime: Some(left(Some(1))),
        paused_since: Some(2),
        pause_expired: true,
        notices: WireNotices {
            ready: true,
            start: Some(left(None)),
            until: Some(3),
            stopping: true,
        },
        extended: Extended {
            start: Duration::from_secs(3),
            max_runtime: Duration::from_secs(4),
        },
    };
    check(
        &ToShim::Remember(memory),
        "0501ac0201010102010101ac020001030103000400",
    );
    check(&ToShim::Leave, "06");
    check(&ToShim::CloseInput, "07");
    check(&ToShim::ServiceEnds { in_order: true }, "0801");
    check(&FromShim::NotReleased, "02");
    check(&FromShim::Executed, "03");
    check(&FromShim::Free, "09");
    let empty = FromShim::Empty { elsewhere: vec![7] };
    check(&empty, "06010e");
    let exited = FromShim::Exited {
        at_us: 3,
        exit: Exit::Signal {
            signal: Signal::KILL,
            core_dumped: false,
        },
        rest: true,
    };
    check(&exited, "050601120001");
    check(&FromShim::Killed(step()), "07d00f120101ac0201020102");
    let adoptable = WireAdoptable {
        run: run(1),
        command: process(300),
        shim: process(2),
        init: Some(3),
        cgroup: None,
        policy: policy(),
        keepsake: WireKeepsake {
            held: Held {
                by: Containment::Subreaper,
                gaps: Vec::new(),
            },
            host: HostIdentity {
                boot_id: "b".into(),
                pidns_inode: 1,
                init_start_ticks: Some(7),
            },
        },
        memory: WireMemory::default(),
        leader_left_at: Some(300),
        stopping_since: Some(1),
        input: true,
        notify: true,
    };
    check(
        &FromShim::Adoptable(Box::new(adoptable)),
        &format!(
            "0801d804d804d804ac02014d040404ac02014d010600{POLICY}00000162010107000000000000000000000001ac0201010101"
        ),
    );
}

#[test]
fn files_have_these_bytes() {
    let child = ChildImage {
        executable: b"/bin/a".into(),
        argv: vec![b"a".into(), b"b".into()],
        env: vec![("K".into(), "v".into())],
        cwd: b"/".into(),
        secrets: vec![ChildSecret {
            name: "S".into(),
            delivery: SecretDelivery::File,
            value: SecretValue::new(b"x".to_vec()),
        }],
    };
    check(&child, "062f62696e2f61020161016201014b0176012f010153010178");
    let record = ExitRecord {
        exit: Some(Exit::Code(7)),
        by_itself: Some(Timestamp(4)),
        tree: Some(TreeVerdict::NeverRan),
        never_ran: true,
        steps: vec![step()],
        census: Some(Timestamp(3)),
        shutdown: true,
    };
    check(&record, "01000e010801030101d00f120101ac0201020102010601");
    let leader = WireLeader {
        pid: 7,
        start_ticks: 300,
    };
    let steps = vec![step()];
    check(
        &OrphanNote { leader, steps },
        "0eac0201d00f120101ac0201020102",
    );
    let init = HeldProcess {
        pid: 8,
        start_ticks: 300,
        pidfs_handle: Some(5),
    };
    check(&InitNote { leader, init }, "0eac0210ac020105");
    let process = |pid, result| SignalledProcess {
        pid,
        start_ticks: 300,
        result,
    };
    let signalled = SignalledProcesses {
        signalled: vec![
            process(1, SignalOutcome::Delivered),
            process(2, SignalOutcome::Gone),
            process(3, SignalOutcome::Failed(1)),
        ],
        unlisted: 4,
        no_terminal: true,
    };
    check(&signalled, "0302ac020004ac020106ac0202020401");
    let member = WireMember {
        pid: 1,
        start_ticks: 300,
        holds: Holds {
            cgroup: true,
            shim: false,
            keeper: true,
        },
    };
    let listing = WireListing {
        members: vec![member],
        unlisted: 0,
    };
    check(&listing, "0102ac0201000100");
}

#[test]
fn the_longest_lists_fit_into_their_file() {
    let process = SignalledProcess {
        pid: i32::MIN,
        start_ticks: u64::MAX,
        result: SignalOutcome::Failed(i32::MIN),
    };
    let signalled = SignalledProcesses {
        signalled: vec![process; MEMBERS_LISTED_MAX],
        unlisted: u32::MAX,
        no_terminal: true,
    };
    let member = WireMember {
        pid: i32::MIN,
        start_ticks: u64::MAX,
        holds: Holds {
            cgroup: true,
            shim: true,
            keeper: true,
        },
    };
    let listing = WireListing {
        members: vec![member; MEMBERS_LISTED_MAX],
        unlisted: u32::MAX,
    };
    for bytes in [encode(&signalled), encode(&listing)] {
        let bytes = bytes.expect("it can be encoded").len() as u64;
        assert!(bytes <= LIST_BYTES_MAX, "{bytes}");
    }
}

#[test]
fn another_version_is_refused() {
    assert!(decode::<ToKeeper>(&[VERSION + 1, 0]).is_err());
    assert!(decode::<ToKeeper>(&[]).is_err());
}
