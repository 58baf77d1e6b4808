//! Samples of all messages and files of runs: their forms, and wrong bytes near them.

use super::{
    Answer, Decoded, FromShim, Head, Job, MEMBERS_LISTED_MAX, Message, Placement, PrepareRequest,
    ToKeeper, ToServer, ToShim, WireExtend, WireListing, WireMember,
    adoption::{WireAdoptable, WireKeepsake, WireMemory, WireNotices},
    decode, encode, envelope,
    handover::WireHeldRun,
    input::{WireBytes, WireInputRequest},
    later,
    notes::{InitNote, InputNote, OrphanNote, WireLeader, WireWill},
    strict,
    versions::Versions,
};
use crate::client::{
    EndCause, ExtendResult, Extended, Fact, Fate, FormerServer, HeldPause, HelperEnd, Holding,
    Holds, InputResult, InputState, InterruptWay, KeeperEvent, KeeperHello, KeeperInventory,
    MembershipEvidence, NoPty, Notified, Reaped, RoundTarget, SignalOutcome, SignalResult,
    SignalTarget, SignalledProcess, SignalledProcesses, SkippedBy, SocketSeen, StraySignal,
    Unstopped, Upgrade, UpgradeRefusal, UpgradeState, Victim,
};
use crate::{exit_slots::ExitPlace, held::HeldProcess};
use kennel_lifecycle::{
    Activity, CgroupIdentity, Containment, Countdown, Deadline, Exit, Gap, Held, HostIdentity,
    InputClosed, InputLedger, InputRefusal, InputWrite, KeeperEpoch, KnownWrite, LeaderExit,
    Leftover, Leftovers, LimitPowers, MemoryKills, OnMaxPause, PausePolicy, PidNamespace, Policy,
    ProcessIdentity, Proof, Recovery, RestartPolicy, RunId, RunIdentity, RunKind, SecretDelivery,
    SecretValue, Signal, SignalScope, SignalSender, StartFailure, StartStage, StatusText,
    StopCommand, StopCommandEnd, StopInput, StopPolicy, StopReason, StopStep, Stuck, StuckProcess,
    TerminalSize, Timestamp, TreeVerdict, Usage,
    ladder::{Action, Step, StopPlan},
    recovery::{CgroupSeen, ExitRecord, Host, Observation, ProcessPresence},
};
use kennel_linux::{
    attributes::{Attributes, PrivatePlaces},
    memfd,
    spawn::{ChildImage, ChildSecret},
};
use serde::{
    Deserializer, Serialize,
    de::{DeserializeOwned, Error, Visitor, value},
    forward_to_deserialize_any,
};
use serde_json::Value;
use std::{
    any::type_name,
    cell::RefCell,
    fmt::{Debug, Write as _},
    fs::{self, File},
    io::Write as _,
    path::Path,
    time::Duration,
};

thread_local! {
    /// Lines of `wire.lock` and of `disk.lock`, while they are collected.
    static LINES: RefCell<Option<[String; 2]>> = const { RefCell::new(None) };
}

/// Adds a line, while lines are collected; else the sample is tried out.
fn add_line<T>(lock: usize, text: &[u8]) -> bool {
    LINES.with_borrow_mut(|lines| {
        let Some(lines) = lines else { return false };
        let name = type_name::<T>().rsplit("::").next().expect("a name");
        let text = str::from_utf8(text).expect("JSON");
        let _ = writeln!(lines[lock], "{name} {text}");
        true
    })
}

/// Checks a message: what can be read of wrong bytes can be written and read again.
fn check<T: Message + PartialEq + Debug>(message: &T) {
    check_of(Head::NONE, message);
}

/// Checks a request about a run.
fn check_request(request: &ToKeeper) {
    let (seq, run) = (Some(2), Some(run(5)));
    check_of(Head { seq, run }, request);
}

fn check_answer(answer: Answer) {
    check_of(Head::of_answer(1), &ToServer::Answer(answer));
}

fn check_fact(fact: Fact) {
    let at = Timestamp(1);
    check_of(Head::of_run(run(5)), &ToServer::Report { at, fact });
}

