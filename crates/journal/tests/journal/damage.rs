//! A journal of an ended run whose files were cut, changed or removed.

use crate::common::{BOOT, KINDS, assert_follow, items_to_end, output, seen};
use kennel_journal::{GapReason, Item, Position, Reader, Writer};
use kennel_lifecycle::{OutputBound, Timestamp};
use proptest::prelude::*;
use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use tempfile::{TempDir, tempdir};

/// Returns a journal of three segments with both streams, and the data written to each.
fn journal() -> (TempDir, [Vec<u8>; 2]) {
    let dir = tempdir().unwrap();
    let bound = OutputBound {
        max_bytes: 64 * 1024,
        ..OutputBound::default()
    };
    let mut writer = Writer::create(dir.path(), bound, BOOT, Timestamp(1)).unwrap();
    let mut written = [Vec::new(), Vec::new()];
    for number in 1..=40u8 {
        writer.lifecycle(&[number; 9], Timestamp(2)).unwrap();
        for (kind, written) in KINDS.into_iter().zip(&mut written) {
            let data = [number; 400];
            output(&mut writer, kind, &data, 3).unwrap();
            written.extend(data);
        }
    }
    writer.lifecycle(b"end", Timestamp(4)).unwrap();
    drop(writer);
    (dir, written)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    files
}

fn read(dir: &Path, bytes_max: usize) -> std::io::Result<Vec<Item>> {
    let mut reader = Reader::open_closed(dir, Position::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    Ok(runtime
        .unwrap()
        .block_on(items_to_end(&mut reader, bytes_max)))
}

// promise: O-40
#[test]
fn truncated_output_file_is_read_as_gap() {
    let (dir, written) = journal();
    let newest = files(dir.path())
        .into_iter()
        .rfind(|file| {
            file.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("stdout")
        })
        .unwrap();
    let file = OpenOptions::new().write(true).open(&newest).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - 30).unwrap();
    let items = read(dir.path(), 1 << 20).unwrap();
    assert_follow(&items, 1);
    let gaps: Vec<_> = items
        .iter()
        .filter_map(|item| match item {
            Item::Gap(gap) => Some(gap),
            Item::Entry(_) => None,
        })
        .collect();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(gaps[0].reason, GapReason::Damaged);
    assert_eq!(gaps[0].bytes, [Some(400), Some(0)]);
    for (kind, written) in KINDS.into_iter().zip(&written) {
        let (came, missing) = seen(&items, kind, written);
        assert_eq!(came + missing, written.len() as u64);
    }
    let last = items.last().cloned().and_then(Item::into_entry).unwrap();
    assert_eq!(&last.data[..], b"end");
}

/// One damage to one file.
#[derive(Clone, Debug)]
enum Damage {
    Cut,
    Flip,
    Remove,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // promise: O-40
    #[test]
    fn damaged_journal_is_never_read_as_complete(
        damage in prop_oneof![Just(Damage::Cut), Just(Damage::Flip), Just(Damage::Remove)],
        file in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bytes_max in 1usize..5000,
    ) {
        let (dir, written) = journal();
        let files = files(dir.path());
        let path = file.get(&files);
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let len = usize::try_from(fs::metadata(path).unwrap().len()).unwrap();
        prop_assume!(len > 0);
        // The bytes of output and lifecycle entries have no checksum.
        prop_assume!(name.starts_with("index") || !matches!(damage, Damage::Flip));
        let at = at.index(len);
        match damage {
            Damage::Cut => OpenOptions::new().write(true).open(path).unwrap().set_len(at as u64).unwrap(),
            Damage::Remove => fs::remove_file(path).unwrap(),
            Damage::Flip => {
                let file = File::options().read(true).write(true).open(path).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, at as u64).unwrap();
                byte[0] ^= 0x10;
                file.write_all_at(&byte, at as u64).unwrap();
            }
        }
        // An invalid header is an error, whatever else exists.
        let Ok(items) = read(dir.path(), bytes_max) else {
            prop_assert!(name.starts_with("index"));
            return Ok(());
        };
        let is_whole = {
            let entries: Vec<_> = items.iter().cloned().filter_map(Item::into_entry).collect();
            entries.len() == items.len() && entries.last().is_some_and(|last| &last.data[..] == b"end")
        };
        // The count of bytes dropped after the last entry has no use in a closed journal.
        let unchecked = if name == "index" { 92..2048 } else { 92..116 };
        let is_of_header = name.starts_with("index") && matches!(damage, Damage::Flip) && unchecked.contains(&at);
        prop_assert!(!is_whole || is_of_header, "{damage:?} of {name} at {at}");
        for (kind, written) in KINDS.into_iter().zip(&written) {
            for entry in items.iter().cloned().filter_map(Item::into_entry).filter(|e| e.kind == kind) {
                let begin = usize::try_from(entry.offset).unwrap();
                prop_assert_eq!(&entry.data[..], &written[begin..begin + entry.data.len()]);
            }
        }
    }
}
