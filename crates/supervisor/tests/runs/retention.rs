//! Output of ended runs is removed by the node's limits: marked first, removed as one, and every reader learns exactly
//! which bytes are missing, after any crash in between.

use crate::world::{Lives, Nature, Stage, Weather, call, run_id};
use kennel_lifecycle::{
    EndReason, Entry, OutputRemoval, RemovalReason, RetentionLimits, RunId, RunState, Timestamp,
};
use kennel_supervisor::{
    Amount, CallError, Condition, Event, Events, Form, GapReason, MissingBytes, OutputCall,
    OutputPart, OutputRange, Payload, Position, Reached, Tail,
};
use std::{fs, path::PathBuf, time::Duration};

/// Longer than the interval of the check.
const LOOK: Duration = Duration::from_secs(11);

const KEEP_NONE: RetentionLimits = RetentionLimits {
    runs_per_owner: Some(0),
    ..RetentionLimits::NONE
};

// promise: O-30
#[test]
fn last_hundred_runs_of_owner_keep_output() {
    let lives = lives(RetentionLimits {
        at_least: Duration::ZERO,
        ..RetentionLimits::default()
    });
    let mut runs = Vec::new();
    lives.live_long(async |stage| {
        for number in 0..150 {
            runs.push(ran(stage, RunId::from_u128(number + 1), "uid:0").await);
        }
        // Another owner's run does not count.
        runs.push(ran(stage, RunId::from_u128(1000), "uid:1").await);
        tokio::time::sleep(LOOK).await;
        for (number, run) in runs.iter().enumerate() {
            let view = stage.supervisor.get(*run).await.unwrap();
            assert_eq!(view.output_removed.is_some(), number < 50, "{number}");
            assert_eq!(dir(stage, *run).exists(), number >= 50, "{number}");
            assert!(view.outcome.is_some());
        }
    });
}

// promise: O-31
#[test]
fn reading_a_pruned_run_yields_gap_and_outcome() {
    let lives = lives(KEEP_NONE);
    lives.live_long(async |stage| {
        let run = ran(stage, run_id(), "uid:0").await;
        let before = read(stage, run, Position::Beginning).await;
        let ended = before.last().unwrap();
        tokio::time::sleep(LOOK).await;
        let removal = removal(stage, run).await;
        assert_eq!(removal.reason, RemovalReason::OwnerRuns);
        assert_eq!((removal.seq, removal.lens), (ended.seq, [6, 0]));

        let after = read(stage, run, Position::Beginning).await;
        assert_without_output(&before, &after, [Some(6), Some(0)]);
        let end = after.last().unwrap();
        assert!(
            matches!(&end.payload, Payload::Lifecycle(Entry::Ended(outcome))
            if outcome.state() == RunState::Succeeded && outcome.reason == EndReason::Exited)
        );
        assert_eq!((end.seq, end.attempt), (ended.seq, ended.attempt));

        let tail = Tail {
            amount: Amount::Lines(1),
            streams: [true; 2],
        };
        let from_tail = read(stage, run, Position::Tail(tail)).await;
        assert_without_output(&before, &from_tail, [Some(6), Some(0)]);
        // Readers may resume from any position.
        for known in [true, false] {
            let at = Reached {
                seq: 2,
                lens: known.then_some([0, 0]),
                ..Reached::default()
            };
            let rest = read(stage, run, Position::After(at)).await;
            let bytes = [6, 0].map(|bytes| known.then_some(bytes));
            assert_without_output(&before[2..], &rest, bytes);
        }
        let at = |seq| {
            Position::After(Reached {
                seq,
                ..Reached::default()
            })
        };
        let last = read(stage, run, at(ended.seq - 1)).await;
        assert_eq!(last.len(), 1, "only the end is left: {last:?}");
        assert!(read(stage, run, at(ended.seq)).await.is_empty());
        assert!(read(stage, run, Position::LiveOnly).await.is_empty());
        let ahead = stage.supervisor.events(run, at(ended.seq + 1)).await;
        assert!(matches!(ahead, Err(CallError::CursorAhead { .. })));

        let (_, events) = stage
            .supervisor
            .events(run, Position::Beginning)
            .await
            .unwrap();
        assert_eq!((events.head(), events.whole_from()), (ended.seq, ended.seq));
        let by_line = Form {
            plain: true,
            lines: true,
            ..Form::default()
        };
        let shown = drain(events.viewed(by_line, None).await.unwrap()).await;
        assert_without_output(&before, &shown, [Some(6), Some(0)]);

        // Reads by offset behave alike.
        let ask = |range| {
            let stream = 1;
            stage.supervisor.read_output(OutputCall {
                run,
                stream,
                range,
                plain: false,
            })
        };
        let from = |offset| OutputRange::From {
            offset,
            bytes_max: 100,
        };
        for (range, offset) in [
            (from(0), 0),
            (from(4), 4),
            (OutputRange::Ends { head: 1, tail: 1 }, 0),
        ] {
            let output = ask(range).await.unwrap();
            let gone = OutputPart::Missing {
                offset,
                bytes: 6 - offset,
                why: MissingBytes::Removed,
            };
            assert_eq!(output.parts, [gone]);
            assert_eq!((output.next_offset, output.end_offset), (6, 6));
            assert_eq!(output.removed, Some(removal));
            assert!(output.is_final);
        }
        assert!(ask(from(6)).await.unwrap().parts.is_empty());
        let ahead = ask(from(7)).await;
        assert!(matches!(ahead, Err(CallError::OffsetAhead { .. })));

        // The key stays taken.
        let again = stage.supervisor.spawn(call(Some(run))).await.unwrap();
        assert!(again.existing);
        assert_eq!(stage.kernel().executed.len(), 1);
        while dir(stage, run).exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(self::removal(stage, run).await, removal);
    });
}

