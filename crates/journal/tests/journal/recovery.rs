//! A writer dies anywhere; the next one finds all whole entries, and every byte of output exactly once.

use crate::common::{BOOT, assert_dense, create, entries_on_disk, output, stream};
use kennel_journal::{Entry, Kind, Writer};
use kennel_lifecycle::Timestamp;
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    path::Path,
};
use tempfile::tempdir;

const FILES: [&str; 4] = ["stdout", "stderr", "lifecycle", "index"];
const LATER: i64 = 1_000_000;
/// Bytes of lifecycle lines that the index holds.
const LINES_IN_INDEX: usize = 2048 - 116;

#[derive(Clone, Debug)]
enum Step {
    Output(Kind, Vec<u8>),
    Fact(Vec<u8>),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    // promise: O-5
    #[test]
    fn recovery_after_any_crash_keeps_complete_entries(
        before in steps(),
        after in steps(),
        cut_file in 0usize..5,
        cut_share in 0.0f64..1.0,
        unindexed in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let dir = tempdir().unwrap();
        let mut writer = create(dir.path());
        write(&mut writer, &before);
        drop(writer);
        let whole = entries_on_disk(dir.path());
        // The pump had spliced more than the journal had recorded.
        append(&dir.path().join("stdout"), &unindexed);
        if let Some(name) = FILES.get(cut_file) {
            cut(&dir.path().join(name), cut_share);
        }
        let left = raw_files(dir.path());
        let kept = entries_that_survive(&whole, dir.path());

        let mut writer = Writer::recover(dir.path(), BOOT, Timestamp(LATER)).unwrap();

        let entries = entries_on_disk(dir.path());
        prop_assert_eq!(&entries[..kept.len()], kept);
        prop_assert!(entries[kept.len()..].iter().all(|e| e.at == Timestamp(LATER) && e.kind != Kind::Lifecycle));
        assert_dense(&entries, 1);
        for (kind, name) in [(Kind::Stdout, "stdout"), (Kind::Stderr, "stderr")] {
            prop_assert_eq!(&stream(&entries, kind), &left[name]);
            prop_assert_eq!(writer.len(kind), left[name].len() as u64);
        }
        let facts = stream(kept, Kind::Lifecycle);
        prop_assert_eq!(lines_on_disk(dir.path()), facts);

        // The recovered journal continues normally.
        write(&mut writer, &after);
        drop(writer);
        let more = entries_on_disk(dir.path());
        prop_assert_eq!(&more[..entries.len()], &entries[..]);
        assert_dense(&more, 1);
        for kind in [Kind::Stdout, Kind::Stderr] {
            let mut expected = stream(&entries, kind);
            for step in &after {
                if let Step::Output(k, bytes) = step && *k == kind {
                    expected.extend(bytes);
                }
            }
            prop_assert_eq!(stream(&more, kind), expected);
        }
    }

    #[test]
    fn recovery_is_idempotent(
        steps in steps(),
        cut_file in 0usize..4,
        cut_share in 0.0f64..1.0,
    ) {
        let dir = tempdir().unwrap();
        write(&mut create(dir.path()), &steps);
        cut(&dir.path().join(FILES[cut_file]), cut_share);
        drop(Writer::recover(dir.path(), BOOT, Timestamp(LATER)).unwrap());
        let once = raw_files(dir.path());
        drop(Writer::recover(dir.path(), BOOT, Timestamp(LATER + 1)).unwrap());
        prop_assert_eq!(raw_files(dir.path()), once);
    }

    #[test]
    fn reader_of_torn_journal_matches_recovery_without_writes(
        steps in steps(),
        cut_file in 0usize..4,
        cut_share in 0.0f64..1.0,
    ) {
        let dir = tempdir().unwrap();
        write(&mut create(dir.path()), &steps);
        cut(&dir.path().join(FILES[cut_file]), cut_share);
        let before = raw_files(dir.path());
        let torn = entries_on_disk(dir.path());
        prop_assert_eq!(raw_files(dir.path()), before);
        drop(Writer::recover(dir.path(), BOOT, Timestamp(LATER)).unwrap());
        prop_assert_eq!(&entries_on_disk(dir.path())[..torn.len()], &torn[..]);
    }
}

