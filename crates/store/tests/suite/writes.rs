//! Inserts, stops, states and closings.

use super::{
    Bed, Calls, Raw,
    rows::{EPOCH, NODE, closure, facets, logged, new_run, opening, order, respec},
};
use kennel_lifecycle::{
    Deadline, EndReason, Limit, NodeId, Outcome, RowState, RunState, StopCertificate, StopOrder,
    StopReason, Timestamp, TreeVerdict,
};
use kennel_store::{Change, Changed, Closure, Desired, NewRun, StoreError, StoredState, Times};
use std::{future::ready, sync::Arc, time::Duration};

pub(super) async fn inserted_row_is_read_back_whole(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let full = new_run(1);
    let mut bare = new_run(2);
    let identity = bare.identity.as_mut().unwrap();
    identity.cgroup = None;
    identity.command.pidfs_handle = None;
    identity.shim.pidfs_handle = None;
    bare.traceparent = None;
    bare.restarted_from = None;
    bare.spec = Arc::default();
    bare.spec_digest = Vec::new();

    for new in [full, bare] {
        assert!(matches!(
            bed.store.insert(&new).await.unwrap(),
            Changed::Done(_)
        ));
        let row = bed.store.get(new.run).await.unwrap().unwrap();
        assert_eq!(row.new, new);
        assert_eq!(row.state, StoredState::Starting);
        assert_eq!(row.desired, Desired::Run);
        assert_eq!(row.stop_deadline, None);
        assert_eq!(row.times, Times::default());
        assert_eq!(row.outcome, None);
    }
    assert_eq!(bed.store.get(new_run(3).run).await.unwrap(), None);

    // The grace column has whole milliseconds; the spec's exact value is read.
    let odd = respec(new_run(4), |spec| {
        spec.policy.stop.grace = Some(Duration::from_nanos(1));
    });
    bed.store.insert(&odd).await.unwrap();
    let row = bed.store.get(odd.run).await.unwrap().unwrap();
    assert_eq!(row.new, odd);
}

pub(super) async fn taken_key_returns_the_existing_row(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    let mut second = new_run(1);
    second.owner = "uid:2000".into();

    let Changed::Taken(row) = bed.store.insert(&second).await.unwrap() else {
        panic!("the key was taken");
    };

    assert_eq!(row.new, new_run(1));
}

// promise: D-4
pub(super) async fn a_late_insert_meets_the_closed_row(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.close(&new_run(1), &closure()).await.unwrap();

    let Changed::Taken(row) = bed.store.insert(&new_run(1)).await.unwrap() else {
        panic!("a closed row stands there");
    };

    assert_eq!(row.new, new_run(1));
    assert_eq!(row.state, StoredState::Ended(RunState::Succeeded));
    assert_eq!(row.desired, Desired::Run);
    assert_eq!(row.times, closure().times);
    assert_eq!(row.outcome, Some(closure().outcome));
    assert_eq!(row.entries, closure().entries);
}

pub(super) async fn closing_twice_changes_nothing(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    bed.store.close(&new_run(1), &closure()).await.unwrap();
    let before = bed.store.get(new_run(1).run).await.unwrap();
    let mut other = closure();
    other.outcome.reason = EndReason::ServiceLost;
    other.times.ended = Some(Timestamp(99));

    bed.store.close(&new_run(1), &other).await.unwrap();

    assert_eq!(bed.store.get(new_run(1).run).await.unwrap(), before);
    assert_eq!(before.unwrap().outcome, Some(closure().outcome));
}

pub(super) async fn closing_keeps_times_that_it_does_not_know(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    let started = Some(Timestamp(41));
    bed.store
        .record_state(new_run(1).run, 1, RowState::Running, started)
        .await
        .unwrap();
    let mut closing = closure();
    closing.times = Times {
        ended: Some(Timestamp(42)),
        ..Times::default()
    };

    bed.store.close(&new_run(1), &closing).await.unwrap();

    let row = bed.store.get(new_run(1).run).await.unwrap().unwrap();
    assert_eq!(row.times.started, started);
    assert_eq!(row.times.leader_exited, None);
    assert_eq!(row.times.ended, Some(Timestamp(42)));
}

