use super::*;
use std::fs;

fn asked(rpc: &str, run: u8) -> TrailRecord {
    let request = LoggedRequest {
        rpc: rpc.into(),
        by: "uid:7".into(),
        code: "OK".into(),
        calls: 1,
        ..LoggedRequest::default()
    };
    TrailRecord::now(Some(format!("run{run}")), TrailEntry::Request(request))
}

fn denied(by: usize, run: Option<usize>) -> TrailRecord {
    let request = LoggedRequest {
        rpc: "Spawn".into(),
        by: format!("uid:{by}"),
        code: "PERMISSION_DENIED".into(),
        reason: "PERMISSION_DENIED".into(),
        calls: 1,
        ..LoggedRequest::default()
    };
    TrailRecord::now(run.map(|run| run.to_string()), TrailEntry::Request(request))
}

fn everything() -> TrailAsk {
    TrailAsk {
        kinds: vec![TrailKind::Request, TrailKind::Signal, TrailKind::Node],
        ..TrailAsk::default()
    }
}

async fn read(trail: &Trail, ask: TrailAsk) -> Vec<TrailRecord> {
    let mut reader = trail.read(ask).await;
    let mut all = Vec::new();
    while let Some(some) = reader.next().await.expect("it can be read") {
        all.extend(some);
    }
    all
}

fn seqs(records: &[TrailRecord]) -> Vec<u64> {
    records.iter().map(|record| record.seq).collect()
}

#[tokio::test]
async fn next_server_continues_audit_seqs() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = Trail::open(dir.path(), ClockSettings::default());
    first.record(asked("Spawn", 1));
    first.record(asked("Abort", 2));
    first.flush().await;
    let second = Trail::open(dir.path(), ClockSettings::default());
    second.record(TrailRecord::node("server_started", [("pid", "1".into())]));
    let all = read(&second, everything()).await;
    assert_eq!(seqs(&all), [1, 2, 3]);
    let of_run = TrailAsk {
        run: Some("run2".into()),
        kinds: vec![TrailKind::Request],
        ..everything()
    };
    assert_eq!(seqs(&read(&second, of_run).await), [2]);
    let later = TrailAsk {
        after_seq: 2,
        ..everything()
    };
    assert_eq!(seqs(&read(&second, later).await), [3]);
}

#[tokio::test]
async fn audit_log_followers_get_new_records() {
    let dir = tempfile::tempdir().expect("a directory");
    let trail = Trail::open(dir.path(), ClockSettings::default());
    let mut reader = trail
        .read(TrailAsk {
            follow: true,
            ..everything()
        })
        .await;
    trail.record(asked("Spawn", 1));
    let given = reader.next().await.expect("readable").expect("one");
    assert_eq!(seqs(&given), [1]);
    trail.record(asked("Abort", 1));
    let given = reader.next().await.expect("readable").expect("another");
    assert_eq!(seqs(&given), [2]);
}

// promise: AU-4
#[tokio::test]
async fn torn_audit_line_after_host_crash_is_ignored() {
    let dir = tempfile::tempdir().expect("a directory");
    let before = Trail::open(dir.path(), ClockSettings::default());
    before.record(asked("Spawn", 1));
    before.flush().await;
    drop(before);
    let file = files::path(&dir.path().join(files::DIR), 1);
    let mut text = fs::read_to_string(&file).expect("one file");
    text.push_str("{\"seq\":2,\"at_us");
    fs::write(&file, text).expect("own directory");
    let after = Trail::open(dir.path(), ClockSettings::default());
    after.record(asked("Abort", 1));
    let all = read(&after, everything()).await;
    assert_eq!(seqs(&all), [1, 2]);
}

