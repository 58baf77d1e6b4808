//! A journal with a bound: it reports its missing data exactly, and never exceeds its bound.

use crate::common::{
    BOOT, DEADLINE, assert_follow, create, items_on_disk, items_to_end, output, read_after, seen,
};
use kennel_journal::{Boot, Dropped, Gap, GapReason, Item, Kind, Point, Position, Reader, Writer};
use kennel_lifecycle::{OnOutputFull, OutputBound, Timestamp};
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
};
use tempfile::tempdir;

const MIB: usize = 1 << 20;

#[derive(Clone, Debug)]
enum Step {
    Output(Kind, usize),
    Fact(Vec<u8>),
    /// So many bytes were dropped for want of space, in two rounds; between them the writer may be killed.
    Dropped(Kind, [usize; 2], bool),
    /// The writer is killed after so many bytes that no entry refers to, with a part of its last index write.
    Killed {
        unnamed: usize,
        torn: usize,
    },
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    // promise: O-11
    #[test]
    fn read_plus_missing_equals_written_after_any_crash(
        steps in steps(),
        max_bytes in 2_000u64..60_000,
        on_full in policies(),
        stops in prop::collection::vec(0.0f64..1.0, 4),
    ) {
        let dir = tempdir().unwrap();
        let bound = OutputBound { max_bytes, on_full, ..OutputBound::default() };
        let mut writer = Writer::create(dir.path(), bound, BOOT, Timestamp(1)).unwrap();
        let mut written = [Vec::new(), Vec::new()];
        let (mut facts, mut places) = (Vec::new(), Vec::new());
        // Positions at which readers stopped midway, and resume at the end.
        let mut left = vec![Position::default()];
        for (number, step) in steps.iter().enumerate() {
            match step {
                Step::Output(kind, len) => {
                    let bytes = pattern(*len, number);
                    output(&mut writer, *kind, &bytes, 2).unwrap();
                    written[usize::from(*kind == Kind::Stderr)].extend(bytes);
                }
                Step::Fact(payload) => {
                    writer.lifecycle(payload, Timestamp(3)).unwrap();
                    facts.push(payload.clone());
                    places.push([written[0].len() as u64, written[1].len() as u64]);
                }
                Step::Dropped(kind, lens, killed) => {
                    for (round, len) in lens.iter().enumerate() {
                        writer.drop_output(*kind, || Ok((*len as u64, ()))).unwrap();
                        written[usize::from(*kind == Kind::Stderr)].extend(pattern(*len, number));
                        if *killed && round == 0 {
                            drop(writer);
                            writer = Writer::recover(dir.path(), BOOT, Timestamp(4)).unwrap();
                            prop_assert_eq!(writer.dropped(), Dropped::default());
                        }
                    }
                    writer.resume_after_dropped(Timestamp(4)).unwrap();
                }
                Step::Killed { unnamed, torn } => {
                    let bytes = pattern(*unnamed, number);
                    put_unnamed(&mut writer, &bytes);
                    written[0].extend(bytes);
                    drop(writer);
                    tear(dir.path(), *torn);
                    writer = Writer::recover(dir.path(), BOOT, Timestamp(4)).unwrap();
                }
            }
            left.push(writer.hub().head().into());
        }
        let found = writer.facts().unwrap();
        let lens: Vec<[u64; 2]> = found.iter().map(|fact| fact.lens).collect();
        prop_assert_eq!(lens, places);
        let found: Vec<Vec<u8>> = found.into_iter().map(|fact| fact.entry.data.into()).collect();
        prop_assert_eq!(&found, &facts);
        let head = writer.hub().head();
        prop_assert_eq!(head.lens, [written[0].len() as u64, written[1].len() as u64]);
        drop(writer);

        let largest = max_bytes + slack(dir.path());
        prop_assert!(size(dir.path()) <= largest, "{} bytes of {largest}", size(dir.path()));
        let whole = items_on_disk(dir.path(), Position::default());
        assert_follow(&whole, 1);
        prop_assert_eq!(whole.last().map_or(0, Item::last_seq), head.seq);
        for (stream, kind) in [Kind::Stdout, Kind::Stderr].into_iter().enumerate() {
            let (came, missing) = seen(&whole, kind, &written[stream]);
            prop_assert_eq!(came + missing, written[stream].len() as u64);
        }
        let came: Vec<Vec<u8>> = facts_of(&whole);
        prop_assert_eq!(&came, &facts);
        // A reader resumed from a position sees the same as a reader from the beginning saw after it.
        for stop in stops {
            let at = left[pick(stop, left.len())];
            let rest = items_on_disk(dir.path(), at);
            assert_follow(&rest, at.seq + 1);
            let missing: u64 = gaps(&rest).map(|gap| gap.bytes.iter().flatten().sum::<u64>()).sum();
            let came: usize = entries(&rest).filter(|e| e.kind != Kind::Lifecycle).map(|e| e.data.len()).sum();
            let before: u64 = at.lens.unwrap_or_default().iter().sum();
            prop_assert_eq!(before + missing + came as u64, head.lens.iter().sum::<u64>());
        }
    }
}

