//! Reports of a run whose shim dies at a moment that no test can choose from outside.

use super::*;
use crate::{
    client::SignalTarget,
    exit_record,
    sleeper::Sleeper,
    values::{ExtendResult, HeldPause},
    wire::{FromShim, WireExtend},
};
use kennel_lifecycle::{
    Containment, Deadline, Exit, Gap, HostIdentity, MemoryKills, MemoryShortage, Policy,
    ProcessIdentity, Proof, Signal, SignalScope, SignalSender, StartFailure, StartStage,
    StopPolicy, StopReason, TreeVerdict, Usage, ladder::StopPlan, recovery::ExitRecord,
};
use kennel_linux::{pidfd::PidFd, procfs, tree::SignalRound};
use std::{os::fd::AsFd, path::Path, process::Command};

const SHIM: i32 = i32::MAX;

#[test]
fn exit_unreported_by_shim_is_read_from_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let record = ExitRecord {
        exit: Some(Exit::Code(6)),
        ..ExitRecord::default()
    };
    let mut run = at_gate(dir.path(), reaped());
    let mut will = exit_record::Will::new(RunId::from_u128(7), None);
    let identity = run.identity.as_ref().expect("it is at its gate");
    will.name((&identity.command).into());
    will.write(dir.path(), &record).expect("it is written");
    run.release();
    receive(&mut run, FromShim::Executed {});
    run.shim_gone(0);
    step(&mut run, 0);
    assert_eq!(
        facts(&run),
        [
            &Fact::Executed {},
            &Fact::LeaderExited(Exit::Code(6)),
            &unverified()
        ]
    );
}

#[test]
fn unrecorded_exit_is_asked_from_the_kernel() {
    let dir = tempfile::tempdir().expect("a directory");
    let leader = reaped();
    let copy = PidFd::from_fd(leader.try_clone().expect("a copy"));
    let mut run = at_gate(dir.path(), leader);
    run.release();
    run.shim_gone(0);
    step(&mut run, 0);
    let reported = copy.exit().unwrap_or(Exit::Unknown);
    let killed = Exit::Signal {
        signal: Signal::KILL,
        core_dumped: false,
    };
    assert!([killed, Exit::Unknown].contains(&reported));
    assert_eq!(facts(&run), [&Fact::LeaderExited(reported), &unverified()]);
}

#[test]
fn child_reaped_before_release_never_ran() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut run = at_gate(dir.path(), reaped());
    run.shim_gone(0);
    step(&mut run, 0);
    let expected = [
        &Fact::NotReleased {},
        &Fact::TreeEnded(TreeVerdict::NeverRan),
    ];
    assert_eq!(facts(&run), expected);
}

/// A keeper that is killed after its first signal must not leave a shim that takes the leader's end for its own.
// promise: W-8
#[test]
fn detaching_shim_learns_deadline_before_first_signal() {
    use kennel_lifecycle::{Countdown, LeaderExit};
    let dir = tempfile::tempdir().expect("a directory");
    let child = Sleeper::new();
    let mut run = at_gate(dir.path(), pidfd(&child));
    run.policy.on_leader_exit = LeaderExit::Keep;
    run.max_runtime = Some(Countdown::new(Duration::from_secs(1)));
    run.release();
    receive(&mut run, FromShim::Executed {});
    run.step(0);
    run.step(1_000);
    assert!(matches!(run.for_shim[..], [ToShim::Stopping {}]));
    assert!(!has_signalled(&run), "before the shim has heard of it");
    assert!(run.notifies_shim_first());
    run.for_shim.clear();
    run.step(1_000);
    assert!(has_signalled(&run));
    assert!(!run.notifies_shim_first());
}

fn limited(dir: &Path, child: &Sleeper) -> Run {
    use kennel_lifecycle::{Countdown, Recovery};
    let mut run = at_gate(dir, pidfd(child));
    run.policy.recovery = Some(Recovery::Adopt);
    run.policy.timeouts.extension_max = Some(Duration::from_mins(1));
    run.max_runtime = Some(Countdown::new(Duration::from_secs(10)));
    run.release();
    receive(&mut run, FromShim::Executed {});
    run.step(0);
    run.for_shim.clear();
    run
}

