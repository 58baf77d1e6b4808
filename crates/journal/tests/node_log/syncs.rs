//! Syncs, shared ones and failed ones.

use crate::common::{SMALL, TestDisk, append, new_dir, origin, owned, replay};
use kennel_journal::node_log::{LogSizes, NodeLog};
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering::SeqCst},
};

fn open(dir: &Path, sizes: LogSizes) -> (Arc<TestDisk>, NodeLog) {
    let disk = Arc::new(TestDisk::default());
    let log = NodeLog::open_on(Arc::<TestDisk>::clone(&disk), dir, origin(1), sizes).unwrap();
    (disk, log)
}

#[test]
fn append_is_one_write_without_sync() {
    let (_guard, dir) = new_dir();
    let (disk, log) = open(&dir, LogSizes::default());
    disk.writes.store(0, SeqCst);
    for seq in 1..=5 {
        append(&log, &[owned(1, seq, 200)]).unwrap();
    }
    assert_eq!(disk.writes.load(SeqCst), 5);
    // One write also for several frames, even across blocks.
    append(&log, &[owned(2, 1, 90_000), owned(2, 2, 10)]).unwrap();
    assert_eq!(disk.writes.load(SeqCst), 6);
    assert_eq!(disk.syncs.load(SeqCst) + disk.dir_syncs.load(SeqCst), 0);
}

#[test]
fn concurrent_callers_share_a_sync() {
    let (_guard, dir) = new_dir();
    let (disk, log) = open(&dir, LogSizes::default());
    disk.is_slow.store(true, SeqCst);
    std::thread::scope(|scope| {
        for run in 1..=16 {
            let log = &log;
            scope.spawn(move || {
                let end = append(log, &[owned(run, 1, 100)]).unwrap();
                assert!(log.sync(end).unwrap() >= end);
            });
        }
    });
    assert!(disk.syncs.load(SeqCst) < 16, "{disk:?}");
    assert_eq!(disk.dir_syncs.load(SeqCst), 1);
    let before = disk.syncs.load(SeqCst);
    assert_eq!(log.sync(log.end()).unwrap(), log.end());
    assert_eq!(disk.syncs.load(SeqCst), before);
}

#[test]
fn sync_covers_all_earlier_segments() {
    let (_guard, dir) = new_dir();
    let (disk, log) = open(&dir, SMALL);
    let mut seq = 0;
    while log.end().segment.number < 3 {
        seq += 1;
        append(&log, &[owned(1, seq, 9_000)]).unwrap();
    }
    log.sync(log.end()).unwrap();
    assert_eq!(disk.syncs.load(SeqCst), 4);
    append(&log, &[owned(1, seq + 1, 10)]).unwrap();
    log.sync(log.end()).unwrap();
    assert_eq!(disk.syncs.load(SeqCst), 5);
}

#[test]
fn failed_sync_abandons_its_segment() {
    let (_guard, dir) = new_dir();
    let (disk, log) = open(&dir, SMALL);
    let sure = append(&log, &[owned(1, 1, 100)]).unwrap();
    log.sync(sure).unwrap();
    let lost = append(&log, &[owned(1, 2, 100)]).unwrap();
    let also_lost = append(&log, &[owned(2, 1, 100)]).unwrap();
    disk.is_failing_syncs.store(true, SeqCst);
    let error = log.sync(lost).unwrap_err();
    assert_eq!((error.sure, error.lost_upto), (sure, also_lost));
    disk.is_failing_syncs.store(false, SeqCst);
    let syncs = disk.syncs.load(SeqCst);
    // No second sync follows: its success would prove nothing.
    assert_eq!(log.sync(also_lost).unwrap_err().sure, sure);
    assert_eq!(disk.syncs.load(SeqCst), syncs);
    let again = append(&log, &[owned(1, 2, 100), owned(2, 1, 100)]).unwrap();
    assert_eq!(again.segment.number, 1);
    log.sync(again).unwrap();
    assert_eq!(disk.syncs.load(SeqCst), syncs + 1);
    assert_eq!(log.sync(sure).unwrap(), again);
    log.sync(lost).unwrap_err();
    log.sync(also_lost).unwrap_err();
    assert_eq!(disk.syncs.load(SeqCst), syncs + 1);
    drop(log);
    // Both copies are found: the caller accepts each seq once.
    let (found, replayed) = replay(&dir);
    assert_eq!(replayed.damages, []);
    assert_eq!(found.len(), 5);
}

#[test]
fn every_waiter_learns_of_a_failed_sync() {
    let (_guard, dir) = new_dir();
    let (disk, log) = open(&dir, SMALL);
    disk.is_slow.store(true, SeqCst);
    disk.is_failing_syncs.store(true, SeqCst);
    let ends: Vec<_> = (1..=8)
        .map(|seq| append(&log, &[owned(1, seq, 9_000)]).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for end in &ends {
            let log = &log;
            scope.spawn(move || log.sync(*end).unwrap_err());
        }
    });
    assert_eq!(disk.syncs.load(SeqCst), 1);
    disk.is_slow.store(false, SeqCst);
    for _ in 0..10 {
        let end = append(&log, &[owned(1, 9, 10)]).unwrap();
        log.sync(end).unwrap_err();
    }
    // After any number of failures no lost frame counts as durable. More lost ranges than are stored separately.
    disk.is_failing_syncs.store(false, SeqCst);
    for round in 0..140 {
        disk.is_failing_syncs.store(round % 2 == 0, SeqCst);
        let end = append(&log, &[owned(1, 10, 10)]).unwrap();
        assert_eq!(log.sync(end).is_err(), round % 2 == 0);
    }
    for end in ends {
        log.sync(end).unwrap_err();
    }
}