#[test]
fn read_and_missing_bytes_equal_twenty_mebibytes_written() {
    for on_full in [OnOutputFull::Rotate, OnOutputFull::HeadTail] {
        let dir = tempdir().unwrap();
        let bound = OutputBound {
            max_bytes: MIB as u64,
            on_full,
            ..OutputBound::default()
        };
        let mut writer = Writer::create(dir.path(), bound, BOOT, Timestamp(1)).unwrap();
        writer.lifecycle(b"begun", Timestamp(1)).unwrap();
        let written = pattern(20 * MIB, 0);
        for piece in written.chunks(40_000) {
            output(&mut writer, Kind::Stdout, piece, 2).unwrap();
        }
        writer.lifecycle(b"ended", Timestamp(3)).unwrap();
        drop(writer);

        let items = items_on_disk(dir.path(), Position::default());
        let (came, missing) = seen(&items, Kind::Stdout, &written);
        assert_eq!(came + missing, written.len() as u64);
        assert!(came > 700_000, "only {came} bytes are kept");
        assert!(size(dir.path()) <= MIB as u64);
        assert_eq!(facts_of(&items), [b"begun", b"ended"]);
        assert_eq!(gaps(&items).count(), 1);
        let first = entries(&items).find(|e| e.kind == Kind::Stdout).unwrap();
        assert_eq!(first.offset == 0, on_full == OnOutputFull::HeadTail);
    }
}

#[test]
fn gap_before_first_retained_seq_has_next_offsets() {
    let dir = tempdir().unwrap();
    let mut writer = small(dir.path());
    for n in 0..500 {
        output(&mut writer, Kind::Stdout, &pattern(100, n), 1).unwrap();
    }
    drop(writer);
    let from = Position { seq: 7, lens: None };
    let items = items_on_disk(dir.path(), from);
    assert_follow(&items, 8);
    let Item::Gap(gap) = &items[0] else {
        panic!("no gap: {:?}", items[0]);
    };
    assert_eq!((gap.bytes, gap.reason), ([None; 2], GapReason::Bound));
    let Item::Entry(next) = &items[1] else {
        panic!("no entry: {:?}", items[1]);
    };
    assert_eq!(gap.ends, [next.offset, 0]);
}

#[tokio::test]
async fn overtaken_live_reader_continues_after_a_gap() {
    let dir = tempdir().unwrap();
    let mut writer = small(dir.path());
    let mut reader = read_after(&writer.hub(), 0).unwrap();
    let mut written = pattern(100, 0);
    output(&mut writer, Kind::Stdout, &written, 1).unwrap();
    let mut items = tokio::time::timeout(DEADLINE, reader.next(1 << 20))
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    for n in 1..2000 {
        let bytes = pattern(100, n);
        output(&mut writer, Kind::Stdout, &bytes, 1).unwrap();
        written.extend(bytes);
    }
    assert!(reader.whole_from() > 1000, "{}", reader.whole_from());
    drop(writer);
    items.extend(items_to_end(&mut reader, 1 << 20).await);
    assert_follow(&items, 1);
    let (came, missing) = seen(&items, Kind::Stdout, &written);
    assert_eq!(came + missing, written.len() as u64);
    assert!(missing > 100_000);
}

