//! The suite on a real Postgres, and faults that only a server can have.
#![expect(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod server;
mod suite;

use kennel_store::{
    Changed, Contract, Migration, NewRun, OpenError, Opening, StoreError, StoreUrl, migrate, open,
    open_with,
};
use server::{PASSWORD, PostgresServer, ROLE};
use std::{fs, os::unix::fs::symlink, time::Duration};
use suite::Calls as _;
use suite::{
    Raw,
    levels::{ADDING, with},
    nodes::leased,
    recorded,
    rows::{EPOCH, NODE, new_run, opening},
    store,
};
use tokio::time::{Instant, sleep};

/// Longer than any expected event takes here.
const SOON: Duration = Duration::from_secs(30);

// promise: D-11
#[tokio::test(flavor = "multi_thread")]
async fn postgres_passes_the_store_suite() {
    let server = PostgresServer::start().await.unwrap();
    suite::run(async || server.schema().await.unwrap()).await;
    server.drop_schemas().await.unwrap();
}

// promise: I-67
#[tokio::test(flavor = "multi_thread")]
async fn lease_keeps_other_keepers_out() {
    let server = PostgresServer::start().await.unwrap();
    let store = store(&server.schema().await.unwrap()).await;
    let (first, other) = (leased(EPOCH), leased(EPOCH + 1));
    assert_eq!(store.open_node(&first).await.unwrap(), 1);
    store.insert(&new_run(1)).await.unwrap();
    let refused = store.open_node(&other).await;
    assert!(matches!(refused, Err(StoreError::Held)), "{refused:?}");
    // The refused acquisition changed nothing.
    let stored_node = store.stored_node(first.node).await.unwrap();
    assert_eq!(stored_node.generation, Some(1));
    store.insert(&new_run(2)).await.unwrap();
    // Two openings succeed: the same keeper's next server, and one that knows the keeper exited.
    assert_eq!(store.open_node(&first).await.unwrap(), 2);
    let knows = Opening {
        gone: Some(first.keeper_epoch),
        ..other.clone()
    };
    assert_eq!(store.open_node(&knows).await.unwrap(), 3);
    let renewed = store.renew(first.node, 2, None).await;
    assert!(matches!(renewed, Err(StoreError::Held)), "{renewed:?}");
    let fenced = store.insert(&new_run(3)).await;
    assert!(matches!(fenced, Err(StoreError::Fenced(_))), "{fenced:?}");
    // A lease that was given up is free.
    store.give_up(first.node, 3).await.unwrap();
    assert_eq!(store.open_node(&first).await.unwrap(), 4);
    store.finish().await;
    server.drop_schemas().await.unwrap();
}

/// A lock on the row of a run stops the writes of that run, and no lease.
// promise: I-69
#[tokio::test(flavor = "multi_thread")]
async fn lease_is_renewed_while_a_write_hangs() {
    let server = PostgresServer::start_own().await.unwrap();
    let url = server.schema().await.unwrap();
    let store = store(&url).await;
    let opening = leased(EPOCH);
    store.open_node(&opening).await.unwrap();
    store.insert(&new_run(1)).await.unwrap();
    let mut raw = Raw::to(&url).await;
    raw.execute("BEGIN").await.unwrap();
    raw.execute("SELECT 1 FROM runs FOR UPDATE").await.unwrap();
    let hanging = {
        let store = store.clone();
        let closure = suite::rows::closure();
        tokio::spawn(async move { store.close(&new_run(1), &closure).await })
    };
    let insert = {
        let store = store.clone();
        tokio::spawn(async move { store.insert(&new_run(2)).await })
    };
    let begun = Instant::now();
    let mut renewals = 0;
    while !hanging.is_finished() {
        store.renew(opening.node, 1, None).await.unwrap();
        renewals += 1;
        sleep(Duration::from_millis(50)).await;
        assert!(begun.elapsed() < SOON);
    }
    assert!(renewals > 10, "{renewals}");
    let hung = hanging.await.unwrap();
    assert!(
        matches!(
            hung,
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_))
        ),
        "{hung:?}"
    );
    raw.execute("ROLLBACK").await.unwrap();
    let _ = insert.await.unwrap();
    store.finish().await;
}