fn extend(run: &mut Run, limit: Deadline, seconds: u64, now: u64) -> ExtendResult {
    let request = WireExtend {
        limits: vec![limit],
        time: Duration::from_secs(seconds),
        by: "x".to_owned(),
    };
    run.extend(7, &request, now);
    match run.outgoing.last() {
        Some(RunMessage::Answer(7, Answer::Extended(result), _)) => *result,
        _ => panic!("no answer"),
    }
}

/// A keeper that is killed after its answer has left the extension with the shim.
// promise: RW-118
#[test]
fn shim_is_sent_an_extension_before_the_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let child = Sleeper::new();
    let mut run = limited(dir.path(), &child);
    let result = extend(&mut run, Deadline::MaxRuntime, 30, 4_000);
    let total = Duration::from_secs(24);
    let totals = Extended {
        max_runtime: total,
        ..Extended::default()
    };
    assert_eq!(result, ExtendResult::Done(totals));
    run.step(4_000);
    let [ToShim::Remember(memory)] = run.for_shim[..] else {
        panic!("nothing for the shim");
    };
    let mut left = Countdown::new(Duration::from_secs(34));
    left.run(0);
    assert_eq!(memory.max_runtime, Some(left));
    assert_eq!(memory.extended, totals);
    let (limit, by) = (Deadline::MaxRuntime, "x".to_owned());
    assert!(facts(&run).contains(&&Fact::Extended { limit, total, by }));
    // Steps at the old deadline and at the extended one.
    run.step(10_000);
    assert!(run.ladder.is_none());
    run.step(34_000);
    assert!(run.ladder.is_some());
}

// promise: RW-72a
#[test]
fn extension_is_refused_beyond_bound_or_while_stopping() {
    let dir = tempfile::tempdir().expect("a directory");
    let child = Sleeper::new();
    let mut run = limited(dir.path(), &child);
    let possible = Duration::from_secs(66);
    let limit = Deadline::MaxRuntime;
    let too_long = ExtendResult::TooLong { limit, possible };
    assert_eq!(extend(&mut run, limit, 67, 4_000), too_long);
    let start = Deadline::StartTimeout;
    assert_eq!(
        extend(&mut run, start, 1, 4_000),
        ExtendResult::NoLimit(start)
    );
    assert_eq!(run.extended, Extended::default());
    run.extend_by_notice(Duration::MAX, 4_000);
    assert_eq!(
        run.extended.max_runtime,
        run.policy.timeouts.extension_max()
    );
    run.step(70_000);
    assert!(run.ladder.is_some(), "the notice was cut to the bound");
    assert_eq!(extend(&mut run, limit, 1, 70_000), ExtendResult::Gone);
    assert!(!run.extend_by_notice(Duration::MAX, 70_000));
}

#[test]
fn paused_time_does_not_use_up_an_extension() {
    let dir = tempfile::tempdir().expect("a directory");
    let child = Sleeper::new();
    let mut run = limited(dir.path(), &child);
    let counted = run.max_runtime.as_mut().expect("a limit");
    counted.stand(4_000);
    let result = extend(&mut run, Deadline::MaxRuntime, 30, 9_000);
    let ExtendResult::Done(totals) = result else {
        panic!("{result:?}");
    };
    assert_eq!(totals.max_runtime, Duration::from_secs(24));
    run.step(20_000);
    run.step(49_000);
    assert!(run.ladder.is_none());
    run.step(50_000);
    assert!(run.ladder.is_some());
}