#[test]
fn segment_removal_cut_by_crash_is_completed() {
    let dir = tempdir().unwrap();
    let mut writer = small(dir.path());
    writer.lifecycle(b"begun", Timestamp(1)).unwrap();
    let mut written = Vec::new();
    let mut more = |writer: &mut Writer, count: usize| {
        for n in 0..count {
            let bytes = pattern(100, n);
            output(writer, Kind::Stdout, &bytes, 1).unwrap();
            written.extend(bytes);
        }
    };
    more(&mut writer, 40);
    let before = files(dir.path());
    more(&mut writer, 40);
    drop(writer);
    assert!(!dir.path().join("index").exists());
    for name in ["index", "stdout"] {
        // First only the segment's raw file, then the whole segment, whose lifecycle entry was retained.
        fs::write(dir.path().join("stdout"), &before["stdout"]).unwrap();
        fs::write(dir.path().join(name), &before[name]).unwrap();
    }
    fs::write(dir.path().join("index"), &before["index"]).unwrap();
    for _ in 0..2 {
        let writer = Writer::recover(dir.path(), BOOT, Timestamp(2)).unwrap();
        let facts = writer.facts().unwrap();
        assert_eq!(facts.len(), 1, "{facts:?}");
    }
    let mut writer = Writer::recover(dir.path(), BOOT, Timestamp(2)).unwrap();
    more(&mut writer, 200);
    writer.lifecycle(b"ended", Timestamp(3)).unwrap();
    drop(writer);
    let items = items_on_disk(dir.path(), Position::default());
    assert_follow(&items, 1);
    assert_eq!(facts_of(&items), [b"begun", b"ended"]);
    let (came, missing) = seen(&items, Kind::Stdout, &written);
    assert_eq!(came + missing, written.len() as u64);
}

// promise: O-13
#[test]
fn no_seq_is_reused_after_host_crash() {
    for entries in [10u64, 70_000] {
        let dir = tempdir().unwrap();
        let mut writer = create(dir.path());
        writer.lifecycle(b"begun", Timestamp(1)).unwrap();
        for _ in 1..entries {
            output(&mut writer, Kind::Stdout, b"x", 1).unwrap();
        }
        let reported_head = writer.hub().head();
        drop(writer);
        // The disk has the index up to its third entry, and all bytes.
        let index = OpenOptions::new()
            .write(true)
            .open(dir.path().join("index"));
        index.unwrap().set_len(2048 + 3 * 36).unwrap();

        let mut writer = Writer::recover(dir.path(), Boot(2), Timestamp(2)).unwrap();
        output(&mut writer, Kind::Stdout, b"y", 3).unwrap();
        writer.lifecycle(b"ended", Timestamp(3)).unwrap();
        drop(writer);
        // Another recovery in the same boot changes nothing.
        drop(Writer::recover(dir.path(), Boot(2), Timestamp(4)).unwrap());

        let items = items_on_disk(dir.path(), Position::default());
        assert_follow(&items, 1);
        let Some(Item::Gap(gap)) = items.get(3) else {
            panic!("no gap: {items:?}");
        };
        assert_eq!(gap.reason, GapReason::HostLost);
        assert_eq!(gap.bytes, [None; 2]);
        assert!(
            gap.last_seq >= reported_head.seq,
            "{gap:?} after {reported_head:?}"
        );
        let came: Vec<u8> = items[4..]
            .iter()
            .cloned()
            .filter_map(Item::into_entry)
            .filter(|e| e.kind == Kind::Stdout)
            .flat_map(|e| e.data)
            .collect();
        let bytes = usize::try_from(reported_head.lens[0]).unwrap() - 2;
        assert_eq!(came, [vec![b'x'; bytes], vec![b'y']].concat());
        // A reader that had read every reported event resumes, and gets the gap.
        let rest = items_on_disk(
            dir.path(),
            Position {
                seq: reported_head.seq,
                lens: Some(reported_head.lens),
            },
        );
        assert_follow(&rest, reported_head.seq + 1);
    }
}

// promise: O-18
#[test]
fn dropped_output_is_a_gap_in_place() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    output(&mut writer, Kind::Stdout, b"one", 1).unwrap();
    for bytes in [70_000, 30_000] {
        let more = writer.drop_output(Kind::Stdout, || Ok((bytes, "more")));
        assert_eq!(more.unwrap(), "more");
    }
    let failed = writer.drop_output::<()>(Kind::Stderr, || Err(std::io::ErrorKind::Other.into()));
    failed.unwrap_err();
    assert_eq!(writer.dropped().bytes, [100_000, 0]);
    let mut reader = read_after(&writer.hub(), 1).unwrap();
    writer.resume_after_dropped(Timestamp(2)).unwrap();
    writer.resume_after_dropped(Timestamp(2)).unwrap();
    writer.lifecycle(b"a warning", Timestamp(3)).unwrap();
    output(&mut writer, Kind::Stdout, b"two", 4).unwrap();
    assert_eq!(reader.whole_from(), 3);
    drop(writer);
    let expected = Gap {
        first_seq: 2,
        last_seq: 2,
        bytes: [Some(100_000), Some(0)],
        ends: [100_003, 0],
        reason: GapReason::FullDisk,
        at: Timestamp(2),
        attempt: 1,
    };
    for items in [
        items_on_disk(dir.path(), Position::default()),
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(items_to_end(&mut reader, 1 << 20)),
    ] {
        assert_eq!(gaps(&items).collect::<Vec<_>>(), [&expected]);
        let Some(Item::Entry(last)) = items.last() else {
            panic!("{items:?}");
        };
        assert_eq!((last.seq, last.offset), (4, 100_003));
    }
}