// promise: D-9c
pub(super) async fn a_fence_takes_only_a_free_key(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let mut unknown = new_run(1);
    unknown.identity = None;
    unknown.held = None;
    let fenced = Closure {
        outcome: Outcome {
            reason: EndReason::Fenced { by: "uid:0".into() },
            exit: None,
            tree: TreeVerdict::NeverRan,
            streams: None,
            certificate: StopCertificate::default(),
        },
        times: Times {
            ended: Some(Timestamp(9)),
            ..Times::default()
        },
        entries: None,
        has_files: false,
    };
    bed.store.insert(&new_run(2)).await.unwrap();
    let mut known = unknown.clone();
    known.run = new_run(2).run;

    let written = bed.store.fence(&unknown, &fenced).await.unwrap();
    assert!(matches!(written, Changed::Done(_)));
    let Changed::Taken(open) = bed.store.fence(&known, &fenced).await.unwrap() else {
        panic!("an open row stands there");
    };
    let Changed::Taken(closed) = bed.store.insert(&new_run(1)).await.unwrap() else {
        panic!("the fence stands there");
    };

    assert_eq!(open.new, new_run(2));
    assert_eq!(open.outcome, None);
    let age = closed.new.age;
    assert_eq!(closed.new, NewRun { age, ..unknown });
    assert_eq!(closed.state, StoredState::Ended(RunState::Cancelled));
    assert_eq!(closed.outcome, Some(fenced.outcome.clone()));

    // A fence promised during an outage stops any run under the id: another node's run by a queued stop.
    let elsewhere = NewRun {
        node: NodeId::from_u128(77),
        ..known.clone()
    };
    let fence = |new: NewRun| Change::Fenced(Box::new(new), Box::new(fenced.clone()));
    let written = fence(elsewhere)
        .write_late(&*bed.store, NodeId::from_u128(NODE), 1, known.run)
        .await;
    written.unwrap();
    let row = bed.store.get(known.run).await.unwrap().unwrap();
    assert_eq!((row.desired, row.stop), (Desired::Run, None));
    let left = bed.store.left_stops(known.node).await.unwrap();
    let left: Vec<_> = left.iter().map(|stop| stop.run).collect();
    assert_eq!(left, [known.run]);
    fence(known.clone())
        .write_late(&*bed.store, NodeId::from_u128(NODE), 1, known.run)
        .await
        .unwrap();
    let row = bed.store.get(known.run).await.unwrap().unwrap();
    assert_eq!(row.desired, Desired::Stop);
    let by = StopReason::Abort {
        by: known.owner,
        request_id: None,
    };
    assert_eq!(row.stop.unwrap().reason, by);
}

pub(super) async fn a_stop_only_brings_the_deadline_forward(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    let run = new_run(1).run;

    for (asked, kept) in [(500, 500), (900, 500), (300, 300)] {
        let mut asked_for = order();
        asked_for.grace = Duration::from_micros(asked);
        let asked = Timestamp(i64::try_from(asked).unwrap());
        bed.store
            .record_stop(run, 1, &asked_for, asked)
            .await
            .unwrap();
        let row = bed.store.get(run).await.unwrap().unwrap();
        assert_eq!(row.desired, Desired::Stop);
        assert_eq!(row.stop_deadline, Some(Timestamp(kept)));
        let first = row.stop.map(|stop| stop.grace);
        assert_eq!(first, Some(Duration::from_micros(500)), "the first stays");
        assert_eq!(row.state, StoredState::Starting);
    }

    bed.store.close(&new_run(1), &closure()).await.unwrap();
    let late = bed.store.record_stop(run, 1, &order(), Timestamp(1)).await;
    assert!(
        matches!(late, Err(StoreError::Fenced(r)) if r == run),
        "{late:?}"
    );
    let row = bed.store.get(run).await.unwrap().unwrap();
    assert_eq!(row.stop_deadline, Some(Timestamp(300)));
}

