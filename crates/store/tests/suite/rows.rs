//! Rows, openings and closings for the cases to write.

use kennel_lifecycle::{
    CgroupIdentity, Containment, EndReason, Entry, Exit, Facets, Gap, Held, HostIdentity,
    KeeperEpoch, Leftover, Leftovers, NodeId, Outcome, ProcessIdentity, Proof, RecordedSpec, RunId,
    RunIdentity, RunKind, RunSpec, Signal, SignalScope, SignalSender, StopCertificate, StopCommand,
    StopCommandEnd, StopInput, StopOrder, StopReason, StopStep, StreamsEnd, Timestamp, TreeVerdict,
    Usage,
};
use kennel_store::{
    Age, Change, Closure, EntriesEnd, EntriesText, EntryList, EntryPlace, NewRun, Opening, RunRow,
    Times,
};
use std::{sync::Arc, time::Duration};

pub(crate) const NODE: u128 = 7;
pub(crate) const EPOCH: u128 = 70;

pub(crate) fn opening(node: u128, epoch: u128) -> Opening {
    Opening {
        node: NodeId::from_u128(node),
        node_name: format!("node-{node}"),
        address: format!("unix:/run/{node}.sock"),
        keeper_epoch: KeeperEpoch::from_u128(epoch),
        keeper: process(4000),
        host: host(),
        held: Vec::new(),
        above: 0,
        lease: Duration::ZERO,
        gone: None,
        draining: None,
        now: Timestamp(1_000),
    }
}

pub(crate) fn host() -> HostIdentity {
    HostIdentity {
        boot_id: "8f4e2c52-5f0a-4a55-8a3a-6a7a1c2d3e4f".into(),
        pidns_inode: 4_026_531_836,
        init_start_ticks: Some(7),
    }
}

pub(crate) fn process(pid: i32) -> ProcessIdentity {
    ProcessIdentity {
        pid,
        pgid: pid + 1,
        sid: pid + 2,
        // Above the signed maximum, to check that no bit is lost.
        start_ticks: u64::MAX - 5,
        pidfs_handle: Some(1 << 63),
    }
}

/// An open row under `NODE`, generation 1, with every optional part present.
pub(crate) fn new_run(id: u128) -> NewRun {
    NewRun {
        run: RunId::from_u128(id),
        owner: "uid:1000".into(),
        attempt: 1,
        node: NodeId::from_u128(NODE),
        generation: 1,
        keeper_epoch: KeeperEpoch::from_u128(EPOCH),
        identity: Some(RunIdentity {
            command: process(5000),
            shim: process(6000),
            cgroup: Some(CgroupIdentity {
                path: "/sys/fs/cgroup/kennel/run-1".into(),
                inode: u64::MAX,
            }),
            host: host(),
        }),
        held: Some(Held {
            by: Containment::Cgroup,
            gaps: vec![Gap::NoCgroup("why \"so\"".into()), Gap::OwnerMayMove],
        }),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        restarted_from: Some(RunId::from_u128(77)),
        request_key: None,
        spec: spec(|spec| {
            spec.policy.kind = RunKind::Job;
            spec.policy.stop.grace = Some(Duration::from_millis(2_500));
            spec.command.argv = ["sh", "-c", "printf 'ä\u{1}\n'"].map(Into::into).into();
            spec.command.env = [("NAME".into(), String::new())].into();
            spec.labels = [("team", "blue \"quoted\" ü"), ("a.b/c", "")]
                .map(|(key, value)| (key.into(), value.into()))
                .into();
        }),
        spec_digest: vec![0, 1, 254, 255],
        spec_digest_version: 1,
        created: Timestamp(1_700_000_000_000_000),
        // The store assigns these ages to runs inserted in id order.
        age: Age(1_700_000_000_000_000 + i64::try_from(id).unwrap_or(0)),
    }
}

/// A recorded spec with these values.
fn spec(edit: impl FnOnce(&mut RunSpec)) -> Arc<RecordedSpec> {
    let mut spec = RunSpec::default();
    edit(&mut spec);
    Arc::new(spec.into())
}

/// Returns the row with other values in its spec.
pub(crate) fn respec(new: NewRun, edit: impl FnOnce(&mut RunSpec)) -> NewRun {
    let mut other = RunSpec::clone(&new.spec);
    edit(&mut other);
    NewRun {
        spec: Arc::new(other.into()),
        ..new
    }
}