// promise: AU-4
#[tokio::test]
async fn frequent_calls_are_summarized_with_counts() {
    let dir = tempfile::tempdir().expect("a directory");
    let trail = Trail::open(dir.path(), ClockSettings::default());
    for _ in 0..100 {
        let mut record = asked("WriteInput", 1);
        if let TrailEntry::Request(request) = &mut record.entry {
            request.bytes = 3;
        }
        trail.count(record);
    }
    let all = read(&trail, everything()).await;
    let counts: Vec<(u64, u64)> = all
        .iter()
        .filter_map(|record| match &record.entry {
            TrailEntry::Request(request) => Some((request.calls, request.bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [(1, 3), (99, 297)]);
}

// promise: AU-2
#[tokio::test]
async fn signal_repeated_by_a_keeper_is_recorded_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let trail = Trail::open(dir.path(), ClockSettings::default());
    let signal = TrailEntry::Signal(LoggedSignal {
        attempt: 1,
        signal: "SIGTERM".into(),
        scope: "tree".into(),
        sender: "keeper".into(),
        delivered: 2,
        ..LoggedSignal::default()
    });
    for at in [5, 5, 6] {
        let run = Some("run1".to_owned());
        trail.record(TrailRecord::at(Timestamp(at), run, signal.clone()));
    }
    let all = read(&trail, everything()).await;
    assert_eq!(all.iter().map(|r| r.at_us).collect::<Vec<_>>(), [5, 6]);
}

// promise: AU-4
#[tokio::test]
async fn audit_files_are_bounded_and_keep_newest_lines() {
    let dir = tempfile::tempdir().expect("a directory");
    let audit = dir.path().join(files::DIR);
    fs::create_dir(&audit).expect("own directory");
    let mut full = vec![b' '; usize::try_from(files::FILE_BYTES_MAX).expect("fits")];
    full.push(b'\n');
    let firsts = 1..=files::FILES_MAX as u64;
    for first in firsts.clone() {
        fs::write(files::path(&audit, first), &full).expect("own directory");
    }
    let trail = Trail::open(dir.path(), ClockSettings::default());
    trail.record(asked("Spawn", 1));
    let all = read(&trail, everything()).await;
    assert_eq!(all.len(), 1);
    let left = files::list(&audit).expect("readable");
    assert_eq!(left.len(), files::FILES_MAX, "{left:?}");
    assert!(!left.contains(&1), "{left:?}");
}

fn signalled(owner: &str, target: &str) -> TrailRecord {
    let signal = LoggedSignal {
        owner: owner.into(),
        why: target.into(),
        ..LoggedSignal::default()
    };
    TrailRecord::now(Some("run1".into()), TrailEntry::Signal(signal))
}

/// Signals to large trees of one principal, and refused calls of many strangers, fill a log.
// promise: RW-143b
#[tokio::test]
async fn full_audit_log_keeps_lines_of_quiet_callers() {
    let dir = tempfile::tempdir().expect("a directory");
    let audit = dir.path().join(files::DIR);
    fs::create_dir(&audit).expect("own directory");
    let targets = "t".repeat(30_000);
    let mut records = vec![asked("Spawn", 1), TrailRecord::node("server_started", [])];
    for number in 0..80 {
        records.push(signalled("uid:8", &targets));
        let mut stranger = denied(1000 + number, None);
        if let TrailEntry::Request(request) = &mut stranger.entry {
            request.unnamed = true;
            request.rpc = targets.clone();
        }
        records.push(stranger);
    }
    records.push(signalled("uid:7", "one"));
    let mut text = Vec::new();
    for (seq, record) in (1..).zip(records) {
        text.extend(serde_json::to_vec(&TrailRecord { seq, ..record }).expect("JSON"));
        text.push(b'\n');
    }
    fs::write(files::path(&audit, 1), text).expect("own directory");
    let mut full = vec![b' '; usize::try_from(files::FILE_BYTES_MAX).expect("fits")];
    full.push(b'\n');
    let last = files::FILES_MAX as u64 + 999;
    for first in 1001..=last {
        fs::write(files::path(&audit, first), &full).expect("own directory");
    }
    let trail = Trail::open(dir.path(), ClockSettings::default());
    let mut follower = trail
        .read(TrailAsk {
            follow: true,
            after_seq: 160,
            ..everything()
        })
        .await;
    let known = follower.next().await.expect("readable").expect("lines");
    assert_eq!(seqs(&known), [161, 162, 163]);
    trail.record(asked("Abort", 1));
    let all = read(&trail, everything()).await;
    let repeated: Vec<u64> = all.iter().map(|record| record.repeats).collect();
    assert_eq!(repeated, [1, 2, 163, 0]);
    assert!(!files::list(&audit).expect("readable").contains(&1));
    check_audit_chain(dir.path(), None).expect("it holds");
    let new = follower.next().await.expect("readable").expect("a line");
    assert_eq!(new, all[3..], "the follower has the others");
}

// promise: AU-3
#[tokio::test]
async fn failed_audit_writes_are_queued_and_excess_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    // A file instead of the directory makes every write fail.
    let in_the_way = dir.path().join(files::DIR);
    fs::write(&in_the_way, b"").expect("own directory");
    let trail = Trail::open(dir.path(), ClockSettings::default());
    trail.record_written(asked("Spawn", 0)).await;
    for _ in 0..5000 {
        trail.record_written(asked("Abort", 1)).await;
    }
    assert!(trail.lost() > 0);
    fs::remove_file(&in_the_way).expect("own directory");
    let all = read(&trail, everything()).await;
    // A writer that lagged at the first note writes a second.
    let noted = all.iter().filter_map(|record| match &record.entry {
        TrailEntry::Node(node) if node.what == "audit_lines_lost" => node.detail.get("lines"),
        _ => None,
    });
    let noted: Vec<usize> = noted
        .map(|lines| lines.parse().expect("a number"))
        .collect();
    assert!(!noted.is_empty(), "a count");
    assert_eq!(noted.iter().sum::<usize>() + all.len() - noted.len(), 5001);
    assert_eq!(trail.lost(), 0);
}

// promise: AU-8
#[tokio::test]
async fn refused_calls_are_summed_per_caller() {
    let dir = tempfile::tempdir().expect("a directory");
    let trail = Trail::open(dir.path(), ClockSettings::default());
    let denied = |by: usize, rpc: usize| {
        let mut record = denied(by, None);
        if let TrailEntry::Request(request) = &mut record.entry {
            request.rpc = format!("Rpc{rpc}");
            request.pid = Some(i32::try_from(rpc).expect("small"));
        }
        record
    };
    for rpc in 0..1000 {
        trail.deny(denied(1, rpc), DeniedCaller::Stranger);
    }
    // More users than are counted separately.
    for by in 1..100 {
        trail.deny(denied(by, 0), DeniedCaller::Stranger);
    }
    let all = read(&trail, everything()).await;
    let calls = all.iter().filter_map(|record| match &record.entry {
        TrailEntry::Request(request) if request.by == "uid:1" => Some(request.calls),
        _ => None,
    });
    assert_eq!(calls.collect::<Vec<_>>(), [1, 1000]);
    assert!(all.len() < 40, "{} lines", all.len());
    assert!(all.len() > 16, "{} lines", all.len());
}

// promise: RW-143
#[tokio::test]
async fn refused_runs_do_not_displace_refused_users() {
    let dir = tempfile::tempdir().expect("a directory");
    let trail = Trail::open(dir.path(), ClockSettings::default());
    for _ in 0..2 {
        for run in 0..200 {
            trail.deny(denied(0, Some(run)), DeniedCaller::Run);
        }
    }
    trail.deny(denied(7, None), DeniedCaller::Stranger);
    let all = read(&trail, everything()).await;
    let requests = all.iter().filter_map(|record| match &record.entry {
        TrailEntry::Request(request) => Some((record.run.is_some(), request)),
        _ => None,
    });
    let (mut of_runs, mut of_their_user, mut of_another) = (0, 0, 0);
    for (is_of_run, request) in requests {
        match (is_of_run, request.by.as_str()) {
            (true, _) => of_runs += request.calls,
            (false, "uid:0") => of_their_user += request.calls,
            (false, _) => of_another += request.calls,
        }
    }
    assert_eq!((of_runs, of_their_user, of_another), (32, 368, 1));
    assert_eq!(trail.lost(), 0);
}

// promise: RW-143a
#[tokio::test]
async fn unknown_callers_do_not_displace_named_principals() {
    let dir = tempfile::tempdir().expect("a directory");
    let trail = Trail::open(dir.path(), ClockSettings::default());
    for by in 1000..1100 {
        trail.deny(denied(by, None), DeniedCaller::Stranger);
    }
    for by in 200..300 {
        trail.deny(denied(by, None), DeniedCaller::Named);
    }
    let all = read(&trail, everything()).await;
    let named = all.iter().filter(|record| match &record.entry {
        TrailEntry::Request(request) => request.by.starts_with("uid:2"),
        _ => false,
    });
    assert_eq!(named.count(), 100);
}

/// Writes the audit log of three servers, over a torn line; returns its file.
async fn chained(dir: &Path) -> PathBuf {
    let file = files::path(&dir.join(files::DIR), 1);
    for run in 1..=3 {
        chained_once(dir, run).await;
        if run == 2 {
            let mut text = fs::read(&file).expect("a file");
            text.extend(b"{\"seq\":5,\"at_us");
            fs::write(&file, text).expect("own directory");
        }
    }
    file
}

// promise: AU-20
#[tokio::test]
async fn foreign_line_in_audit_chain_is_detected() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = chained(dir.path()).await;
    let whole = fs::read(&file).expect("a file");
    for foreign in ["Spawn by uid:0", "{}", "{\"seq\":7}", "[]"] {
        let text = [&whole, foreign.as_bytes(), b"\n"].concat();
        fs::write(&file, text).expect("own directory");
        let found = check_audit_chain(dir.path(), None).expect_err("it is no record");
        assert!(found.to_string().contains("seq 6"), "{foreign}: {found}");
    }
    let torn = [&whole[..], b"{\"seq\":7,\0\0\0\n"].concat();
    fs::write(&file, torn).expect("own directory");
    let checked = check_audit_chain(dir.path(), None).expect("a host left it");
    assert_eq!(checked.fragments, 2);
}

