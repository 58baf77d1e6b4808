//! Rows of an earlier life of the database are written again.

use super::{
    Bed, Calls,
    rows::{EPOCH, NODE, closure, facets, logged, new_run, opening, order, process},
};
use kennel_lifecycle::{EndReason, Exit, Outcome, StopCertificate, Timestamp};
use kennel_store::{
    Age, Closure, Desired, NewRun, Opening, PastAttempt, RunRow, StoreError, StoredState, Times,
};

/// Rows in each possible state.
fn rows() -> Vec<RunRow> {
    let started = Times {
        started: Some(Timestamp(11)),
        ..Times::default()
    };
    let paused = RunRow {
        state: StoredState::Paused,
        times: started,
        desired: Desired::Stop,
        stop: Some(order()),
        stop_deadline: Some(Timestamp(99)),
        facets: facets(),
        ..RunRow::open(new_run(1))
    };
    let Closure {
        outcome,
        times,
        entries,
        ..
    } = closure();
    let past = |number, certificate| PastAttempt {
        number,
        leader: Some(process(4711)),
        outcome: Outcome {
            certificate,
            ..outcome.clone()
        },
        times,
    };
    let waits = RunRow {
        state: StoredState::Backoff,
        times: Times {
            ended: None,
            ..times
        },
        past: vec![
            past(2, StopCertificate::default()),
            past(3, outcome.certificate.clone()),
        ],
        restarts: 2,
        next_restart: Some(Timestamp(77)),
        ..RunRow::open(NewRun {
            attempt: 3,
            ..new_run(2)
        })
    };
    let closed = RunRow {
        state: StoredState::Ended(outcome.state()),
        desired: Desired::Stop,
        times,
        outcome: Some(outcome),
        entries,
        // Above the output ages of rows closed earlier.
        output_age: times.ended.map(|at| Age(at.0 + 9)),
        ..RunRow::open(new_run(3))
    };
    vec![paused, waits, closed, RunRow::open(new_run(4))]
}

// promise: R-53
pub(super) async fn earlier_row_is_rewritten_whole(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for row in rows() {
        assert_eq!(logged(&row).unwrap(), row);
        for _ in 0..2 {
            bed.store.mend(&row).await.unwrap();
            let read = bed.store.get(row.new.run).await.unwrap();
            assert_eq!(read.as_ref(), Some(&row));
        }
    }
}

// promise: R-53b
pub(super) async fn outdated_row_is_updated_and_closed_one_kept(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for row in rows() {
        let older = NewRun {
            attempt: 1,
            ..row.new.clone()
        };
        bed.store.insert(&older).await.unwrap();
        bed.store.mend(&row).await.unwrap();
        let read = bed.store.get(row.new.run).await.unwrap().unwrap();
        assert_eq!(read, row);
        bed.store.close(&row.new, &closure()).await.unwrap();
        let closed = bed.store.get(row.new.run).await.unwrap().unwrap();
        let open = RunRow::open(older);
        bed.store.mend(&open).await.unwrap();
        let left = bed.store.get(row.new.run).await.unwrap().unwrap();
        assert_eq!(left, closed);
    }
}

// promise: I-67a
pub(super) async fn lost_row_of_a_living_run_is_mended(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let reasons = [
        EndReason::Rebooted,
        EndReason::ServiceLost,
        EndReason::OrphanTerminated,
    ];
    for (number, reason) in (1..).zip(reasons) {
        let is_mended = reason != EndReason::OrphanTerminated;
        let mut lost = closure();
        lost.outcome.reason = reason;
        lost.outcome.exit = Some(Exit::Unknown);
        let lives = RunRow {
            state: StoredState::Running,
            ..RunRow::open(new_run(number))
        };
        bed.store.insert(&lives.new).await.unwrap();
        bed.store.close(&lives.new, &lost).await.unwrap();
        let closed = bed.store.get(lives.new.run).await.unwrap().unwrap();
        for row in [&closed, &lives] {
            bed.store.mend(row).await.unwrap();
            let read = bed.store.get(lives.new.run).await.unwrap().unwrap();
            let expected = if is_mended { row } else { &closed };
            assert_eq!(&read, expected);
        }
    }
}

// promise: R-53b
pub(super) async fn only_the_nodes_own_generation_mends(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let row = RunRow {
        state: StoredState::Running,
        ..RunRow::open(new_run(1))
    };
    let missing = RunRow::open(new_run(2));
    for row in [row, missing] {
        let refused = bed.store.mend(&row).await;
        assert!(matches!(refused, Err(StoreError::Fenced(_))), "{refused:?}");
    }
    let kept = bed.store.get(new_run(1).run).await.unwrap().unwrap();
    assert_eq!(kept.state, StoredState::Starting);
}

// promise: R-53a
pub(super) async fn a_generation_is_above_all_that_are_known(bed: Bed) {
    let node = opening(NODE, EPOCH).node;
    let before = bed.store.stored_node(node).await.unwrap();
    assert_eq!(before.generation, None);
    let above = |above| Opening {
        above,
        ..opening(NODE, EPOCH)
    };
    for (known, given) in [(41, 42), (7, 43), (43, 44), (80, 81)] {
        assert_eq!(bed.store.open_node(&above(known)).await.unwrap(), given);
        let stored_node = bed.store.stored_node(node).await.unwrap();
        assert_eq!(stored_node.generation, Some(given));
        assert_eq!(stored_node.life, before.life);
    }
}
