//! Orphans over real processes, with all kinds of numbers and groups.

use super::*;
use crate::{keeper::observe::Markers, sleeper::Sleeper};
use kennel_lifecycle::{ProcessIdentity, RunId, RunIdentity, recovery::CgroupSeen};
use std::{fs, process::Command, time::Duration};

/// Starts a process in a session of its own, as each command of a run is.
fn session_leader() -> Sleeper {
    let child = Sleeper::of(Command::new("setsid").args(["sleep", "1000"]));
    let pid = child.pid();
    while procfs::stat(pid).is_ok_and(|stat| stat.sid != pid) {
        std::thread::yield_now();
    }
    child
}

/// Returns the recorded identity of a process that has been reaped since.
fn gone() -> ProcessIdentity {
    Sleeper::new().identity()
}

/// Returns a run without living processes, in this group.
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

// promise: T-10a
#[test]
fn unreadable_group_may_hold_a_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let group = cgroup::identify(dir.path()).expect("it is there");
    let events = dir.path().join("cgroup.events");
    // Reading a directory fails with an error other than a removed group's.
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

// promise: R-3a
#[test]
fn next_start_resumes_recorded_termination_steps() {
    let dir = tempfile::tempdir().expect("a directory");
    let leader = session_leader();
    let mut recorded = recorded(None);
    recorded.identity.command = leader.identity();
    recorded.run_dir = dir.path().to_owned();
    let host = identity::host().expect("this host");
    let look = || observe::observe(&recorded, &host, &mut Markers::default(), 0);
    assert!(!look().end_begun);
    let plan = StopPlan::abort(Duration::from_hours(1));

    let mut orphan = Orphan::new(1, recorded.clone(), &plan, 0);
    orphan.write_down();
    assert!(look().end_begun && look().steps.is_empty(), "no signal yet");
    assert!(!orphan.step(&host, &Sessions::look_up(), 0));
    // The first keeper dies here.
    drop(leader);
    let seen = look();
    assert_eq!(seen.command, ProcessPresence::Gone);
    let sent: Vec<Signal> = seen.steps.iter().map(|step| step.signal).collect();
    assert_eq!(sent, [Signal::TERM]);
    let next = Orphan::new(1, recorded.clone(), &plan, 0);
    assert_eq!(next.steps, seen.steps);
}

#[test]
fn process_in_our_session_is_not_a_member() {
    let (leader, _stranger) = (Sleeper::new(), Sleeper::new());
    let mut recorded = recorded(None);
    recorded.identity.command = leader.identity();
    let mut orphan = Orphan::new(1, recorded, &StopPlan::abort(Duration::ZERO), 0);
    // `look` finds members without signalling them.
    let shim = ProcessLookup::Gone;
    orphan.look(&shim, &Sessions::look_up());
    let members: Vec<i32> = orphan.members.keys().copied().collect();
    assert_eq!(members, [leader.pid()]);
}

// promise: I-9
#[test]
fn descendants_of_a_reused_pid_are_no_members() {
    let root = child_with_child();
    let pid = root.pid();
    let below = procfs::descendants(pid);
    let [below] = below[..] else {
        panic!("{below:?}")
    };
    let mut orphan = Orphan::new(1, recorded(None), &StopPlan::abort(Duration::ZERO), 0);
    let is_member = |orphan: &Orphan, shim: &ProcessLookup| {
        orphan.is_member(below, &[pid], shim, &HashSet::new())
    };
    let ended = || Sleeper::new().pidfd();
    // Unrelated processes got the pids of a member and of the shim.
    orphan.members.insert(pid, ended());
    assert!(!is_member(&orphan, &ProcessLookup::Gone));
    orphan.members.clear();
    orphan.recorded.identity.shim.pid = pid;
    assert!(!is_member(&orphan, &ProcessLookup::Same(ended())));

    let same = || root.pidfd();
    assert!(is_member(&orphan, &ProcessLookup::Same(same())));
    orphan.members.insert(pid, same());
    assert!(is_member(&orphan, &ProcessLookup::Gone));
    PidFd::open(below).expect("a pidfd").signal(Signal::KILL);
}

// promise: T-40
#[test]
fn only_a_sleeping_shim_counts_as_hung() {
    let host = identity::host().expect("this host");
    let sessions = Sessions::look_up();
    let busy = Sleeper::of(Command::new("sh").args(["-c", "while :; do :; done"]));
    // A process that has just begun is not asleep yet.
    let idle = Sleeper::new();
    for (shim, state) in [(&busy, b'R'), (&idle, b'S')] {
        while !procfs::stat(shim.pid()).is_ok_and(|shim| shim.state == state) {
            std::thread::yield_now();
        }
    }
    for (shim, ends) in [(idle, true), (busy, false)] {
        let mut recorded = recorded(None);
        recorded.identity.shim = shim.identity();
        let mut orphan = Orphan::new(1, recorded, &StopPlan::abort(Duration::ZERO), 0);
        // A shim that is being killed is not asleep, and may be seen running once more.
        let counts_as_hung = (0..2 * ASLEEP_MAX).any(|_| {
            orphan.step(&host, &sessions, 0);
            orphan.asleep >= ASLEEP_MAX
        });
        assert_eq!(counts_as_hung, ends);
        while ends && !shim.pidfd().has_ended() {
            std::thread::yield_now();
        }
        assert_eq!(shim.pidfd().has_ended(), ends);
    }
}

/// Starts a process with exactly one child.
fn child_with_child() -> Sleeper {
    let child = Sleeper::of(Command::new("sh").args(["-c", "sleep 1000 & wait"]));
    while procfs::descendants(child.pid()).is_empty() {
        std::thread::yield_now();
    }
    child
}
