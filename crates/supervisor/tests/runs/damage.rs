//! Journals of ended runs whose index was removed or cut: every reader learns how much is lost, for the row has the
//! lengths.

use crate::world::{Lives, Nature, Stage, call, run_id};
use kennel_lifecycle::{LinePattern, StreamsEnd};
use kennel_supervisor::{
    Amount, Condition, Event, Form, GapReason, LineMatcher, MissingBytes, OutputCall, OutputPart,
    OutputRange, OutputWait, Payload, Position, Reached, Tail,
};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, thread, time::Duration};

/// Lines of the output, and their length.
const LINES: usize = 11;
const LINE_BYTES: usize = 102;
const BYTES: u64 = (LINES * LINE_BYTES) as u64;
/// Longer than what remains to be done after the end.
const TIDIED: Duration = Duration::from_secs(20);

// promise: O-40b
#[test]
fn damaged_index_reports_missing_bytes() {
    let output = format!("{}\n", "x".repeat(LINE_BYTES - 1)).repeat(LINES);
    let lives = Lives::of(Nature {
        output: output.into_bytes(),
        ..Nature::default()
    });
    lives.live_long(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        stage.exits(run_id(), 0);
        let ended = stage.supervisor.wait(run_id(), Condition::Ended).await;
        assert!(ended.unwrap().reached);
        tokio::time::sleep(TIDIED).await;
        let runs = stage.data_dir.path().join("runs");
        let index = runs.join(run_id().to_string()).join("index");
        let whole = fs::read(&index).unwrap();
        let events = read(stage, Position::Beginning, None).await;
        let last = events.last().unwrap().seq;
        for cut in (0..whole.len()).step_by(18) {
            fs::write(&index, &whole[..cut]).unwrap();
            Box::pin(assert_all_is_accounted_for(
                stage,
                &format!("cut at {cut}"),
                last,
            ))
            .await;
        }
        fs::remove_file(&index).unwrap();
        Box::pin(assert_all_is_accounted_for(stage, "removed", last)).await;
        restore(&index, &whole);
        let whole = output_from(stage, OutputRange::Ends { head: 1, tail: 1 }).await;
        assert_eq!(whole, (2, 0, BYTES - 2));
    });
}