fn check_of<T: Message + PartialEq + Debug>(head: Head, message: &T) {
    let (bytes, _) = encode(head, message).expect("it can be encoded");
    let opened = envelope::open(&bytes).expect("our own");
    assert_eq!(opened.raw, message.raw());
    let body = opened.body.expect("it is short");
    if add_line::<T>(0, body) {
        return assert_kind_is_object(body);
    }
    let read = |bytes: &[u8]| match decode::<T>(bytes, &mut Vec::new()) {
        Ok(Decoded::Known { head, message, .. }) => Some((head, message)),
        Ok(Decoded::Later { .. } | Decoded::Lost) | Err(_) => None,
    };
    let (known, found) = (head, read(&bytes).expect("our own"));
    assert_eq!((found.0, &found.1), (known, message));
    check_bytes(&bytes, read, |(head, message)| {
        encode(*head, message).ok().map(|(bytes, _)| bytes)
    });
}

fn check_bytes<T: PartialEq + Debug>(
    bytes: &[u8],
    read: impl Fn(&[u8]) -> Option<T>,
    write: impl Fn(&T) -> Option<Vec<u8>>,
) {
    kennel_mutations::each(bytes, |wrong| {
        let first = read(wrong);
        if let Some(again) = first.as_ref().and_then(&write) {
            assert_eq!(read(&again), first, "{wrong:02x?}");
        }
    });
}

/// Only objects grow.
fn assert_kind_is_object(body: &[u8]) {
    let body: Value = serde_json::from_slice(body).expect("JSON");
    let kind = body["kind"].as_object().expect("an object");
    assert_eq!(kind.len(), 1, "{body}");
    assert!(kind.values().all(Value::is_object), "{body}");
}

/// Checks a file of a run.
fn check_file<T: Serialize + DeserializeOwned + PartialEq + Debug>(file: &T) {
    let bytes = serde_json::to_vec(file).expect("JSON");
    if add_line::<T>(1, &bytes) {
        return;
    }
    let read = |bytes: &[u8]| strict::read::<T>(bytes).ok();
    assert_eq!(read(&bytes).as_ref(), Some(file));
    check_bytes(&bytes, read, |file: &T| serde_json::to_vec(file).ok());
}

/// Other versions read them: a line of a version that was released never changes. `UPDATE=1` writes the files anew.
// promise: A-22h, A-22f, A-22n
#[test]
fn wire_formats_match_lock_files() {
    LINES.set(Some([String::new(), String::new()]));
    request_decoding_survives_corrupt_bytes();
    input_message_decoding_survives_corrupt_bytes();
    upgrade_message_decoding_survives_corrupt_bytes();
    ping_and_help_decoding_survives_corrupt_bytes();
    stray_signal_decoding_survives_corrupt_bytes();
    hello_decoding_survives_corrupt_bytes();
    signal_target_decoding_survives_corrupt_bytes();
    answer_and_report_decoding_survives_corrupt_bytes();
    stop_command_decoding_survives_corrupt_bytes();
    notice_decoding_survives_corrupt_bytes();
    extension_decoding_survives_corrupt_bytes();
    terminal_message_decoding_survives_corrupt_bytes();
    handover_state_decoding_survives_corrupt_bytes();
    shim_message_decoding_survives_corrupt_bytes();
    file_decoding_survives_corrupt_bytes();
    recovery_message_decoding_survives_corrupt_bytes();
    refusal_decoding_survives_corrupt_bytes();
    job_message_decoding_survives_corrupt_bytes();
    let mut lines = LINES.take().expect("it was set");
    for lines in &mut lines {
        let levels = later::levels(lines);
        lines.push_str(&levels);
    }
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/recorded");
    for (name, lines) in ["wire.lock", "disk.lock"].into_iter().zip(lines) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src/wire")
            .join(name);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &lines).expect("it is written");
            fs::write(recorded.join("next").join(name), &lines).expect("it is written");
        }
        let agreed = fs::read_to_string(&path).expect("it is there");
        for (agreed, found) in agreed.lines().zip(lines.lines()) {
            assert_eq!(agreed, found, "{name}");
        }
        assert_eq!(agreed.len(), lines.len(), "{name}");
        for folder in fs::read_dir(&recorded).expect("it is there") {
            let path = folder.expect("it is read").path().join(name);
            later::assert_read(&fs::read_to_string(path).expect("it is there"));
        }
    }
}

