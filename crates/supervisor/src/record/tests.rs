use super::{run_table::Entry, *};
use crate::registry::tests::new_run;
use kennel_journal::node_log::SegmentId;
use kennel_lifecycle::{
    EndReason, Exit, KeeperEpoch, Outcome, Proof, RowState, StopCertificate, StreamsEnd, Timestamp,
    TreeVerdict,
};
use kennel_store::{Closure, EntriesText, StoredState, Times};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

const BOOT: &str = "boot";

async fn open_in(dir: &Path, boot_id: &str) -> Arc<NodeRecord> {
    let epoch = KeeperEpoch::from_u128(1);
    let (record, promises) = NodeRecord::open(dir, epoch, 0, boot_id).await.unwrap();
    tokio::spawn(promises);
    record
}

async fn open(dir: &Path) -> Arc<NodeRecord> {
    open_in(dir, BOOT).await
}

fn run(id: u128) -> RunId {
    RunId::from_u128(id)
}

fn new(id: u128) -> NewRun {
    NewRun {
        run: run(id),
        ..new_run()
    }
}

fn closure() -> Closure {
    Closure {
        outcome: Outcome {
            reason: EndReason::Exited,
            exit: Some(Exit::Code(3)),
            tree: TreeVerdict::Empty(Proof::Cgroup),
            streams: Some(StreamsEnd::Eof),
            certificate: StopCertificate::default(),
        },
        times: Times {
            ended: Some(Timestamp(1)),
            ..Times::default()
        },
        entries: Some(EntriesText::from("{}".to_owned())),
        has_files: false,
    }
}

fn closed(id: u128) -> Change {
    Change::Closed(Box::new(new(id)), Box::new(closure()))
}

fn paused() -> Change {
    Change::State {
        state: RowState::Paused,
        started: None,
    }
}

fn ended(id: u128) -> RunRow {
    closed(id).upon(None).unwrap()
}

fn found(rows: Vec<RunRow>) -> FoundRows {
    FoundRows {
        rows,
        ..FoundRows::default()
    }
}

fn begin(record: &NodeRecord, id: u128) {
    record.intend(&new(id)).unwrap();
    record.took(run(id), Change::Inserted(Box::new(new(id))));
}

fn stored_node(life: &str, generation: i64) -> StoredNode {
    StoredNode {
        life: Life::named(life),
        generation: Some(generation),
        keeper_epoch: None,
        lease_left: std::time::Duration::ZERO,
    }
}

fn rows(record: &NodeRecord) -> Vec<RunRow> {
    let rows = record.known_rows().into_iter();
    rows.map(|known| known.row).collect()
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let listing = fs::read_dir(dir.join("log")).unwrap().flatten();
    let mut files: Vec<_> = listing.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn size(dir: &Path) -> u64 {
    let sizes = files(dir)
        .into_iter()
        .map(|f| fs::metadata(f).unwrap().len());
    sizes.sum()
}

/// Drops the record with all that holds it.
async fn drop_all(record: Arc<NodeRecord>) {
    let weak = Arc::downgrade(&record);
    drop(record);
    while weak.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn next_server_of_same_boot_knows_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    let record = open(dir.path()).await;
    assert!(!record.differs(&stored_node("a", 0)), "nothing is known");
    record.raised(3);
    record.acquired(
        Life::named("a"),
        &found(vec![RunRow::open(new(7))]),
        Vec::new(),
    );
    record.took(run(9), closed(9));
    record.took(run(7), paused());
    drop_all(record).await;
    let later = open(dir.path()).await;
    assert_eq!(later.generation(), 3);
    assert!(!later.differs(&stored_node("a", 3)) && !later.differs(&stored_node("a", 4)));
    assert!(later.differs(&stored_node("b", 3)) && later.differs(&stored_node("a", 2)));
    let known = rows(&later);
    assert_eq!(known.len(), 2);
    assert_eq!(known[0], ended(9));
    assert_eq!(
        (known[1].new.run, known[1].state),
        (run(7), StoredState::Paused)
    );
    assert!(later.known_rows().iter().all(|known| !known.assumed));
}

/// A row may have the generation of another write than the one that the log knows; it is not repeated for that.
#[tokio::test]
async fn known_rows_are_not_logged_by_next_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut open_rows: Vec<RunRow> = (1..=50).map(|id| RunRow::open(new(id))).collect();
    let mut grown = Vec::new();
    for generation in [3, 4] {
        let record = open(dir.path()).await;
        record.raised(generation);
        let end = || record.state.lock().log.as_ref().unwrap().end().offset;
        let before = end();
        for row in &mut open_rows {
            row.new.generation = generation;
        }
        record.acquired(Life::named("a"), &found(open_rows.clone()), Vec::new());
        grown.push(end() - before);
        assert_eq!(rows(&record).len(), 50);
        drop_all(record).await;
    }
    assert!(grown[1] > 0 && grown[1] * 10 < grown[0], "{grown:?}");
}

