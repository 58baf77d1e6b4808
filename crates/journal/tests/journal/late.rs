//! Journals that are created on the disk only when necessary.

use crate::common::{BOOT, create, items_to_end, output, read_to_end};
use kennel_journal::{
    Amount, Boot, Entry, GapReason, Item, Kind, Late, LateFact, Position, Reader, Tail, Writer,
};
use kennel_lifecycle::{OutputBound, Timestamp};
use std::{fs, path::Path};

/// Together more than an index holds.
const FACTS: [(&[u8], i64, u32); 4] = [
    (b"recorded", 1, 1),
    (b"started", 2, 1),
    (&[b'x'; 3000], 3, 1),
    (b"again", 4, 2),
];

fn late(dir: &Path) -> Writer {
    let mut writer = Writer::create_late(dir, OutputBound::default(), BOOT, Timestamp(1));
    append(&mut writer, &FACTS);
    writer
}

fn append(writer: &mut Writer, facts: &[(&[u8], i64, u32)]) {
    for (payload, at, attempt) in facts {
        writer.begin_attempt(*attempt);
        writer.lifecycle(payload, Timestamp(*at)).expect("a fact");
    }
}

fn known(is_cut: bool) -> Late<'static> {
    let fact = |(payload, at, attempt): (&'static [u8], i64, u32)| LateFact {
        at: Timestamp(at),
        attempt,
        payload,
    };
    Late {
        bound: OutputBound::default(),
        is_cut,
        facts: FACTS.map(fact).to_vec(),
    }
}

fn files(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).expect("a directory").flatten();
    let mut names: Vec<_> = files
        .map(|file| file.file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

/// Returns the entries of a journal that was created at once.
async fn usual() -> Vec<Entry> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = create(dir.path());
    append(&mut writer, &FACTS);
    drop(writer);
    entries(dir.path()).await
}

async fn entries(dir: &Path) -> Vec<Entry> {
    let mut reader = Reader::open_ended(dir, Position::default()).expect("a reader");
    read_to_end(&mut reader, usize::MAX).await
}

// promise: O-42
#[tokio::test]
async fn late_journal_creates_no_file_before_output() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = late(dir.path());
    assert!(writer.is_late() && files(dir.path()).is_empty());
    let mut live = writer.hub().read_from(Position::default()).expect("one");
    let first = live.next(8).await.expect("it is read").expect("one");
    let behind = live.clone();
    output(&mut writer, Kind::Stdout, b"hello", 5).expect("output");
    assert!(!writer.is_late());
    assert_eq!(files(dir.path()), ["index", "lifecycle", "stdout"]);
    append(&mut writer, &[(b"ended", 6, 2)]);
    drop(writer);
    let all = entries(dir.path()).await;
    assert_eq!(all[..4], usual().await[..]);
    assert_eq!((&all[4].data[..], all[4].seq), (&b"hello"[..], 5));
    assert_eq!(first, [Item::Entry(all[0].clone())]);
    for mut reader in [live, behind] {
        let rest = read_to_end(&mut reader, usize::MAX).await;
        assert_eq!(rest, all[1..]);
    }
}

#[tokio::test]
async fn readers_outlive_the_writer_of_a_late_journal() {
    let dir = tempfile::tempdir().expect("a directory");
    let writer = late(dir.path());
    let mut live = writer.hub().read_from(Position::default()).expect("one");
    drop(writer);
    assert_eq!(read_to_end(&mut live, 1).await, usual().await);
    assert!(files(dir.path()).is_empty());
}

#[tokio::test]
async fn lifecycle_entries_are_readable_without_journal_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let gone = dir.path().join("gone");
    let mut reader = Reader::of_facts(&gone, &known(false).facts).expect("a reader");
    let tail = Tail {
        amount: Amount::Lines(3),
        streams: [true; 2],
    };
    let mut made = create(dir.path());
    append(&mut made, &FACTS);
    drop(made);
    let usual = Reader::open_closed(dir.path(), Position::default()).expect("a reader");
    let begins = |reader: &Reader| {
        let reader = reader.clone();
        async move { reader.tail(tail).await.expect("a tail") }
    };
    assert_eq!(begins(&reader).await, begins(&usual).await);
    assert_eq!(reader.end(), usual.end());
    assert_eq!(reader.whole_from(), usual.whole_from());
    assert_eq!(
        read_to_end(&mut reader, usize::MAX).await,
        entries(dir.path()).await
    );
}

// promise: O-42
#[tokio::test]
async fn late_journal_is_created_after_any_crash() {
    let whole = tempfile::tempdir().expect("a directory");
    late(whole.path()).make().expect("it is made");
    let index = fs::read(whole.path().join("index")).expect("an index");
    let lifecycle = fs::read(whole.path().join("lifecycle")).expect("a file");
    let usual = usual().await;
    for cut in cuts(index.len()) {
        let dir = tempfile::tempdir().expect("a directory");
        // No file, only `lifecycle`, or `lifecycle` and part of the index.
        if cut > 0 {
            fs::write(dir.path().join("lifecycle"), &lifecycle).expect("written");
        }
        if cut > 1 {
            fs::write(dir.path().join("index"), &index[..cut]).expect("written");
        }
        let reopened = Writer::reopen_late(dir.path(), &known(false), BOOT, Timestamp(9));
        let (mut writer, unnamed) = reopened.expect("it is opened");
        assert_eq!((unnamed, writer.found_at()), ([0, 0], Timestamp(4)));
        append(&mut writer, &[(b"ended", 6, 2)]);
        drop(writer);
        let all = entries(dir.path()).await;
        assert_eq!(all[..4], usual[..], "cut at {cut}");
        assert_eq!((all.len(), &all[4].data[..]), (5, &b"ended"[..]));
    }
}

/// Returns where an index is cut: near the ends of its parts everywhere, and inside of the long line now and then.
fn cuts(len: usize) -> impl Iterator<Item = usize> {
    // Dense cuts: the header with short lines, and the entries.
    let (first, last) = (0..200, 2048 - 20..=len);
    first.chain((200..2048 - 20).step_by(41)).chain(last)
}

#[tokio::test]
async fn torn_late_journal_continues_above_the_seq_watermark() {
    for boot in [BOOT, Boot::UNKNOWN] {
        continues_above_the_mark(boot).await;
    }
}

async fn continues_above_the_mark(boot: Boot) {
    let dir = tempfile::tempdir().expect("a directory");
    let reopened = Writer::reopen_late(dir.path(), &known(true), boot, Timestamp(9));
    let (mut writer, _) = reopened.expect("it is opened");
    append(&mut writer, &[(b"ended", 6, 2)]);
    drop(writer);
    let mut reader = Reader::open_ended(dir.path(), Position::default()).expect("a reader");
    let all = items_to_end(&mut reader, usize::MAX).await;
    let Item::Gap(gap) = &all[4] else {
        panic!("no gap: {all:?}");
    };
    assert_eq!((gap.reason, gap.first_seq), (GapReason::HostLost, 5));
    assert!(gap.last_seq >= 65_536 && all.len() == 6, "{all:?}");
}