/// Each transaction gets another session, and each session belongs to many stores in turn.
// promise: D-20
#[tokio::test(flavor = "multi_thread")]
async fn postgres_behind_pooler_passes_the_store_suite() {
    let server = PostgresServer::start_own().await.unwrap();
    let bouncer = server.bouncer("").await.unwrap();
    suite::run(async || server.database(&bouncer).await.unwrap()).await;
}

// promise: D-20
#[tokio::test(flavor = "multi_thread")]
async fn connection_pooler_is_detected() {
    let server = PostgresServer::start_own().await.unwrap();
    let direct = store(&server.schema().await.unwrap()).await;
    assert!(!direct.describe().contains("pooler"));
    direct.finish().await;
    // The first pooler refuses the mark, the second drops it, the third gives each connection its own session.
    for settings in [
        "",
        "ignore_startup_parameters = options",
        "pool_mode = session",
    ] {
        let bouncer = server.bouncer(settings).await.unwrap();
        let url = server.database(&bouncer).await.unwrap();
        let behind = store(&url).await;
        assert!(behind.describe().contains("behind a pooler"), "{settings}");
        behind.open_node(&opening(NODE, EPOCH)).await.unwrap();
        for run in 1..=20 {
            behind.insert(&new_run(run)).await.unwrap();
            assert!(behind.get(new_run(run).run).await.unwrap().is_some());
        }
        behind.finish().await;
    }
}

// promise: D-20
#[tokio::test(flavor = "multi_thread")]
async fn store_works_behind_pooler_added_later() {
    let mut server = PostgresServer::start_own().await.unwrap();
    let bouncer = server.bouncer("").await.unwrap();
    let signposts = tempfile::tempdir().unwrap();
    let signpost = signposts.path().join("here");
    symlink(server.socket_dir().unwrap(), &signpost).unwrap();
    let url = format!(
        "postgres://postgres@localhost/postgres?host={}",
        signpost.display()
    );
    let store = store(&url).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    store.insert(&new_run(1)).await.unwrap();

    server.crash();
    fs::remove_file(&signpost).unwrap();
    symlink(bouncer.socket_dir(), &signpost).unwrap();
    server.resume().await.unwrap();

    // The reader and the writer each meet their broken connection once.
    let _ = store.get(new_run(1).run).await;
    let _ = store.insert(&new_run(2)).await;
    let generation = store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for run in 3..=20 {
        let new = NewRun {
            generation,
            ..new_run(run)
        };
        store.insert(&new).await.unwrap();
        assert!(store.get(new.run).await.unwrap().is_some());
    }
    store.finish().await;
}

/// The database's own default is to answer before the disk has the written data.
// promise: D-20
#[tokio::test(flavor = "multi_thread")]
async fn commit_is_durable_despite_database_defaults() {
    let server = PostgresServer::start_own().await.unwrap();
    let bouncer = server.bouncer("").await.unwrap();
    let pooled = server.database(&bouncer).await.unwrap();
    let direct = server.schema().await.unwrap();
    let mut admin = Raw::to(&server.url(None)).await;
    for database in ["kennel_test_0", "postgres"] {
        let alter = format!("ALTER DATABASE {database} SET synchronous_commit = off");
        admin.execute(&alter).await.unwrap();
    }
    for url in [pooled, direct] {
        store(&url).await.finish().await;
        let mut raw = Raw::to(&url).await;
        raw.execute(
            "CREATE TABLE seen (said text CHECK (said = 'on')); CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$; \
             CREATE TRIGGER look BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION look()",
        )
        .await
        .unwrap();
        let store = store(&url).await;
        store.open_node(&opening(NODE, EPOCH)).await.unwrap();
        for run in 1..=5 {
            let inserted = store.insert(&new_run(run)).await;
            assert!(matches!(inserted.unwrap(), Changed::Done(_)), "{url}");
        }
        store.finish().await;
    }
}

// promise: D-20, D-28
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_starts_create_the_tables_once() {
    let server = PostgresServer::start_own().await.unwrap();
    let bouncer = server.bouncer("").await.unwrap();
    let pooled = server.database(&bouncer).await.unwrap();
    for url in [pooled, server.schema().await.unwrap()] {
        let url: StoreUrl = url.parse().unwrap();
        let mut openings = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let url = url.clone();
            openings.spawn(async move { open(&url).await.unwrap().finish().await });
        }
        openings.join_all().await;
        // A later Kennel migrates on all nodes at once.
        let mut openings = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let url = url.clone();
            openings.spawn(async move {
                let later = open_with(&url, with(&[ADDING])).await.unwrap();
                later.finish().await;
            });
        }
        openings.join_all().await;
    }
}