#[tokio::test]
async fn server_of_another_boot_forgets_logged_rows() {
    let dir = tempfile::tempdir().unwrap();
    let record = open(dir.path()).await;
    record.raised(3);
    begin(&record, 7);
    record.acquired(
        Life::named("a"),
        &found(vec![RunRow::open(new(7))]),
        Vec::new(),
    );
    record.promise(run(8), closed(8)).await.unwrap();
    drop_all(record).await;
    for _ in 0..2 {
        let other = open_in(dir.path(), "another boot").await;
        assert!(rows(&other).is_empty());
        assert_eq!(other.generation(), 3);
        assert!(!other.differs(&stored_node("b", 3)));
        // Promised changes and unfinished runs survive a reboot.
        assert_eq!(other.pending_end(run(8)), Some(ended(8)));
        assert_eq!(other.unfinished(), [run(7)]);
        drop_all(other).await;
    }
}

#[tokio::test]
async fn assumed_row_is_not_logged_for_next_server() {
    let dir = tempfile::tempdir().unwrap();
    let record = open(dir.path()).await;
    record.assume(&RunRow::open(new(8)));
    assert!(record.known_rows()[0].assumed);
    record.acquired(Life::named("a"), &found(Vec::new()), Vec::new());
    assert!(rows(&record).is_empty());
    record.assume(&RunRow::open(new(8)));
    drop_all(record).await;
    let later = open(dir.path()).await;
    assert!(rows(&later).is_empty());
}

#[tokio::test]
async fn run_is_unfinished_until_it_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = open(dir.path()).await;
    begin(&record, 7);
    for _ in 0..2 {
        assert_eq!(record.unfinished(), [run(7)]);
        assert_eq!(record.intended(run(7)), Some(new(7)));
        drop_all(record).await;
        record = open(dir.path()).await;
    }
    record.took(run(7), closed(7));
    assert!(record.is_unfinished(run(7)));
    record.forget(run(7));
    drop_all(record).await;
    let later = open(dir.path()).await;
    assert!(later.unfinished().is_empty() && later.intended(run(7)).is_none());
    assert_eq!(rows(&later), [ended(7)]);
}

#[tokio::test]
async fn bounded_log_keeps_newest_ended_runs() {
    let dir = tempfile::tempdir().unwrap();
    let record = open(dir.path()).await;
    begin(&record, 1);
    let count = 10 * run_table::CLOSED_MAX as u128;
    let mut spec = kennel_lifecycle::RunSpec::default();
    spec.command.argv = vec!["x".repeat(10_000).into()];
    let spec = std::sync::Arc::new(kennel_lifecycle::RecordedSpec::from(spec));
    for id in 2..=count {
        let mut row = ended(id);
        row.new.spec = spec.clone();
        record.took(run(id), Change::Snapshot(Box::new(row)));
        if id % 512 == 0 {
            record.trim();
        }
    }
    assert!(
        size(dir.path()) < 2 * 64 * 1024 * 1024,
        "{}",
        size(dir.path())
    );
    drop_all(record).await;
    let later = open(dir.path()).await;
    let known = rows(&later);
    assert_eq!(known.len(), run_table::CLOSED_MAX + 1);
    assert_eq!(
        known[0].new.run,
        run(count - run_table::CLOSED_MAX as u128 + 1)
    );
    assert_eq!(known.last().unwrap().new.run, run(1));
    assert_eq!(later.unfinished(), [run(1)]);
}

// promise: D-9e
#[tokio::test]
async fn unopenable_log_is_reopened_by_next_write() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    let before = open(&data).await;
    before.promise(run(1), closed(1)).await.unwrap();
    drop_all(before).await;
    // The directory is unusable: it can be neither read nor moved aside.
    fs::rename(&data, dir.path().join("elsewhere")).unwrap();
    fs::write(&data, b"").unwrap();
    let later = open(&data).await;
    assert!(data.is_file() && !later.has_pending());
    begin(&later, 3);
    later.intend(&new(4)).unwrap();
    assert!(later.promise(run(5), closed(5)).await.is_err());
    fs::remove_file(&data).unwrap();
    fs::rename(dir.path().join("elsewhere"), &data).unwrap();
    later.promise(run(2), closed(2)).await.unwrap();
    let due = later.state.lock().table.first_due();
    let due: Vec<RunId> = due.iter().map(|due| due.run).collect();
    assert_eq!(due, [run(1), run(2)]);
    drop_all(later).await;
    let last = open(&data).await;
    assert_eq!(last.count_pending(), 2);
    assert_eq!(last.unfinished(), [run(3), run(4)]);
    assert_eq!(rows(&last), [RunRow::open(new(3))]);
}

