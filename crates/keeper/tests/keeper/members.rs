//! Signals to members of a tree, and its listing.

use crate::{
    limits,
    stage::{Stage, until},
};
use kennel_keeper::client::{Fact, Kernel, Sent, SignalOutcome, SignalTarget, SignalledProcess};
use kennel_lifecycle::{RunId, Signal, StopStep, ladder::StopPlan};
use std::{
    collections::BTreeSet, fs, os::unix::process::CommandExt, process::Command, time::Duration,
};

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "a_signal_reaches_whom_its_target_names" => signal(stage).await,
        "a_tree_is_listed_with_what_holds_it" => list(stage).await,
        "tree_without_shim_is_listed_and_signalled" => shim_lost(stage).await,
        other => limits::play(other, stage).await,
    }
}

/// A leader, a member of its group, and an orphan in a session of its own; each records its pid, and each USR1 that it
/// gets.
const THREE: &str = "
    each() { trap \"echo usr1 >> $0/$1.got\" USR1; echo $2 > $0/$1; while :; do sleep 0.01; done; }
    (each member $(sh -c 'echo $PPID')) &
    (setsid sh -c 'trap \"echo usr1 >> $0/apart.got\" USR1; echo $$ > $0/apart; while :; do sleep 0.01; done' $0 &)
    each leader $$";

/// Returns how often it has got the signal.
fn got(stage: &Stage, name: &str) -> usize {
    let text = fs::read_to_string(stage.file(&format!("{name}.got"))).unwrap_or_default();
    text.lines().count()
}

async fn send_to_each(stage: &Stage, run: RunId, target: SignalTarget) -> Vec<SignalledProcess> {
    let usr1 = "SIGUSR1".parse::<Signal>().expect("a signal");
    let signalled = stage.client.signal(run, usr1, target, None).await;
    let Sent::Now(signalled) = signalled.expect("a keeper") else {
        panic!("it had no request id");
    };
    assert_eq!(signalled.unlisted, 0);
    signalled.signalled
}

fn delivered(signalled: &[SignalledProcess]) -> BTreeSet<i32> {
    let reached = signalled
        .iter()
        .filter(|s| s.result == SignalOutcome::Delivered);
    reached.map(|process| process.pid).collect()
}

async fn signal(stage: &mut Stage) {
    // An unrelated process, in no session or group of the run, but with its marker.
    let (run, spec) = stage.shell(THREE);
    let mut stranger = Command::new("sleep")
        .arg("1000")
        .env("KENNEL_RUN_ID", run.to_string())
        .process_group(0)
        .spawn()
        .expect("a stranger");
    stage.start(run, &spec).await;
    let leader = stage.pid("leader").await;
    let member = stage.pid("member").await;
    let apart = stage.pid("apart").await;
    let counts = |stage: &Stage| ["leader", "member", "apart"].map(|name| got(stage, name));

    let signalled = send_to_each(stage, run, SignalTarget::Leader).await;
    assert_eq!(delivered(&signalled), BTreeSet::from([leader]));
    assert_eq!(signalled.len(), 1);
    until(|| (counts(stage) == [1, 0, 0]).then_some(())).await;

    let signalled = delivered(&send_to_each(stage, run, SignalTarget::Group).await);
    assert!(
        signalled.contains(&leader) && signalled.contains(&member),
        "{signalled:?}"
    );
    assert!(!signalled.contains(&apart), "{signalled:?}");
    until(|| (counts(stage) == [2, 1, 0]).then_some(())).await;

    let signalled = delivered(&send_to_each(stage, run, SignalTarget::Tree).await);
    for pid in [leader, member, apart] {
        assert!(signalled.contains(&pid), "{pid} is not among {signalled:?}");
    }
    until(|| (counts(stage) == [3, 2, 1]).then_some(())).await;
    // USR1 would have ended the unrelated process.
    assert!(
        !signalled.contains(&stranger.id().cast_signed()),
        "{signalled:?}"
    );
    assert!(stranger.try_wait().expect("own child").is_none());
    stranger.kill().expect("it can be killed");
    stranger.wait().expect("it can be reaped");

    stage.client.stop(run, &StopPlan::abort(Duration::ZERO));
    let facts = stage.end(run).await;
    let sent = |fact: &&Fact| matches!(fact, Fact::SignalSent { signal, .. } if signal.number() == libc::SIGUSR1);
    assert_eq!(facts.iter().filter(sent).count(), 3, "{facts:?}");
    assert!(
        send_to_each(stage, run, SignalTarget::Tree)
            .await
            .is_empty()
    );
}

fn procfs_name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).expect("it is there");
    name.trim().to_owned()
}

