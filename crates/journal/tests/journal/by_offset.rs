//! Bytes of a stream by their offset, while the journal is written, is bounded, and after its writer is gone.

use crate::common::{BOOT, KINDS, Write, output, writes_of};
use kennel_journal::{LINE_BYTES_MAX, LineBegins, Position, Reader, Writer};
use kennel_lifecycle::{OutputBound, Timestamp};
use proptest::prelude::*;
use tempfile::tempdir;

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let text = prop_oneof![
        3 => prop::collection::vec(prop_oneof![Just(b'x'), Just(b'\n')], 1..60),
        2 => (1usize..3_000).prop_map(|len| vec![b'y'; len]),
        1 => Just(vec![b'z'; 70_000]),
    ];
    writes_of(text, 1..40)
}

/// Returns all existing bytes of a stream from this offset on, as successive stretches.
async fn all(reader: &Reader, stream: usize, mut begin: u64) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        let stretch = reader
            .bytes(KINDS[stream], begin, u64::MAX, 50_000)
            .await
            .unwrap();
        if stretch.data.is_empty() {
            return all;
        }
        begin = stretch.offset + stretch.data.len() as u64;
        all.push((stretch.offset, stretch.data.into()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    // promise: O-16
    #[test]
    fn output_is_read_by_offset_at_line_starts(
        writes in writes(),
        max_bytes in prop_oneof![Just(u64::MAX >> 1), 4_000u64..200_000],
        live in any::<bool>(),
    ) {
        let dir = tempdir().unwrap();
        let bound = OutputBound { max_bytes, ..OutputBound::default() };
        let mut writer = Writer::create(dir.path(), bound, BOOT, Timestamp(1)).unwrap();
        let mut written = [Vec::<u8>::new(), Vec::new()];
        let (mut attempt, mut begins) = (1, [0u64; 2]);
        // After each write: its seq, and the beginnings of the unfinished lines.
        let mut stops = Vec::new();
        for write in &writes {
            if write.begins_attempt {
                attempt += 1;
                begins = [written[0].len() as u64, written[1].len() as u64];
                writer.begin_attempt(attempt);
                writer.lifecycle(b"begins", Timestamp(2)).unwrap();
            }
            output(&mut writer, KINDS[write.stream], &write.data, 2).unwrap();
            if let Some(newline) = write.data.iter().rposition(|b| *b == b'\n') {
                begins[write.stream] = (written[write.stream].len() + newline + 1) as u64;
            }
            written[write.stream].extend(&write.data);
            stops.push((writer.hub().head(), begins));
        }
        let is_bounded = max_bytes < u64::MAX >> 1;
        let hub = writer.hub();
        let writer = live.then_some(writer);
        let open = |at: Position| match &writer {
            Some(_) => hub.read_from(at).unwrap(),
            None => Reader::open_ended(dir.path(), at).unwrap(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for (stream, written) in written.iter().enumerate() {
                let reader = open(Position::default());
                for begin in [0, written.len() as u64 / 2, written.len() as u64] {
                    let found = all(&reader, stream, begin).await;
                    for (offset, data) in &found {
                        let at = usize::try_from(*offset).unwrap();
                        prop_assert_eq!(&written[at..at + data.len()], &data[..]);
                    }
                    if let Some((offset, data)) = found.last() {
                        prop_assert_eq!(offset + data.len() as u64, written.len() as u64);
                    }
                    if !is_bounded {
                        let len: usize = found.iter().map(|(_, data)| data.len()).sum();
                        prop_assert_eq!(len as u64, written.len() as u64 - begin);
                    }
                }
            }
            for (head, begins) in &stops {
                let known = open(Position { seq: head.seq, lens: None }).line_begins(LINE_BYTES_MAX).await.unwrap();
                let Some(LineBegins { lens, begins: found, .. }) = known else {
                    prop_assert!(is_bounded, "it must be known where nothing was removed");
                    continue;
                };
                prop_assert_eq!(lens, head.lens);
                for stream in 0..2 {
                    let is_short = lens[stream] - begins[stream] <= u64::from(LINE_BYTES_MAX);
                    if found[stream] == begins[stream] && is_short {
                        continue;
                    }
                    prop_assert!(is_bounded || !is_short, "{found:?} for {begins:?} at {lens:?}");
                    prop_assert_eq!(found[stream], lens[stream]);
                }
            }
            Ok(())
        })?;
    }
}
