//! Generations, CHECKs and the schema's own number.

use super::{
    Bed, Calls, Raw,
    attempts::{ended, next, rest, service},
    rows::{EPOCH, NODE, closure, host, new_run, opening, order, process},
    store,
};
use kennel_lifecycle::{Facets, KeeperEpoch, NodeId, RowState, Timestamp};
use kennel_store::{
    Change, EpochRow, ListFilter, ListPage, OpenError, RunRow, StoreError, StoreUrl, open,
    spec_text,
};

// promise: R-6
pub(super) async fn an_older_generation_writes_nothing(bed: Bed) {
    let old = bed.store.clone();
    assert_eq!(old.open_node(&opening(NODE, EPOCH)).await.unwrap(), 1);
    old.insert(&new_run(1)).await.unwrap();
    let waits = service(5);
    old.insert(&waits).await.unwrap();
    old.rest(&waits, &rest(&[ended(1)], 1)).await.unwrap();
    let new = store(&bed.url).await;
    assert_eq!(new.open_node(&opening(NODE, EPOCH + 1)).await.unwrap(), 2);
    let run = new_run(1).run;
    let before = new.get(run).await.unwrap();

    let refused = [
        old.insert(&new_run(2)).await.map(|_| ()),
        old.fence(&new_run(3), &closure()).await.map(|_| ()),
        old.record_stop(run, 1, &order(), Timestamp(5)).await,
        old.record_state(run, 1, RowState::Running, None).await,
        old.record_facets(run, 1, &Facets::default()).await,
        old.close(&new_run(1), &closure()).await,
        old.close(&new_run(4), &closure()).await,
        old.rest(&new_run(1), &rest(&[ended(1)], 1)).await,
        old.begin(&next(&waits, 2), 1).await,
        old.withdraw(run, NodeId::from_u128(NODE), 1).await,
        old.mend(&RunRow {
            restarts: 9,
            ..RunRow::open(new_run(1))
        })
        .await,
    ];

    for (i, result) in refused.into_iter().enumerate() {
        assert!(
            matches!(result, Err(StoreError::Fenced(_))),
            "{i}: {result:?}"
        );
    }
    assert_eq!(new.get(run).await.unwrap(), before);
    for id in [2, 3, 4] {
        assert_eq!(new.get(new_run(id).run).await.unwrap(), None);
    }
    let mut present = new_run(1);
    present.generation = 2;
    new.close(&present, &closure()).await.unwrap();
    let mut second = next(&waits, 2);
    second.generation = 2;
    new.begin(&second, 1).await.unwrap();
    new.finish().await;
}

pub(super) async fn a_new_generation_writes_no_row(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    bed.store.close(&new_run(2), &closure()).await.unwrap();
    let rows = async || {
        let page = bed.store.list(&ListFilter::default(), None, 9).await;
        page.unwrap().rows
    };
    let before = rows().await;

    for generation in [2, 3] {
        let opened = bed.store.open_node(&opening(NODE, EPOCH)).await;
        assert_eq!(opened.unwrap(), generation);
        assert_eq!(rows().await, before);
    }
}

pub(super) async fn only_keepers_with_rows_or_lease_are_listed(bed: Bed) {
    let node = NodeId::from_u128(NODE);
    for generation in 1..=3 {
        let epoch = EPOCH + u128::try_from(generation).unwrap();
        bed.store.open_node(&opening(NODE, epoch)).await.unwrap();
        let mut new = new_run(epoch);
        new.generation = generation;
        new.keeper_epoch = KeeperEpoch::from_u128(epoch);
        if generation == 2 {
            bed.store.close(&new, &closure()).await.unwrap();
        } else {
            bed.store.insert(&new).await.unwrap();
        }
    }

    let found = bed.store.open_epochs(node).await.unwrap();

    let expected = [EPOCH + 1, EPOCH + 3].map(|epoch| EpochRow {
        has_open: true,
        keeper_epoch: KeeperEpoch::from_u128(epoch),
        keeper: process(4000),
        host: host(),
    });
    assert_eq!(found, expected);
    // The keeper with the lease is listed too.
    let last = EPOCH + 4;
    bed.store.open_node(&opening(NODE, last)).await.unwrap();
    let found = bed.store.open_epochs(node).await.unwrap();
    let listed: Vec<_> = found
        .iter()
        .map(|row| (row.keeper_epoch.as_u128(), row.has_open))
        .collect();
    assert_eq!(
        listed,
        [(EPOCH + 1, true), (EPOCH + 3, true), (last, false)]
    );
    let elsewhere = bed.store.open_epochs(NodeId::from_u128(NODE + 1)).await;
    assert_eq!(elsewhere.unwrap(), []);
}

