//! What one run owes the store: one write at a time, in the order in which they were asked for.

use crate::{clock, run_task::Done};
use kennel_lifecycle::{Report, RowState, RunId, StopOrder, Timestamp};
use kennel_linux::crash_point;
use kennel_store::{Closure, Inserted, NewRun, Store, StoreError};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// First and longest pause between two tries.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(2);
/// Tries of a write that can be done without.
const TRIES_MAX: u32 = 3;

/// One write.
#[derive(Debug)]
pub(crate) enum Write {
    /// The row before exec. Tried once: its result decides about the gate.
    Insert(Box<NewRun>),
    /// `desired = STOP`. Tried until it is there.
    Stop(StopOrder, Timestamp),
    /// A state. `Pausing` is tried once, the others a few times.
    State(RowState, Option<Timestamp>),
    /// The outcome. Tried until it is there.
    Close(Box<NewRun>, Box<Closure>),
}

/// Performs the write and tells how it went; the last thing told is [`Done::Written`].
pub(crate) async fn perform(
    store: Arc<dyn Store>,
    run: RunId,
    generation: i64,
    write: Write,
    done: mpsc::Sender<Done>,
) {
    // The receiver is the run's task, which ends only after the last `Written`.
    let tell = async |what: Done| drop(done.send(what).await);
    match write {
        Write::Insert(new) => tell(insert(&*store, &new).await).await,
        Write::Stop(order, deadline) => {
            crash_point!("stop.record");
            retry(run, "the stop", || {
                store.record_stop(run, generation, &order, deadline)
            })
            .await;
            crash_point!("stop.recorded");
            tell(Done::StopDurable(deadline)).await;
        }
        Write::State(state, started) => {
            let tries = if state == RowState::Pausing {
                1
            } else {
                TRIES_MAX
            };
            let report = if record_state(&*store, run, generation, state, started, tries).await {
                Report::StateRecorded(state)
            } else {
                Report::StateNotRecorded(state)
            };
            tell(Done::Report(report)).await;
        }
        Write::Close(new, closure) => {
            crash_point!("exit.close");
            let written = retry(run, "the outcome", || store.close(&new, &closure)).await;
            crash_point!("exit.closed");
            tell(if written && is_told(&*store, run, &closure).await {
                Done::Report(Report::OutcomeRecorded)
            } else {
                Done::Disowned
            })
            .await;
        }
    }
    tell(Done::Written).await;
}

/// Whether the row tells this very end. What never ran may have found another's closed row under its key.
async fn is_told(store: &dyn Store, run: RunId, closure: &Closure) -> bool {
    if closure.outcome.exit.is_some() {
        return true;
    }
    let mut pause = RETRY_FIRST;
    loop {
        match store.get(run).await {
            Ok(row) => {
                return row.and_then(|row| row.outcome).as_ref() == Some(&closure.outcome);
            }
            Err(error) => {
                tracing::warn!(%run, %error, "the outcome cannot be read back, trying again");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_LONGEST);
    }
}

async fn insert(store: &dyn Store, new: &NewRun) -> Done {
    crash_point!("spawn.record");
    let inserted = store.insert(new).await;
    crash_point!("spawn.recorded");
    match inserted {
        Ok(Inserted::New) => Done::Report(Report::Recorded),
        Ok(Inserted::Taken(row)) => Done::Taken(row),
        Err(error @ StoreError::Unknown(_)) => {
            tracing::warn!(run = %new.run, %error, "whether the run is recorded is not known, the gate stays shut");
            Done::Report(Report::RecordUnknown)
        }
        Err(error) => {
            tracing::warn!(run = %new.run, %error, "the run is not recorded, the gate stays shut");
            Done::Report(Report::RecordFailed)
        }
    }
}

async fn record_state(
    store: &dyn Store,
    run: RunId,
    generation: i64,
    state: RowState,
    started: Option<Timestamp>,
    tries: u32,
) -> bool {
    let mut pause = RETRY_FIRST;
    for attempt in 1..=tries {
        match store.record_state(run, generation, state, started).await {
            Ok(()) => {
                crash_point!("spawn.running_recorded", state == RowState::Running);
                crash_point!("pause.pausing_recorded", state == RowState::Pausing);
                crash_point!("pause.paused_recorded", state == RowState::Paused);
                return true;
            }
            Err(error) => {
                tracing::warn!(%run, ?state, attempt, %error, "the state is not recorded");
            }
        }
        if attempt < tries {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_LONGEST);
        }
    }
    false
}

/// Tries until it is written, or until the store says that the row is not ours to write: then `false`.
pub(crate) async fn retry<F, Fut>(run: RunId, what: &str, mut write: F) -> bool
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), StoreError>>,
{
    let began = clock::instant();
    let mut pause = RETRY_FIRST;
    let mut said = false;
    loop {
        match write().await {
            Ok(()) => {
                if said {
                    let waited = began.elapsed();
                    tracing::info!(%run, ?waited, "{what} is recorded now");
                }
                return true;
            }
            Err(error @ (StoreError::Fenced(_) | StoreError::Corrupt(_))) => {
                tracing::error!(%run, %error, "{what} cannot be recorded by this server");
                return false;
            }
            Err(error) => {
                if !said {
                    tracing::warn!(%run, %error, "{what} is not recorded yet, trying until it is");
                    said = true;
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_LONGEST);
    }
}
