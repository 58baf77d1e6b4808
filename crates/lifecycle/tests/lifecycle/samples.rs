//! One sensible value of each kind, and golden files.

use kennel_lifecycle::{
    Entry, Exit, HostIdentity, Leftover, Leftovers, MemoryKills, ProcessIdentity, RunIdentity,
    Signal, SignalScope, SignalSender, StartFailure, StartStage, StopOrder, StopReason, StopStep,
    Stuck, StuckProcess, Timestamp, Usage,
};
use std::{fs, path::Path, time::Duration};

pub(crate) const GRACE: Duration = Duration::from_secs(5);

pub(crate) const MEMORY_KILLS: MemoryKills = MemoryKills {
    kills: 2,
    memory_max: Some(64 << 20),
};

pub(crate) const USAGE: Usage = Usage {
    cpu_user_us: Some(1_500_000),
    cpu_system_us: Some(20_000),
    cpu_throttled_us: None,
    memory_peak_bytes: Some(5 << 20),
    memory_kills: Some(2),
    pids_peak: Some(9),
    io_read_bytes: Some(4096),
    io_written_bytes: Some(0),
    present: None,
};

pub(crate) fn identity() -> Box<RunIdentity> {
    let process = |pid| ProcessIdentity {
        pid,
        pgid: pid,
        sid: pid,
        start_ticks: 7,
        pidfs_handle: Some(9),
    };
    Box::new(RunIdentity {
        command: process(42),
        shim: process(41),
        cgroup: None,
        host: HostIdentity {
            boot_id: "b".into(),
            pidns_inode: 1,
            init_start_ticks: Some(7),
        },
    })
}

pub(crate) fn abort(grace: Duration) -> StopOrder {
    StopOrder {
        reason: StopReason::Abort {
            by: "uid:0".into(),
            request_id: None,
        },
        grace,
    }
}

pub(crate) fn failure(stage: StartStage) -> StartFailure {
    StartFailure {
        stage,
        errno: Some(2),
        path: Some("/x".into()),
    }
}

pub(crate) fn killed_by(signal: kennel_lifecycle::Signal) -> Exit {
    Exit::Signal {
        signal,
        core_dumped: false,
    }
}

/// A round of a signal that reached one process and was refused by one.
pub(crate) fn step(at: i64, signal: Signal) -> StopStep {
    StopStep {
        at: Timestamp(at),
        signal,
        scope: SignalScope::Tree,
        sender: SignalSender::Keeper,
        delivered: 1,
        gone: 0,
        refused: 1,
        errno: Some(1),
    }
}

/// A process that outlived the leader.
pub(crate) fn left() -> Leftovers {
    Leftovers {
        processes: vec![Leftover {
            pid: 43,
            start_ticks: 8,
            name: "worker".into(),
        }],
        unlisted: 0,
    }
}

/// A process that SIGKILL does not end.
pub(crate) fn stuck() -> Stuck {
    Stuck {
        processes: vec![StuckProcess {
            pid: 43,
            start_ticks: 8,
            state: 'D',
            why: "it waits".into(),
        }],
        unlisted: 0,
    }
}

/// Compares with the file of that name beside the tests; `UPDATE=1` writes it anew.
pub(crate) fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, text).unwrap();
    }
    let agreed = fs::read_to_string(&path).unwrap_or_default();
    if let Some((old, new)) = agreed.lines().zip(text.lines()).find(|(a, b)| a != b) {
        panic!("{name}: agreed is\n  {old}\nbut there is\n  {new}");
    }
    assert_eq!(
        agreed.len(),
        text.len(),
        "{name} has more or fewer lines than agreed"
    );
}

/// The entry of a row that is written.
pub(crate) fn recorded() -> Entry {
    Entry::Recorded {
        identity: identity(),
        output_offsets: [0; 2],
    }
}
