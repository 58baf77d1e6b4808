//! Every value of the vocabulary, there and back, and what is none of them.

use super::{
    Bed, Raw,
    rows::{EPOCH, NODE, closure, new_run, opening, order, respec},
};
use kennel_lifecycle::{
    Containment, Gap, Held, NodeId, OutputRemoval, RemovalReason, RestartMode, RestartPolicy,
    RowState, RunId, RunKind, Timestamp,
};
use kennel_store::{Fact, NewRun, RunRow, StoreError, StoredState};
use std::time::Duration;

/// One value of each kind that a row has before its end.
fn values() -> Vec<NewRun> {
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

/// With every part present, where it starts anything again.
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
    }
}

pub(super) async fn every_value_is_read_back_as_it_was(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for new in values() {
        bed.store.insert(&new).await.unwrap();
        let row = bed.store.get(new.run).await.unwrap().unwrap();
        assert_eq!(row.new, new);
        assert_eq!(RunRow::decode(&row.encode()).unwrap(), row);
    }
    for state in RowState::ALL {
        let run = new_run(1).run;
        bed.store.record_state(run, 1, *state, None).await.unwrap();
        let row = bed.store.get(run).await.unwrap().unwrap();
        assert_eq!(<&str>::from(row.state), state.name());
        assert_eq!(RunRow::decode(&row.encode()).unwrap().state, row.state);
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
const UNREADABLE: [(u128, &str, [&str; 2]); 18] = [
    (1, "containment_detail = ''", ["containment_detail", "EOF"]),
    (
        1,
        "containment_detail = '{}'",
        ["containment_detail", "field `by`"],
    ),
    (
        1,
        "containment_detail = '{\"by\":\"hope\",\"gaps\":[]}'",
        ["containment_detail", "hope"],
    ),
    (
        1,
        "containment_detail = '{\"by\":\"cgroup\",\"gaps\":[\"hole\"]}'",
        ["containment_detail", "hole"],
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

pub(super) async fn what_is_no_value_is_corrupt(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let mut raw = Raw::to(&bed.url).await;
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

        let read = bed.store.get(new.run).await;

        let Err(StoreError::Corrupt(text)) = read else {
            panic!("{change}: {read:?}");
        };
        assert!(text.contains(&run), "{change}: {text}");
        for word in words {
            assert!(text.contains(word), "{change}: {text}");
        }
    }
}

#[test]
fn every_fact_is_decoded_as_it_was() {
    let run = new_run(1).run;
    let mut facts = vec![
        Fact::Stop {
            run,
            order: order(),
            deadline: Timestamp(i64::MAX),
        },
        Fact::Fence(Box::new(new_run(2)), Box::new(closure())),
        Fact::Close(Box::new(new_run(3)), Box::new(closure())),
    ];
    for state in RowState::ALL {
        for started in [None, Some(Timestamp(-1))] {
            facts.push(Fact::State {
                run,
                state: *state,
                started,
            });
        }
    }
    for fact in facts {
        assert_eq!(Fact::decode(&fact.encode()), Ok(fact));
    }
    for torn in [&b""[..], b"{", b"{}", b"null", br#"{"wish":{}}"#] {
        assert!(Fact::decode(torn).is_err());
    }
}

#[test]
fn a_state_that_has_no_row_is_refused() {
    let mut row = RunRow::open(new_run(1));
    for state in [
        StoredState::Starting,
        StoredState::Running,
        StoredState::Pausing,
        StoredState::Paused,
        StoredState::Backoff,
    ] {
        row.state = state;
        assert_eq!(RunRow::decode(&row.encode()).unwrap(), row);
    }
    let text = String::from_utf8(row.encode()).unwrap();
    for unknown in ["stopping", "asleep", ""] {
        let changed = text.replace("\"state\":\"backoff\"", &format!("\"state\":\"{unknown}\""));
        assert_ne!(changed, text);
        let refused = RunRow::decode(changed.as_bytes()).unwrap_err();
        let says = format!("unknown StoredState {unknown:?}");
        assert!(refused.contains(&says), "{refused}");
    }
}
