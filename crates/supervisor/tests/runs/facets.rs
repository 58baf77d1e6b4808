//! Annotations: durable before the answer, over deaths of servers, an unavailable store, and a store that comes back
//! without them.

use crate::{
    abort, event_names,
    world::{Lives, Nature, Stage, Weather, call, run_id},
};
use kennel_lifecycle::{AnnotationChange, Entry, Facets, RestartMode, RestartPolicy, RunState};
use kennel_supervisor::{AnnotateCall, CallError, Payload, Position, RunView};
use std::time::Duration;

fn set(key: &str, expected_version: Option<u64>) -> AnnotateCall {
    AnnotateCall {
        run: run_id(),
        change: AnnotationChange {
            set: [(key.to_owned(), "1".to_owned())].into(),
            expected_version,
            ..AnnotationChange::default()
        },
        activity: None,
        question: String::new(),
        by: "uid:0".into(),
    }
}

/// Waits until the row of the store has these keys.
async fn row_has(stage: &Stage, keys: &[&str]) {
    let keys_of_row = || {
        let row = stage.world.store.row(run_id())?;
        let pairs = row.facets.annotations.pairs.into_keys();
        Some(pairs.collect::<Vec<String>>())
    };
    while keys_of_row().is_none_or(|found| found != keys) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// promise: RW-3
#[test]
fn annotations_survive_deaths_and_a_store_outage() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    for (version, key) in ["a", "b", "c"].into_iter().enumerate() {
        let version = version as u64;
        lives.live(async |stage| {
            let annotated = stage.supervisor.annotate(set(key, Some(version))).await;
            assert_eq!(annotated.unwrap().facets.annotations.version, version + 1);
            let late = stage.supervisor.annotate(set("late", Some(version))).await;
            assert!(
                matches!(late, Err(CallError::AnnotationsChanged { .. })),
                "{late:?}"
            );
            // The last change is made without a store.
            stage.world.store.set(if version == 1 {
                Weather::Away
            } else {
                Weather::Fair
            });
        });
    }
    lives.live(async |stage| {
        row_has(stage, &["a", "b", "c"]).await;
        stage.supervisor.abort(abort(run_id())).await.unwrap();
        let names = event_names(stage, run_id()).await;
        let changes = names.iter().filter(|name| *name == "annotated");
        assert_eq!(changes.count(), 3, "{names:?}");
    });
}

/// Lets a run of this bound be annotated, and be restarted under a new server each time. Returns the names of its
/// events, and the number of those that were only counted.
fn events_of_lives(max_bytes: u64) -> (Vec<String>, u64) {
    const CHANGES: u64 = 300;
    const ATTEMPTS: u32 = 4;
    let value = |number: u64| {
        let mut call = set("key", None);
        let text = format!("{number:016}").repeat(256);
        call.change.set = [("key".to_owned(), text)].into();
        call
    };
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        let mut begun = call(Some(run_id()));
        begun.spec.policy.output.max_bytes = max_bytes;
        begun.spec.policy.restart = RestartPolicy {
            mode: RestartMode::Always,
            delay: Duration::from_millis(1),
            max_delay: Duration::from_millis(1),
            ..RestartPolicy::default()
        };
        stage.supervisor.spawn(begun).await.unwrap();
        for number in 0..CHANGES {
            stage.supervisor.annotate(value(number)).await.unwrap();
        }
    });
    for attempt in 2..=ATTEMPTS {
        lives.live(async |stage| {
            stage.exits(run_id(), 1);
            let runs = |view: RunView| (view.attempt, view.state) == (attempt, RunState::Running);
            while !runs(stage.supervisor.get(run_id()).await.unwrap()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let changed = stage.supervisor.annotate(value(attempt.into())).await;
            let version = changed.unwrap().facets.annotations.version;
            assert_eq!(version, CHANGES + u64::from(attempt) - 1);
        });
    }
    lives.live(async |stage| {
        if max_bytes == MAX_BYTES {
            let paused = stage.supervisor.pause(run_id()).await;
            let Err(CallError::QuotaExceeded { limit, .. }) = paused else {
                panic!("{paused:?}");
            };
            assert_eq!(limit, MAX_BYTES);
        }
        stage.supervisor.abort(abort(run_id())).await.unwrap();
        let beginning = Position::Beginning;
        let (_, mut events) = stage.supervisor.events(run_id(), beginning).await.unwrap();
        let mut counted = 0;
        while let Some(batch) = events.next(1 << 20).await.unwrap() {
            for event in batch {
                if let Payload::Lifecycle(Entry::EventsSummed { events }) = event.payload {
                    counted += events;
                }
            }
        }
        (event_names(stage, run_id()).await, counted)
    })
}

const MAX_BYTES: u64 = 1 << 20;

// promise: I-134, I-134a
#[test]
fn events_beyond_bound_are_counted_across_deaths() {
    let (all, none) = events_of_lives(MAX_BYTES * 4);
    assert_eq!(none, 0);
    let (stored, counted) = events_of_lives(MAX_BYTES);
    let tail: Vec<&str> = stored.iter().map(String::as_str).rev().take(3).collect();
    assert_eq!(tail, ["ended", "events_summed", "warning"]);
    assert!(counted > 30, "{counted}");
    assert_eq!(stored.len() as u64 - 2 + counted, all.len() as u64);
}

/// The copy lacks the annotations of the run, or its whole row.
// promise: RW-3
#[test]
fn annotations_lost_by_the_store_are_restored() {
    for is_row_lost in [false, true] {
        let lives = Lives::of(Nature::default());
        lives.begin();
        lives.live_long(async |stage| {
            stage.supervisor.annotate(set("a", None)).await.unwrap();
            row_has(stage, &["a"]).await;
            {
                let mut rows = stage.world.store.rows.lock().unwrap();
                if is_row_lost {
                    rows.clear();
                } else {
                    rows.get_mut(&run_id()).unwrap().facets = Facets::default();
                }
            }
            stage.world.store.go_back(0);
            stage.supervisor.annotate(set("b", None)).await.unwrap();
            row_has(stage, &["a", "b"]).await;
        });
    }
}