#[test]
fn output_after_a_damaged_index_entry_is_kept() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    for line in ["one\n", "two\n", "three\n"] {
        output(&mut writer, Kind::Stdout, line.as_bytes(), 1).unwrap();
    }
    drop(writer);
    let index = dir.path().join("index");
    let mut bytes = fs::read(&index).unwrap();
    bytes[2048 + 36 + 9] ^= 1;
    fs::write(&index, bytes).unwrap();

    drop(Writer::recover(dir.path(), BOOT, Timestamp(LATER)).unwrap());

    let entries = entries_on_disk(dir.path());
    let data: Vec<&[u8]> = entries.iter().map(|e| &e.data[..]).collect();
    assert_eq!(data, [&b"one\n"[..], b"two\nthree\n"]);
    assert_eq!(entries[1].at, Timestamp(LATER));
}

#[test]
fn crash_while_creating_files_is_repaired() {
    for made in 0..=FILES.len() {
        let dir = tempdir().unwrap();
        for name in &["lifecycle", "stdout", "stderr", "index"][..made] {
            File::create(dir.path().join(name)).unwrap();
        }
        let mut writer = Writer::recover(dir.path(), BOOT, Timestamp(LATER)).unwrap();
        output(&mut writer, Kind::Stdout, b"on\n", 1).unwrap();
        drop(writer);
        assert_eq!(stream(&entries_on_disk(dir.path()), Kind::Stdout), b"on\n");
    }
}

#[test]
fn foreign_file_is_left_unchanged() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("index"), "somebody's own list of things").unwrap();
    let error = Writer::recover(dir.path(), BOOT, Timestamp(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    let found = fs::read_to_string(dir.path().join("index")).unwrap();
    assert_eq!(found, "somebody's own list of things");
}

// promise: B-8
#[test]
fn entry_keeps_its_attempt_after_a_crash() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = create(dir.path());
    output(&mut writer, Kind::Stdout, b"one", 1).expect("it is written");
    writer.begin_attempt(2);
    writer.lifecycle(b"again", Timestamp(2)).expect("a fact");
    drop(writer);
    // Bytes that no entry refers to.
    append(&dir.path().join("stdout"), b"two");

    let mut writer = Writer::recover(dir.path(), BOOT, Timestamp(3)).expect("it is mended");
    writer.begin_attempt(3);
    output(&mut writer, Kind::Stdout, b"three", 4).expect("it is written");
    drop(writer);
    let entries = entries_on_disk(dir.path());
    let attempts: Vec<u32> = entries.iter().map(|entry| entry.attempt).collect();
    assert_eq!(attempts, [1, 2, 2, 3]);
    assert_eq!(stream(&entries, Kind::Stdout), b"onetwothree");
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![6 => 1usize..200, 1 => 60_000usize..200_000];
    let bytes = (size, any::<u8>()).prop_map(|(len, first)| {
        let period: Vec<u8> = (0..=u8::MAX).map(|i| first.wrapping_add(i)).collect();
        let mut bytes = period.repeat(len.div_ceil(period.len()));
        bytes.truncate(len);
        bytes
    });
    let kind = prop_oneof![Just(Kind::Stdout), Just(Kind::Stderr)];
    let step = prop_oneof![
        4 => (kind, bytes).prop_map(|(kind, bytes)| Step::Output(kind, bytes)),
        // Lines never contain NUL.
        1 => prop::collection::vec(1u8.., 0..200).prop_map(Step::Fact),
    ];
    prop::collection::vec(step, 0..24)
}

fn write(writer: &mut Writer, steps: &[Step]) {
    for (step, at) in steps.iter().zip(1..) {
        match step {
            Step::Output(kind, bytes) => output(writer, *kind, bytes, at).unwrap(),
            Step::Fact(payload) => writer.lifecycle(payload, Timestamp(at)).unwrap(),
        };
    }
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .unwrap();
    file.write_all(bytes).unwrap();
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "any place in the file will do"
)]
fn cut(path: &Path, share: f64) {
    // A stream without writes has no file.
    let Ok(file) = OpenOptions::new().write(true).open(path) else {
        return;
    };
    let len = file.metadata().unwrap().len();
    file.set_len((len as f64 * share) as u64).unwrap();
}

