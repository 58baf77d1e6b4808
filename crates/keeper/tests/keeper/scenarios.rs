//! Scenarios of the server, one function per promise.

use crate::stage::{Stage, drain, is_alive, pipes, until};
use crate::{containment, deaths, members, reuse, stray};
use kennel_keeper::client::{
    ClientError, Fact, Holds, KeeperEvent, Kernel, MembershipEvidence, RoundTarget, SignalResult,
};
use kennel_lifecycle::{
    Exit, Proof, Signal, SignalScope, SignalSender, StartFailure, StartStage, StopStep,
    TreeVerdict, ladder::StopPlan,
};
use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    ffi::CString,
    fs,
    io::Read,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::fs::PermissionsExt,
    },
    time::Duration,
};

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "output_exit_and_tree_are_told_in_order" => reported_in_order(stage).await,
        "a_shut_gate_runs_nothing" => shut_gate(stage).await,
        "input_and_long_arguments_arrive_whole" => input(stage).await,
        "the_child_gets_nothing_that_was_not_given" => bare_child(stage).await,
        // promise: RW-165
        "start_failures_are_typed" => start_failures(stage).await,
        "a_tree_of_sessions_and_orphans_is_ended" => sessions(stage).await,
        "tree_that_ignores_term_is_killed" => ignoring(stage).await,
        "a_stopped_child_dies_of_the_polite_signal" => stopped(stage).await,
        "rest_gets_its_grace_after_the_leader" => rest(stage).await,
        "grandchild_holding_the_pipe_hides_no_exit" => held_pipe(stage).await,
        "leader_exit_in_a_stop_keeps_the_grace" => grace(stage).await,
        "an_interrupt_reaches_the_group_once" => interrupt(stage).await,
        "paused_tree_stands_still_until_resumed" => pause(stage).await,
        "a_paused_tree_can_be_ended" => stop_paused(stage).await,
        "command_that_kills_its_shim_is_ended" => shim_killed(stage).await,
        "lost_verdict_of_a_shim_is_not_invented" => verdict_lost(stage).await,
        "child_of_dead_shim_never_runs" => shim_killed_at_gate(stage).await,
        "run_left_in_order_is_ended" => left_running(stage).await,
        "run_left_in_order_has_no_hours_grace" => deaths::stubborn(stage).await,
        "termination_is_asked_of_the_server" => termination(stage).await,
        "many_runs_at_once_all_end" => many(stage).await,
        "run_restarts_while_its_last_shim_ends" => again(stage).await,
        name if stray::plays(name) => stray::play(name, stage).await,
        name if reuse::plays(name) => reuse::play(name, stage).await,
        name if containment::plays(name) => containment::play(name, stage).await,
        other => members::play(other, stage).await,
    }
}

/// Returns the best proof that this host can give.
pub(crate) fn empty(stage: &Stage) -> Fact {
    Fact::TreeEnded(TreeVerdict::Empty(if stage.is_private() {
        Proof::PrivatePidns
    } else if stage.has_cgroup() {
        Proof::CgroupAndEchild
    } else {
        Proof::Echild
    }))
}

pub(crate) fn signals(facts: &[Fact]) -> Vec<Signal> {
    let sent = |fact: &Fact| match fact {
        Fact::SignalSent { signal, .. } => Some(*signal),
        // The keeper's signals suffice: the shim's repeat the same rung.
        Fact::StopStep(step) if step.sender == SignalSender::Keeper => Some(step.signal),
        _ => None,
    };
    facts.iter().filter_map(sent).collect()
}

pub(crate) fn killed_by(signal: Signal) -> Fact {
    Fact::LeaderExited(Exit::Signal {
        signal,
        core_dumped: false,
    })
}

async fn reported_in_order(stage: &mut Stage) {
    let (run, spec) = stage.shell("echo out; echo err >&2; exit 7");
    let prepared = stage.start(run, &spec).await;
    let identity = &prepared.identity;
    assert_eq!(identity.command.pid, identity.command.pgid);
    assert_eq!(identity.command.pid, identity.command.sid);
    assert_eq!(identity.cgroup.is_some(), stage.has_cgroup());
    assert_eq!(prepared.held.cgroup_refused().is_none(), stage.has_cgroup());
    let facts = stage.end(run).await;
    let expected = [
        Fact::Executed {},
        Fact::LeaderExited(Exit::Code(7)),
        empty(stage),
    ];
    assert_eq!(facts, expected);
    assert_eq!(stage.usages.contains_key(&run), stage.has_cgroup());
    let (out, err) = pipes(prepared.outputs);
    assert_eq!((drain(out), drain(err)), ("out\n".into(), "err\n".into()));
}