/// Each request is answered, and once: for every end of the run, and every time of the request.
// promise: A-15
#[test]
fn each_request_is_answered_once_however_run_ends() {
    type Act = fn(&mut Run);
    let prepare: Act = |run| run.handle_shim_message(prepared(), vec![reaped()], &host(), SHIM, 0);
    let prepare_without_file: Act = |run| receive(run, prepared());
    let execute: Act = |run| {
        run.release();
        receive(run, FromShim::Executed {});
    };
    let fail: Act = |run| {
        let failure = StartFailure {
            stage: StartStage::Fork,
            errno: Some(libc::EAGAIN),
            path: None,
        };
        receive(run, FromShim::PrepareFailed(failure));
    };
    let stop: Act = |run| run.stop(&StopPlan::abort(Duration::ZERO), 0);
    let empty: Act = |run| receive(run, childless());
    let lose: Act = |run| run.shim_gone(0);
    let shut: Act = Run::shut_gate;
    let lives: [&[Act]; 11] = [
        &[fail, empty, lose],
        &[lose],
        &[empty, lose],
        &[stop, lose],
        &[shut, empty],
        &[prepare_without_file, empty, lose],
        &[prepare_without_file, lose],
        &[prepare, lose],
        &[prepare, execute, stop, empty, lose],
        &[prepare, execute, lose],
        &[prepare, execute, empty],
    ];
    for (number, life) in lives.iter().enumerate() {
        for asks_at in 0..=life.len() {
            let dir = tempfile::tempdir().expect("a directory");
            let mut run = new(dir.path());
            for place in 0..=life.len() {
                if place == asks_at {
                    run.interrupt(2, Some("a"), 0);
                    run.pause(3, 0);
                    run.signal(4, Signal::HUP, SignalTarget::Tree, Some("b"), 0);
                    run.list(5, 0);
                    run.resume(6);
                    run.answer_whether_sent(7, "a", 0);
                }
                if let Some(act) = life.get(place) {
                    act(&mut run);
                }
                step(&mut run, 0);
            }
            assert!(run.has_ended(), "{number}: {:?}", facts(&run));
            let mut answered = answers(&run);
            answered.sort_unstable();
            assert_eq!(
                answered,
                [1, 2, 3, 4, 5, 6, 7],
                "{number}, asked at {asks_at}"
            );
        }
    }
}

/// Takes a step as the keeper's loop does: messages that the shim needs first are sent in between.
fn step(run: &mut Run, now: u64) {
    run.step(now);
    while run.notifies_shim_first() {
        run.for_shim.clear();
        run.step(now);
    }
    while run.has_tree_work() {
        run.do_tree_work(now);
        run.step(now);
    }
}

/// Returns a run whose leader and 39 more processes live, below this process in the place of its shim.
/// Processes of a shell: children of this process may be those of another test.
struct LargeTree {
    shell: Sleeper,
    children: Vec<(i32, PidFd)>,
}

impl LargeTree {
    fn new() -> Self {
        // The final `sleep` reaps no child.
        let script = "for i in $(seq 40); do sleep 1000 & done; exec sleep 1000";
        let shell = Sleeper::of(Command::new("sh").args(["-c", script]));
        let mut pids = Vec::new();
        while pids.len() < 40 {
            std::thread::yield_now();
            pids = procfs::children(shell.pid());
        }
        let children = pids.into_iter();
        let children = children.map(|pid| (pid, PidFd::open(pid).expect("a pidfd")));
        Self {
            children: children.collect(),
            shell,
        }
    }

    fn all_are(&self, is: impl Fn(&(i32, PidFd)) -> bool) -> bool {
        self.children.iter().all(is)
    }
}

impl Drop for LargeTree {
    fn drop(&mut self) {
        for (_, child) in &self.children {
            let _ = child.signal(Signal::KILL);
        }
    }
}

fn with_large_tree(dir: &Path) -> (Run, LargeTree) {
    let tree = LargeTree::new();
    let leader = tree.children[0].1.as_fd().try_clone_to_owned();
    let mut run = running(dir, leader.expect("a copy"));
    run.tree.as_mut().expect("a tree").root = Root::Shim(tree.shell.pid());
    run.outgoing.clear();
    (run, tree)
}

/// The loop serves others between the slices. Lists that are asked for meanwhile are one list, and a newer one.
// promise: T-18a
#[test]
fn large_tree_is_listed_and_signalled_in_slices() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut run, _tree) = with_large_tree(dir.path());
    run.list(1, 0);
    run.list(2, 0);
    run.signal(3, Signal::CONT, SignalTarget::Tree, Some("a"), 0);
    run.answer_whether_sent(4, "a", 0);
    run.list(5, 0);
    assert!(answers(&run).is_empty(), "that would be all in one slice");
    while run.has_tree_work() {
        run.do_tree_work(0);
    }
    assert_eq!(answers(&run), [1, 2, 5, 3, 4]);
    let to_all = |message: &RunMessage| match message {
        RunMessage::Fact(_, Fact::SignalSent { targets, .. }) => *targets == Some(40),
        _ => false,
    };
    assert!(run.outgoing.iter().any(to_all));
    run.list(6, 0);
    run.signal(7, Signal::CONT, SignalTarget::Tree, None, 0);
    run.server_lost();
    run.over();
    assert_eq!(answers(&run), [1, 2, 5, 3, 4], "no server waits for more");
}

