//! Every way to end, there and back.

use super::{
    Bed,
    rows::{EPOCH, NODE, closure, new_run, opening},
};
use kennel_lifecycle::{
    Deadline, EndReason, Exit, Leftover, Leftovers, Limit, MemoryKills, Proof, Signal,
    StartFailure, StartStage, StreamsEnd, TreeVerdict,
};
use kennel_store::StoredState;

pub(super) async fn every_end_is_read_back_as_it_was(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let mut ends = Vec::new();
    for reason in reasons() {
        let mut end = closure();
        end.outcome.reason = reason;
        ends.push(end);
    }
    for exit in exits() {
        let mut end = closure();
        end.outcome.exit = exit;
        ends.push(end);
    }
    for tree in verdicts() {
        let mut end = closure();
        end.outcome.tree = tree;
        ends.push(end);
    }
    for streams in [
        None,
        Some(StreamsEnd::Eof),
        Some(StreamsEnd::Cut),
        Some(StreamsEnd::Lost),
    ] {
        let mut end = closure();
        end.outcome.streams = streams;
        ends.push(end);
    }

    for (id, end) in (1..).zip(&ends) {
        let new = new_run(id);
        // Both ways to a closed row: over an open one, and where none is.
        if id % 2 == 0 {
            bed.store.insert(&new).await.unwrap();
        }
        bed.store.close(&new, end).await.unwrap();
        let row = bed.store.get(new.run).await.unwrap().unwrap();
        assert_eq!(row.outcome.as_ref(), Some(&end.outcome));
        assert_eq!(row.state, StoredState::Ended(end.outcome.state()));
        assert_eq!(row.times, end.times);
    }
}

fn reasons() -> Vec<EndReason> {
    let stages = [
        StartStage::Prepare,
        StartStage::Cgroup,
        StartStage::Fork,
        StartStage::Session,
        StartStage::Stdio,
        StartStage::WorkDir,
        StartStage::Limits,
        StartStage::Record,
        StartStage::Gate,
        StartStage::Exec,
        StartStage::Namespace,
    ];
    let mut reasons = vec![
        EndReason::Exited,
        EndReason::Aborted {
            by: "uid:0 \"x\"".into(),
            request_id: Some("r\0-1".into()),
        },
        EndReason::Aborted {
            by: "uid:0".into(),
            request_id: None,
        },
        EndReason::StartFailed(StartFailure {
            stage: StartStage::Exec,
            errno: None,
            path: None,
        }),
        EndReason::Fenced { by: "uid:0".into() },
        EndReason::Restarted {
            by: "uid:0".into(),
            request_id: Some("r".into()),
        },
        EndReason::RestartsExhausted { restarts: u32::MAX },
        EndReason::ServerShutdown,
        EndReason::ServiceLost,
        EndReason::Rebooted,
        EndReason::OrphanTerminated,
        EndReason::ShimLost,
        EndReason::DeadlineExceeded(Deadline::MaxRuntime),
        EndReason::DeadlineExceeded(Deadline::MaxPause),
        EndReason::LimitExceeded(Limit::OutputBytes),
        EndReason::LimitExceeded(Limit::Disk),
        EndReason::OomKilled(MemoryKills {
            kills: u64::MAX,
            memory_max: None,
        }),
        EndReason::OomKilled(MemoryKills {
            kills: 1,
            memory_max: Some(u64::MAX),
        }),
    ];
    reasons.extend(stages.map(|stage| {
        EndReason::StartFailed(StartFailure {
            stage,
            errno: Some(2),
            path: Some("/no/such/ä".into()),
        })
    }));
    reasons
}

fn exits() -> Vec<Option<Exit>> {
    let mut exits = vec![None, Some(Exit::Unknown)];
    exits.extend([0, 1, 255].map(|code| Some(Exit::Code(code))));
    for number in [1, 9, 64] {
        for core_dumped in [false, true] {
            let signal = Signal::from_number(number).unwrap();
            exits.push(Some(Exit::Signal {
                signal,
                core_dumped,
            }));
        }
    }
    exits
}

fn verdicts() -> Vec<TreeVerdict> {
    vec![
        TreeVerdict::Empty(Proof::CgroupAndEchild),
        TreeVerdict::Empty(Proof::Echild),
        TreeVerdict::Empty(Proof::Cgroup),
        TreeVerdict::Empty(Proof::PrivatePidns),
        TreeVerdict::Survivors(vec![]),
        TreeVerdict::Survivors(vec![1, i32::MAX]),
        TreeVerdict::Unverified("why 'not'".into()),
        TreeVerdict::NeverRan,
        TreeVerdict::Kept(Leftovers {
            processes: vec![Leftover {
                pid: 7,
                start_ticks: u64::MAX,
                name: "a \"b\"".into(),
            }],
            unlisted: 3,
        }),
    ]
}
