//! Positions of runs, which are no times, and the count of a row's changes.

use super::{
    Bed, Calls, Raw,
    attempts::{ended, next, rest, service},
    rows::{EPOCH, NODE, closure, facets, new_run, opening, order},
};
use kennel_lifecycle::{Entry, NodeId, OutputRemoval, RemovalReason, RowState, RunId, Timestamp};
use kennel_store::{
    Age, Changed, Closure, EntryList, EntryPlace, ListFilter, ListOrder, NewRun, RunRow,
};
use tokio::task::JoinSet;

/// Time at which the clocks are right.
const NOW: i64 = 1_700_000_000_000_000;
const MINUTE: i64 = 60_000_000;

/// Returns a run of this node, made when its clock was ahead by so much.
fn made(id: u128, node: u128, ahead: i64) -> NewRun {
    NewRun {
        node: NodeId::from_u128(NODE + node),
        created: Timestamp(NOW + ahead),
        age: Age::NONE,
        ..new_run(id)
    }
}

/// Three nodes, whose clocks are set an hour forward and back and a minute back: a reader of a node that resumes after
/// any of its runs gets exactly the later ones, and the list of all nodes has each run once, the newest first.
// promise: A-9
pub(super) async fn clocks_of_fleet_move_no_run(bed: Bed) {
    for node in 0..3 {
        let opening = opening(NODE + node, EPOCH + node);
        bed.store.open_node(&opening).await.unwrap();
    }
    let steps = [0, 60, 60, -60, -1, 0, -60, 60, 0, -1];
    let mut ids = 0;
    let mut inserted: Vec<Vec<(RunId, Age)>> = vec![Vec::new(); 3];
    for minutes in steps {
        for node in 0..3 {
            // Some rows of one node share a commit.
            let ahead = (i64::try_from(node).unwrap() - 1) * 7 + minutes;
            let mut writing = JoinSet::new();
            for _ in 0..3 {
                ids += 1;
                let (store, new) = (bed.store.clone(), made(ids, node, ahead * MINUTE));
                writing.spawn(async move { (new.run, store.insert(&new).await.unwrap()) });
            }
            let mut batch = Vec::new();
            for (run, written) in writing.join_all().await {
                let Changed::Done(age) = written else {
                    panic!("its key was taken");
                };
                assert!(age.0 >= NOW + ahead * MINUTE);
                batch.push((run, age));
            }
            batch.sort_by_key(|(_, age)| *age);
            inserted[usize::try_from(node).unwrap()].extend(batch);
        }
    }
    for (node, runs) in (0..).zip(&inserted) {
        assert!(runs.is_sorted_by(|a, b| a.1 < b.1), "{runs:?}");
        let filter = ListFilter {
            nodes: vec![NodeId::from_u128(NODE + node)],
            order: ListOrder::OldestFirst,
            ..ListFilter::default()
        };
        for from in 0..runs.len() {
            let start = filter.order.end_of(runs[from].1);
            let page = bed.store.list(&filter, Some(start), 100).await.unwrap();
            let found: Vec<_> = page.rows.iter().map(|row| row.new.run).collect();
            let later: Vec<_> = runs[from + 1..].iter().map(|(run, _)| *run).collect();
            assert_eq!(found, later);
        }
    }
    let (mut listed, mut start) = (Vec::new(), None);
    loop {
        let filter = ListFilter::default();
        let page = bed.store.list(&filter, start, 7).await.unwrap();
        listed.extend(page.rows.iter().map(|row| (row.new.age, row.new.run)));
        start = page.next;
        if start.is_none() {
            break;
        }
    }
    let mut wanted: Vec<_> = inserted.concat().into_iter().map(|(r, a)| (a, r)).collect();
    wanted.sort_by(|a, b| b.cmp(a));
    assert_eq!(listed, wanted);
    assert_eq!(bed.store.newest_age().await.unwrap(), wanted[0].0);
}

