//! Named consumers: their positions, moved forward only.

use super::{
    Bed, Calls,
    rows::{EPOCH, NODE, closure, new_run, opening},
    store,
};
use kennel_lifecycle::{NodeId, OutputRemoval, RemovalReason, RunId, Timestamp};
use kennel_store::{ConsumerFilter, ConsumerKey, ConsumerRow, StoreError};

fn consumer(run: Option<RunId>, name: &str) -> ConsumerRow {
    ConsumerRow {
        key: ConsumerKey {
            run,
            owner: "uid:7".to_owned(),
            name: name.to_owned(),
        },
        node: NodeId::from_u128(NODE),
        session: 1,
        acked: 0,
        cursor: vec![0, 255, 7],
        created: Timestamp(40),
        acked_at: None,
    }
}

async fn all(bed: &Bed) -> Vec<ConsumerRow> {
    let node = NodeId::from_u128(NODE);
    let every = ConsumerFilter::default();
    bed.store.consumers(node, &every, 100).await.unwrap()
}

fn is_fenced(refused: &Result<(), StoreError>) -> bool {
    matches!(refused, Err(StoreError::Fenced(_)))
}

// promise: O-26a
pub(super) async fn consumer_moves_only_forward_and_reads_whole(bed: Bed) {
    let generation = bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let first = consumer(Some(new_run(1).run), "indexer");
    bed.store.put_consumer(&first, generation).await.unwrap();
    assert_eq!(all(&bed).await, std::slice::from_ref(&first));
    let moved = ConsumerRow {
        session: 2,
        acked: 9,
        cursor: vec![1; 70_000],
        acked_at: Some(Timestamp(90)),
        ..first.clone()
    };
    bed.store.put_consumer(&moved, generation).await.unwrap();
    // A repeated put changes nothing, and succeeds.
    bed.store.put_consumer(&moved, generation).await.unwrap();
    let back = |change: fn(&mut ConsumerRow)| {
        let mut row = moved.clone();
        row.acked += 1;
        row.session += 1;
        change(&mut row);
        row
    };
    let refused = [
        back(|row| row.acked = 8),
        back(|row| row.session = 1),
        back(|row| row.created = Timestamp(41)),
    ];
    for row in refused {
        let refused = bed.store.put_consumer(&row, generation).await;
        assert!(is_fenced(&refused), "{row:?}: {refused:?}");
    }
    for stale in [generation - 1, generation + 1] {
        let refused = bed.store.put_consumer(&back(|_| ()), stale).await;
        assert!(is_fenced(&refused), "{refused:?}");
        let node = NodeId::from_u128(NODE);
        let refused = bed.store.delete_consumer(node, &moved.key, stale).await;
        assert!(is_fenced(&refused), "{refused:?}");
    }
    let reopened = store(&bed.url).await;
    let node = NodeId::from_u128(NODE);
    let every = ConsumerFilter::default();
    let read = reopened.consumers(node, &every, 100).await.unwrap();
    assert_eq!(read, [moved]);
    reopened.finish().await;
}

