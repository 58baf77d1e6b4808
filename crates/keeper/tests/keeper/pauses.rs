//! Pauses: the processes stopped and continued by them, and their state when the keeper dies.

use crate::{
    deaths::{self, kill_all, observe},
    fleet::{end, no_process_is_left, start},
    recorded,
    scenarios::{COUNTERS, counting, counts, empty, kill, state},
    stage::{DEADLINE, Stage, until},
};
use kennel_keeper::client::{
    Fact, KeeperEvent, Kernel, Sent, SignalOutcome, SignalResult, SignalTarget,
};
use kennel_lifecycle::{
    Deadline, LeaderExit, OnMaxPause, PausePolicy, RunId, Signal, StopReason,
    ladder::StopPlan,
    recovery::{CgroupSeen, ProcessPresence},
};
use std::{
    fs,
    io::Write,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "self_stopped_process_stays_stopped_after_a_pause" => stopped_itself(stage).await,
        "threads_without_their_leader_are_paused_and_signalled" => threads(stage).await,
        "a_pause_is_written_down_while_it_lasts" => written_down(stage).await,
        "pause_ends_after_its_max_pause" => expires(stage).await,
        "run_paused_for_too_long_is_ended" => aborts(stage).await,
        "killed_when_paused" => killed(stage, Moment::Paused).await,
        "killed_while_pausing" => killed(stage, Moment::Pausing).await,
        "killed_while_resuming" => killed(stage, Moment::Resuming).await,
        "all_killed_when_paused" => all_killed(stage).await,
        "leader_and_keeper_killed_when_paused" => leader_and_keeper_killed(stage).await,
        "end_what_was_stopped" => end_stopped(stage).await,
        other => deaths::play(other, stage).await,
    }
}

async fn pause(stage: &Stage, run: RunId) {
    let paused = stage.client.pause(run).await.expect("a keeper");
    assert_eq!(paused, SignalResult::Done);
}

async fn resume(stage: &Stage, run: RunId) {
    let resumed = stage.client.resume(run).await.expect("a keeper");
    assert_eq!(resumed, SignalResult::Done);
}

async fn stop(stage: &mut Stage, run: RunId) {
    stage.client.stop(run, &StopPlan::abort(Duration::ZERO));
    stage.end(run).await;
}

async fn stopped_itself(stage: &mut Stage) {
    let (run, spec) = stage.shell(&format!(
        "sh -c 'echo $$ > $0/self; kill -STOP $$; echo on > $0/on' $0 & {COUNTERS}"
    ));
    stage.start(run, &spec).await;
    let pid = stage.pid("self").await;
    until(|| (state(pid) == Some('T')).then_some(())).await;
    counting(stage).await;
    pause(stage, run).await;
    resume(stage, run).await;
    counting(stage).await;
    assert_eq!(state(pid), Some('T'));
    assert!(!stage.file("on").exists());
    stop(stage, run).await;
}