/// Others will watch a row by its seq.
// promise: D-11
pub(super) async fn each_change_raises_the_rows_seq(bed: Bed) {
    let store = &bed.store;
    let generation = store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = service(1);
    let run = new.run;
    let mut seq = 0;
    let mut raw = Raw::to(&bed.url).await;
    let mut raised = async |by: i64, what: &str| {
        seq += by;
        let sql = format!("UPDATE runs SET seq = seq / (CASE WHEN seq = {seq} THEN 1 ELSE 0 END)");
        raw.execute(&sql).await.expect(what);
        // SQLite divides by zero to NULL, which the column refuses.
    };
    store.insert(&new).await.unwrap();
    raised(1, "insert").await;
    let state = store.record_state(run, generation, RowState::Running, None);
    state.await.unwrap();
    raised(1, "state").await;
    store
        .record_facets(run, generation, &facets())
        .await
        .unwrap();
    raised(1, "facets").await;
    store.rest(&new, &rest(&[ended(1)], 1)).await.unwrap();
    raised(1, "rest").await;
    let second = next(&new, 2);
    store.begin(&second, 1).await.unwrap();
    raised(1, "begin").await;
    store
        .record_stop(run, generation, &order(), Timestamp(9))
        .await
        .unwrap();
    raised(1, "stop").await;
    let held = kennel_store::Opening {
        held: vec![run],
        ..opening(NODE, EPOCH + 1)
    };
    let generation = store.open_node(&held).await.unwrap();
    raised(1, "keeper").await;
    let second = NewRun {
        generation,
        ..second
    };
    store.mend(&RunRow::open(second.clone())).await.unwrap();
    raised(1, "mend").await;
    store.close(&second, &closure()).await.unwrap();
    raised(1, "close").await;
    let removal = OutputRemoval {
        at: Timestamp(4),
        reason: RemovalReason::Age,
        seq: 5,
        lens: [6, 7],
        counted: true,
    };
    let marked = store.mark_output_removed(run, new.node, generation, &removal);
    marked.await.unwrap();
    raised(1, "removal").await;
    store.close(&second, &closure()).await.unwrap();
    raised(0, "a repeated end").await;
}

/// The database was replaced by an older copy: a row that is written again has its age, unless another run has that.
// promise: A-9
pub(super) async fn lost_row_returns_to_its_place(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let age = async |id| {
        bed.store
            .get(new_run(id).run)
            .await
            .unwrap()
            .unwrap()
            .new
            .age
    };
    bed.store.insert(&made(1, 0, 0)).await.unwrap();
    bed.store.insert(&made(2, 0, 60 * MINUTE)).await.unwrap();
    let lost = NewRun {
        age: Age(NOW + 7),
        ..made(3, 0, 7)
    };
    bed.store.mend(&RunRow::open(lost.clone())).await.unwrap();
    assert_eq!(age(3).await, Age(NOW + 7));
    let other = NewRun {
        run: new_run(4).run,
        ..lost
    };
    bed.store.mend(&RunRow::open(other)).await.unwrap();
    assert_eq!(age(4).await, Age(NOW + 60 * MINUTE + 1));
}

/// The columns of a row have the identity of its last attempt: its entries do not repeat it, and readers get it.
// promise: O-42
pub(super) async fn recorded_identity_is_stored_once(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = new_run(1);
    let mut list = EntryList::default();
    let identity = new.identity.clone().unwrap();
    let earlier = next(&new, 2).identity.unwrap();
    for (seq, identity) in [(1, &earlier), (2, &identity)] {
        let place = EntryPlace {
            seq,
            at: Timestamp(2),
            attempt: 1,
            lens: [0, 0],
        };
        let entry = Entry::Recorded {
            identity: Box::new(identity.clone()),
            output_offsets: [0, 0],
        };
        list.push(place, &serde_json::to_string(&entry).unwrap());
    }
    let place = EntryPlace {
        seq: 3,
        at: Timestamp(2),
        attempt: 1,
        lens: [0, 0],
    };
    list.push(place, r#"{"warning":{"message":"\"identity\":null"}}"#);
    let entries = Some(list.text(None, true));
    let closure = Closure {
        entries: entries.clone(),
        ..closure()
    };
    bed.store.close(&new, &closure).await.unwrap();
    let row = bed.store.get(new.run).await.unwrap().unwrap();
    assert_eq!(row.entries, entries);
    let sql = "UPDATE runs SET seq = NULL WHERE entries LIKE '%\"identity\":null%' AND entries LIKE '%\"identity\":{%'";
    let stored = Raw::to(&bed.url).await.execute(sql).await;
    stored.expect_err("one of the two is not stored");
}
