//! Annotations: durable before the answer, over deaths of servers, an unavailable store, and a store that comes back
//! without them.

use crate::{
    abort, event_names,
    world::{Lives, Nature, Stage, Weather, call, run_id},
};
use kennel_lifecycle::{AnnotationChange, Facets, limits};
use kennel_supervisor::{AnnotateCall, CallError};
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

#[test]
fn events_of_a_run_are_bounded() {
    const MAX_BYTES: u64 = 1 << 20;
    let lives = Lives::of(Nature::default());
    lives.live_long(async |stage| {
        let mut begun = call(Some(run_id()));
        begun.spec.policy.output.max_bytes = MAX_BYTES;
        stage.supervisor.spawn(begun).await.unwrap();
        let value = |number: u64| {
            let mut call = set("key", None);
            let text = format!("{number:016}").repeat(limits::ANNOTATION_VALUE_BYTES_MAX / 16);
            call.change.set = [("key".to_owned(), text)].into();
            call
        };
        let each = limits::ANNOTATION_VALUE_BYTES_MAX as u64 / 16 * 16;
        let mut taken = 0;
        let full = loop {
            match stage.supervisor.annotate(value(taken)).await {
                Ok(_) => taken += 1,
                Err(full) => break full,
            }
        };
        assert!(
            matches!(
                full,
                CallError::QuotaExceeded {
                    limit: MAX_BYTES,
                    ..
                }
            ),
            "{full:?}"
        );
        assert!(
            (MAX_BYTES / 10 * 9..=MAX_BYTES).contains(&(taken * each)),
            "{taken}"
        );
        stage.supervisor.abort(abort(run_id())).await.unwrap();
    });
}

/// The copy lacks the annotations of the run, or its whole row.
#[test]
fn annotations_survive_a_store_without_them() {
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