#[tokio::test]
async fn unreadable_log_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("log"), b"another file").unwrap();
    let record = open(dir.path()).await;
    record.promise(run(1), closed(1)).await.unwrap();
    let aside = dir.path().join("log.unread-1");
    assert_eq!(fs::read(aside).unwrap(), b"another file");
    let mode = fs::metadata(dir.path().join("log")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o700);
}

#[tokio::test]
async fn pending_changes_of_a_run_stay_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = open(dir.path()).await;
    begin(&record, 7);
    record.promise(run(7), paused()).await.unwrap();
    record.promise(run(8), closed(8)).await.unwrap();
    record.promise(run(7), closed(7)).await.unwrap();
    drop_all(record).await;
    record = open(dir.path()).await;
    assert_eq!(record.count_pending(), 3);
    let with = record.with_pending(RunRow::open(new(7)));
    assert_eq!(with.state, StoredState::Ended(closure().outcome.state()));
    let due = record.state.lock().table.first_due();
    assert_eq!(
        due.iter().map(|d| d.run).collect::<Vec<_>>(),
        [run(7), run(8)]
    );
    record.settle(&due.into_iter().map(|due| (due, true)).collect::<Vec<_>>());
    drop_all(record).await;
    record = open(dir.path()).await;
    let due = record.state.lock().table.first_due();
    assert_eq!((due.len(), &*due[0].change), (1, &closed(7)));
    // The row is as stored, without the pending changes.
    assert_eq!(record.open_row(run(7)).unwrap().state, StoredState::Paused);
    assert!(rows(&record).contains(&ended(8)));
    record.settle(&[(due[0].clone(), false)]);
    drop_all(record).await;
    record = open(dir.path()).await;
    assert!(!record.has_pending() && record.open_row(run(7)).is_some());
}

#[tokio::test]
async fn rows_of_outdated_node_log_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let record = open(dir.path()).await;
    begin(&record, 7);
    record.promise(run(8), closed(8)).await.unwrap();
    drop_all(record).await;
    fs::write(dir.path().join("log/behind"), b"").unwrap();
    for _ in 0..2 {
        let later = open(dir.path()).await;
        assert!(rows(&later).is_empty());
        assert_eq!(
            (later.count_pending(), later.unfinished()),
            (1, vec![run(7)])
        );
        assert!(!dir.path().join("log/behind").exists(), "it has caught up");
        drop_all(later).await;
    }
}

/// Changes sampled bytes of the log's first written segment: nothing is replayed that was not written, and no server is
/// refused.
// promise: D-9e
#[tokio::test]
async fn damaged_log_taints_only_its_runs() {
    let dir = tempfile::tempdir().unwrap();
    let record = open(dir.path()).await;
    begin(&record, 7);
    begin(&record, 9);
    record.took(run(7), closed(7));
    record.took(run(9), paused());
    record.promise(run(8), closed(8)).await.unwrap();
    drop_all(record).await;
    let segment = SegmentId {
        generation: 1,
        number: 0,
    };
    let segment = segment.path(&dir.path().join("log"));
    let whole = fs::read(&segment).unwrap();
    let written = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let paused_row = paused().upon(Some(RunRow::open(new(9)))).unwrap();
    let known_rows = [
        RunRow::open(new(7)),
        ended(7),
        RunRow::open(new(9)),
        paused_row,
        ended(6),
    ];
    for at in (0..written).step_by(61) {
        for cut in [false, true] {
            let mut bytes = whole.clone();
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 0x10;
            }
            let damaged = tempfile::tempdir().unwrap();
            let log = damaged.path().join("log");
            fs::create_dir(&log).unwrap();
            fs::write(
                segment.file_name().map(|name| log.join(name)).unwrap(),
                bytes,
            )
            .unwrap();
            let mut record = open(damaged.path()).await;
            for _ in 0..2 {
                for row in rows(&record) {
                    assert!(known_rows.contains(&row), "at {at}: {row:?}");
                }
                assert!(record.count_pending() <= 1, "at {at}");
                if let Some(end) = record.pending_end(run(8)) {
                    assert_eq!(end, ended(8), "at {at}");
                }
                let unfinished = record.unfinished();
                assert!(
                    unfinished.iter().all(|r| [run(7), run(9)].contains(r)),
                    "at {at}"
                );
                // The recovered log is writable and complete from here on.
                record.took(run(6), closed(6));
                drop_all(record).await;
                record = open(damaged.path()).await;
                assert!(rows(&record).contains(&ended(6)), "at {at}");
            }
        }
    }
}

