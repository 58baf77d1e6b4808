//! Every value of the vocabulary, written and read back, and values outside of it.

use super::{
    Bed, Calls, Raw,
    rows::{EPOCH, NODE, closure, facets, logged, new_run, opening, order, respec},
};
use kennel_lifecycle::{
    Containment, Gap, Held, NodeId, OutputRemoval, RemovalReason, RestartMode, RestartPolicy,
    RowState, RunId, RunKind, Timestamp,
};
use kennel_store::{Change, NewRun, PastAttempt, Rest, RunRow, StoreError, StoredState, open};
use std::time::Duration;

/// One value of each kind that a row has before its end.
pub(super) fn values() -> Vec<NewRun> {
    let mut rows = Vec::new();
    for kind in RunKind::ALL {
        rows.push(respec(new_run(0), |spec| spec.policy.kind = *kind));
    }
    for by in Containment::ALL {
        let gaps = vec![
            Gap::NoCgroup("cannot make \"x\"".into()),
            Gap::RootMayLeaveCgroup,
            Gap::OwnerMayMove,
            Gap::ForeignPidNamespace,
            Gap::SetuidChildUnkillable,
            Gap::WorkHandedToDaemons,
        ];
        rows.push(NewRun {
            held: Some(Held { by: *by, gaps }),
            ..new_run(0)
        });
    }
    rows.push(NewRun {
        held: None,
        ..new_run(0)
    });
    for mode in RestartMode::ALL {
        rows.push(respec(new_run(0), |spec| {
            spec.policy.restart = policy(*mode);
        }));
    }
    for (id, row) in (1..).zip(&mut rows) {
        row.run = RunId::from_u128(id);
    }
    rows
}

/// Returns a policy with every part present, where it restarts anything.
fn policy(mode: RestartMode) -> RestartPolicy {
    if mode == RestartMode::Never {
        return RestartPolicy::default();
    }
    RestartPolicy {
        mode,
        delay: Duration::from_micros(10_001),
        factor: 3,
        max_delay: Duration::from_hours(24),
        jitter_percent: 7,
        max_restarts: Some(u32::MAX),
        min_uptime: Duration::ZERO,
        prevent_exit_codes: vec![0, 255],
        force_exit_codes: vec![1],
        hold: true,
    }
}

pub(super) async fn every_value_is_read_back_as_it_was(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for new in values() {
        bed.store.insert(&new).await.unwrap();
        let row = bed.store.get(new.run).await.unwrap().unwrap();
        let age = row.new.age;
        assert_eq!(row.new, NewRun { age, ..new });
        assert_eq!(logged(&row).unwrap(), row);
    }
    for state in RowState::ALL {
        let run = new_run(1).run;
        bed.store.record_state(run, 1, *state, None).await.unwrap();
        let row = bed.store.get(run).await.unwrap().unwrap();
        assert_eq!(<&str>::from(row.state), state.name());
        assert_eq!(logged(&row).unwrap().state, row.state);
    }
    for (id, reason) in (100..).zip(RemovalReason::ALL) {
        let new = new_run(id);
        bed.store.close(&new, &closure()).await.unwrap();
        let removal = OutputRemoval {
            at: Timestamp(-1),
            reason: *reason,
            seq: u64::MAX,
            lens: [0, u64::MAX],
            counted: true,
        };
        let marked = bed.store.mark_output_removed(new.run, node, 1, &removal);
        marked.await.unwrap();
        let row = bed.store.get(new.run).await.unwrap().unwrap();
        assert_eq!(row.output_removed, Some(removal));
    }
}