/// A later Kennel dies within its migration, by its own end or by that of the server; nothing of it is left.
// promise: D-28
#[tokio::test(flavor = "multi_thread")]
async fn migration_that_is_cut_off_leaves_nothing() {
    let mut server = PostgresServer::start_own().await.unwrap();
    let url = server.schema().await.unwrap();
    let store = store(&url).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let hanging = Migration {
        postgres: "ALTER TABLE runs ADD COLUMN mood TEXT; SELECT pg_sleep(600); ALTER TABLE runs DROP COLUMN labels",
        ..ADDING
    };
    for is_crash in [false, true] {
        let parsed: StoreUrl = url.parse().unwrap();
        let migrating = tokio::spawn(async move {
            let opened = open_with(&parsed, with(&[hanging])).await;
            opened.map(drop)
        });
        let mut raw = Raw::to(&url).await;
        let sleeping = "SELECT pid::text FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        let begun = Instant::now();
        let pid = loop {
            if let Some(pid) = raw.texts(sleeping).await.pop() {
                break pid;
            }
            assert!(begun.elapsed() < SOON);
            sleep(Duration::from_millis(5)).await;
        };
        if is_crash {
            server.crash();
            server.resume().await.unwrap();
        } else {
            let end = format!("SELECT pg_terminate_backend({pid})");
            raw.execute(&end).await.unwrap();
        }
        let failed = migrating.await.unwrap().unwrap_err();
        assert!(matches!(failed, OpenError::Migration(_)), "{failed:?}");
    }

    let mut raw = Raw::to(&url).await;
    let left = format!(
        "SELECT column_name::text FROM information_schema.columns WHERE column_name = 'mood' \
         UNION SELECT version::text FROM _sqlx_migrations WHERE version >= {}",
        ADDING.number
    );
    assert_eq!(raw.texts(&left).await, [""; 0]);
    let later = open_with(&url.parse().unwrap(), with(&[ADDING])).await;
    let later = later.unwrap();
    later.open_node(&opening(NODE, EPOCH)).await.unwrap();
    later.finish().await;
    store.finish().await;
}

/// A dump, which has locks of all tables, delays the migration and no write.
// promise: D-28
#[tokio::test(flavor = "multi_thread")]
async fn waiting_migration_blocks_no_write() {
    let server = PostgresServer::start_own().await.unwrap();
    let url = server.schema().await.unwrap();
    let store = store(&url).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let mut dump = Raw::to(&url).await;
    dump.execute("BEGIN; LOCK TABLE runs IN ACCESS SHARE MODE")
        .await
        .unwrap();
    let parsed: StoreUrl = url.parse().unwrap();
    let migrating = tokio::spawn(async move { open_with(&parsed, with(&[ADDING])).await });
    let mut raw = Raw::to(&url).await;
    let waiting = "SELECT pid::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'ALTER%'";
    let begun = Instant::now();
    while raw.texts(waiting).await.is_empty() {
        assert!(begun.elapsed() < SOON);
        sleep(Duration::from_millis(5)).await;
    }

    let written = store.insert(&new_run(1)).await;

    assert!(matches!(written.unwrap(), Changed::Done(_)));
    assert!(!migrating.is_finished());
    dump.execute("ROLLBACK").await.unwrap();
    migrating.await.unwrap().unwrap().finish().await;
    store.finish().await;
}