async fn shut_gate(stage: &mut Stage) {
    let (run, spec) = stage.shell("echo ran > $0/ran");
    let prepared = stage
        .prepare(run, &spec)
        .await
        .expect("a child at its gate");
    stage.client.shut_gate(run);
    let facts = stage.end(run).await;
    let expected = [Fact::NotReleased {}, Fact::TreeEnded(TreeVerdict::NeverRan)];
    assert_eq!(facts, expected);
    assert!(!is_alive(prepared.identity.command.pid));
    assert!(!stage.file("ran").exists());
}

async fn input(stage: &mut Stage) {
    // Longer than a message between Kennel's processes may be.
    let long = "x".repeat(100_000);
    let (run, mut spec) = stage.command(
        "/bin/sh",
        &[
            "sh",
            "-c",
            "cat; echo ${#1} ${#2} ${#3}",
            "sh",
            &long,
            &long,
            &long,
        ],
    );
    spec.command.initial_input = Some(b"all of it\n".to_vec());
    let prepared = stage.start(run, &spec).await;
    let facts = stage.end(run).await;
    assert!(
        facts.contains(&Fact::LeaderExited(Exit::Code(0))),
        "{facts:?}"
    );
    assert_eq!(
        drain(pipes(prepared.outputs).0),
        "all of it\n100000 100000 100000\n"
    );

    let (run, mut spec) = stage.shell("echo more >> /proc/self/fd/0");
    spec.command.initial_input = Some(b"fixed".to_vec());
    stage.start(run, &spec).await;
    let facts = stage.end(run).await;
    assert!(
        !facts.contains(&Fact::LeaderExited(Exit::Code(0))),
        "{facts:?}"
    );
}

async fn bare_child(stage: &mut Stage) {
    let text = "ls -l /proc/self/fd | grep -c ' -> '; grep -E 'Sig(Blk|Ign)' /proc/self/status; env | wc -l; pwd";
    let (run, mut spec) = stage.shell(text);
    spec.command.cwd = Some("/tmp".into());
    let prepared = stage.start(run, &spec).await;
    stage.end(run).await;
    let output = drain(pipes(prepared.outputs).0);
    let lines: Vec<&str> = output.lines().collect();
    // stdin, stdout, stderr, and the directory that ls reads.
    assert_eq!(lines[0], "4", "{output}");
    for line in &lines[1..3] {
        assert!(line.ends_with("0000000000000000"), "{output}");
    }
    // PATH, KENNEL_RUN_ID, KENNEL_TEST_DIR, and PWD, which sh sets.
    assert_eq!(lines[3], "4", "{output}");
    assert_eq!(lines[4], "/tmp");
}

async fn start_failures(stage: &mut Stage) {
    let script = stage.file("script");
    fs::write(&script, "#!/nonexistent/interpreter\n").expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("permissions");
    let plain = stage.file("plain");
    fs::write(&plain, "data").expect("a file");
    for (path, errno) in [
        (script.as_path(), libc::ENOENT),
        (plain.as_path(), libc::EACCES),
    ] {
        let path = path.to_str().expect("text");
        let (run, spec) = stage.command(path, &[path]);
        stage
            .prepare(run, &spec)
            .await
            .expect("a child at its gate");
        stage.client.release(run);
        let facts = stage.end(run).await;
        let failure = StartFailure {
            stage: StartStage::Exec,
            errno: Some(errno),
            path: Some(path.to_owned()),
        };
        assert_eq!(facts.first(), Some(&Fact::ExecFailed(failure)), "{facts:?}");
        assert!(!facts.contains(&Fact::Executed {}), "{facts:?}");
    }
    busy_file(stage).await;
    for (cwd, errno) in [
        ("/nonexistent", libc::ENOENT),
        ("/etc/passwd", libc::ENOTDIR),
    ] {
        let (run, mut spec) = stage.shell("true");
        spec.command.cwd = Some(cwd.into());
        let failed = stage.prepare(run, &spec).await;
        let Err(ClientError::Start(failure)) = failed else {
            panic!("{failed:?}")
        };
        let expected = StartFailure {
            stage: StartStage::WorkDir,
            errno: Some(errno),
            path: Some(cwd.into()),
        };
        assert_eq!(failure, expected);
    }
}

