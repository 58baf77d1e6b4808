//! The suite on SQLite, and faults that only a file can have.
#![expect(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod suite;

use kennel_store::{
    Changed, Contract, MIGRATIONS, Migration, NodeRemoval, OpenError, StoreError, StoreUrl,
    migrate, open, open_with,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
    time::Duration,
};
use suite::Calls as _;
use suite::{
    Raw,
    levels::{ADDING, with},
    recorded,
    rows::{EPOCH, NODE, new_run, opening},
    store,
};

// promise: D-11
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_passes_the_store_suite() {
    let dir = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    suite::run(|| {
        number.set(number.get() + 1);
        let path = dir.path().join(format!("{}.db", number.get()));
        async move { format!("sqlite:{}", path.display()) }
    })
    .await;
}

// promise: D-7
#[tokio::test]
async fn rows_survive_reopening_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("kennel.db").display());
    let first = store(&url).await;
    first.open_node(&opening(NODE, EPOCH)).await.unwrap();
    first.insert(&new_run(1)).await.unwrap();
    first.finish().await;

    let second = store(&url).await;

    assert_eq!(second.open_node(&opening(NODE, EPOCH)).await.unwrap(), 2);
    assert!(second.get(new_run(1).run).await.unwrap().is_some());
    second.finish().await;
}

/// As where the process is killed between two of its statements.
// promise: I-70c
#[tokio::test]
async fn removal_of_a_node_is_one_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("kennel.db").display());
    let store = store(&url).await;
    let opening = opening(NODE, EPOCH);
    store.open_node(&opening).await.unwrap();
    store.give_up(opening.node, 1).await.unwrap();
    let mut raw = Raw::to(&url).await;
    raw.execute(
        "CREATE TRIGGER refusal BEFORE DELETE ON nodes BEGIN SELECT RAISE(ABORT, 'refused'); END",
    )
    .await
    .unwrap();

    let removed = store.remove_nodes(NodeRemoval::Node(opening.node)).await;

    removed.unwrap_err();
    let keepers = raw.texts("SELECT node FROM keeper_epochs").await;
    assert_eq!(keepers.len(), 1, "the keepers of the node are there, too");
    store.finish().await;
}

#[tokio::test]
async fn new_files_are_readable_by_their_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kennel.db");
    let store = store(&format!("sqlite:{}", path.display())).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();

    let mut seen = 0;
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?}", entry.file_name());
        seen += 1;
    }
    assert_eq!(seen, 3, "database, write-ahead log, its index");
    store.finish().await;
}

// promise: R-61
#[tokio::test]
async fn symbolic_link_is_refused_as_database() {
    let dir = tempfile::tempdir().unwrap();
    let (link, target) = (dir.path().join("kennel.db"), dir.path().join("target"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let url = format!("sqlite:{}", link.display()).parse().unwrap();

    let refused = kennel_store::open(&url).await.err();

    let refused = refused.expect("it is refused").to_string();
    assert!(refused.contains("symbolic link"), "{refused}");
    assert!(!target.exists(), "it was followed");
}

#[tokio::test]
async fn foreign_lock_makes_store_unavailable_while_held() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("kennel.db").display());
    let store = store(&url).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let mut raw = Raw::to(&url).await;
    raw.execute("BEGIN IMMEDIATE").await.unwrap();

    let refused = store.insert(&new_run(1)).await;
    raw.execute("ROLLBACK").await.unwrap();
    let taken = store.insert(&new_run(1)).await;

    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    assert!(matches!(taken.unwrap(), Changed::Done(_)));
    store.finish().await;
}

#[tokio::test]
async fn file_that_is_not_a_database_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("absent/kennel.db");
    let text = dir.path().join("text");
    fs::write(
        &text,
        "not a database, and long enough to have a header that is none ".repeat(20),
    )
    .unwrap();

    for (path, why) in [
        (nowhere, "its directory does not exist"),
        (text, "it is damaged, or no database of SQLite"),
    ] {
        let error = open(&StoreUrl::sqlite(&path))
            .await
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, OpenError::SqliteFile { .. }), "{error:?}");
        let wanted = format!("cannot open the SQLite database {path:?}: {why}");
        assert_eq!(error.to_string(), wanted);
    }
}

/// Returns the file, and the names of all files beside it.
fn footprint(path: &std::path::Path) -> (Vec<u8>, Vec<std::ffi::OsString>) {
    let beside = fs::read_dir(path.parent().unwrap()).unwrap();
    let mut beside: Vec<_> = beside.map(|one| one.unwrap().file_name()).collect();
    beside.sort();
    (fs::read(path).unwrap(), beside)
}

