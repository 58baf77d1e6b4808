//! The form of an entry on disk, and the fold over entries.

use crate::samples::{
    GRACE, MEMORY_KILLS, USAGE, abort, assert_golden, left, recorded, step, stuck,
};
use kennel_lifecycle::{
    Activity, AnsweredBy, AnsweringWrite, Asked, AskedLine, AttemptRecord, Deadline, EndReason,
    Entry, Exit, Facets, LastPause, Outcome, Proof, ResumeReason, RuleAction, RuleMatch, RuleOff,
    Signal, StatusText, StopCertificate, StopCommand, StopCommandEnd, StopInput, StreamsEnd,
    TerminalSize, Timestamp, TreeVerdict,
};
use std::{fmt::Write as _, time::Duration};

fn outcome() -> Outcome {
    Outcome {
        reason: EndReason::Exited,
        exit: Some(Exit::Code(3)),
        tree: TreeVerdict::Empty(Proof::Echild),
        streams: Some(StreamsEnd::Eof),
        certificate: StopCertificate {
            steps: vec![step(7, Signal::TERM)],
            leftovers: left(),
            census: Some(Timestamp(8)),
            steps_unlisted: 0,
            inputs: vec![StopInput {
                at: Timestamp(6),
                bytes: Some(2),
                written: 1,
            }],
            commands: vec![StopCommand {
                at: Timestamp(6),
                name: "save".into(),
                end: StopCommandEnd::Exited(Exit::Code(1)),
            }],
            usage: Some(Box::new(USAGE)),
        },
    }
}

/// One of each kind. A new kind does not compile without a place here.
fn of_facets() -> Vec<Entry> {
    vec![
        Entry::Annotated {
            version: 3,
            set: [("session".into(), "s-1".into())].into(),
            removed: ["url".into()].into(),
            by: "uid:0".into(),
        },
        Entry::Ready {
            attempt: 2,
            by: "tcp".into(),
        },
        Entry::ActivityChanged {
            attempt: 2,
            activity: Activity::AwaitingInput,
            by: "prompt".into(),
            question: Some(Box::new(Asked {
                number: 3,
                text: "Go on?".into(),
                is_cut: false,
                captures: [("tool".to_owned(), "rm".to_owned())].into(),
                line: Some(AskedLine {
                    stream: 2,
                    offset: 40,
                    len: 7,
                }),
                accepted: Some(5),
                echo_off: true,
            })),
        },
        Entry::StatusChanged {
            attempt: 2,
            status: StatusText {
                text: "serving 3".into(),
                stopping: true,
            },
        },
        Entry::Extended {
            attempt: 2,
            limit: Deadline::MaxRuntime,
            total: Duration::from_mins(1),
            end: Duration::from_secs(90),
            by: "uid:0".into(),
        },
        Entry::NoticeRefused {
            pid: 9,
            uid: 1000,
            ended: true,
        },
        Entry::OutputMatched {
            attempt: 2,
            seq: 7,
            stream: 1,
            offset: 100,
            rules: vec![RuleMatch {
                rule: "done".into(),
                groups: [("id".into(), "s-1".into())].into(),
                action: RuleAction::Result {
                    after: Duration::from_secs(30),
                    grace: GRACE,
                },
            }],
        },
    ]
}

