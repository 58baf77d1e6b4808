//! Levels of the schema: a later Kennel's migrations, an earlier Kennel beside it and after it, and the view for readers.

use super::{
    Bed, Calls, Raw,
    rows::{EPOCH, NODE, closure, facets, new_run, opening},
    store,
};
use kennel_lifecycle::{NodeId, Timestamp};
use kennel_store::{
    Changed, Contract, MIGRATIONS, Migration, NewRun, OpenError, SchemaState, Store, StoreError,
    StoreUrl, migrate, open_with,
};
use std::sync::Arc;

/// What follows the newest migration of this Kennel: one that adds a column and an index, and makes the view again.
pub(crate) const ADDING: Migration = Migration {
    number: MIGRATIONS[MIGRATIONS.len() - 1].number + 1,
    name: "mood",
    sqlite: "ALTER TABLE runs ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'; \
        CREATE INDEX runs_by_mood ON runs (mood); DROP VIEW kennel_runs; \
        CREATE VIEW kennel_runs AS SELECT run_id, mood FROM runs",
    postgres: "ALTER TABLE runs ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'; \
        CREATE INDEX runs_by_mood ON runs (mood); DROP VIEW kennel_runs; \
        CREATE VIEW kennel_runs AS SELECT run_id, mood FROM runs",
    min_level: None,
};
/// And one that takes away what only servers below that level use.
const CONTRACTING: Migration = Migration {
    number: ADDING.number + 1,
    name: "no parents",
    sqlite: "DROP INDEX runs_of_parent",
    postgres: "DROP INDEX runs_of_parent",
    min_level: Some(ADDING.number),
};

/// Returns the migrations of a later Kennel.
pub(crate) fn with(later: &[Migration]) -> &'static [Migration] {
    let known: Vec<_> = MIGRATIONS.iter().chain(later).copied().collect();
    Vec::leak(known)
}

async fn later(url: &str) -> Arc<dyn Store> {
    let url: StoreUrl = url.parse().unwrap();
    let known = with(&[ADDING, CONTRACTING]);
    open_with(&url, known).await.expect("an open store")
}

async fn contract(url: &str, dry_run: bool) -> Result<SchemaState, OpenError> {
    let url: StoreUrl = url.parse().unwrap();
    migrate(&url, with(&[ADDING, CONTRACTING]), Contract::Now, dry_run).await
}

fn numbers(migrations: &[Migration]) -> Vec<i64> {
    migrations.iter().map(|one| one.number).collect()
}

fn run_of(id: u128, node: u128, generation: i64) -> NewRun {
    NewRun {
        node: NodeId::from_u128(node),
        generation,
        ..new_run(id)
    }
}

// promise: D-26
pub(super) async fn earlier_and_later_servers_share_a_schema(bed: Bed) {
    let level = ADDING.number;
    let (earlier, first, second) = (&bed.store, NODE, NODE + 1);
    earlier.open_node(&opening(first, EPOCH)).await.unwrap();
    earlier.insert(&run_of(1, first, 1)).await.unwrap();

    let newer = later(&bed.url).await;
    newer.open_node(&opening(second, EPOCH + 1)).await.unwrap();
    newer.insert(&run_of(2, second, 1)).await.unwrap();
    // The server from before the migration, and one started after it.
    earlier.insert(&run_of(3, first, 1)).await.unwrap();
    let back = store(&bed.url).await;
    back.open_node(&opening(first, EPOCH)).await.unwrap();
    back.insert(&run_of(4, first, 2)).await.unwrap();
    back.close(&run_of(1, first, 2), &closure()).await.unwrap();
    back.renew(NodeId::from_u128(first), 2, None).await.unwrap();

    let schema = format!(", schema {level}");
    assert!(back.describe().ends_with(&schema), "{}", back.describe());
    for id in 1..=4 {
        let run = run_of(id, first, 1).run;
        let read = newer.get(run).await.unwrap();
        assert_eq!(read, back.get(run).await.unwrap(), "row {id}");
        assert!(read.is_some());
    }
    let mut raw = Raw::to(&bed.url).await;
    let moods = raw.texts("SELECT mood FROM kennel_runs").await;
    assert_eq!(moods, ["calm"; 4]);
    let levels = "SELECT CAST(level AS TEXT) FROM nodes ORDER BY node";
    assert_eq!(
        raw.texts(levels).await,
        [(level - 1).to_string(), level.to_string()]
    );
    for store in [newer, back] {
        store.finish().await;
    }
}

