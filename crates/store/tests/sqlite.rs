//! The suite on SQLite, and faults that only a file can have.
#![expect(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod suite;

use kennel_store::{Inserted, OpenError, StoreError, StoreUrl, open};
use std::os::unix::fs::PermissionsExt as _;
use suite::{
    Raw,
    rows::{EPOCH, NODE, new_run, opening},
    store,
};

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_does_what_every_store_has_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    suite::run(|| {
        number.set(number.get() + 1);
        let path = dir.path().join(format!("{}.db", number.get()));
        async move { format!("sqlite:{}", path.display()) }
    })
    .await;
}

#[tokio::test]
async fn written_rows_survive_a_reopen() {
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

#[tokio::test]
async fn new_files_are_readable_by_their_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kennel.db");
    let store = store(&format!("sqlite:{}", path.display())).await;
    store.open_node(&opening(NODE, EPOCH)).await.unwrap();

    let mut seen = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?}", entry.file_name());
        seen += 1;
    }
    assert_eq!(seen, 3, "database, write-ahead log, its index");
    store.finish().await;
}

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
    assert_eq!(taken.unwrap(), Inserted::New);
    store.finish().await;
}

#[tokio::test]
async fn file_that_is_no_database_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("absent/kennel.db");
    let text = dir.path().join("text");
    std::fs::write(
        &text,
        "not a database, and long enough to have a header that is none ".repeat(20),
    )
    .unwrap();

    for path in [nowhere, text] {
        let error = open(&StoreUrl::sqlite(&path))
            .await
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, OpenError::SqliteFile { .. }), "{error:?}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
}