/// The command of an ordinary user may close the directory of its run, which is the user's.
// promise: O-32c
#[test]
fn inaccessible_run_directory_loses_no_output() {
    let work = || {
        // `setfsuid` acts on this thread and those it creates: root would bypass the mode.
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
        let lives = Lives::of(Nature::default());
        let runs = lives.data_dir.path().join("runs");
        let dir = runs.join(run_id().to_string());
        let close = || fs::set_permissions(&dir, fs::Permissions::from_mode(0o000)).unwrap();
        lives.live(async |stage| {
            stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
            close();
            stage.writes(run_id(), b"first ");
            while fs::read(dir.join("stdout")).unwrap_or_default() != b"first " {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            close();
        });
        lives.live(async |stage| {
            stage.writes(run_id(), b"second");
            close();
            stage.exits(run_id(), 0);
            let ended = stage.supervisor.wait(run_id(), Condition::Ended).await;
            let outcome = ended.unwrap().run.row.outcome.unwrap();
            assert_eq!(outcome.streams, Some(StreamsEnd::Eof));
            let events = read(stage, Position::Beginning, None).await;
            assert_eq!(bytes(&events), (12, 0));
        });
    };
    thread::spawn(work).join().unwrap();
}

fn restore(index: &Path, whole: &[u8]) {
    fs::write(index, whole).unwrap();
}

async fn assert_all_is_accounted_for(stage: &Stage, damage: &str, last: u64) {
    for offset in [0, 500, BYTES] {
        let range = OutputRange::From {
            offset,
            bytes_max: u64::MAX,
        };
        let (came, damaged, left_out) = output_from(stage, range).await;
        let sum = (came + damaged, left_out);
        assert_eq!(sum, (BYTES - offset, 0), "{damage}: output from {offset}");
    }
    let range = OutputRange::Ends { head: 7, tail: 9 };
    let (came, damaged, left_out) = output_from(stage, range).await;
    assert_eq!((came + damaged, left_out), (16, BYTES - 16), "{damage}");
    let by_line = Form {
        plain: true,
        lines: true,
        ..Form::default()
    };
    for form in [None, Some(by_line)] {
        let events = read(stage, Position::Beginning, form).await;
        let (came, missing) = bytes(&events);
        let line_ends = form.map_or(0, |_| came / (LINE_BYTES as u64 - 1));
        assert_eq!(came + line_ends + missing, BYTES, "{damage}: {form:?}");
        assert!(events.last().unwrap().seq >= last, "{damage}");
        for amount in [Amount::Bytes(100), Amount::Lines(1)] {
            let streams = [true; 2];
            let tail = Position::Tail(Tail { amount, streams });
            let events = read(stage, tail, form).await;
            let (came, missing) = bytes(&events);
            assert!(
                came + missing >= 99,
                "{damage}: {form:?} {amount:?} {events:?}"
            );
        }
    }
    for seq in 0..=last {
        let at = Reached {
            seq,
            ..Reached::default()
        };
        let (_, missing) = bytes(&read(stage, Position::After(at), None).await);
        assert!(missing <= BYTES, "{damage}: after {seq}");
    }
    let pattern = LinePattern::Literal("none".into());
    let compile = move |memory: &mut _| LineMatcher::new(&pattern, memory);
    let compiled = stage.supervisor.owner_turn(&"uid:0".into(), compile).await;
    let waited = stage.supervisor.wait_output(
        OutputWait {
            run: run_id(),
            matcher: compiled.unwrap().unwrap(),
            streams: [true; 2],
            after_seq: 0,
            line_bytes_max: 1 << 16,
        },
        "uid:0".into(),
    );
    let (_, missing) = bytes(&read(stage, Position::Beginning, None).await);
    let is_incomplete = waited.await.unwrap().is_incomplete;
    assert_eq!(is_incomplete, missing > 0, "{damage}");
}

/// Returns the bytes that came, those that are damaged, and those that were not asked for.
async fn output_from(stage: &Stage, range: OutputRange) -> (u64, u64, u64) {
    let read = stage.supervisor.read_output(OutputCall {
        run: run_id(),
        stream: 1,
        range,
        plain: false,
    });
    let read = read.await.unwrap();
    assert_eq!((read.end_offset, read.next_offset), (BYTES, BYTES));
    assert!(read.is_final);
    let mut sums = (0, 0, 0);
    for part in read.parts {
        match part {
            OutputPart::Bytes { data, .. } => sums.0 += data.len() as u64,
            OutputPart::Missing { bytes, why, .. } => match why {
                MissingBytes::Damaged => sums.1 += bytes,
                MissingBytes::NotAsked => sums.2 += bytes,
                MissingBytes::Removed => panic!("nothing was removed"),
            },
        }
    }
    sums
}

async fn read(stage: &Stage, from: Position, form: Option<Form>) -> Vec<Event> {
    let (_, mut events) = stage.supervisor.events(run_id(), from).await.unwrap();
    if let Some(form) = form {
        events = events.viewed(form, None).await.unwrap();
    }
    let mut all = Vec::new();
    while let Some(more) = events.next(1 << 20).await.unwrap() {
        all.extend(more);
    }
    all
}

/// Returns the bytes of standard output that came, and those that are missing.
fn bytes(events: &[Event]) -> (u64, u64) {
    let mut sums = (0, 0);
    for event in events {
        match &event.payload {
            Payload::Output { data, .. } => sums.0 += data.len() as u64,
            Payload::Line { text, .. } => sums.0 += text.len() as u64,
            Payload::Gap(gap) => {
                assert_eq!(gap.reason, GapReason::Damaged);
                sums.1 += gap.bytes[0].unwrap_or_default();
            }
            Payload::Lifecycle(_) => {}
        }
    }
    sums
}
