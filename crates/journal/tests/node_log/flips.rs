//! One changed byte.

use crate::common::{append, new_dir, open, open_small, owned, replay_by, segment};
use kennel_journal::node_log::{Continuity, OwnedFrame};
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

fn opened(path: &Path) -> File {
    let mut how = OpenOptions::new();
    how.read(true).write(true).open(path).unwrap()
}

#[test]
fn flipped_byte_is_reported_as_damage() {
    let (_guard, dir) = new_dir();
    let log = open_small(&dir);
    let all: Vec<OwnedFrame> = (1..=4).map(|seq| owned(9, seq, 30)).collect();
    let end = append(&log, &all).unwrap().offset;
    drop(log);
    let file = opened(&segment(1, 0, &dir));
    let log = open(&dir);
    for at in 0..u64::from(end) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        for mask in [1, 0x80, 0xff, 0x5a] {
            file.write_all_at(&[byte[0] ^ mask], at).unwrap();
            let (found, replayed) = replay_by(&log);
            assert!(found.iter().all(|frame| all.contains(frame)), "{at}");
            assert_eq!(replayed.damages.len(), 1, "byte {at}");
            let damage = &replayed.damages[0];
            assert!(damage.bytes.contains(&at), "byte {at}: {damage}");
            // A damaged header loses no frame; a damaged payload loses only its own.
            let lost = all.len() - found.len();
            assert_eq!(lost == 0, at < 85, "byte {at}");
            assert_eq!(replayed.segments[0].origin.is_none(), at < 85);
        }
        file.write_all_at(&byte, at).unwrap();
    }
}

#[test]
fn flipped_byte_damages_only_its_own_block() {
    let (_guard, dir) = new_dir();
    let log = open(&dir);
    // 13 blocks; frames of all sizes, some over three blocks, each size at five offsets within its block.
    let lens = [10, 500, 3_000, 20_000, 150_000];
    let all: Vec<OwnedFrame> = (1..=25)
        .zip(lens.into_iter().cycle())
        .map(|(seq, len)| owned(9, seq, len + usize::try_from(seq).unwrap()))
        .collect();
    let ends: Vec<u64> = all
        .iter()
        .map(|frame| {
            let end = append(&log, std::slice::from_ref(frame)).unwrap();
            u64::from(end.offset)
        })
        .collect();
    drop(log);
    let file = opened(&segment(1, 0, &dir));
    let log = open(&dir);
    let mut begin = 85;
    for (index, end) in ends.iter().enumerate() {
        for at in [begin + 1, begin + 5, begin + 20, (begin + end) / 2, end - 1] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            let (found, replayed) = replay_by(&log);
            file.write_all_at(&byte, at).unwrap();
            assert!(found.iter().all(|frame| all.contains(frame)));
            assert_eq!(replayed.damages.len(), 1, "frame {index}, byte {at}");
            let block = replayed.damages[0].block;
            let lost: Vec<usize> = (0..all.len())
                .filter(|i| !found.contains(&all[*i]))
                .collect();
            for frame in lost {
                let first = if frame == 0 { 85 } else { ends[frame - 1] } / 65_536;
                let upto = (ends[frame] - 1) / 65_536;
                let touches = (first..=upto).contains(&(at / 65_536));
                assert!(
                    touches,
                    "frame {frame} of block {first} lost by {at} in {block}"
                );
            }
        }
        begin = *end;
    }
}

#[test]
fn damage_taints_only_runs_with_missing_seqs() {
    let (_guard, dir) = new_dir();
    let log = open(&dir);
    append(&log, &[owned(1, 1, 50), owned(2, 1, 50), owned(3, 1, 50)]).unwrap();
    let before = append(&log, &[owned(1, 2, 50)]).unwrap();
    append(&log, &[owned(2, 2, 50)]).unwrap();
    append(&log, &[owned(1, 3, 50), owned(2, 3, 50)]).unwrap();
    drop(log);
    let file = opened(&segment(1, 0, &dir));
    // The payload of the second frame of run 2.
    file.write_all_at(b"xx", u64::from(before.offset) + 90)
        .unwrap();
    let log = open(&dir);
    let mut continuity = Continuity::default();
    let replayed = log
        .replay(|found| continuity.add(found.position, &found.frame, false))
        .unwrap();
    let tainted = continuity.tainted(&replayed.damages);
    let runs: Vec<u128> = tainted.iter().map(|run| run.run).collect();
    assert_eq!(runs, [2, 3]);
    assert_eq!(tainted[0].missing, [2..=2]);
    assert!(!tainted[0].may_have_more);
    assert!(tainted[1].missing.is_empty() && tainted[1].may_have_more);
}