/// Writes a frame of a later version behind those of the record.
fn write_later(record: &NodeRecord, id: u128, kind: u16, payload: &str) {
    let mut record = record.state.lock();
    let mut frame = record.table.entry(run(id)).snapshot(run(id));
    record.table.entry(run(id)).seq += 1;
    frame.kind = kind;
    frame.seq += 1;
    payload.as_bytes().clone_into(&mut frame.payload);
    record.append(&[&frame]).unwrap();
}

fn pending_texts(record: &NodeRecord, id: u128) -> Vec<String> {
    let record = record.state.lock();
    let later = &record.table.runs[&run(id)].later;
    let texts = later.iter().map(|(_, text)| text.as_str().to_owned());
    texts.collect()
}

// promise: A-22m
#[tokio::test]
async fn pending_change_of_later_version_is_kept() {
    let later = r#"{"closed":[{"of_tomorrow":1}, 2]}"#;
    let dir = tempfile::tempdir().unwrap();
    let mut record = open(dir.path()).await;
    begin(&record, 7);
    record.promise(run(7), paused()).await.unwrap();
    let pending = frames::PENDING | kennel_journal::node_log::CRITICAL;
    write_later(&record, 7, pending, later);
    for _ in 0..2 {
        drop_all(record).await;
        record = open(dir.path()).await;
        assert!(record.waits_for_later(run(7)));
        assert_eq!(pending_texts(&record, 7), [later]);
        // Changes that this version knows are delivered meanwhile.
        assert_eq!(record.count_pending(), 1);
        // `catch_up` copies the whole run.
        record.state.lock().table.behind.insert(run(7));
        record.state.lock().catch_up();
    }
    // The later version has delivered every change.
    {
        let mut locked = record.state.lock();
        let seq = locked.table.runs[&run(7)].seq;
        let settled = locked.table.entry(run(7)).settled(run(7), seq, true);
        locked.append(&[&settled]).unwrap();
    }
    drop_all(record).await;
    let last = open(dir.path()).await;
    assert!(!last.waits_for_later(run(7)) && !last.has_pending());
}

// promise: A-22e
#[tokio::test]
async fn frames_of_later_version_do_not_hide_others() {
    let dir = tempfile::tempdir().unwrap();
    let record = open(dir.path()).await;
    // An unknown policy value, in an intention and in a row.
    let mut spec = serde_json::to_value(new(1)).unwrap();
    spec["spec"] =
        serde_json::json!({"policy": {"pause": {"on_max_pause": "of_tomorrow"}, "kind": "job"}});
    let text = spec.to_string();
    write_later(
        &record,
        1,
        frames::KNOWN,
        &format!("{{\"intended\":{text}}}"),
    );
    // An unknown entry.
    record.intend(&new(2)).unwrap();
    let entry = r#"{"seq":1,"at":5,"entry":{"of_tomorrow":{"b":1,"a":2}}}"#;
    write_later(&record, 2, frames::ENTRY, entry);
    // A state whose row has an unknown outcome, and pending changes.
    let mut state = serde_json::to_value(frames::EntryState::of(&Entry::new(1))).unwrap();
    state["row"] = serde_json::to_value(ended(3)).unwrap();
    state["row"]["outcome"]["reason"] = "of_tomorrow".into();
    state["pending"] = serde_json::json!([[1, paused()]]);
    let kind = frames::STATE | kennel_journal::node_log::SNAPSHOT;
    write_later(&record, 3, kind, &state.to_string());
    drop_all(record).await;
    let record = open(dir.path()).await;
    let intended = record.intended(run(1)).unwrap();
    assert_eq!(intended.spec.unknown(), Some("policy.pause"));
    let again = serde_json::to_string(&*intended.spec).unwrap();
    assert_eq!(again, spec["spec"].to_string());
    let locked = record.state.lock();
    let late = locked.table.runs[&run(2)].late.as_ref().unwrap();
    let late = serde_json::to_string(late).unwrap();
    assert!(late.contains(entry), "{late}");
    assert!(locked.table.runs[&run(3)].row.is_none());
    let kept: Vec<_> = locked.table.pending_of(run(3)).collect();
    assert_eq!(kept, [&paused()]);
}
