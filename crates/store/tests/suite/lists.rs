//! Pages and filters.

use super::{
    Bed, Calls, Raw,
    rows::{EPOCH, NODE, closure, entries, host, new_run, opening, order, process, respec},
};
use kennel_lifecycle::{
    EndReason, Exit, NodeId, OnParentEnd, Parent, RowState, RunId, RunKind, RunState, Timestamp,
};
use kennel_store::{Age, Changed, ListFilter, ListOrder, ListPage, NewRun, SCANNED_MAX, row_bytes};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

// promise: A-9
pub(super) async fn pages_stay_contiguous_while_rows_are_added(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let add = async |id: u128, created: i64| {
        let mut new = new_run(id);
        new.created = Timestamp(created);
        new.age = Age::NONE;
        bed.store.insert(&new).await.unwrap();
    };
    // Five rows share each timestamp, so the key must order them.
    for id in 1..=25_u32 {
        add(u128::from(id), i64::from(id / 5)).await;
    }

    let mut seen = Vec::new();
    let mut start = None;
    loop {
        let page = bed
            .store
            .list(&ListFilter::default(), start, 4)
            .await
            .unwrap();
        assert!(page.rows.len() <= 4);
        seen.extend(page.rows.iter().map(|row| row.new.run));
        start = page.next;
        if start.is_none() {
            break;
        }
        add(1000 + u128::try_from(seen.len()).unwrap(), 1_000).await;
    }

    let expected: Vec<RunId> = (1..=25).rev().map(|id| new_run(id).run).collect();
    assert_eq!(seen, expected);
}

/// Entries may be long, and no list uses them.
// promise: O-46
pub(super) async fn entries_are_read_with_their_row_alone(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = new_run(1);
    bed.store.close(&new, &closure()).await.unwrap();
    let row = bed.store.get(new.run).await.unwrap().unwrap();
    assert_eq!(row.entries, Some(entries()));
    row.entries.as_ref().unwrap().read().unwrap();
    let pids = [process(5000).pid];
    let lists = [
        bed.store
            .list(&ListFilter::default(), None, 9)
            .await
            .map(|page| page.rows),
        bed.store.get_all(&[new.run]).await.map(|found| found.rows),
        bed.store.ended_with_pids(node, &host(), &pids, 9).await,
    ];
    for list in lists {
        let mut without = row.clone();
        without.entries = None;
        assert_eq!(list.unwrap(), [without]);
    }
    // An unreadable value in `entries` affects only that column.
    let sql = format!(
        "UPDATE runs SET entries = '{{\"entries\":7}}' WHERE run_id = '{}'",
        new.run
    );
    Raw::to(&bed.url).await.execute(&sql).await.unwrap();
    let row = bed.store.get(new.run).await.unwrap().unwrap();
    let refused = row.entries.unwrap().read().unwrap_err();
    assert!(refused.starts_with("entries: "), "{refused}");
}

// promise: O-22
pub(super) async fn runs_of_a_node_can_come_oldest_first(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    // Three rows share each timestamp.
    for id in 1..=12_u32 {
        let mut new = new_run(u128::from(id));
        new.created = Timestamp(i64::from(id / 3));
        new.age = Age::NONE;
        bed.store.insert(&new).await.unwrap();
    }
    let of = |node: u128| ListFilter {
        nodes: vec![NodeId::from_u128(node)],
        order: ListOrder::OldestFirst,
        ..ListFilter::default()
    };
    let (mut seen, mut start) = (Vec::new(), None);
    loop {
        let page = bed.store.list(&of(NODE), start, 5).await.unwrap();
        seen.extend(page.rows.iter().map(|row| row.new.run));
        start = page.next;
        if start.is_none() {
            break;
        }
    }
    let expected: Vec<RunId> = (1..=12).map(|id| new_run(id).run).collect();
    assert_eq!(seen, expected);
    let others = bed.store.list(&of(NODE + 1), None, 5).await.unwrap();
    assert_eq!(others, ListPage::default());
}

/// The run with the next age.
fn aged(mut new: NewRun) -> NewRun {
    new.created = Timestamp(1);
    new.age = Age::NONE;
    new
}

