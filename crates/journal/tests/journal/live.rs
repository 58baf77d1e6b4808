//! One writer and its readers: written entries are read, in order, once.

use crate::common::{
    BOOT, DEADLINE, assert_dense, create, entries_on_disk, output, read_after, read_to_end, stream,
};
use kennel_journal::{
    ENTRY_BYTES_MAX, Entry, Item, Kind, LIFECYCLE_BYTES_MAX, Position, Reader, Writer,
};
use kennel_lifecycle::{OutputBound, Timestamp};
use std::{io::ErrorKind, os::unix::fs::PermissionsExt};
use tempfile::tempdir;
use tokio::time::timeout;

#[test]
fn entries_keep_order_time_and_offset() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    assert_eq!(writer.lifecycle(b"recorded", Timestamp(10)).unwrap(), 1);
    assert_eq!(output(&mut writer, Kind::Stdout, b"one\n", 20).unwrap(), 2);
    assert_eq!(output(&mut writer, Kind::Stderr, b"two\n", 30).unwrap(), 3);
    assert_eq!(
        output(&mut writer, Kind::Stdout, b"three\n", 40).unwrap(),
        4
    );
    assert_eq!(writer.lifecycle(b"", Timestamp(-50)).unwrap(), 5);
    drop(writer);

    let entry = |seq, at, kind, offset, data: &[u8]| Entry {
        attempt: 1,
        seq,
        at: Timestamp(at),
        kind,
        offset,
        data: data.to_vec().into(),
    };
    assert_eq!(
        entries_on_disk(dir.path()),
        [
            entry(1, 10, Kind::Lifecycle, 0, b"recorded"),
            entry(2, 20, Kind::Stdout, 0, b"one\n"),
            entry(3, 30, Kind::Stderr, 0, b"two\n"),
            entry(4, 40, Kind::Stdout, 4, b"three\n"),
            entry(5, -50, Kind::Lifecycle, 8, b""),
        ]
    );
    assert_eq!(
        std::fs::read(dir.path().join("stdout")).unwrap(),
        b"one\nthree\n"
    );
}

#[test]
fn binary_output_of_any_size_is_unchanged() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    let max = ENTRY_BYTES_MAX as usize;
    let mut written = Vec::new();
    for len in [1, max - 1, max, max + 1, 3 * max, 300 * max + 7] {
        let bytes: Vec<u8> = (0u8..=255).cycle().skip(len % 251).take(len).collect();
        output(&mut writer, Kind::Stdout, &bytes, 0).unwrap();
        written.extend(bytes);
    }
    let head = writer.hub().head().seq;
    drop(writer);

    let entries = entries_on_disk(dir.path());
    assert_eq!(entries.len() as u64, head);
    assert_dense(&entries, 1);
    assert!(entries.iter().all(|e| (1..=max).contains(&e.data.len())));
    assert!(stream(&entries, Kind::Stdout) == written, "bytes differ");
}

#[test]
fn empty_output_makes_no_entry() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    assert_eq!(
        writer
            .output_written(Kind::Stdout, 0, Timestamp(1))
            .unwrap(),
        0
    );
    assert_eq!(writer.hub().head().seq, 0);
}

#[test]
fn failed_write_is_refused_and_changes_nothing() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    let largest = vec![7; LIFECYCLE_BYTES_MAX];
    assert_eq!(writer.lifecycle(&largest, Timestamp(1)).unwrap(), 1);

    let larger = vec![7; LIFECYCLE_BYTES_MAX + 1];
    let error = writer.lifecycle(&larger, Timestamp(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = writer
        .output_written(Kind::Lifecycle, 4, Timestamp(3))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);

    assert_eq!(writer.hub().head().seq, 1);
    assert_eq!(writer.len(Kind::Lifecycle), LIFECYCLE_BYTES_MAX as u64);
}