/// Returns a certificate with every field, and numbers at the bounds of a column.
fn certificate() -> StopCertificate {
    let step = StopStep {
        at: Timestamp(1_700_000_000_000_001),
        signal: Signal::TERM,
        scope: SignalScope::Tree,
        sender: SignalSender::Keeper,
        delivered: 2,
        gone: 1,
        refused: u32::MAX,
        errno: Some(1),
    };
    let killed = StopStep {
        signal: Signal::KILL,
        scope: SignalScope::ControlGroup,
        errno: None,
        ..step
    };
    let by_shim = StopStep {
        scope: SignalScope::ShimChildren,
        sender: SignalSender::Shim,
        ..killed
    };
    let with_init = StopStep {
        scope: SignalScope::PidNamespace,
        ..killed
    };
    StopCertificate {
        steps: vec![step, killed, by_shim, with_init],
        steps_unlisted: 3,
        leftovers: Leftovers {
            processes: vec![Leftover {
                pid: i32::MAX,
                start_ticks: u64::MAX,
                name: "sh \"ü\u{1}".into(),
            }],
            unlisted: 4,
        },
        census: Some(Timestamp(-5)),
        inputs: vec![StopInput {
            at: Timestamp(5_500_000),
            bytes: Some(6),
            written: 4,
        }],
        commands: vec![StopCommand {
            at: Timestamp(5_600_000),
            name: "/bin/sh".into(),
            end: StopCommandEnd::NotStarted(Some(2)),
        }],
        usage: Some(Box::new(USAGE)),
    }
}

const USAGE: Usage = Usage {
    cpu_user_us: Some(1_500_000),
    cpu_system_us: Some(0),
    cpu_throttled_us: None,
    memory_peak_bytes: Some(u64::MAX),
    memory_kills: Some(2),
    pids_peak: None,
    io_read_bytes: Some(4096),
    io_written_bytes: Some(0),
    present: None,
};

/// Returns a clean end with every time known.
pub(crate) fn closure() -> Closure {
    Closure {
        outcome: Outcome {
            reason: EndReason::Exited,
            exit: Some(Exit::Code(0)),
            tree: TreeVerdict::Empty(Proof::CgroupAndEchild),
            streams: Some(StreamsEnd::Eof),
            certificate: certificate(),
        },
        times: Times {
            started: Some(Timestamp(2)),
            leader_exited: Some(Timestamp(3)),
            streams_closed: Some(Timestamp(4)),
            tree_empty: Some(Timestamp(5)),
            ended: Some(Timestamp(6)),
        },
        entries: Some(entries()),
        has_files: true,
    }
}

/// Returns the entries of a run that has ended.
pub(crate) fn entries() -> EntriesText {
    let mut list = EntryList::default();
    let place = EntryPlace {
        seq: 1,
        at: Timestamp(2),
        attempt: 1,
        lens: [0, 0],
    };
    list.push(place, r#"{"warning":{"message":"ü \u0000 'quoted'"}}"#);
    let end = EntriesEnd {
        seq: 9,
        lens: [u64::MAX, 7],
    };
    list.text(Some(end), true)
}

/// Returns a requested stop.
pub(super) fn order() -> StopOrder {
    StopOrder {
        reason: StopReason::Abort {
            by: "uid:7".into(),
            request_id: Some("r".into()),
        },
        grace: Duration::from_millis(1500),
    }
}

/// The printed form of a row may get into a log.
#[test]
fn debug_of_row_omits_command_arguments() {
    let printed = format!("{:?}", new_run(1));
    assert!(
        printed.contains("uid:1000") && !printed.contains("printf"),
        "{printed}"
    );
}

/// Returns the row as the node log restores it.
pub(crate) fn logged(row: &RunRow) -> Result<RunRow, String> {
    let change = Change::Snapshot(Box::new(row.clone()));
    match Change::decode(&change.encode())? {
        Change::Snapshot(row) => Ok(*row),
        other => Err(format!("{other:?}")),
    }
}

/// Returns facets with every part present.
pub(crate) fn facets() -> Facets {
    let set = [("session".to_owned(), "s \"1\"\n".to_owned())].into();
    let entry = Entry::Annotated {
        version: 3,
        set,
        removed: ["url".to_owned()].into(),
        by: "uid:0".into(),
    };
    Facets::of([(Timestamp(5), 1, &entry)])
}