/// Few rows match: a page ends after so many were examined, and says where the next begins.
// promise: I-77, I-77a
pub(super) async fn rare_rows_are_found_page_by_page(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let count = u128::from(SCANNED_MAX) + 5;
    let rare = respec(new_run(1), |spec| spec.policy.kind = RunKind::Service);
    bed.store.insert(&aged(rare)).await.unwrap();
    let rows: Vec<u128> = (2..=count).collect();
    for rows in rows.chunks(1_000) {
        let mut written = JoinSet::new();
        for id in rows.iter().copied() {
            let store = bed.store.clone();
            written.spawn(async move { store.insert(&aged(new_run(id))).await });
        }
        for written in written.join_all().await {
            assert!(matches!(written.unwrap(), Changed::Done(_)));
        }
    }
    let filter = ListFilter {
        kinds: vec![RunKind::Service],
        ..ListFilter::default()
    };
    let page = bed.store.list(&filter, None, 9).await.unwrap();
    assert_eq!(page.rows, []);
    assert_eq!(page.next.expect("rows follow").age, Age(6));
    let page = bed.store.list(&filter, page.next, 9).await.unwrap();
    let found: Vec<RunId> = page.rows.iter().map(|row| row.new.run).collect();
    assert_eq!((found, page.next), (vec![new_run(1).run], None));
    let filter = ListFilter {
        order: ListOrder::OldestFirst,
        kinds: vec![RunKind::Service],
        ..ListFilter::default()
    };
    let page = bed.store.list(&filter, None, 9).await.unwrap();
    assert_eq!(page.rows.len(), 1);
    let next = page.next.expect("rows follow");
    assert_eq!(next.age, Age(i64::from(SCANNED_MAX)));
    // The filter excludes the run that was examined last.
    assert_eq!(next.run, RunId::from_u128(u128::MAX));
}

fn parent() -> Parent {
    Parent {
        run: RunId::from_u128(77),
        on_end: OnParentEnd::Keep,
    }
}

fn below_parent() -> ListFilter {
    ListFilter {
        parent: Some(parent().run),
        ..ListFilter::default()
    }
}

pub(super) async fn filters_by_state_kind_and_labels(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let kinds = [
        RunKind::Heartbeat,
        RunKind::Service,
        RunKind::Terminal,
        RunKind::Job,
    ];
    for (id, kind) in (1..=9).zip(kinds.into_iter().cycle()) {
        let new = respec(new_run(id), |spec| {
            spec.policy.kind = kind;
            spec.labels = BTreeMap::from([
                ("id".into(), id.to_string()),
                ("a.b/odd_x".into(), (id % 2 == 1).to_string()),
            ]);
            spec.parent = (id == 2).then(parent);
            if id % 3 == 0 {
                spec.labels.insert("third".into(), String::new());
            }
        });
        bed.store.insert(&new).await.unwrap();
    }
    let run = |id| new_run(id).run;
    // Runs: 1 starting; 2 running; 3 pausing; 4 paused; 5 paused and to stop; 6 to 9 ended.
    for (id, state) in [
        (2, RowState::Running),
        (3, RowState::Pausing),
        (4, RowState::Paused),
        (5, RowState::Paused),
    ] {
        bed.store
            .record_state(run(id), 1, state, None)
            .await
            .unwrap();
    }
    bed.store
        .record_stop(run(5), 1, &order(), Timestamp(1))
        .await
        .unwrap();
    for (id, reason, code) in [
        (6, EndReason::Exited, 0),
        (7, EndReason::Exited, 1),
        (8, EndReason::ServerShutdown, 0),
        (9, EndReason::ServiceLost, 0),
    ] {
        let mut end = closure();
        end.outcome.reason = reason;
        end.outcome.exit = Some(Exit::Code(code));
        bed.store.close(&new_run(id), &end).await.unwrap();
    }

    let labels = |selector: &str| ListFilter {
        labels: selector.parse().unwrap(),
        ..ListFilter::default()
    };
    let part = |part: &str| ListFilter {
        id_part: Some(part.parse().unwrap()),
        ..ListFilter::default()
    };
    let states = |states: &[RunState]| ListFilter {
        states: states.to_vec(),
        ..ListFilter::default()
    };
    let mut both = states(&[RunState::Running, RunState::Lost]);
    both.kinds = vec![RunKind::Heartbeat, RunKind::Terminal];
    for (filter, expected) in [
        (ListFilter::default(), vec![9, 8, 7, 6, 5, 4, 3, 2, 1]),
        (below_parent(), vec![2]),
        (states(&[RunState::Starting]), vec![1]),
        (states(&[RunState::Running]), vec![3, 2]),
        (states(&[RunState::Paused]), vec![4]),
        (states(&[RunState::Stopping]), vec![5]),
        (states(&[RunState::Succeeded]), vec![6]),
        (states(&[RunState::Failed]), vec![7]),
        (states(&[RunState::Cancelled]), vec![8]),
        (states(&[RunState::Lost, RunState::Starting]), vec![9, 1]),
        (both, vec![9, 3]),
        (labels("id=4"), vec![4]),
        (labels("a.b/odd_x=true"), vec![9, 7, 5, 3, 1]),
        (labels("a.b/odd_x=true,id=3"), vec![3]),
        (labels("a.b/odd_x=true,id=2"), vec![]),
        (labels("absent="), vec![]),
        (labels("id in (3,4,12)"), vec![4, 3]),
        (labels("id notin (3,4,5,6,7)"), vec![9, 8, 2, 1]),
        (labels("id!=1,a.b/odd_x!=false"), vec![9, 7, 5, 3]),
        (labels("third"), vec![9, 6, 3]),
        (labels("!third,id in (1,3)"), vec![1]),
        (labels("third!=x,id in (3)"), vec![3]),
        (labels("absent!=x,id in (3)"), vec![3]),
        (part("0000000000000000000000000a"), vec![]),
        (part("00000000000000000000000003"), vec![3]),
        (part("3"), vec![3]),
        (part("000"), vec![9, 8, 7, 6, 5, 4, 3, 2, 1]),
    ] {
        let page = bed.store.list(&filter, None, 100).await.unwrap();
        let found: Vec<RunId> = page.rows.iter().map(|row| row.new.run).collect();
        let expected: Vec<RunId> = expected.into_iter().map(run).collect();
        assert_eq!(found, expected, "{filter:?}");
    }
}

