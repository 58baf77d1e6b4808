//! What every test of the journal needs: a child that writes, and a reader that reads to the end.

use kennel_journal::{Entry, Kind, Reader, Writer};
use kennel_lifecycle::Timestamp;
use std::{io, os::unix::fs::FileExt, path::Path, time::Duration};

/// Longer than any test here takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Puts bytes where the pump would splice them, and tells the journal.
pub(crate) fn output(writer: &mut Writer, kind: Kind, bytes: &[u8], at: i64) -> io::Result<u64> {
    writer.file(kind)?.write_all_at(bytes, writer.len(kind))?;
    writer.output_written(kind, bytes.len() as u64, Timestamp(at))
}

/// All that is left for this reader, in reads of at most `bytes_max`.
pub(crate) async fn read_to_end(reader: &mut Reader, bytes_max: usize) -> Vec<Entry> {
    let mut all = Vec::new();
    let whole = async {
        while let Some(entries) = reader
            .next(bytes_max)
            .await
            .expect("the journal is readable")
        {
            let bytes: usize = entries.iter().map(|e| e.data.len()).sum();
            assert!(!entries.is_empty(), "a read gives at least one entry");
            assert!(
                bytes <= bytes_max || entries.len() == 1,
                "{bytes} bytes at once"
            );
            all.extend(entries);
        }
    };
    tokio::time::timeout(DEADLINE, whole)
        .await
        .expect("the reader comes to the end");
    all
}

/// All entries of a journal that has no writer.
pub(crate) fn entries_on_disk(dir: &Path) -> Vec<Entry> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(async {
            let mut reader = Reader::open_ended(dir, 0).expect("the journal opens");
            read_to_end(&mut reader, 1 << 20).await
        })
}

/// The bytes of one stream, after a check that its entries lie side by side from 0.
pub(crate) fn stream(entries: &[Entry], kind: Kind) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries.iter().filter(|e| e.kind == kind) {
        assert_eq!(entry.offset, bytes.len() as u64, "entry {}", entry.seq);
        bytes.extend(&entry.data);
    }
    bytes
}

/// Seqs go from `first` without hole or repeat.
pub(crate) fn assert_dense(entries: &[Entry], first: u64) {
    for (entry, seq) in entries.iter().zip(first..) {
        assert_eq!(entry.seq, seq);
    }
}