fn raw_files(dir: &Path) -> BTreeMap<&'static str, Vec<u8>> {
    FILES
        .into_iter()
        .map(|name| (name, fs::read(dir.join(name)).unwrap_or_default()))
        .collect()
}

/// Returns all bytes of lifecycle lines: those after the header of the index up to its zeros, then those of the file.
fn lines_on_disk(dir: &Path) -> Vec<u8> {
    let index = fs::read(dir.join("index")).unwrap();
    let rest = fs::read(dir.join("lifecycle")).unwrap_or_default();
    let mut lines = index[116..].to_vec();
    lines.truncate(LINES_IN_INDEX);
    match rest.get(LINES_IN_INDEX..) {
        Some(rest) => lines.extend(rest),
        None => lines.truncate(lines.iter().position(|b| *b == 0).unwrap_or(LINES_IN_INDEX)),
    }
    lines
}

/// Returns the entries that survive, by the rule, not by the code: an entry survives if it and all before it are whole
/// in the index and in the files.
fn entries_that_survive<'a>(whole: &'a [Entry], dir: &Path) -> &'a [Entry] {
    let len = |name: &str| fs::metadata(dir.join(name)).map_or(0, |m| m.len());
    let in_index = len("index").saturating_sub(2048) / 36;
    let survives = |entry: &&Entry| {
        let there = match entry.kind {
            // The first lines are in the index, before its entries.
            Kind::Lifecycle => len("lifecycle").max(LINES_IN_INDEX as u64),
            Kind::Stdout => len("stdout"),
            Kind::Stderr => len("stderr"),
        };
        entry.seq <= in_index && entry.offset + entry.data.len() as u64 <= there
    };
    &whole[..whole.iter().take_while(survives).count()]
}

// promise: O-42
#[test]
fn first_lifecycle_entries_are_stored_in_the_index() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    for _ in 0..6 {
        writer.lifecycle(&[b'x'; 100], Timestamp(1)).unwrap();
    }
    drop(writer);
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|f| f.unwrap().file_name())
        .collect();
    assert_eq!(names, ["index"]);
    assert!(
        fs::metadata(dir.path().join("index")).unwrap().len() <= 4096,
        "one block"
    );
    assert_eq!(entries_on_disk(dir.path()).len(), 6);
}

#[test]
fn entry_across_index_and_file_is_read_completely() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    let line = |n: u8| vec![n; 500];
    for n in 1..=5 {
        writer.lifecycle(&line(n), Timestamp(1)).unwrap();
    }
    drop(writer);
    let mut writer = Writer::recover(dir.path(), BOOT, Timestamp(2)).unwrap();
    writer.lifecycle(&line(6), Timestamp(2)).unwrap();
    let facts = writer.facts().unwrap();
    let lines: Vec<Vec<u8>> = facts.iter().map(|f| f.entry.data.to_vec()).collect();
    assert_eq!(lines, (1..=6).map(line).collect::<Vec<_>>());
    drop(writer);
    let lines: Vec<Vec<u8>> = entries_on_disk(dir.path())
        .iter()
        .map(|e| e.data.to_vec())
        .collect();
    assert_eq!(lines, (1..=6).map(line).collect::<Vec<_>>());
}

#[test]
fn index_entry_without_its_bytes_is_dropped() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    for line in [b"one", b"two"] {
        writer.lifecycle(line, Timestamp(1)).unwrap();
    }
    drop(writer);
    let index = dir.path().join("index");
    let mut bytes = fs::read(&index).unwrap();
    // The page with the entry was written, the page with its bytes was not.
    bytes[116 + 3..116 + 6].fill(0);
    fs::write(&index, bytes).unwrap();
    let writer = Writer::recover(dir.path(), BOOT, Timestamp(2)).unwrap();
    let facts = writer.facts().unwrap();
    assert_eq!(facts.len(), 1);
    assert_eq!(&facts[0].entry.data[..], b"one");
}
