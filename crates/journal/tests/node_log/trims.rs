//! Removed segments, copied frames, and the remaining size.

use crate::common::{SMALL, TestDisk, append, names, new_dir, open_small, origin, owned, replay};
use kennel_journal::node_log::{Continuity, LogSizes, NodeLog, OwnedFrame, Retain, SNAPSHOT};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::SeqCst},
};

/// Needs no frame.
pub(crate) struct Nothing;

impl Retain for Nothing {
    fn needs(&mut self, _: u128, _: u64, _: u64) -> bool {
        false
    }

    fn snapshot(&mut self, _: u128, _: u64) -> Option<OwnedFrame> {
        None
    }
}

/// Needs these runs; has snapshots of them at these seqs.
#[derive(Default)]
struct Runs {
    live: BTreeMap<u128, Option<u64>>,
    asked: usize,
}

impl Retain for Runs {
    fn needs(&mut self, run: u128, _: u64, _: u64) -> bool {
        self.asked += 1;
        self.live.contains_key(&run)
    }

    fn snapshot(&mut self, run: u128, _: u64) -> Option<OwnedFrame> {
        let seq = (*self.live.get(&run)?)?;
        Some(owned(run, seq, 64))
    }
}

/// Appends frames of the run up to this segment.
fn fill(log: &NodeLog, run: u128, segment: u32) -> u64 {
    let mut seq = 0;
    while log.end().segment.number < segment {
        seq += 1;
        append(log, &[owned(run, seq, 5_000)]).unwrap();
    }
    seq
}

#[test]
fn oldest_segments_are_removed_up_to_needed_one() {
    let (_guard, dir) = new_dir();
    let sizes = LogSizes {
        copy_above: 1 << 30,
        ..SMALL
    };
    let log = NodeLog::open_on(Arc::new(TestDisk::default()), &dir, origin(1), sizes).unwrap();
    fill(&log, 1, 2);
    append(&log, &[owned(2, 1, 10)]).unwrap();
    fill(&log, 1, 5);
    let mut runs = Runs::default();
    runs.live.insert(2, Some(1));
    let trimmed = log.trim(&mut runs).unwrap();
    assert_eq!((trimmed.segments, trimmed.copied), (2, 0));
    assert_eq!(log.trim(&mut runs).unwrap().segments, 0);
    assert_eq!(log.trim(&mut Nothing).unwrap().segments, 3);
    assert_eq!(names(&dir), ["0000000000000001-00000005.log"]);
    drop(log);
    // Missing segment numbers are not damage.
    assert_eq!(replay(&dir).1.damages, []);
}

#[test]
fn earlier_servers_segments_are_removed_after_replay() {
    let (_guard, dir) = new_dir();
    let log = open_small(&dir);
    fill(&log, 1, 2);
    drop(log);
    let log = open_small(&dir);
    assert_eq!(log.trim(&mut Nothing).unwrap().segments, 0);
    log.replay(|_| {}).unwrap();
    assert_eq!(log.trim(&mut Nothing).unwrap().segments, 3);
    assert_eq!(names(&dir), ["0000000000000002-00000000.log"]);
}

#[test]
fn frames_of_live_runs_are_copied_unchanged() {
    let (_guard, dir) = new_dir();
    let disk = Arc::new(TestDisk::default());
    let log = NodeLog::open_on(Arc::<TestDisk>::clone(&disk), &dir, origin(1), SMALL).unwrap();
    let kept: Vec<_> = (1..=3).map(|seq| owned(2, seq, 100)).collect();
    append(&log, &kept).unwrap();
    fill(&log, 1, 3);
    let mut runs = Runs::default();
    runs.live.insert(2, None);
    disk.is_failing_syncs.store(true, SeqCst);
    log.trim(&mut runs).unwrap_err();
    assert_eq!(names(&dir).len(), 4);
    disk.is_failing_syncs.store(false, SeqCst);
    let trimmed = log.trim(&mut runs).unwrap();
    assert_eq!((trimmed.segments, trimmed.copied), (3, 3));
    drop(log);
    let (found, replayed) = replay(&dir);
    assert_eq!(replayed.damages, []);
    let found: Vec<_> = found.into_iter().filter(|f| f.run == 2).collect();
    // Two copies: one is from the trim that failed to sync.
    assert_eq!(found, [kept.clone(), kept].concat());
}

