//! Facets by the entries of a run.

use kennel_lifecycle::{
    Activity, AnnotationChange, AnnotationRefusal, Annotations, AnsweredBy, AnsweringWrite, Asked,
    AskedLine, Entry, Facets, RuleAction, RuleMatch, RuleOff, StatusText, Timestamp,
};
use std::{collections::BTreeMap, time::Duration};

fn set(key: &str, value: &str, expected_version: Option<u64>) -> AnnotationChange {
    AnnotationChange {
        set: [(key.to_owned(), value.to_owned())].into(),
        expected_version,
        ..AnnotationChange::default()
    }
}

fn entry(annotations: &Annotations, change: AnnotationChange) -> Entry {
    let entry = annotations.change(change, "uid:0").expect("it may be made");
    entry.expect("it changes something")
}

// promise: RW-3
#[test]
fn facets_are_rebuilt_from_journal_entries() {
    let mut facets = Facets::default();
    let mut entries = Vec::new();
    for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
        let entry = entry(&facets.annotations, set(key, value, None));
        assert!(facets.fold(Timestamp(1), &entry));
        // The keeper and the journal may both report the entry.
        assert!(!facets.fold(Timestamp(1), &entry));
        entries.push(entry);
    }
    let again = Facets::of(entries.iter().map(|entry| (Timestamp(1), 1, entry)));
    assert_eq!(again, facets);
    assert_eq!((facets.revision, facets.annotations.version), (3, 3));
    let older = Facets::of(entries[..1].iter().map(|entry| (Timestamp(1), 1, entry)));
    assert_eq!(older.clone().newest(facets.clone()), facets);
    assert_eq!(facets.clone().newest(older), facets);
}

// promise: RW-2
#[test]
fn repeated_annotation_change_is_applied_once() {
    let mut facets = Facets::default();
    let change = set("a", "1", Some(0));
    let first = entry(&facets.annotations, change.clone());
    facets.fold(Timestamp(1), &first);
    assert_eq!(facets.annotations.change(change.clone(), "uid:0"), Ok(None));
    // After another change, the first change is not a repeat.
    let second = entry(&facets.annotations, set("b", "2", Some(1)));
    facets.fold(Timestamp(2), &second);
    let refused = facets.annotations.change(change, "uid:0");
    let version = AnnotationRefusal::Version {
        expected: 0,
        present: 2,
    };
    assert_eq!(refused, Err(version));
}

fn matched(seq: u64, stream: u8, offset: u64, action: RuleAction) -> Entry {
    Entry::OutputMatched {
        attempt: 2,
        seq,
        stream,
        offset,
        rules: vec![RuleMatch {
            rule: "r".into(),
            groups: BTreeMap::default(),
            action,
        }],
    }
}

// promise: RW-11
#[test]
fn output_line_matches_once_by_offset() {
    let mut facets = Facets::default();
    assert!(facets.fold(Timestamp(1), &matched(7, 1, 100, RuleAction::Event)));
    assert!(!facets.fold(Timestamp(2), &matched(7, 1, 100, RuleAction::Event)));
    assert!(!facets.fold(Timestamp(2), &matched(6, 1, 50, RuleAction::Event)));
    // The other stream has its own offsets.
    assert!(facets.fold(Timestamp(3), &matched(8, 2, 5, RuleAction::Event)));
    let mark = facets.matched;
    assert_eq!(
        (mark.seq, mark.offsets, mark.events),
        (8, [Some(100), Some(5)], 2)
    );
    assert!(facets.has_matched(2, 5) && !facets.has_matched(2, 6));
}

// promise: RW-13
#[test]
fn first_result_of_an_attempt_is_used() {
    let result = |seconds| RuleAction::Result {
        after: Duration::from_secs(seconds),
        grace: Duration::ZERO,
    };
    let mut facets = Facets::default();
    facets.fold(Timestamp(5), &matched(1, 1, 0, result(30)));
    facets.fold(Timestamp(6), &matched(2, 1, 9, result(1)));
    let due = facets.result_of(2).map(|due| due.due);
    assert_eq!(due, Some(Timestamp(5).plus(Duration::from_secs(30))));
    assert_eq!(facets.result_of(3), None);
}

// promise: RW-10
#[test]
fn readiness_and_activity_belong_to_one_attempt() {
    let by = || "r".to_owned();
    let mut facets = Facets::default();
    let ready = |attempt| Entry::Ready { attempt, by: by() };
    assert!(facets.fold(Timestamp(1), &ready(2)));
    assert!(!facets.fold(Timestamp(2), &ready(2)), "once ready");
    assert!(facets.is_ready(2) && !facets.is_ready(3));
    let doing = |attempt, activity| Entry::ActivityChanged {
        attempt,
        activity,
        by: by(),
        question: None,
    };
    assert!(facets.fold(Timestamp(3), &doing(2, Activity::Idle)));
    assert!(!facets.fold(Timestamp(4), &doing(2, Activity::Idle)));
    assert_eq!(
        (facets.activity_of(2), facets.activity_of(3)),
        (Some(Activity::Idle), None)
    );
    let says = |attempt, stopping| Entry::StatusChanged {
        attempt,
        status: StatusText {
            text: "serving".into(),
            stopping,
        },
    };
    assert!(facets.fold(Timestamp(5), &says(2, false)));
    assert!(!facets.fold(Timestamp(6), &says(2, false)));
    assert!(facets.fold(Timestamp(7), &says(2, true)));
    assert!(facets.status_of(2).is_some_and(|said| said.stopping));
    assert_eq!(facets.status_of(3), None);
}