/// The loop serves others between the slices.
// promise: T-18a
#[test]
fn large_tree_is_paused_in_slices() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut run, tree) = with_large_tree(dir.path());
    run.pause(1, 0);
    let (mut slices, mut now) = (1, 0);
    while answers(&run).is_empty() {
        // The keeper serves other runs here.
        slices += 1;
        if run.has_tree_work() {
            run.do_tree_work(now);
        } else {
            now = run.wake_at(now).expect("another pass");
            run.step(now);
        }
    }
    // Two passes over 40 processes: each is listed, checked, recorded and stopped.
    assert!(slices > 8, "{slices}");
    assert!(matches!(run.pause, Pause::Stopped { .. }));
    let state = |pid| procfs::stat(pid).map(|stat| stat.state).ok();
    assert!(tree.all_are(|(pid, _)| state(*pid) == Some(b'T')));
    assert_eq!(
        crate::held::read(dir.path())
            .expect("own file")
            .processes
            .len(),
        40
    );
    run.resume(2);
    assert_eq!(answers(&run), [1, 2]);
    assert!(tree.all_are(|(pid, _)| state(*pid) != Some(b'T')));
}

/// The exit of the leader, which the signal causes, is reported after it, with the next rung after that.
// promise: T-18a, T-18b
#[test]
fn large_tree_gets_stop_signals_in_slices() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut run, _tree) = with_large_tree(dir.path());
    run.pause(1, 0);
    run.stop(&StopPlan::abort(Duration::from_secs(5)), 0);
    run.step(0);
    run.for_shim.clear();
    run.step(0);
    receive(&mut run, exited());
    let mut slices = 0;
    while run.has_tree_work() {
        assert_eq!(run.wake_at(0), None, "no later rung begins meanwhile");
        assert!(facts(&run).is_empty(), "{:?}", facts(&run));
        // The keeper serves other runs here.
        run.do_tree_work(0);
        slices += 1;
    }
    // The processes are listed twice and signalled, then listed again and checked.
    assert!(slices > 4, "{slices}");
    run.step(0);
    let reports = run.outgoing.iter().filter_map(|message| match message {
        RunMessage::Fact(_, fact) => Some(fact),
        RunMessage::Answer(..) => None,
    });
    let reports: Vec<&Fact> = reports.collect();
    let [
        Fact::RoundTargets(_),
        Fact::StopStep(step),
        Fact::LeaderExited(_),
    ] = reports[..]
    else {
        panic!("{reports:?}");
    };
    assert_eq!((step.signal, step.delivered), (Signal::TERM, 40));
    assert_eq!(answers(&run), [1], "the pause has ended");
}

/// A tree that makes processes faster than slices find them is its shim's to end, which kills beside the keeper.
// promise: T-18b
#[test]
fn large_tree_is_killed_by_keeper_and_shim() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut run, tree) = with_large_tree(dir.path());
    run.stop(&StopPlan::abort(Duration::ZERO), 0);
    run.step(0);
    run.for_shim.clear();
    run.step(0);
    assert!(run.has_tree_work(), "that would be all in one slice");
    assert!(matches!(run.for_shim[..], [ToShim::KillAll {}]));
    let of_shim = SignalRound::new(SignalScope::ShimChildren);
    let of_shim = of_shim.step(clock::wall(), Signal::KILL, SignalSender::Shim);
    receive(&mut run, FromShim::Killed(of_shim));
    let senders = |run: &Run| -> Vec<SignalSender> {
        let steps = run.outgoing.iter().filter_map(|message| match message {
            RunMessage::Fact(_, Fact::StopStep(step)) => Some(step.sender),
            _ => None,
        });
        steps.collect()
    };
    assert!(senders(&run).is_empty(), "the keeper's come first");
    for round in 0..2 {
        let mut slices = 0;
        while run.has_tree_work() {
            // The keeper serves other runs here.
            run.do_tree_work(0);
            slices += 1;
        }
        assert!(slices > 2, "{slices} in round {round}");
        run.step(LOOK_AGAIN_MS);
    }
    assert_eq!(senders(&run), [SignalSender::Keeper, SignalSender::Shim]);
    while !tree.all_are(|(_, child)| child.has_ended()) {
        std::thread::yield_now();
    }
}

