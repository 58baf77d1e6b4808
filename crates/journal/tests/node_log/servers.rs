//! Several servers on one directory, one after another or at once.

use crate::common::{append, names, new_dir, open, origin, owned, replay, segment};
use kennel_journal::{
    Boot,
    node_log::{NodeLog, Origin, ReplayError},
};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

#[test]
fn frames_of_earlier_servers_are_replayed_in_order() {
    let (_guard, dir) = new_dir();
    let mut all = Vec::new();
    for server in 1..=4 {
        let boot = Boot(u128::from(10 - server));
        // The epoch goes back, as the clock may.
        let epoch = u128::from(100 - server);
        let origin = Origin {
            boot,
            epoch,
            ..origin(server)
        };
        let log = NodeLog::open(&dir, origin).unwrap();
        for seq in 1..=3 {
            let frame = owned(u128::from(server), seq, 70);
            append(&log, std::slice::from_ref(&frame)).unwrap();
            all.push(frame);
        }
        // Dropping simulates a crash, without an orderly end.
    }
    let (found, replayed) = replay(&dir);
    assert_eq!(found, all);
    assert_eq!(replayed.damages, []);
    let boots = replayed.segments.iter().map(|s| s.origin.unwrap().boot.0);
    assert_eq!(boots.collect::<Vec<_>>(), [9, 8, 7, 6]);
}

#[test]
fn logs_of_two_concurrent_servers_are_read() {
    let (_guard, dir) = new_dir();
    let (first, second) = (open(&dir), open(&dir));
    std::thread::scope(|scope| {
        for (run, log) in [(1, &first), (2, &second)] {
            scope.spawn(move || {
                for seq in 1..=2_000 {
                    append(log, &[owned(run, seq, 300)]).unwrap();
                }
            });
        }
    });
    drop((first, second));
    let (found, replayed) = replay(&dir);
    assert_eq!(replayed.damages, []);
    assert_eq!(found.len(), 4_000);
    for (index, frame) in (0..).zip(&found) {
        let expected = owned(1 + u128::from(index / 2_000_u64), index % 2_000 + 1, 300);
        assert_eq!(*frame, expected);
    }
}

#[test]
fn concurrent_appends_lose_no_frame() {
    let (_guard, dir) = new_dir();
    let log = crate::common::open_small(&dir);
    std::thread::scope(|scope| {
        for run in 1..=4 {
            let log = &log;
            scope.spawn(move || {
                for seq in 1..=300 {
                    append(log, &[owned(run, seq, 500)]).unwrap();
                }
            });
        }
    });
    assert!(log.end().segment.number > 1);
    drop(log);
    let (found, replayed) = replay(&dir);
    assert_eq!(replayed.damages, []);
    for run in 1..=4 {
        let seqs = found.iter().filter(|f| f.run == run).map(|f| f.seq);
        assert!(seqs.eq(1..=300), "run {run}");
    }
}

#[test]
fn replay_is_refused_while_former_server_lives() {
    let (_guard, dir) = new_dir();
    let former = crate::common::open_small(&dir);
    append(&former, &[owned(1, 1, 10)]).unwrap();
    let log = open(&dir);
    let is_waiting = || {
        let error = log.replay(|_| {}).unwrap_err();
        assert!(matches!(error, ReplayError::FormerServer { .. }), "{error}");
    };
    is_waiting();
    // The previous server begins further segments, and later frames are found too.
    let mut seq = 1;
    while former.end().segment.number < 2 {
        seq += 1;
        append(&former, &[owned(1, seq, 9_000)]).unwrap();
        is_waiting();
    }
    drop(former);
    let mut count = 0;
    log.replay(|_| count += 1).unwrap();
    assert_eq!(count, seq);
}

#[test]
fn foreign_files_are_left_unchanged() {
    let (_guard, dir) = new_dir();
    let log = open(&dir);
    append(&log, &[owned(1, 1, 10)]).unwrap();
    drop(log);
    fs::write(dir.join("notes"), "mine").unwrap();
    fs::write(dir.join("1-1.log"), "mine").unwrap();
    symlink("/etc/passwd", segment(1, 1, &dir)).unwrap();
    fs::create_dir(segment(1, 2, &dir)).unwrap();
    let before = names(&dir);
    let log = open(&dir);
    let replayed = log.replay(|_| {}).unwrap();
    // A link or directory named like a segment is not a segment.
    assert_eq!(replayed.damages.len(), 2);
    assert_eq!(replayed.segments.len(), 1);
    log.trim(&mut crate::trims::Nothing).unwrap();
    drop(log);
    let own = "0000000000000002-00000000.log";
    let after: Vec<_> = names(&dir).into_iter().filter(|n| n != own).collect();
    assert_eq!(after[..], before[1..]);
    assert_eq!(fs::read(dir.join("notes")).unwrap(), b"mine");
}

#[test]
fn only_the_owner_may_read_the_log() {
    let (_guard, dir) = new_dir();
    let log = open(&dir);
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.clone()), 0o700);
    assert_eq!(mode(log.end().segment.path(&dir)), 0o600);
    let (_guard, other) = new_dir();
    symlink(&dir, &other).unwrap();
    NodeLog::open(&other, origin(1)).unwrap_err();
}

#[test]
fn segment_of_another_layout_is_refused() {
    let (_guard, dir) = new_dir();
    drop(open(&dir));
    let path = segment(1, 0, &dir);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    let crc = crc32fast::hash(&bytes[..80]);
    bytes[80..84].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let error = open(&dir).replay(|_| {}).unwrap_err();
    assert!(matches!(error, ReplayError::Layout { found: 9, .. }));
}