// promise: AU-20
#[tokio::test]
async fn audit_chain_spans_all_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let audit = dir.path().join(files::DIR);
    fs::create_dir(&audit).expect("own directory");
    let mut full = vec![b' '; usize::try_from(files::FILE_BYTES_MAX).expect("fits") - 1];
    full.push(b'\n');
    fs::write(files::path(&audit, 1), full).expect("own directory");
    for _ in 0..2 {
        // The first file is full: one server begins the second, the next server reads it.
        chained_once(dir.path(), 1).await;
    }
    assert!(files::list(&audit).expect("readable").len() > 1);
    let checked = check_audit_chain(dir.path(), None).expect("it holds");
    assert_eq!((checked.first, checked.head.seq), (2, 5));
}

async fn chained_once(dir: &Path, run: u8) {
    let trail = Trail::open(dir, ClockSettings::default());
    trail.record(asked("Spawn", run));
    trail.record(asked("Abort", run));
    trail.flush().await;
}

// promise: AU-20
#[tokio::test]
async fn audit_chain_holds_across_servers_and_fragments() {
    let dir = tempfile::tempdir().expect("a directory");
    chained(dir.path()).await;
    let checked = check_audit_chain(dir.path(), None).expect("it holds");
    assert_eq!(
        (checked.first, checked.head.seq, checked.fragments),
        (1, 6, 1)
    );
    let head = checked.head.clone();
    let trail = Trail::open(dir.path(), ClockSettings::default());
    trail.record(asked("Abort", 3));
    trail.flush().await;
    let later = check_audit_chain(dir.path(), Some(&head)).expect("it holds");
    assert_eq!(later.head.seq, 7);
    let other = ChainHead {
        hash: chain::hash(b""),
        ..head
    };
    assert!(matches!(
        check_audit_chain(dir.path(), Some(&other)),
        Err(ChainError::OtherHead { seq: 6 })
    ));
    let cut = ChainHead { seq: 8, ..other };
    assert!(check_audit_chain(dir.path(), Some(&cut)).is_err());
}