#[test]
fn rule_is_switched_off_once() {
    let off = |reason| Entry::RuleSwitchedOff {
        rule: "slow".into(),
        reason,
    };
    let mut facets = Facets::default();
    assert!(facets.fold(Timestamp(1), &off(RuleOff::GaveUp)));
    assert!(!facets.fold(Timestamp(2), &off(RuleOff::TestTime)));
    let known = facets.switched_off["slow"];
    assert_eq!((known.at, known.reason), (Timestamp(1), RuleOff::GaveUp));
}

// promise: AS-2
#[test]
fn answer_closes_its_question_and_keeps_others() {
    let mut facets = Facets::default();
    let ask = |number: u64, line: Option<AskedLine>| Entry::ActivityChanged {
        attempt: 1,
        activity: Activity::AwaitingInput,
        by: "asks".to_owned(),
        question: Some(Box::new(Asked {
            number,
            accepted: Some(4),
            line,
            ..Asked::default()
        })),
    };
    let (stream, offset, len) = (2, 7, 3);
    let line = Some(AskedLine {
        stream,
        offset,
        len,
    });
    for (number, line) in [(1, line), (2, None)] {
        assert!(facets.fold(Timestamp(1), &ask(number, line)));
        assert!(!facets.fold(Timestamp(9), &ask(number, line)), "once");
    }
    for (offset, len, was_asked) in [(6, 9, true), (7, 3, true), (7, 4, false), (8, 0, false)] {
        let line = AskedLine {
            stream,
            offset,
            len,
        };
        assert_eq!(facets.matched.has_asked(line), was_asked, "{line:?}");
    }
    let answered = |questions: &[u64]| Entry::Answered {
        attempt: 1,
        questions: questions.to_vec(),
        how: AnsweredBy::Answer,
        by: "uid:7".to_owned(),
        write: Some(AnsweringWrite {
            id: "aone".to_owned(),
            start: 4,
            end: 6,
        }),
    };
    assert!(facets.fold(Timestamp(3), &answered(&[1])));
    let open: Vec<_> = facets.questions.of(1).collect();
    assert_eq!((open[0].asked.number, open[0].asked.accepted), (2, Some(6)));
    assert_eq!(
        facets.questions.answer_to(1).map(|answered| &*answered.by),
        Some("uid:7")
    );
    assert_eq!(facets.activity_of(1), Some(Activity::AwaitingInput));
    assert!(facets.fold(Timestamp(4), &answered(&[2])));
    assert_eq!(facets.activity_of(1), Some(Activity::Working));
    assert_eq!(facets.questions.of(2).count(), 0);
}

// promise: AS-1
#[test]
fn oldest_questions_beyond_the_limit_are_dropped() {
    let mut facets = Facets::default();
    for number in 1..=20 {
        let text = "x".repeat(if number > 18 { 4096 } else { 1 });
        facets.fold(
            Timestamp(1),
            &Entry::ActivityChanged {
                attempt: 1,
                activity: Activity::AwaitingInput,
                by: "asks".to_owned(),
                question: Some(Box::new(Asked {
                    number,
                    text,
                    ..Asked::default()
                })),
            },
        );
    }
    let open = facets.questions.of(1).map(|open| open.asked.number);
    assert_eq!(open.collect::<Vec<_>>(), (5..=20).collect::<Vec<_>>());
}

// promise: AS-1
#[test]
fn repeated_report_asks_no_new_question() {
    let mut facets = Facets::default();
    let asks = |facets: &Facets, text: &str| {
        facets
            .asks_now(1, Activity::AwaitingInput, text.to_owned())
            .map(|asked| asked.text)
    };
    assert_eq!(asks(&facets, "").as_deref(), Some(""), "it begins to wait");
    for text in ["one", "two"] {
        assert_eq!(asks(&facets, text).as_deref(), Some(text));
        let number = facets.questions.count + 1;
        let question = Some(Box::new(Asked {
            number,
            text: text.to_owned(),
            ..Asked::default()
        }));
        let entry = Entry::ActivityChanged {
            attempt: 1,
            activity: Activity::AwaitingInput,
            by: "notify".to_owned(),
            question,
        };
        facets.fold(Timestamp(1), &entry);
        for repeat in [text, ""] {
            assert_eq!(asks(&facets, repeat), None, "{repeat:?} after {text:?}");
        }
    }
    assert_eq!(facets.asks_now(1, Activity::Idle, String::new()), None);
}
