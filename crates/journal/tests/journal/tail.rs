//! The beginnings of the last lines and the last bytes, in a journal that is written, is bounded, or has no writer any
//! more.

use crate::common::{BOOT, KINDS, Write, create, items_to_end, output, writes_of};
use kennel_journal::{Amount, Item, Kind, Position, Reader, Tail, TailBegin, Writer};
use kennel_lifecycle::{OnOutputFull, OutputBound, Timestamp};
use proptest::prelude::*;
use std::fs;
use tempfile::tempdir;

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let byte = prop_oneof![4 => Just(b'x'), 2 => Just(b'\n'), 1 => Just(b'\r'), 1 => Just(0)];
    let text = prop_oneof![
        4 => prop::collection::vec(byte, 1..60),
        2 => (1usize..3_000).prop_map(|len| vec![b'y'; len]),
        1 => Just([vec![0xff; 150_000], b"\n".to_vec()].concat()),
    ];
    writes_of(text, 1..60)
}

/// A line as the model finds it: stream, beginning, end in the order of all bytes, whether a hole is before it.
type Line = (usize, u64, (usize, usize), bool);

/// Returns all lines, in the order of their ends.
fn lines(items: &[Item]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut open: [Option<Line>; 2] = [None; 2];
    let mut behind_hole = [false; 2];
    let mut attempts = [0; 2];
    for (at, item) in items.iter().enumerate() {
        let entry = match item {
            Item::Gap(_) => {
                lines.extend(open.iter_mut().filter_map(Option::take));
                behind_hole = [true; 2];
                continue;
            }
            Item::Entry(entry) => entry,
        };
        let Some(stream) = KINDS.iter().position(|kind| *kind == entry.kind) else {
            continue;
        };
        if attempts[stream] != entry.attempt {
            attempts[stream] = entry.attempt;
            lines.extend(open[stream].take());
        }
        let mut upto = 0;
        for part in entry.data.split_inclusive(|byte| *byte == b'\n') {
            let is_behind_hole = std::mem::take(&mut behind_hole[stream]);
            let begin = entry.offset + upto as u64;
            upto += part.len();
            let line = open[stream].get_or_insert((stream, begin, (0, 0), is_behind_hole));
            line.2 = (at, upto - 1);
            if part.ends_with(b"\n") {
                lines.extend(open[stream].take());
            }
        }
    }
    lines.extend(open.into_iter().flatten());
    lines.sort_by_key(|line| line.2);
    lines
}

/// Returns the shown part of a stream from there on: stretches of bytes without a hole, and their offsets.
fn shown(items: &[Item], begins: [u64; 2], stream: usize) -> Vec<(u64, Vec<u8>)> {
    let mut stretches: Vec<(u64, Vec<u8>)> = Vec::new();
    let entries = items.iter().cloned().filter_map(Item::into_entry);
    for entry in entries.filter(|entry| entry.kind == KINDS[stream]) {
        let before = begins[stream].saturating_sub(entry.offset);
        let before = usize::try_from(before).unwrap().min(entry.data.len());
        let (data, offset) = (&entry.data[before..], entry.offset + before as u64);
        match stretches.last_mut() {
            _ if data.is_empty() => {}
            Some((begin, bytes)) if *begin + bytes.len() as u64 == offset => bytes.extend(data),
            _ => stretches.push((offset, data.to_vec())),
        }
    }
    stretches
}