// promise: T-18a
#[test]
fn descendants_of_a_leader_are_listed_in_slices() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut run, _tree) = with_large_tree(dir.path());
    let left_by_leader = FromShim::Exited {
        at_us: 0,
        exit: Exit::Code(0),
        rest: true,
    };
    receive(&mut run, left_by_leader);
    let mut slices = 0;
    while run.has_tree_work() {
        assert!(run.outgoing.is_empty() && run.ladder.is_none());
        // The keeper serves other runs here.
        run.do_tree_work(0);
        slices += 1;
    }
    assert!(slices >= 2, "{slices}");
    let [Fact::LeaderExited(_), Fact::LeftBehind(left)] = facts(&run)[..] else {
        panic!("{:?}", facts(&run));
    };
    assert!(
        left.processes.len() + left.unlisted as usize >= 39,
        "{left:?}"
    );
    assert!(run.ladder.is_some(), "they are stopped");
}

fn answers(run: &Run) -> Vec<u64> {
    let seq = |message: &RunMessage| match message {
        RunMessage::Answer(seq, ..) => Some(*seq),
        RunMessage::Fact(..) => None,
    };
    run.outgoing.iter().filter_map(seq).collect()
}

fn has_signalled(run: &Run) -> bool {
    let step = |message: &RunMessage| matches!(message, RunMessage::Fact(_, Fact::StopStep(_)));
    run.outgoing.iter().any(step)
}

fn exited() -> FromShim {
    FromShim::Exited {
        at_us: 0,
        exit: Exit::Code(0),
        rest: false,
    }
}

fn childless() -> FromShim {
    FromShim::Empty {
        elsewhere: Vec::new(),
    }
}

// promise: T-26
#[test]
fn survivor_of_sigkill_keeps_run_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let child = Sleeper::new();
    let mut run = running(dir.path(), pidfd(&child));
    run.stop(&StopPlan::abort(Duration::ZERO), 0);
    // The shim is not the parent of this child, so no process is found and no tree verdict follows.
    for now in [0, 1_000, 10_000, 1_000_000_000] {
        step(&mut run, now);
        assert!(!run.has_ended(), "{:?}", facts(&run));
    }
    // Scans become rarer with time, but never rarer than once per second.
    assert_eq!(run.look_every(0), 20);
    assert_eq!(run.look_every(10_000), 312);
    assert_eq!(run.look_every(1_000_000_000), 1_000);
}

// promise: I-8
#[test]
fn pid_of_reaped_shim_is_not_used() {
    let dir = tempfile::tempdir().expect("a directory");
    // The pid of the reaped shim is reused by an unrelated process with a child.
    let mut stranger = Command::new("sh")
        .args(["-c", "sleep 1000; :"])
        .spawn()
        .expect("sh starts");
    let number = stranger.id().cast_signed();
    while procfs::children(number).is_empty() {
        std::thread::yield_now();
    }
    let mut run = new(dir.path());
    run.cgroup = Some(group_of(dir.path()));
    run.handle_shim_message(prepared(), vec![reaped()], &host(), number, 0);
    run.release();
    receive(&mut run, FromShim::Executed {});
    // No process is below the shim, but one is in the control group.
    std::fs::write(dir.path().join("cgroup.events"), "populated 1\n").expect("a file");
    receive(&mut run, childless());
    run.shim_gone(0);
    for now in [0, 500, 2_000, 3_000] {
        step(&mut run, now);
    }
    let steps = run.outgoing.iter().filter_map(|message| match message {
        RunMessage::Fact(_, Fact::StopStep(step)) => Some(step.delivered + step.refused),
        _ => None,
    });
    let (rounds, hit) = (steps.clone().count(), steps.sum::<u32>());
    let lives = procfs::children(number)
        .iter()
        .any(|pid| procfs::stat(*pid).is_ok_and(|stat| !stat.is_dead()));
    for pid in procfs::children(number) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL)
            .expect("the stranger's child, which it has not reaped");
    }
    stranger.wait().expect("own child");
    assert!(rounds > 0, "the group is being ended");
    assert_eq!(hit, 0, "a stranger was signalled");
    assert!(lives, "a stranger was ended");
    assert!(!run.has_ended());
}