#[test]
fn output_of_unknown_stream_is_an_error() {
    let lives = lives(KEEP_NONE);
    lives.live_long(async |stage| {
        let run = ran(stage, run_id(), "uid:0").await;
        for stream in [0, 3] {
            let unknown = OutputCall {
                run,
                stream,
                range: OutputRange::From {
                    offset: 0,
                    bytes_max: 100,
                },
                plain: false,
            };
            let refused = stage.supervisor.read_output(unknown).await;
            assert!(matches!(refused, Err(CallError::Internal(_))));
        }
    });
}

/// The row has a bound: its omitted entries are in a gap like output, and no seq is skipped.
#[test]
fn entries_beyond_bound_of_row_are_a_gap() {
    const PAUSES: usize = 600;
    let lives = lives(KEEP_NONE);
    lives.live_long(async |stage| {
        let run = spawned(stage, run_id(), "uid:0").await;
        for _ in 0..PAUSES {
            stage.supervisor.pause(run).await.unwrap();
            stage.supervisor.resume(run).await.unwrap();
        }
        stage.exits(run, 0);
        stage.supervisor.wait(run, Condition::Ended).await.unwrap();
        let before = read(stage, run, Position::Beginning).await;
        let is_pause = |event: &&Event| matches!(event.payload, Payload::Lifecycle(Entry::Paused));
        assert_eq!(before.iter().filter(is_pause).count(), PAUSES);
        tokio::time::sleep(LOOK).await;
        removal(stage, run).await;
        let after = read(stage, run, Position::Beginning).await;
        let listed = after.iter().filter(is_pause).count();
        assert!((PAUSES / 2..PAUSES).contains(&listed), "{listed}");
        let mut next = 1;
        let mut missing = 0;
        for event in &after {
            let first = match &event.payload {
                Payload::Gap(gap) => {
                    missing += gap.bytes[0].unwrap();
                    gap.first_seq
                }
                _ => event.seq,
            };
            assert_eq!(first, next);
            next = event.seq + 1;
        }
        assert_eq!((next, missing), (before.last().unwrap().seq + 1, 6));
        let longest = after.iter().filter_map(|event| match &event.payload {
            Payload::Gap(gap) => Some(gap.last_seq - gap.first_seq + 1),
            _ => None,
        });
        assert!(longest.max().unwrap() > 50, "the middle is left out");
    });
}

// promise: O-31a
#[test]
fn reader_midway_gets_gap_for_pruned_output() {
    for view in [false, true] {
        // On a busy machine the test clock may run ahead of the readers.
        let met = (0..10).any(|_| is_given_a_gap_for_the_rest(view));
        assert!(met, "no reader was in the middle");
    }
}