/// A role with rights on the tables alone has all that a server needs; each one that is taken away is named at the start.
// promise: D-21, D-21a, D-29
#[tokio::test]
async fn user_needs_documented_rights_and_no_others() {
    let server = PostgresServer::start_own().await.unwrap();
    let admin = server.url(None);
    store(&admin).await.finish().await;
    let mut raw = Raw::to(&admin).await;
    raw.execute(
        "CREATE ROLE worker LOGIN; REVOKE CREATE ON SCHEMA public FROM public; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker; \
         REVOKE INSERT, UPDATE, DELETE ON _sqlx_migrations FROM worker",
    )
    .await
    .unwrap();
    let url = server.url(Some(("worker", "")));
    let worker = store(&url).await;
    let opening = opening(NODE, EPOCH);
    worker.open_node(&opening).await.unwrap();
    for run in [1, 2] {
        let inserted = worker.insert(&new_run(run)).await.unwrap();
        assert!(matches!(inserted, Changed::Done(_)));
    }
    let withdrawn = worker.withdraw(new_run(2).run, opening.node, 1).await;
    withdrawn.unwrap();
    worker.finish().await;

    // A later Kennel reports what the database lacks, and runs once another user has added it.
    let worker: StoreUrl = server.url(Some(("worker", ""))).parse().unwrap();
    let refused = open_with(&worker, with(&[ADDING])).await.map(drop);
    let refused = refused.unwrap_err();
    let says = format!("lacks migration {ADDING}");
    assert!(
        matches!(&refused, OpenError::SchemaTooOld { .. }) && refused.to_string().contains(&says),
        "{refused:?}"
    );
    assert!(refused.is_of_schema());
    let admin: StoreUrl = admin.parse().unwrap();
    for dry_run in [true, false] {
        let known = with(&[ADDING]);
        let state = migrate(&admin, known, Contract::Never, dry_run).await;
        assert_eq!(state.unwrap().applied.len(), 1);
    }
    let later = open_with(&worker, with(&[ADDING])).await.unwrap();
    later.open_node(&opening).await.unwrap();
    later.finish().await;

    // The error names each missing right.
    let missing = async |named: &str| {
        let error = open(&url.parse().unwrap()).await.map(|_| ()).unwrap_err();
        assert!(
            error.to_string().contains(&format!("has no {named}:")),
            "{error}"
        );
        assert!(error.is_of_schema() && !error.is_transient());
    };
    for (table, right) in [
        ("runs", "DELETE"),
        ("nodes", "UPDATE"),
        ("consumers", "INSERT"),
        ("_sqlx_migrations", "SELECT"),
    ] {
        let change = |word, to| format!("{word} {right} ON {table} {to} worker");
        raw.execute(change("REVOKE", "FROM").as_str())
            .await
            .unwrap();
        missing(&format!("{right} on {table}")).await;
        raw.execute(change("GRANT", "TO").as_str()).await.unwrap();
    }
    raw.execute("REVOKE DELETE ON runs, left_stops FROM worker")
        .await
        .unwrap();
    missing("DELETE on runs, DELETE on left_stops").await;
}

// promise: D-29a, D-30
#[tokio::test]
async fn read_only_user_writes_nothing() {
    let server = PostgresServer::start_own().await.unwrap();
    let admin = server.url(None);
    let written = store(&admin).await;
    written.open_node(&opening(NODE, EPOCH)).await.unwrap();
    written.insert(&new_run(1)).await.unwrap();
    written.finish().await;
    let mut raw = Raw::to(&admin).await;
    raw.execute(
        "CREATE ROLE reader LOGIN; CREATE ROLE viewer LOGIN; GRANT SELECT ON kennel_runs TO viewer; \
         REVOKE CREATE ON SCHEMA public FROM public; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
    )
    .await
    .unwrap();

    let reader = open(&server.url(Some(("reader", ""))).parse().unwrap()).await;
    let refused = reader.map(|_| ()).unwrap_err();
    assert!(
        matches!(&refused, OpenError::RightsMissing { missing } if missing.starts_with("INSERT on nodes")),
        "{refused:?}"
    );
    // An SQL reader needs only the view, which has no spec.
    let mut viewer = Raw::to(&server.url(Some(("viewer", "")))).await;
    let pids = viewer.texts("SELECT pid::text FROM kennel_runs").await;
    assert_eq!(pids, ["5000"]);
    let spec = viewer.execute("SELECT spec FROM runs").await.unwrap_err();
    assert!(spec.contains("permission denied"), "{spec}");
}

/// A changed password, in the file that the URL was read from, is used by the next login: of the writers, which have lost their
/// sessions, and of the readers.
// promise: D-21c
#[tokio::test]
async fn login_reads_changed_password_from_file() {
    let server = PostgresServer::start_own().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("url");
    let url_with = |password: &str| server.url(Some((ROLE, password))).replace(' ', "%20");
    fs::write(&file, url_with(PASSWORD)).unwrap();
    let url: StoreUrl = url_with(PASSWORD).parse().unwrap();
    let store = open(&url.in_file(&file)).await.unwrap();
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let mut raw = Raw::to(&server.url(None)).await;
    raw.execute(format!("ALTER ROLE {ROLE} PASSWORD 'n3w'").as_str())
        .await
        .unwrap();
    let end =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'");
    raw.execute(end.as_str()).await.unwrap();
    // The file still has the old password: the database is merely unavailable.
    let away = store.insert(&new_run(1)).await;
    assert!(
        matches!(
            away,
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_))
        ),
        "{away:?}"
    );
    fs::write(&file, url_with("n3w") + "\n").unwrap();
    let begun = Instant::now();
    while store.insert(&new_run(1)).await.is_err() || store.get(new_run(1).run).await.is_err() {
        assert!(begun.elapsed() < SOON);
        sleep(Duration::from_millis(20)).await;
    }
    store.finish().await;
}