// promise: I-5
pub(super) async fn open_runs_are_those_of_the_node(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store
        .open_node(&opening(NODE + 1, EPOCH + 1))
        .await
        .unwrap();
    let mut foreign = new_run(1);
    foreign.node = NodeId::from_u128(NODE + 1);
    bed.store.insert(&foreign).await.unwrap();
    bed.store.insert(&new_run(2)).await.unwrap();
    bed.store.insert(&new_run(3)).await.unwrap();
    bed.store.close(&new_run(3), &closure()).await.unwrap();

    let open = bed.store.open_runs(NodeId::from_u128(NODE)).await.unwrap();

    assert_eq!(open.runs().collect::<Vec<_>>(), [new_run(2).run]);
}

pub(super) async fn audit_finds_rows_by_key_or_number(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let node = NodeId::from_u128(NODE);
    let with = |id: u128, command: i32, shim: i32| {
        let mut new = new_run(id);
        new.created = Timestamp(i64::try_from(id).unwrap());
        let identity = new.identity.as_mut().unwrap();
        identity.command.pid = command;
        identity.shim.pid = shim;
        new
    };
    let mut elsewhere = with(4, 100, 200);
    elsewhere.identity.as_mut().unwrap().host.boot_id = "another".into();
    for new in [
        with(1, 100, 200),
        with(2, 100, 201),
        with(3, 101, 200),
        elsewhere,
    ] {
        bed.store.insert(&new).await.unwrap();
        // Run 2 stays open.
        if new.run != RunId::from_u128(2) {
            bed.store.close(&new, &closure()).await.unwrap();
        }
    }
    let ids = |rows: Vec<kennel_store::RunRow>| -> Vec<u128> {
        rows.iter().map(|row| row.new.run.as_u128()).collect()
    };

    let asked = [1, 2, 99].map(RunId::from_u128);
    let mut found = ids(bed.store.get_all(&asked).await.unwrap().rows);
    found.sort_unstable();
    assert_eq!(found, [1, 2]);
    assert_eq!(bed.store.get_all(&[]).await.unwrap().runs().count(), 0);

    let host = super::rows::host();
    let numbered = async |pids: &[i32], limit| {
        let rows = bed.store.ended_with_pids(node, &host, pids, limit).await;
        ids(rows.unwrap())
    };
    assert_eq!(numbered(&[100], 9).await, [1]);
    assert_eq!(numbered(&[200, 300], 9).await, [3, 1]);
    assert_eq!(numbered(&[200], 1).await, [3]);
    assert_eq!(numbered(&[201], 9).await, [0_u128; 0]);
    assert_eq!(numbered(&[], 9).await, [0_u128; 0]);
}

// promise: I-132
pub(super) async fn bytes_of_rows_are_summed_by_owner(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store
        .open_node(&opening(NODE + 1, EPOCH + 1))
        .await
        .unwrap();
    let of = |id: u128, owner: &str| NewRun {
        owner: owner.to_owned(),
        ..new_run(id)
    };
    let (one, ended, other) = (of(1, "alice"), of(2, "alice"), of(3, "bob"));
    bed.store.insert(&one).await.unwrap();
    bed.store.close(&ended, &closure()).await.unwrap();
    bed.store.insert(&other).await.unwrap();
    let elsewhere = NewRun {
        node: NodeId::from_u128(NODE + 1),
        ..of(4, "alice")
    };
    bed.store.insert(&elsewhere).await.unwrap();
    let mut sums = bed.store.record_bytes(node).await.unwrap();
    sums.sort();
    // Each new row has the same facets.
    let facets = sums[1].1 - row_bytes(&other);
    let rows = row_bytes(&one) + row_bytes(&ended) + 2 * facets;
    let of_alice = rows + entries().as_str().len() as u64;
    let of_bob = row_bytes(&other) + facets;
    assert_eq!(
        sums,
        [("alice".to_owned(), of_alice), ("bob".to_owned(), of_bob)]
    );
}