/// Whether the readers were in the middle when the output was removed; then their items are as required.
fn is_given_a_gap_for_the_rest(view: bool) -> bool {
    let lives = lives(KEEP_NONE);
    lives.live_long(async |stage| {
        let run = spawned(stage, run_id(), "uid:0").await;
        let (_, growing) = stage
            .supervisor
            .events(run, Position::Beginning)
            .await
            .unwrap();
        let mut readers = vec![growing];
        stage.exits(run, 0);
        stage.supervisor.wait(run, Condition::Ended).await.unwrap();
        let (seq, all) = loop {
            // The run's task closes the journal last; later readers use the directory.
            let (_, whole) = stage
                .supervisor
                .events(run, Position::Beginning)
                .await
                .unwrap();
            if readers.len() == 4 {
                break (whole.head(), drain(whole).await);
            }
            readers.push(whole);
        };
        let mut begun = Vec::new();
        for mut reader in readers {
            if view {
                let plain = Form {
                    plain: true,
                    lines: false,
                    ..Form::default()
                };
                reader = reader.viewed(plain, None).await.unwrap();
            }
            let first = reader.next(1).await.unwrap().unwrap();
            begun.push((first.last().unwrap().seq, output(&first), reader));
        }
        if begun.iter().any(|(at, ..)| *at == seq) {
            return false;
        }
        tokio::time::sleep(LOOK).await;
        assert!(!dir(stage, run).exists());
        for (at, came, reader) in begun {
            let rest = drain(reader).await;
            let left: Vec<Event> = all.iter().filter(|e| e.seq > at).cloned().collect();
            assert_without_output(&left, &rest, [Some(6 - came), Some(0)]);
        }
        true
    })
}

// promise: O-32
#[test]
fn output_is_not_removed_during_store_outage() {
    let lives = lives(KEEP_NONE);
    lives.live_long(async |stage| {
        // The clock runs ahead while a run is awaited: if its output is removed before the store fails, try another
        // run.
        let mut number = 0;
        let run = loop {
            number += 1;
            let run = ran(stage, RunId::from_u128(number), "uid:0").await;
            stage.world.store.set(Weather::Away);
            if stage.world.store.row(run).unwrap().output_removed.is_none() {
                break run;
            }
            stage.world.store.set(Weather::Fair);
        };
        for weather in [Weather::Away, Weather::ReadOnly, Weather::Superseded] {
            stage.world.store.set(weather);
            tokio::time::sleep(LOOK * 3).await;
            assert!(dir(stage, run).exists(), "{weather:?}");
            let row = stage.world.store.row(run).unwrap();
            assert_eq!(row.output_removed, None, "{weather:?}");
        }
        stage.world.store.set(Weather::Fair);
        while dir(stage, run).exists() {
            tokio::time::sleep(LOOK).await;
        }
        assert!(stage.world.store.row(run).unwrap().output_removed.is_some());
    });
}

// promise: O-32, O-32b
#[test]
fn marked_output_is_removed_by_next_server() {
    let lives = lives(RetentionLimits::NONE);
    let [marked, kept] = [1, 2].map(RunId::from_u128);
    lives.live_long(async |stage| {
        for run in [marked, kept] {
            ran(stage, run, "uid:0").await;
        }
    });
    let removal = OutputRemoval {
        at: Timestamp(5),
        reason: RemovalReason::Age,
        seq: 9,
        lens: [6, 0],
        counted: true,
    };
    let set = |removal| {
        let mut rows = lives.world.store.rows.lock().unwrap();
        rows.get_mut(&marked).unwrap().output_removed = removal;
    };
    set(Some(removal));
    // A directory of an unknown run, and another program's file.
    let runs = lives.data_dir.path().join("runs");
    let strange = runs.join(RunId::from_u128(77).to_string());
    fs::create_dir(&strange).unwrap();
    fs::write(strange.join("index"), "mine").unwrap();
    fs::write(runs.join("note"), "mine").unwrap();
    // Output that was moved aside, but not removed.
    let aside = runs.join("removed").join(RunId::from_u128(3).to_string());
    fs::create_dir_all(&aside).unwrap();
    fs::write(aside.join("stdout"), "x").unwrap();
    lives.live_long(async |stage| {
        tokio::time::sleep(LOOK).await;
        assert!(!dir(stage, marked).exists());
        assert!(!runs.join("removed").exists());
        assert!(strange.join("index").exists() && runs.join("note").exists());
        let events = read(stage, kept, Position::Beginning).await;
        assert_eq!(output(&events), 6);
    });
}