// promise: D-21b
#[tokio::test]
async fn unrelated_table_is_reported_and_unchanged() {
    let server = PostgresServer::start_own().await.unwrap();
    let url = server.schema().await.unwrap();
    let mut raw = Raw::to(&url).await;
    raw.execute("CREATE TABLE runs (marathon text); INSERT INTO runs VALUES ('Berlin')")
        .await
        .unwrap();
    let refused = open(&url.parse().unwrap()).await.map(|_| ());
    assert!(
        matches!(refused, Err(OpenError::TableInTheWay(_))),
        "{refused:?}"
    );
    let other = server.schema().await.unwrap();
    let table = "CREATE TABLE _sqlx_migrations AS SELECT 20261129::bigint AS version, ''::bytea AS checksum";
    Raw::to(&other).await.execute(table).await.unwrap();
    let refused = open(&other.parse().unwrap()).await.map(|_| ());
    assert!(
        matches!(refused, Err(OpenError::ForeignDatabase)),
        "{refused:?}"
    );
    raw.execute(
        "DO $$ BEGIN ASSERT (SELECT string_agg(relname, ',') FROM pg_class WHERE relkind = 'r' \
         AND relnamespace = current_schema()::regnamespace) = 'runs'; \
         ASSERT (SELECT string_agg(marathon, ',') FROM runs) = 'Berlin'; END $$",
    )
    .await
    .unwrap();
}

// promise: R-53
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_postgres_is_reported_and_survived() {
    let mut server = PostgresServer::start_own().await.unwrap();
    let store = store(&server.schema().await.unwrap()).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    store.insert(&new_run(1)).await.unwrap();

    server.crash();
    // The first write meets the broken connection and may have been sent; the second has no connection to send on.
    let first = store.insert(&new_run(2)).await;
    let second = store.insert(&new_run(3)).await;
    let read = store.get(new_run(1).run).await;
    let ping = store.ping().await;
    server.resume().await.unwrap();

    assert!(
        matches!(
            first,
            Err(StoreError::Unknown(_) | StoreError::Unavailable(_))
        ),
        "{first:?}"
    );
    assert!(
        matches!(second, Err(StoreError::Unavailable(_))),
        "{second:?}"
    );
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    assert!(matches!(ping, Err(StoreError::Unavailable(_))), "{ping:?}");
    // The current database may be a copy that lacks writes: the node is acquired first.
    let early = [
        store.insert(&new_run(4)).await.map(drop),
        store.get(new_run(1).run).await.map(drop),
        store.ping().await,
    ];
    let generation = store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    for early in early {
        assert!(
            matches!(early, Err(StoreError::Unavailable(_))),
            "{early:?}"
        );
    }
    let new = |id| NewRun {
        generation,
        ..new_run(id)
    };
    assert!(matches!(
        store.insert(&new(4)).await.unwrap(),
        Changed::Done(_)
    ));
    assert!(store.get(new_run(1).run).await.unwrap().is_some());
    // `Unavailable` means that the row was not written.
    assert!(matches!(
        store.insert(&new(3)).await.unwrap(),
        Changed::Done(_)
    ));
    store.ping().await.unwrap();
    store.finish().await;
}