/// A file that is closed soon after the start is executed: it fails at first.
async fn busy_file(stage: &mut Stage) {
    let path = stage.file("busy");
    fs::copy("/bin/true", &path).expect("a copy");
    let writer = fs::File::options()
        .append(true)
        .open(&path)
        .expect("a file");
    let text = path.to_str().expect("text");
    // SAFETY: inotify_init1 takes an integer.
    let watch = unsafe { libc::inotify_init1(libc::IN_CLOEXEC) };
    assert!(watch >= 0, "inotify");
    // SAFETY: the descriptor is new, and nothing else owns it.
    let mut watch = unsafe { fs::File::from_raw_fd(watch) };
    let name = CString::new(text).expect("no NUL");
    // SAFETY: the name is a NUL-terminated string.
    let watched = unsafe {
        libc::inotify_add_watch(watch.as_raw_fd(), name.as_ptr(), libc::IN_CLOSE_NOWRITE)
    };
    assert!(watched >= 0, "a watch");
    let closing = std::thread::spawn(move || {
        // The kernel closes the file that it opened for execve.
        watch.read_exact(&mut [0; 16]).expect("an event");
        drop(writer);
    });
    let (run, spec) = stage.command(text, &[text]);
    stage.start(run, &spec).await;
    let facts = stage.end(run).await;
    assert!(facts.contains(&Fact::Executed {}), "{facts:?}");
    closing.join().expect("it was tried");
}

/// Children in sessions of their own, orphans without environment among them.
pub(crate) const WIDE_TREE: &str = "
    setsid sh -c 'sleep 1000; : '$0 &
    (setsid sh -c '(env -i sh -c \"sleep 1000; : '$0'\" &) ; exit 0' &)
    (env -i setsid sh -c 'sleep 1000; : '$0 &)
    sh -c 'sleep 1000; : '$0 &
    echo up > $0/up
    wait";

async fn sessions(stage: &mut Stage) {
    let (run, spec) = stage.shell(WIDE_TREE);
    stage.start(run, &spec).await;
    stage.wide_tree_stands().await;
    stage
        .client
        .stop(run, &StopPlan::abort(Duration::from_secs(10)));
    let facts = stage.end(run).await;
    assert_eq!(signals(&facts), [Signal::TERM], "{facts:?}");
    assert_eq!(facts.last(), Some(&empty(stage)));
    let [_, Fact::RoundTargets(targets), Fact::StopStep(step), ..] = &facts[..] else {
        panic!("{facts:?}")
    };
    assert!(step.delivered >= 5, "{facts:?}");
    // A round this small lists every target.
    assert_eq!(u32::try_from(targets.len()).expect("few"), step.targets());
    let named = |target: &RoundTarget| {
        target.start_ticks > 0 && target.evidence != MembershipEvidence::Held(Holds::default())
    };
    assert!(targets.iter().all(named), "{facts:?}");
    assert_eq!(
        (step.scope, step.sender),
        (SignalScope::Tree, SignalSender::Keeper)
    );
    assert_eq!((step.refused, step.errno), (0, None));
}

async fn ignoring(stage: &mut Stage) {
    let (run, spec) = stage.shell(
        "trap '' TERM INT HUP; setsid sh -c \"trap '' TERM; echo up > $0/up; while :; do sleep 1000; done\" $0 & while :; do sleep 1000; done",
    );
    stage.start(run, &spec).await;
    stage.written("up").await;
    stage
        .client
        .stop(run, &StopPlan::abort(Duration::from_mins(1)));
    // A second stop may only shorten the plan.
    stage
        .client
        .stop(run, &StopPlan::abort(Duration::from_millis(300)));
    let facts = stage.end(run).await;
    assert_eq!(signals(&facts), [Signal::TERM, Signal::KILL], "{facts:?}");
    assert!(facts.contains(&killed_by(Signal::KILL)), "{facts:?}");
    assert_eq!(facts.last(), Some(&empty(stage)));
}