// promise: O-42
#[test]
fn journal_is_private_and_never_overwrites_another() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    output(&mut writer, Kind::Stdout, b"kept", 1).unwrap();
    let error = Writer::create(dir.path(), OutputBound::default(), BOOT, Timestamp(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(stream(&entries_on_disk(dir.path()), Kind::Stdout), b"kept");

    let mut names = Vec::new();
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        names.push(file.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["index", "stdout"], "a silent stream has no file");
}

#[test]
fn open_error_names_the_file() {
    let dir = tempdir().unwrap();
    let error = Reader::open_ended(dir.path(), Position::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let path = dir.path().join("index");
    assert_eq!(error.to_string(), format!("cannot open {}", path.display()));
}

#[tokio::test]
async fn reader_position_beyond_the_head_is_refused() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    for n in 1..=5u8 {
        output(&mut writer, Kind::Stdout, &[n], 0).unwrap();
    }
    let hub = writer.hub();
    assert_eq!(
        read_after(&hub, 6).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    let mut from_3 = read_after(&hub, 3).unwrap();
    let mut from_head = read_after(&hub, 5).unwrap();
    drop(writer);
    assert_eq!(
        Reader::open_ended(dir.path(), Position { seq: 6, lens: None })
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidInput
    );

    let entries = read_to_end(&mut from_3, 100).await;
    assert_eq!(entries.iter().map(|e| e.seq).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(read_to_end(&mut from_head, 100).await, []);
    // Every further call returns the same result.
    assert_eq!(from_head.next(1).await.unwrap(), None);
}

#[tokio::test]
async fn read_gives_requested_bytes_or_one_entry() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    for len in [10, 10, 10, 50, 1] {
        output(&mut writer, Kind::Stdout, &vec![b'x'; len], 0).unwrap();
    }
    let mut reader = read_after(&writer.hub(), 0).unwrap();
    let mut lens = Vec::new();
    for _ in 0..4 {
        let entries = reader.next(25).await.unwrap().unwrap();
        let entries = entries.into_iter().filter_map(Item::into_entry);
        lens.push(entries.map(|e| e.data.len()).collect::<Vec<_>>());
    }
    assert_eq!(lens, [vec![10, 10], vec![10], vec![50], vec![1]]);
}

#[tokio::test]
async fn waiting_reader_wakes_at_each_entry_and_end() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    let mut reader = read_after(&writer.hub(), 0).unwrap();
    for n in 0..100u8 {
        let mut waiting = Box::pin(reader.next(1024));
        assert!(poll_once(&mut waiting).is_none(), "nothing there yet");
        output(&mut writer, Kind::Stderr, &[n], 0).unwrap();
        let entries = timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap();
        let entries: Vec<Entry> = entries.into_iter().filter_map(Item::into_entry).collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].data[..], [n]);
    }
    let mut waiting = Box::pin(reader.next(1024));
    assert!(poll_once(&mut waiting).is_none());
    drop(writer);
    assert_eq!(timeout(DEADLINE, waiting).await.unwrap().unwrap(), None);
}

#[tokio::test]
async fn cancelled_read_loses_no_entry() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    for n in 0..200u8 {
        output(&mut writer, Kind::Stdout, &[n], 0).unwrap();
    }
    let mut reader = read_after(&writer.hub(), 0).unwrap();
    drop(writer);
    let mut all = Vec::new();
    loop {
        // Cancels the call after its first poll, which started the read on another thread.
        let cut = poll_once(&mut Box::pin(reader.next(7)));
        if let Some(entries) = cut {
            all.extend(entries.unwrap().unwrap_or_default());
        }
        match timeout(DEADLINE, reader.next(7)).await.unwrap().unwrap() {
            Some(entries) => all.extend(entries),
            None => break,
        }
    }
    let all: Vec<Entry> = all.into_iter().filter_map(Item::into_entry).collect();
    assert_eq!(all.len(), 200);
    assert_dense(&all, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_readers_see_the_same_sequence() {
    const ENTRIES: u64 = 3000;
    const READERS: u64 = 24;
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    let mut readers = Vec::new();
    for n in 0..ENTRIES {
        if n % (ENTRIES / READERS) == 0 {
            // Readers start at the head, or anywhere behind.
            let after = n * ((n * 7919) % 11) / 10;
            let mut reader = read_after(&writer.hub(), after.min(n)).unwrap();
            let bytes_max = 1usize << (n % 18);
            readers.push((
                after.min(n),
                tokio::spawn(async move { read_to_end(&mut reader, bytes_max).await }),
            ));
        }
        let kind = [Kind::Stdout, Kind::Stderr][usize::try_from(n % 2).unwrap()];
        let len = usize::try_from((n * n) % 3000 + 1).unwrap();
        if n % 50 == 0 {
            writer
                .lifecycle(&(n + 1).to_le_bytes(), Timestamp(0))
                .unwrap();
        } else {
            output(&mut writer, kind, &vec![n.to_le_bytes()[0]; len], 0).unwrap();
        }
        if n % 7 == 0 {
            tokio::task::yield_now().await;
        }
    }
    drop(writer);

    let path = dir.path().to_owned();
    let whole = tokio::task::spawn_blocking(move || entries_on_disk(&path))
        .await
        .unwrap();
    assert_eq!(whole.len() as u64, ENTRIES);
    assert_dense(&whole, 1);
    for (after, reader) in readers {
        let seen = reader.await.unwrap();
        assert!(
            seen == whole[usize::try_from(after).unwrap()..],
            "a reader after {after} differs"
        );
    }
}

/// Polls once; `None`: still waiting.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}