// promise: O-28
pub(super) async fn consumers_are_found_counted_and_removed(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    let generation = bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let elsewhere = opening(NODE + 1, EPOCH + 1);
    let other = bed.store.open_node(&elsewhere).await.unwrap();
    let (one, two) = (new_run(1).run, new_run(2).run);
    let foreign = ConsumerRow {
        node: NodeId::from_u128(NODE + 1),
        ..consumer(Some(one), "a")
    };
    bed.store.put_consumer(&foreign, other).await.unwrap();
    let wanted = [
        consumer(None, "a"),
        consumer(Some(one), "a"),
        consumer(Some(one), "b"),
        consumer(Some(two), "a"),
    ];
    // Concurrent puts, among other writes.
    let mut tasks = tokio::task::JoinSet::new();
    for row in wanted.clone() {
        let store = bed.store.clone();
        tasks.spawn(async move { store.put_consumer(&row, generation).await });
    }
    for id in 10..20 {
        let store = bed.store.clone();
        tasks.spawn(async move { store.insert(&new_run(id)).await.map(drop) });
    }
    for result in tasks.join_all().await {
        result.unwrap();
    }
    let found = async |filter: ConsumerFilter, limit| {
        let found = bed.store.consumers(node, &filter, limit).await.unwrap();
        found.into_iter().map(|row| row.key).collect::<Vec<_>>()
    };
    let key = |at: usize| wanted[at].key.clone();
    let of = |run| ConsumerFilter {
        run: Some(run),
        ..ConsumerFilter::default()
    };
    let every = ConsumerFilter::default;
    assert_eq!(found(every(), 100).await, [key(0), key(1), key(2), key(3)]);
    assert_eq!(found(every(), 2).await, [key(0), key(1)]);
    let after = ConsumerFilter {
        after: Some(key(1)),
        ..every()
    };
    assert_eq!(found(after, 100).await, [key(2), key(3)]);
    assert_eq!(found(of(Some(one)), 100).await, [key(1), key(2)]);
    assert_eq!(found(of(None), 100).await, [key(0)]);
    let named = ConsumerFilter {
        name: Some("b".into()),
        ..of(Some(one))
    };
    assert_eq!(found(named, 100).await, [key(2)]);
    let count = async |at| bed.store.count_consumers(node, &key(at)).await.unwrap();
    assert_eq!(count(1).await, (2, 4));
    assert_eq!(count(0).await, (1, 4));
    for _ in 0..2 {
        let deleted = bed.store.delete_consumer(node, &key(1), generation).await;
        deleted.unwrap();
        assert_eq!(found(every(), 100).await, [key(0), key(2), key(3)]);
    }
    assert_eq!(count(1).await, (1, 3));
}

// promise: O-28
pub(super) async fn names_of_consumers_belong_to_owners(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    let generation = bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let of = |owner: &str, run, created| {
        let mut row = consumer(run, "a");
        owner.clone_into(&mut row.key.owner);
        row.created = Timestamp(created);
        row
    };
    let run = Some(new_run(1).run);
    let rows = [
        of("alice", None, 1),
        of("bob", None, 2),
        of("alice", run, 3),
        of("bob", run, 4),
    ];
    for row in &rows {
        bed.store.put_consumer(row, generation).await.unwrap();
    }
    assert_eq!(all(&bed).await, rows);
    let after = ConsumerFilter {
        after: Some(rows[2].key.clone()),
        ..ConsumerFilter::default()
    };
    let rest = bed.store.consumers(node, &after, 100).await.unwrap();
    assert_eq!(rest, rows[3..]);
    let count = async |at: usize| {
        bed.store
            .count_consumers(node, &rows[at].key)
            .await
            .unwrap()
    };
    assert_eq!((count(0).await, count(3).await), ((1, 2), (1, 2)));
    let gone = bed.store.delete_consumer(node, &rows[0].key, generation);
    gone.await.unwrap();
    assert_eq!(all(&bed).await, rows[1..]);
}

// promise: O-28a
pub(super) async fn consumers_are_removed_after_their_runs_output(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    let generation = bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for (id, removed_at) in [(1, 70), (2, 80)] {
        bed.store.close(&new_run(id), &closure()).await.unwrap();
        let removal = OutputRemoval {
            at: Timestamp(removed_at),
            reason: RemovalReason::Age,
            seq: 12,
            lens: [1, 3],
            counted: true,
        };
        let run = new_run(id).run;
        let marked = bed
            .store
            .mark_output_removed(run, node, generation, &removal);
        marked.await.unwrap();
    }
    bed.store.insert(&new_run(3)).await.unwrap();
    let rows = [
        consumer(None, "a"),
        consumer(Some(new_run(1).run), "a"),
        consumer(Some(new_run(2).run), "a"),
        consumer(Some(new_run(3).run), "a"),
        // Acknowledged just as the run's row was removed.
        consumer(Some(new_run(4).run), "a"),
    ];
    for row in &rows {
        bed.store.put_consumer(row, generation).await.unwrap();
    }
    let before = Timestamp(80);
    let expired = bed.store.expire_consumers(node, before, generation - 1);
    expired.await.unwrap();
    assert_eq!(all(&bed).await.len(), 5, "of an older generation");
    let expired = bed.store.expire_consumers(node, before, generation);
    expired.await.unwrap();
    assert_eq!(
        all(&bed).await,
        [rows[0].clone(), rows[2].clone(), rows[3].clone()]
    );
}