// promise: O-18
#[test]
fn crash_while_dropping_marks_the_count_unknown() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    output(&mut writer, Kind::Stdout, b"one", 1).unwrap();
    writer.drop_output(Kind::Stdout, || Ok((10, ()))).unwrap();
    let before = fs::read(dir.path().join("index")).unwrap();
    let at_death = writer.drop_output(Kind::Stdout, || {
        Ok((20, fs::read(dir.path().join("index"))?))
    });
    let at_death = at_death.unwrap();
    drop(writer);
    for (index, counted) in [(before, Some(10)), (at_death, None)] {
        fs::write(dir.path().join("index"), index).unwrap();
        let mut writer = Writer::recover(dir.path(), BOOT, Timestamp(2)).unwrap();
        output(&mut writer, Kind::Stdout, b"two", 1).unwrap();
        drop(writer);
        let items = items_on_disk(dir.path(), Position::default());
        let gap = gaps(&items).next().unwrap();
        assert_eq!((gap.bytes[0], gap.reason), (counted, GapReason::FullDisk));
        for name in ["index.1", "stdout.1"] {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
}

#[test]
fn reader_position_is_after_the_last_entry() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    for n in 0..10 {
        output(
            &mut writer,
            [Kind::Stdout, Kind::Stderr][n % 2],
            &pattern(n, n),
            1,
        )
        .unwrap();
    }
    drop(writer);
    let from = Position { seq: 4, lens: None };
    let mut reader = Reader::open_ended(dir.path(), from).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let items = runtime.block_on(reader.next(5)).unwrap().unwrap();
    assert_eq!(items.len(), 1);
    // No entry has 0 bytes: the first has one byte.
    let expected = Point {
        seq: 5,
        lens: [2 + 4, 1 + 3 + 5],
    };
    assert_eq!(reader.position(), expected.into());
}

// promise: O-29a
#[test]
fn blocked_output_stays_within_limit_until_acknowledged() {
    let dir = tempdir().unwrap();
    let bound = OutputBound {
        max_bytes: 64_000,
        on_full: OnOutputFull::Block,
        ..OutputBound::default()
    };
    let mut writer = Writer::create(dir.path(), bound, BOOT, Timestamp(1)).unwrap();
    let mut written = 0u64;
    let mut fill = |writer: &mut Writer| {
        let before = written;
        while !writer.waits() {
            let bytes = pattern(1_000, usize::try_from(written).unwrap());
            output(writer, Kind::Stdout, &bytes, 2).unwrap();
            written += 1_000;
        }
        written - before
    };
    let first = fill(&mut writer);
    assert!((50_000..64_000).contains(&first), "{first}");
    let whole = |dir: &Path| {
        let items = items_on_disk(dir, Position::default());
        !items.iter().any(|item| matches!(item, Item::Gap(_)))
    };
    assert!(whole(dir.path()), "nothing was removed");
    // Releasing part of the oldest segment frees no space; releasing all of it does, once space is needed.
    writer.release_up_to(2);
    assert_eq!(fill(&mut writer), 0);
    writer.release_up_to(8);
    let second = fill(&mut writer);
    assert!((7_000..10_000).contains(&second), "{second}");
    let found = size(dir.path());
    assert!(found < 66_000, "{found} bytes on disk");
    // After a crash, the next writer waits like the first.
    drop(writer);
    let mut writer = Writer::recover(dir.path(), BOOT, Timestamp(1)).unwrap();
    assert!(writer.waits());
    // Lifecycle entries are still written, and so is output beyond the bound.
    let head = writer.lifecycle(b"a fact", Timestamp(3)).unwrap();
    assert!(writer.waits());
    writer.go_beyond_bound(true);
    assert!(!writer.waits());
    let kept = size(dir.path());
    output(&mut writer, Kind::Stdout, &pattern(20_000, 7), 2).unwrap();
    assert!(size(dir.path()) >= kept + 20_000, "nothing goes for it");
    writer.go_beyond_bound(false);
    assert!(writer.waits());
    writer.release_up_to(head);
    assert!(!writer.waits());
}

