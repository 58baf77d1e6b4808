//! The changes of a run's row as the node log stores them, and the one fold that applies them to a row.
//!
//! Their JSON is read by later versions: `change.lock` holds one line for each and goes red when one changes.

use crate::{
    Closure, Desired, Inserted, LeftStop, NewRun, Rest, RunRow, Store, StoreError, StoredState,
    Times, json,
};
use kennel_lifecycle::{Facets, OutputRemoval, RowState, RunId, StopOrder, StopReason, Timestamp};
use serde::{Deserialize, Serialize};

/// The form of the changes: it differs after each change of `change.lock`.
pub const CHANGE_FORM: [u8; 8] = hash(include_bytes!("change.lock"));

/// One change of a run. Writing a change twice is the same as once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// An attempt is about to be made: written before any part of it exists. Promises nothing.
    Intended(Box<NewRun>),
    /// As [`Store::insert`].
    Inserted(Box<NewRun>),
    /// As [`Store::begin`], with the restarts in a row.
    Begun(Box<NewRun>, u32),
    /// As [`Store::rest`].
    Rested(Box<NewRun>, Box<Rest>),
    /// As [`Store::record_stop`].
    Stop {
        /// Requester, reason and grace.
        order: StopOrder,
        /// Time at which SIGKILL is due.
        deadline: Timestamp,
    },
    /// As [`Store::record_state`].
    State {
        /// The new state.
        state: RowState,
        /// Start of the run, where it is known.
        started: Option<Timestamp>,
    },
    /// As [`Store::record_facets`].
    Facets(Box<Facets>),
    /// As [`Store::close`].
    Closed(Box<NewRun>, Box<Closure>),
    /// As [`Store::fence`].
    Fenced(Box<NewRun>, Box<Closure>),
    /// As [`Store::withdraw`].
    Withdrawn,
    /// As [`Store::mark_output_removed`].
    OutputRemoved(OutputRemoval),
    /// This node has no work left for the run.
    Forgotten,
    /// The whole row, as read or written.
    Snapshot(Box<RunRow>),
}

impl Change {
    /// Returns the row after this change. `None`: there is none, or its contents are not known.
    #[must_use]
    pub fn upon(&self, row: Option<RunRow>) -> Option<RunRow> {
        match self {
            Self::Intended(_) | Self::Forgotten => row,
            Self::Snapshot(row) => Some((**row).clone()),
            Self::Inserted(new) => Some(RunRow::open((**new).clone())),
            Self::Fenced(new, closure) => row.or_else(|| Some(fenced(new, closure))),
            Self::Withdrawn => row.filter(|row| row.outcome.is_some()),
            Self::OutputRemoved(removal) => row.map(|row| RunRow {
                output_removed: row.outcome.is_some().then_some(*removal),
                ..row
            }),
            Self::Closed(new, closure) => {
                let row = row.unwrap_or_else(|| RunRow::open((**new).clone()));
                Some(if row.outcome.is_some() {
                    row
                } else {
                    closed(row, new, closure)
                })
            }
            Self::Begun(..)
            | Self::Rested(..)
            | Self::Stop { .. }
            | Self::State { .. }
            | Self::Facets(_) => row.map(|row| self.upon_open(row)),
        }
    }

    /// Applies the change to an open row; only such a row changes.
    fn upon_open(&self, row: RunRow) -> RunRow {
        match self {
            _ if row.outcome.is_some() => row,
            Self::Begun(new, restarts) => RunRow {
                new: (**new).clone(),
                state: StoredState::Starting,
                times: Times::default(),
                restarts: *restarts,
                next_restart: None,
                ..row
            },
            Self::Rested(new, rest) => rested(row, new, rest),
            Self::Stop { order, deadline } => stopped(row, order, *deadline),
            // A late report of the attempt that has ended.
            Self::State { .. } if row.state == StoredState::Backoff => row,
            Self::State { state, started } => in_state(row, *state, *started),
            Self::Facets(facets) => RunRow {
                facets: (**facets).clone(),
                ..row
            },
            _ => row,
        }
    }

    /// Writes the change to the store, by this generation.
    ///
    /// # Errors
    ///
    /// The store has not accepted it. [`StoreError::Fenced`] and [`StoreError::Corrupt`]: it never will. A change that
    /// decides about a gate, or that only the store's own answer makes true, is never written late and is
    /// [`StoreError::Corrupt`].
    pub async fn write(
        &self,
        run: RunId,
        store: &dyn Store,
        generation: i64,
    ) -> Result<(), StoreError> {
        match self {
            Self::Stop { order, deadline } => {
                store.record_stop(run, generation, order, *deadline).await
            }
            Self::State { state, started } => {
                store.record_state(run, generation, *state, *started).await
            }
            Self::Facets(facets) => store.record_facets(run, generation, facets).await,
            Self::Fenced(new, closure) => write_fence(store, generation, new, closure).await,
            Self::Closed(new, closure) => store.close(&stamped(new, generation), closure).await,
            Self::Intended(_)
            | Self::Inserted(_)
            | Self::Begun(..)
            | Self::Rested(..)
            | Self::Withdrawn
            | Self::OutputRemoved(_)
            | Self::Forgotten
            | Self::Snapshot(_) => {
                let name = self.name();
                let why = format!("{name:?} is not written later than it was asked for");
                Err(StoreError::Corrupt(why))
            }
        }
    }