// promise: R-14
pub(super) async fn requester_of_a_stop_is_not_forgotten(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let by = |request_id: Option<&str>| StopReason::Abort {
        by: "uid:7".into(),
        request_id: request_id.map(str::to_owned),
    };
    let reasons = [
        by(None),
        by(Some("again")),
        StopReason::Restart {
            by: "uid:8".into(),
            request_id: Some("r".into()),
        },
        StopReason::ServerShutdown,
        StopReason::DeadlineExceeded(Deadline::MaxRuntime),
        StopReason::DeadlineExceeded(Deadline::MaxPause),
        StopReason::LimitExceeded(Limit::OutputBytes),
        StopReason::LimitExceeded(Limit::Disk),
        StopReason::Orphaned,
        StopReason::ShimLost,
    ];
    for (id, reason) in (1..).zip(reasons) {
        let new = new_run(id);
        bed.store.insert(&new).await.unwrap();
        let grace = Duration::from_millis(1500);
        let asked = StopOrder { reason, grace };
        let at = Timestamp(9);
        bed.store.record_stop(new.run, 1, &asked, at).await.unwrap();
        let row = bed.store.get(new.run).await.unwrap().unwrap();
        assert_eq!(logged(&row).unwrap(), row);
        assert_eq!(row.stop, Some(asked));
    }
}

pub(super) async fn state_is_written_on_open_rows_only(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    let run = new_run(1).run;
    let started = Some(Timestamp(12));

    for (state, given, stored) in [
        (RowState::Running, started, StoredState::Running),
        (RowState::Pausing, None, StoredState::Pausing),
        (RowState::Paused, None, StoredState::Paused),
        (RowState::Running, None, StoredState::Running),
    ] {
        bed.store.record_state(run, 1, state, given).await.unwrap();
        let row = bed.store.get(run).await.unwrap().unwrap();
        assert_eq!(row.state, stored);
        assert_eq!(row.times.started, started);
    }

    bed.store.close(&new_run(1), &closure()).await.unwrap();
    for absent in [run, new_run(2).run] {
        let refused = bed
            .store
            .record_state(absent, 1, RowState::Paused, None)
            .await;
        assert!(
            matches!(refused, Err(StoreError::Fenced(r)) if r == absent),
            "{refused:?}"
        );
    }
}

// promise: RW-1
pub(super) async fn facets_are_written_on_an_open_row_only(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    let run = new_run(1).run;
    bed.store.record_facets(run, 1, &facets()).await.unwrap();
    let row = bed.store.get(run).await.unwrap().unwrap();
    assert_eq!(row.facets, facets());
    assert_eq!(logged(&row).unwrap(), row);
    let listed = bed.store.open_runs(new_run(1).node).await.unwrap();
    assert_eq!(listed.rows[0].facets, facets());

    bed.store.close(&new_run(1), &closure()).await.unwrap();
    let row = bed.store.get(run).await.unwrap().unwrap();
    assert_eq!(row.facets, facets(), "an end keeps them");
    for (absent, generation) in [(run, 1), (new_run(2).run, 1)] {
        let refused = bed.store.record_facets(absent, generation, &facets()).await;
        assert!(
            matches!(refused, Err(StoreError::Fenced(r)) if r == absent),
            "{refused:?}"
        );
    }
}

// promise: D-8
pub(super) async fn one_bad_row_of_thousand_spoils_no_other(bed: Bed) {
    const BAD: u128 = 500;
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let inserts = (1..=1000).map(|id| {
        let store = bed.store.clone();
        tokio::spawn(async move {
            let mut new = new_run(id);
            if id == BAD {
                // An open row without an identity is refused by a CHECK.
                new.identity = None;
                new.held = None;
            }
            store.insert(&new).await
        })
    });

    for (id, insert) in (1..).zip(inserts.collect::<Vec<_>>()) {
        let result = insert.await.unwrap();
        if id == BAD {
            assert!(matches!(result, Err(StoreError::Corrupt(_))), "{result:?}");
        } else {
            assert!(matches!(result.unwrap(), Changed::Done(_)), "row {id}");
        }
    }

    let open = bed.store.open_runs(new_run(1).node).await.unwrap();
    assert_eq!(open.rows.len(), 999);
    assert_eq!(bed.store.get(new_run(BAD).run).await.unwrap(), None);
}

pub(super) async fn a_write_outlives_its_caller(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = new_run(1);
    tokio::select! { biased;
        _ = bed.store.insert(&new) => panic!("a commit takes longer than one poll"),
        () = ready(()) => {}
    }

    // The next write of the same run comes after the abandoned one.
    let second = bed.store.insert(&new).await.unwrap();

    assert!(matches!(second, Changed::Taken(_)), "{second:?}");
}