#[test]
fn no_report_follows_tree_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    let child = Sleeper::new();
    let mut run = running(dir.path(), pidfd(&child));
    receive(&mut run, childless());
    step(&mut run, 0);
    assert!(run.has_ended());
    let sent = run.outgoing.len();
    receive(&mut run, exited());
    receive(&mut run, childless());
    run.shim_gone(0);
    step(&mut run, 10_000);
    assert_eq!(run.outgoing.len(), sent, "{:?}", facts(&run));
}

#[test]
fn child_without_pidfd_ends_with_its_shim() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut run = new(dir.path());
    // The leader's pidfd exceeded the descriptor limit.
    receive(&mut run, prepared());
    run.shim_gone(0);
    step(&mut run, 0);
    assert!(run.has_ended() && run.acknowledged);
    assert!(facts(&run).is_empty());
}

// promise: R-8
#[test]
fn child_of_a_lost_server_is_not_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut run = new(dir.path());
    run.server_lost();
    run.handle_shim_message(prepared(), vec![reaped()], &host(), SHIM, 0);
    assert!(run.held().is_none());
    // The gate is shut, so the shim reports that nothing ran.
    receive(&mut run, FromShim::NotReleased {});
    receive(&mut run, childless());
    step(&mut run, 0);
    assert!(run.has_ended() && run.acknowledged);
    assert!(run.outgoing.is_empty(), "{:?}", facts(&run));
}

// promise: R-8
#[test]
fn pause_of_a_lost_server_continues_without_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut run = running(dir.path(), reaped());
    run.outgoing.clear();
    run.pause = Pause::Stopping {
        seq: Some(9),
        give_up_at: 1,
        held: crate::held::Held::default(),
        pass: None,
        due: 0,
    };
    run.server_lost();
    let (held, outputs) = run.held().expect("it is handed over");
    assert_eq!(held.pause, HeldPause::Stopping);
    assert_eq!(outputs.len(), 2);
    step(&mut run, 0);
    let (held, _) = run.held().expect("it is handed over");
    assert_eq!(held.pause, HeldPause::Stopped);
    assert!(run.outgoing.is_empty(), "{:?}", facts(&run));
}

#[test]
fn ending_pause_is_handed_over_with_its_state() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut run = running(dir.path(), reaped());
    for (expired, wanted) in [
        (false, HeldPause::Resuming),
        // An expired pause ends by itself, and its end is reported later.
        (true, HeldPause::Stopped),
    ] {
        run.pause = Pause::Resuming {
            held: crate::held::Held::default(),
            expired,
        };
        let (held, _) = run.held().expect("it is handed over");
        assert_eq!(held.pause, wanted);
    }
}

// promise: Q-8, RW-120
#[test]
fn usage_and_memory_kills_are_reported_before_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = [
        ("memory.events", "oom 1\noom_kill 2\n"),
        ("memory.max", "4096\n"),
        ("cpu.stat", "user_usec 7\nsystem_usec 3\n"),
    ];
    let used = Usage {
        cpu_user_us: Some(7),
        cpu_system_us: Some(3),
        memory_kills: Some(2),
        ..Usage::default()
    };
    let killed = with_files(dir.path(), &files);
    let kills = MemoryKills {
        kills: 2,
        memory_max: Some(4096),
    };
    assert_eq!(
        facts(&killed),
        [
            &Fact::Executed {},
            &Fact::LeaderExited(Exit::Code(0)),
            &Fact::MemoryKills(kills),
            &Fact::Usage(Box::new(used)),
            &Fact::TreeEnded(TreeVerdict::Empty(Proof::CgroupAndEchild)),
        ]
    );
    let dir = tempfile::tempdir().expect("a directory");
    let spared = with_files(dir.path(), &[("memory.max", "4096\n")]);
    assert_eq!(facts(&spared).len(), 3, "{:?}", facts(&spared));
}

// promise: RW-121
#[test]
fn memory_reserve_stops_run_by_its_stop_plan() {
    let shortage = MemoryShortage {
        limit: 1000,
        used: 950,
        reserve: 100,
    };
    let dir = tempfile::tempdir().expect("a directory");
    let child = Sleeper::new();
    let mut run = at_gate(dir.path(), pidfd(&child));
    run.stop_for_memory(shortage, 0);
    assert!(run.ladder.is_none(), "no command runs yet");
    run.stage = CommandStage::Ran;
    assert!(run.memory_in_use().is_some() && !run.is_ending());
    run.stop_for_memory(shortage, 0);
    assert_eq!(
        facts(&run),
        [&Fact::Stops(StopReason::MemoryReserve(shortage))]
    );
    // The run has its grace, and stays the largest run.
    assert!(run.memory_in_use().is_some() && run.is_ending());
    // The stop is reported once, whatever ends the grace.
    run.stop_for_memory(shortage, 1);
    run.kill_for_memory(1);
    run.climb(1);
    assert_eq!(run.memory_in_use(), None, "it was killed");
    let stops = facts(&run).into_iter();
    assert_eq!(
        stops.filter(|fact| matches!(fact, Fact::Stops(_))).count(),
        1
    );
}