    /// Returns the name of the variant.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Intended(_) => "intended",
            Self::Inserted(_) => "inserted",
            Self::Begun(..) => "begun",
            Self::Rested(..) => "rested",
            Self::Stop { .. } => "stop",
            Self::State { .. } => "state",
            Self::Facets(_) => "facets",
            Self::Closed(..) => "closed",
            Self::Fenced(..) => "fenced",
            Self::Withdrawn => "withdrawn",
            Self::OutputRemoved(_) => "output_removed",
            Self::Forgotten => "forgotten",
            Self::Snapshot(_) => "snapshot",
        }
    }

    /// Returns the change as JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        json::bytes(self)
    }

    /// Parses a change of these bytes.
    ///
    /// # Errors
    ///
    /// The bytes contain no change that this version can read; the text gives the reason.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }
}

fn stamped(new: &NewRun, generation: i64) -> NewRun {
    NewRun {
        generation,
        ..new.clone()
    }
}

/// Writes a fence. A run that has the key already is stopped: by its own node, for which the stop is left.
async fn write_fence(
    store: &dyn Store,
    generation: i64,
    new: &NewRun,
    closure: &Closure,
) -> Result<(), StoreError> {
    let run = new.run;
    let (node, grace) = match store.fence(&stamped(new, generation), closure).await {
        Ok(Inserted::Taken(row)) if row.outcome.is_none() => {
            (row.new.node, row.new.spec.policy.grace())
        }
        Err(StoreError::Unread(row)) if row.node != new.node && !row.has_ended => {
            (row.node, row.grace)
        }
        // The run under the key has ended.
        Ok(Inserted::New(_) | Inserted::Taken(_)) => return Ok(()),
        Err(StoreError::Unread(row)) if row.has_ended => return Ok(()),
        Err(error) => return Err(error),
    };
    let reason = StopReason::Abort {
        by: new.owner.clone(),
        request_id: None,
    };
    let order = StopOrder { reason, grace };
    let asked = closure.times.ended.unwrap_or(new.created);
    if node != new.node {
        let stop = LeftStop { run, order, asked };
        return store.leave_stop(node, &stop).await;
    }
    let deadline = asked.plus(grace);
    store.record_stop(run, generation, &order, deadline).await
}

fn fenced(new: &NewRun, closure: &Closure) -> RunRow {
    RunRow {
        desired: Desired::Stop,
        ..closed(RunRow::open(new.clone()), new, closure)
    }
}

fn closed(row: RunRow, new: &NewRun, closure: &Closure) -> RunRow {
    RunRow {
        new: NewRun {
            attempt: new.attempt,
            ..row.new
        },
        state: StoredState::Ended(closure.outcome.state()),
        times: closure.times,
        outcome: Some(closure.outcome.clone()),
        entries: closure.entries.clone(),
        output_age: closure.output_age(),
        next_restart: None,
        ..row
    }
}

fn rested(row: RunRow, new: &NewRun, rest: &Rest) -> RunRow {
    let times = rest.past.last().map(|ended| ended.times);
    RunRow {
        new: NewRun {
            attempt: new.attempt,
            ..row.new
        },
        state: StoredState::Backoff,
        times: Times {
            ended: None,
            ..times.unwrap_or_default()
        },
        past: rest.past.clone(),
        restarts: rest.restarts,
        next_restart: Some(rest.next),
        ..row
    }
}

fn stopped(row: RunRow, order: &StopOrder, deadline: Timestamp) -> RunRow {
    let nearer = row.stop_deadline.map_or(deadline, |at| at.min(deadline));
    RunRow {
        desired: Desired::Stop,
        stop_deadline: Some(nearer),
        stop: row.stop.or_else(|| Some(order.clone())),
        ..row
    }
}

fn in_state(row: RunRow, state: RowState, started: Option<Timestamp>) -> RunRow {
    RunRow {
        state: match state {
            RowState::Running => StoredState::Running,
            RowState::Pausing => StoredState::Pausing,
            RowState::Paused => StoredState::Paused,
        },
        times: Times {
            started: started.or(row.times.started),
            ..row.times
        },
        ..row
    }
}

/// FNV-1a.
const fn hash(bytes: &[u8]) -> [u8; 8] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash.to_le_bytes()
}