fn one_of_each() -> Vec<Entry> {
    let mut all = vec![
        recorded(),
        Entry::Started,
        Entry::Paused,
        Entry::Resumed {
            reason: ResumeReason::MaxPause,
        },
        Entry::Stopping {
            order: abort(GRACE),
            deadline: Timestamp(5),
        },
        Entry::TerminalResized(TerminalSize { rows: 24, cols: 80 }),
        Entry::SignalSent {
            signal: Signal::KILL,
            targets: Some(2),
            errno: None,
        },
        Entry::StopStep(step(7, Signal::TERM)),
        Entry::LeaderExited(Exit::Code(3)),
        Entry::StreamsClosed(StreamsEnd::Eof),
        Entry::Stuck(stuck()),
        Entry::TreeEnded(TreeVerdict::Kept(left())),
        Entry::MemoryKills(MEMORY_KILLS),
        Entry::ProcessSpared {
            pid: 9,
            start_ticks: 10,
        },
    ];
    all.extend(of_facets());
    all.extend([
        Entry::RuleSwitchedOff {
            rule: "done".into(),
            reason: RuleOff::TestTime,
        },
        Entry::Answered {
            attempt: 2,
            questions: vec![1, 3],
            how: AnsweredBy::Answer,
            by: "uid:7".into(),
            write: Some(AnsweringWrite {
                id: "aone".into(),
                start: 5,
                end: 7,
            }),
        },
        Entry::EventsSummed { events: 7 },
        Entry::Warning {
            message: "output blocked".into(),
        },
        Entry::AttemptEnded {
            outcome: Box::new(outcome()),
            restarts: 2,
            next: Timestamp(9),
        },
        Entry::Ended(Box::new(outcome())),
    ]);
    for entry in &all {
        match entry {
            Entry::Recorded { .. }
            | Entry::Started
            | Entry::Paused
            | Entry::Resumed { .. }
            | Entry::Stopping { .. }
            | Entry::TerminalResized(_)
            | Entry::SignalSent { .. }
            | Entry::StopStep(_)
            | Entry::LeaderExited(_)
            | Entry::StreamsClosed(_)
            | Entry::Stuck(_)
            | Entry::TreeEnded(_)
            | Entry::MemoryKills(_)
            | Entry::ProcessSpared { .. }
            | Entry::Annotated { .. }
            | Entry::Ready { .. }
            | Entry::ActivityChanged { .. }
            | Entry::StatusChanged { .. }
            | Entry::Extended { .. }
            | Entry::NoticeRefused { .. }
            | Entry::OutputMatched { .. }
            | Entry::RuleSwitchedOff { .. }
            | Entry::Answered { .. }
            | Entry::EventsSummed { .. }
            | Entry::Warning { .. }
            | Entry::AttemptEnded { .. }
            | Entry::Ended(_)
            | Entry::Later(_) => {}
        }
    }
    all
}

#[test]
fn journal_entry_formats_match_lock_file() {
    let mut text = String::new();
    for entry in one_of_each() {
        let json = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&json).unwrap(), entry);
        writeln!(text, "{json}").unwrap();
    }
    assert_golden("entries.lock", &text);
}

// promise: A-22
#[test]
fn journal_entry_decoding_survives_corrupt_bytes() {
    for entry in one_of_each() {
        let json = serde_json::to_vec(&entry).unwrap();
        kennel_mutations::each(&json, |wrong| {
            let Ok(read) = serde_json::from_slice::<Entry>(wrong) else {
                return;
            };
            let again = serde_json::to_vec(&read).unwrap();
            assert_eq!(serde_json::from_slice::<Entry>(&again).unwrap(), read);
            AttemptRecord::default().fold(Timestamp(7), &read);
            Facets::default().fold(Timestamp(7), &read);
        });
    }
}