/// The server answers queries, and would take no write.
// promise: D-9f
#[tokio::test(flavor = "multi_thread")]
async fn read_only_postgres_is_unavailable() {
    let server = PostgresServer::start_own().await.unwrap();
    let bouncer = server.bouncer("").await.unwrap();
    let direct = server.schema().await.unwrap();
    let pooled = server.database(&bouncer).await.unwrap();
    for url in [direct.clone(), pooled] {
        let store = store(&url).await;
        store.open_node(&opening(NODE, EPOCH)).await.unwrap();
        store.ping().await.unwrap();
        let mut raw = Raw::to(&direct).await;
        for (setting, answers) in [("on", false), ("off", true)] {
            let set = format!("ALTER SYSTEM SET default_transaction_read_only = {setting}");
            raw.execute(&set).await.unwrap();
            raw.execute("SELECT pg_reload_conf()").await.unwrap();
            let until = Instant::now() + SOON;
            while store.ping().await.is_ok() != answers {
                assert!(Instant::now() < until, "{url} with {setting}");
                sleep(Duration::from_millis(5)).await;
            }
            assert!(store.get(new_run(1).run).await.is_ok());
        }
        store.finish().await;
    }
}

/// The primary comes back as a standby of another one.
// promise: D-9f
#[tokio::test(flavor = "multi_thread")]
async fn standby_is_unavailable_until_promoted() {
    let mut server = PostgresServer::start_own().await.unwrap();
    let url = server.schema().await.unwrap();
    let store = store(&url).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    store.insert(&new_run(1)).await.unwrap();

    server.crash();
    server.demote().unwrap();
    server.resume().await.unwrap();
    let ping = store.ping().await;
    let read = store.get(new_run(1).run).await;
    let stored_node = store.stored_node(opening(NODE, EPOCH).node).await.map(drop);
    let mut raw = Raw::to(&url).await;
    raw.execute("SELECT pg_promote()").await.unwrap();

    for asked in [ping, read.map(drop), stored_node] {
        assert!(
            matches!(asked, Err(StoreError::Unavailable(_))),
            "{asked:?}"
        );
    }
    let until = Instant::now() + SOON;
    while store.open_node(&opening(NODE, EPOCH)).await.is_err() {
        assert!(Instant::now() < until, "nothing can be written");
        sleep(Duration::from_millis(5)).await;
    }
    store.ping().await.unwrap();
    assert!(store.get(new_run(1).run).await.unwrap().is_some());
    store.finish().await;
}

/// A dump is loaded into the same database, without a restart of its server.
// promise: R-53
#[tokio::test(flavor = "multi_thread")]
async fn recreated_tables_count_as_another_database() {
    let server = PostgresServer::start().await.unwrap();
    let url = server.schema().await.unwrap();
    let store = store(&url).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    store.insert(&new_run(1)).await.unwrap();
    let node = opening(NODE, EPOCH).node;
    let before = store.stored_node(node).await.unwrap();
    assert_eq!(store.stored_node(node).await.unwrap(), before);

    let mut raw = Raw::to(&url).await;
    raw.execute("TRUNCATE nodes, keeper_epochs, runs, consumers, left_stops")
        .await
        .unwrap();
    let after = store.stored_node(node).await.unwrap();
    let early = store.insert(&new_run(2)).await;

    assert_ne!(after.life, before.life);
    assert_eq!(after.generation, None);
    assert!(matches!(early, Err(StoreError::Fenced(_))), "{early:?}");
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    assert!(matches!(
        store.insert(&new_run(2)).await.unwrap(),
        Changed::Done(_)
    ));
    store.finish().await;
    server.drop_schemas().await.unwrap();
}