// promise: D-29a
#[tokio::test]
async fn migration_dry_run_changes_no_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kennel.db");
    let url = StoreUrl::sqlite(&path);
    fs::write(&path, "").unwrap();
    let planned = async |before| {
        let state = migrate(&url, with(&[ADDING]), Contract::Never, true).await;
        assert_eq!(footprint(&path), before);
        state.unwrap().applied.len()
    };
    let all = MIGRATIONS.len() + 1;
    assert_eq!(planned(footprint(&path)).await, all);
    open(&url).await.unwrap().finish().await;
    assert_eq!(planned(footprint(&path)).await, 1);
}

// promise: D-21b
#[tokio::test]
async fn database_of_another_program_is_refused_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("another.db");
    let url = StoreUrl::sqlite(&path);
    fs::write(&path, "").unwrap();
    let mut raw = Raw::to(&format!("sqlite:{}", path.display())).await;
    raw.execute("CREATE TABLE marathons (place text)")
        .await
        .unwrap();
    drop(raw);
    let before = footprint(&path);
    for dry_run in [true, false] {
        let refused = migrate(&url, with(&[]), Contract::Never, dry_run).await;
        assert!(
            matches!(refused, Err(OpenError::ForeignDatabase)),
            "{refused:?}"
        );
    }
    let refused = open(&url).await.map(drop);
    assert!(
        matches!(refused, Err(OpenError::ForeignDatabase)),
        "{refused:?}"
    );
    assert_eq!(footprint(&path), before);
}

/// Variable with the database that the next test migrates, as a process of its own.
const MIGRATED: &str = "KENNEL_TEST_MIGRATED";

/// Adds a column, and then reads without end.
#[tokio::test]
async fn migration_that_never_ends() {
    let Ok(url) = std::env::var(MIGRATED) else {
        return;
    };
    let endless = Migration {
        sqlite: "ALTER TABLE runs ADD COLUMN mood TEXT; CREATE TABLE seen AS WITH RECURSIVE n(x) AS \
            (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
        ..ADDING
    };
    let opened = open_with(&url.parse().unwrap(), with(&[endless])).await;
    panic!("it has ended: {:?}", opened.map(drop));
}

// promise: D-28
#[tokio::test]
async fn migration_of_a_killed_process_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("kennel.db").display());
    let store = store(&url).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "migration_that_never_ends"])
        .env(MIGRATED, &url)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut raw = Raw::to(&url).await;
    raw.execute("PRAGMA busy_timeout = 0").await.unwrap();
    while raw.execute("BEGIN IMMEDIATE").await.is_ok() {
        raw.execute("ROLLBACK").await.unwrap();
        assert_eq!(child.try_wait().unwrap(), None, "it has ended by itself");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A second migration waits for the first, then fails.
    let parsed: StoreUrl = url.parse().unwrap();
    let busy = migrate(&parsed, with(&[ADDING]), Contract::Never, false).await;
    let busy = busy.unwrap_err();
    assert!(matches!(&busy, OpenError::Migration(_)), "{busy:?}");
    child.kill().unwrap();
    child.wait().unwrap();

    let left = "SELECT name FROM pragma_table_info('runs') WHERE name = 'mood' \
        UNION SELECT name FROM sqlite_schema WHERE name = 'seen'";
    assert_eq!(raw.texts(left).await, [""; 0]);
    store.insert(&new_run(1)).await.unwrap();
    let later = open_with(&parsed, with(&[ADDING])).await.unwrap();
    assert!(later.get(new_run(1).run).await.unwrap().is_some());
    for store in [store, later] {
        store.finish().await;
    }
    let absent = StoreUrl::sqlite(dir.path().join("absent.db"));
    let refused = migrate(&absent, with(&[]), Contract::Never, false).await;
    let why = |error| match error {
        OpenError::SqliteFile { why, .. } => why,
        _ => "another error",
    };
    assert_eq!(refused.map_err(why).err(), Some("there is no such file"));
    assert!(!dir.path().join("absent.db").exists());
}

#[tokio::test]
async fn recorded_sqlite_files_are_readable() {
    let dir = tempfile::tempdir().unwrap();
    let copied = |name: &str| {
        let path = dir.path().join(name);
        let url = format!("sqlite:{}", path.display());
        (path, url)
    };
    if let Some(next) = recorded::to_write("kennel.db") {
        let (path, url) = copied("next");
        let store = store(&url).await;
        recorded::fill(&*store).await;
        store.finish().await;
        fs::copy(path, next).unwrap();
    }
    for (number, folder) in recorded::folders().iter().enumerate() {
        let (path, url) = copied(&number.to_string());
        fs::copy(folder.join("kennel.db"), &path).unwrap();
        let opened = open(&url.parse().unwrap()).await;
        let store = opened.expect("`make record` writes a changed `next`");
        recorded::continue_from(&*store, &url).await;
        store.finish().await;
    }
}
