//! Reports of a keeper about its host and the containment of runs.

use crate::{
    fleet::{end, groups_of_this_process, keeper_command, no_process_is_left, start},
    stage::{DEADLINE, Stage, until},
};
use kennel_keeper::client::{CapabilityName, ClientError, Fact, KeeperEvent, Kernel};
use kennel_lifecycle::{Containment, Gap, Proof, TreeVerdict, ladder::StopPlan};
use std::{
    ffi::CString,
    fs,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::Path,
    time::{Duration, Instant},
};

/// A test from outside, in a directory and a surrounding.
type Outside = fn(&Path, &str);

pub(crate) const ALL: &[(&str, Outside)] = &[
    // promise: N-4
    ("budget_of_control_groups_is_kept_and_reported", budgeted),
    // promise: N-5
    ("killed_idle_keeper_leaves_no_directory", idle_keeper_killed),
];

const SCENARIOS: [&str; 5] = [
    "capabilities_are_told_as_they_were_tried_out",
    "too_weakly_contained_run_is_refused",
    "run_with_unknown_need_is_refused",
    "budget",
    "idle",
];

pub(crate) fn plays(name: &str) -> bool {
    SCENARIOS.contains(&name)
}

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "capabilities_are_told_as_they_were_tried_out" => capabilities(stage),
        "too_weakly_contained_run_is_refused" => too_weak(stage).await,
        "run_with_unknown_need_is_refused" => unknown_need(stage).await,
        "budget" => budget(stage).await,
        "idle" => idle(stage).await,
        other => panic!("no scenario {other}"),
    }
}

/// Each surrounding removes certain capabilities; these are missing with a reason, and the others are not.
fn capabilities(stage: &mut Stage) {
    let names: Vec<CapabilityName> = stage.hello.capabilities.iter().map(|c| c.name).collect();
    assert_eq!(names.len(), CapabilityName::ALL.len(), "{names:?}");
    for name in CapabilityName::ALL {
        assert!(names.contains(name), "{name:?} in {names:?}");
    }
    let lacks = |name| stage.hello.lacks(name).map(str::to_owned);
    assert_eq!(lacks(CapabilityName::Cgroup).is_none(), stage.has_cgroup());
    let choice = stage.choice();
    if choice == "off" {
        for name in [CapabilityName::Cgroup, CapabilityName::CgroupKill] {
            let why = lacks(name).expect("it was switched off");
            assert!(why.contains("switched off"), "{why}");
        }
    }
    if choice == "no_clone3" {
        let why = lacks(CapabilityName::Clone3).expect("a filter refuses it");
        assert!(why.contains("not implemented"), "{why}");
        assert!(lacks(CapabilityName::CgroupClone).is_some());
    } else {
        assert_eq!(lacks(CapabilityName::Clone3), None);
    }
    if choice == "old_kernel" {
        assert!(lacks(CapabilityName::Pidfs).is_some());
        assert!(lacks(CapabilityName::PidfdGroupSignal).is_some());
    }
    if stage.has_cgroup() {
        // The kernel's files of a fresh control group, read without the keeper.
        let base = stage.hello.cgroup_base.as_ref().expect("there is one");
        let file = |name: &str| base.join(name).exists();
        assert_eq!(
            lacks(CapabilityName::CgroupKill).is_none(),
            file("cgroup.kill")
        );
        assert_eq!(
            lacks(CapabilityName::CgroupFreeze).is_none(),
            file("cgroup.freeze")
        );
        let controllers = std::fs::read_to_string(base.join("cgroup.controllers"));
        let controllers = controllers.expect("every group has the list");
        for (name, controller) in [
            (CapabilityName::CgroupMemory, "memory"),
            (CapabilityName::CgroupPids, "pids"),
            (CapabilityName::CgroupCpu, "cpu"),
        ] {
            let delegated = controllers.split_whitespace().any(|c| c == controller);
            assert_eq!(lacks(name).is_none(), delegated, "{controller}");
        }
        // These tests own the directory, so it cannot be sealed.
        assert!(lacks(CapabilityName::CgroupSealed).is_some());
    }
}