/// A change of an open row (1) or a closed one (2), and the words of the error beside the run.
const UNREADABLE: [(u128, &str, [&str; 2]); 37] = [
    (1, "state = 'stopping'", ["state", "stopping"]),
    (1, "state = 'queued'", ["state", "queued"]),
    (1, "state = 'failed'", ["failed", "an open one"]),
    (1, "desired = 'hold'", ["desired", "hold"]),
    (1, "desired = 'stop'", ["desired", "stop_deadline None"]),
    (
        1,
        "stop_deadline = 1, stop_detail = '{}'",
        ["desired", "run"],
    ),
    (
        1,
        "next_restart_us = 1",
        ["starting", "next_restart_us Some(1)"],
    ),
    (2, "state = 'running'", ["running", "requires succeeded"]),
    (2, "state = 'lost'", ["lost", "requires succeeded"]),
    (2, "exit_value = 1", ["succeeded", "requires failed"]),
    (2, "exit_value = 256", ["exit_kind", "256"]),
    (2, "exit_kind = 'asleep'", ["exit_kind", "asleep"]),
    (2, "exit_kind = 'unknown'", ["exit_kind", "unknown"]),
    (
        2,
        "exit_kind = 'signal', exit_value = 65",
        ["exit_kind", "65"],
    ),
    (2, "end_reason = 'boredom'", ["end_reason", "boredom"]),
    (2, "end_reason = 'aborted'", ["end_reason", "aborted"]),
    (2, "tree_verdict = 'bare'", ["tree_verdict", "bare"]),
    (2, "tree_detail = NULL", ["tree_verdict", "empty"]),
    (2, "streams_end = 'dry'", ["streams_end", "dry"]),
    (1, "containment_detail = ''", ["containment_detail", "EOF"]),
    (
        1,
        "containment_detail = '{}'",
        ["containment_detail", "field `by`"],
    ),
    (
        1,
        "containment_detail = '{\"gaps\":[]}'",
        ["containment_detail", "by"],
    ),
    (
        1,
        "containment_detail = '{\"by\":\"cgroup\",\"gaps\":7}'",
        ["containment_detail", "sequence"],
    ),
    (
        1,
        "spec = '{\"policy\":{\"restart\":{\"mode\":\"often\"}}}'",
        ["spec", "often"],
    ),
    (
        1,
        "attempts_detail = '[{\"number\":1}]'",
        ["attempts_detail", "field `outcome`"],
    ),
    (1, "spec = '{\"labels\":{\"a\":1}}'", ["spec", "string"]),
    (
        1,
        "desired = 'stop', stop_deadline = 1, stop_detail = '{\"reason\":\"whim\"}'",
        ["stop_detail", "whim"],
    ),
    (
        2,
        "certificate_detail = '{\"steps\":1}'",
        ["certificate_detail", "sequence"],
    ),
    (
        2,
        "certificate_detail = '{\"steps\":[{\"at\":1,\"signal\":65}]}'",
        ["certificate_detail", "65"],
    ),
    (2, "tree_detail = '\"hearsay\"'", ["tree_detail", "hearsay"]),
    (2, "tree_detail = '\"'", ["tree_detail", "EOF"]),
    (
        2,
        "tree_verdict = 'survivors', tree_detail = '[\"x\"]'",
        ["tree_verdict", "survivors"],
    ),
    (
        2,
        "end_reason = 'deadline_exceeded', state = 'failed', end_detail = '\"tea\"'",
        ["end_detail", "tea"],
    ),
    (
        2,
        "end_reason = 'oom_killed', state = 'failed', end_detail = '{\"kills\":-1}'",
        ["end_reason", "oom_killed"],
    ),
    (
        2,
        "end_reason = 'fenced', state = 'cancelled', end_detail = '{}'",
        ["end_reason", "field `by`"],
    ),
    (
        2,
        "output_removed_us = 1, output_removed_detail = '{}'",
        ["output_removed_detail", "field `at`"],
    ),
    (
        2,
        "output_removed_us = 1, output_removed_detail = '{\"at\":1,\"reason\":\"taste\"}'",
        ["output_removed_detail", "taste"],
    ),
];

// promise: D-31
pub(super) async fn unreadable_value_is_corrupt(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let mut raw = Raw::to(&bed.url).await;
    // The row's own node reads its spec without unreadable values.
    let other = open(&bed.url.parse().unwrap()).await.unwrap();
    for (number, (base, change, words)) in (1..).zip(UNREADABLE) {
        let new = new_run(number);
        if base == 1 {
            bed.store.insert(&new).await.unwrap();
        } else {
            bed.store.close(&new, &closure()).await.unwrap();
        }
        bed.store.get(new.run).await.unwrap().unwrap();
        let run = new.run.to_string();
        let sql = format!("UPDATE runs SET {change} WHERE run_id = '{run}'");
        raw.execute(&sql).await.unwrap();

        let read = other.get(new.run).await;

        let Err(StoreError::Unread(row)) = read else {
            panic!("{change}: {read:?}");
        };
        let text = row.to_string();
        assert!(text.contains(&run), "{change}: {text}");
        for word in words {
            assert!(text.contains(word), "{change}: {text}");
        }
    }
}