// promise: AU-20
#[tokio::test]
async fn changed_lost_and_added_audit_lines_are_detected() {
    type Change = fn(Vec<String>) -> Vec<String>;
    let changes: [(Change, u64); 4] = [
        (
            |lines| {
                lines
                    .into_iter()
                    .map(|l| l.replace("run1", "run9"))
                    .collect()
            },
            2,
        ),
        (
            |mut lines| {
                lines.remove(1);
                lines
            },
            3,
        ),
        (
            |mut lines| {
                lines.swap(1, 2);
                lines
            },
            3,
        ),
        (
            |mut lines| {
                lines.insert(1, lines[0].clone());
                lines
            },
            1,
        ),
    ];
    for (change, broken) in changes {
        let dir = tempfile::tempdir().expect("a directory");
        let file = chained(dir.path()).await;
        let text = fs::read_to_string(&file).expect("a file");
        let lines = text.split('\n').map(str::to_owned).collect();
        fs::write(&file, change(lines).join("\n")).expect("own directory");
        match check_audit_chain(dir.path(), None) {
            Err(ChainError::Broken { seq, .. }) => assert_eq!(seq, broken),
            other => panic!("{other:?}"),
        }
    }
}

// promise: RW-142
#[tokio::test]
async fn export_skips_files_removed_meanwhile() {
    let dir = tempfile::tempdir().expect("a directory");
    let trail = Trail::open(dir.path(), ClockSettings::default());
    trail.record(asked("Spawn", 1));
    trail.flush().await;
    let audit = dir.path().join(files::DIR);
    let export = || {
        let mut lines = 0;
        let take = |_: &[u8]| {
            lines += 1;
            Ok::<_, ChainError>(())
        };
        chain::export(dir.path(), 0, take).map(|()| lines)
    };
    // A dangling symlink is listed, but missing when opened.
    let lost = |first| {
        let path = files::path(&audit, first);
        std::os::unix::fs::symlink("nothing", path).expect("own directory");
    };
    lost(0);
    assert_eq!(export().expect("the rest"), 1);
    lost(2);
    assert!(matches!(export(), Err(ChainError::Read { .. })));
}

// promise: AU-4
#[tokio::test]
async fn audit_file_age_is_that_of_last_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let audit = dir.path().join(files::DIR);
    fs::create_dir(&audit).expect("own directory");
    let old = Timestamp(0);
    let (stale, touched, newest) = (1, 2, 3);
    for (seq, at) in [
        (stale, old),
        (touched, clock::now()),
        (newest, clock::now()),
    ] {
        let mut record = asked("Spawn", 1);
        (record.seq, record.at_us) = (seq, at.0);
        let line = serde_json::to_string(&record).expect("JSON");
        let path = files::path(&audit, seq);
        fs::write(&path, line + "\n").expect("own directory");
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        let file = fs::File::open(&path).expect("it is there");
        if seq == touched {
            // Any process of this user can call utime(2).
            file.set_modified(long_ago).expect("own file");
        }
    }
    let trail = Trail::open(dir.path(), ClockSettings::default());
    trail.record(asked("Abort", 1));
    trail.flush().await;
    assert_eq!(files::list(&audit).expect("readable"), [touched, newest]);
}