fn end_at_once() -> StopPlan {
    StopPlan::abort(Duration::ZERO)
}

/// Each rung up to the reached one is granted; the next one is refused, and nothing was made.
async fn too_weak(stage: &mut Stage) {
    let reached = Containment::reached(stage.has_cgroup(), stage.pid_namespace());
    for least in [
        Containment::Subreaper,
        Containment::Cgroup,
        Containment::PrivatePidns,
    ] {
        let (run, mut spec) = stage.shell("echo ran > $0/ran; sleep 1000");
        spec.policy.min_containment = Some(least);
        match stage.prepare(run, &spec).await {
            Ok(prepared) => {
                assert!(least <= reached, "{least:?}");
                assert_eq!(prepared.held.by, reached);
                assert!(prepared.held.gaps.contains(&Gap::WorkHandedToDaemons));
                stage.client.shut_gate(run);
                stage.end(run).await;
            }
            Err(ClientError::TooWeak { wanted, held }) => {
                assert!(least > reached, "{least:?}");
                assert_eq!((wanted, held.by), (least, reached));
            }
            Err(other) => panic!("{other}"),
        }
        assert!(!stage.file("ran").exists());
    }
    if let Ok(base) = &stage.hello.cgroup_base {
        until(|| (runs_below(base) == 0).then_some(())).await;
    }
}

/// A server of a later version needs of its keeper what this one does not know.
async fn unknown_need(stage: &mut Stage) {
    let (run, mut spec) = stage.shell("echo ran > $0/ran");
    spec.policy.needs = vec!["sandbox".into(), "of_tomorrow".into()];
    let refused = stage.prepare(run, &spec).await.map(drop);
    assert!(
        matches!(refused, Err(ClientError::KeeperOlder)),
        "{refused:?}"
    );
    spec.policy.needs.pop();
    stage
        .prepare(run, &spec)
        .await
        .expect("a child at its gate");
    stage.client.shut_gate(run);
    stage.end(run).await;
}

fn runs_below(base: &Path) -> usize {
    let entries = fs::read_dir(base).expect("the base").flatten();
    let names = entries.map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("run-"))
        .count()
}

/// Number of directories that the keeper of [`budgeted`] may have: the one for all runs, and one run's.
const BUDGET: &str = "2";

