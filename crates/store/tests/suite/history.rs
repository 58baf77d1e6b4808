//! Ended runs from the oldest on, the removal of their rows, and what is remembered of them.

use super::{
    Bed, Calls, Raw,
    rows::{EPOCH, NODE, closure, host, new_run, opening},
};
use kennel_lifecycle::{Leftovers, NodeId, RunId, Timestamp, TreeVerdict};
use kennel_store::{
    Age, Closure, ConsumerFilter, ConsumerKey, ConsumerRow, NewRun, NodeRemoval, RowRemoval,
    RunRow, StoreError,
};

fn removal(generation: i64, ids: &[u128]) -> RowRemoval {
    RowRemoval {
        node: NodeId::from_u128(NODE),
        generation: Some(generation),
        runs: ids.iter().map(|id| RunId::from_u128(*id)).collect(),
        forgotten_before: RunId::from_u128(0),
    }
}

fn is_fenced<T>(made: &Result<T, StoreError>) -> bool {
    matches!(made, Err(StoreError::Fenced(_)))
}

async fn remove(bed: &Bed, removal: &RowRemoval) -> Vec<u128> {
    let removed = bed.store.remove_rows(removal).await.unwrap();
    let mut ids: Vec<u128> = removed.iter().map(|row| row.run.as_u128()).collect();
    ids.sort_unstable();
    ids
}

// promise: K-12
pub(super) async fn ended_rows_come_oldest_first(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    let generation = bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store
        .open_node(&opening(NODE + 1, EPOCH + 1))
        .await
        .unwrap();
    let silent = Closure {
        has_files: false,
        ..closure()
    };
    let mut kept = silent.clone();
    kept.outcome.tree = TreeVerdict::Kept(Leftovers::default());
    for (id, closure) in [(1, &silent), (2, &kept), (3, &closure()), (4, &closure())] {
        bed.store.close(&new_run(id), closure).await.unwrap();
    }
    bed.store.insert(&new_run(5)).await.unwrap();
    let elsewhere = NewRun {
        node: NodeId::from_u128(NODE + 1),
        ..new_run(6)
    };
    bed.store.close(&elsewhere, &silent).await.unwrap();
    let gone = super::removals::removal();
    let marked = bed
        .store
        .mark_output_removed(new_run(4).run, node, generation, &gone);
    marked.await.unwrap();
    let mut found = Vec::new();
    let (mut start, boot) = (Age::NONE, host().boot_id);
    loop {
        let page = bed.store.ended_rows(node, &boot, start, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        start = last.age;
        found.extend(page);
    }
    let seen = found
        .iter()
        .map(|row| (row.run.as_u128(), row.has_files, row.may_live));
    let wanted = [
        (1, false, false),
        (2, false, true),
        (3, true, false),
        (4, false, false),
    ];
    assert_eq!(seen.collect::<Vec<_>>(), wanted);
    assert!(
        found
            .iter()
            .all(|row| row.owner == new_run(1).owner && row.ended > Timestamp(0))
    );
    let other_boot = bed.store.ended_rows(node, "another", Age::NONE, 9).await;
    assert!(other_boot.unwrap().iter().all(|row| !row.may_live));
}

// promise: K-13a
pub(super) async fn removed_rows_leave_their_ids(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    let store = &bed.store;
    let generation = store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for id in [1, 2, 3] {
        store.close(&new_run(id), &closure()).await.unwrap();
    }
    store.insert(&new_run(4)).await.unwrap();
    let consumer = ConsumerRow {
        key: ConsumerKey {
            run: Some(new_run(1).run),
            owner: "uid:7".to_owned(),
            name: "reader".to_owned(),
        },
        node,
        session: 1,
        acked: 0,
        cursor: vec![1],
        created: Timestamp(40),
        acked_at: None,
    };
    store.put_consumer(&consumer, generation).await.unwrap();
    let before = store.get(new_run(1).run).await.unwrap().unwrap();
    for stale in [generation - 1, generation + 1] {
        assert_eq!(remove(&bed, &removal(stale, &[1])).await, [0; 0]);
    }
    let of_no_node = RowRemoval {
        generation: None,
        ..removal(generation, &[1])
    };
    assert_eq!(remove(&bed, &of_no_node).await, [0; 0]);
    let sums = store.record_bytes(node).await.unwrap();
    let removed = store.remove_rows(&removal(generation, &[1, 2, 4, 9])).await;
    let removed = removed.unwrap();
    assert_eq!(removed.len(), 2, "the open one stays: {removed:?}");
    let left = store.record_bytes(node).await.unwrap();
    let bytes: u64 = removed.iter().map(|row| row.bytes).sum();
    assert_eq!(sums[0].1 - left[0].1, bytes);
    assert!(removed.iter().all(|row| row.owner == new_run(1).owner));
    assert!(store.get(new_run(1).run).await.unwrap().is_none());
    let every = ConsumerFilter::default();
    assert_eq!(store.consumers(node, &every, 9).await.unwrap(), []);
    // No later run gets a removed id by any change.
    assert!(is_fenced(&store.insert(&new_run(1)).await));
    assert!(is_fenced(&store.fence(&new_run(1), &closure()).await));
    assert!(is_fenced(&store.close(&new_run(1), &closure()).await));
    store.insert(&new_run(9)).await.expect("it had no row");
    let asked = [1, 2, 3, 9].map(RunId::from_u128);
    let mut remembered = store.removed_ids(&asked).await.unwrap();
    remembered.sort_unstable();
    assert_eq!(remembered, [1, 2].map(RunId::from_u128));
    // A row that a database copy lacks is still written again.
    store.mend(&before).await.unwrap();
    assert!(store.get(new_run(1).run).await.unwrap().is_some());
}

// promise: K-13a
pub(super) async fn old_ids_are_forgotten(bed: Bed) {
    let generation = bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for id in 1..=4 {
        bed.store.close(&new_run(id), &closure()).await.unwrap();
    }
    let old = removal(generation, &[1, 2, 3]);
    assert_eq!(remove(&bed, &old).await, [1, 2, 3]);
    assert_eq!(bed.store.newest_forgotten().await.unwrap(), None);
    let asked = [1, 2, 3, 4].map(RunId::from_u128);
    let forgetting = RowRemoval {
        forgotten_before: RunId::from_u128(5),
        ..removal(generation, &[4])
    };
    assert_eq!(remove(&bed, &forgetting).await, [4]);
    let remembered = bed.store.removed_ids(&asked).await.unwrap();
    assert_eq!(remembered, [RunId::from_u128(4)], "until the next removal");
    let newest = || async { bed.store.newest_forgotten().await.unwrap() };
    assert_eq!(newest().await, Some(RunId::from_u128(3)));
    bed.store.close(&new_run(1), &closure()).await.unwrap();
    assert_eq!(remove(&bed, &removal(generation, &[1])).await, [1]);
    assert_eq!(remove(&bed, &forgetting).await, [0; 0]);
    assert_eq!(
        newest().await,
        Some(RunId::from_u128(4)),
        "the newest of all"
    );
}

// promise: K-13a
pub(super) async fn insert_that_waits_for_a_removal_is_refused(bed: Bed) {
    // SQLite has one writer: no INSERT looks before a removal and writes after it.
    if bed.url.starts_with("sqlite:") {
        return;
    }
    let store = &bed.store;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    store.close(&new_run(1), &closure()).await.unwrap();
    let (mut remover, mut watcher) = (Raw::to(&bed.url).await, Raw::to(&bed.url).await);
    let id = new_run(1).run;
    let remove = format!(
        "BEGIN; DELETE FROM runs WHERE run_id = '{id}'; INSERT INTO removed_ids VALUES ('{id}')"
    );
    remover.execute(&remove).await.unwrap();
    let (first, second) = (new_run(1), new_run(2));
    let inserting = async { tokio::join!(store.insert(&first), store.insert(&second)) };
    let committing = async {
        let waits = "SELECT 'waits' FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        while watcher.texts(waits).await.is_empty() {
            tokio::task::yield_now().await;
        }
        remover.execute("COMMIT").await.unwrap();
    };
    let ((refused, other), ()) = tokio::join!(inserting, committing);
    assert!(is_fenced(&refused), "{refused:?}");
    other.expect("it has another id");
    assert!(store.get(id).await.unwrap().is_none());
}