// promise: O-32
#[test]
fn undeletable_output_is_marked_and_deleted_later() {
    let lives = lives(KEEP_NONE);
    lives.live_long(async |stage| {
        let run = spawned(stage, run_id(), "uid:0").await;
        stage.exits(run, 0);
        while stage.world.store.row(run).unwrap().output_removed.is_none() {
            // A sweep before the run's end removes this obstacle.
            fs::write(stage.data_dir.path().join("runs/removed"), "in the way").unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(dir(stage, run).exists());
        let given = read(stage, run, Position::Beginning).await;
        assert!(given.iter().any(
            |e| matches!(&e.payload, Payload::Gap(gap) if gap.reason == GapReason::Retention)
        ));
        assert_eq!(output(&given), 0);
        // The next sweep removes the obstacle too.
        tokio::time::sleep(LOOK * 2).await;
        assert!(!dir(stage, run).exists());
    });
}

// promise: O-30a
#[test]
fn node_byte_limit_spares_live_runs() {
    let lives = lives(RetentionLimits {
        node_bytes: Some(1),
        ..RetentionLimits::NONE
    });
    lives.live_long(async |stage| {
        let live = spawned(stage, RunId::from_u128(1), "uid:0").await;
        let ended = ran(stage, RunId::from_u128(2), "uid:0").await;
        tokio::time::sleep(LOOK).await;
        assert_eq!(removal(stage, ended).await.reason, RemovalReason::NodeBytes);
        assert!(dir(stage, live).exists());
        let (view, _) = stage
            .supervisor
            .events(live, Position::Beginning)
            .await
            .unwrap();
        assert_eq!(view.output_removed, None);
        stage.exits(live, 0);
        stage.supervisor.wait(live, Condition::Ended).await.unwrap();
        tokio::time::sleep(LOOK * 2).await;
        assert_eq!(removal(stage, live).await.lens, [6, 0]);
    });
}

// promise: O-30
#[test]
fn output_of_all_attempts_is_removed_together() {
    let lives = lives(KEEP_NONE);
    lives.live_long(async |stage| {
        let mut call = call(Some(run_id()));
        call.spec.policy.restart = kennel_lifecycle::RestartPolicy {
            mode: kennel_lifecycle::RestartMode::Always,
            max_restarts: Some(1),
            ..kennel_lifecycle::RestartPolicy::default()
        };
        stage.supervisor.spawn(call).await.unwrap();
        stage.exits(run_id(), 0);
        while stage.supervisor.get(run_id()).await.unwrap().attempt == 1
            || !stage.is_alive(run_id())
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(LOOK).await;
        assert!(dir(stage, run_id()).exists(), "an attempt is no end");
        let first = read_now(stage, run_id()).await;
        stage.exits(run_id(), 0);
        stage
            .supervisor
            .wait(run_id(), Condition::Ended)
            .await
            .unwrap();
        tokio::time::sleep(LOOK * 2).await;
        let removal = removal(stage, run_id()).await;
        assert_eq!(removal.lens, [12, 0]);
        let given = read(stage, run_id(), Position::Beginning).await;
        assert_eq!(first.last().unwrap().attempt, 2);
        let until = given.partition_point(|event| event.seq <= first.last().unwrap().seq);
        assert_without_output(&first, &given[..until], [Some(12), Some(0)]);
        assert_eq!(given.last().unwrap().attempt, 2);
    });
}

// promise: O-32
#[test]
fn output_removals_are_restored_in_an_older_store() {
    let lives = lives(KEEP_NONE);
    lives.live_long(async |stage| {
        let run = ran(stage, run_id(), "uid:0").await;
        tokio::time::sleep(LOOK).await;
        let before = removal(stage, run).await;
        {
            let mut rows = stage.world.store.rows.lock().unwrap();
            rows.get_mut(&run).unwrap().output_removed = None;
        }
        stage.world.store.go_back(0);
        let marked = || stage.world.store.row(run).unwrap().output_removed;
        while marked().is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(marked(), Some(before));
    });
}

// promise: A-23, A-23b
#[test]
fn unreadable_files_count_until_run_is_removed() {
    let lives = lives(KEEP_NONE);
    let run = run_id();
    lives.live_long(async |stage| {
        ran(stage, run, "uid:0").await;
        add_unreadable_file(stage, run);
        assert_eq!(stage.supervisor.info().await.unreadable_files, 1);
        tokio::time::sleep(LOOK).await;
        removal(stage, run).await;
        assert_eq!(stage.supervisor.info().await.unreadable_files, 0);
    });
}

/// Adds a file of a run that no version reads.
pub(crate) fn add_unreadable_file(stage: &Stage, run: RunId) {
    let dir = stage.data_dir.path().join("unreadable");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(format!("{run}-exit-1")), b"of another form").unwrap();
}

