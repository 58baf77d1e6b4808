//! Rows of runs that never began.

use super::{
    Bed, Calls,
    rows::{EPOCH, NODE, closure, new_run, opening, order},
};
use kennel_lifecycle::{NodeId, RowState, Timestamp};
use kennel_store::{Changed, LeftStop, StoreError};

// promise: I-71b, R-16
pub(super) async fn only_row_that_never_began_is_withdrawn(bed: Bed) {
    let store = &bed.store;
    for (node, epoch) in [(NODE, EPOCH), (NODE + 1, EPOCH + 1)] {
        store.open_node(&opening(node, epoch)).await.unwrap();
    }
    for id in 1..=5 {
        store.insert(&new_run(id)).await.unwrap();
    }
    let run = |id| new_run(id).run;
    let (node, other) = (NodeId::from_u128(NODE), NodeId::from_u128(NODE + 1));
    store
        .record_state(run(2), 1, RowState::Running, None)
        .await
        .unwrap();
    store
        .record_stop(run(3), 1, &order(), Timestamp(5))
        .await
        .unwrap();
    store.close(&new_run(4), &closure()).await.unwrap();
    let stop = LeftStop {
        run: run(5),
        order: order(),
        asked: Timestamp(6),
    };
    store.leave_stop(node, &stop).await.unwrap();

    let withdrawn = [
        store.withdraw(run(1), node, 2).await,
        // Both nodes have generation 1.
        store.withdraw(run(1), other, 1).await,
        store.withdraw(run(2), node, 1).await,
        store.withdraw(run(3), node, 1).await,
        store.withdraw(run(4), node, 1).await,
        // Run 5 has a queued stop.
        store.withdraw(run(5), node, 1).await,
    ];
    for (at, result) in withdrawn.into_iter().enumerate() {
        assert!(
            matches!(result, Err(StoreError::Fenced(_))),
            "{at}: {result:?}"
        );
    }
    for id in 1..=5 {
        assert!(store.get(run(id)).await.unwrap().is_some(), "{id}");
    }
    // A repeated withdrawal succeeds too, and the key is free.
    for _ in 0..2 {
        store.withdraw(run(1), node, 1).await.unwrap();
        assert_eq!(store.get(run(1)).await.unwrap(), None);
    }
    assert!(matches!(
        store.insert(&new_run(1)).await.unwrap(),
        Changed::Done(_)
    ));
}
