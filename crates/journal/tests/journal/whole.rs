//! A journal that has ended, in the summary before its removal, and for its readers.

use crate::common::{BOOT, items_on_disk, output};
use kennel_journal::{Boot, Item, Kind, Position, Reader, Writer, size_bytes, whole};
use kennel_lifecycle::{OutputBound, Timestamp};
use std::{fs, io, path::Path};
use tempfile::tempdir;

/// A journal whose first segments were removed, with lifecycle entries in them.
fn bounded(dir: &Path) -> Writer {
    let bound = OutputBound {
        max_bytes: 20_000,
        ..OutputBound::default()
    };
    let mut writer = Writer::create(dir, bound, BOOT, Timestamp(1)).unwrap();
    for number in 0..40u8 {
        writer.lifecycle(&[number + 1], Timestamp(2)).unwrap();
        output(&mut writer, Kind::Stdout, &[number; 1000], 3).unwrap();
    }
    writer.lifecycle(b"end", Timestamp(4)).unwrap();
    writer
}

#[test]
fn closed_journal_has_end_last_entry_and_size() {
    let dir = tempdir().unwrap();
    let head = {
        let writer = bounded(dir.path());
        writer.hub().head()
    };
    let found = whole(dir.path()).unwrap();
    assert_eq!((found.end, found.counted), (head, true));
    let last = found.last.unwrap();
    assert_eq!((last.seq, &last.data[..]), (head.seq, &b"end"[..]));
    fs::write(dir.path().join("exit"), vec![0; 100_000]).unwrap();
    let sizes = fs::read_dir(dir.path()).unwrap().map(|file| {
        let file = file.unwrap();
        let ours = file.file_name() != "exit";
        let len = file.metadata().unwrap().len();
        if ours { len.div_ceil(4096) * 4096 } else { 0 }
    });
    assert_eq!(size_bytes(dir.path()).unwrap(), sizes.sum::<u64>());
    // Data lost with the host is not counted.
    drop(Writer::recover(dir.path(), Boot(9), Timestamp(5)).unwrap());
    assert!(!whole(dir.path()).unwrap().counted);

    let missing = dir.path().join("missing");
    let error = whole(&missing).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert_eq!(size_bytes(&missing).unwrap(), 0);
}

#[tokio::test]
async fn reader_of_removed_journal_gets_an_error() {
    let scratch = tempdir().unwrap();
    let (dir, aside) = (scratch.path().join("run"), scratch.path().join("aside"));
    fs::create_dir(&dir).unwrap();
    drop(bounded(&dir));
    let runtime_free = dir.clone();
    let all = std::thread::spawn(move || items_on_disk(&runtime_free, Position::default()));
    let all = all.join().unwrap();
    // Reads from the beginning, where lifecycle entries were retained, and after each item.
    let mut at = vec![0];
    at.extend(all.iter().map(Item::last_seq));
    for after in at {
        let position = Position {
            seq: after,
            lens: Some([0; 2]),
        };
        let mut reader = Reader::open_ended(&dir, position).unwrap();
        fs::rename(&dir, &aside).unwrap();
        match reader.next(100).await {
            Ok(None) => assert_eq!(after, reader.end().seq),
            Ok(Some(items)) => panic!("after {after}: {items:?}"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}"),
        }
        fs::rename(&aside, &dir).unwrap();
    }
}
