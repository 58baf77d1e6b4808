//! Per-run write queue: one write to the store at a time, in the order of the requests.

use crate::{
    base::{clock, log_words},
    record::node_store::NodeStore,
    registry::Shared,
    run::task::done::Done,
};
use kennel_lifecycle::{Backoff, Report, Retries, RowState, RunId, StopOrder, Timestamp};
use kennel_linux::crash_point;
use kennel_store::{Age, Change, Changed, Closure, NewRun, RunRow, StoreError, UnreadRow};
use std::{io, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// Delays between two attempts.
const RETRY: Backoff = Backoff::up_to(Duration::from_millis(50), Duration::from_secs(2));
/// Longest time of the store for a change that can be stored in the node log instead.
const STORE_SLOW: Duration = Duration::from_secs(1);

/// Makes a change durable and reports the result; the last report is [`Done::Written`]. What decides about a gate is tried
/// once, so is a state; all else is retried until it is written. `attempt`: the one that a withdrawal is about.
pub(crate) async fn perform(
    shared: Arc<Shared>,
    run: RunId,
    change: Change,
    attempt: Option<Box<NewRun>>,
    done: mpsc::Sender<Done>,
) {
    let store = &shared.store;
    let result = match &change {
        Change::Inserted(new) => {
            crash_point!("spawn.record");
            let inserted = store.change(run, &change).await;
            crash_point!("spawn.recorded");
            recorded(new, inserted)
        }
        Change::Begun(new, _) => {
            crash_point!("attempt.record");
            let begun = store.change(run, &change).await;
            crash_point!("attempt.recorded");
            recorded(new, begun)
        }
        Change::Rested(..) => {
            crash_point!("attempt.rest");
            until_delivered(&shared, run).await;
            let write = || store.write(run, &change);
            let written = retry(store, run, "the end of the attempt", write).await;
            crash_point!("attempt.rested");
            ended(written)
        }
        Change::Stop { deadline, .. } => {
            crash_point!("stop.record");
            let kept = keep(&shared, run, "the stop", &change).await;
            crash_point!("stop.recorded");
            if kept {
                Done::StopDurable(*deadline)
            } else {
                Done::StopRefused
            }
        }
        Change::State { state, .. } => {
            Done::Report(if record_state(&shared, run, *state, &change).await {
                Report::StateRecorded(*state)
            } else {
                Report::StateNotRecorded(*state)
            })
        }
        Change::Facets(facets) => {
            crash_point!("facets.record");
            let written = keep(&shared, run, "the facets", &change).await;
            crash_point!("facets.recorded");
            Done::Facets(written.then_some(facets.revision))
        }
        Change::Closed(new, closure) => {
            crash_point!("exit.close");
            let done = if closure.outcome.exit.is_some() {
                ended(keep(&shared, run, "the outcome", &change).await)
            } else {
                close_what_never_ran(store, new, closure, &change).await
            };
            crash_point!("exit.closed");
            done
        }
        // The attempt may never have been recorded.
        Change::Withdrawn => {
            let has_row = match &attempt {
                Some(new) => has_row(&shared, new).await,
                None => true,
            };
            Done::Report(if !has_row || withdraw(&shared, run).await {
                Report::Withdrawn
            } else {
                Report::NotWithdrawn
            })
        }
        Change::Intended(_)
        | Change::Fenced(..)
        | Change::OutputRemoved(_)
        | Change::Forgotten
        | Change::Snapshot(_) => {
            tracing::error!(run_id = %run, change = change.name(), "the task of a run does not write this");
            Done::Disowned
        }
    };
    // The receiver is the run's task, which ends only after the last `Written`.
    let _ = done.send(result).await;
    let _ = done.send(Done::Written).await;
}

/// Returns the result of an end for the task.
fn ended(written: bool) -> Done {
    if written {
        Done::Report(Report::OutcomeRecorded)
    } else {
        Done::Disowned
    }
}

/// Whether an attempt has a row, whose INSERT may have no known result: it is inserted again, and an INSERT waits for
/// another one of its key that is being carried out. Only one that the database has not begun by then comes later, see
/// [`crate::node::recover`]. `false`: another run has the key.
async fn has_row(shared: &Shared, new: &NewRun) -> bool {
    until_delivered(shared, new.run).await;
    let inserted = Change::Inserted(Box::new(new.clone()));
    let mut retries = RETRY.retries(new.run);
    loop {
        match shared.store.change(new.run, &inserted).await {
            Ok(Changed::Taken(row)) => return row.new.identity == new.identity,
            // A row that this server may not write is not removed either.
            Ok(Changed::Done(_))
            | Err(StoreError::Fenced(_) | StoreError::Corrupt(_) | StoreError::Unread(_)) => {
                return true;
            }
            Err(error) => {
                tracing::debug!(run_id = %new.run, %error, "cannot find out yet whether the attempt is recorded");
            }
        }
        rest(&shared.store, &mut retries).await;
    }
}

/// Removes the row of a run whose gate was never opened; that of another run under its key stays. `false`: the row was
/// changed meanwhile.
pub(crate) async fn withdraw(shared: &Shared, run: RunId) -> bool {
    until_delivered(shared, run).await;
    let store = &shared.store;
    let write = || store.write(run, &Change::Withdrawn);
    let withdrawn = retry(store, run, "that it never began", write).await;
    if withdrawn {
        tracing::info!(run_id = %run, "the gate of the run was never opened: nothing ran, its record is withdrawn, and the Spawn can be repeated");
    }
    withdrawn
}

/// Writes the end of a run that never ran, and reads which end its row has: the write of an earlier server may have come
/// first. Another run's closed row may have its key: only the store knows.
async fn close_what_never_ran(
    store: &NodeStore,
    new: &NewRun,
    closure: &Closure,
    change: &Change,
) -> Done {
    let run = new.run;
    loop {
        let write = || store.write(run, change);
        if !retry(store, run, "the outcome", write).await {
            return Done::Disowned;
        }
        // If the row is missing or open, the store went back: retry.
        let Ok(row) = row_of(store, run).await else {
            return Done::Disowned;
        };
        if let Some(row) = row.filter(|row| row.outcome.is_some()) {
            let is_same = row.outcome.as_ref() == Some(&closure.outcome);
            let is_of_this_run = (row.new.created, row.new.node) == (new.created, new.node);
            return if is_same {
                let age = row.new.age;
                store.has(row);
                Done::Aged(age, Report::OutcomeRecorded)
            } else if is_of_this_run {
                store.has(row.clone());
                Done::Closed(Box::new(row))
            } else {
                Done::Disowned
            };
        }
    }
}

/// Reads the row of a run, once the store answers. The error: this version cannot read it.
pub(crate) async fn row_of(
    store: &NodeStore,
    run: RunId,
) -> Result<Option<RunRow>, Box<UnreadRow>> {
    let mut retries = RETRY.retries(run);
    loop {
        match store.get(run).await {
            Ok(row) => return Ok(row),
            Err(StoreError::Unread(unread)) => return Err(unread),
            Err(error) => {
                tracing::debug!(run_id = %run, %error, "the row is not read yet");
            }
        }
        rest(store, &mut retries).await;
    }
}

/// Reads the row of a run that was adopted without it; a row that the store has lost is written again. Retried until
/// the row is known, or no task waits for it any more.
pub(crate) async fn meet(shared: Arc<Shared>, new: Box<NewRun>, done: mpsc::Sender<Done>) {
    let met = tokio::select! {
        met = meet_row(&shared.store, &new) => met,
        () = done.closed() => return,
    };
    // The receiver is gone or takes the result.
    let _ = done.send(met).await;
}

async fn meet_row(store: &NodeStore, new: &NewRun) -> Done {
    let run = new.run;
    let mut retries = RETRY.retries(run);
    loop {
        let row = match row_of(store, run).await {
            Ok(Some(row)) => row,
            Err(unread) => return Done::Unread(unread),
            Ok(None) => match store.rewrite(new).await {
                Ok(row) => row,
                Err(error) => {
                    tracing::warn!(run_id = %run, %error, "the row is not rewritten yet");
                    rest(store, &mut retries).await;
                    continue;
                }
            },
        };
        if row.new.identity == new.identity {
            return Done::Met(Box::new(row));
        }
        tracing::error!(run_id = %run, recorded = log_words::identity(row.new.identity.as_ref()), held = log_words::identity(new.identity.as_ref()), "the run of the keeper and its row differ, skipping it");
        return Done::Strange;
    }
}

/// Waits before the next attempt; less where the store has just become available.
async fn rest(store: &NodeStore, retries: &mut Retries) {
    tokio::select! {
        () = tokio::time::sleep(retries.next_delay()) => {}
        () = store.opened() => {}
    }
}

/// Returns the result of the record of an attempt, which decides about its gate.
fn recorded(new: &NewRun, written: Result<Changed, StoreError>) -> Done {
    match written {
        Ok(Changed::Done(Age::NONE)) => Done::Report(Report::Recorded),
        Ok(Changed::Done(age)) => Done::Aged(age, Report::Recorded),
        Ok(Changed::Taken(row)) => Done::Taken(row),
        Err(error) => not_recorded(new, &error),
    }
}

/// Returns the result for an attempt whose record the store has not taken, or has not confirmed.
fn not_recorded(new: &NewRun, error: &StoreError) -> Done {
    let (run, attempt) = (new.run, new.attempt);
    Done::Report(if matches!(error, StoreError::Unknown(_)) {
        tracing::warn!(run_id = %run, attempt, %error, "cannot determine whether the attempt is recorded, the gate stays closed");
        Report::RecordUnknown
    } else {
        tracing::warn!(run_id = %run, attempt, %error, "the attempt is not recorded, the gate stays closed");
        Report::RecordFailed
    })
}

/// Returns whether a state is durable. A state is dispensable, so it waits for nothing.
async fn record_state(shared: &Shared, run: RunId, state: RowState, change: &Change) -> bool {
    let recorded = match at_once(shared, run, change).await {
        Ok(recorded) => recorded,
        Err(error) => {
            tracing::warn!(run_id = %run, state = state.api_name(), %error, "the state is not recorded");
            false
        }
    };
    if recorded {
        crash_point!("spawn.running_recorded", state == RowState::Running);
        crash_point!("pause.pausing_recorded", state == RowState::Pausing);
        crash_point!("pause.paused_recorded", state == RowState::Paused);
    }
    recorded
}

/// Makes it durable that the run is to end. `false`: the row is not this server's to write.
pub(crate) async fn stop(
    shared: &Shared,
    run: RunId,
    order: &StopOrder,
    deadline: Timestamp,
) -> bool {
    let change = Change::Stop {
        order: order.clone(),
        deadline,
    };
    keep(shared, run, "the stop", &change).await
}

/// Waits until pending writes of the run are delivered: they precede direct writes to the store.
pub(crate) async fn until_delivered(shared: &Shared, run: RunId) {
    shared.record.delivered(run).await;
}

/// Makes a change durable: in the store, or where that does not take it, in the node log. `false`: the row is not this
/// server's to write.
async fn keep(shared: &Shared, run: RunId, what: &str, change: &Change) -> bool {
    let mut retries = RETRY.retries(run);
    let mut logged = false;
    loop {
        let error = match at_once(shared, run, change).await {
            Ok(kept) => return kept,
            Err(error) => error,
        };
        if !std::mem::replace(&mut logged, true) {
            tracing::warn!(run_id = %run, %error, "{what} is not recorded yet, retrying");
        }
        rest(&shared.store, &mut retries).await;
    }
}

/// Tries the store once, unless writes are pending for it already; then the node log.
async fn at_once(shared: &Shared, run: RunId, change: &Change) -> Result<bool, io::Error> {
    if shared.store.generation().is_some() && !shared.record.has_pending() {
        match tokio::time::timeout(STORE_SLOW, shared.store.write(run, change)).await {
            Ok(Ok(())) => return Ok(true),
            Ok(Err(
                error @ (StoreError::Fenced(_) | StoreError::Corrupt(_) | StoreError::Unread(_)),
            )) => {
                tracing::error!(run_id = %run, %error, change = change.name(), "this server cannot record this");
                return Ok(false);
            }
            Ok(Err(error)) => {
                tracing::warn!(run_id = %run, %error, "the database does not accept a change, keeping it in the outbox");
            }
            // The queued write may still be executed; the outbox delivers the change again anyway.
            Err(_) => {
                tracing::warn!(run_id = %run, "the database is slow to accept a change, keeping it in the outbox");
            }
        }
    }
    shared
        .record
        .promise(run, change.clone())
        .await
        .map(|()| true)
}

/// Retries until it is written, or until the store refuses because the row is not this server's to write: then `false`.
pub(crate) async fn retry<F, Fut>(store: &NodeStore, run: RunId, what: &str, mut write: F) -> bool
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), StoreError>>,
{
    let began = clock::instant();
    let mut retries = RETRY.retries(run);
    let mut logged = false;
    loop {
        match write().await {
            Ok(()) => {
                if logged {
                    let waited_seconds = began.elapsed().as_secs_f64();
                    tracing::info!(run_id = %run, waited_seconds, "{what} is recorded now");
                }
                return true;
            }
            Err(
                error @ (StoreError::Fenced(_) | StoreError::Corrupt(_) | StoreError::Unread(_)),
            ) => {
                tracing::error!(run_id = %run, %error, "this server cannot record {what}");
                return false;
            }
            Err(error) => {
                if !logged {
                    tracing::warn!(run_id = %run, %error, "{what} is not recorded yet, retrying");
                    logged = true;
                }
            }
        }
        rest(store, &mut retries).await;
    }
}