// promise: R-52
pub(super) async fn run_of_a_later_keeper_is_its_own(bed: Bed) {
    let next = EPOCH + 1;
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for id in [1, 2] {
        bed.store.insert(&new_run(id)).await.unwrap();
    }
    bed.store.insert(&new_run(3)).await.unwrap();
    bed.store.close(&new_run(3), &closure()).await.unwrap();

    let mut taken = opening(NODE, next);
    taken.held = vec![new_run(1).run, new_run(3).run, new_run(9).run];
    bed.store.open_node(&taken).await.unwrap();

    for (id, expected) in [(1, next), (2, EPOCH), (3, EPOCH)] {
        let row = bed.store.get(new_run(id).run).await.unwrap().unwrap();
        let expected = KeeperEpoch::from_u128(expected);
        assert_eq!(row.new.keeper_epoch, expected, "row {id}");
    }
    let epochs = bed
        .store
        .open_epochs(NodeId::from_u128(NODE))
        .await
        .unwrap();
    assert_eq!(epochs.len(), 2, "{epochs:?}");
}

pub(super) async fn a_keeper_of_another_node_raises_no_generation(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store
        .open_node(&opening(NODE + 1, EPOCH + 1))
        .await
        .unwrap();

    let mixed_up = bed.store.open_node(&opening(NODE, EPOCH + 1)).await;

    assert!(
        matches!(mixed_up, Err(StoreError::Corrupt(_))),
        "{mixed_up:?}"
    );
    assert_eq!(bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap(), 2);
}

/// CHECK, and a change of an open row (first part) or a closed one (second) that it has to refuse.
const REFUSED_OF_OPEN: [(&str, &str); 34] = [
    ("runs_entries", "entries = '{}'"),
    (
        "runs_output_removed",
        "output_removed_us = 1, output_removed_detail = '{}'",
    ),
    ("runs_names", "state = ''"),
    ("runs_names", "desired = ''"),
    ("runs_names", "kind = ''"),
    ("runs_counters", "attempt = 0"),
    ("runs_counters", "generation = 0"),
    ("runs_counters", "grace_period_ms = -1"),
    ("runs_counters", "restarts = -1"),
    ("runs_backoff", "state = 'backoff'"),
    ("runs_attempts", "attempts_detail = '{}'"),
    ("runs_facets", "facets = '[]'"),
    ("runs_terminal_has_time", "ended_us = 1"),
    ("runs_terminal_has_verdict", "tree_verdict = 'never_ran'"),
    ("runs_terminal_has_certificate", "certificate_detail = '{}'"),
    ("runs_open_has_no_end", "end_detail = '{}'"),
    ("runs_open_has_no_end", "exit_kind = 'unknown'"),
    ("runs_open_has_no_end", "tree_detail = '{}'"),
    ("runs_open_has_no_end", "streams_end = 'eof'"),
    ("runs_stop", "stop_deadline = 1"),
    ("runs_stop", "stop_detail = '{}'"),
    ("runs_identity_whole", "process_group_id = NULL"),
    ("runs_identity_whole", "session_id = NULL"),
    ("runs_identity_whole", "pidns_inode = NULL"),
    ("runs_identity_whole", "shim_pid = NULL"),
    ("runs_identity_whole", "shim_process_group_id = NULL"),
    ("runs_identity_whole", "shim_session_id = NULL"),
    ("runs_identity_whole", "start_ticks = NULL"),
    ("runs_identity_whole", "boot_id = NULL"),
    ("runs_identity_whole", "shim_start_ticks = NULL"),
    ("runs_pids", "process_pid = 0"),
    ("runs_pids", "shim_pid = -1"),
    ("runs_cgroup_whole", "cgroup_inode = NULL"),
    ("runs_labels", "labels = '[]'"),
];
const REFUSED_OF_CLOSED: [(&str, &str); 8] = [
    ("runs_entries", "entries = '[]'"),
    ("runs_output_removed", "output_removed_us = 1"),
    ("runs_output_removed", "output_removed_detail = '{}'"),
    ("runs_terminal_has_time", "ended_us = NULL"),
    ("runs_terminal_has_verdict", "tree_verdict = NULL"),
    ("runs_terminal_has_certificate", "certificate_detail = NULL"),
    ("runs_exit", "exit_kind = NULL"),
    ("runs_backoff", "next_restart_us = 1"),
];
/// Columns of a process: a row has all of them or none.
const IDENTITY: [&str; 11] = [
    "process_pid",
    "process_group_id",
    "session_id",
    "start_ticks",
    "boot_id",
    "pidns_inode",
    "shim_pid",
    "shim_process_group_id",
    "shim_session_id",
    "shim_start_ticks",
    "containment_detail",
];