// promise: D-26, D-26a, D-27
pub(super) async fn contracting_waits_for_all_nodes(bed: Bed) {
    let level = ADDING.number;
    let node = NodeId::from_u128(NODE);
    let earlier = bed.store.clone();
    earlier.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let newer = later(&bed.url).await;
    newer
        .open_node(&opening(NODE + 1, EPOCH + 1))
        .await
        .unwrap();

    let refused = contract(&bed.url, true).await.unwrap_err();
    let OpenError::NodesBelow { min_level, nodes } = &refused else {
        panic!("{refused:?}");
    };
    assert_eq!(*min_level, level);
    assert_eq!(*nodes, format!("node-{NODE} (level {})", level - 1));
    // All nodes have the level now, but not for a day.
    newer.open_node(&opening(NODE, EPOCH)).await.unwrap();
    later(&bed.url).await.finish().await;
    let planned = contract(&bed.url, true).await.unwrap();
    assert_eq!(
        (planned.level, planned.min_level, numbers(&planned.applied)),
        (level, 1, vec![CONTRACTING.number])
    );
    earlier.stored_node(node).await.unwrap();
    let mut raw = Raw::to(&bed.url).await;
    raw.execute("UPDATE nodes SET level_us = 0").await.unwrap();
    newer.renew(node, 2, None).await.unwrap();
    later(&bed.url).await.finish().await;
    let done = contract(&bed.url, false).await.unwrap();
    assert_eq!((done.min_level, numbers(&done.applied)), (level, vec![]));

    let url: StoreUrl = bed.url.parse().unwrap();
    let refused = open_with(&url, MIGRATIONS).await.map(drop).unwrap_err();
    assert!(
        refused.to_string().starts_with("SCHEMA_TOO_NEW"),
        "{refused}"
    );
    assert!(refused.is_of_schema());
    // A running server detects this at its next check, then neither reads nor writes.
    let too_new = |result: Result<(), StoreError>| {
        let has =
            matches!(result, Err(StoreError::SchemaTooNew { min_level, .. }) if min_level == level);
        assert!(has, "{result:?}");
    };
    too_new(earlier.stored_node(node).await.map(drop));
    too_new(earlier.renew(node, 2, None).await.map(drop));
    too_new(earlier.insert(&run_of(1, NODE, 2)).await.map(drop));
    too_new(earlier.get(new_run(1).run).await.map(drop));
    too_new(earlier.open_node(&opening(NODE, EPOCH)).await.map(drop));
    let written = newer.insert(&run_of(1, NODE, 2)).await.unwrap();
    assert!(matches!(written, Changed::Done(_)));
    // The refusal ends by itself, like an outage.
    let back = "UPDATE schema_level SET min_level = 1";
    raw.execute(back).await.unwrap();
    earlier.stored_node(node).await.unwrap();
    assert!(earlier.get(new_run(1).run).await.unwrap().is_some());
    newer.finish().await;
}

// promise: D-27
pub(super) async fn forgotten_nodes_do_not_delay_contracting(bed: Bed) {
    let gone = NodeId::from_u128(NODE);
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let epoch = opening(NODE, EPOCH + 9).keeper_epoch;
    bed.store.give_up(gone, 1).await.unwrap();
    bed.store.forget_node(gone, epoch).await.unwrap();

    let done = contract(&bed.url, false).await.unwrap();

    let all = vec![ADDING.number, CONTRACTING.number];
    assert_eq!(
        (done.min_level, numbers(&done.applied)),
        (ADDING.number, all)
    );
}