fn run(number: u128) -> RunId {
    RunId::from_u128(number)
}

fn event(event: KeeperEvent) -> ToServer {
    ToServer::Event(event)
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

// promise: A-22
#[test]
fn request_decoding_survives_corrupt_bytes() {
    check(&ToKeeper::Ready(Versions::of_server()));
    let prepare = ToKeeper::Prepare(Box::new(PrepareRequest {
        run_dir: "/r".into(),
        policy: policy().into(),
        input: Some(3),
        terminal: Some(TerminalSize {
            rows: 40,
            cols: 120,
        }),
    }));
    check_request(&prepare);
    check_of(Head::of_run(run(5)), &ToKeeper::Release {});
    check_of(Head::of_run(run(5)), &ToKeeper::ShutGate {});
    check_of(Head::of_run(run(5)), &ToKeeper::Stop { plan: plan() });
    check_request(&ToKeeper::Interrupt { request: None });
    let request = Some("a".into());
    check_request(&ToKeeper::Interrupt { request });
    check_of(Head::of_run(run(5)), &ToKeeper::Acknowledge {});
    check_of(Head::of_run(run(5)), &ToKeeper::KeepRest {});
    let signal = |request| ToKeeper::Signal {
        signal: Signal::from_number(10).expect("SIGUSR1"),
        target: SignalTarget::Leader,
        request,
    };
    check_request(&signal(None));
    check_request(&signal(Some("a".into())));
    let request = "a".into();
    check_request(&ToKeeper::WasSent { request });
    check_request(&ToKeeper::Tree {});
    check_of(Head::of_answer(2), &ToKeeper::Inventory {});
    let reap = ToKeeper::Reap {
        plan: plan(),
        victims: vec![Victim {
            process: process(7),
            holding: Holding::Marker(run(5)),
        }],
        directories: vec![CgroupIdentity {
            path: "/g".into(),
            inode: 300,
        }],
    };
    check_of(Head::of_answer(2), &reap);
}

// promise: A-22
#[test]
fn input_message_decoding_survives_corrupt_bytes() {
    let request = |request| check_request(&ToKeeper::Input { request });
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
    request(write);
    request(WireInputRequest::Leave {});
    let close = WireInputRequest::Close {
        attempt: 3,
        offset: None,
    };
    request(close);
    request(WireInputRequest::State { attempt: 3 });
    let state = InputState {
        attempt: 3,
        accepted: 300,
        in_doubt: 1,
        closed: Some(InputClosed::Command),
        unread: Some(2),
        echo_off: true,
    };
    let answer = |said| check_answer(Answer::Input { state, said });
    answer(InputResult::Stands);
    let taken = InputResult::Taken {
        start: 9,
        repeated: true,
    };
    answer(taken);
    let refused = |why| answer(InputResult::Refused(why));
    refused(InputRefusal::Unknown(300));
    answer(InputResult::Displaced);
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
    check_file(&InputNote { attempt: 3, ledger });
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

// promise: A-22
#[test]
fn upgrade_message_decoding_survives_corrupt_bytes() {
    let request = Some("r".into());
    check_of(Head::of_answer(2), &ToKeeper::Upgrade { request });
    check_answer(Answer::Upgrade(Ok(upgrade())));
    let unfit = UpgradeRefusal::Unfit {
        binary: "b".into(),
        why: "w".into(),
        speaks: Some(300),
    };
    check_answer(Answer::Upgrade(Err(unfit)));
    check(&event(KeeperEvent::Leave {}));
    let skipped = KeeperEvent::Skipped {
        reader: SkippedBy::Shim,
        name: "of_tomorrow".into(),
    };
    check(&event(skipped));
    let refused = KeeperEvent::NotUpgraded(UpgradeRefusal::ShuttingDown);
    check(&event(refused));
}

// promise: A-22
#[test]
fn ping_and_help_decoding_survives_corrupt_bytes() {
    check(&ToKeeper::Ping {});
    let help = ToKeeper::Help {
        argv: vec!["a".into()],
        timeout_ms: 300,
    };
    check_request(&help);
    let help = ToShim::Help {
        id: 2,
        argv: vec!["a".into()],
        timeout_ms: 300,
        stops: true,
    };
    check(&help);
    let helped = FromShim::Helped {
        id: 2,
        end: HelperEnd::TimedOut,
    };
    check(&helped);
    check(&ToServer::Pong {});
    check(&ToServer::Rebound(1));
}

// promise: A-22
#[test]
fn stray_signal_decoding_survives_corrupt_bytes() {
    let stray = KeeperEvent::Stray(StraySignal {
        number: 10,
        pid: 300,
        uid: 7,
        count: 1,
    });
    check(&event(stray));
}

// promise: A-22
#[test]
fn hello_decoding_survives_corrupt_bytes() {
    let Versions { speaks, knows } = Versions::of_keeper();
    let hello = KeeperHello {
        speaks,
        knows,
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
    check(&hello);
}

// promise: A-22
#[test]
fn signal_target_decoding_survives_corrupt_bytes() {
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
    check_fact(Fact::RoundTargets(vec![target]));
}

// promise: A-22
#[test]
fn answer_and_report_decoding_survives_corrupt_bytes() {
    check_answer(Answer::Prepared {
        command: process(200),
        shim: process(100),
        cgroup: Some(CgroupIdentity {
            path: "/g".into(),
            inode: 9,
        }),
        held: Held {
            by: Containment::Cgroup,
            gaps: vec![Gap::NoCgroup("n".into())],
        },
    });
    let failed = Fact::ExecFailed(StartFailure {
        stage: StartStage::Exec,
        errno: Some(2),
        path: Some("/x".into()),
    });
    check_fact(failed);
    check_fact(Fact::TreeEnded(TreeVerdict::Empty(Proof::Echild)));
    let left = Leftovers {
        processes: vec![Leftover {
            pid: 7,
            start_ticks: 300,
            name: "sh".into(),
        }],
        unlisted: 2,
    };
    check_fact(Fact::Stops(StopReason::DeadlineExceeded(
        Deadline::MaxRuntime,
    )));
    check_fact(Fact::StopStep(step()));
    check_fact(Fact::LeftBehind(left));
    let stuck = Stuck {
        processes: vec![StuckProcess {
            pid: 7,
            start_ticks: 300,
            state: 'D',
            why: "w".into(),
        }],
        unlisted: 2,
    };
    check_fact(Fact::TreeStuck(stuck));
    let kills = MemoryKills {
        kills: 2,
        memory_max: Some(300),
    };
    check_fact(Fact::MemoryKills(kills));
    let usage = Usage {
        cpu_user_us: Some(300),
        pids_peak: Some(2),
        ..Usage::default()
    };
    check_fact(Fact::Usage(Box::new(usage)));
    check_fact(Fact::Stops(StopReason::Orphaned));
    check_fact(Fact::Stops(StopReason::ShimLost));
    let done = StopInput {
        at: Timestamp(1000),
        bytes: Some(3),
        written: 2,
    };
    check_fact(Fact::StopInput(done));
    check(&event(KeeperEvent::ShutdownNow {}));
    check_of(Head::of_run(run(5)), &ToServer::ShimGone {});
    check_answer(Answer::Inventory(KeeperInventory {
        server: 7,
        spare_shims: vec![8],
        shims: vec![(9, run(5))],
        sockets: vec![("s".into(), SocketSeen::Missing)],
        fds: Some(300),
    }));
    check_answer(Answer::Reaped(Reaped {
        fates: vec![Fate::Ended(Signal::KILL), Fate::Gone, Fate::Failed(1)],
        directories_removed: 2,
    }));
    check_answer(Answer::SentBefore {});
    check_answer(Answer::NotSent {});
}

// promise: A-22
#[test]
fn stop_command_decoding_survives_corrupt_bytes() {
    let done = StopCommand {
        at: Timestamp(1000),
        name: "x".into(),
        end: StopCommandEnd::NotStarted(Some(2)),
    };
    check_fact(Fact::StopCommand(done));
}

// promise: A-22
#[test]
fn notice_decoding_survives_corrupt_bytes() {
    let notified = |said| check_fact(Fact::Notified(said));
    notified(Notified::Ready);
    let status = StatusText {
        text: "x".into(),
        stopping: true,
    };
    notified(Notified::Status(status));
    notified(Notified::Activity(Activity::Idle));
    let refused = Notified::Refused {
        pid: 7,
        uid: 300,
        ended: true,
    };
    notified(refused);
    let extends = Notified::Extends(Duration::from_secs(3));
    notified(extends);
}

// promise: A-22
#[test]
fn extension_decoding_survives_corrupt_bytes() {
    let extend = WireExtend {
        limits: vec![Deadline::MaxRuntime, Deadline::StartTimeout],
        time: Duration::from_secs(3),
        by: "x".into(),
    };
    check_request(&ToKeeper::Extend(extend));
    let answer = |result| check_answer(Answer::Extended(result));
    let totals = Extended {
        start: Duration::from_secs(3),
        max_runtime: Duration::from_secs(4),
    };
    answer(ExtendResult::Done(totals));
    let too_long = ExtendResult::TooLong {
        limit: Deadline::MaxRuntime,
        possible: Duration::from_secs(3),
    };
    answer(too_long);
    answer(ExtendResult::NoLimit(Deadline::StartTimeout));
    answer(ExtendResult::Gone);
    check_fact(Fact::Extended {
        limit: Deadline::MaxRuntime,
        total: Duration::from_secs(3),
        by: "x".into(),
    });
}

// promise: A-22
#[test]
fn terminal_message_decoding_survives_corrupt_bytes() {
    let size = TerminalSize {
        rows: 40,
        cols: 120,
    };
    check_request(&ToKeeper::Resize { attempt: 2, size });
    check_answer(Answer::NoTerminal {});
    let way = InterruptWay::Foreground;
    check_answer(Answer::Interrupted(way));
    let exhausted = NoPty::Exhausted {
        current: Some(4),
        max: None,
    };
    check_answer(Answer::NoPty(exhausted));
    let unavailable = NoPty::Unavailable {
        why: "x".into(),
        errno: Some(2),
    };
    check_answer(Answer::NoPty(unavailable));
}

// promise: A-22
#[test]
fn handover_state_decoding_survives_corrupt_bytes() {
    let held = WireHeldRun {
        identity: identity(),
        held: Held {
            by: Containment::Subreaper,
            gaps: Vec::new(),
        },
        policy: policy().into(),
        released: true,
        pause: HeldPause::Expired,
        stopping: true,
        pinned: Some("of_tomorrow".into()),
        terminal: Some(TerminalSize {
            rows: 40,
            cols: 120,
        }),
    };
    check_of(Head::of_run(run(5)), &ToServer::Held(Box::new(held)));
    let by = "of_tomorrow".into();
    check_of(Head::of_run(run(5)), &ToServer::Pin { by });
    check(&ToServer::Ping {});
    check(&ToKeeper::Pong {});
}

// promise: A-22
#[test]
fn shim_message_decoding_survives_corrupt_bytes() {
    check(&ToShim::KillAll {});
    check(&ToShim::Stopping {});
    let left = Leftovers {
        processes: Vec::new(),
        unlisted: 2,
    };
    check(&ToShim::Keep(left));
    check(&ToShim::Discard {});
    let left = |since: Option<u64>| {
        let mut left = Countdown::new(Duration::from_millis(300));
        if let Some(since) = since {
            left.run(since);
        }
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
    check(&ToShim::Remember(memory));
    check(&ToShim::Leave {});
    check(&ToShim::CloseInput {});
    check(&ToShim::ServiceEnds { in_order: true });
    check(&FromShim::NotReleased {});
    check(&FromShim::Executed {});
    check(&FromShim::Free {});
    let empty = FromShim::Empty { elsewhere: vec![7] };
    check(&empty);
    let exited = FromShim::Exited {
        at_us: 3,
        exit: Exit::Signal {
            signal: Signal::KILL,
            core_dumped: false,
        },
        rest: true,
    };
    check(&exited);
    check(&FromShim::Killed(step()));
    let skipped = FromShim::Skipped {
        name: "of_tomorrow".into(),
    };
    check(&skipped);
    let adoptable = WireAdoptable {
        versions: Versions::of_shim(),
        command: process(300),
        shim: process(2),
        init: Some(3),
        cgroup: None,
        policy: policy().into(),
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
    check_of(
        Head::of_run(run(1)),
        &FromShim::Adoptable(Box::new(adoptable)),
    );
}

// promise: A-22
#[test]
fn file_decoding_survives_corrupt_bytes() {
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
    let bytes = super::child::encode(&child).expect("no string has a NUL");
    let body = envelope::open(&bytes).expect("our own").body;
    if !add_line::<ChildImage>(0, body.expect("it is short")) {
        let read = |bytes: &[u8]| super::child::decode(bytes).ok();
        assert_eq!(read(&bytes).as_ref(), Some(&child));
        check_bytes(&bytes, read, |child| super::child::encode(child).ok());
    }
    let record = ExitRecord {
        exit: Some(Exit::Code(7)),
        by_itself: Some(Timestamp(4)),
        tree: Some(TreeVerdict::NeverRan),
        never_ran: true,
        steps: vec![step()],
        census: Some(Timestamp(3)),
        shutdown: true,
    };

    let leader = WireLeader {
        pid: 7,
        start_ticks: 300,
    };
    let steps = vec![step()];
    check_file(&WireWill { leader, record });
    check_file(&OrphanNote { leader, steps });
    let init = HeldProcess {
        pid: 8,
        start_ticks: 300,
        pidfs_handle: Some(5),
    };
    check_file(&InitNote { leader, init });
    check_file(&crate::held::Held {
        frozen: true,
        processes: vec![init],
    });
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
    check_answer(Answer::Signalled(signalled));
    let listing = WireListing {
        members: vec![member()],
        unlisted: 0,
    };
    check_answer(Answer::Listed(listing));
}

fn member() -> WireMember {
    WireMember {
        pid: 1,
        start_ticks: 300,
        holds: Holds {
            cgroup: true,
            shim: false,
            keeper: true,
        },
    }
}

// promise: T-21, A-22h, A-22b, RW-149
#[test]
fn long_message_is_sent_in_sealed_file() {
    let listing = WireListing {
        members: vec![member(); MEMBERS_LISTED_MAX],
        unlisted: u32::MAX,
    };
    let answer = Answer::Listed(listing);
    let message = ToServer::Answer(answer);
    let head = Head::of_answer(1);
    let (bytes, file) = encode(head, &message).expect("it can be encoded");
    assert_eq!(bytes.len(), envelope::HEAD_BYTES);
    let copy = || file.as_ref().expect("a file").try_clone().expect("a copy");
    let behind = File::open("/dev/null").expect("a file");
    let mut fds = vec![copy(), behind.into()];
    let read = decode::<ToServer>(&bytes, &mut fds).expect("our own");
    let skipped = Vec::new();
    let known = Decoded::Known {
        head,
        message,
        skipped,
    };
    assert_eq!((read, fds.len()), (known, 1));
    // The receiver had no free descriptor for the body.
    let read = decode::<ToServer>(&bytes, &mut Vec::new());
    assert_eq!(read.expect("it is passed over"), Decoded::Lost);
    let mut shorter = bytes.clone();
    shorter[4] ^= 1;
    decode::<ToServer>(&shorter, &mut vec![copy()]).expect_err("of another length");
    // The same bytes in an unsealed file, which the sender may still change.
    let open = nix::sys::memfd::memfd_create("open", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING);
    let mut open = File::from(open.expect("a file"));
    let body = memfd::read(copy(), super::BODY_BYTES_MAX).expect("our own");
    open.write_all(&body).expect("it is written");
    decode::<ToServer>(&bytes, &mut vec![open.into()]).expect_err("it is not sealed");
    // A body of up to 64 MiB, padded with spaces.
    let read_padded = |len: u32| {
        let mut padded = body.clone();
        padded.resize(len as usize, b' ');
        let file = memfd::sealed("padded", &padded).expect("a file");
        let mut bytes = bytes.clone();
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        decode::<ToServer>(&bytes, &mut vec![file])
    };
    read_padded(64 * 1024 * 1024).expect("the longest");
    read_padded(64 * 1024 * 1024 + 1).expect_err("above 64 MiB");
}

fn identity() -> RunIdentity {
    RunIdentity {
        command: process(200),
        shim: process(100),
        cgroup: None,
        host: HostIdentity {
            boot_id: "b".into(),
            pidns_inode: 4,
            init_start_ticks: Some(7),
        },
    }
}

fn failure() -> StartFailure {
    StartFailure {
        stage: StartStage::Exec,
        errno: Some(2),
        path: None,
    }
}

// promise: A-22
#[test]
fn recovery_message_decoding_survives_corrupt_bytes() {
    check_request(&ToKeeper::Observe {
        identity: identity(),
        run_dir: "/r".into(),
    });
    check_request(&ToKeeper::EndOrphan {
        identity: identity(),
        run_dir: "/r".into(),
        plan: plan(),
    });
    let RunIdentity { command, host, .. } = identity();
    let seen = ToKeeper::KeeperSeen {
        keeper: command,
        host,
    };
    check_of(Head::of_answer(1), &seen);
    check_answer(Answer::Observed(Observation {
        host: Host::Same,
        exit_record: Some(ExitRecord::default()),
        shim: ProcessPresence::Gone,
        command: ProcessPresence::Unknown,
        cgroup: CgroupSeen::Populated,
        held: vec![7],
        hints: vec![8],
        namespace: Some(ProcessPresence::Same),
        end_begun: true,
        steps: vec![step()],
        stuck: Stuck::default(),
        at: Timestamp(300),
    }));
    check_answer(Answer::Seen(ProcessPresence::Same));
}

// promise: A-22
#[test]
fn refusal_decoding_survives_corrupt_bytes() {
    check_request(&ToKeeper::Pause {});
    check_request(&ToKeeper::Resume {});
    check_answer(Answer::PrepareFailed(failure()));
    check_answer(Answer::Exhausted("x".into()));
    for result in [
        SignalResult::Done,
        SignalResult::Gone,
        SignalResult::Partial(vec![Unstopped {
            pid: 7,
            why: "w".into(),
        }]),
        SignalResult::Failed(1),
        SignalResult::UnknownRun,
    ] {
        check_answer(Answer::Signal(result));
    }
    check_answer(Answer::TooWeak(Held {
        by: Containment::Subreaper,
        gaps: vec![Gap::OwnerMayMove],
    }));
    check_answer(Answer::NoInput {});
    check_answer(Answer::OtherAttempt {});
    check_answer(Answer::Helped(HelperEnd::Exited(Exit::Code(3))));
    check_answer(Answer::Unknown {});
    check_fact(Fact::NotReleased {});
    check_fact(Fact::Executed {});
    check_fact(Fact::LeaderExited(Exit::Code(3)));
    check_fact(Fact::PauseExpired {});
    check_fact(Fact::SignalSent {
        signal: Signal::TERM,
        targets: Some(2),
        errno: None,
    });
}

// promise: A-22
#[test]
fn job_message_decoding_survives_corrupt_bytes() {
    let RunIdentity {
        command,
        shim,
        host,
        ..
    } = identity();
    let held = Held {
        by: Containment::Subreaper,
        gaps: Vec::new(),
    };
    let job = ToShim::Job(Box::new(Job {
        run_dir: "/r".into(),
        policy: policy().into(),
        cgroup: None,
        placement: Placement::ByClone,
        attributes: Attributes {
            nice: Some(-5),
            private: Some(PrivatePlaces {
                closed: vec!["/k".into()],
                ..PrivatePlaces::default()
            }),
            ..Attributes::default()
        },
        keepsake: Some(WireKeepsake { held, host }),
        input: true,
        notify: false,
        terminal: false,
        exit_slot: Some(ExitPlace {
            offset: 2048,
            half_bytes: 1024,
        }),
    }));
    check_of(Head::of_run(run(5)), &job);
    check(&FromShim::Prepared {
        command,
        shim,
        init: Some(9),
    });
    check(&FromShim::PrepareFailed(failure()));
    check(&FromShim::ExecFailed(failure()));
}

/// Returns the names of all values of an enum.
fn kinds<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut kinds: &[&str] = &[];
    let _ = T::deserialize(KindNames(&mut kinds));
    kinds
}

/// Takes the names that an enum gives to its deserializer.
struct KindNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for KindNames<'_> {
    type Error = value::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        kinds: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, value::Error> {
        *self.0 = kinds;
        Err(value::Error::custom("only its names are wanted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, value::Error> {
        Err(value::Error::custom("no enum"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[test]
fn each_message_kind_is_in_lock_file() {
    fn missing<T: DeserializeOwned>(before: &str) -> Vec<&'static str> {
        let lock = include_str!("wire.lock");
        let kinds = kinds::<T>();
        assert!(!kinds.is_empty());
        let has_line = |kind: &&&str| lock.contains(&format!("{before}{{\"{kind}\":{{"));
        kinds
            .iter()
            .filter(|kind| !has_line(kind))
            .copied()
            .collect()
    }
    let none: [&str; 0] = [];
    assert_eq!(missing::<ToKeeper>("\"kind\":"), none);
    assert_eq!(missing::<ToServer>("\"kind\":"), none);
    assert_eq!(missing::<ToShim>("\"kind\":"), none);
    assert_eq!(missing::<FromShim>("\"kind\":"), none);
    assert_eq!(missing::<Answer>("\"answer\":"), none);
    assert_eq!(missing::<Fact>("\"fact\":"), none);
}

// promise: A-22a
#[test]
fn malformed_messages_differ_from_unknown_kinds() {
    let of = |flags: u8, body: &str| {
        let len = u8::try_from(body.len()).expect("it is short");
        [&[b'K', 1, flags, 0, len, 0, 0, 0], body.as_bytes()].concat()
    };
    let read =
        |bytes: &[u8]| decode::<ToKeeper>(bytes, &mut Vec::new()).map_err(|error| error.kind());
    let later = |head: Head, is_critical: bool| Decoded::Later {
        head,
        name: "of_tomorrow".into(),
        is_critical,
    };
    let kind =
        r#"{"seq":7,"run":"00000000000000000000000005","kind":{"of_tomorrow":{"a":[1]}},"more":1}"#;
    let (seq, of_run) = (Some(7), Some(run(5)));
    let head = Head { seq, run: of_run };
    assert_eq!(read(&of(0, kind)), Ok(later(head, false)));
    assert_eq!(read(&of(1, kind)), Ok(later(head, true)));
    let value = r#"{"seq":1,"kind":{"extend":{"limits":["of_tomorrow"],"time":{},"by":""}}}"#;
    assert_eq!(read(&of(0, value)), Ok(later(Head::of_answer(1), false)));
    for broken in [
        of(0, r#"{"kind":{"stop":{"plan":5}}}"#),
        of(0, r#"{"seq":7,"kind":{"pause":{}},"seq":7}"#),
        of(
            0,
            r#"{"kind":{"of_tomorrow":{}},"kind":{"of_tomorrow":{}}}"#,
        ),
        of(0, r#"{"seq":1.5,"kind":{"pause":{}}}"#),
        of(0, r#"{"kind":{"pause":{"more":18446744073709551616}}}"#),
        of(
            0,
            &format!(
                r#"{{"kind":{{"pause":{{"more":{}{}}}}}}}"#,
                "[".repeat(62),
                "]".repeat(62)
            ),
        ),
        of(0, "{}"),
        of(0, ""),
        vec![15, 0],
        Vec::new(),
    ] {
        read(&broken).expect_err(&format!("{broken:?}"));
    }
    for (more, is_read) in [("", true), (r#","a":1,"a":2"#, false)] {
        let image = of(0, &format!(r#"{{"argv":0,"env":0,"secrets":[]{more}}}"#));
        let image = super::child::decode(&[&image[..], b"/bin/a\0/\0"].concat());
        assert_eq!(image.is_ok(), is_read, "{more}");
    }
    let mut other = of(0, kind);
    other[1] = 2;
    read(&other).expect_err("another form");
    let more = of(0, r#"{"kind":{"ping":{"of_tomorrow":1}},"more":1}"#);
    let (head, message, skipped) = (Head::NONE, ToKeeper::Ping {}, Vec::new());
    let known = Decoded::Known {
        head,
        message,
        skipped,
    };
    assert_eq!(read(&more), Ok(known));
}
