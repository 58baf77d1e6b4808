//! Databases as versions have left them: each folder of `tests/recorded` has one of each kind, which this version reads
//! whole and continues. `next` is that of the version to come, written by `make record`; the others never change.

use super::{
    Calls, Raw,
    attempts::{ended, rest, service},
    ends::ends,
    rows::{EPOCH, NODE, closure, facets, new_run, opening, order},
    values::values,
};
use kennel_lifecycle::{NodeId, RunId, StopOrder, Timestamp};
use kennel_store::{ConsumerFilter, ConsumerKey, ConsumerRow, LeftStop, ListFilter, NewRun, Store};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Returns the folders, after the one of this version was written where that is wanted.
pub(crate) fn folders() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/recorded");
    let folders = fs::read_dir(all).unwrap();
    let folders = folders.map(|folder| folder.unwrap().path());
    folders.filter(|folder| folder.is_dir()).collect()
}

/// Returns the file of the version to come, where it is to be written.
pub(crate) fn to_write(name: &str) -> Option<PathBuf> {
    std::env::var_os("UPDATE")?;
    let next = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/recorded/next");
    fs::create_dir_all(&next).unwrap();
    Some(next.join(name))
}

/// Writes rows with each value of each kind.
pub(crate) async fn fill(store: &dyn Store) {
    let node = NodeId::from_u128(NODE);
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for new in values() {
        store.insert(&new).await.unwrap();
    }
    let run = RunId::from_u128(1);
    store.record_facets(run, 1, &facets()).await.unwrap();
    store
        .record_stop(run, 1, &order(), Timestamp(9))
        .await
        .unwrap();
    for (id, end) in (1_000..).zip(ends()) {
        store.close(&new_run(id), &end).await.unwrap();
    }
    let waiting = service(2_000);
    store.insert(&waiting).await.unwrap();
    store.rest(&waiting, &rest(&[ended(1)], 1)).await.unwrap();
    let left = LeftStop {
        run: RunId::from_u128(2),
        order: StopOrder {
            grace: Duration::from_secs(7),
            ..order()
        },
        asked: Timestamp(3),
    };
    store.leave_stop(node, &left).await.unwrap();
    let consumer = ConsumerRow {
        key: ConsumerKey {
            run: None,
            owner: "uid:1000".into(),
            name: "reader".into(),
        },
        node,
        session: 1,
        acked: 7,
        cursor: vec![0, 255],
        created: Timestamp(1),
        acked_at: Some(Timestamp(2)),
    };
    store.put_consumer(&consumer, 1).await.unwrap();
}

/// Reads everything, and continues as the next server of the node.
pub(crate) async fn continue_from(store: &dyn Store, url: &str) {
    let node = NodeId::from_u128(NODE);
    let before = store.stored_node(node).await.unwrap();
    let all = Raw::to(url).await.texts("SELECT run_id FROM runs").await;
    let (mut start, mut rows) = (None, Vec::new());
    loop {
        let page = store.list(&ListFilter::default(), start, 100).await;
        let page = page.unwrap();
        assert!(page.unread.is_empty(), "{:?}", page.unread);
        rows.extend(page.rows);
        start = page.next;
        if start.is_none() {
            break;
        }
    }
    assert_eq!(rows.len(), all.len());
    for row in &rows {
        let whole = store.get(row.new.run).await.unwrap().unwrap();
        assert_eq!(whole.outcome, row.outcome);
    }
    assert_eq!(store.left_stops(node).await.unwrap().len(), 1);
    let all = ConsumerFilter::default();
    let consumers = store.consumers(node, &all, 9).await.unwrap();
    assert_eq!(consumers.len(), 1);

    let generation = store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    assert_eq!(Some(generation - 1), before.generation);
    let open = rows.iter().filter(|row| row.outcome.is_none());
    for row in open {
        let present = NewRun {
            generation,
            ..row.new.clone()
        };
        store.close(&present, &closure()).await.unwrap();
        let row = store.get(present.run).await.unwrap().unwrap();
        assert_eq!(row.outcome, Some(closure().outcome));
    }
    let present = NewRun {
        generation,
        ..new_run(9_000)
    };
    store.insert(&present).await.unwrap();
}
