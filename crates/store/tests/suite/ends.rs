//! Every kind of end, written and read back.

use super::{
    Bed, Calls,
    rows::{EPOCH, NODE, closure, new_run, opening},
};
use kennel_lifecycle::{
    Deadline, EndReason, Exit, Leftover, Leftovers, Limit, MemoryKills, MemoryShortage, Proof,
    Signal, StartFailure, StartStage, StreamsEnd, TreeVerdict,
};
use kennel_store::{Closure, StoredState};

/// Returns an end with each value.
pub(super) fn ends() -> Vec<Closure> {
    let mut ends = Vec::new();
    for reason in reasons() {
        assert_eq!(column(&reason), reason.name());
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
        assert_eq!(column(&tree), tree.name());
        let mut end = closure();
        end.outcome.tree = tree;
        ends.push(end);
    }
    for streams in StreamsEnd::ALL.iter().copied().map(Some).chain([None]) {
        let mut end = closure();
        end.outcome.streams = streams;
        ends.push(end);
    }
    ends
}

pub(super) async fn every_end_is_read_back_as_it_was(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for (id, end) in (1..).zip(&ends()) {
        let new = new_run(id);
        // A closed row is written over an open row, or where none exists.
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

/// Returns the name in the column.
fn column(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value).unwrap() {
        serde_json::Value::String(name) => name,
        tagged => tagged.as_object().unwrap().keys().next().unwrap().clone(),
    }
}

fn reasons() -> Vec<EndReason> {
    let mut reasons = vec![
        EndReason::Exited,
        EndReason::SuccessExit,
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
        EndReason::ParentEnded,
        EndReason::ServiceLost,
        EndReason::Rebooted,
        EndReason::OrphanTerminated,
        EndReason::NodeForgotten { by: "uid:0".into() },
        EndReason::ShimLost,
        EndReason::MemoryReserve(MemoryShortage {
            limit: u64::MAX,
            used: 2,
            reserve: 1,
        }),
        EndReason::OomKilled(MemoryKills {
            kills: u64::MAX,
            memory_max: None,
        }),
        EndReason::OomKilled(MemoryKills {
            kills: 1,
            memory_max: Some(u64::MAX),
        }),
    ];
    reasons.extend(
        Deadline::ALL
            .iter()
            .map(|d| EndReason::DeadlineExceeded(*d)),
    );
    reasons.extend(Limit::ALL.iter().map(|l| EndReason::LimitExceeded(*l)));
    reasons.push(EndReason::NotReady);
    reasons.push(EndReason::NotLive {
        failures: 3,
        error: "connection refused".into(),
    });
    reasons.push(EndReason::Watchdog { triggered: true });
    reasons.push(EndReason::Result {
        rule: "result".into(),
    });
    reasons.extend(StartStage::ALL.iter().map(|stage| {
        EndReason::StartFailed(StartFailure {
            stage: *stage,
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
    let mut verdicts = vec![
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
    ];
    verdicts.extend(Proof::ALL.iter().map(|proof| TreeVerdict::Empty(*proof)));
    verdicts
}