/// A later version can use other names without a change of the table, and a row that waits for a place has no process.
// promise: D-31
pub(super) async fn checks_admit_names_of_later_versions(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    bed.store.close(&new_run(2), &closure()).await.unwrap();
    let mut raw = Raw::to(&bed.url).await;
    let gone = "cgroup_path = NULL, cgroup_inode = NULL, pidfs_handle = NULL, shim_pidfs_handle = NULL, \
        pidns_init_start_ticks = NULL";
    let none = IDENTITY.map(|column| format!("{column} = NULL")).join(", ");
    let bare = format!("{none}, {gone}");
    let of = |id: u128, change: &str| {
        let run = new_run(id).run;
        format!("UPDATE runs SET {change} WHERE run_id = '{run}'")
    };

    let refused = raw.execute(&of(1, &bare)).await.unwrap_err();
    assert!(refused.contains("runs_open_has_identity"), "{refused}");
    for (id, change) in [
        (1, &*format!("state = 'queued', {bare}")),
        (1, "desired = 'hold', kind = 'cron', next_restart_us = 1"),
        (
            2,
            "state = 'skipped', end_reason = 'boredom', end_detail = '{}'",
        ),
        (2, "exit_kind = 'asleep', exit_value = 4711"),
        (2, "tree_verdict = 'bare', streams_end = 'dry'"),
    ] {
        raw.execute(&of(id, change)).await.expect(change);
    }

    for id in [1, 2] {
        let read = bed.store.get(new_run(id).run).await;
        assert!(matches!(read, Err(StoreError::Unread(_))), "{read:?}");
    }
    raw.execute(&of(2, "ended_us = NULL")).await.unwrap_err();
}

// promise: D-11
pub(super) async fn every_check_refuses_what_no_run_can_be(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    bed.store.close(&new_run(2), &closure()).await.unwrap();
    let mut bare = new_run(3);
    bare.identity = None;
    bare.held = None;
    bed.store.close(&bare, &closure()).await.unwrap();
    let mut raw = Raw::to(&bed.url).await;
    let all = (REFUSED_OF_OPEN.iter().map(|case| (1, case)))
        .chain(REFUSED_OF_CLOSED.iter().map(|case| (2, case)));

    for (id, (check, change)) in all {
        let run = new_run(id).run;
        let sql = format!("UPDATE runs SET {change} WHERE run_id = '{run}'");
        let error = raw.execute(&sql).await.expect_err(change);
        assert!(
            error.contains(check),
            "{change} was refused by another check: {error}"
        );
    }

    let long = format!("{{\"a\":\"{}\"}}", "a".repeat(64 * 1024));
    let run = new_run(2).run;
    let sql = format!("UPDATE runs SET entries = '{long}' WHERE run_id = '{run}'");
    let error = raw.execute(&sql).await.expect_err("too long");
    assert!(error.contains("runs_entries"), "{error}");
    let others = [
        "UPDATE runs SET run_id = 'short'",
        "UPDATE runs SET pidfs_handle = 1 WHERE process_pid IS NULL",
        "UPDATE runs SET shim_pidfs_handle = 1 WHERE process_pid IS NULL",
        "UPDATE runs SET pidns_init_start_ticks = 1 WHERE process_pid IS NULL",
        "UPDATE runs SET containment_detail = '{}' WHERE process_pid IS NULL",
        "UPDATE runs SET cgroup_path = '/', cgroup_inode = 1 WHERE process_pid IS NULL",
        "UPDATE nodes SET generation = 0",
        "UPDATE keeper_epochs SET process_pid = 0",
        "INSERT INTO consumers SELECT node, 'x', 'n', 'o', 1, 0, 'c', 1, NULL FROM nodes",
        "INSERT INTO consumers SELECT node, '', '', 'o', 1, 0, 'c', 1, NULL FROM nodes",
        "INSERT INTO consumers SELECT node, '', 'n', 'o', 0, 0, 'c', 1, NULL FROM nodes",
        "INSERT INTO consumers SELECT node, '', 'n', 'o', 1, -1, 'c', 1, NULL FROM nodes",
        "INSERT INTO consumers SELECT node, '', 'n', 'o', 1, 0, '', 1, NULL FROM nodes",
        "INSERT INTO consumers VALUES ('nobody', '', 'n', 'o', 1, 0, 'c', 1, NULL)",
        "UPDATE keeper_epochs SET node = '00000000000000000000000000'",
    ];
    for sql in others {
        raw.execute(sql).await.expect_err(sql);
    }
    // A valid state is accepted: the checks above refuse for their own reason.
    raw.execute("UPDATE runs SET attempt = 2").await.unwrap();
    assert_eq!(
        bed.store
            .get(new_run(1).run)
            .await
            .unwrap()
            .unwrap()
            .new
            .attempt,
        2
    );
}