// ---- helpers -------------------------------------------------------------------------------------------------------

/// Returns the pidfd of a process that was reaped.
fn reaped() -> OwnedFd {
    pidfd(&Sleeper::new())
}

fn pidfd(child: &Sleeper) -> OwnedFd {
    let fd = child.pidfd();
    fd.as_fd().try_clone_to_owned().expect("a copy")
}

fn new(run_dir: &Path) -> Run {
    let pipe = || nix::unistd::pipe().expect("a pipe");
    let parts = RunParts {
        id: RunId::from_u128(7),
        shim: 16,
        policy: WirePolicy::from(Policy {
            stop: StopPolicy::within(Duration::ZERO),
            ..Policy::default()
        }),
        run_dir: run_dir.to_owned(),
        cgroup: None,
        held: Held {
            by: Containment::Subreaper,
            gaps: vec![Gap::NoCgroup("none".into())],
        },
        input: None,
        notices: None,
        outputs: Outputs::pipes(pipe().0, pipe().0),
        counting: Counting::PERHAPS,
    };
    let gate = std::fs::File::create("/dev/null").expect("a file");
    Run::wanted(parts, 1, gate.into())
}

/// Returns a directory as if it were a control group.
fn group_of(dir: &Path) -> CgroupIdentity {
    CgroupIdentity {
        path: dir.to_str().expect("UTF-8").to_owned(),
        inode: std::os::unix::fs::MetadataExt::ino(&dir.metadata().expect("it is there")),
    }
}

/// Returns a run that ended by itself, with the reports for these files of its control group at its end.
fn with_files(dir: &Path, files: &[(&str, &str)]) -> Run {
    let mut run = new(dir);
    run.cgroup = Some(group_of(dir));
    run.handle_shim_message(prepared(), vec![reaped()], &host(), SHIM, 0);
    run.release();
    receive(&mut run, FromShim::Executed {});
    for (name, text) in files {
        std::fs::write(dir.join(name), text).expect("a file");
    }
    receive(&mut run, exited());
    receive(&mut run, childless());
    step(&mut run, 0);
    run
}

fn prepared() -> FromShim {
    let process = ProcessIdentity {
        pid: SHIM - 1,
        pgid: SHIM - 1,
        sid: SHIM - 1,
        start_ticks: 0,
        pidfs_handle: None,
    };
    FromShim::Prepared {
        command: process,
        shim: process,
        init: None,
    }
}

fn at_gate(run_dir: &Path, leader: OwnedFd) -> Run {
    let mut run = new(run_dir);
    run.handle_shim_message(prepared(), vec![leader], &host(), SHIM, 0);
    run
}

/// Returns a run whose command runs.
fn running(run_dir: &Path, leader: OwnedFd) -> Run {
    let mut run = at_gate(run_dir, leader);
    run.release();
    receive(&mut run, FromShim::Executed {});
    run
}

fn receive(run: &mut Run, word: FromShim) {
    run.handle_shim_message(word, Vec::new(), &host(), SHIM, 0);
}

fn host() -> HostIdentity {
    HostIdentity {
        boot_id: "a boot".into(),
        pidns_inode: 1,
        init_start_ticks: Some(7),
    }
}

/// Returns the reports of the run, without its signals.
fn facts(run: &Run) -> Vec<&Fact> {
    let fact = |message| match message {
        &RunMessage::Fact(_, Fact::SignalSent { .. } | Fact::StopStep(_))
        | RunMessage::Answer(..) => None,
        RunMessage::Fact(_, fact) => Some(fact),
    };
    run.outgoing.iter().filter_map(fact).collect()
}

fn unverified() -> Fact {
    Fact::TreeEnded(TreeVerdict::Unverified(
        "the shim was lost and there is no control group to look into".into(),
    ))
}
