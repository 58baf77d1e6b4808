//! Trees over real processes.

use super::*;
use std::{
    os::unix::process::CommandExt,
    process::{Child, Command},
};

/// Starts a child of this test in a session of its own, as a new shim is.
fn session_leader() -> Child {
    let mut command = Command::new("sleep");
    command.arg("1000");
    // SAFETY: setsid(2) is async-signal-safe.
    unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(|_| ())?)) };
    command.spawn().expect("sleep starts")
}

fn pidfd(child: &Child) -> PidFd {
    PidFd::open(child.id().cast_signed()).expect("a pidfd")
}

fn end(mut child: Child) {
    child.kill().expect("it can be killed");
    child.wait().expect("it can be reaped");
}

// promise: T-21
#[test]
fn truncated_list_has_the_missing_count() {
    let children = [session_leader(), session_leader(), session_leader()];
    let tree = Tree {
        run: RunId::from_u128(7),
        leader: pidfd(&children[0]),
        leader_pid: children[0].id().cast_signed(),
        session: Session::default(),
        lineage: Lineage::default(),
        root: Root::Shim(std::process::id().cast_signed()),
        foreign: None,
        cgroup: None,
        init: None,
    };
    let list = |most| {
        let mut list = ListMembers::new(&tree, most);
        while !list.step(&tree) {}
        (list.listed, list.unlisted)
    };
    let (all, none) = list(usize::MAX);
    assert!(all.len() >= children.len() && none == 0);
    let (two, missing) = list(2);
    assert_eq!(two.len(), 2);
    assert!(missing >= 1);
    assert!(two[0].0 < two[1].0);
    children.into_iter().for_each(end);
}

#[test]
fn reused_session_id_yields_no_member() {
    let gone = session_leader();
    let leader = pidfd(&gone);
    end(gone);
    // The pid of the reaped leader is reused by an unrelated process.
    let stranger = session_leader();
    let mut tree = Tree {
        run: RunId::from_u128(7),
        leader,
        leader_pid: stranger.id().cast_signed(),
        session: Session::default(),
        lineage: Lineage::default(),
        root: Root::Lost,
        foreign: None,
        cgroup: None,
        init: None,
    };
    assert!(tree.members().is_empty());
    // The leader itself is a member while it lives.
    tree.leader = pidfd(&stranger);
    assert_eq!(tree.members().len(), 1);
    end(stranger);
}

/// Returns the number of a session leader whose child in it becomes a child of this test when it exits.
fn session_with_child() -> (Child, i32) {
    // SAFETY: prctl with these arguments takes integers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 1000 & read line"]);
    command.stdin(std::process::Stdio::piped());
    // SAFETY: setsid(2) is async-signal-safe.
    unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(|_| ())?)) };
    let leader = command.spawn().expect("sh starts");
    let child = loop {
        if let [child] = procfs::descendants(leader.id().cast_signed())[..] {
            break child;
        }
        std::thread::yield_now();
    };
    (leader, child)
}

fn end_orphan(pid: i32) {
    PidFd::open(pid).expect("a pidfd").signal(Signal::KILL);
    crate::reap::await_end(pid).expect("it is a child by now");
}

// promise: I-10
#[test]
fn session_without_leader_excludes_unrelated_process() {
    let (leader, child) = session_with_child();
    let tree = |fd| Tree {
        run: RunId::from_u128(7),
        leader: fd,
        leader_pid: leader.id().cast_signed(),
        session: Session::default(),
        lineage: Lineage::default(),
        root: Root::Lost,
        foreign: None,
        cgroup: None,
        init: None,
    };
    let own = tree(pidfd(&leader));
    own.learn_session(&own.members());
    let late = tree(pidfd(&leader));
    // `strange` has the pidfd of another leader, which was reaped before.
    let gone = session_leader();
    let strange = tree(pidfd(&gone));
    end(gone);
    let pid = leader.id().cast_signed();
    PidFd::open(pid).expect("a pidfd").signal(Signal::KILL);
    let ended = || procfs::stat(pid).is_ok_and(|stat| stat.is_dead());
    while !ended() || procfs::stat(child).expect("it lives").ppid == pid {
        std::thread::yield_now();
    }
    // A session id is not reused while a member lives, its leader reaped or not.
    assert!(own.members().contains_key(&child));
    end(leader);
    assert!(own.members().contains_key(&child));
    assert!(late.members().is_empty(), "it has not looked in time");
    assert!(strange.members().is_empty());
    end_orphan(child);
    assert!(own.members().is_empty());
}

#[test]
fn leader_is_signalled_first_then_others_by_age() {
    let own = procfs::stat(std::process::id().cast_signed()).expect("it runs");
    // Pids wrap, so a low pid may be younger.
    let members = [(50, 7), (9, 9), (60, 8), (61, 8), (70, 5)];
    let members = members.map(|(pid, start_ticks)| (pid, Stat { start_ticks, ..own }));
    let order = each::last_first(members.to_vec(), 50);
    let order: Vec<i32> = order.into_iter().rev().map(|(pid, _)| pid).collect();
    assert_eq!(order, [50, 70, 60, 61, 9]);
}