/// Columns of the view, with their types in Postgres. None is ever renamed, retyped or removed; a new one comes last.
const VIEW: [(&str, &str); 28] = [
    ("run_id", "text"),
    ("owner", "text"),
    ("kind", "text"),
    ("state", "text"),
    ("node", "text"),
    ("node_name", "text"),
    ("pid", "bigint"),
    ("pgid", "bigint"),
    ("sid", "bigint"),
    ("shim_pid", "bigint"),
    ("boot_id", "text"),
    ("cgroup", "text"),
    ("created_at", "timestamp with time zone"),
    ("started_at", "timestamp with time zone"),
    ("exited_at", "timestamp with time zone"),
    ("ended_at", "timestamp with time zone"),
    ("exit_code", "bigint"),
    ("exit_signal", "bigint"),
    ("end_reason", "text"),
    ("tree_verdict", "text"),
    ("attempts", "bigint"),
    ("restarts", "bigint"),
    ("next_attempt_at", "timestamp with time zone"),
    ("parent_run_id", "text"),
    ("restarted_from", "text"),
    ("labels", "jsonb"),
    ("annotations", "jsonb"),
    ("name", "text"),
];

// promise: D-30
pub(super) async fn view_shows_runs_with_documented_columns(bed: Bed) {
    let store = &bed.store;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for id in 1..=2 {
        store.insert(&new_run(id)).await.unwrap();
    }
    let run = new_run(1).run;
    store.record_facets(run, 1, &facets()).await.unwrap();
    let stop = super::rows::order();
    store
        .record_stop(run, 1, &stop, Timestamp(9))
        .await
        .unwrap();
    store.close(&new_run(2), &closure()).await.unwrap();
    let mut raw = Raw::to(&bed.url).await;
    let is_sqlite = matches!(raw, Raw::Sqlite(_));

    let (columns, time) = if is_sqlite {
        (
            "SELECT name FROM pragma_table_info('kennel_runs')",
            "ended_at",
        )
    } else {
        (
            "SELECT column_name || ' ' || data_type FROM information_schema.columns WHERE table_name = 'kennel_runs' \
             AND table_schema = current_schema() ORDER BY ordinal_position",
            "to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
        )
    };
    let expected = VIEW.map(|(name, kind)| {
        if is_sqlite {
            name.to_owned()
        } else {
            format!("{name} {kind}")
        }
    });
    assert_eq!(raw.texts(columns).await, expected);
    let open = "SELECT state || ' ' || kind || ' ' || node_name || ' ' || pid || ' ' || pgid || ' ' || attempts \
        FROM kennel_runs WHERE ended_at IS NULL";
    assert_eq!(raw.texts(open).await, ["stopping job node-7 5000 5001 1"]);
    let ended = format!(
        "SELECT state || ' ' || end_reason || ' ' || tree_verdict || ' ' || exit_code || ' ' || {time} \
        FROM kennel_runs WHERE exit_signal IS NULL AND ended_at IS NOT NULL"
    );
    assert_eq!(
        raw.texts(&ended).await,
        ["succeeded exited empty 0 1970-01-01 00:00:00.000006"]
    );
    // Between two attempts the view shows the latest attempt's exit.
    for (exit, shown) in [
        (r#"{"code":3}"#, "3 -"),
        (r#"{"signal":{"signal":9,"core_dumped":false}}"#, "- 9"),
        (r#""unknown""#, "- -"),
    ] {
        let rest = format!(
            r#"UPDATE runs SET state = 'backoff', next_restart_us = 9,
            attempts_detail = '[{{"outcome":{{"exit":{{"code":1}}}}}},{{"outcome":{{"exit":{exit}}}}}]'
            WHERE end_reason IS NULL"#
        );
        raw.execute(&rest).await.unwrap();
        let rests = "SELECT COALESCE(exit_code || '', '-') || ' ' || COALESCE(exit_signal || '', '-') \
            FROM kennel_runs WHERE ended_at IS NULL";
        assert_eq!(raw.texts(rests).await, [shown]);
    }
    let notes = "SELECT labels ->> 'team' || annotations FROM kennel_runs WHERE ended_at IS NULL";
    let notes = raw.texts(notes).await.concat();
    assert!(
        notes.starts_with("blue \"quoted\" ü{") && notes.contains("session"),
        "{notes}"
    );
}
