//! Fixtures of every test of the journal: a child that writes, and a reader that reads to the end.

use kennel_journal::{Boot, Entry, Gap, Hub, Item, Kind, Position, Reader, Writer};
use kennel_lifecycle::{OutputBound, Timestamp};
use proptest::prelude::*;
use std::{io, ops::Range, os::unix::fs::FileExt, path::Path, time::Duration};

/// The boot of all events, unless a test gives another.
pub(crate) const BOOT: Boot = Boot(1);

/// The streams by their index.
pub(crate) const KINDS: [Kind; 2] = [Kind::Stdout, Kind::Stderr];

/// One write of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) stream: usize,
    pub(crate) data: Vec<u8>,
    pub(crate) begins_attempt: bool,
}

/// Returns writes of these texts, alternating between the streams.
pub(crate) fn writes_of(
    text: impl Strategy<Value = Vec<u8>>,
    lens: Range<usize>,
) -> impl Strategy<Value = Vec<Write>> {
    let write = (0usize..2, text, prop::bool::weighted(0.1));
    let write = write.prop_map(|(stream, data, begins_attempt)| Write {
        stream,
        data,
        begins_attempt,
    });
    prop::collection::vec(write, lens)
}

/// Creates a journal with the default bound.
pub(crate) fn create(dir: &Path) -> Writer {
    Writer::create(dir, OutputBound::default(), BOOT, Timestamp(0)).expect("a journal")
}

/// Longer than any test here takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Writes bytes as the pump would splice them, as far as there is space at a time, and records them in the journal.
pub(crate) fn output(writer: &mut Writer, kind: Kind, bytes: &[u8], at: i64) -> io::Result<u64> {
    let mut left = bytes;
    let mut seq = writer.hub().head().seq;
    while !left.is_empty() {
        let place = writer.place(kind, Timestamp(at))?;
        let (now, later) = left.split_at(left.len().min(place.room));
        place.file.write_all_at(now, place.offset)?;
        seq = writer.output_written(kind, now.len() as u64, Timestamp(at))?;
        left = later;
    }
    Ok(seq)
}

/// Returns all remaining entries for this reader, none of them missing, in reads of at most `bytes_max`.
pub(crate) async fn read_to_end(reader: &mut Reader, bytes_max: usize) -> Vec<Entry> {
    let items = items_to_end(reader, bytes_max).await.into_iter();
    items
        .map(|item| item.into_entry().expect("nothing is missing"))
        .collect()
}

/// Returns all remaining items for this reader, in reads of at most `bytes_max`.
pub(crate) async fn items_to_end(reader: &mut Reader, bytes_max: usize) -> Vec<Item> {
    let mut all = Vec::new();
    let whole = async {
        while let Some(items) = reader
            .next(bytes_max)
            .await
            .expect("the journal is readable")
        {
            let entries = items.iter().cloned().filter_map(Item::into_entry);
            let lens: Vec<usize> = entries.map(|e| e.data.len()).collect();
            let bytes: usize = lens.iter().sum();
            assert!(!items.is_empty(), "a read gives at least one item");
            assert!(
                bytes <= bytes_max || lens.len() == 1,
                "{bytes} bytes at once"
            );
            all.extend(items);
        }
    };
    tokio::time::timeout(DEADLINE, whole)
        .await
        .expect("the reader comes to the end");
    all
}

/// Returns all entries of a journal that has no writer, none of them missing.
pub(crate) fn entries_on_disk(dir: &Path) -> Vec<Entry> {
    let items = items_on_disk(dir, Position::default()).into_iter();
    items
        .map(|item| item.into_entry().expect("nothing is missing"))
        .collect()
}

/// Returns all items of a journal without a writer after a position.
pub(crate) fn items_on_disk(dir: &Path, from: Position) -> Vec<Item> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(async {
            let mut reader = Reader::open_ended(dir, from).expect("the journal opens");
            items_to_end(&mut reader, 1 << 20).await
        })
}

/// Returns what a reader saw of one stream to which this was written: received bytes, checked one by one, and bytes
/// reported missing.
pub(crate) fn seen(items: &[Item], kind: Kind, written: &[u8]) -> (u64, u64) {
    let stream = usize::from(kind == Kind::Stderr);
    let (mut at, mut came, mut missing) = (0usize, 0, 0);
    for item in items {
        match item {
            Item::Entry(entry) if entry.kind == kind => {
                assert_eq!(entry.offset, at as u64, "entry {}", entry.seq);
                let end = at + entry.data.len();
                assert!(entry.data == written[at..end], "entry {}", entry.seq);
                at = end;
                came += entry.data.len() as u64;
            }
            Item::Entry(_) => {}
            Item::Gap(Gap { bytes, ends, .. }) => {
                let bytes = bytes[stream].expect("the reader was there");
                at += usize::try_from(bytes).expect("it fits");
                assert_eq!(at as u64, ends[stream]);
                missing += bytes;
            }
        }
    }
    (came, missing)
}

/// Asserts that items follow each other without hole or repeat, from `first` on.
pub(crate) fn assert_follow(items: &[Item], first: u64) {
    let mut next = first;
    for item in items {
        let begins = match item {
            Item::Entry(entry) => entry.seq,
            Item::Gap(gap) => gap.first_seq,
        };
        assert_eq!(begins, next, "{item:?}");
        assert!(item.last_seq() >= begins, "{item:?}");
        next = item.last_seq() + 1;
    }
}

/// Returns the bytes of one stream, after a check that its entries are contiguous from 0.
pub(crate) fn stream(entries: &[Entry], kind: Kind) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries.iter().filter(|e| e.kind == kind) {
        assert_eq!(entry.offset, bytes.len() as u64, "entry {}", entry.seq);
        bytes.extend(&entry.data);
    }
    bytes
}

/// Asserts that seqs go from `first` without hole or repeat.
pub(crate) fn assert_dense(entries: &[Entry], first: u64) {
    for (entry, seq) in entries.iter().zip(first..) {
        assert_eq!(entry.seq, seq);
    }
}

/// Makes a reader that begins after a seq and knows no more.
pub(crate) fn read_after(hub: &Hub, seq: u64) -> io::Result<Reader> {
    hub.read_from(Position { seq, lens: None })
}