fn small(dir: &Path) -> Writer {
    let bound = OutputBound {
        max_bytes: 8_000,
        ..OutputBound::default()
    };
    Writer::create(dir, bound, BOOT, Timestamp(1)).unwrap()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Large sizes exceed every bound.
    let size = prop_oneof![6 => 1usize..2_000, 1 => 60_000usize..100_000];
    let kind = prop_oneof![Just(Kind::Stdout), Just(Kind::Stderr)];
    let step = prop_oneof![
        8 => (kind, size).prop_map(|(kind, len)| Step::Output(kind, len)),
        2 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Step::Fact),
        1 => (prop_oneof![Just(Kind::Stdout), Just(Kind::Stderr)], [1usize..90_000, 0..5], any::<bool>())
            .prop_map(|(kind, lens, killed)| Step::Dropped(kind, lens, killed)),
        2 => (0usize..100, 0usize..36).prop_map(|(unnamed, torn)| Step::Killed { unnamed, torn }),
    ];
    prop::collection::vec(step, 0..60)
}

fn policies() -> impl Strategy<Value = OnOutputFull> {
    prop_oneof![Just(OnOutputFull::Rotate), Just(OnOutputFull::HeadTail)]
}

/// Returns bytes that repeat themselves after 2 KiB alone.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let period: Vec<u8> = (0..2048)
        .map(|i: usize| ((i * 31 + seed * 7) >> 3).to_le_bytes()[0])
        .collect();
    let mut bytes = period.repeat(len.div_ceil(period.len()));
    bytes.truncate(len);
    bytes
}

/// Writes bytes that the pump has spliced, and not recorded.
fn put_unnamed(writer: &mut Writer, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let place = writer.place(Kind::Stdout, Timestamp(2)).unwrap();
    place.file.write_all_at(bytes, place.offset).unwrap();
}

/// The beginning of an entry at the end of the last index.
fn tear(dir: &Path, bytes: usize) {
    let numbers = files(dir).into_keys();
    let number = |name: &String| match name.as_str() {
        "index" => Some(0),
        name => name.strip_prefix("index.")?.parse::<u32>().ok(),
    };
    let last = numbers.max_by_key(|name| number(name).map_or(-1, i64::from));
    let index = OpenOptions::new()
        .append(true)
        .open(dir.join(last.unwrap()));
    index.unwrap().write_all(&vec![7; bytes]).unwrap();
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(dir)
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, fs::read(file.path()).unwrap())
        })
        .collect()
}

/// Bytes of all segments.
fn size(dir: &Path) -> u64 {
    let of_segment = |name: &String| !["lifecycle", "kept", "mark"].contains(&name.as_str());
    let files = files(dir);
    let sizes = files.iter().filter(|(name, _)| of_segment(name));
    sizes.map(|(_, bytes)| bytes.len() as u64).sum()
}

/// Returns by how much a journal may exceed its bound: lifecycle entries and bytes unrecorded at a kill are reported
/// wherever they are.
fn slack(dir: &Path) -> u64 {
    let facts = fs::read(dir.join("lifecycle")).map_or(0, |f| f.len() as u64);
    facts + 60 * (36 + 100) + 16 * 36 + 2048
}

fn pick(share: f64, count: usize) -> usize {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "any of them will do"
    )]
    let picked = (count as f64 * share) as usize;
    picked.min(count - 1)
}

fn gaps(items: &[Item]) -> impl Iterator<Item = &Gap> {
    items.iter().filter_map(|item| match item {
        Item::Gap(gap) => Some(gap),
        Item::Entry(_) => None,
    })
}

fn entries(items: &[Item]) -> impl Iterator<Item = &kennel_journal::Entry> {
    items.iter().filter_map(|item| match item {
        Item::Entry(entry) => Some(entry),
        Item::Gap(_) => None,
    })
}

fn facts_of(items: &[Item]) -> Vec<Vec<u8>> {
    let facts = entries(items).filter(|e| e.kind == Kind::Lifecycle);
    facts.map(|e| e.data.to_vec()).collect()
}