/// Returns one of each kind of change.
fn changes() -> Vec<Change> {
    let (new, closure) = (Box::new(new_run(1)), Box::new(closure()));
    let rest = Rest {
        past: vec![PastAttempt {
            number: 1,
            leader: None,
            outcome: closure.outcome.clone(),
            times: closure.times,
        }],
        restarts: 2,
        next: Timestamp(3),
    };
    let mut changes = vec![
        Change::Intended(new.clone()),
        Change::Inserted(new.clone()),
        Change::Begun(new.clone(), 2),
        Change::Rested(new.clone(), Box::new(rest)),
        Change::Stop {
            order: order(),
            deadline: Timestamp(i64::MAX),
        },
        Change::Facets(Box::new(facets())),
        Change::Closed(new.clone(), closure.clone()),
        Change::Fenced(new.clone(), closure),
        Change::Withdrawn,
        Change::OutputRemoved(OutputRemoval {
            at: Timestamp(4),
            reason: RemovalReason::Age,
            seq: 5,
            lens: [6, 7],
            counted: true,
        }),
        Change::Forgotten,
        Change::Snapshot(Box::new(RunRow::open(*new))),
    ];
    for state in RowState::ALL {
        let started = Some(Timestamp(-1));
        changes.push(Change::State {
            state: *state,
            started,
        });
    }
    changes
}

/// Other versions read the log: a change of its form needs a new number of the format.
// promise: R-17
#[test]
fn store_change_formats_match_lock_file() {
    let mut lock = String::new();
    for change in changes() {
        let bytes = change.encode();
        assert_eq!(Change::decode(&bytes), Ok(change.clone()));
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(change.name()), "{text}");
        lock += &text;
        lock.push('\n');
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/change.lock");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &lock).unwrap();
    }
    let agreed = std::fs::read_to_string(path).unwrap();
    let lines = agreed.lines().zip(lock.lines());
    for (agreed, found) in lines {
        assert_eq!(agreed, found);
    }
    assert_eq!(agreed.len(), lock.len());
    for torn in [&b""[..], b"{", b"{}", b"null", br#"{"wish":{}}"#] {
        assert!(Change::decode(torn).is_err());
    }
}

// promise: A-22
#[test]
fn store_change_decoding_survives_corrupt_bytes() {
    for change in changes() {
        kennel_mutations::random(&change.encode(), |wrong| {
            if let Ok(read) = Change::decode(wrong) {
                assert_eq!(Change::decode(&read.encode()), Ok(read.clone()));
                let _ = read.upon(None);
            }
        });
    }
}

#[test]
fn closed_row_never_changes() {
    let row = Change::Closed(Box::new(new_run(1)), Box::new(closure())).upon(None);
    for change in changes() {
        match change {
            Change::OutputRemoved(removal) => {
                let marked = change.upon(row.clone()).unwrap();
                assert_eq!(marked.output_removed, Some(removal));
            }
            // These changes contain the row.
            Change::Inserted(_) | Change::Snapshot(_) => {}
            change => assert_eq!(change.upon(row.clone()), row, "{}", change.name()),
        }
    }
}

#[test]
fn partial_change_of_unknown_row_creates_no_row() {
    for change in changes() {
        let is_whole = matches!(
            change,
            Change::Inserted(_) | Change::Closed(..) | Change::Fenced(..) | Change::Snapshot(_)
        );
        assert_eq!(change.upon(None).is_some(), is_whole, "{}", change.name());
    }
}

#[test]
fn row_with_unknown_state_is_refused() {
    let mut row = RunRow::open(new_run(1));
    for state in [
        StoredState::Starting,
        StoredState::Running,
        StoredState::Pausing,
        StoredState::Paused,
        StoredState::Backoff,
    ] {
        row.state = state;
        assert_eq!(logged(&row).unwrap(), row);
    }
    let text = String::from_utf8(Change::Snapshot(Box::new(row)).encode()).unwrap();
    for unknown in ["stopping", "asleep", ""] {
        let changed = text.replace("\"state\":\"backoff\"", &format!("\"state\":\"{unknown}\""));
        assert_ne!(changed, text);
        let refused = Change::decode(changed.as_bytes()).unwrap_err();
        let says = format!("unknown StoredState {unknown:?}");
        assert!(refused.contains(&says), "{refused}");
    }
}