/// A process whose leader has exited before its other thread, which keeps writing.
pub(crate) fn leaderless(args: &[String]) -> ExitCode {
    let mut file = fs::File::create(&args[0]).expect("a file");
    std::thread::spawn(move || {
        loop {
            file.write_all(b"x").expect("it can be written");
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    // SAFETY: exit(2) takes an integer and ends only this thread, whose resources no other thread uses.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    ExitCode::FAILURE
}

async fn threads(stage: &mut Stage) {
    let exe = std::env::current_exe().expect("this program");
    let file = stage.file("a");
    let words = ["leaderless", "leaderless", file.to_str().expect("text")];
    let (run, spec) = stage.command(exe.to_str().expect("text"), &words);
    let leader = stage.start(run, &spec).await.identity.command.pid;
    until(|| (state(leader) == Some('Z')).then_some(())).await;
    let size = || fs::metadata(&file).map_or(0, |m| m.len());
    let writes = || {
        let before = size();
        until(move || (size() > before).then_some(()))
    };
    writes().await;

    let winch = "SIGWINCH".parse::<Signal>().expect("a signal");
    for target in [SignalTarget::Tree, SignalTarget::Group] {
        let sent = stage.client.signal(run, winch, target, None).await;
        let Sent::Now(signalled) = sent.expect("a keeper") else {
            panic!("it had no request id");
        };
        let signalled = signalled.signalled;
        let [process] = &signalled[..] else {
            panic!("{signalled:?}");
        };
        assert_eq!(
            (process.pid, process.result),
            (leader, SignalOutcome::Delivered)
        );
    }

    pause(stage, run).await;
    let before = size();
    // Another run starts and ends during the pause.
    let (other, spec) = stage.shell("sleep 0.1");
    stage.start(other, &spec).await;
    stage.end(other).await;
    assert_eq!(size(), before);
    resume(stage, run).await;
    writes().await;
    stop(stage, run).await;
}

async fn written_down(stage: &mut Stage) {
    let (run, spec) = stage.shell(COUNTERS);
    stage.start(run, &spec).await;
    counting(stage).await;
    let list = spec.run_dir.join("held");
    assert!(!list.exists());
    pause(stage, run).await;
    assert!(list.exists());
    resume(stage, run).await;
    assert!(!list.exists());
    pause(stage, run).await;
    assert!(list.exists());
    stop(stage, run).await;
    assert!(!list.exists());

    // Without a record a crash would leave processes stopped.
    let (run, spec) = stage.shell(COUNTERS);
    stage.start(run, &spec).await;
    counting(stage).await;
    fs::rename(&spec.run_dir, stage.file("away")).expect("it can be renamed");
    let refused = stage.client.pause(run).await.expect("a keeper");
    assert_eq!(refused, SignalResult::Failed(libc::ENOENT));
    counting(stage).await;
    stop(stage, run).await;
}

/// The keeper counts whole milliseconds; the one in which a pause begins counts as passed.
const KEEPERS_TICK: Duration = Duration::from_millis(1);
/// Long enough for a pause to be ended before, also on a busy machine.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Twice: each pause has the time for itself.
async fn expires(stage: &mut Stage) {
    let (run, mut spec) = stage.shell(COUNTERS);
    spec.policy.pause.max_pause = Some(MAX_PAUSE);
    stage.start(run, &spec).await;
    counting(stage).await;
    for nth in 1..=2 {
        let began = Instant::now();
        pause(stage, run).await;
        let expired = |facts: &[Fact]| {
            facts
                .iter()
                .filter(|f| **f == Fact::PauseExpired {})
                .count()
        };
        stage.wait(run, |facts| expired(facts) == nth).await;
        assert!(began.elapsed() + KEEPERS_TICK >= MAX_PAUSE);
        assert!(!spec.run_dir.join("held").exists());
        counting(stage).await;
    }
    // A pause resumed in time does not expire later; a later pause of another run does.
    pause(stage, run).await;
    resume(stage, run).await;
    let (other, mut spec) = stage.shell("while :; do sleep 1000; done");
    spec.policy.pause.max_pause = Some(MAX_PAUSE);
    stage.start(other, &spec).await;
    pause(stage, other).await;
    let expired = |facts: &[Fact]| facts.contains(&Fact::PauseExpired {});
    stage.wait(other, expired).await;
    stop(stage, other).await;
    stage.client.stop(run, &StopPlan::abort(Duration::ZERO));
    let facts = stage.end(run).await;
    let expired = facts.iter().filter(|f| **f == Fact::PauseExpired {});
    assert_eq!(expired.count(), 2, "{facts:?}");
}

async fn aborts(stage: &mut Stage) {
    let (run, mut spec) = stage.shell(COUNTERS);
    spec.policy.pause = PausePolicy {
        max_pause: Some(MAX_PAUSE),
        on_max_pause: OnMaxPause::Abort,
    };
    stage.start(run, &spec).await;
    counting(stage).await;
    pause(stage, run).await;
    let facts = stage.end(run).await;
    let exceeded = Fact::Stops(StopReason::DeadlineExceeded(Deadline::MaxPause));
    assert_eq!(facts[..2], [Fact::Executed {}, exceeded], "{facts:?}");
    assert_eq!(facts.last(), Some(&empty(stage)));
}

/// Moment of the keeper's death.
#[derive(Clone, Copy, PartialEq)]
enum Moment {
    Pausing,
    Paused,
    Resuming,
}

/// Deaths at each moment.
const ROUNDS: [&str; 3] = [
    "killed_when_paused",
    "killed_while_pausing",
    "killed_while_resuming",
];
const DEATHS: usize = 4;

pub(crate) fn keeper_dies(dir: &Path, choice: &str) {
    for round in ROUNDS {
        for _ in 0..DEATHS {
            let status = end(start(dir, choice, round));
            assert_eq!(status.signal(), Some(libc::SIGKILL), "{round}");
            // A process left stopped, or awaited by its shim, would stay for ever.
            no_process_is_left(dir);
        }
    }
    // The next keeper removes the empty directories of an earlier one.
    assert_eq!(end(start(dir, choice, "nothing")).code(), Some(0));
}

/// Eight processes that handle a polite signal, each in a session of its own.
const CROWD: &str = "
    for i in 1 2 3 4 5 6 7 8; do
        setsid sh -c 'echo up >> $0/up; while :; do echo x >> $0/b; sleep 0.002; done' $0 &
    done
    while :; do echo x >> $0/a; sleep 0.002; done";

async fn killed(stage: &mut Stage, moment: Moment) {
    let (run, mut spec) = stage.shell(CROWD);
    // The processes exit before the test gives up only if they are resumed.
    spec.policy.stop.grace = Some(Duration::from_hours(1));
    let up = stage.file("up");
    let _ = fs::remove_file(&up);
    stage.start(run, &spec).await;
    until(|| {
        let text = fs::read_to_string(&up).unwrap_or_default();
        (text.lines().count() == 8).then_some(())
    })
    .await;
    counting(stage).await;
    if moment != Moment::Pausing {
        pause(stage, run).await;
    }
    let client = stage.client.clone();
    let asked = tokio::spawn(async move {
        match moment {
            Moment::Pausing => drop(client.pause(run).await),
            Moment::Paused => {}
            Moment::Resuming => drop(client.resume(run).await),
        }
    });
    // At any point of the operation.
    for _ in 0..std::process::id() % 5 {
        tokio::task::yield_now().await;
    }
    kill(stage.hello.keeper.pid);
    assert_eq!(stage.event().await, KeeperEvent::Gone);
    asked.await.expect("no panic");
}

pub(crate) fn kept(dir: &Path, choice: &str) {
    let status = end(start(dir, choice, "leader_and_keeper_killed_when_paused"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let size = || fs::metadata(dir.join("b")).map_or(0, |m| m.len());
    for _ in 0..2 {
        let before = size();
        by_deadline("the rest goes on", || size() > before);
    }
    let on_file = || fs::read_dir(dir.join("data/detached")).map_or(0, Iterator::count);
    assert_eq!(on_file(), 1, "the shim of the rest is known");
    assert_eq!(end(start(dir, choice, "nothing")).code(), Some(0));
    assert_eq!(on_file(), 1, "to the next service too");
    fs::write(dir.join("end"), "").expect("a file");
    no_process_is_left(dir);
    assert_eq!(on_file(), 0);
    // The next keeper removes the empty directories of an earlier one.
    assert_eq!(end(start(dir, choice, "nothing")).code(), Some(0));
}

fn by_deadline(what: &str, reached: impl Fn() -> bool) {
    let give_up = Instant::now() + DEADLINE;
    while !reached() {
        assert!(Instant::now() < give_up, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The shim judges the leader's exit, while no process is left that knows of the pause.
async fn leader_and_keeper_killed(stage: &mut Stage) {
    let (run, mut spec) = stage.shell(
        "setsid sh -c 'until [ -e $0/end ]; do echo x >> $0/b; sleep 0.002; done' $0 & while :; do echo x >> $0/a; sleep 0.002; done",
    );
    spec.policy.on_leader_exit = LeaderExit::Keep;
    let prepared = stage.start(run, &spec).await;
    counting(stage).await;
    pause(stage, run).await;
    // SAFETY: kill takes integers; the keeper is this process's parent.
    unsafe { libc::kill(stage.hello.keeper.pid, libc::SIGSTOP) };
    let leader = prepared.identity.command.pid;
    kill(leader);
    // Only the shim reaps the leader.
    until(|| state(leader).is_none().then_some(())).await;
    kill(stage.hello.keeper.pid);
    assert_eq!(stage.event().await, KeeperEvent::Gone);
}

pub(crate) fn all_die(dir: &Path, choice: &str) {
    let status = end(start(dir, choice, "all_killed_when_paused"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let recovered = end(start(dir, choice, "end_what_was_stopped"));
    assert_eq!(recovered.code(), Some(0));
    no_process_is_left(dir);
}

/// One in a session of its own, without marker, and without a control group nothing that would show it.
async fn all_killed(stage: &mut Stage) {
    let (run, spec) = stage.shell(
        "env -i setsid sh -c 'while :; do echo x >> $0/b; sleep 0.002; done' $0 & while :; do echo x >> $0/a; sleep 0.002; done",
    );
    let prepared = stage.start(run, &spec).await;
    counting(stage).await;
    pause(stage, run).await;
    let before = counts(stage);
    recorded::append(&stage.dir, run, &prepared.identity);
    let identity = &prepared.identity;
    assert_eq!(counts(stage), before);
    kill_all(stage, vec![identity.shim.pid, identity.command.pid]).await;
}

async fn end_stopped(stage: &mut Stage) {
    let plan = StopPlan::abort(Duration::from_secs(20));
    for recorded in recorded::read(&stage.dir) {
        let seen = observe(stage, &recorded).await;
        assert_eq!(
            (seen.shim, seen.command),
            (ProcessPresence::Gone, ProcessPresence::Gone)
        );
        let populated = seen.cgroup == CgroupSeen::Populated;
        assert!(populated || !seen.held.is_empty(), "{seen:?}");
        let ended = stage.client.end_orphan(&recorded, &plan).await;
        let seen = ended.expect("a keeper");
        assert_ne!(seen.cgroup, CgroupSeen::Populated);
        assert!(seen.held.is_empty() && seen.hints.is_empty(), "{seen:?}");
        assert!(!recorded.run_dir.join("held").exists());
    }
}
