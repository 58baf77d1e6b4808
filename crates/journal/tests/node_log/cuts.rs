//! A log that ends at any offset: cut, or zero from there on.

use crate::common::{append, new_dir, open, owned, remove_newer, replay, replay_by, segment};
use kennel_journal::node_log::{NodeLog, OwnedFrame};
use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

/// Three small frames, one that ends near the block's end, one of three parts, two small ones.
fn frames() -> Vec<OwnedFrame> {
    let lens = [0, 40, 300, 64_500, 66_000 + 65_000, 17, 3];
    (1..)
        .zip(lens)
        .map(|(seq, len)| owned(5, seq, len))
        .collect()
}

/// Writes them one by one. Returns the end of each, and the bytes of the segment.
fn written(dir: &Path) -> (Vec<u64>, Vec<u8>) {
    let log = open(dir);
    let frames = frames();
    let ends = frames.iter().map(|frame| {
        let end = append(&log, std::slice::from_ref(frame)).unwrap();
        u64::from(end.offset)
    });
    let ends = ends.collect();
    drop(log);
    (ends, fs::read(segment(1, 0, dir)).unwrap())
}

/// Returns every offset from the last one down, except inside of the two large payloads, where each 409th: it is at
/// each place of a word.
fn places(ends: &[u64]) -> impl Iterator<Item = u64> {
    let last = ends.last().unwrap() + 100;
    // Headers of block, fragment and frame follow each edge.
    let near = |edge: u64| edge.saturating_sub(20)..edge + 180;
    let edges: Vec<u64> = ends
        .iter()
        .copied()
        .chain([0, 65_536, 131_072, 196_608])
        .collect();
    let is_near = move |at: &u64| edges.iter().any(|edge| near(*edge).contains(at));
    (0..last)
        .rev()
        .filter(move |at| at % 409 == 0 || is_near(at))
}

fn opened(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

fn check(log: &NodeLog, all: &[OwnedFrame], ends: &[u64], cut: u64) {
    let (found, replayed) = replay_by(log);
    let whole = ends.iter().filter(|end| **end <= cut).count();
    assert_eq!(found, all[..whole], "cut at {cut}");
    assert_eq!(replayed.damages, [], "cut at {cut}");
    let at_end = ends.contains(&cut);
    let segment = replayed.segments[0];
    assert!(!(at_end && segment.is_torn), "cut at {cut}");
    assert_eq!(segment.frames, whole as u64);
}

#[test]
fn truncated_segment_keeps_exactly_the_complete_frames() {
    let (_guard, dir) = new_dir();
    let (ends, _) = written(&dir);
    let file = opened(&segment(1, 0, &dir));
    let (log, all) = (open(&dir), frames());
    for cut in places(&ends) {
        file.set_len(cut).unwrap();
        check(&log, &all, &ends, cut);
    }
}

#[test]
fn zeroed_segment_tail_keeps_exactly_the_complete_frames() {
    let (_guard, dir) = new_dir();
    let (ends, bytes) = written(&dir);
    let file = opened(&segment(1, 0, &dir));
    let zeros = vec![0; bytes.len()];
    let (log, all) = (open(&dir), frames());
    for cut in places(&ends) {
        let from = usize::try_from(cut).unwrap();
        let upto = bytes.len().min(from + 500);
        file.write_all_at(&zeros[from..upto], cut).unwrap();
        check(&log, &all, &ends, cut);
    }
}

#[test]
fn zeroed_page_is_reported_and_yields_no_frame() {
    let (_guard, dir) = new_dir();
    let (ends, bytes) = written(&dir);
    let file = opened(&segment(1, 0, &dir));
    let (log, all) = (open(&dir), frames());
    let last = usize::try_from(*ends.last().unwrap()).unwrap();
    for page in 0..=last / 4096 {
        let gone = page * 4096..(page + 1) * 4096;
        file.write_all_at(&[0; 4096], gone.start as u64).unwrap();
        let (found, replayed) = replay_by(&log);
        file.write_all_at(&bytes[gone.clone()], gone.start as u64)
            .unwrap();
        assert!(found.iter().all(|frame| all.contains(frame)), "page {page}");
        let before = ends.iter().filter(|end| **end <= gone.start as u64).count();
        assert!(found.starts_with(&all[..before]), "page {page}");
        // Only the last page looks as if its bytes were never written.
        let is_last = page == last / 4096;
        assert_eq!(replayed.damages.is_empty(), is_last, "page {page}");
        if page < 16 {
            // Frames of later blocks are all found.
            assert!(found.ends_with(&all[5..]), "page {page}");
        }
    }
}

#[test]
fn truncated_segment_before_another_is_damage() {
    use crate::common::open_small;
    let (_guard, dir) = new_dir();
    let log = open_small(&dir);
    let mut ends = Vec::new();
    let mut seq = 0;
    while log.end().segment.number < 2 {
        seq += 1;
        ends.push(append(&log, &[owned(1, seq, 9_000)]).unwrap());
    }
    drop(log);
    let (found, replayed) = replay(&dir);
    assert_eq!(found.len(), ends.len());
    assert_eq!(replayed.damages, []);
    let of_first: Vec<_> = ends.iter().filter(|end| end.segment.number == 0).collect();
    let cut = of_first[of_first.len() - 3].offset;
    opened(&segment(1, 0, &dir))
        .set_len(u64::from(cut))
        .unwrap();
    remove_newer(&dir, 1);
    let (found, replayed) = replay(&dir);
    assert_eq!(found.len(), ends.len() - 2);
    let end = u64::from(of_first[of_first.len() - 1].offset);
    assert_eq!(replayed.damages.len(), 1);
    assert_eq!(replayed.damages[0].bytes, u64::from(cut)..end);
    fs::remove_file(segment(1, 1, &dir)).unwrap();
    remove_newer(&dir, 1);
    let (_, replayed) = replay(&dir);
    let missing = replayed.damages.last().unwrap();
    assert_eq!(missing.segment.number, 1);
    assert_eq!(
        missing.to_string(),
        "expected a segment in bytes 0 to 0 of 0000000000000001-00000001.log"
    );
}
