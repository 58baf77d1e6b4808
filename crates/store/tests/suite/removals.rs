//! Output of ended runs: the runs that have it, and the mark of its removal.

use super::{
    Bed, Calls,
    rows::{EPOCH, NODE, closure, logged, new_run, opening},
    store,
};
use kennel_lifecycle::{Leftovers, NodeId, OutputRemoval, RemovalReason, Timestamp, TreeVerdict};
use kennel_store::{Closure, NewRun, StoreError};

pub(super) fn removal() -> OutputRemoval {
    OutputRemoval {
        at: Timestamp(77),
        reason: RemovalReason::NodeBytes,
        seq: 12,
        lens: [1 << 40, 3],
        counted: false,
    }
}

fn ended(at: i64) -> Closure {
    let mut closure = closure();
    closure.times.ended = Some(Timestamp(at));
    closure
}

// promise: O-32
pub(super) async fn output_removal_is_marked_once_after_the_end(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    let generation = bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    let run = new_run(1).run;
    let mark = |generation, removal| {
        let store = bed.store.clone();
        async move {
            store
                .mark_output_removed(run, node, generation, &removal)
                .await
        }
    };
    let refused = mark(generation, removal()).await;
    assert!(matches!(refused, Err(StoreError::Fenced(_))), "it is open");
    bed.store.close(&new_run(1), &closure()).await.unwrap();
    let before = bed.store.get(run).await.unwrap().unwrap();
    for stale in [generation - 1, generation + 1] {
        let refused = mark(stale, removal()).await;
        assert!(matches!(refused, Err(StoreError::Fenced(_))), "{refused:?}");
    }
    let other = NodeId::from_u128(NODE + 1);
    let elsewhere = removal();
    let refused = bed.store.mark_output_removed(run, other, 1, &elsewhere);
    assert!(matches!(refused.await, Err(StoreError::Fenced(_))));
    assert_eq!(bed.store.get(run).await.unwrap().as_ref(), Some(&before));

    mark(generation, removal()).await.unwrap();
    let wanted = Some(removal());
    let marked = bed.store.get(run).await.unwrap().unwrap();
    assert_eq!(marked.output_removed, wanted);
    assert_eq!(logged(&marked).unwrap(), marked);
    let later = OutputRemoval {
        at: Timestamp(99),
        ..removal()
    };
    mark(generation, later).await.unwrap();
    let reopened = store(&bed.url).await;
    let read = reopened.get(run).await.unwrap().unwrap();
    assert_eq!(read.output_removed, wanted, "the first one stays");
    assert_eq!(read.outcome, before.outcome);
    reopened.finish().await;

    // A lost row is written again with the removal.
    let mut row = marked.clone();
    row.new.run = new_run(2).run;
    bed.store.mend(&row).await.unwrap();
    let mended = bed.store.get(row.new.run).await.unwrap().unwrap();
    assert_eq!(mended.output_removed, wanted);

    // Many concurrent removals, among other writes.
    let mut tasks = tokio::task::JoinSet::new();
    for id in 10..40 {
        bed.store.close(&new_run(id), &closure()).await.unwrap();
    }
    for id in 10..40 {
        let store = bed.store.clone();
        let run = new_run(id).run;
        tasks.spawn(async move {
            store
                .mark_output_removed(run, node, generation, &removal())
                .await
        });
        let store = bed.store.clone();
        tasks.spawn(async move { store.insert(&new_run(id + 100)).await.map(drop) });
    }
    for result in tasks.join_all().await {
        result.unwrap();
    }
    let left = bed.store.with_output(node, None, 100).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

// promise: O-30, O-32, O-32b
pub(super) async fn ended_runs_with_output_come_by_end(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    let generation = bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store
        .open_node(&opening(NODE + 1, EPOCH + 1))
        .await
        .unwrap();
    // Runs 2 and 3 ended at the same time, and the clock was set back after run 1.
    for (id, at) in [(1, 50), (2, 40), (3, 40), (4, 60)] {
        let new = NewRun {
            owner: format!("uid:{id}"),
            ..new_run(id)
        };
        bed.store.close(&new, &ended(at)).await.unwrap();
    }
    bed.store.insert(&new_run(5)).await.unwrap();
    let elsewhere = NewRun {
        node: NodeId::from_u128(NODE + 1),
        ..new_run(6)
    };
    bed.store.close(&elsewhere, &ended(45)).await.unwrap();
    let never_ran = NewRun {
        identity: None,
        held: None,
        ..new_run(7)
    };
    let mut kept = ended(45);
    kept.outcome.tree = TreeVerdict::Kept(Leftovers::default());
    let silent = Closure {
        has_files: false,
        ..ended(70)
    };
    for new in [never_ran, new_run(10)] {
        bed.store.close(&new, &silent).await.unwrap();
    }
    bed.store.close(&new_run(8), &kept).await.unwrap();
    bed.store.close(&new_run(9), &ended(45)).await.unwrap();
    let removal = removal();
    let run = new_run(9).run;
    let gone = bed
        .store
        .mark_output_removed(run, node, generation, &removal);
    gone.await.unwrap();

    let mut found = Vec::new();
    let mut start = None;
    loop {
        let page = bed.store.with_output(node, start, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        start = Some(last.age);
        found.extend(page);
    }
    let wanted = [(4, 60), (3, 40), (2, 40), (1, 50)];
    let wanted = wanted.map(|(id, at)| (new_run(id).run, format!("uid:{id}"), Timestamp(at)));
    let found: Vec<_> = found
        .into_iter()
        .map(|one| (one.run, one.owner, one.ended))
        .collect();
    assert_eq!(found, wanted);
}
