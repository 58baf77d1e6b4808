//! Orphans over real processes, with numbers and groups as they may be met.

use super::*;
use crate::keeper::observe::Markers;
use kennel_lifecycle::{ProcessIdentity, RunId, RunIdentity, recovery::CgroupSeen};
use std::{
    fs,
    process::{Child, Command},
    time::Duration,
};

fn child() -> Child {
    let mut command = Command::new("sleep");
    command.arg("1000").spawn().expect("sleep starts")
}

fn end(mut child: Child) {
    child.kill().expect("it can be killed");
    child.wait().expect("it can be reaped");
}

/// As it was recorded, of somebody who has been reaped since.
fn gone() -> ProcessIdentity {
    let child = child();
    let pid = child.id().cast_signed();
    let fd = PidFd::open(pid).expect("a pidfd");
    let identity = identity::of(pid, &fd).expect("it is there");
    end(child);
    identity
}

/// A run of which nobody is left, in this group.
fn recorded(group: Option<kennel_lifecycle::CgroupIdentity>) -> Recorded {
    Recorded {
        run: RunId::from_u128(7),
        identity: RunIdentity {
            command: gone(),
            shim: gone(),
            cgroup: group,
            host: identity::host().expect("this host"),
        },
        run_dir: "/nonexistent".into(),
    }
}

#[test]
fn a_group_that_cannot_be_read_may_hold_somebody() {
    let dir = tempfile::tempdir().expect("a directory");
    let group = cgroup::identify(dir.path()).expect("it is there");
    let events = dir.path().join("cgroup.events");
    // Any error but that of a directory that is gone.
    fs::create_dir(&events).expect("a directory");
    let recorded = recorded(Some(group));
    let host = identity::host().expect("this host");
    let look = || observe::observe(&recorded, &host, &mut Markers::default(), 0).cgroup;
    assert_eq!(look(), CgroupSeen::Unknown);

    let now = 1_000;
    let plan = StopPlan::abort(Duration::ZERO);
    let mut orphan = Orphan::new(1, recorded.clone(), &plan, now);
    let over = |orphan: &mut Orphan, now| orphan.step(&host, &Sessions::look_up(), now);
    assert!(!over(&mut orphan, now), "it may be read in the next round");
    assert!(over(&mut orphan, now + LOOK_ON_MS));
    assert!(orphan.stuck.is_empty(), "{:?}", orphan.stuck);
    assert_eq!(look(), CgroupSeen::Unknown);

    fs::remove_dir(&events).expect("it goes");
    fs::write(&events, "populated 0\nfrozen 0\n").expect("a file");
    let mut orphan = Orphan::new(1, recorded.clone(), &plan, now);
    assert!(over(&mut orphan, now));
    assert_eq!(look(), CgroupSeen::Empty);
}
