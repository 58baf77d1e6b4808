//! A run between two attempts, and the next one.

use super::{
    Bed, Calls,
    rows::{EPOCH, NODE, closure, new_run, opening, process, respec},
};
use kennel_lifecycle::{
    EndReason, Exit, KeeperEpoch, RestartMode, RestartPolicy, RowState, RunState, StopOrder,
    StopReason, Timestamp,
};
use kennel_store::{
    Desired, ListFilter, NewRun, PAST_ATTEMPTS_MAX, PastAttempt, Rest, RunRow, StoreError,
    StoredState, Times,
};
use std::time::Duration;

pub(super) async fn followed_attempt_is_read_back_whole(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = service(1);
    bed.store.insert(&new).await.unwrap();
    let rest = rest(&[ended(1)], 3);
    bed.store.rest(&new, &rest).await.unwrap();

    let row = bed.store.get(new.run).await.unwrap().unwrap();
    let wanted = RunRow {
        state: StoredState::Backoff,
        times: Times {
            ended: None,
            ..rest.past[0].times
        },
        past: rest.past.clone(),
        restarts: 3,
        next_restart: Some(rest.next),
        ..RunRow::open(new.clone())
    };
    assert_eq!(row, wanted);
    let waiting = ListFilter {
        states: vec![RunState::Backoff],
        ..ListFilter::default()
    };
    assert_eq!(
        bed.store.list(&waiting, None, 9).await.unwrap().rows,
        [wanted]
    );
    // A repeated rest changes nothing.
    bed.store.rest(&new, &rest).await.unwrap();
    assert_eq!(bed.store.get(new.run).await.unwrap(), Some(row));
}

pub(super) async fn next_attempt_replaces_the_one_before(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = service(1);
    bed.store.insert(&new).await.unwrap();
    bed.store.rest(&new, &rest(&[ended(1)], 1)).await.unwrap();
    let second = next(&new, 2);
    // A requested attempt resets the consecutive restarts.
    bed.store.begin(&second, 0).await.unwrap();

    let row = bed.store.get(new.run).await.unwrap().unwrap();
    let wanted = RunRow {
        past: vec![ended(1)],
        restarts: 0,
        ..RunRow::open(second.clone())
    };
    assert_eq!(row, wanted);
    let mut last = closure();
    last.outcome.reason = EndReason::RestartsExhausted { restarts: 1 };
    bed.store.close(&second, &last).await.unwrap();
    let row = bed.store.get(new.run).await.unwrap().unwrap();
    assert_eq!(row.state, StoredState::Ended(RunState::Failed));
    assert_eq!((row.new.attempt, row.outcome), (2, Some(last.outcome)));
    assert_eq!((row.past, row.next_restart), (vec![ended(1)], None));
}

// promise: B-3
pub(super) async fn attempt_begins_only_if_it_is_next(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = service(1);
    bed.store.insert(&new).await.unwrap();
    let refused = async |new: &NewRun, why: &str| {
        let begun = bed.store.begin(new, 1).await;
        assert!(
            matches!(begun, Err(StoreError::Fenced(_))),
            "{why}: {begun:?}"
        );
    };
    refused(&next(&new, 2), "the first one has not ended").await;
    bed.store.rest(&new, &rest(&[ended(1)], 1)).await.unwrap();
    refused(&new, "it has been").await;
    refused(&next(&new, 3), "it is not its turn").await;
    let mut old = next(&new, 2);
    old.generation = 0;
    refused(&old, "an older generation").await;
    refused(&next(&service(2), 2), "there is no such run").await;
    // A late report of the previous attempt.
    let late = bed.store.record_state(new.run, 1, RowState::Running, None);
    assert!(matches!(late.await, Err(StoreError::Fenced(_))));

    bed.store.begin(&next(&new, 2), 1).await.unwrap();
    refused(&next(&new, 2), "it runs").await;
    let late = bed.store.rest(&new, &rest(&[ended(1)], 1)).await;
    assert!(matches!(late, Err(StoreError::Fenced(_))), "{late:?}");
    bed.store.close(&next(&new, 2), &closure()).await.unwrap();
    refused(&next(&new, 3), "the run has ended").await;
    let late = bed.store.rest(&next(&new, 2), &rest(&[], 1)).await;
    assert!(matches!(late, Err(StoreError::Fenced(_))), "{late:?}");
}

