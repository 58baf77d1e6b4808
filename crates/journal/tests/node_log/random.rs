//! Random frames, and random damage to them.

use crate::common::{SMALL, TestDisk, append, new_dir, origin, owned, replay};
use kennel_journal::node_log::{CRITICAL, ESSENTIAL, NodeLog, OwnedFrame, SNAPSHOT};
use kennel_lifecycle::Timestamp;
use proptest::{collection::vec, prelude::*};
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    sync::Arc,
};

fn frame() -> impl Strategy<Value = OwnedFrame> {
    let len = prop_oneof![8 => 0..400_usize, 2 => 60_000..70_000_usize, 1 => 0..150_000_usize];
    let flags = any::<u16>().prop_map(|bits| bits & (CRITICAL | SNAPSHOT | ESSENTIAL | 0x1fff));
    let key = (any::<u64>(), any::<u64>(), 1..1_000_u64, any::<u32>());
    let rest = (any::<i64>(), any::<[u64; 2]>());
    (len, flags, key, rest).prop_map(
        |(len, kind, (run, incarnation, seq, attempt), (at, lens))| OwnedFrame {
            kind,
            incarnation,
            attempt,
            at: Timestamp(at),
            lens,
            ..owned(u128::from(run), seq, len)
        },
    )
}

/// Calls of a few frames each.
fn calls() -> impl Strategy<Value = Vec<Vec<OwnedFrame>>> {
    vec(vec(frame(), 1..4), 1..12)
}

fn is_small(call: &[OwnedFrame]) -> bool {
    call.iter().map(|frame| frame.payload.len()).sum::<usize>() < 180_000
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_frames_are_found_in_order(calls in calls(), restarts in vec(any::<bool>(), 12)) {
        let (_guard, dir) = new_dir();
        let open = || NodeLog::open_on(Arc::new(TestDisk::default()), &dir, origin(1), SMALL).unwrap();
        let mut log = open();
        let mut all = Vec::new();
        for (call, restarts) in calls.into_iter().filter(|c| is_small(c)).zip(restarts) {
            append(&log, &call).unwrap();
            all.extend(call);
            if restarts {
                drop(log);
                log = open();
            }
        }
        drop(log);
        let (found, replayed) = replay(&dir);
        prop_assert_eq!(replayed.damages, []);
        prop_assert!(found == all);
    }

    #[test]
    fn random_damage_never_yields_unwritten_frames(
        calls in calls(),
        damages in vec((any::<prop::sample::Index>(), 1..20_000_usize, any::<Option<u8>>()), 1..5),
    ) {
        let (_guard, dir) = new_dir();
        let log = NodeLog::open_on(Arc::new(TestDisk::default()), &dir, origin(1), SMALL).unwrap();
        let mut all = Vec::new();
        for call in calls.into_iter().filter(|c| is_small(c)) {
            append(&log, &call).unwrap();
            all.extend(call);
        }
        let last = log.end().segment.number;
        drop(log);
        for (at, len, filler) in damages {
            let path = crate::common::segment(1, u32::try_from(at.index(last as usize + 1)).unwrap(), &dir);
            let bytes = fs::read(&path).unwrap();
            let begin = at.index(bytes.len());
            let len = len.min(bytes.len() - begin);
            // Damage: zeros, another byte, or bytes of another position.
            let other = filler.map_or_else(
                || bytes[begin / 2..begin / 2 + len].to_vec(),
                |byte| std::vec::from_elem(byte & 1, len),
            );
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&other, begin as u64).unwrap();
        }
        let (found, _) = replay(&dir);
        // Found frames are appended frames, in order.
        let mut expected = all.iter();
        for frame in &found {
            prop_assert!(expected.any(|e| e == frame));
        }
    }
}