/// Starts a keeper in a control group of its own with a budget that one run uses up.
pub(crate) fn budgeted(dir: &Path, choice: &str) {
    let group = groups_of_this_process().map(|own| {
        let name = format!("kennel-budget-{}", std::process::id());
        own.join(name)
    });
    let group = group.filter(|group| choice != "off" && fs::create_dir(group).is_ok());
    let mut command = keeper_command(dir, choice, "budget");
    if let Some(group) = &group {
        fs::write(group.join("cgroup.max.descendants"), BUDGET).expect("a budget");
        let procs = CString::new(group.join("cgroup.procs").as_os_str().as_bytes());
        let procs = procs.expect("a path");
        let enter = move || {
            let flags = nix::fcntl::OFlag::O_WRONLY;
            let file = nix::fcntl::open(procs.as_c_str(), flags, nix::sys::stat::Mode::empty())?;
            nix::unistd::write(&file, b"0")?;
            Ok(())
        };
        // SAFETY: `enter` makes system calls only.
        unsafe { command.pre_exec(enter) };
        fs::write(dir.join("budgeted"), "").expect("a file");
    }
    assert_eq!(end(command.spawn().expect("a keeper")).code(), Some(0));
    no_process_is_left(dir);
    if let Some(group) = group {
        // An exiting process has no command line any more, but is still in its group.
        let give_up = Instant::now() + DEADLINE;
        while let Err(error) = fs::remove_dir(&group) {
            assert!(Instant::now() < give_up, "left below it: {error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Where there is a budget, the second run has no control group and reports that, unless its spec refuses it. Where
/// there are no control groups at all, neither has the first.
async fn budget(stage: &mut Stage) {
    let budgeted = stage.file("budgeted").exists();
    assert_eq!(budgeted, stage.has_cgroup());
    let (first, spec) = stage.shell("sleep 1000");
    let prepared = stage.start(first, &spec).await;
    assert_eq!(prepared.held.cgroup_refused().is_none(), budgeted);

    let (second, spec) = stage.shell("sleep 1000");
    let prepared = stage.start(second, &spec).await;
    assert_eq!(prepared.held.by, Containment::Subreaper);
    assert_eq!(prepared.identity.cgroup, None);
    let why = prepared.held.cgroup_refused().expect("there is a reason");
    if budgeted {
        assert!(why.contains("temporarily unavailable"), "{why}");
    }
    stage.client.stop(second, &end_at_once());
    let facts = stage.end(second).await;
    let proof = Fact::TreeEnded(TreeVerdict::Empty(Proof::Echild));
    assert_eq!(facts.last(), Some(&proof));

    let (strict, mut spec) = stage.shell("echo ran > $0/ran");
    spec.policy.min_containment = Some(Containment::Cgroup);
    let refused = stage.prepare(strict, &spec).await;
    assert!(
        matches!(&refused, Err(ClientError::TooWeak { held, .. }) if held.cgroup_refused().is_some()),
        "{refused:?}"
    );
    stage.client.stop(first, &end_at_once());
    stage.end(first).await;
    if budgeted {
        // The budget is free again when the directory is removed, after the run's end.
        let base = stage.hello.cgroup_base.clone().expect("there is one");
        until(|| (runs_below(&base) == 0).then_some(())).await;
        let prepared = stage.start(strict, &spec).await;
        assert_eq!(prepared.held.by, Containment::Cgroup);
        stage.end(strict).await;
    }
    assert_eq!(stage.file("ran").exists(), budgeted);
}

/// Kills an idle keeper: its idle shims remove its directory.
pub(crate) fn idle_keeper_killed(dir: &Path, choice: &str) {
    let mut keeper = start(dir, choice, "idle");
    let base = read_when_there(&dir.join("base"));
    wait_for_idle_shim(keeper.id());
    keeper.kill().expect("it can be killed");
    keeper.wait().expect("it can be waited for");
    no_process_is_left(dir);
    let base = base.trim();
    assert_eq!(
        base.is_empty(),
        choice == "off" || groups_of_this_process().is_none()
    );
    assert!(base.is_empty() || !Path::new(base).exists(), "{base}");
}

/// Shims are forked ahead when the keeper has nothing else to do, which may be after its server has begun.
fn wait_for_idle_shim(keeper: u32) {
    let children = format!("/proc/{keeper}/task/{keeper}/children");
    let name = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm"));
    let is_shim = |pid: &str| name(pid).is_ok_and(|name| name.trim() == "kennel-shim");
    let has_one = |pids: String| pids.split_whitespace().any(is_shim);
    let deadline = Instant::now() + DEADLINE;
    while !fs::read_to_string(&children).is_ok_and(has_one) {
        assert!(Instant::now() < deadline, "no shim is forked ahead");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Prints the path of the control groups, and is idle once a run has ended.
async fn idle(stage: &mut Stage) {
    let (run, spec) = stage.shell("exit 0");
    stage.start(run, &spec).await;
    stage.end(run).await;
    let base = stage.hello.cgroup_base.as_ref();
    let base = base.map_or_else(|_| String::new(), |base| base.display().to_string());
    fs::write(stage.file("base.new"), format!("{base}\n")).expect("a file");
    fs::rename(stage.file("base.new"), stage.file("base")).expect("it is renamed");
    while stage.event().await != KeeperEvent::Gone {}
}

fn read_when_there(file: &Path) -> String {
    let give_up = Instant::now() + DEADLINE;
    loop {
        if let Ok(text) = fs::read_to_string(file) {
            return text;
        }
        assert!(Instant::now() < give_up, "{} is not there", file.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}