fn lives(limits: RetentionLimits) -> Lives {
    let lives = Lives::of(Nature {
        output: b"before".to_vec(),
        ..Nature::default()
    });
    *lives.world.retention.lock().unwrap() = limits;
    lives
}

/// Returns a run that has written six bytes.
async fn spawned(stage: &Stage, run: RunId, owner: &str) -> RunId {
    let mut call = call(Some(run));
    call.owner = owner.into();
    stage.supervisor.spawn(call).await.unwrap();
    run
}

/// Returns one that has ended too.
async fn ran(stage: &Stage, run: RunId, owner: &str) -> RunId {
    spawned(stage, run, owner).await;
    stage.exits(run, 0);
    stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    run
}

fn dir(stage: &Stage, run: RunId) -> PathBuf {
    stage.data_dir.path().join("runs").join(run.to_string())
}

async fn removal(stage: &Stage, run: RunId) -> OutputRemoval {
    let view = stage.supervisor.get(run).await.unwrap();
    view.output_removed.expect("it is removed")
}

async fn read(stage: &Stage, run: RunId, from: Position) -> Vec<Event> {
    drain(stage.supervisor.events(run, from).await.unwrap().1).await
}

async fn drain(mut events: Events) -> Vec<Event> {
    let mut all = Vec::new();
    while let Some(more) = events.next(1 << 20).await.unwrap() {
        all.extend(more);
    }
    all
}

fn output(events: &[Event]) -> u64 {
    let bytes = events.iter().map(|event| match &event.payload {
        Payload::Output { data, .. } => data.len() as u64,
        _ => 0,
    });
    bytes.sum()
}

/// Returns the present events of a live run.
async fn read_now(stage: &Stage, run: RunId) -> Vec<Event> {
    let (_, events) = stage
        .supervisor
        .events(run, Position::Beginning)
        .await
        .unwrap();
    drain(events.until_head()).await
}

/// After the removal a reader gets the same except output, which gaps replace, so many bytes of each stream in total.
#[track_caller]
fn assert_without_output(before: &[Event], after: &[Event], bytes: [Option<u64>; 2]) {
    let is_output = |event: &&Event| {
        matches!(
            event.payload,
            Payload::Output { .. } | Payload::Line { .. } | Payload::Gap(_)
        )
    };
    let entries = |events: &[Event]| -> Vec<String> {
        let entries = events.iter().filter(|event| !is_output(event));
        let shown = entries.map(|e| format!("{} {} {:?}", e.seq, e.attempt, e.payload));
        shown.collect()
    };
    assert_eq!(entries(after), entries(before));
    let mut missing = [Some(0u64); 2];
    let mut next = before[0].seq;
    for event in after {
        if let Payload::Gap(gap) = &event.payload {
            assert_eq!((gap.first_seq, gap.reason), (next, GapReason::Retention));
            for (sum, bytes) in missing.iter_mut().zip(gap.bytes) {
                *sum = Some(sum.unwrap_or_default() + bytes.unwrap_or_default());
            }
            if gap.bytes.contains(&None) {
                missing = [None; 2];
            }
        }
        assert!(event.seq >= next, "{event:?}");
        next = event.seq + 1;
    }
    let last = before.last().unwrap().seq;
    assert_eq!(next, last + 1, "every seq is read or reported missing");
    assert_eq!(missing, bytes);
}