async fn list(stage: &mut Stage) {
    let (run, spec) = stage.shell(THREE);
    let prepared = stage.start(run, &spec).await;
    let leader = stage.pid("leader").await;
    let member = stage.pid("member").await;
    let apart = stage.pid("apart").await;
    let listing = stage.client.tree(run).await.expect("a keeper");
    assert_eq!(listing.unlisted, 0);
    let find = |pid| {
        let found = listing.members.iter().find(|m| m.pid == pid);
        found.unwrap_or_else(|| panic!("{pid} is not among {listing:?}"))
    };
    let identity = &prepared.identity;
    assert_eq!(find(leader).start_ticks, identity.command.start_ticks);
    assert_eq!(find(leader).ppid, identity.shim.pid);
    assert_eq!(find(member).ppid, leader);
    assert_eq!((find(member).pgid, find(member).sid), (leader, leader));
    assert_eq!((find(apart).pgid, find(apart).sid), (apart, apart));
    // `apart` is an orphan: its parent is the shim, or the namespace's init.
    if stage.is_private() {
        let heir = procfs_name(find(apart).ppid);
        assert_eq!(heir, "kennel-init");
    } else {
        assert_eq!(find(apart).ppid, identity.shim.pid);
    }
    assert_eq!(find(leader).args.get(1).map(String::as_str), Some("-c"));
    assert!(find(leader).rss_bytes > 0);
    for m in &listing.members {
        assert!(m.holds.shim && !m.holds.keeper, "{m:?}");
        // A zombie is no longer listed in a control group.
        assert!(
            m.state == 'Z' || m.holds.cgroup == stage.has_cgroup(),
            "{m:?}"
        );
        assert_ne!(m.pid, identity.shim.pid);
        assert_ne!(m.name, "kennel-init");
    }
    stage.client.stop(run, &StopPlan::abort(Duration::ZERO));
    stage.end(run).await;
    let listing = stage.client.tree(run).await.expect("a keeper");
    assert!(listing.members.is_empty(), "{listing:?}");
}

async fn shim_lost(stage: &mut Stage) {
    let (run, mut spec) = stage.shell(&format!("trap '' TERM; {THREE}"));
    // The remaining processes get a grace that outlasts this check.
    spec.policy.stop.grace = Some(Duration::from_mins(1));
    let prepared = stage.start(run, &spec).await;
    let pids = [
        stage.pid("leader").await,
        stage.pid("member").await,
        stage.pid("apart").await,
    ];
    if stage.is_private() {
        return stage.ends_with_its_shim(run, &prepared).await;
    }
    // SAFETY: kill takes two integers; the shim is not reaped before its run has ended.
    let killed = unsafe { libc::kill(prepared.identity.shim.pid, libc::SIGKILL) };
    assert_eq!(killed, 0);
    let term = |facts: &[Fact]| {
        let is_term = |fact: &Fact| {
            matches!(
                fact,
                Fact::StopStep(StopStep {
                    signal: Signal::TERM,
                    ..
                })
            )
        };
        facts.iter().any(is_term)
    };
    stage.wait(run, term).await;
    let listing = stage.client.tree(run).await.expect("a keeper");
    for pid in pids {
        let found = listing.members.iter().find(|m| m.pid == pid);
        let holds = found.map(|m| m.holds);
        let holds = holds.unwrap_or_else(|| panic!("{pid} is not among {listing:?}"));
        assert!(holds.keeper && !holds.shim, "{listing:?}");
        assert_eq!(holds.cgroup, stage.has_cgroup(), "{listing:?}");
    }
    let reached = delivered(&send_to_each(stage, run, SignalTarget::Tree).await);
    assert!(pids.iter().all(|pid| reached.contains(pid)), "{reached:?}");
    stage.client.stop(run, &StopPlan::abort(Duration::ZERO));
    stage.end(run).await;
}