fn len(stretches: &[(u64, Vec<u8>)]) -> u64 {
    stretches.iter().map(|(_, bytes)| bytes.len() as u64).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    // promise: O-20
    #[test]
    fn tail_equals_the_end_of_full_read(
        writes in writes(),
        max_bytes in prop_oneof![Just(u64::MAX >> 1), 4_000u64..200_000],
        on_full in prop_oneof![Just(OnOutputFull::Rotate), Just(OnOutputFull::HeadTail)],
        amount in prop_oneof![(0u64..70).prop_map(Amount::Lines), (0u64..9_000).prop_map(Amount::Bytes)],
        streams in prop_oneof![Just([true; 2]), Just([true, false]), Just([false, true])],
        live in any::<bool>(),
    ) {
        let dir = tempdir().unwrap();
        let bound = OutputBound { max_bytes, on_full, ..OutputBound::default() };
        let mut writer = Writer::create(dir.path(), bound, BOOT, Timestamp(1)).unwrap();
        for (attempt, write) in (2..).zip(&writes) {
            if write.begins_attempt {
                writer.begin_attempt(attempt);
                writer.lifecycle(b"begins", Timestamp(2)).unwrap();
            }
            output(&mut writer, KINDS[write.stream], &write.data, 2).unwrap();
        }
        let (head, hub) = (writer.hub().head(), writer.hub());
        let writer = live.then_some(writer);
        let reader = match &writer {
            Some(_) => hub.read_from(Position::default()).unwrap(),
            None => Reader::open_ended(dir.path(), Position::default()).unwrap(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (TailBegin { position, begins }, all, rest) = runtime.block_on(async {
            let tail = reader.tail(Tail { amount, streams }).await.unwrap();
            drop(writer);
            let mut all = Reader::open_ended(dir.path(), Position::default()).unwrap();
            let mut rest = all.clone();
            rest.move_to(tail.position);
            (tail, items_to_end(&mut all, 1 << 20).await, items_to_end(&mut rest, 1 << 20).await)
        });
        let wanted = |stream: usize| streams[stream];
        // The tail is exactly what a full reader has from `begins` on.
        for stream in 0..2 {
            prop_assert_eq!(shown(&rest, begins, stream), shown(&all, begins, stream));
            if !wanted(stream) {
                prop_assert_eq!(begins[stream], head.lens[stream]);
            }
        }
        let at_first = rest.iter().find(|item| match item {
            Item::Gap(_) => true,
            Item::Entry(entry) => entry.kind != Kind::Lifecycle,
        });
        match amount {
            Amount::Lines(count) => {
                let mut lines = lines(&all);
                lines.retain(|line| wanted(line.0));
                let count = usize::try_from(count).unwrap();
                if lines.len() < count {
                    prop_assert_eq!(position.seq, 0);
                    return Ok(());
                }
                let chosen = lines.split_off(lines.len() - count);
                for stream in (0..2).filter(|stream| wanted(*stream)) {
                    let own = chosen.iter().filter(|line| line.0 == stream);
                    let begin = own.map(|line| line.1).min();
                    // If bytes before the tail are missing, it may begin at them: the gap is reported.
                    let mut exact = begins;
                    exact[stream] = begin.unwrap_or(head.lens[stream]);
                    prop_assert!(begins[stream] <= exact[stream]);
                    prop_assert_eq!(shown(&all, begins, stream), shown(&all, exact, stream));
                }
                if chosen.iter().all(|line| !line.3) && let Some(first) = at_first {
                    let Item::Entry(entry) = first else {
                        return Err(TestCaseError::fail("a gap before the tail"));
                    };
                    let stream = usize::from(entry.kind == Kind::Stderr);
                    prop_assert!(entry.offset + entry.data.len() as u64 > begins[stream]);
                }
                if chosen.iter().any(|line| line.3) {
                    let has_gap = rest.iter().any(|item| matches!(item, Item::Gap(_)));
                    prop_assert!(has_gap, "the missing part of a line is not reported");
                }
            }
            Amount::Bytes(count) => {
                let there = |begins| (0..2).filter(|s| wanted(*s)).map(|s| len(&shown(&all, begins, s))).sum::<u64>();
                let whole = there([0; 2]);
                prop_assert_eq!(there(begins), whole.min(count));
                if whole < count {
                    prop_assert_eq!(position.seq, 0);
                }
            }
        }
    }
}

// promise: O-20
#[test]
fn tail_of_large_journal_reads_only_its_end() {
    let dir = tempdir().unwrap();
    let mut writer = create(dir.path());
    for _ in 0..200 {
        output(&mut writer, Kind::Stdout, &vec![b'x'; 60_000], 2).unwrap();
    }
    output(&mut writer, Kind::Stdout, b"\nlast\n", 2).unwrap();
    drop(writer);
    let reader = Reader::open_ended(dir.path(), Position::default()).unwrap();
    let end = reader.end().lens[0];
    // A search beyond the last segment would notice the missing files.
    for file in ["index", "stdout"] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let amount = Amount::Lines(1);
    let tail = Tail {
        amount,
        streams: [true; 2],
    };
    let begin = runtime.block_on(reader.tail(tail)).unwrap();
    assert_eq!(begin.begins, [end - 5, 0]);
    assert_eq!(begin.position.seq, reader.end().seq - 1);
}
