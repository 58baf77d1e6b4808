//! What a store is still to be told, as bytes that outlive the server which owes it.

use crate::{Closure, Inserted, NewRun, RunRow, Store, StoreError, StoredState, json};
use kennel_lifecycle::{RowState, RunId, StopOrder, StopReason, Timestamp};
use serde::{Deserialize, Serialize};

/// One write that has been promised. To tell it twice is to tell it once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// As [`Store::record_stop`].
    Stop {
        /// Which run.
        run: RunId,
        /// Who asked and how.
        order: StopOrder,
        /// When SIGKILL is due.
        deadline: Timestamp,
    },
    /// As [`Store::record_state`].
    State {
        /// Which run.
        run: RunId,
        /// Its state.
        state: RowState,
        /// When it began, where that is known.
        started: Option<Timestamp>,
    },
    /// As [`Store::fence`].
    Fence(Box<NewRun>, Box<Closure>),
    /// As [`Store::close`].
    Close(Box<NewRun>, Box<Closure>),
}

/// Who the fence was for had been recorded before: it is to be stopped. Not where it is another node's.
async fn fence_late(
    store: &dyn Store,
    generation: i64,
    new: &NewRun,
    closure: &Closure,
    row: &RunRow,
) -> Result<(), StoreError> {
    if row.new.node != new.node {
        return Err(StoreError::Fenced(new.run));
    }
    let order = StopOrder {
        reason: StopReason::Abort {
            by: new.owner.clone(),
            request_id: None,
        },
        grace: row.new.spec.policy.grace(),
    };
    let deadline = closure.times.ended.unwrap_or(new.created);
    store
        .record_stop(new.run, generation, &order, deadline.plus(order.grace))
        .await
}

impl Fact {
    /// Of which run.
    #[must_use]
    pub fn run(&self) -> RunId {
        match self {
            Self::Stop { run, .. } | Self::State { run, .. } => *run,
            Self::Fence(new, _) | Self::Close(new, _) => new.run,
        }
    }

    /// Tells it to the store, by this generation.
    ///
    /// # Errors
    ///
    /// The store has not taken it. [`StoreError::Fenced`] and [`StoreError::Corrupt`]: it never will.
    pub async fn tell(&self, store: &dyn Store, generation: i64) -> Result<(), StoreError> {
        let stamped = |new: &NewRun| {
            Box::new(NewRun {
                generation,
                ..new.clone()
            })
        };
        match self {
            Self::Stop {
                run,
                order,
                deadline,
            } => store.record_stop(*run, generation, order, *deadline).await,
            Self::State {
                run,
                state,
                started,
            } => store.record_state(*run, generation, *state, *started).await,
            Self::Fence(new, closure) => match store.fence(&stamped(new), closure).await? {
                Inserted::Taken(row) if row.outcome.is_none() => {
                    fence_late(store, generation, new, closure, &row).await
                }
                // Whoever stands under the key has ended.
                Inserted::New | Inserted::Taken(_) => Ok(()),
            },
            Self::Close(new, closure) => store.close(&stamped(new), closure).await,
        }
    }

    /// What a row says once this is told.
    #[must_use]
    pub fn upon(&self, mut row: RunRow) -> RunRow {
        match self {
            Self::Stop {
                order, deadline, ..
            } => {
                row.desired = crate::Desired::Stop;
                let nearer = row.stop_deadline.map_or(*deadline, |at| at.min(*deadline));
                row.stop_deadline = Some(nearer);
                row.stop.get_or_insert_with(|| order.clone());
            }
            // A late word of the attempt that has ended.
            Self::State { .. } if row.state == StoredState::Backoff => {}
            Self::State { state, started, .. } => {
                row.state = match state {
                    RowState::Running => StoredState::Running,
                    RowState::Pausing => StoredState::Pausing,
                    RowState::Paused => StoredState::Paused,
                };
                row.times.started = started.or(row.times.started);
            }
            Self::Fence(..) => {}
            Self::Close(new, closure) => {
                row.new.attempt = new.attempt;
                row.next_restart = None;
                row.state = StoredState::Ended(closure.outcome.state());
                row.times = closure.times;
                row.outcome = Some(closure.outcome.clone());
            }
        }
        row
    }

    /// As JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        json::bytes(self)
    }

    /// The fact in these bytes.
    ///
    /// # Errors
    ///
    /// There is none that this version can read; the text says why.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }
}