// promise: A-22e
#[test]
fn entry_of_later_version_is_kept() {
    for (text, kind, is_critical) in [
        (r#""of_tomorrow""#, "of_tomorrow", false),
        (
            r#"{"of_tomorrow":{"b":[1, 2],"a":"\u00e4"}}"#,
            "of_tomorrow",
            false,
        ),
        (r#"{"of_tomorrow":{},"critical":true}"#, "of_tomorrow", true),
        (r#"{"resumed":{"reason":"of_tomorrow"}}"#, "resumed", true),
        (r#"{"leader_exited":{"code":"x"}}"#, "leader_exited", true),
    ] {
        let read: Entry = serde_json::from_str(text).unwrap();
        let Entry::Later(later) = &read else {
            panic!("{read:?}");
        };
        assert_eq!((&*later.kind, later.is_critical), (kind, is_critical));
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        let entries = [(Timestamp(1), 1, &Entry::Started), (Timestamp(2), 1, &read)];
        let record = AttemptRecord::of(entries, 2);
        let critical = is_critical.then(|| kind.to_owned());
        let folded = AttemptRecord {
            critical,
            ..AttemptRecord::default()
        };
        assert_eq!(record, folded);
    }
    for text in ["7", "{}", "[1]", "null", r#"{"started":"#] {
        serde_json::from_str::<Entry>(text).unwrap_err();
    }
}

#[test]
fn every_journal_entry_changes_record_or_facets() {
    for entry in one_of_each() {
        let mut record = AttemptRecord::default();
        record.fold(Timestamp(1), &entry);
        if Facets::default().fold(Timestamp(1), &entry) {
            assert_eq!(record, AttemptRecord::default(), "one home: {entry:?}");
            continue;
        }
        let says_nothing = matches!(entry, Entry::Warning { .. } | Entry::EventsSummed { .. });
        let same = record == AttemptRecord::default();
        assert_eq!(same, says_nothing, "{entry:?}");
    }
}

#[test]
fn paused_time_is_summed_over_pauses() {
    let resumed = Entry::Resumed {
        reason: ResumeReason::Asked,
    };
    let mut record = AttemptRecord::default();
    for (at, entry) in [
        (0, &Entry::Started),
        (1, &Entry::Paused),
        (4, &resumed),
        (10, &Entry::Paused),
        (15, &resumed),
        (20, &Entry::Paused),
    ] {
        record.fold(Timestamp(at), entry);
    }
    let ran = record.run_time(Timestamp(30), &|from, to: Timestamp| to.since(from));
    assert_eq!(ran, Some(Duration::from_micros(12)));
    assert_eq!(record.paused_since, Some(Timestamp(20)));
    assert_eq!((record.pauses, record.pause), (2, LastPause::Paused));
}

/// The clock is set forward by an hour in the pause; later pauses than the known ones are measured by it.
// promise: R-14c
#[test]
fn paused_time_excludes_clock_changes() {
    let resumed = Entry::Resumed {
        reason: ResumeReason::Asked,
    };
    let mut record = AttemptRecord::default();
    record.fold(Timestamp(0), &Entry::Started);
    record.fold(Timestamp(5), &Entry::Paused);
    record.fold(Timestamp(3_607), &resumed);
    let real = |at: Timestamp| Timestamp(if at.0 >= 3_600 { at.0 - 3_600 } else { at.0 });
    let between = |from, to| real(to).since(real(from));
    let ran = |at| record.run_time(Timestamp(at), &between);
    assert_eq!(ran(3_610), Some(Duration::from_micros(8)));
    let mut paused = record.clone();
    paused.fold(Timestamp(3_608), &Entry::Paused);
    // A clock set back during the pause changes nothing.
    for at in [3_650, 20] {
        let ran = paused.run_time(Timestamp(at), &between);
        assert_eq!(ran, Some(Duration::from_micros(6)), "{at}");
    }
    for at in 1..100 {
        record.fold(Timestamp(4_000 + 2 * at), &Entry::Paused);
        record.fold(Timestamp(4_001 + 2 * at), &resumed);
    }
    assert!(record.recent_pauses.len() < 99);
    let paused = Duration::from_micros(3_602 + 99);
    let ran = record.run_time(Timestamp(9_001), &|from, to: Timestamp| to.since(from));
    assert_eq!(
        ran,
        Some(Duration::from_micros(9_001).saturating_sub(paused))
    );
}

#[test]
fn entries_of_other_attempts_are_ignored() {
    let entries = [
        (Timestamp(1), 1, Entry::Started),
        (Timestamp(2), 1, Entry::LeaderExited(Exit::Code(1))),
        (Timestamp(3), 2, Entry::Started),
        (Timestamp(4), 1, Entry::Ended(Box::new(outcome()))),
    ];
    let record = AttemptRecord::of(entries.iter().map(|(at, of, entry)| (*at, *of, entry)), 2);
    assert_eq!(record.times.started, Some(Timestamp(3)));
    assert_eq!((record.leader, record.ended), (None, true));
}