pub(super) async fn concurrent_changes_of_a_run_are_all_kept(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.insert(&new_run(1)).await.unwrap();
    let run = new_run(1).run;
    let state = |state, started| bed.store.record_state(run, 1, state, started);
    let (order, facets) = (order(), facets());

    // Each is computed from a row that the others change.
    let (running, paused, stopped, reported) = tokio::join!(
        biased;
        state(RowState::Running, Some(Timestamp(1))),
        state(RowState::Paused, None),
        bed.store.record_stop(run, 1, &order, Timestamp(9)),
        bed.store.record_facets(run, 1, &facets),
    );

    for result in [running, paused, stopped, reported] {
        result.unwrap();
    }
    let row = bed.store.get(run).await.unwrap().unwrap();
    let states = [StoredState::Running, StoredState::Paused];
    assert!(states.contains(&row.state), "{row:?}");
    assert_eq!(row.times.started, Some(Timestamp(1)));
    assert_eq!(
        (row.stop, row.stop_deadline),
        (Some(order), Some(Timestamp(9)))
    );
    assert_eq!(row.facets, facets);
}

/// A store remembers the rows that it has inserted: what it remembers refuses no change.
pub(super) async fn stored_row_decides_and_no_older_copy_of_it(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let first = new_run(1);
    bed.store.insert(&first).await.unwrap();
    let run = first.run;
    let rested = "UPDATE runs SET state = 'backoff', next_restart_us = 1, seq = seq + 1";
    let rested = format!("{rested} WHERE run_id = '{run}' RETURNING 'x'");
    Raw::to(&bed.url).await.texts(&rested).await;
    let second = NewRun {
        attempt: 2,
        ..first
    };
    bed.store.begin(&second, 1).await.unwrap();
    let row = bed.store.get(run).await.unwrap().unwrap();
    assert_eq!((row.new.attempt, row.restarts), (2, 1));
}

/// A change writes what it changes, and nothing back that this version reads only in part.
// promise: D-31
pub(super) async fn changes_keep_values_of_later_versions(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let mut raw = Raw::to(&bed.url).await;
    let mut first = async |sql: String| raw.texts(&sql).await.into_iter().next();
    for (id, later) in [
        (1, r#"facets = '{"of_tomorrow":1}'"#),
        (2, r#"state = 'of_tomorrow', facets = '{"of_tomorrow":1}'"#),
    ] {
        let mut new = new_run(u128::try_from(id).unwrap());
        new.generation = id;
        bed.store.insert(&new).await.unwrap();
        // The database is another server's meanwhile.
        bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
        let run = new.run;
        let generation = id + 1;
        first(format!(
            "UPDATE runs SET {later} WHERE run_id = '{run}' RETURNING 'x'"
        ))
        .await;
        let (stop, at) = (order(), Timestamp(9));
        bed.store
            .record_stop(run, generation, &stop, at)
            .await
            .unwrap();
        let kept = "SELECT facets || CASE WHEN state = 'starting' THEN '' ELSE state END FROM runs";
        let kept = first(format!("{kept} WHERE run_id = '{run}'"))
            .await
            .unwrap();
        assert!(kept.starts_with(r#"{"of_tomorrow":1}"#), "{kept}");
        assert_eq!(kept.ends_with("of_tomorrow"), id == 2, "{kept}");
        let new = NewRun { generation, ..new };
        bed.store.close(&new, &closure()).await.unwrap();
        let row = bed.store.get(run).await.unwrap().unwrap();
        assert_eq!((row.stop, row.stop_deadline), (Some(stop), Some(at)));
        assert_eq!(row.outcome, Some(closure().outcome));
    }
}

pub(super) async fn a_finished_store_is_not_available(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    bed.store.ping().await.unwrap();
    assert!(
        bed.store.describe().ends_with(", schema 4"),
        "{}",
        bed.store.describe()
    );

    bed.store.finish().await;

    let write = bed.store.insert(&new_run(1)).await;
    assert!(
        matches!(write, Err(StoreError::Unavailable(_))),
        "{write:?}"
    );
    let read = bed.store.get(new_run(1).run).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
}