// promise: K-12a
pub(super) async fn rows_of_a_removed_node_are_found(bed: Bed) {
    let store = &bed.store;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    store.close(&new_run(1), &closure()).await.unwrap();
    assert_eq!(store.stray_node(None).await.unwrap(), None);
    let stray = NewRun {
        node: NodeId::from_u128(NODE + 1),
        ..new_run(2)
    };
    let other = opening(NODE + 1, EPOCH + 1);
    store.open_node(&other).await.unwrap();
    store.close(&stray, &closure()).await.unwrap();
    store.give_up(other.node, 1).await.unwrap();
    assert!(
        store
            .remove_nodes(NodeRemoval::Node(other.node))
            .await
            .unwrap()
    );
    let is_shared = !bed.url.starts_with("sqlite:");
    let found = store.stray_node(None).await.unwrap();
    assert_eq!(found, is_shared.then_some(other.node));
    assert_eq!(store.stray_node(found).await.unwrap(), None);
    let rows = RowRemoval {
        node: other.node,
        generation: None,
        ..removal(0, &[1, 2])
    };
    assert_eq!(remove(&bed, &rows).await, [2]);
    assert_eq!(store.stray_node(None).await.unwrap(), None);
    let own: Option<RunRow> = store.get(new_run(1).run).await.unwrap();
    assert!(own.is_some());
    let mut raw = Raw::to(&bed.url).await;
    let ids = raw.texts("SELECT run_id FROM removed_ids").await;
    assert_eq!(ids, [stray.run.to_string()]);
}