// promise: D-7
#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_write_is_lost_in_crash() {
    let mut server = PostgresServer::start_own().await.unwrap();
    let store = store(&server.schema().await.unwrap()).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let (reported, mut answers) = tokio::sync::mpsc::channel(64);
    let spawners: Vec<_> = (1..=8_u128)
        .map(|client| {
            let (store, reported) = (store.clone(), reported.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    let new = new_run(client * 1_000_000 + n);
                    let result = store.insert(&new).await;
                    let ended = result.is_err();
                    if reported.send((new.run, result)).await.is_err() || ended {
                        break;
                    }
                }
            })
        })
        .collect();
    drop(reported);

    let mut written = Vec::new();
    let mut failed = Vec::new();
    while let Some((run, result)) = answers.recv().await {
        match result {
            Ok(_) => written.push(run),
            Err(error) => failed.push((run, error)),
        }
        if written.len() == 500 {
            server.crash();
        }
    }
    for spawner in spawners {
        spawner.await.unwrap();
    }
    server.resume().await.unwrap();
    // A restart of Postgres begins a new database life.
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();

    assert_eq!(failed.len(), 8, "every client meets the crash once");
    for run in written {
        assert!(
            store.get(run).await.unwrap().is_some(),
            "{run} was answered and is lost"
        );
    }
    for (run, error) in failed {
        let found = store.get(run).await.unwrap().is_some();
        match error {
            StoreError::Unavailable(_) => assert!(!found, "{run} is there, against the answer"),
            StoreError::Unknown(_) => {}
            other => panic!("{other}"),
        }
    }
    store.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_statement_times_out_as_in_doubt() {
    let server = PostgresServer::start().await.unwrap();
    let url = server.schema().await.unwrap();
    let store = store(&url).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    // A first insert prepares the statement: the next insert is sent at once.
    store.insert(&new_run(3)).await.unwrap();
    let mut raw = Raw::to(&url).await;
    raw.execute("BEGIN").await.unwrap();
    raw.execute("LOCK TABLE runs IN EXCLUSIVE MODE")
        .await
        .unwrap();

    let waited = store.insert(&new_run(1)).await;
    raw.execute("ROLLBACK").await.unwrap();
    let next = store.insert(&new_run(2)).await;

    assert!(matches!(waited, Err(StoreError::Unknown(_))), "{waited:?}");
    assert!(matches!(next.unwrap(), Changed::Done(_)));
    // The server executes the abandoned statement once the lock is gone: hence the unknown result.
    let deadline = Instant::now() + Duration::from_secs(30);
    while store.get(new_run(1).run).await.unwrap().is_none() {
        assert!(Instant::now() < deadline, "the late INSERT never came");
        sleep(Duration::from_millis(5)).await;
    }
    store.finish().await;
    server.drop_schemas().await.unwrap();
}

// promise: D-24a
#[tokio::test]
async fn open_errors_are_distinct_and_hide_the_password() {
    let server = PostgresServer::start_own().await.unwrap();
    let fails = async |text: String| {
        let url: StoreUrl = text.parse().unwrap();
        let error = open(&url).await.map(|_| ()).unwrap_err();
        let shown = format!("{error} {error:?} {url} {url:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        error
    };
    let role = |password| server.url(Some((ROLE, password)));

    let good: StoreUrl = role(PASSWORD).replace(' ', "%20").parse().unwrap();
    open(&good).await.unwrap().finish().await;
    let wrong = fails(role("s3cret")).await;
    assert!(
        matches!(wrong, OpenError::PostgresCredentials { .. }),
        "{wrong:?}"
    );
    let no_database = fails(format!("{}&dbname=absent", server.url(None))).await;
    assert!(
        matches!(no_database, OpenError::PostgresDatabase { .. }),
        "{no_database:?}"
    );
    let unreachable = fails("postgres://kennel:s3cret@localhost/x?host=/nonexistent".into()).await;
    assert!(
        matches!(unreachable, OpenError::PostgresConnect { .. }) && unreachable.is_transient(),
        "{unreachable:?}"
    );
    for setting in [&wrong, &no_database] {
        assert!(!setting.is_transient(), "{setting:?}");
    }
    let forbidden = server
        .schema()
        .await
        .unwrap()
        .replace("search_path%3D", "search_path%3Dabsent_");
    let no_schema = fails(forbidden).await;
    assert!(
        matches!(no_schema, OpenError::Migration(_)),
        "{no_schema:?}"
    );
}

#[tokio::test]
async fn recorded_postgres_dumps_are_readable() {
    let server = PostgresServer::start_own().await.unwrap();
    let mut admin = Raw::to(&server.url(None)).await;
    let mut database = async |name: &str| {
        let create = format!("CREATE DATABASE {name}");
        admin.execute(&create).await.unwrap();
        format!("{}&dbname={name}", server.url(None))
    };
    if let Some(next) = recorded::to_write("kennel.sql") {
        let url = database("next").await;
        let store = store(&url).await;
        recorded::fill(&*store).await;
        store.finish().await;
        fs::write(next, server.dump("next").unwrap()).unwrap();
    }
    for (number, folder) in recorded::folders().iter().enumerate() {
        let url = database(&format!("recorded_{number}")).await;
        let dump = fs::read_to_string(folder.join("kennel.sql")).unwrap();
        Raw::to(&url).await.execute(&dump).await.unwrap();
        let opened = open(&url.parse().unwrap()).await;
        let store = opened.expect("`make record` writes a changed `next`");
        recorded::continue_from(&*store, &url).await;
        store.finish().await;
    }
}