// promise: B-3
pub(super) async fn unstarted_attempt_uses_its_number(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = service(1);
    bed.store.insert(&new).await.unwrap();
    bed.store.rest(&new, &rest(&[ended(1)], 1)).await.unwrap();
    let second = next(&new, 2);
    let both = rest(&[ended(1), ended(2)], 2);
    bed.store.rest(&second, &both).await.unwrap();

    // The late begin of attempt 2 is refused.
    let late = bed.store.begin(&second, 1).await;
    assert!(matches!(late, Err(StoreError::Fenced(_))), "{late:?}");
    let row = bed.store.get(new.run).await.unwrap().unwrap();
    assert_eq!((row.new.attempt, row.restarts), (2, 2));
    // The process record is still the first attempt's.
    assert_eq!(row.new.identity, new.identity);
    bed.store.begin(&next(&new, 3), 1).await.unwrap();
}

pub(super) async fn run_may_end_with_an_unstarted_attempt(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = service(1);
    bed.store.insert(&new).await.unwrap();
    bed.store.rest(&new, &rest(&[ended(1)], 1)).await.unwrap();
    let mut second = next(&new, 2);
    second.identity = None;
    second.held = None;
    let mut last = closure();
    last.outcome.reason = EndReason::RestartsExhausted { restarts: 1 };
    last.outcome.exit = None;
    last.times = Times {
        ended: last.times.ended,
        ..Times::default()
    };
    bed.store.close(&second, &last).await.unwrap();
    let row = bed.store.get(new.run).await.unwrap().unwrap();
    assert_eq!((row.new.attempt, row.past), (2, vec![ended(1)]));
    assert_eq!((row.outcome, row.times), (Some(last.outcome), last.times));
}

pub(super) async fn stopped_waiting_run_begins_no_attempt(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = service(1);
    bed.store.insert(&new).await.unwrap();
    bed.store.rest(&new, &rest(&[ended(1)], 1)).await.unwrap();
    let order = StopOrder {
        reason: StopReason::Restart {
            by: "uid:0".into(),
            request_id: Some("r".into()),
        },
        grace: Duration::from_secs(1),
    };
    let stop = bed.store.record_stop(new.run, 1, &order, Timestamp(9));
    stop.await.unwrap();
    let row = bed.store.get(new.run).await.unwrap().unwrap();
    assert_eq!((row.desired, row.stop), (Desired::Stop, Some(order)));
    let begun = bed.store.begin(&next(&new, 2), 1).await;
    assert!(matches!(begun, Err(StoreError::Fenced(_))), "{begun:?}");
}

pub(super) async fn of_many_attempts_the_newest_are_kept(bed: Bed) {
    bed.store.open_node(&opening(NODE, EPOCH)).await.unwrap();
    let new = service(1);
    bed.store.insert(&new).await.unwrap();
    let many: Vec<PastAttempt> = (1..=15).map(ended).collect();
    bed.store.rest(&new, &rest(&many, 15)).await.unwrap();
    let row = bed.store.get(new.run).await.unwrap().unwrap();
    let numbers: Vec<u32> = row.past.iter().map(|past| past.number).collect();
    assert_eq!(numbers.len(), PAST_ATTEMPTS_MAX);
    assert_eq!(numbers, (6..=15).collect::<Vec<u32>>());
    let whole = |past: &PastAttempt| !past.outcome.certificate.steps.is_empty();
    let certified: Vec<u32> = row
        .past
        .iter()
        .filter(|p| whole(p))
        .map(|p| p.number)
        .collect();
    assert_eq!(certified, [15]);
    let used = |past: &PastAttempt| past.outcome.certificate.usage.is_some();
    assert!(row.past.iter().all(used), "{:?}", row.past);
}

pub(super) fn service(id: u128) -> NewRun {
    respec(new_run(id), |spec| {
        spec.policy.restart = RestartPolicy {
            mode: RestartMode::OnFailure,
            jitter_percent: 7,
            max_restarts: Some(3),
            prevent_exit_codes: vec![0, 255],
            force_exit_codes: vec![9],
            ..RestartPolicy::keepalive()
        };
    })
}

pub(super) fn next(new: &NewRun, attempt: u32) -> NewRun {
    let mut next = new.clone();
    next.attempt = attempt;
    let identity = next.identity.as_mut().unwrap();
    identity.command = process(7000);
    identity.shim = process(8000);
    identity.cgroup = None;
    next.keeper_epoch = KeeperEpoch::from_u128(EPOCH);
    next
}

pub(super) fn ended(number: u32) -> PastAttempt {
    let closed = closure();
    let mut outcome = closed.outcome;
    outcome.exit = Some(Exit::Code(1));
    PastAttempt {
        number,
        leader: Some(process(5000)),
        outcome,
        times: closed.times,
    }
}

/// Only the newest has its certificate.
pub(super) fn rest(past: &[PastAttempt], restarts: u32) -> Rest {
    Rest {
        past: past.to_vec(),
        restarts,
        next: Timestamp(1_700_000_000_500_000),
    }
}