#[test]
fn outdated_snapshot_does_not_replace_the_run() {
    let (_guard, dir) = new_dir();
    let log = open_small(&dir);
    append(&log, &[owned(2, 1, 100), owned(2, 2, 100)]).unwrap();
    fill(&log, 1, 2);
    let mut runs = Runs::default();
    runs.live.insert(2, Some(1));
    assert_eq!(log.trim(&mut runs).unwrap().copied, 2);
}

#[test]
fn segments_before_a_snapshot_are_removed() {
    let (_guard, dir) = new_dir();
    let disk = Arc::new(TestDisk::default());
    let log = NodeLog::open_on(Arc::<TestDisk>::clone(&disk), &dir, origin(1), SMALL).unwrap();
    let seq = fill(&log, 2, 3);
    let mut snapshot = owned(2, seq, 100);
    snapshot.kind |= SNAPSHOT;
    append(&log, &[snapshot]).unwrap();
    let mut runs = Runs::default();
    runs.live.insert(2, None);
    let trimmed = log.trim(&mut runs).unwrap();
    assert_eq!((trimmed.segments, trimmed.copied, runs.asked), (3, 0, 0));
    let syncs = disk.syncs.load(SeqCst);
    assert_eq!(log.sync(log.end()).unwrap(), log.end());
    assert_eq!(disk.syncs.load(SeqCst), syncs, "the trim has synced it");
}

/// 300 live runs of 60 frames each beside others that end: the size of the log depends on the live ones alone.
#[test]
fn long_runs_do_not_grow_the_log() {
    let (_guard, dir) = new_dir();
    let sizes = LogSizes {
        copy_above: 1024 * 1024,
        ..SMALL
    };
    let log = NodeLog::open_on(Arc::new(TestDisk::default()), &dir, origin(1), sizes).unwrap();
    let mut runs = Runs::default();
    let mut largest = 0;
    let mut written = 0;
    for round in 1..=60_u64 {
        for run in 1..=300_u128 {
            let of_an_ended_run = owned(1_000 + run * 1_000 + u128::from(round), 1, 1_000);
            append(&log, &[owned(run, round, 100), of_an_ended_run]).unwrap();
            runs.live.insert(run, Some(round));
            written += 2;
        }
        log.trim(&mut runs).unwrap();
        largest = largest.max(log.size_bytes());
    }
    // Twice the live bytes is about 110 KiB: the configured bound applies, plus one segment on each side.
    assert!(largest < 2 * 1024 * 1024, "{largest} bytes");
    drop(log);
    let (found, replayed) = replay(&dir);
    assert!(
        found.len() * 8 < written,
        "{} of {written} frames",
        found.len()
    );
    let mut continuity = Continuity::default();
    let log = open_small(&dir);
    log.replay(|f| continuity.add(f.position, &f.frame, f.frame.run > 1_000))
        .unwrap();
    assert_eq!(continuity.tainted(&replayed.damages), []);
    for run in 1..=300 {
        let last = found.iter().filter(|f| f.run == run).map(|f| f.seq).max();
        assert_eq!(last, Some(60), "run {run}");
    }
}

#[test]
fn runs_stay_replayable_over_many_servers() {
    let (_guard, dir) = new_dir();
    let mut runs = Runs::default();
    for server in 1..=6_u64 {
        let log = open_small(&dir);
        log.replay(|_| {}).unwrap();
        for run in 1..=50 {
            append(&log, &[owned(run, server, 3_000)]).unwrap();
            runs.live.insert(run, Some(server));
        }
        log.trim(&mut runs).unwrap();
        assert!(log.size_bytes() < 1024 * 1024);
    }
    let log = open_small(&dir);
    let mut continuity = Continuity::default();
    let replayed = log
        .replay(|f| continuity.add(f.position, &f.frame, false))
        .unwrap();
    assert_eq!(replayed.damages, []);
    assert_eq!(continuity.tainted(&[]), []);
}