pub(super) async fn a_changed_migration_is_refused(bed: Bed) {
    let mut raw = Raw::to(&bed.url).await;
    raw.execute("UPDATE _sqlx_migrations SET checksum = '' WHERE version = 1")
        .await
        .unwrap();
    let url: StoreUrl = bed.url.parse().unwrap();

    let refused = open(&url).await.map(|_| ());

    assert!(
        matches!(refused, Err(OpenError::SchemaDiffers { version: 1 })),
        "{refused:?}"
    );
}

pub(super) async fn a_row_that_cannot_be_read_is_corrupt(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.close(&new_run(1), &closure()).await.unwrap();
    let mut raw = Raw::to(&bed.url).await;
    raw.execute("UPDATE runs SET tree_detail = '\"hearsay\"'")
        .await
        .unwrap();

    let read = bed.store.get(new_run(1).run).await;

    let Err(StoreError::Unread(row)) = read else {
        panic!("{read:?}");
    };
    assert_eq!((row.run, &*row.owner), (new_run(1).run, "uid:1000"));
    let text = row.to_string();
    assert!(
        text.contains("hearsay") && text.contains(&new_run(1).run.to_string()),
        "{text}"
    );
    // An ended run needs no fence under its key.
    assert!(row.has_ended);
    let fence = Change::Fenced(Box::new(new_run(1)), Box::new(closure()));
    let fenced = fence
        .write_late(&*bed.store, NodeId::from_u128(NODE), 1, new_run(1).run)
        .await;
    assert!(fenced.is_ok(), "{fenced:?}");
}

// promise: D-31a, D-31c, I-76a, I-92
pub(super) async fn row_that_cannot_be_read_hides_no_other(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for run in 1..=3 {
        bed.store.insert(&new_run(run)).await.unwrap();
    }
    let unreadable = new_run(2);
    let sql = format!(
        "UPDATE runs SET spec = '{{\"policy\":{{\"kind\":\"later\"}}}}' WHERE run_id = '{}'",
        unreadable.run
    );
    Raw::to(&bed.url).await.execute(&sql).await.unwrap();

    // Another node does not read such a spec.
    let url: StoreUrl = bed.url.parse().unwrap();
    let other = open(&url).await.unwrap();
    let all = ListFilter::default();
    let page = other.list(&all, None, 2).await.unwrap();

    let [row] = &page.unread[..] else {
        panic!("{page:?}");
    };
    assert_eq!(
        (row.run, row.node, row.created),
        (unreadable.run, unreadable.node, unreadable.created)
    );
    // A stop needs both fields.
    assert_eq!(
        (row.grace, row.has_ended),
        (unreadable.spec.policy.grace(), false)
    );
    assert!(row.why.contains("later"), "{}", row.why);
    let runs = |page: &ListPage| page.rows.iter().map(|row| row.new.run).collect::<Vec<_>>();
    assert_eq!(runs(&page), [new_run(3).run]);
    let rest = other.list(&all, page.next, 2).await.unwrap();
    assert_eq!((runs(&rest), rest.next), (vec![new_run(1).run], None));

    // The run's own node reads the other columns, also after the end.
    let page = bed.store.list(&all, None, 3).await.unwrap();
    assert_eq!((page.rows.len(), page.unread.len()), (3, 0));
    let sql = format!(
        "UPDATE runs SET state = 'later' WHERE run_id = '{}'",
        new_run(3).run
    );
    Raw::to(&bed.url).await.execute(&sql).await.unwrap();
    let open = bed.store.open_runs(unreadable.node).await.unwrap();
    let rows: Vec<_> = open.rows.iter().map(|row| row.new.run).collect();
    assert_eq!(rows, [new_run(1).run, unreadable.run]);
    let [row] = &open.unread[..] else {
        panic!("{open:?}");
    };
    assert_eq!((row.run, row.attempt), (new_run(3).run, 1));
    let spec = &open.rows[1].new.spec;
    assert_eq!(spec.unknown(), Some("policy.kind"));
    assert_eq!(spec_text(spec), r#"{"policy":{"kind":"later"}}"#);
    let asked = [1, 2, 3].map(|run| new_run(run).run);
    bed.store.close(&unreadable, &closure()).await.unwrap();
    for (store, read) in [(&bed.store, 2), (&other, 1)] {
        let found = store.get_all(&asked).await.unwrap();
        assert_eq!((found.rows.len(), found.unread.len()), (read, 3 - read));
        let ended = store.get(unreadable.run).await;
        assert_eq!(ended.is_ok(), read == 2, "{ended:?}");
    }
}