async fn stopped(stage: &mut Stage) {
    let (run, spec) = stage.shell("echo up > $0/up; kill -STOP $$; echo on > $0/on");
    let prepared = stage.start(run, &spec).await;
    let pid = prepared.identity.command.pid;
    until(|| state(pid).filter(|s| *s == 'T')).await;
    stage
        .client
        .stop(run, &StopPlan::abort(Duration::from_mins(1)));
    let facts = stage.end(run).await;
    assert_eq!(signals(&facts), [Signal::TERM, Signal::CONT], "{facts:?}");
    assert!(facts.contains(&killed_by(Signal::TERM)), "{facts:?}");
    assert!(!stage.file("on").exists());
}

pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

async fn rest(stage: &mut Stage) {
    // The worker needs a moment after SIGTERM, and the grace allows it.
    let worker = "trap 'sleep 0.2; echo done > $0/done; exit 0' TERM; echo up > $0/up; while :; do sleep 0.01; done";
    let text = format!(
        "sh -c {} $0 & while ! test -e $0/up; do sleep 0.01; done; echo leader",
        quoted(worker)
    );
    let (run, spec) = stage.shell(&text);
    let prepared = stage.start(run, &spec).await;
    let facts = stage.end(run).await;
    let exited = facts
        .iter()
        .position(|f| *f == Fact::LeaderExited(Exit::Code(0)));
    let term = facts.iter().position(|f| {
        matches!(
            f,
            Fact::StopStep(StopStep {
                signal: Signal::TERM,
                ..
            })
        )
    });
    assert!(exited.is_some() && exited < term, "{facts:?}");
    assert_eq!(signals(&facts), [Signal::TERM], "{facts:?}");
    assert_eq!(facts.last(), Some(&empty(stage)));
    assert!(stage.file("done").exists());
    assert_eq!(drain(pipes(prepared.outputs).0), "leader\n");
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

async fn held_pipe(stage: &mut Stage) {
    let (run, mut spec) = stage.shell("(setsid sh -c \"trap '' TERM; echo up > $0/up; while :; do sleep 1000; done\" $0 &); while ! test -e $0/up; do sleep 0.01; done; exit 3");
    spec.policy.stop.grace = Some(Duration::from_mins(1));
    stage.start(run, &spec).await;
    let exited = Fact::LeaderExited(Exit::Code(3));
    let facts = stage.wait(run, |f| f.contains(&exited)).await;
    assert!(!facts.iter().any(|f| matches!(f, Fact::TreeEnded(_))));
    stage.client.stop(run, &StopPlan::abort(Duration::ZERO));
    let facts = stage.end(run).await;
    assert_eq!(signals(&facts).last(), Some(&Signal::KILL), "{facts:?}");
}

async fn grace(stage: &mut Stage) {
    let worker = "trap 'sleep 0.3; echo done > $0/done; exit 0' TERM; echo up > $0/up; while :; do sleep 0.01; done";
    let text = format!("sh -c {} $0 & wait", quoted(worker));
    let (run, spec) = stage.shell(&text);
    stage.start(run, &spec).await;
    stage.written("up").await;
    stage
        .client
        .stop(run, &StopPlan::abort(Duration::from_secs(10)));
    let facts = stage.end(run).await;
    assert!(facts.contains(&killed_by(Signal::TERM)), "{facts:?}");
    assert_eq!(signals(&facts), [Signal::TERM], "{facts:?}");
    assert!(stage.file("done").exists());
}

async fn interrupt(stage: &mut Stage) {
    let (run, spec) = stage.shell(
        "trap 'echo int >> $0/ints; exit 0' INT; echo up > $0/up; while :; do sleep 0.01; done",
    );
    stage.start(run, &spec).await;
    stage.written("up").await;
    let result = stage.client.interrupt(run, None).await.expect("a keeper");
    assert_eq!(result.result, SignalResult::Done);
    let facts = stage.end(run).await;
    assert_eq!(signals(&facts), [Signal::INT], "{facts:?}");
    assert_eq!(stage.written("ints").await, "int\n");
    let result = stage.client.interrupt(run, None).await.expect("a keeper");
    assert_eq!(result.result, SignalResult::UnknownRun);
}

/// A leader and a child in another session that both count.
pub(crate) const COUNTERS: &str = "
    setsid sh -c 'while :; do echo x >> $0/b; sleep 0.002; done' $0 &
    while :; do echo x >> $0/a; sleep 0.002; done";

pub(crate) fn counts(stage: &Stage) -> (u64, u64) {
    let size = |name| fs::metadata(stage.file(name)).map_or(0, |m| m.len());
    (size("a"), size("b"))
}

pub(crate) async fn counting(stage: &Stage) {
    let (a, b) = counts(stage);
    until(|| {
        let (c, d) = counts(stage);
        (c > a && d > b).then_some(())
    })
    .await;
}

async fn pause(stage: &mut Stage) {
    let (run, spec) = stage.shell(COUNTERS);
    let prepared = stage.start(run, &spec).await;
    counting(stage).await;
    assert_eq!(
        stage.client.pause(run).await.expect("a keeper"),
        SignalResult::Done
    );
    let before = counts(stage);
    if !stage.has_cgroup() {
        // 'D': the shell is in vfork(2) until its stopped child continues.
        let seen = state(prepared.identity.command.pid);
        assert!(matches!(seen, Some('T' | 'D')), "{seen:?}");
    }
    // Another run starts and ends during the pause.
    let (other, spec) = stage.shell("sleep 0.1");
    stage.start(other, &spec).await;
    stage.end(other).await;
    assert_eq!(counts(stage), before);
    assert_eq!(
        stage.client.resume(run).await.expect("a keeper"),
        SignalResult::Done
    );
    counting(stage).await;
    stage
        .client
        .stop(run, &StopPlan::abort(Duration::from_secs(10)));
    stage.end(run).await;
}

async fn stop_paused(stage: &mut Stage) {
    let (run, spec) = stage.shell(COUNTERS);
    stage.start(run, &spec).await;
    counting(stage).await;
    assert_eq!(
        stage.client.pause(run).await.expect("a keeper"),
        SignalResult::Done
    );
    stage
        .client
        .stop(run, &StopPlan::abort(Duration::from_mins(1)));
    let facts = stage.end(run).await;
    assert!(facts.contains(&killed_by(Signal::TERM)), "{facts:?}");
    assert_eq!(facts.last(), Some(&empty(stage)));
}

async fn shim_killed(stage: &mut Stage) {
    let (run, mut spec) = stage.shell(
        "setsid sh -c \"trap '' TERM; echo up > $0/up; while :; do sleep 1000; done\" $0 & while ! test -e $0/up || ! test -e $0/go; do sleep 0.01; done; kill -9 $PPID; trap 'exit 5' TERM; while :; do sleep 0.01; done",
    );
    spec.policy.stop.grace = Some(Duration::from_secs(1));
    let prepared = stage.start(run, &spec).await;
    // The shim must first report that its command runs.
    fs::write(stage.file("go"), b"").expect("a file");
    if stage.is_private() {
        // $PPID is 0 in the namespace, so the command kills its own group.
        let facts = stage.end(run).await;
        assert!(facts.contains(&killed_by(Signal::KILL)), "{facts:?}");
        assert_eq!(signals(&facts), [Signal::TERM, Signal::KILL], "{facts:?}");
        assert_eq!(facts.last(), Some(&empty(stage)));
        let (run, spec) = stage.shell(WIDE_TREE);
        let prepared = stage.start(run, &spec).await;
        stage.wide_tree_stands().await;
        return stage.ends_with_its_shim(run, &prepared).await;
    }
    let facts = stage.end(run).await;
    assert!(!is_alive(prepared.identity.shim.pid));
    assert!(
        facts.contains(&Fact::LeaderExited(Exit::Code(5)))
            || facts.contains(&killed_by(Signal::TERM)),
        "{facts:?}"
    );
    assert_eq!(signals(&facts), [Signal::TERM, Signal::KILL], "{facts:?}");
    match facts.last() {
        Some(Fact::TreeEnded(TreeVerdict::Empty(Proof::Cgroup))) if stage.has_cgroup() => {}
        Some(Fact::TreeEnded(TreeVerdict::Unverified(_))) if !stage.has_cgroup() => {}
        other => panic!("{other:?}"),
    }
}

async fn verdict_lost(stage: &mut Stage) {
    let (run, spec) = stage.shell("echo up > $0/up; while :; do sleep 1000; done");
    let prepared = stage
        .prepare(run, &spec)
        .await
        .expect("a child at its gate");
    let shim = Held::at(prepared.identity.shim.pid);
    stage.client.release(run);
    stage.written("up").await;
    shim.kill();
    if stage.is_private() {
        return stage.ended_with_its_shim(run, &prepared).await;
    }
    let facts = stage.end(run).await;
    assert!(!facts.contains(&Fact::Executed {}), "{facts:?}");
    // Without a shim and without group signals, a `sleep` caught in a fork may survive to the second rung.
    assert_eq!(signals(&facts)[0], Signal::TERM, "{facts:?}");
    assert!(facts.contains(&killed_by(Signal::TERM)), "{facts:?}");
    match facts.last() {
        Some(Fact::TreeEnded(TreeVerdict::Empty(Proof::Cgroup))) if stage.has_cgroup() => {}
        Some(Fact::TreeEnded(TreeVerdict::Unverified(_))) if !stage.has_cgroup() => {}
        other => panic!("{other:?}"),
    }
}

/// A process that this one traces, so that no SIGCONT continues it.
pub(crate) struct Held(Pid);

impl Held {
    pub(crate) fn at(pid: i32) -> Self {
        let pid = Pid::from_raw(pid);
        ptrace::seize(pid, ptrace::Options::empty()).expect("it may be traced");
        ptrace::interrupt(pid).expect("it is traced");
        let stopped = waitpid(pid, Some(WaitPidFlag::__WALL)).expect("it is traced");
        assert!(
            matches!(stopped, WaitStatus::PtraceEvent(..)),
            "{stopped:?}"
        );
        Self(pid)
    }

    pub(crate) fn let_go(self) {
        ptrace::detach(self.0, None).expect("it is traced");
    }

    /// Kills it; its parent gets the exit after its tracer.
    fn kill(self) {
        kill(self.0.as_raw());
        let ended = waitpid(self.0, Some(WaitPidFlag::__WALL)).expect("it is traced");
        assert!(matches!(ended, WaitStatus::Signaled(..)), "{ended:?}");
    }
}

async fn shim_killed_at_gate(stage: &mut Stage) {
    let (run, spec) = stage.shell("echo ran > $0/ran");
    let prepared = stage
        .prepare(run, &spec)
        .await
        .expect("a child at its gate");
    let shim = prepared.identity.shim.pid;
    // The link may be unreadable; otherwise it shows that the shim pins no directory of the caller that started the
    // service.
    if let Ok(cwd) = fs::read_link(format!("/proc/{shim}/cwd")) {
        assert_eq!(cwd.to_str(), Some("/"));
    }
    kill(shim);
    let facts = stage.end(run).await;
    let expected = [Fact::NotReleased {}, Fact::TreeEnded(TreeVerdict::NeverRan)];
    assert_eq!(facts, expected);
    // This release comes too late.
    stage.client.release(run);
    assert!(!is_alive(prepared.identity.command.pid));
    assert!(!stage.file("ran").exists());
}

async fn left_running(stage: &mut Stage) {
    let (run, spec) = stage.shell(WIDE_TREE);
    stage.start(run, &spec).await;
    stage.written("up").await;
}

/// Sends SIGKILL to a process of this test.
pub(crate) fn kill(pid: i32) {
    // SAFETY: kill takes integers.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

async fn termination(stage: &mut Stage) {
    let keeper = stage.hello.keeper.pid;
    for expected in [KeeperEvent::Shutdown {}, KeeperEvent::ShutdownNow {}] {
        // SAFETY: kill takes integers; the keeper is this process's parent.
        unsafe { libc::kill(keeper, libc::SIGTERM) };
        assert_eq!(stage.event().await, expected);
    }
}

async fn many(stage: &mut Stage) {
    let mut runs = Vec::new();
    for i in 0..50 {
        let (run, spec) = stage.shell(&format!("(setsid sleep 0.0{i} &) ; exit {i}"));
        stage
            .prepare(run, &spec)
            .await
            .expect("a child at its gate");
        stage.client.release(run);
        runs.push((i, run));
    }
    for (i, run) in runs {
        let facts = stage.end(run).await;
        assert!(
            facts.contains(&Fact::LeaderExited(Exit::Code(i))),
            "{facts:?}"
        );
    }
}

/// Reports of an exiting shim do not count for the next one of the same run.
async fn again(stage: &mut Stage) {
    let (run, spec) = stage.shell("exit 3");
    for _ in 0..50 {
        stage
            .prepare(run, &spec)
            .await
            .expect("a child at its gate");
        stage.client.release(run);
        let facts = stage.end(run).await;
        let expected = [
            Fact::Executed {},
            Fact::LeaderExited(Exit::Code(3)),
            empty(stage),
        ];
        assert_eq!(facts, expected);
        stage.forget(run);
    }
}
