//! A writer dies anywhere; the next one finds all that was whole, and every byte of output exactly once.

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

#[derive(Clone, Debug)]
enum Step {
    Output(Kind, Vec<u8>),
    Fact(Vec<u8>),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_anywhere_keeps_what_was_whole(
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
        // The pump had spliced more than the journal knew of.
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
        prop_assert_eq!(&raw_files(dir.path())["lifecycle"], &facts);

        // And it goes on as if nothing had been.
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
    fn recovery_done_twice_changes_nothing_more(
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
    fn a_reader_of_a_torn_journal_reads_what_recovery_keeps_and_writes_nothing(
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
fn a_damaged_entry_ends_what_is_kept_and_its_output_is_named_anew() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    for line in ["one\n", "two\n", "three\n"] {
        output(&mut writer, Kind::Stdout, line.as_bytes(), 1).unwrap();
    }
    drop(writer);
    let index = dir.path().join("index");
    let mut bytes = fs::read(&index).unwrap();
    bytes[116 + 36 + 9] ^= 1;
    fs::write(&index, bytes).unwrap();

    drop(Writer::recover(dir.path(), BOOT, Timestamp(LATER)).unwrap());

    let entries = entries_on_disk(dir.path());
    let data: Vec<&[u8]> = entries.iter().map(|e| &e.data[..]).collect();
    assert_eq!(data, [&b"one\n"[..], b"two\nthree\n"]);
    assert_eq!(entries[1].at, Timestamp(LATER));
}

#[test]
fn a_writer_that_died_while_it_made_the_files_is_mended() {
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
fn a_file_that_is_no_journal_is_left_alone() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("index"), "somebody's own list of things").unwrap();
    let error = Writer::recover(dir.path(), BOOT, Timestamp(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    let found = fs::read_to_string(dir.path().join("index")).unwrap();
    assert_eq!(found, "somebody's own list of things");
}

#[test]
fn an_entry_says_of_which_attempt_it_is_also_after_a_crash() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = create(dir.path());
    output(&mut writer, Kind::Stdout, b"one", 1).expect("it is written");
    writer.begin_attempt(2);
    writer.lifecycle(b"again", Timestamp(2)).expect("a fact");
    drop(writer);
    // Bytes that nobody has named.
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
        (0..len)
            .map(|i| first.wrapping_add(i.to_le_bytes()[0]))
            .collect()
    });
    let kind = prop_oneof![Just(Kind::Stdout), Just(Kind::Stderr)];
    let step = prop_oneof![
        4 => (kind, bytes).prop_map(|(kind, bytes)| Step::Output(kind, bytes)),
        1 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Step::Fact),
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
    // A stream that nothing was written to has no file.
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

/// By the rule, not by the code: an entry survives if it and all before it are whole in the index and in the files.
fn entries_that_survive<'a>(whole: &'a [Entry], dir: &Path) -> &'a [Entry] {
    let len = |name: &str| fs::metadata(dir.join(name)).map_or(0, |m| m.len());
    let in_index = len("index").saturating_sub(116) / 36;
    let survives = |entry: &&Entry| {
        let name = match entry.kind {
            Kind::Lifecycle => "lifecycle",
            Kind::Stdout => "stdout",
            Kind::Stderr => "stderr",
        };
        entry.seq <= in_index && entry.offset + entry.data.len() as u64 <= len(name)
    };
    &whole[..whole.iter().take_while(survives).count()]
}
