//! Keeper, server and shims die at bad moments; a later keeper finds their leftovers.

use crate::{
    fleet::{end, no_process_is_left, start},
    handover, pauses, recorded,
    scenarios::{WIDE_TREE, kill},
    stage::{Stage, is_alive, until},
};
use kennel_keeper::client::{ClientError, Fact, KeeperEvent, Kernel, Recorded};
use kennel_lifecycle::{
    Exit, Proof, RunId, Signal, TreeVerdict,
    ladder::StopPlan,
    recovery::{CgroupSeen, Host, Observation, ProcessPresence},
};
use std::{
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

/// A death, with its check from outside.
type Death = fn(&Path, &str);

pub(crate) const ALL: &[(&str, Death)] = &[
    // promise: D-2
    ("no_gate_opens_after_server_or_keeper_death", gates),
    // promise: D-2
    ("no_child_hangs_at_a_siblings_gate", cycle),
    // promise: R-2
    ("shims_carry_out_the_plan_without_keeper", last_will),
    // promise: E-5a
    ("shim_records_whether_its_leader_ended_alone", own_ends),
    // promise: I-2
    ("tree_without_keeper_and_shim_is_ended", orphans),
    (
        // promise: N-7, N-10a
        "no_namespaced_process_outlives_the_whole_service",
        all_at_once,
    ),
    ("many_orphans_are_ended_side_by_side", many_orphans),
    (
        // promise: T-53
        "no_process_stays_stopped_after_keeper_death",
        pauses::keeper_dies,
    ),
    (
        // promise: T-53
        "stopped_process_is_found_without_leader_and_shim",
        pauses::all_die,
    ),
    (
        // promise: T-53, W-11a
        "detached_process_continues_after_leader_and_keeper_death",
        pauses::kept,
    ),
    ("a_second_keeper_is_refused", second_keeper),
    (
        // promise: R-10
        "failing_server_gives_the_service_its_exit_code",
        refusing_server,
    ),
    (
        "termination_before_a_ready_server_is_immediate",
        early_termination,
    ),
    (
        // promise: R-12
        "termination_without_a_server_bounds_each_grace",
        endless_loss,
    ),
];

/// Children at their gates in one round.
const CROWD: usize = 40;
/// Deaths, each with its round: 120 gates.
const ROUNDS: [&str; 3] = ["crowd_server", "crowd_keeper", "crowd_both"];
/// Rounds of four children that are made at once.
const CYCLES: usize = 10;

fn gates(dir: &Path, choice: &str) {
    for round in ROUNDS {
        let status = end(start(dir, choice, round));
        match round {
            "crowd_server" => assert_eq!(status.code(), Some(0)),
            _ => assert_eq!(status.signal(), Some(libc::SIGKILL)),
        }
        no_process_is_left(dir);
        assert!(!dir.join("ran").exists(), "a gate was opened");
    }
    // The next keeper removes the empty directories of an earlier one.
    assert_eq!(end(start(dir, choice, "nothing")).code(), Some(0));
}

fn cycle(dir: &Path, choice: &str) {
    for _ in 0..CYCLES {
        let status = end(start(dir, choice, "four_at_once"));
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        no_process_is_left(dir);
        assert!(!dir.join("ran").exists(), "a gate was opened");
    }
    assert_eq!(end(start(dir, choice, "nothing")).code(), Some(0));
}

fn last_will(dir: &Path, choice: &str) {
    let status = end(start(dir, choice, "keeper_killed"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    no_process_is_left(dir);
    assert_eq!(end(start(dir, choice, "read_last_wills")).code(), Some(0));
}

fn own_ends(dir: &Path, choice: &str) {
    let status = end(start(dir, choice, "leaders_end_unreported"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    no_process_is_left(dir);
    assert_eq!(end(start(dir, choice, "read_own_ends")).code(), Some(0));
}

fn orphans(dir: &Path, choice: &str) {
    let status = end(start(dir, choice, "all_killed"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let runs = recorded::read(dir);
    let look_alikes: Vec<Child> = runs.iter().map(|r| look_alike(r.run)).collect();
    let recovered = end(start(dir, choice, "end_orphans"));
    for mut stranger in look_alikes {
        let alive = stranger.try_wait().expect("it can be waited for").is_none();
        stranger.kill().expect("it can be killed");
        stranger.wait().expect("it can be reaped");
        assert!(alive, "a stranger was signalled");
    }
    assert_eq!(recovered.code(), Some(0));
}

/// Keeper, server and shims are killed together.
fn all_at_once(dir: &Path, choice: &str) {
    let status = end(start(dir, choice, "all_killed"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    no_process_is_left(dir);
    assert_eq!(end(start(dir, choice, "find_nobody")).code(), Some(0));
}

/// Starts an unrelated process with the run's marker.
fn look_alike(run: RunId) -> Child {
    let mut command = Command::new("sleep");
    command.arg("1000").env("KENNEL_RUN_ID", run.to_string());
    command.process_group(0).spawn().expect("a process")
}

fn many_orphans(dir: &Path, choice: &str) {
    let status = end(start(dir, choice, "many_killed"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    assert_eq!(end(start(dir, choice, "end_many_orphans")).code(), Some(0));
}

fn await_file(dir: &Path, name: &str) {
    let give_up = std::time::Instant::now() + crate::stage::DEADLINE;
    while !dir.join(name).exists() {
        assert!(std::time::Instant::now() < give_up, "no {name}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn terminate(keeper: &Child) {
    // SAFETY: kill takes integers; the keeper is an unreaped child of this process.
    unsafe { libc::kill(keeper.id().cast_signed(), libc::SIGTERM) };
}

fn refusing_server(dir: &Path, choice: &str) {
    assert_eq!(end(start(dir, choice, "refuses_to_serve")).code(), Some(2));
    assert!(!dir.join("run/kennel.sock").exists());
}

fn early_termination(dir: &Path, choice: &str) {
    let keeper = start(dir, choice, "never_ready");
    await_file(dir, "up");
    terminate(&keeper);
    let asked = std::time::Instant::now();
    assert_eq!(end(keeper).code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(10));
    assert!(!dir.join("run/kennel.sock").exists());
}

/// Remaining runs have the bound of a shutdown, the code shows that there was no server, and none is started.
fn endless_loss(dir: &Path, choice: &str) {
    assert_eq!(end(start(dir, choice, "lost_for_good")).code(), Some(70));
    no_process_is_left(dir);
    assert!(!dir.join("started_again").exists());
}

fn second_keeper(dir: &Path, choice: &str) {
    let mut first = start(dir, choice, "until_terminated");
    let lock = dir.join("data/lock");
    await_file(dir, "up");
    let holder = std::fs::read_to_string(lock).expect("a lock file");
    assert_eq!(holder.trim(), first.id().to_string());
    assert_eq!(end(start(dir, choice, "nothing")).code(), Some(2));
    assert!(first.try_wait().expect("it can be waited for").is_none());
    terminate(&first);
    assert_eq!(end(first).code(), Some(0));
}

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "nothing" => {}
        "exhaustion" => exhaustion(stage).await,
        "crowd_server" | "crowd_keeper" | "crowd_both" => crowd(stage, name).await,
        "four_at_once" => four_at_once(stage).await,
        "keeper_killed" => keeper_killed(stage).await,
        "read_last_wills" => read_last_wills(stage).await,
        "all_killed" => all_killed(stage).await,
        "leaders_end_unreported" => leaders_end_unreported(stage).await,
        "read_own_ends" => read_own_ends(stage).await,
        "end_orphans" => end_orphans(stage).await,
        "find_nobody" => find_none(stage).await,
        "many_killed" => many_killed(stage).await,
        "end_many_orphans" => end_many_orphans(stage).await,
        "until_terminated" => {
            std::fs::write(stage.file("up"), "up\n").expect("a file");
            assert_eq!(stage.event().await, KeeperEvent::Shutdown {});
        }
        other => handover::play(other, stage).await,
    }
}

/// Starts a tree that ignores polite signals, with an hour of grace.
pub(crate) async fn stubborn(stage: &mut Stage) {
    let (run, mut spec) =
        stage.shell("trap '' TERM INT; echo up > $0/up; while :; do sleep 1000; done");
    spec.policy.stop.grace = Some(Duration::from_hours(1));
    stage.start(run, &spec).await;
    stage.written("up").await;
}

async fn exhaustion(stage: &mut Stage) {
    for _ in 0..3 {
        let mut held = Vec::new();
        loop {
            let (run, spec) = stage.shell("exit 4");
            match stage.prepare(run, &spec).await {
                Ok(prepared) => held.push((run, prepared)),
                Err(ClientError::Exhausted(_)) => break,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(held.len() >= 4, "{} runs", held.len());
        for (run, _) in &held {
            stage.client.release(*run);
        }
        for (run, _) in held {
            let facts = stage.end(run).await;
            assert!(
                facts.contains(&Fact::LeaderExited(Exit::Code(4))),
                "{facts:?}"
            );
        }
    }
}

async fn crowd(stage: &mut Stage, who: &str) {
    if stage.hello.restarts > 0 {
        let held = std::mem::take(&mut stage.held);
        assert_eq!(held.len(), CROWD);
        for run in held {
            let facts = stage.end(run.run).await;
            let expected = [Fact::NotReleased {}, Fact::TreeEnded(TreeVerdict::NeverRan)];
            assert_eq!(facts, expected);
        }
        return;
    }
    for _ in 0..CROWD {
        let (run, spec) = stage.shell("echo ran > $0/ran");
        stage
            .prepare(run, &spec)
            .await
            .expect("a child at its gate");
    }
    if who != "crowd_server" {
        kill(stage.hello.keeper.pid);
    }
    if who != "crowd_keeper" {
        kill(std::process::id().cast_signed());
    }
    assert_eq!(stage.event().await, KeeperEvent::Gone);
}

/// Kills the keeper when the first of four is ready, so that the others are at any point of their start.
async fn four_at_once(stage: &mut Stage) {
    let mut made = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (run, spec) = stage.shell("echo ran > $0/ran");
        let client = stage.client.clone();
        made.spawn(async move { client.prepare(run, &spec).await });
    }
    let first = made
        .join_next()
        .await
        .expect("one of four")
        .expect("no panic");
    first.expect("a child at its gate");
    kill(stage.hello.keeper.pid);
    assert_eq!(stage.event().await, KeeperEvent::Gone);
    while let Some(made) = made.join_next().await {
        let made = made.expect("no panic");
        assert!(
            matches!(made, Ok(_) | Err(ClientError::KeeperGone)),
            "{made:?}"
        );
    }
}

async fn keeper_killed(stage: &mut Stage) {
    let (wide, mut spec) = stage.shell(WIDE_TREE);
    spec.policy.stop.grace = Some(Duration::from_secs(10));
    let prepared = stage.start(wide, &spec).await;
    stage.wide_tree_stands().await;
    recorded::append(&stage.dir, wide, &prepared.identity);

    let (stubborn, mut spec) =
        stage.shell("trap '' TERM; echo up > $0/stubborn; while :; do sleep 1000; done");
    spec.policy.stop.grace = Some(Duration::from_millis(200));
    let prepared = stage.start(stubborn, &spec).await;
    stage.written("stubborn").await;
    recorded::append(&stage.dir, stubborn, &prepared.identity);

    let (gated, spec) = stage.shell("echo ran > $0/ran");
    let prepared = stage
        .prepare(gated, &spec)
        .await
        .expect("a child at its gate");
    recorded::append(&stage.dir, gated, &prepared.identity);

    kill(stage.hello.keeper.pid);
    assert_eq!(stage.event().await, KeeperEvent::Gone);
}

async fn read_last_wills(stage: &mut Stage) {
    let proof = if stage.is_private() {
        Proof::PrivatePidns
    } else if stage.has_cgroup() {
        Proof::CgroupAndEchild
    } else {
        Proof::Echild
    };
    let ended_by = |signal| {
        Some(Exit::Signal {
            signal,
            core_dumped: false,
        })
    };
    let expected = [
        (ended_by(Signal::TERM), TreeVerdict::Empty(proof), false),
        (ended_by(Signal::KILL), TreeVerdict::Empty(proof), false),
        (Some(Exit::Code(125)), TreeVerdict::NeverRan, true),
    ];
    for (recorded, (exit, tree, never_ran)) in recorded::read(&stage.dir).iter().zip(expected) {
        let seen = observe(stage, recorded).await;
        assert_eq!(
            (seen.shim, seen.command),
            (ProcessPresence::Gone, ProcessPresence::Gone)
        );
        assert_ne!(seen.cgroup, CgroupSeen::Populated);
        assert!(seen.hints.is_empty(), "{seen:?}");
        let record = seen.exit_record.expect("a last will");
        assert_eq!((record.exit, record.tree), (exit, Some(tree)));
        assert_eq!(record.never_ran, never_ran);
        assert_eq!(record.by_itself, None, "its shim has ended it");
    }
    assert!(!stage.file("ran").exists());
}

/// Two leaders exit while their keeper is halted: one by itself, and the other is being stopped.
async fn leaders_end_unreported(stage: &mut Stage) {
    let until_go = "until [ -e $0/go ]; do sleep 0.02; done";
    let (alone, spec) = stage.shell(until_go);
    let alone_prepared = stage.start(alone, &spec).await;
    let text = format!("trap 'echo asked > $0/asked' TERM; echo up > $0/up; {until_go}");
    let (asked, spec) = stage.shell(&text);
    let asked_prepared = stage.start(asked, &spec).await;
    stage.written("up").await;
    let plan = StopPlan::abort(Duration::from_mins(1));
    stage.client.stop(asked, &plan);
    stage.written("asked").await;
    // SAFETY: kill takes integers; the keeper is this process's parent.
    unsafe { libc::kill(stage.hello.keeper.pid, libc::SIGSTOP) };
    std::fs::write(stage.file("go"), b"").expect("a file");
    for (run, prepared) in [(alone, alone_prepared), (asked, asked_prepared)] {
        recorded::append(&stage.dir, run, &prepared.identity);
        let leader = prepared.identity.command.pid;
        let path = format!("/proc/{leader}");
        until(|| (!Path::new(&path).exists()).then_some(())).await;
    }
    kill(stage.hello.keeper.pid);
    assert_eq!(stage.event().await, KeeperEvent::Gone);
}

async fn read_own_ends(stage: &mut Stage) {
    for (recorded, by_itself) in recorded::read(&stage.dir).iter().zip([true, false]) {
        let seen = observe(stage, recorded).await;
        let record = seen.exit_record.expect("a last will");
        assert_eq!(record.exit, Some(Exit::Code(0)));
        assert_eq!(record.by_itself.is_some(), by_itself, "{record:?}");
    }
}

pub(crate) async fn observe(stage: &Stage, recorded: &Recorded) -> Observation {
    let seen = stage.client.observe(recorded).await.expect("a keeper");
    assert_eq!(seen.host, Host::Same);
    seen
}

/// Without a control group an orphan in a session of its own cannot be distinguished from an unrelated process, so
/// there is none here.
const NEAR_TREE: &str = "
    setsid sh -c 'sleep 1000; : '$0 &
    (sh -c 'sleep 1000; : '$0 &)
    trap '' TERM
    echo up > $0/near
    while :; do sleep 1000; done";

async fn all_killed(stage: &mut Stage) {
    let mut shims = Vec::new();
    if stage.has_cgroup() {
        let (wide, spec) = stage.shell(WIDE_TREE);
        let prepared = stage.start(wide, &spec).await;
        stage.wide_tree_stands().await;
        recorded::append(&stage.dir, wide, &prepared.identity);
        shims.push(prepared.identity.shim.pid);
    }
    let (near, spec) = stage.shell(NEAR_TREE);
    let prepared = stage.start(near, &spec).await;
    stage.written("near").await;
    recorded::append(&stage.dir, near, &prepared.identity);
    shims.push(prepared.identity.shim.pid);
    kill_all(stage, shims).await;
}

pub(crate) async fn kill_all(stage: &Stage, shims: Vec<i32>) {
    // A stopped keeper cannot act for the killed shims. SAFETY: kill takes integers; the keeper is this process's
    // parent.
    unsafe { libc::kill(stage.hello.keeper.pid, libc::SIGSTOP) };
    for shim in &shims {
        kill(*shim);
    }
    // A keeper that searches still finds an exiting process.
    until(|| (!shims.iter().any(|pid| is_alive(*pid))).then_some(())).await;
    kill(stage.hello.keeper.pid);
    kill(std::process::id().cast_signed());
    until(|| None::<()>).await;
}

/// Runs that lose their shims together.
const ORPHANS: usize = 100;

async fn many_killed(stage: &mut Stage) {
    let mut shims = Vec::new();
    for _ in 0..ORPHANS {
        let (run, spec) = stage.shell("trap '' TERM; sleep 1000; : $0");
        let prepared = stage.start(run, &spec).await;
        recorded::append(&stage.dir, run, &prepared.identity);
        shims.push(prepared.identity.shim.pid);
    }
    kill_all(stage, shims).await;
}

async fn end_many_orphans(stage: &mut Stage) {
    let grace = Duration::from_millis(200);
    let plan = StopPlan::abort(grace);
    let begun = std::time::Instant::now();
    let mut ends = tokio::task::JoinSet::new();
    let orphans = recorded::read(&stage.dir);
    let one_by_one = grace * u32::try_from(orphans.len()).expect("few");
    for recorded in orphans {
        let (client, plan) = (stage.client.clone(), plan.clone());
        ends.spawn(async move { client.end_orphan(&recorded, &plan).await });
    }
    while let Some(ended) = ends.join_next().await {
        let seen = ended.expect("no panic").expect("a keeper");
        assert_eq!(
            (seen.shim, seen.command),
            (ProcessPresence::Gone, ProcessPresence::Gone)
        );
        assert!(seen.hints.is_empty(), "{seen:?}");
    }
    // Orphans do not wait for each other's grace.
    let took = begun.elapsed();
    assert!(took < one_by_one / 2, "{took:?}");
}

async fn find_none(stage: &mut Stage) {
    for recorded in &recorded::read(&stage.dir) {
        let mut seen = observe(stage, recorded).await;
        // The kernel ends init after all other processes.
        let begun = std::time::Instant::now();
        while seen.namespace == Some(ProcessPresence::Same)
            && begun.elapsed() < Duration::from_secs(20)
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
            seen = observe(stage, recorded).await;
        }
        assert_eq!(
            (seen.shim, seen.command),
            (ProcessPresence::Gone, ProcessPresence::Gone)
        );
        assert_ne!(seen.cgroup, CgroupSeen::Populated);
        assert!(seen.hints.is_empty(), "{seen:?}");
        assert_eq!(seen.exit_record, None);
        assert_eq!(seen.namespace, Some(ProcessPresence::Gone));
    }
}

async fn end_orphans(stage: &mut Stage) {
    for recorded in &recorded::read(&stage.dir) {
        let seen = observe(stage, recorded).await;
        assert_eq!(
            (seen.shim, seen.command),
            (ProcessPresence::Gone, ProcessPresence::Same),
            "{seen:?}"
        );
        assert_eq!(seen.exit_record, None);
        assert!(
            seen.hints.contains(&recorded.identity.command.pid),
            "{seen:?}"
        );
        let populated = seen.cgroup == CgroupSeen::Populated;
        assert_eq!(populated, stage.has_cgroup(), "{seen:?}");

        // On another boot the same pids belong to other processes.
        let mut elsewhere = recorded.clone();
        elsewhere.identity.host.boot_id = "another".into();
        let plan = StopPlan::abort(Duration::ZERO);
        let seen = stage
            .client
            .end_orphan(&elsewhere, &plan)
            .await
            .expect("a keeper");
        assert_eq!(seen.host, Host::Other);
        // The same pid with another start time is unrelated.
        let mut stranger = recorded.clone();
        stranger.identity.cgroup = None;
        for process in [&mut stranger.identity.command, &mut stranger.identity.shim] {
            process.pidfs_handle = None;
            process.start_ticks += 1;
            process.sid += 1;
        }
        let seen = stage
            .client
            .end_orphan(&stranger, &plan)
            .await
            .expect("a keeper");
        assert_eq!(
            (seen.shim, seen.command),
            (ProcessPresence::Gone, ProcessPresence::Gone)
        );
        assert_eq!(
            observe(stage, recorded).await.command,
            ProcessPresence::Same
        );

        let plan = StopPlan::abort(Duration::from_millis(300));
        let seen = stage
            .client
            .end_orphan(recorded, &plan)
            .await
            .expect("a keeper");
        assert_eq!(
            (seen.shim, seen.command),
            (ProcessPresence::Gone, ProcessPresence::Gone)
        );
        assert_ne!(seen.cgroup, CgroupSeen::Populated, "{seen:?}");
        assert!(seen.hints.is_empty(), "{seen:?}");
        let (process, host) = (recorded.identity.shim, recorded.identity.host.clone());
        let shim = stage.client.keeper_seen(process, host).await;
        assert_eq!(shim.expect("a keeper"), ProcessPresence::Gone);
    }
}
